"""Reads the files of an audit log, also while a server writes them."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from holdfast.audit.chain import BEGINNING, BrokenChainError, Checked, Entry, check, first_number, read_line
from holdfast.cli.problems import CommandFailed, ExitCode, Problem, usage
from holdfast.cli.times import shown_instant

_FOLDER = "audit"  # in the data directory of a broker


@dataclass(frozen=True, slots=True)
class Verified:
    """Of all files together."""

    files: int
    found: Checked
    has_hash: bool  # the one that was asked for; true if none was


def files_in(directory: Path) -> list[Path]:
    """`directory`: of the files, or the data directory of a broker. In the order of their entries."""
    for place in (directory, directory / _FOLDER):
        if place.is_dir():
            files = sorted((path for path in place.iterdir() if first_number(path.name)), key=lambda path: path.name)
            if files:
                return files
    raise CommandFailed(
        Problem(ExitCode.NOT_FOUND, "AUDIT_NOT_FOUND", f"There is no audit log in {directory}.",
                "Name the data directory of a broker, or the audit_dir of a router.")
    )  # fmt: skip


def entries(directory: Path, last: int) -> list[Entry]:
    """The newest ones, oldest first. What cannot be read is left to `verify`."""
    found: list[Entry] = []
    for path in reversed(files_in(directory)):
        found = [*_readable(path), *found]
        if len(found) >= last:
            break
    return found[-last:]


def _readable(path: Path) -> Iterator[Entry]:
    for line in lines_of(path):
        try:
            yield read_line(line)[0]
        except BrokenChainError:
            continue


def cells(entry: Entry) -> tuple[str, ...]:
    """For people."""
    when = shown_instant(entry.at_ms).rpartition(".")[0]
    return str(entry.number), when, entry.who, entry.where, entry.what, entry.on, entry.result


def verify(directory: Path, digest: str | None) -> Verified:
    """`digest`: that one of the lines must have. Raises CommandFailed with the file and the line that is wrong."""
    files = files_in(directory)
    found = Checked(0, 0, 0, BEGINNING, 0)
    has_hash, before, number = digest is None, None, None
    for path in files:
        lines = list(lines_of(path))
        if number is None and first_number(path.name) == 1:
            before, number = BEGINNING, 0
        try:
            its = check(lines, before, number)
        except BrokenChainError as error:
            raise CommandFailed(
                Problem(ExitCode.REFUSED, "AUDIT_BROKEN", f"{path.name}: {error}.",
                        "What stands before that line is as it was written; what comes after it may not be.")
            ) from None  # fmt: skip
        if not its.entries:
            continue
        has_hash = has_hash or any(line.endswith(f'"hash":"{digest}"}}') for line in lines)
        found = Checked(
            found.entries + its.entries, found.first or its.first, its.last, its.hash, found.lost + its.lost
        )  # fmt: skip
        before, number = its.hash, its.last
    return Verified(len(files), found, has_hash)


def lines_of(path: Path) -> list[str]:
    """Without one that is being written."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise usage(f"{path} cannot be read: {error.strerror}.") from error
    return data[: data.rfind(b"\n") + 1].decode("ascii", errors="replace").splitlines()
