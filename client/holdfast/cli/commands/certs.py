"""`holdfast certs …`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from holdfast.cli import output, records
from holdfast.cli.commands.shared import Json, epilog, group
from holdfast.cli.problems import CommandFailed, ExitCode, Problem

if TYPE_CHECKING:
    from holdfast.cli.certificates import Made

certs_app = group("Make certificates for a test cluster: an authority, and what nodes, routers and clients show.")

DEFAULT_DIRECTORY = Path("holdfast-certs")
_DAYS_MAX = 3650
_DAYS = 90

_Directory = Annotated[Path, typer.Option("--dir", metavar="DIR", help="Where they are; made if missing.")]
_Name = Annotated[str, typer.Argument(metavar="NAME", help="Whose it is.", show_default=False)]
_Hosts = Annotated[
    list[str] | None,
    typer.Option("--host", metavar="HOST", help="A name or address at which it is called; may be repeated."),
]
_Days = Annotated[int, typer.Option("--days", min=1, max=_DAYS_MAX, metavar="N", help="How long it is good.")]
_Renew = Annotated[
    bool, typer.Option("--renew", help="Replace what is there; without --host for the same hosts as before.")
]


@certs_app.command("init", epilog=epilog("holdfast certs init", "holdfast certs init --dir /etc/holdfast/certs --json"))
def certs_init(
    directory: _Directory = DEFAULT_DIRECTORY,
    days: Annotated[
        int, typer.Option("--days", min=1, max=_DAYS_MAX, metavar="N", help="How long they are good.")
    ] = _DAYS_MAX,
    as_json: Json = False,
) -> None:
    """Make two authorities: one for servers and clients, and one for what nodes show to each other.

    ca.crt and peers-ca.crt say who is trusted, and go to every machine.
    Whoever has ca.key or peers-ca.key can make certificates: keep them where nobody else reads.
    Nothing that is there already is overwritten.
    """
    _print(_made(lambda maker: maker.make_authorities(directory, days)), as_json=as_json)


@certs_app.command(
    "node",
    epilog=epilog(
        "holdfast certs node n1 --host n1.internal --host 10.0.0.11",
        "holdfast certs node n1 --renew",
    ),
)
def certs_node(
    name: _Name, directory: _Directory = DEFAULT_DIRECTORY, hosts: _Hosts = None, days: _Days = _DAYS,
    renew: _Renew = False, as_json: Json = False,
) -> None:  # fmt: skip
    """Make what a broker shows: NAME.crt to clients and routers, NAME-peers.crt to the other nodes.

    NAME is its node_name. --host: where clients and routers call it, as in its advertise_address.
    localhost is always among them.
    With --renew running servers take the new ones into use within seconds.
    """
    _print(
        _made(lambda maker: maker.issue(directory, name, maker.Kind.NODE, hosts or (), days=days, renew=renew)),
        as_json=as_json,
    )


@certs_app.command(
    "router",
    epilog=epilog("holdfast certs router r1 --host queue.example.org", "holdfast certs router r1 --renew --json"),
)
def certs_router(
    name: _Name, directory: _Directory = DEFAULT_DIRECTORY, hosts: _Hosts = None, days: _Days = _DAYS,
    renew: _Renew = False, as_json: Json = False,
) -> None:  # fmt: skip
    """Make what a router, or a rebalancer, shows to its clients and to the brokers.

    --host: where clients call it. It opens nothing on the port between nodes: a router is not a node.
    """
    _print(
        _made(lambda maker: maker.issue(directory, name, maker.Kind.ROUTER, hosts or (), days=days, renew=renew)),
        as_json=as_json,
    )


@certs_app.command("client", epilog=epilog("holdfast certs client billing", "holdfast certs client billing --days 30"))
def certs_client(
    name: _Name, directory: _Directory = DEFAULT_DIRECTORY, days: _Days = _DAYS, renew: _Renew = False,
    as_json: Json = False,
) -> None:  # fmt: skip
    """Make what a producer, a worker or a person shows to servers that ask for a certificate.

    NAME is who it is: the common name of the certificate.
    """
    _print(
        _made(lambda maker: maker.issue(directory, name, maker.Kind.CLIENT, days=days, renew=renew)), as_json=as_json
    )


@certs_app.command("ls", epilog=epilog("holdfast certs ls", "holdfast certs ls --dir /etc/holdfast/certs --json"))
def certs_ls(directory: _Directory = DEFAULT_DIRECTORY, as_json: Json = False) -> None:
    """List the certificates of a directory, with their hosts and how long they are good."""
    _print(_made(lambda maker: maker.listed(directory)), as_json=as_json)


def _made(make: Callable[[Any], list[Made]]) -> list[Made]:
    try:
        from holdfast.cli import certificates
    except ImportError as error:
        raise CommandFailed(
            Problem(
                ExitCode.MISSING_EXTRA,
                "MISSING_EXTRA",
                f"`holdfast certs` needs the package '{error.name}', which is missing: "
                "run  pip install 'holdfast-queue[server]'",
            )
        ) from error
    try:
        return make(certificates)
    except certificates.CertificatesError as error:
        raise CommandFailed(Problem(ExitCode.REFUSED, error.reason, str(error), error.hint)) from error


def _print(made: Sequence[Made], *, as_json: bool) -> None:
    if as_json:
        records.print_json({
            "certificates": [
                {
                    "name": item.name, "kind": item.kind, "certificate": str(item.certificate), "key": str(item.key),
                    "hosts": list(item.hosts), "expires": item.expires.isoformat(),
                }
                for item in made
            ]
        })  # fmt: skip
        return
    now = datetime.now(UTC)
    rows = [
        (
            item.certificate.name, item.kind, item.name, ", ".join(item.hosts) or "-",
            f"{item.expires:%Y-%m-%d}", str((item.expires - now).days),
        )
        for item in made
    ]  # fmt: skip
    output.show([output.table(("file", "of a", "named", "hosts", "good until", "days left"), rows, numbers=False)])


def add_to(app: typer.Typer) -> None:
    app.add_typer(certs_app, name="certs")
