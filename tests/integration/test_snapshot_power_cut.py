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
from holdfast.storage.snapshots.checkpoint import take_checkpoint
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


async def send_snapshot(state: RocksState, source: StateDirectories, target: StateDirectories) -> str:
    """Both sides in one process, without a network; returns the name of the state that was installed."""
    loop = asyncio.get_running_loop()
    installed: asyncio.Future[str] = loop.create_future()

    async def install(directory: Path, index: int, _index_term: int, _configuration: Configuration) -> bool:
        name = target.new_name(index)
        await asyncio.to_thread(target.adopt, directory, name)
        installed.set_result(name)
        return True

    def answer(_replica: str, message: SnapshotMessage) -> None:
        loop.call_soon(sender.handle, REPLICA, message)

    receiver = SnapshotReceiver(
        target,
        send=answer,
        install=install,
        is_needed=lambda _index, _term: True,
        may_take=lambda _bytes: True,
        current_term=lambda: 0,
    )
    sender = SnapshotSender(
        source,
        send=lambda _replica, message: receiver.handle("n1/leader", message),
        checkpoint=lambda directory: take_checkpoint(state, directory),
        applied_index=lambda: 1,
        base_index=lambda: 1,
        configuration_at=lambda _index: Configuration(1, ("n1/leader",)),
        throttle=Throttle(1e9, MIB),
        slots=asyncio.Semaphore(1),
    )
    sender.wanted([REPLICA], 1)
    async with asyncio.timeout(60):
        name = await installed
    await sender.close()
    await receiver.close()
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
