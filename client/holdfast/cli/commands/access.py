"""`holdfast access`: who may do what."""

from pathlib import Path
from typing import Annotated

import typer

from holdfast.access.policies import AccessPolicy
from holdfast.cli import access_output, access_rules, records, times
from holdfast.cli.commands.shared import Address, Json, Timeout, Yes, confirm, epilog, group, parsed
from holdfast.cli.problems import ExitCode, usage
from holdfast.client.aio import DEFAULT_ADDRESS, DEFAULT_TIMEOUT_S

File = Annotated[
    Path | None,
    typer.Option(
        "--file", metavar="FILE", help="The access_file of a single node, instead of a cluster's rules.",
        show_default=False,
    ),
]  # fmt: skip
Subject = Annotated[
    str,
    typer.Argument(
        metavar="SUBJECT", help="token:NAME, certificate:NAME, jwt:CLAIM=VALUE or anonymous.", show_default=False
    ),
]


def show(
    file: File = None, address: Address = DEFAULT_ADDRESS, timeout_s: Timeout = DEFAULT_TIMEOUT_S, as_json: Json = False
) -> int:
    """Show the rules: roles, who has them, and tokens, of which only hashes are kept."""
    policy, version = access_rules.read(access_rules.Where(address, timeout_s, file))
    _print(policy, as_json=as_json, version=version)
    return ExitCode.OK


def set_rules(
    source: Annotated[Path, typer.Argument(metavar="FILE", help="TOML, or JSON if it ends with .json.")],
    yes: Yes = False,
    address: Address = DEFAULT_ADDRESS,
    timeout_s: Timeout = DEFAULT_TIMEOUT_S,
    as_json: Json = False,
) -> int:
    """Put the rules of a file in the place of those of the cluster.

    From then on every caller is asked who it is. Brokers and routers go by them within seconds.
    Rules that nobody could change again are refused.
    """
    policy = access_rules.read_file(source)
    if not yes:
        confirm(f"put the rules of {source} in the place of those of the cluster")
    version = access_rules.replace(access_rules.Where(address, timeout_s), policy)
    _print(policy, as_json=as_json, version=version)
    return ExitCode.OK


def clear(
    yes: Yes = False, address: Address = DEFAULT_ADDRESS, timeout_s: Timeout = DEFAULT_TIMEOUT_S, as_json: Json = False
) -> int:
    """Take all rules of the cluster away: then those in the files of its servers count, or nobody is asked."""
    if not yes:
        confirm("take all access rules away", warning=" Everybody may do everything then, unless servers have files.")
    access_rules.replace(access_rules.Where(address, timeout_s), None)
    _print(AccessPolicy(), as_json=as_json)
    return ExitCode.OK


def grant(
    subject: Subject,
    roles: Annotated[list[str], typer.Argument(metavar="ROLE", help="Names of roles.", show_default=False)],
    file: File = None,
    address: Address = DEFAULT_ADDRESS,
    timeout_s: Timeout = DEFAULT_TIMEOUT_S,
    as_json: Json = False,
) -> int:
    """Give somebody roles, beside those that they have."""
    policy = access_rules.grant(access_rules.Where(address, timeout_s, file), subject, roles)
    _print_grant(policy, subject, as_json=as_json)
    return ExitCode.OK


def revoke(
    subject: Subject,
    roles: Annotated[
        list[str] | None, typer.Argument(metavar="[ROLE]", help="Names of roles; all if none is named.")
    ] = None,
    file: File = None,
    address: Address = DEFAULT_ADDRESS,
    timeout_s: Timeout = DEFAULT_TIMEOUT_S,
    as_json: Json = False,
) -> int:
    """Take roles from somebody: effective within seconds, also for calls that wait.

    Without roles all of them, and of a token's name all tokens.
    """
    policy = access_rules.revoke(access_rules.Where(address, timeout_s, file), subject, roles or ())
    _print_grant(policy, subject, as_json=as_json)
    return ExitCode.OK


def create_token(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Who will have it.", show_default=False)],
    role: Annotated[
        list[str] | None, typer.Option("--role", "-r", metavar="ROLE", help="A role of that name; may be repeated.")
    ] = None,
    expires: Annotated[
        str | None, typer.Option("--expires", metavar="TIME", help="After how long: 90d, 12h.", show_default="never")
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", metavar="FILE", help="Write it there, for nobody else to read.", show_default="print it"),
    ] = None,
    file: File = None,
    address: Address = DEFAULT_ADDRESS,
    timeout_s: Timeout = DEFAULT_TIMEOUT_S,
    as_json: Json = False,
) -> int:
    """Make a token. It is shown once: only its hash is kept.

    A name may have several tokens: so one is replaced by another without a failed call.
    Only the token is printed on standard output, so that it can go into a file.
    """
    expires_ms = parsed("--expires", times.duration_ms, expires)
    if expires_ms is not None and expires_ms <= 0:
        raise usage("--expires: Expected a time that is not over yet.")
    made = access_rules.create_token(access_rules.Where(address, timeout_s, file), name, role or (), expires_ms)
    if out is not None:
        access_rules.write_token(out, made.text)
    if as_json:
        shown = {"name": made.name, "id": made.token_id, "expires_at_ms": made.expires_at_ms, "roles": [*made.roles]}
        records.print_json(shown | ({"file": str(out)} if out is not None else {"token": made.text}))
    else:
        access_output.print_token(made, None if out is None else str(out))
    return ExitCode.OK


def revoke_token(
    token_id: Annotated[str, typer.Argument(metavar="ID", help="As `holdfast access show` has it.")],
    file: File = None,
    address: Address = DEFAULT_ADDRESS,
    timeout_s: Timeout = DEFAULT_TIMEOUT_S,
    as_json: Json = False,
) -> int:
    """Take one token back, within seconds, also for calls that wait. Others of its name stay."""
    access_rules.revoke_token(access_rules.Where(address, timeout_s, file), token_id)
    if as_json:
        records.print_json({"id": token_id, "revoked": True})
    else:
        access_output.print_revoked(token_id)
    return ExitCode.OK


def _print(policy: AccessPolicy, *, as_json: bool, version: int = 0) -> None:
    if as_json:
        records.print_json(policy.mapping())
    else:
        access_output.print_policy(policy, version)


def _print_grant(policy: AccessPolicy, subject: str, *, as_json: bool) -> None:
    roles = policy.grants.get(subject, ())
    if as_json:
        records.print_json({"subject": subject, "roles": [*roles]})
    else:
        access_output.print_grant(subject, roles)


def add_to(app: typer.Typer) -> None:
    access = group("Who may do what: rights, roles and tokens; see docs/security.md.")
    access.command(epilog=epilog("holdfast access show", "holdfast access show --file access.json --json"))(show)
    access.command("set", epilog=epilog("holdfast access set access.toml --yes"))(set_rules)
    access.command(epilog=epilog("holdfast access clear --yes"))(clear)
    examples = ("holdfast access grant token:billing mailer", "holdfast access grant jwt:groups=ops operator")
    access.command(epilog=epilog(*examples))(grant)
    access.command(epilog=epilog("holdfast access revoke token:billing", "holdfast access revoke jwt:sub=ada admin"))(
        revoke
    )
    token = group("Tokens: made, and taken back.")
    examples = (
        "holdfast access token create billing --role mailer --expires 90d > billing.token",
        "holdfast access token create root --role admin --file access.json --out root.token",
    )
    token.command("create", epilog=epilog(*examples))(create_token)
    token.command("revoke", epilog=epilog("holdfast access token revoke 0123456789abcdef"))(revoke_token)
    access.add_typer(token, name="token")
    app.add_typer(access, name="access")
