"""Entries of an audit log. Each is a line of JSON that ends with a hash of itself and of the line before it, so that
nothing between two lines can be changed, left out or put in without changing every hash after it.

Who can write the whole file can make a new chain. So keep hashes elsewhere: servers log the last one of each file.
"""

import hashlib
import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields
from typing import Any, Final

BEGINNING: Final = "0" * 64  # instead of the hash of a line before the first
TEXT_CHARS_MAX: Final = 300  # of each field
LINE_BYTES_MAX: Final = 16 * 1024
_CUT: Final = "…"


class BrokenChainError(Exception):
    """A line is not what was written, or is missing."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One action, or one refusal."""

    number: int  # counts up from 1, without gaps
    at_ms: int
    server: str  # that wrote it
    who: str
    where: str  # from which address
    what: str  # e.g. Queues/PurgeQueue
    on: str  # e.g. queue=mail
    result: str  # OK, or why not
    lost: int = 0  # entries before it that could not be written


@dataclass(frozen=True, slots=True)
class Checked:
    """What lines were found to be."""

    entries: int
    first: int  # its number; 0 if there is none
    last: int
    hash: str  # of the last line
    lost: int


def line_of(entry: Entry, before: str) -> tuple[str, str]:
    """The line, without its end, and its hash. `before`: the hash of the line before."""
    values: dict[str, Any] = {name: _cut(value) for name, value in asdict(entry).items()}
    values["before"] = before
    digest = _digest(values)
    return json.dumps(values | {"hash": digest}, ensure_ascii=True, separators=(",", ":")), digest


def read_line(line: str) -> tuple[Entry, str, str]:
    """The entry, the hash of the line before and its own. Raises BrokenChainError if it is no such line."""
    try:
        values = json.loads(line) if len(line) <= LINE_BYTES_MAX else None
    except (ValueError, RecursionError):
        values = None
    if not isinstance(values, dict) or values.keys() != _KEYS:
        raise BrokenChainError("is no entry")
    digest, before = values.pop("hash"), values["before"]
    if digest != _digest(values):
        raise BrokenChainError("is not what was written")
    del values["before"]
    if not all(type(values[field.name]) is field.type for field in fields(Entry)):
        raise BrokenChainError("is no entry")
    return Entry(**values), before, digest


def check(lines: Iterable[str], before: str | None = None, number: int | None = None) -> Checked:
    """`before`, `number`: the hash of the line before the first, and the number of that, if they are known. Raises
    BrokenChainError, which says which line it is."""
    first = last = count = lost = 0
    for place, line in enumerate(lines, 1):
        try:
            entry, its_before, digest = read_line(line)
            if before is not None and its_before != before:
                raise BrokenChainError("does not follow the one before it: something is missing or was put in")
            if number is not None and entry.number != number + 1:
                raise BrokenChainError(f"has number {entry.number} where {number + 1} was expected")
        except BrokenChainError as error:
            raise BrokenChainError(f"line {place} {error}") from None
        before, number = digest, entry.number
        first, last, count, lost = first or entry.number, entry.number, count + 1, lost + entry.lost
    return Checked(count, first, last, before or BEGINNING, lost)


def file_name(number: int) -> str:
    """Of the file whose first entry has this number."""
    return f"audit-{number:012d}.jsonl"


def first_number(file: str) -> int:
    """The other way round; 0 if it is the name of something else."""
    digits = file.removeprefix("audit-").removesuffix(".jsonl")
    return int(digits) if digits.isascii() and digits.isdecimal() and file_name(int(digits)) == file else 0


def _digest(values: dict[str, Any]) -> str:
    try:
        text = json.dumps(values, ensure_ascii=True, sort_keys=True, separators=(",", ":"))
    except (ValueError, RecursionError):  # of a line that nobody of us has written
        return ""
    return hashlib.sha256(text.encode()).hexdigest()


def _cut(value: object) -> object:
    return value[: TEXT_CHARS_MAX - 1] + _CUT if isinstance(value, str) and len(value) > TEXT_CHARS_MAX else value


_KEYS = {field.name for field in fields(Entry)} | {"before", "hash"}
