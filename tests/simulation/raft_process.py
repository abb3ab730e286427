"""One replica as its node drives it: rounds, syncs, crashes, pauses, and a clock of its own.

What arrived is delivered, time passes, proposals are taken, what has to be sent is sent; then the journal is synced
while nothing enters the engine, promises leave, and what is committed is applied.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from holdfast.raft.codec import decode, peek
from holdfast.raft.engine import ShardRaft
from holdfast.raft.library import LEADER
from holdfast.raft.membership import ChangeRefusedError
from holdfast.raft.messages import Configuration, Message
from tests.simulation.raft_disks import MemoryDisk, State

if TYPE_CHECKING:
    from tests.simulation.raft_world import World

APPLY_MAX = 50
SAVE_SHARE = 0.1  # of the rounds that applied something
COMPACT_SHARE = 0.3  # of those that saved the state
SNAPSHOT_EVERY_S = 0.3  # to one replica
_NEVER_S = float("inf")


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A copy of a leader's state on its way."""

    term: int
    index_term: int
    configuration: Configuration
    state: State


class Process:
    """One life after the other of a replica, on one disk."""

    def __init__(self, world: "World", name: str, disk: MemoryDisk) -> None:
        self.world = world
        self.name = name
        self.disk = disk
        self.engine: ShardRaft | None = None
        self.life = 0
        self.slow_s = 0.0  # added to every sync
        self.gather_s_max = 0.0  # how long it goes on working before it syncs
        self.is_disk_full = False
        self.saves = True  # its state reaches the disk now and then, without which it is made again from the log
        self.clock_rate = 1.0
        self._clock_offset_s = 0.0
        self._forget()

    def _forget(self) -> None:
        """What is only in memory."""
        self.life += 1
        self.engine = None
        self.inbox: list[tuple[str, Message]] = []
        self.snapshots: list[tuple[str, Snapshot]] = []
        self.proposals: list[bytes] = []
        self.requests: list[Callable[[ShardRaft], object]] = []  # of operators: what they want done with the engine
        self._snapshot_sent_s: dict[str, float] = {}
        self.wants_read = False
        self.frozen = self._gathering = self.paused = False
        self._on_resume: list[Callable[[], None]] = []
        self._wake_at_s = _NEVER_S
        self._waiting: dict[int, tuple[int, bytes]] = {}  # proposals by index: their term and command
        self._reading: tuple[int, int] | None = None  # number of a read, and the last index acknowledged before it
        self.state = State()
        self._replaced: State | None = None  # by a snapshot that is not durable yet
        self.compact_to = 0
        self.commit_seen = 0

    def start(self) -> None:
        if self.engine is None:
            self._forget()
            self._clock_offset_s = self.world.draw.uniform(0, 1000)
            self.state = self.disk.saved
            self.engine = self.world.make_engine(self)
            self.commit_seen = self.engine.commit_index
            self._plan_wake()

    def crash(self) -> None:
        if self.engine is not None:
            self._forget()
            self.disk.crash()
            self.world.note_down()

    def pause(self, seconds: float) -> None:
        """As SIGSTOP: nothing moves, and then everything that waited comes at once."""
        if self.engine is not None and not self.paused:
            self.paused = True
            self._later(seconds, self._resume)

    def _resume(self) -> None:
        self.paused = False
        waiting, self._on_resume = self._on_resume, []
        for act in waiting:
            act()
        self.round()

    @property
    def leads(self) -> bool:
        return self.engine is not None and self.engine.role == LEADER

    # --- time -------------------------------------------------------------------------------------------------

    @property
    def now_s(self) -> float:
        return self._clock_offset_s + self.world.now_s * self.clock_rate

    def set_clock_rate(self, rate: float) -> None:
        now_s = self.now_s
        self.clock_rate = rate
        self._clock_offset_s += now_s - self.now_s
        self._wake_at_s = _NEVER_S
        self._plan_wake()

    def set_may_campaign(self, may: bool) -> None:
        self.requests.append(lambda engine: setattr(engine, "may_campaign", may))
        self.round()

    def _later(self, delay_s: float, act: Callable[[], None]) -> None:
        life = self.life
        self.world.at(delay_s, lambda: act() if self.life == life else None)

    def _plan_wake(self) -> None:
        if self.engine is None:
            return
        due_s = max(self.engine.next_deadline_s() - self.now_s, 0.001) / self.clock_rate
        at_s = self.world.now_s + due_s
        if at_s < self._wake_at_s:
            self._wake_at_s = at_s
            self._later(due_s, lambda: self._wake(at_s))

    def _wake(self, at_s: float) -> None:
        if at_s == self._wake_at_s:
            self._wake_at_s = _NEVER_S
            self.round()

    # --- rounds -----------------------------------------------------------------------------------------------

    def arrived(self, sender: str, data: bytes) -> None:
        """It waits for the next round; but signs of life are heard and given in the middle of one, too."""
        self.inbox.append((sender, decode(data)))
        sign = peek(data)
        if self.engine is not None and sign is not None and not self.paused:
            self.engine.overhear(sender, sign, self.now_s)
        if self.engine is not None and self.frozen and not self.paused:
            self.engine.beat(self.now_s)
            self._send(self.engine)
        self.round()

    def round(self) -> None:
        engine = self.engine
        if engine is None or self.frozen or self.paused:
            return
        inbox, self.inbox = self.inbox, []
        for sender, message in inbox:
            engine.receive(sender, message, self.now_s)
        engine.tick(self.now_s)
        self._take_snapshots(engine)
        engine.compact(min(self.compact_to, self.disk.saved.index, engine.applied_index))
        self._take_requests(engine)
        self._take_proposals(engine)
        self._read(engine)
        engine.replicate()
        self._send(engine)
        self.world.checks.poll(self)
        if not self.disk.changed:
            self._finish(engine)
        elif self.gather_s_max == 0 and not self._gathering:
            self._begin_sync()
        else:
            self._gather()

    def _gather(self) -> None:
        """Goes on working for a moment before the sync."""
        if not self._gathering:
            self._gathering = True
            self._later(self.world.draw.uniform(0, self.gather_s_max), self._begin_sync)
        self._plan_wake()

    def _take_proposals(self, engine: ShardRaft) -> None:
        proposals, self.proposals = self.proposals, []
        for command in proposals:
            index = engine.propose(command)
            if index is not None:
                self._waiting[index] = (engine.term, command)

    def _take_requests(self, engine: ShardRaft) -> None:
        if self.requests:
            self.world.checks.poll(self)  # what was counted until now was counted by the old configuration
        requests, self.requests = self.requests, []
        for request in requests:
            before = engine.configuration_index
            try:
                request(engine)
            except ChangeRefusedError:
                continue
            if engine.configuration_index != before:
                self.world.checks.changes(self, before)

    def _take_snapshots(self, engine: ShardRaft) -> None:
        snapshots, self.snapshots = self.snapshots, []
        for sender, snapshot in snapshots:
            state = snapshot.state
            self.disk.prepare_install(state)
            if engine.install_snapshot(sender, snapshot.term, state.index, snapshot.index_term, snapshot.configuration):
                self.world.checks.installs(self, state, snapshot.index_term)
                self._replaced = self._replaced or self.state
                self.state = self.disk.installed = state

    def _send_snapshots(self, engine: ShardRaft) -> None:
        for peer in engine.wants_snapshot():
            if self.world.now_s >= self._snapshot_sent_s.get(peer, 0.0) + SNAPSHOT_EVERY_S:
                self._snapshot_sent_s[peer] = self.world.now_s
                index_term = engine.term_at(self.state.index)
                assert index_term is not None
                known = [
                    configuration
                    for index, configuration in self.disk.journal.configurations
                    if index <= self.state.index
                ]
                self.world.send_snapshot(self.name, peer, Snapshot(engine.term, index_term, known[-1], self.state))

    def _read(self, engine: ShardRaft) -> None:
        """A current read: when it is allowed, the leader knows of everything acknowledged before it began."""
        if self._reading is not None and engine.may_read(self._reading[0]):
            self.world.checks.reads_at(self.name, engine.commit_index, self._reading[1])
            self._reading = None
        elif self.wants_read and (self._reading is None or not engine.serves):
            number = engine.begin_read()
            self._reading = None if number is None else (number, self.world.checks.last_acknowledged())
            self.wants_read = False

    def _begin_sync(self) -> None:
        if self.paused:
            self._on_resume.append(self._begin_sync)
            return
        self._gathering, self.frozen = False, True
        self.disk.begin_sync()
        sync_s = self.world.draw.uniform(0.0005, self.world.faults.sync_s_max) + self.slow_s
        self._later(sync_s, self._synced)

    def _synced(self) -> None:
        if self.paused:
            self._on_resume.append(self._synced)
            return
        assert self.engine is not None
        self.frozen = False
        if self.is_disk_full:
            self._drop_round()
            return
        self.disk.end_sync()
        self._replaced = None
        self._finish(self.engine)

    def _drop_round(self) -> None:
        """There was no room: it goes on as if it had crashed and come back, but with the state that it has."""
        self.disk.drop()
        self.state, self._replaced = self._replaced or self.state, None
        self._waiting.clear()
        self._reading = None
        self.engine = self.world.make_engine(self)
        self.commit_seen = self.engine.commit_index
        self._plan_wake()

    def _finish(self, engine: ShardRaft) -> None:
        """Everything is durable: promises leave, and what is committed is applied."""
        engine.synced()
        self._send(engine)
        self.world.checks.poll(self)
        self._apply(engine)
        self._send_snapshots(engine)
        if self.inbox or self.proposals or self.requests or self.snapshots:
            self.round()
        self._plan_wake()

    def _apply(self, engine: ShardRaft) -> None:
        entries = engine.committed(APPLY_MAX)
        for entry in entries:
            self.state = self.state.after(entry)
            self.world.checks.applies(self, entry, self.state.digest)
            engine.applied(entry.index)
            term, command = self._waiting.pop(entry.index, (0, b""))
            if term == entry.term:
                self.world.checks.acknowledges(entry.index, command)
        if entries and self.saves and self.world.draw.random() < SAVE_SHARE:
            self._save(engine)

    def _save(self, engine: ShardRaft) -> None:
        """The state reaches the disk; then the log may begin later."""
        self.disk.save(self.state)
        if self.world.compacts and self.world.draw.random() < COMPACT_SHARE:
            self.compact_to = self.world.draw.randint(engine.base_index, self.state.index)

    def _send(self, engine: ShardRaft) -> None:
        for to, message in engine.ready.take():
            self.world.checks.promises(self, to, message)
            self.world.send(self.name, to, message)
