"""Hashes at marked places: of the state as it was there, whatever came after."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.broker.replica.probes import KEPT_MAX, Probes
from holdfast.machine.kv import state_hash
from holdfast.storage.rocksdb import RocksState, StateDamagedError
from tests.unit.replica.small_shard import settle


def open_state(directory: Path) -> RocksState:
    return RocksState(directory, write_buffer_bytes=1 << 20, block_cache_bytes=1 << 20)


@pytest.fixture
def state(tmp_path: Path) -> Iterator[RocksState]:
    state = open_state(tmp_path)
    state.write({b"k": b"at first"})
    yield state
    state.close()


def write_damaged_state(directory: Path) -> Path:
    """The file that is damaged."""
    state = open_state(directory)
    state.write({b"k%04d" % number: bytes(100) for number in range(1000)})
    state.flush()
    state.close()
    [table] = directory.glob("*.sst")
    with table.open("r+b") as file:
        file.seek(table.stat().st_size // 3)
        file.write(b"damaged!")
    return table


@pytest.fixture
def probes(state: RocksState) -> Probes:
    return Probes(state.view)


def applied_at(index: int) -> "Applied":
    return Applied(index)


class Applied:
    """How far a replica is."""

    def __init__(self, index: int) -> None:
        self.index = index

    def __call__(self) -> int:
        return self.index


async def test_the_hash_is_that_of_the_state_at_the_mark(state: RocksState, probes: Probes) -> None:
    wanted = state_hash(state)
    probes.reached(5)
    state.write({b"k": b"later"})
    found = await probes.wait_for(5, applied_at(6), 30)
    assert found is not None
    assert found.hex() == wanted != state_hash(state)


async def test_a_caller_that_is_early_waits(probes: Probes) -> None:
    applied = applied_at(3)
    early = [asyncio.ensure_future(probes.wait_for(5, applied, 30)) for _ in range(2)]
    other = asyncio.ensure_future(probes.wait_for(9, applied, 30))
    await settle()
    applied.index = 4
    probes.reached(4)
    await settle()
    assert not any(task.done() for task in early), "another mark is not the one"
    applied.index = 5
    probes.reached(5)
    first, second = await asyncio.gather(*early)
    assert first == second is not None
    assert not other.done()
    other.cancel()


async def test_a_replica_that_does_not_get_there_in_time_has_nothing_to_tell(probes: Probes) -> None:
    assert await probes.wait_for(5, applied_at(3), 0.01) is None
    assert not probes.has_lost(5, 3), "it may still get there"


async def test_a_mark_that_a_snapshot_passed_over_is_lost(probes: Probes) -> None:
    assert await probes.wait_for(5, applied_at(8), 30) is None
    assert probes.has_lost(5, 8)


async def test_old_hashes_are_forgotten(probes: Probes) -> None:
    for index in range(1, KEPT_MAX + 2):
        probes.reached(index)
    newest = KEPT_MAX + 1
    assert await probes.wait_for(1, applied_at(newest), 30) is None
    assert probes.has_lost(1, newest)
    for index in range(2, newest + 1):
        assert await probes.wait_for(index, applied_at(newest), 30) is not None


async def test_one_caller_that_goes_away_does_not_take_the_hash_from_another(probes: Probes) -> None:
    probes.reached(5)
    gone = asyncio.ensure_future(probes.wait_for(5, applied_at(5), 30))
    there = asyncio.ensure_future(probes.wait_for(5, applied_at(5), 30))
    await asyncio.sleep(0)
    gone.cancel()
    assert await there is not None


async def test_who_waits_for_a_mark_that_a_snapshot_passes_over_is_told_at_once(probes: Probes) -> None:
    applied = applied_at(3)
    waiting = asyncio.ensure_future(probes.wait_for(5, applied, 3600))
    await settle()
    applied.index = 8
    probes.passed()
    assert await waiting is None
    assert probes.has_lost(5, 8)


async def test_a_state_that_cannot_be_read_is_reported(tmp_path: Path) -> None:
    """Whoever hashes reads everything, so this is where damage shows first."""
    table = write_damaged_state(tmp_path)
    damaged = open_state(tmp_path)
    found: list[Exception] = []
    probes = Probes(damaged.view, found.append)
    probes.reached(5)
    with pytest.raises(StateDamagedError, match=table.name):
        await probes.wait_for(5, applied_at(5), 30)
    assert [type(error) for error in found] == [StateDamagedError]
    damaged.close()


async def test_states_of_a_node_are_hashed_one_at_a_time(state: RocksState) -> None:
    one_at_a_time = asyncio.Lock()
    probes = [Probes(state.view, one_at_a_time=one_at_a_time) for _ in range(2)]
    async with one_at_a_time:
        for probe in probes:
            probe.reached(1)
        await asyncio.sleep(0)
        assert [item.is_busy for item in probes] == [True, True]
        assert await probes[0].wait_for(1, applied_at(1), 0.01) is None
    for probe in probes:
        assert await probe.wait_for(1, applied_at(1), 30) == bytes.fromhex(state_hash(state))
    assert [item.is_busy for item in probes] == [False, False]


async def test_marks_that_come_faster_than_hashes_are_given_up(state: RocksState) -> None:
    one_at_a_time = asyncio.Lock()
    probes = Probes(state.view, one_at_a_time=one_at_a_time)
    async with one_at_a_time:
        probes.reached(1)
        asking = asyncio.create_task(probes.wait_for(1, applied_at(1), 30))
        await asyncio.sleep(0)
        for index in range(2, KEPT_MAX + 2):
            probes.reached(index)
            await asyncio.sleep(0)
        assert await asking is None
    assert probes.has_lost(1, KEPT_MAX + 2)
    assert await probes.wait_for(2, applied_at(2), 30) is not None
