"""Replicas of one shard on virtual time: a network, disks and processes that fail, and what must hold all the same.

Everything is drawn from one seed: a failure can be seen again. A replica works in rounds as the node does: what arrived
is delivered, proposals are taken, the journal is synced while nothing enters the engine, then promises leave, time
passes and what is committed is applied.
"""

import heapq
import itertools
import random
from collections.abc import Callable
from dataclasses import dataclass, field

from holdfast.broker.raft.codec import decode, encode
from holdfast.broker.raft.engine import ShardRaft
from holdfast.broker.raft.journal import MemoryJournal
from holdfast.broker.raft.library import LEADER, REGULAR, Timing
from holdfast.broker.raft.messages import Message

TIMING = Timing()
TICK_S = 0.01
APPLY_MAX = 50
STUCK_S_MAX = 4.0
APPEND_BYTES_MAX = 12  # of entries in one message: a few, so that logs are compared piece by piece


class Violation(AssertionError):  # noqa: N818 - it is what was looked for
    """Something that must never happen has happened."""


@dataclass
class Faults:
    """How the network and the disks behave at the moment."""

    lost: float = 0.0
    doubled: float = 0.0
    latency_s_max: float = 0.02
    stuck: float = 0.0  # share of messages that arrive after seconds, when much has changed
    sync_s_max: float = 0.01
    cut: set[tuple[str, str]] = field(default_factory=set)  # (from, to): nothing passes


class Process:
    """One life after the other of a replica, and its disk."""

    def __init__(self, world: "World", name: str) -> None:
        self.world = world
        self.name = name
        self.journal = MemoryJournal()
        self.engine: ShardRaft | None = None
        self.life = 0
        self.inbox: list[tuple[str, Message]] = []
        self.proposals: list[bytes] = []
        self.frozen = False
        self.applied: list[tuple[int, bytes]] = []  # term and command of each entry, from index 2 on
        self.slow_s = 0.0  # added to every sync
        self.reading: tuple[int, int] | None = None  # number of a read, and the last index acknowledged before it

    def start(self) -> None:
        self.life += 1
        self.inbox, self.proposals, self.frozen, self.reading = [], [], False, None
        # The state is rebuilt from the log each time: what was applied before is compared with what is applied again.
        self.applied = []
        self.engine = self.world.make_engine(self.name, self.journal, self.world.now_s)
        self._later(self.world.draw.uniform(0, TICK_S), self._tick)

    def crash(self) -> None:
        self.life += 1
        self.engine = None
        self.journal = self.journal.after_crash()

    def _later(self, delay_s: float, act: Callable[[], None]) -> None:
        life = self.life
        self.world.at(delay_s, lambda: act() if self.life == life else None)

    def _tick(self) -> None:
        self.round()
        self._later(TICK_S, self._tick)

    def round(self) -> None:
        engine = self.engine
        if engine is None or self.frozen:
            return
        inbox, self.inbox = self.inbox, []
        for sender, message in inbox:
            engine.receive(sender, message, self.world.now_s)
        engine.tick(self.world.now_s)
        self._take_proposals(engine)
        self._read(engine)
        engine.replicate()
        self._send(engine)
        self.world.look(self)
        self.frozen = True
        sync_s = self.world.draw.uniform(0.0005, self.world.faults.sync_s_max) + self.slow_s
        self._later(sync_s, self._synced)

    def _take_proposals(self, engine: ShardRaft) -> None:
        proposals, self.proposals = self.proposals, []
        for command in proposals:
            index = engine.propose(command)
            if index is not None:
                self.world.proposed[command] = (index, engine.term)

    def _read(self, engine: ShardRaft) -> None:
        """A current read: when it is allowed, the leader knows of everything acknowledged before it began."""
        if self.reading is not None and engine.may_read(self.reading[0]):
            self.world.check_read(self.name, engine.commit_index, self.reading[1])
            self.reading = None
        elif self.reading is None or not engine.serves:
            number = engine.begin_read()
            self.reading = None if number is None else (number, max(self.world.acknowledged.values(), default=0))

    def _synced(self) -> None:
        engine = self.engine
        assert engine is not None
        self.journal.sync()
        self.frozen = False
        engine.synced()
        self._send(engine)
        self.world.look(self)
        for entry in engine.committed(APPLY_MAX):
            self.world.check_applied(self.name, entry.index, entry.term, entry.command)
            self.applied.append((entry.term, entry.command))
            engine.applied(entry.index)
            if engine.role == LEADER and entry.term == engine.term and entry.command[:1] == REGULAR:
                self.world.acknowledge(entry.index, entry.command[1:])
        if self.inbox or self.proposals:
            self.round()

    def _send(self, engine: ShardRaft) -> None:
        outbox, engine.outbox = engine.outbox, []
        for to, message in outbox:
            self.world.send(self.name, to, message)


class World:
    def __init__(self, seed: int, replicas: int, engine: type[ShardRaft] = ShardRaft) -> None:
        self.draw = random.Random(seed)
        self.now_s = 0.0
        self.faults = Faults()
        self._engine = engine
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = itertools.count()
        self.names = [f"r{number}" for number in range(replicas)]
        self.processes = {name: Process(self, name) for name in self.names}
        self.leaders: dict[int, str] = {}  # by term
        self.log: dict[int, tuple[int, bytes]] = {}  # what was applied anywhere, by index
        self.proposed: dict[bytes, tuple[int, int]] = {}
        self.acknowledged: dict[bytes, int] = {}
        self.down_max = 0
        self.reads = 0

    def make_engine(self, name: str, journal: MemoryJournal, now_s: float) -> ShardRaft:
        return self._engine(
            name,
            set(self.names),
            journal,
            now_s=now_s,
            timing=TIMING,
            append_bytes_max=APPEND_BYTES_MAX,
            draw=self.draw.random,
        )

    def at(self, delay_s: float, act: Callable[[], None]) -> None:
        heapq.heappush(self._events, (self.now_s + delay_s, next(self._numbers), act))

    def run(self, seconds: float) -> None:
        ends_s = self.now_s + seconds
        while self._events and self._events[0][0] <= ends_s:
            self.now_s, _, act = heapq.heappop(self._events)
            act()
        self.now_s = ends_s

    def send(self, sender: str, to: str, message: Message) -> None:
        faults = self.faults
        data = encode(message)
        copies = 2 if self.draw.random() < faults.doubled else 1
        for _ in range(copies):
            # Each copy has its own way: a later message may overtake an earlier one.
            latency_s = self.draw.uniform(0.001, faults.latency_s_max)
            if self.draw.random() < faults.stuck:
                latency_s = self.draw.uniform(0.1, STUCK_S_MAX)
            if (sender, to) not in faults.cut and self.draw.random() >= faults.lost:
                self.at(latency_s, lambda: self._deliver(sender, to, decode(data)))

    def _deliver(self, sender: str, to: str, message: Message) -> None:
        process = self.processes[to]
        if process.engine is not None:
            process.inbox.append((sender, message))
            process.round()

    # --- what must hold ---------------------------------------------------------------------------------------

    def look(self, process: Process) -> None:
        engine = process.engine
        assert engine is not None
        if engine.role == LEADER and self.leaders.setdefault(engine.term, process.name) != process.name:
            raise Violation(f"two leaders of term {engine.term}: {self.leaders[engine.term]} and {process.name}")

    def check_applied(self, name: str, index: int, term: int, command: bytes) -> None:
        if self.log.setdefault(index, (term, command)) != (term, command):
            raise Violation(f"{name} applies {command!r} of term {term} at {index}, but elsewhere {self.log[index]}")

    def check_read(self, name: str, commit_index: int, acknowledged_index: int) -> None:
        self.reads += 1
        if commit_index < acknowledged_index:
            raise Violation(f"{name} reads at {commit_index}, but {acknowledged_index} was acknowledged before")

    def acknowledge(self, index: int, command: bytes) -> None:
        self.acknowledged.setdefault(command, index)

    def check_end(self) -> None:
        """Once all faults are over: every replica has everything that was acknowledged, where it was acknowledged."""
        for command, index in self.acknowledged.items():
            for process in self.processes.values():
                applied = process.applied[index - 2 : index - 1]
                if [entry for _, entry in applied] != [REGULAR + command]:
                    raise Violation(f"{command!r} was acknowledged at {index}, but {process.name} has {applied}")
        logs = {tuple(process.applied[:1_000_000]) for process in self.processes.values()}
        if len(logs) != 1:
            raise Violation(f"logs of different lengths: {sorted(len(log) for log in logs)}")

    # --- what a test does to it -------------------------------------------------------------------------------

    def alive(self) -> list[Process]:
        return [process for process in self.processes.values() if process.engine is not None]

    def note_down(self) -> None:
        self.down_max = max(self.down_max, len(self.names) - len(self.alive()))

    def propose(self, command: bytes) -> None:
        """To whoever thinks that it leads; as a client that follows redirects would."""
        for process in self.alive():
            if process.engine is not None and process.engine.role == LEADER:
                process.proposals.append(command)
                process.round()
