"""What the two sides of a snapshot say to each other. The leader's side begins; the other asks for what it lacks.

sender    SnapshotBegin ──>                     ──> SnapshotChunk, SnapshotChunk, …
receiver                <── SnapshotWants (0, 0)    <── SnapshotWants (place) …   <── SnapshotDone
"""

import enum
from dataclasses import dataclass, field

from holdfast.raft.messages import Configuration


@dataclass(frozen=True, slots=True)
class SnapshotFile:
    name: str
    size_bytes: int
    crc32: int


class Outcome(enum.IntEnum):
    """How a transfer ended at the receiver. Numbers are on the wire and never reused."""

    INSTALLED = 0  # or not needed, because the replica is as far already
    DISK_LOW = 1  # it would leave too little room on the disk
    DAMAGED = 2  # what arrived is not what was announced, again and again
    FAILED = 3  # it could not be stored or installed; the receiver's own log says why


@dataclass(frozen=True, slots=True)
class SnapshotBegin:
    """The leader has this for you. Repeated until it is answered; then again whenever no answer comes."""

    term: int
    id: int  # of one checkpoint of one process; within a term a later one is larger
    index: int  # the newest entry that is in it
    index_term: int
    configuration: Configuration  # the one that held at the index
    files: tuple[SnapshotFile, ...]


@dataclass(frozen=True, slots=True)
class SnapshotChunk:
    term: int
    id: int
    file_number: int  # its place in `SnapshotBegin.files`
    offset: int
    crc32: int  # of the data
    data: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class SnapshotWants:
    """Everything before this place is here: the acknowledgement, and where to go on."""

    term: int
    id: int
    file_number: int  # the number of files: all are here
    offset: int


@dataclass(frozen=True, slots=True)
class SnapshotDone:
    term: int
    id: int
    index: int
    outcome: Outcome


SnapshotMessage = SnapshotBegin | SnapshotChunk | SnapshotWants | SnapshotDone
