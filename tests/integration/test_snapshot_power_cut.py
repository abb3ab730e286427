"""A power cut right after a snapshot was installed: the state that the log would name by then is on the disk."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from chaos.system.disks import Disk
from holdfast.machine import entries
from holdfast.machine.kv import state_hash
from holdfast.machine.machine import Machine
from holdfast.raft.messages import Configuration
from holdfast.storage.rocksdb import RocksState, StateMemory
from holdfast.storage.snapshots.checkpoint import CheckpointPoint, take_checkpoint
from holdfast.storage.snapshots.directories import StateDirectories
from holdfast.storage.snapshots.messages import SnapshotMessage
from holdfast.storage.snapshots.receiving import SnapshotReceiver
from holdfast.storage.snapshots.sending import SnapshotSender
from holdfast.storage.snapshots.throttle import Throttle
from tests.integration.small_disk import power_disk
from tests.unit.machine.machine_shard import START_MS, new_task

MIB = 1024 * 1024
REPLICA = "n2/follower"


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    disk = power_disk(tmp_path, 96 * MIB)
    yield disk
    disk.close()


class Transfer:
    """Both sides in one process, without a network."""

    term = 0

    def __init__(self, state: RocksState, source: StateDirectories, target: StateDirectories) -> None:
        self._state = state
        self._target = target
        self._loop = asyncio.get_running_loop()
        self.applied_index = self.base_index = 1
        self.installed: asyncio.Future[str] = self._loop.create_future()
        self.receiver = SnapshotReceiver(target, self)
        self.sender = SnapshotSender(source, self, throttle=Throttle(1e9, MIB), slots=asyncio.Semaphore(1))

    def send(self, to: str, message: SnapshotMessage) -> None:
        if to == REPLICA:
            self.receiver.handle("n1/leader", message)
        else:
            self._loop.call_soon(self.sender.handle, REPLICA, message)

    def checkpoint(self, directory: Path) -> CheckpointPoint:
        return take_checkpoint(self._state, directory)

    def configuration_at(self, index: int) -> Configuration:
        return Configuration(1, ("n1/leader",))

    def is_needed(self, index: int, term: int) -> bool:
        return True

    def may_take(self, size_bytes: int) -> bool:
        return True

    async def install(self, directory: Path, index: int, index_term: int, configuration: Configuration) -> bool:
        name = self._target.new_name(index)
        await asyncio.to_thread(self._target.adopt, directory, name)
        self.installed.set_result(name)
        return True


async def send_snapshot(state: RocksState, source: StateDirectories, target: StateDirectories) -> str:
    """Returns the name of the state that was installed."""
    transfer = Transfer(state, source, target)
    transfer.sender.wanted([REPLICA], 1)
    async with asyncio.timeout(60):
        name = await transfer.installed
    await transfer.sender.close()
    await transfer.receiver.close()
    return name


async def test_what_was_installed_survives_a_power_cut(tmp_path: Path, disk: Disk) -> None:
    source = StateDirectories(tmp_path / "leader", 0)
    state = RocksState(source.create(source.new_name(0)), memory=StateMemory(MIB, 4 * MIB))
    machine = Machine(state)
    for index in range(1, 101):
        machine.apply(index, 1, entries.Enqueue(START_MS, [new_task(envelope=bytes(1000)) for _task in range(100)]))
        machine.commit()
    target = StateDirectories(disk.path / "state", 0)
    name = await send_snapshot(state, source, target)
    disk.cut_power()
    disk.power_on()
    assert target.clean(name).resumable is None
    received = RocksState(target.state(name), memory=StateMemory(MIB, 4 * MIB))
    assert state_hash(received) == state_hash(state)
    received.close()
    state.close()
