"""`holdfast audit`: what operators did, from the files of a server."""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from holdfast.cli import audit_files, output, records
from holdfast.cli.commands.shared import Json, epilog, group
from holdfast.cli.problems import CommandFailed, ExitCode, Problem

_SHOWN_MAX = 100_000

audit_app = group("What operators did, and who was refused, as servers have written it down.")

Directory = Annotated[
    Path,
    typer.Argument(
        metavar="DIRECTORY", help="The data directory of a broker, or the audit_dir of a router.", show_default=False
    ),
]


@audit_app.command(
    name="ls", epilog=epilog("holdfast audit ls holdfast-data", "holdfast audit ls holdfast-data --last 1000 --json")
)
def ls(
    directory: Directory,
    last: Annotated[int, typer.Option("--last", min=1, max=_SHOWN_MAX, help="How many of the newest.")] = 50,
    as_json: Json = False,
) -> int:
    """Show the newest entries, oldest first: when, who, from where, what, on what, and how it ended."""
    found = audit_files.entries(directory, last)
    if as_json:
        records.print_json({"entries": [asdict(entry) for entry in found]})
    else:
        output.print_audit([*map(audit_files.cells, found)])
    return ExitCode.OK


@audit_app.command(
    name="verify",
    epilog=epilog("holdfast audit verify holdfast-data", "holdfast audit verify holdfast-data --hash 3f2a…"),
)
def verify(
    directory: Directory,
    digest: Annotated[
        str | None, typer.Option("--hash", metavar="HASH", help="That one of the entries must have.")
    ] = None,
    as_json: Json = False,
) -> int:
    """Check that no entry was changed, left out or put in.

    Whoever can write the files can write all of them anew: --hash finds that out. Take it from the log of the server
    (audit_rotated), or from what this command printed before.
    """
    result = audit_files.verify(directory, digest)
    if not result.has_hash:
        message = f"No entry has the hash {digest}: the files were written anew, or the one with it has gone."
        raise CommandFailed(Problem(ExitCode.REFUSED, "AUDIT_BROKEN", message))
    found = result.found
    if as_json:
        records.print_json({"files": result.files, **asdict(found)})
    else:
        lost = f" {found.lost:,} could not be written." if found.lost else ""
        output.print_line(f"{found.entries:,} entries in {result.files:,} files are as they were written.{lost}")
        output.print_line(f"The last one, {found.last}, has the hash {found.hash}")
    return ExitCode.OK


def add_to(app: typer.Typer) -> None:
    app.add_typer(audit_app, name="audit", epilog=epilog("holdfast audit ls holdfast-data"))
