"""A leader with a real state and followers with a disk that loses what was not synced, on virtual time, behind a
network that loses, repeats and reorders messages and changes their bytes."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

from holdfast.common.backoff import Backoff
from holdfast.machine import entries
from holdfast.machine.kv import state_hash
from holdfast.machine.machine import Machine
from holdfast.raft.messages import Configuration
from holdfast.storage.rocksdb import RocksState, StateMemory
from holdfast.storage.snapshots.checkpoint import CheckpointPoint, take_checkpoint
from holdfast.storage.snapshots.codec import decode, encode
from holdfast.storage.snapshots.directories import StateDirectories
from holdfast.storage.snapshots.messages import SnapshotBegin, SnapshotChunk, SnapshotDone, SnapshotMessage
from holdfast.storage.snapshots.receiving import ReceiveSettings, SnapshotReceiver
from holdfast.storage.snapshots.sending import SendSettings, SnapshotSender
from holdfast.storage.snapshots.throttle import Throttle
from tests.simulation.snapshot_files import PowerCutFiles
from tests.unit.machine.machine_shard import START_MS, new_task

Result = TypeVar("Result")

TICK_S = 0.1
LEADER = "n1/leader"
STATE_DIR = Path("/data/state")
SEND = SendSettings(chunk_bytes=8 * 1024, patience_s=20.0, backoff=Backoff(3.0, 300.0), linger_s=5.0)


@dataclass(frozen=True)
class Faults:
    loss: float = 0.0
    repetition: float = 0.0
    change: float = 0.0  # of a chunk: a byte of its data
    reordering: bool = False
    delay_s_max: float = 0.01
    disk_s_max: float = 0.005


class Network:
    """Everything that is said goes through here, as bytes."""

    def __init__(self, draw: random.Random, faults: Faults) -> None:
        self._draw = draw
        self.faults = faults
        self.hosts: dict[str, Callable[[str, SnapshotMessage], None]] = {}
        self._arrivals_s: dict[tuple[str, str], float] = {}  # the latest on each way
        self.said: list[tuple[float, str, str, SnapshotMessage]] = []  # when, from, to, what

    def send(self, source: str, target: str, message: SnapshotMessage) -> None:
        loop = asyncio.get_running_loop()
        self.said.append((loop.time(), source, target, message))
        data = encode(message)
        for _copy in range(2 if self._draw.random() < self.faults.repetition else 1):
            if self._draw.random() >= self.faults.loss:
                loop.call_at(self._arrival_s(loop.time(), source, target), self._deliver, source, target, data)

    def _arrival_s(self, now_s: float, source: str, target: str) -> float:
        arrival_s = now_s + self._draw.uniform(0, self.faults.delay_s_max)
        if not self.faults.reordering:
            arrival_s = max(arrival_s, self._arrivals_s.get((source, target), 0.0) + 1e-6)
            self._arrivals_s[source, target] = arrival_s
        return arrival_s

    def _deliver(self, source: str, target: str, data: bytes) -> None:
        message = decode(data)
        if isinstance(message, SnapshotChunk) and self._draw.random() < self.faults.change:
            changed = bytearray(message.data)
            changed[self._draw.randrange(len(changed))] ^= 1 << self._draw.randrange(8)
            message = replace(message, data=bytes(changed))
        if target in self.hosts:
            self.hosts[target](source, message)

    def chunks(self, target: str | None = None) -> list[tuple[float, SnapshotChunk]]:
        return [
            (when_s, message)
            for when_s, _, to, message in self.said
            if isinstance(message, SnapshotChunk) and target in (None, to)
        ]

    def begins(self) -> list[SnapshotBegin]:
        return [message for _, _, _, message in self.said if isinstance(message, SnapshotBegin)]

    def done(self) -> list[SnapshotDone]:
        return [message for _, _, _, message in self.said if isinstance(message, SnapshotDone)]


class Disk:
    """Blocking work takes a moment of virtual time, and is done in one piece."""

    def __init__(self, draw: random.Random, faults: Faults) -> None:
        self._draw = draw
        self._faults = faults

    async def run(self, function: Callable[[], Result]) -> Result:
        await asyncio.sleep(self._draw.uniform(0, self._faults.disk_s_max))
        return function()


class KillableSender(SnapshotSender):
    def kill(self) -> None:
        """The process is gone: its tasks do nothing more, and its files stay as they are."""
        self._is_closed = True
        self._background.cancel()
        for checkpoint in self._checkpoints:
            if checkpoint.expiry is not None:
                checkpoint.expiry.cancel()

    @property
    def next_id(self) -> int:
        """Of the checkpoint that it makes next."""
        return self._next_id


class Leader:
    """A shard's state that goes on changing while it is copied."""

    def __init__(
        self, root: Path, network: Network, disk: Disk, *, settings: SendSettings = SEND, bytes_per_s: float = 1e9
    ) -> None:
        self._network, self._disk, self._settings = network, disk, settings
        self._bytes_per_s = bytes_per_s
        self.directories = StateDirectories(root, 0)
        self.state_name = self.directories.new_name(0)
        memory = StateMemory(1 << 20, 4 << 20)
        self.state = RocksState(self.directories.create(self.state_name), memory=memory)
        self.machine = Machine(self.state)
        self.term = 1
        self.hashes: dict[int, str] = {}  # of the state, per index
        self.checkpoints = 0
        self._numbers = itertools.count()
        self.start()

    def start(self) -> None:
        loop = asyncio.get_running_loop()
        self.sender = KillableSender(
            self.directories,
            self,
            throttle=Throttle(self._bytes_per_s, 2 * self._settings.chunk_bytes, now_s=loop.time),
            slots=asyncio.Semaphore(2),
            run_blocking=self._disk.run,
            settings=self._settings,
        )
        self._network.hosts[LEADER] = self.sender.handle

    @property
    def applied_index(self) -> int:
        return self.machine.meta.applied_index

    @property
    def base_index(self) -> int:
        return self.sender.held_index or self.applied_index

    def configuration_at(self, index: int) -> Configuration:
        return configuration_at(index)

    def send(self, to: str, message: SnapshotMessage) -> None:
        self._network.send(LEADER, to, message)

    def checkpoint(self, directory: Path) -> CheckpointPoint:
        self.checkpoints += 1
        return take_checkpoint(self.state, directory)

    def restart(self) -> None:
        """Not the leader of its old term any more, whoever leads now."""
        self.directories.clean(self.state_name)
        self.term += 1
        self.start()

    def write(self, tasks: int, size_bytes: int = 500) -> None:
        """One entry; payloads that no two tasks share, so that mixed-up chunks are noticed."""
        made = [new_task(envelope=random.Random(next(self._numbers)).randbytes(size_bytes)) for _task in range(tasks)]
        index = self.machine.meta.applied_index + 1
        self.machine.apply(index, self.term, entries.Enqueue(START_MS + index, made))
        self.machine.commit()
        self.hashes[index] = state_hash(self.state)

    def outgoing(self) -> list[str]:
        return [path.name for path in self.directories.path.glob("outgoing-*")]


def configuration_at(index: int) -> Configuration:
    return Configuration(1 + index // 10, ("n1/leader", "n2/follower"))


class Follower:
    """Keeps what a log would keep: the name of the current state, and how far it is."""

    def __init__(self, name: str, network: Network, disk: Disk, draw: random.Random) -> None:
        self.name = name
        self._network, self._disk, self._draw = network, disk, draw
        self.files = PowerCutFiles()
        self.state_name: str | None = None
        self.index = 0
        self.index_term = 0
        self.configuration: Configuration | None = None
        self.installs = 0
        self.term = 0
        self.free_bytes = 1 << 40
        self.on_install: Callable[[], Awaitable[None]] | None = None
        self.start()

    def start(self) -> None:
        self.directories = StateDirectories(STATE_DIR, 0, self.files)
        self.leftovers = self.directories.clean(self.state_name)
        self.receiver = SnapshotReceiver(
            self.directories, self, run_blocking=self._disk.run, settings=ReceiveSettings()
        )
        self._network.hosts[self.name] = self.receiver.handle

    def is_needed(self, index: int, term: int) -> bool:
        return index > self.index

    def may_take(self, size_bytes: int) -> bool:
        return self.free_bytes - size_bytes > 0

    def send(self, to: str, message: SnapshotMessage) -> None:
        self._network.send(self.name, to, message)

    async def install(self, directory: Path, index: int, index_term: int, configuration: Configuration) -> bool:
        if self.on_install is not None:
            await self.on_install()
        if index <= self.index:
            return False
        name = self.directories.new_name(index)
        await self._disk.run(lambda: self.directories.adopt(directory, name))
        await asyncio.sleep(self._draw.uniform(0, 0.3))  # a round of the log: one synced record that names the state
        self.state_name, self.index, self.index_term, self.configuration = name, index, index_term, configuration
        self.installs += 1
        return True

    async def kill(self) -> None:
        del self._network.hosts[self.name]
        await self.receiver.close()

    async def restart(self, *, power_cut: bool = False) -> None:
        await self.kill()
        if power_cut:
            self.files = self.files.after_power_cut(self._draw)
        self.start()

    def hash(self, tmp_path: Path) -> str:
        """Of the state that the log names, opened by a real RocksDB."""
        assert self.state_name is not None
        target = tmp_path / f"{self.name.replace('/', '-')}-{self.state_name}"
        self.files.copy_out(self.directories.state(self.state_name), target)
        state = RocksState(target, memory=StateMemory(1 << 20, 4 << 20))
        try:
            assert Machine(state).meta.applied_index == self.index
            return state_hash(state)
        finally:
            state.close()


class World:
    """`faults` may change while it runs."""

    def __init__(
        self, tmp_path: Path, seed: int, faults: Faults, *, followers: int = 1, tasks: int = 300,
        settings: SendSettings = SEND, bytes_per_s: float = 1e9,
    ) -> None:  # fmt: skip
        self.draw = random.Random(seed)
        self.tmp_path = tmp_path
        self.network = Network(self.draw, faults)
        disk = Disk(self.draw, faults)
        self.leader = Leader(tmp_path / "leader", self.network, disk, settings=settings, bytes_per_s=bytes_per_s)
        for _entry in range(tasks // 50):
            self.leader.write(50)
        self.followers = [
            Follower(f"n{number}/follower", self.network, disk, self.draw) for number in range(2, 2 + followers)
        ]

    @property
    def follower(self) -> Follower:
        return self.followers[0]

    def lacking(self) -> list[str]:
        return [follower.name for follower in self.followers if follower.index == 0]

    async def tick(self) -> None:
        self.leader.sender.wanted(self.lacking(), self.leader.term)
        await asyncio.sleep(TICK_S)

    async def until(self, reached: Callable[[], bool], limit_s: float = 600.0) -> None:
        loop = asyncio.get_running_loop()
        end_s = loop.time() + limit_s
        while not reached():
            assert loop.time() < end_s, f"not reached within {limit_s} s"
            await self.tick()

    async def until_installed(self, limit_s: float = 600.0) -> None:
        await self.until(lambda: not self.lacking(), limit_s)

    def check(self) -> None:
        """What was installed is what the leader had at that index."""
        for follower in self.followers:
            assert follower.hash(self.tmp_path) == self.leader.hashes[follower.index]
            assert follower.configuration == configuration_at(follower.index)
            assert follower.index_term <= self.leader.term
            assert follower.installs == 1

    async def close(self) -> None:
        await self.leader.sender.close()
        for follower in self.followers:
            await follower.receiver.close()
        self.leader.state.close()
