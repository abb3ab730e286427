"""What is done to data of stopped nodes: states of a backup are looked at, begin another incarnation and become a
node's data directory, and a shard that has lost its majority is made of what one replica has left.

Everything here blocks.
"""

import os
import secrets
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from holdfast.broker.peers.identities import identity_of, name_of
from holdfast.machine.entries import decode
from holdfast.machine.incarnations import begin_incarnation, inboxes
from holdfast.machine.invariants import violations
from holdfast.machine.machine import Machine
from holdfast.machine.packing import DecodeError
from holdfast.machine.reader import Reader
from holdfast.machine.rows import Meta
from holdfast.raft.codec import decode_payload
from holdfast.raft.messages import Configuration, EntryKind
from holdfast.raft.node_journal import JournalError, NodeJournal
from holdfast.routing.groups import INCARNATION_MAX, RANDOM_BITS, incarnation_of, mapped_group
from holdfast.serving.logs import get_logger, setup_logs
from holdfast.storage.data_dir import FORMAT_VERSION, DataDir, DataDirError, keep_files_private
from holdfast.storage.rocksdb import RocksState, StateError
from holdfast.storage.snapshots.checkpoint import files_of, meta_of
from holdfast.storage.snapshots.directories import StateDirectories, StateMissingError
from holdfast.storage.snapshots.files import RealFiles
from holdfast.storage.snapshots.messages import SnapshotFile
from holdfast.storage.startup_checks import RecoveryError, recover_shard
from holdfast.wal.disk import RealDisk
from holdfast.wal.errors import LogError
from holdfast.wal.node_log import NodeLog

SEGMENT_BYTES = 8 * 1024 * 1024  # of the log of a restored node; it goes on with those of its configuration
CHECKED_BYTES_MAX = 128 * 1024 * 1024  # of a state whose rows are compared with each other: that is done in memory
COMMIT_ENTRIES = 200

_COPY_ID = 0  # of an incoming directory that no transfer has

_logger = get_logger(__name__)


def prepare() -> None:
    """To be called first by a command: what is done to data is logged on standard error, and is nobody else's."""
    setup_logs("warning", "auto")
    keep_files_private()


class ReviveError(Exception):
    """It cannot be done; nothing was changed. `reason` is a word for programs."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


EXPECTED = (ReviveError, DataDirError, LogError, JournalError, StateError, StateMissingError, RecoveryError)


@dataclass(frozen=True, slots=True)
class StateReport:
    """What a look at the state of a backup has found."""

    index: int
    incarnation: int
    problems: tuple[str, ...]
    sent: Mapping[int, tuple[int, int]]  # by destination: the newest message that has left the outbox, and of all
    received: Mapping[tuple[int, int], int]  # by source and its incarnation: the newest message that is here
    is_compared: bool  # all rows were compared with each other; otherwise they were read


@dataclass(frozen=True, slots=True)
class RevivedState:
    """A state that a shard can begin with."""

    index: int
    term: int
    files: tuple[SnapshotFile, ...]


@dataclass(frozen=True, slots=True)
class RecoveredShard:
    """What a shard was made of."""

    shard: int
    node: str
    voters: tuple[str, ...]  # that the shard had, by the last that this replica knew
    applied_index: int  # was certainly acknowledged
    last_index: int  # is there now: what came after it, if anything did, was only on the others
    last_term: int
    entries_kept: int  # of which nobody knows whether they were ever acknowledged
    incarnation: int


def check_format(version: int) -> None:
    if version != FORMAT_VERSION:
        raise ReviveError(
            "FORMAT", f"The backup has states of format {version}, but this version reads format {FORMAT_VERSION}; use "
            "the version of Holdfast that the backup names."
        )  # fmt: skip


def check_state(directory: Path) -> StateReport:
    """Reads all of a state."""
    with _opened(directory) as state:
        meta = Machine(state).meta
        is_compared = state.size_bytes <= CHECKED_BYTES_MAX
        found = violations(state) if is_compared else []
        if not is_compared:
            state.read_all()
        sent = {destination: (box.delivered, box.last) for destination, box in Reader(state).outboxes()}
        received = {(source, incarnation): inbox.last for source, incarnation, inbox in inboxes(state)}
        return StateReport(meta.applied_index, meta.incarnation, tuple(found), sent, received, is_compared)


def revive_state(directory: Path, shard: int, incarnations: Mapping[int, tuple[int, int]]) -> RevivedState:
    """Changes a copy of a shard's state into one that the next incarnation begins with; `incarnations` has the former
    and the next one of all shards."""
    former, incarnation = incarnations[shard]
    with _opened(directory) as state:
        meta = Machine(state).meta
        if (meta.shard, meta.incarnation) != (shard, former):
            raise ReviveError(
                "OTHER_STATE", f"Expected the state of shard {shard}, incarnation {former}, but it is that of shard "
                f"{meta.shard}, incarnation {meta.incarnation}."
            )  # fmt: skip
        meta = _begin_incarnation(state, incarnation, incarnations)
    return RevivedState(meta.applied_index, meta.applied_term, files_of(RealFiles(), directory))


def restore_data_dir(
    data_dir: Path, node_name: str, states: Mapping[int, Path], incarnations: Mapping[int, int]
) -> None:
    """Makes a data directory of revived states, which are moved there: of a node alone, or of the first of a list.
    `incarnations` has the incarnation of each shard."""
    data_dir = data_dir.absolute()
    if data_dir.exists() and any(data_dir.iterdir()):
        raise ReviveError("NOT_EMPTY", f"Expected {data_dir} to be empty or missing, but there is something in it.")
    building = data_dir.with_name(f"{data_dir.name}.restoring")
    if building.exists():  # of a restore that was interrupted: nothing ever used it
        shutil.rmtree(building)
    with DataDir.open(building) as directory, _log_of(directory) as log:
        me = identity_of(node_name, directory.node_id)
        for shard, state in states.items():
            meta = meta_of(state)
            name = _adopt(StateDirectories(directory.state_dir, shard), state, meta)
            group, term = _new_group(incarnations[shard]), meta.applied_term
            journal = NodeJournal.create(log, shard, group=group, state_name=name)
            journal.begin_again(group, name, meta.applied_index, term, term, Configuration.of(1, [me]))
        _sync(log)
        directory.note_log_begun()
    if data_dir.exists():
        data_dir.rmdir()
    os.rename(building, data_dir)
    RealFiles().sync_directory(data_dir.parent)  # a power cut after this was said to be done must not take it back
    _logger.info("data_dir_restored", path=str(data_dir), shards=len(states))


def read_replica(data_dir: Path, shard: int) -> RecoveredShard:
    """What `recover_from_replica` would make; changes nothing."""
    with _replica_of(data_dir, shard) as (directory, _, journal):
        state = StateDirectories(directory.state_dir, shard).state(journal.state_name)
        return _report(journal, directory.node_id, shard, meta_of(state).applied_index)


def recover_from_replica(data_dir: Path, shard: int) -> RecoveredShard:
    """Makes a shard that has lost its majority for good of the replica in the data directory of a stopped node: a group
    of this one replica, in another incarnation. Everything that its log has is kept, committed or not."""
    with _replica_of(data_dir, shard) as (directory, log, journal):
        directories = StateDirectories(directory.state_dir, shard)
        copy = directories.incoming(_COPY_ID)
        directories.remove(copy)
        applied_index = _copy_state(directories.state(journal.state_name), copy, journal, log, shard)
        report = _report(journal, directory.node_id, shard, applied_index)
        with _opened(copy) as state:
            _apply_rest(recover_shard(journal, log, state, shard), log, shard)
            meta = _begin_incarnation(state, report.incarnation, {})
        name = _adopt(directories, copy, meta)
        term = max(journal.term, meta.applied_term)
        version = journal.configurations[-1][1].version + 1
        alone = Configuration.of(version, [identity_of(report.node, directory.node_id)])
        journal.begin_again(_new_group(report.incarnation), name, meta.applied_index, meta.applied_term, term, alone)
        _sync(log)
    _logger.warning(
        "shard_recovered", shard=shard, node=report.node, applied_index=applied_index, last_index=report.last_index,
        incarnation=report.incarnation, voters=list(report.voters),
    )  # fmt: skip
    return report


@contextmanager
def _replica_of(data_dir: Path, shard: int) -> Iterator[tuple[DataDir, NodeLog, NodeJournal]]:
    if not (data_dir / "FORMAT").exists():
        raise ReviveError("NO_DATA", f"Expected the data directory of a node in {data_dir}, but it is none.")
    with DataDir.open(data_dir) as directory, _log_of(directory) as log:
        directory.check_log(is_empty=log.is_empty)
        journal = NodeJournal.load(log, shard)
        if journal is None:
            raise ReviveError("NO_REPLICA", f"Expected a replica of shard {shard} in {data_dir}, but there is none.")
        yield directory, log, journal


def _report(journal: NodeJournal, node_id: str, shard: int, applied_index: int) -> RecoveredShard:
    """As long as the journal is as it was."""
    me, configuration = _me_in(journal, node_id, shard)
    incarnation = incarnation_of(journal.group) + 1
    if incarnation > INCARNATION_MAX:
        raise ReviveError("LIVES_SPENT", f"Shard {shard} has been made anew {INCARNATION_MAX} times already.")
    last_index = journal.last_index
    return RecoveredShard(
        shard, name_of(me), configuration.voters, applied_index, last_index, journal.term_at(last_index) or 0,
        last_index - applied_index, incarnation,
    )  # fmt: skip


# --- parts ----------------------------------------------------------------------------------------------------


@contextmanager
def _opened(directory: Path) -> Iterator[RocksState]:
    state = RocksState(directory)
    try:
        yield state
    finally:
        state.close()


@contextmanager
def _log_of(directory: DataDir) -> Iterator[NodeLog]:
    log = NodeLog.open(RealDisk(directory.log_dir), segment_bytes=SEGMENT_BYTES)
    try:
        yield log
    except BaseException:
        log.close(clean=False)
        raise
    log.close(clean=True)


def _sync(log: NodeLog) -> None:
    flush = log.begin_flush()
    assert flush is not None, "something was staged"
    flush.run()
    flush.done()


def _new_group(incarnation: int) -> int:
    return mapped_group(incarnation, secrets.randbits(RANDOM_BITS))


def _begin_incarnation(state: RocksState, incarnation: int, incarnations: Mapping[int, tuple[int, int]]) -> Meta:
    try:
        meta = begin_incarnation(state, incarnation, incarnations)
    except ValueError as error:
        raise ReviveError("STATE_REFUSED", str(error)) from error
    state.flush()
    return meta


def _adopt(directories: StateDirectories, state: Path, meta: Meta) -> str:
    """Makes a directory a state of a shard, durably; its name."""
    incoming = directories.incoming(_COPY_ID)
    if state != incoming:
        directories.files.make_directory(directories.path)
        shutil.move(state, incoming)
    name = directories.new_name(meta.applied_index)
    directories.adopt(incoming, name)
    return name


def _me_in(journal: NodeJournal, node_id: str, shard: int) -> tuple[str, Configuration]:
    configuration = journal.configurations[-1][1] if journal.configurations else Configuration(0, ())
    me = next((member for member in configuration.members if member.partition("/")[2] == node_id), None)
    if me is None:
        raise ReviveError(
            "NOT_A_MEMBER", f"Expected this node to have been a member of shard {shard}, but its replica knows no "
            "configuration with it: it is empty, or was removed. Use the data of another node."
        )  # fmt: skip
    return me, configuration


def _copy_state(current: Path, copy: Path, journal: NodeJournal, log: NodeLog, shard: int) -> int:
    """The old state stays as it is until the log names the new one; up to which entry it has been applied."""
    with _opened(current) as state:
        machine = recover_shard(journal, log, state, shard)
        state.checkpoint(copy)
        return machine.meta.applied_index


def _apply_rest(machine: Machine, log: NodeLog, shard: int) -> None:
    """All that is in the log and not in the state."""
    for record in log.entries(shard, machine.meta.applied_index):
        entry = decode_payload(record.index, record.term, record.payload)
        if entry.kind == EntryKind.REGULAR:
            try:
                machine.apply(entry.index, entry.term, decode(entry.command))
            except DecodeError as error:
                raise ReviveError(
                    "ENTRY", f"Entry {record.index} of shard {shard} cannot be applied: {error}"
                ) from error
        else:
            machine.pass_over(record.index, record.term)
        if record.index % COMMIT_ENTRIES == 0:
            machine.commit()
    machine.commit()
