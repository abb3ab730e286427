"""Snapshots of one replica, both ways: what it sends to others while it leads, and what it is sent while it lags."""

import asyncio
from contextlib import ExitStack
from pathlib import Path
from typing import Protocol

from holdfast.broker import failpoints
from holdfast.broker.leader.roles import WriteGuard
from holdfast.broker.replica.commit_loop import Message
from holdfast.broker.replica.replica import NewState, Replica
from holdfast.machine.kv import OrderedKV
from holdfast.machine.machine import Machine
from holdfast.raft.messages import NO_CONFIGURATION, Configuration
from holdfast.routing.groups import incarnation_of
from holdfast.serving.logs import get_logger
from holdfast.serving.refusals import overloaded
from holdfast.storage.rocksdb import RocksState, StateError
from holdfast.storage.snapshots.checkpoint import CheckpointPoint, take_checkpoint
from holdfast.storage.snapshots.codec import decode, encode
from holdfast.storage.snapshots.directories import StateDirectories
from holdfast.storage.snapshots.messages import (
    SnapshotBegin,
    SnapshotChunk,
    SnapshotDone,
    SnapshotMessage,
    SnapshotWants,
)
from holdfast.storage.snapshots.receiving import SnapshotReceiver, SnapshotTarget
from holdfast.storage.snapshots.sending import SnapshotSender, SnapshotSource
from holdfast.storage.snapshots.throttle import Throttle

HEARD_SECONDS = 5.0  # a replica that has not answered for so long is not there
SENDING_AT_ONCE_MAX = 2  # snapshots leaving a node
RESTORER = "restore/" + 32 * "0"  # who sends the state that a shard begins with: no node, but called like one

_log = get_logger(__name__)


class TransferHost(Protocol):
    """The node that a replica is on."""

    def send_snapshot_message(self, to: str, message: Message) -> None: ...

    def open_state(self, directories: StateDirectories, name: str) -> RocksState:
        """Blocks."""
        ...

    def wake(self, number: int) -> None:
        """There is something for a round."""
        ...

    def state_replaced(self, number: int) -> None:
        """A snapshot took the place of the state."""
        ...


class SnapshotTransfers(SnapshotSource, SnapshotTarget):
    """`step` is called in each round of the replica, `handle` with what arrives for it."""

    def __init__(
        self,
        replica: Replica,
        directories: StateDirectories,
        host: TransferHost,
        *,
        disk: WriteGuard,
        throttle: Throttle,
        slots: asyncio.Semaphore,
    ) -> None:
        self._replica = replica
        self._directories = directories
        self._host = host
        self._restorer_hears: asyncio.Future[SnapshotWants | SnapshotDone] | None = None
        self._disk = disk
        self.sender = SnapshotSender(directories, self, throttle=throttle, slots=slots)
        self.receiver = SnapshotReceiver(directories, self)

    def step(self, now_s: float) -> None:
        """Begins to send to who needs it and is there to take it, and ceases when leadership is lost."""
        raft = self._replica.raft
        wanted = [peer for peer in raft.wants_snapshot() if now_s - (raft.peer_heard_s(peer) or 0.0) < HEARD_SECONDS]
        if wanted or self.sender.progress:
            self.sender.wanted(wanted, self._replica.raft.term)

    def handle(self, sender: str, data: bytes) -> None:
        """Raises as `Replica.deliver` does."""
        message = decode(data)
        self._replica.raft.check_term(message.term)
        self.sender.handle(sender, message)
        self.receiver.handle(sender, message)

    async def take(self, message: SnapshotBegin | SnapshotChunk) -> SnapshotWants | SnapshotDone:
        """Of an operator who brings the state that the shard begins with; what the receiver says to it."""
        if self._restorer_hears is not None:
            raise overloaded("calls that bring a state", 1)
        self._restorer_hears = asyncio.get_running_loop().create_future()
        try:
            self.receiver.handle(RESTORER, message)
            return await self._restorer_hears
        finally:
            self._restorer_hears = None

    async def close(self) -> None:
        await self.sender.close()
        await self.receiver.close()

    def send(self, to: str, message: SnapshotMessage) -> None:
        if to != RESTORER:
            self._host.send_snapshot_message(to, (self._replica.number, self._replica.group, encode(message)))
            return
        heard = self._restorer_hears
        if heard is not None and not heard.done() and isinstance(message, SnapshotWants | SnapshotDone):
            heard.set_result(message)

    # --- sending ----------------------------------------------------------------------------------------------

    @property
    def applied_index(self) -> int:
        return self._replica.applied_index

    @property
    def base_index(self) -> int:
        return self._replica.journal.base_index

    def checkpoint(self, directory: Path) -> CheckpointPoint:
        state = self._replica.state
        assert isinstance(state, RocksState)
        return take_checkpoint(state, directory)

    def configuration_at(self, index: int) -> Configuration:
        known = [configuration for at_index, configuration in self._replica.journal.configurations if at_index <= index]
        return known[-1] if known else NO_CONFIGURATION

    # --- receiving --------------------------------------------------------------------------------------------

    @property
    def term(self) -> int:
        return self._replica.raft.term

    def is_needed(self, index: int, term: int) -> bool:
        raft = self._replica.raft
        return index > raft.commit_index and raft.term_at(index) != term

    def may_take(self, size_bytes: int) -> bool:
        return self._disk.has_room_for(size_bytes)

    async def install(self, directory: Path, index: int, index_term: int, configuration: Configuration) -> bool:
        """Opens the state and has the next round put it in the place of the old one."""
        name = self._directories.new_name(index)
        state, machine = await asyncio.to_thread(self._open, directory, name, index)
        ended: asyncio.Future[tuple[bool, OrderedKV]] = asyncio.get_running_loop().create_future()

        def end(taken: bool, unneeded: OrderedKV) -> None:
            if not ended.done():
                ended.set_result((taken, unneeded))

        origin = self.receiver.origin
        assert origin is not None
        failpoints.reached("snapshot:offered")
        new = NewState(*origin, index, index_term, configuration, name, state, machine, end)
        self._replica.offer_state(new)
        self._host.wake(self._replica.number)
        taken, unneeded = await ended
        assert isinstance(unneeded, RocksState)
        failpoints.reached("snapshot:taken")
        if taken:
            self._host.state_replaced(self._replica.number)
        await asyncio.to_thread(self._discard, unneeded)
        return taken

    def _open(self, directory: Path, name: str, index: int) -> tuple[RocksState, Machine]:
        path = self._directories.adopt(directory, name)
        with ExitStack() as undo:
            undo.callback(self._directories.remove, path)
            state = self._host.open_state(self._directories, name)
            undo.callback(state.close)
            machine = Machine(state)  # counts the claims
            applied_index = machine.meta.applied_index
            if applied_index != index:
                raise StateError(f"Expected a snapshot at entry {index}, but its state has applied {applied_index}.")
            incarnation = incarnation_of(self._replica.group)
            if machine.meta.incarnation != incarnation:
                raise StateError(
                    f"Expected a snapshot of incarnation {incarnation}, but it is of {machine.meta.incarnation}."
                )
            # Checksums of files say that they came as they were sent. Reading every row says that they were right.
            state.read_all()
            undo.pop_all()
        return state, machine

    def _discard(self, state: RocksState) -> None:
        try:
            state.close()
        except StateError as error:
            _log.debug("state_not_flushed", error=str(error))
        self._directories.remove(state.directory)
