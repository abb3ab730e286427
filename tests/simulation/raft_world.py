"""Replicas of one shard on virtual time, with a network between them and clients that never rest.

Everything is drawn from one seed: a failure can be seen again.
"""

import heapq
import itertools
import random
from collections.abc import Callable
from dataclasses import dataclass, field

from holdfast.raft.codec import encode
from holdfast.raft.engine import ShardRaft
from holdfast.raft.journal import found
from holdfast.raft.library import Timing
from holdfast.raft.messages import Message
from tests.simulation.raft_checks import Checks, Violation
from tests.simulation.raft_disks import Durable, MemoryDisk, NodeDisk
from tests.simulation.raft_operator import Operator
from tests.simulation.raft_process import Process, Snapshot

TIMING = Timing()
STUCK_S_MAX = 4.0
APPEND_BYTES_MAX = 12  # of entries in one message: a few, so that logs are compared piece by piece
EVENTS_MAX = 300_000  # of one history; about ten thousand are usual
SNAPSHOTS_REPEATED_MAX = 5
NODE_LOG_SHARE = 0.25  # of the histories: they run on the node's real log
READ_SHARE = 0.1  # of the clients' calls

Holds = Callable[[str, str, Message], bool]


@dataclass
class Faults:
    """How the network and the disks behave at the moment."""

    lost: float = 0.0
    doubled: float = 0.0
    latency_s_max: float = 0.02
    shuffled: bool = False  # each message has its own way: a later one may overtake an earlier one
    stuck: float = 0.0  # share of messages that arrive after seconds, when much has changed
    late_snapshots: bool = False  # snapshots take long, and come again and again
    sync_s_max: float = 0.01
    cut: set[tuple[str, str]] = field(default_factory=set)  # (from, to): nothing passes
    holds: Holds | None = None  # what the network keeps until it is released


class World:
    def __init__(self, seed: int, replicas: int, engine: type[ShardRaft] = ShardRaft) -> None:
        self.draw = random.Random(seed)
        self.now_s = 0.0
        self.faults = Faults()
        self.checks = Checks(self)
        self._engine = engine
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = itertools.count()
        self._commands = itertools.count()
        self._identities = itertools.count()
        self._arrived_s: dict[tuple[str, str], float] = {}  # when the last message of a connection arrives
        self._late_snapshots: list[Callable[[], None]] = []
        self._held_back: list[tuple[str, str, bytes]] = []
        self._disk = NodeDisk if self.draw.random() < NODE_LOG_SHARE else MemoryDisk
        self.compacts = self.draw.random() < 0.7
        self.processes: dict[str, Process] = {}  # by identity, as all names here
        self.durable: dict[str, Durable] = {}  # also of disks that are lost
        self.lost: set[str] = set()  # identities whose disk is
        self.wiped = 0  # replicas that were deleted
        self.down_max = 0
        self.handed_over_s = 0.0
        self._under_load = True
        self.is_quiet = False  # clients have nothing to say
        self.timeouts_agree = False  # replicas lose patience at the same time
        self.pace_s = self.draw.choice([0.02, 0.04, 0.08])  # between two calls of clients
        founders = [self.add_process(f"r{number}").name for number in range(replicas)]
        self.operator = Operator(self, set(founders))
        self._found(founders)
        if self.draw.random() < 0.5:
            self.add_process(f"r{replicas}")  # for later

    def _found(self, founders: list[str]) -> None:
        """One replica begins the group; all others are empty."""
        disk = self.processes[self.draw.choice(founders)].disk
        found(disk.journal, founders)
        disk.end_sync()

    def add_process(self, node: str, *, identity: str = "") -> Process:
        """A replica with a new disk, and therefore with an identity that nobody ever had."""
        name = identity or f"{node}/{next(self._identities)}"
        process = self.processes[name] = Process(self, name, self._disk(self.draw, self.checks.adds))
        self.durable[name] = process.disk.durable
        return process

    def lose_disk(self, name: str) -> Process:
        """A node's disk is gone. It begins again with an empty one."""
        self.processes.pop(name).crash()
        self.lost.add(name)
        return self.add_process(name.partition("/")[0])

    def may_be_wiped(self, name: str) -> bool:
        """Whether a replica is out of its group for certain: by what is committed, and no log has anything newer that
        takes it back."""
        if name in self.operator.wanted:
            return False
        newest = self.checks.newest_configuration()
        known = [
            configuration
            for process in self.processes.values()
            for _, configuration in process.disk.journal.configurations
        ]
        return newest is not None and not any(name in item.members for item in known if item.version >= newest.version)

    def wipe(self, name: str) -> Process:
        """A replica is deleted, whatever it was doing. It is empty when it starts again."""
        process = self.processes[name]
        process.crash()
        process.disk.wipe()
        self.wiped += 1
        return process

    def make_engine(self, process: Process) -> ShardRaft:
        return self._engine(
            process.name,
            process.disk.journal,
            now_s=process.now_s,
            applied_index=process.state.index,
            timing=TIMING,
            append_bytes_max=APPEND_BYTES_MAX,
            draw=self._draw_timeout,
        )

    def _draw_timeout(self) -> float:
        return 0.5 if self.timeouts_agree else self.draw.random()

    @property
    def names(self) -> list[str]:
        return list(self.processes)

    # --- time -------------------------------------------------------------------------------------------------

    def at(self, delay_s: float, act: Callable[[], None]) -> None:
        heapq.heappush(self._events, (self.now_s + delay_s, next(self._numbers), act))

    def run(self, seconds: float) -> None:
        ends_s = self.now_s + seconds
        events = self._events
        while events and events[0][0] <= ends_s:
            self.now_s, number, act = heapq.heappop(events)
            if number > EVENTS_MAX:
                raise Violation("a storm of messages that does not end")
            act()
        self.now_s = ends_s

    def run_until(self, is_so: Callable[[], bool], seconds_max: float) -> bool:
        """Lets time pass until something is so; False if it did not come to that."""
        ends_s = self.now_s + seconds_max
        while not is_so():
            if self.now_s >= ends_s:
                return False
            self.run(0.02)
        return True

    # --- the network ------------------------------------------------------------------------------------------

    def send(self, sender: str, to: str, message: Message) -> None:
        faults, draw = self.faults, self.draw
        if (sender, to) in faults.cut or draw.random() < faults.lost:
            return
        data = encode(message)
        if faults.holds is not None and faults.holds(sender, to, message):
            self._held_back.append((sender, to, data))
            return
        copies = 2 if draw.random() < faults.doubled else 1
        for _ in range(copies):
            latency_s = draw.uniform(0.001, faults.latency_s_max)
            if draw.random() < faults.stuck:
                latency_s = draw.uniform(0.1, STUCK_S_MAX)
            elif not faults.shuffled:
                arrives_s = max(self.now_s + latency_s, self._arrived_s.get((sender, to), 0.0))
                self._arrived_s[sender, to] = arrives_s
                latency_s = arrives_s - self.now_s
            self._send_later(sender, to, data, latency_s)

    def _send_later(self, sender: str, to: str, data: bytes, latency_s: float) -> None:
        self.at(latency_s, lambda: self._deliver(sender, to, data))

    def release(self, passes: Callable[[str, str], bool] = lambda _from, _to: True) -> None:
        """What was held back arrives, in any order; what may not pass is lost."""
        self.faults.holds = None
        held, self._held_back = self._held_back, []
        for sender, to, data in held:
            if passes(sender, to):
                self._send_later(sender, to, data, self.draw.uniform(0, 0.01))

    def drop_held_back(self) -> None:
        self.faults.holds = None
        self._held_back.clear()

    def send_snapshot(self, sender: str, to: str, snapshot: Snapshot) -> None:
        """Takes its time; a copy may come when it is long known."""
        draw = self.draw
        if (sender, to) not in self.faults.cut and draw.random() >= self.faults.lost:
            latency_s = draw.uniform(0.01, draw.choice([0.05, 0.3])) + 0.4 * self.faults.late_snapshots
            self.at(latency_s, lambda: self._deliver_snapshot(sender, to, snapshot))
            if self.faults.late_snapshots:
                self._late_snapshots.append(lambda: self._deliver_snapshot(sender, to, snapshot))
            elif draw.random() < self.faults.stuck:
                self.at(draw.uniform(0.1, STUCK_S_MAX), lambda: self._deliver_snapshot(sender, to, snapshot))

    def repeat_snapshots(self) -> None:
        for deliver in self._late_snapshots[-SNAPSHOTS_REPEATED_MAX:]:
            self.at(self.draw.uniform(0, 0.01), deliver)

    def _deliver_snapshot(self, sender: str, to: str, snapshot: Snapshot) -> None:
        process = self.processes.get(to)
        if process is not None and process.engine is not None:
            process.snapshots.append((sender, snapshot))
            process.round()

    def _deliver(self, sender: str, to: str, data: bytes) -> None:
        process = self.processes.get(to)
        if process is not None and process.engine is not None:
            process.arrived(sender, data)

    def isolate(self, names: list[str], *, hears: bool = False, speaks: bool = False) -> None:
        """Cuts these off from the others: both ways, or only one."""
        for inside in names:
            for outside in self.names:
                if outside not in names:
                    if not speaks:
                        self.faults.cut.add((inside, outside))
                    if not hears:
                        self.faults.cut.add((outside, inside))

    # --- replicas and clients ---------------------------------------------------------------------------------

    def alive(self) -> list[Process]:
        return [process for process in self.processes.values() if process.engine is not None]

    def down(self) -> list[Process]:
        return [process for process in self.processes.values() if process.engine is None]

    def hand_over(self, process: Process, to: str) -> None:
        process.requests.append(lambda engine: engine.hand_over(to))
        self.handed_over_s = self.now_s
        process.round()

    def leader(self) -> Process | None:
        """The newest of those who think that they lead."""
        leaders = [process for process in self.alive() if process.leads]
        return max(leaders, key=lambda process: process.engine.term if process.engine else 0, default=None)

    def note_down(self) -> None:
        self.down_max = max(self.down_max, len(self.down()))

    def stop_load(self) -> None:
        self._under_load = False

    def begin_load(self) -> None:
        """Clients call again and again, and pause now and then."""
        if not self._under_load:
            return
        for _ in range(0 if self.is_quiet else self.draw.randint(1, 2)):
            self.propose()
        if self.draw.random() < READ_SHARE:
            for process in self.alive():
                process.wants_read = True
        self.at(self.draw.uniform(0, 2 * self.pace_s), self.begin_load)

    def propose(self, *, is_long: bool = False) -> bytes:
        """To whoever thinks that it leads; as a client that follows redirects would."""
        number = next(self._commands)
        command = f"command {number} is long".encode() if is_long or number % 7 == 0 else f"c{number}".encode()
        self._offer([command])
        return command

    def propose_together(self, count: int) -> None:
        """Several in one round."""
        self._offer([f"c{next(self._commands)}".encode() for _ in range(count)])

    def _offer(self, commands: list[bytes]) -> None:
        for process in self.alive():
            if process.leads:
                process.proposals += commands
                process.round()
