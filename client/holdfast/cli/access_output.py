"""Access rules as people see them."""

from collections.abc import Sequence

from holdfast.access.policies import AccessPolicy
from holdfast.access.rights import RIGHTS
from holdfast.cli import output
from holdfast.cli.access_rules import MadeToken
from holdfast.cli.times import shown_instant


def print_policy(policy: AccessPolicy, version: int) -> None:
    if not policy.roles and not policy.grants:
        output.print_line("There are no access rules: everybody may do everything, unless servers have files of rules.")
        return
    rows = [
        (
            name, ", ".join(right for right in RIGHTS if right in role.rights), ", ".join(role.queues),
            "all" if role.tenants is None else ", ".join(sorted(role.tenants)),
        )
        for name, role in sorted(policy.roles.items())
    ]  # fmt: skip
    _print(output.table(("role", "rights", "queues", "tenants"), rows, numbers=False))
    grants = [(subject, ", ".join(names)) for subject, names in sorted(policy.grants.items())]
    _print(output.table(("who", "roles"), grants, numbers=False))
    if policy.tokens:
        found = sorted(policy.tokens.items(), key=lambda item: (item[1].name, item[0]))
        tokens = [
            (token.name, token_id, shown_instant(token.expires_at_ms) if token.expires_at_ms else "never")
            for token_id, token in found
        ]
        _print(output.table(("token", "id", "expires"), tokens, numbers=False))
    if policy.jwt is not None:
        output.print_line(f"JWTs of {policy.jwt.issuer} for {policy.jwt.audience}")
    if policy.routers:
        output.print_line(f"Certificates of routers: {', '.join(sorted(policy.routers))}")
    if version:
        output.print_note(f"Version {version} in the map of the cluster.")


def _print(table: output.Shown) -> None:
    output.show([table, output.text("")])


def print_grant(subject: str, roles: Sequence[str]) -> None:
    output.print_line(f"{subject} has {', '.join(roles) if roles else 'no role any more'}.")


def print_token(made: MadeToken, file: str | None) -> None:
    if file is None:
        output.print_line(made.text)
    until = f", until {shown_instant(made.expires_at_ms)}" if made.expires_at_ms else ""
    where = "It is not shown again" if file is None else f"It is in {file}"
    output.print_note(
        f"Token {made.token_id} of {made.name}, with {', '.join(made.roles) or 'no role yet'}{until}. {where}."
    )


def print_revoked(token_id: str) -> None:
    output.print_line(f"Token {token_id} is revoked: nobody gets in with it any more, within seconds.")
