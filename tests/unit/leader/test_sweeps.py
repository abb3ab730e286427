"""Sweeps: every due row is handled, none before its time. Shard time is a number that the tests set."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from holdfast.broker.leader import sweeps
from holdfast.broker.leader.sweeps import Sweep
from holdfast.machine import keys
from holdfast.machine.kv import MemoryKV

START_MS = 1_000_000
BATCH_ROWS = 3
Due = list[tuple[int, bytes]]


class Bench:
    """A sweep over the DUE index, and a handler that deletes what it is given, as an applied entry would."""

    def __init__(self) -> None:
        self.kv = MemoryKV()
        self.now_ms = START_MS
        self.not_before_ms = 0
        self.calls: asyncio.Queue[Due] = asyncio.Queue()
        self.handled: list[bytes] = []
        self.failures = 0  # how many calls are still to fail
        self.meanwhile: list[tuple[int, bytes]] = []  # rows written while the next call is under way
        self.polls = 0
        self.sweep = Sweep(
            self.kv, keys.DUE, self.read_now_ms, self.handle,
            batch_rows=BATCH_ROWS, not_before_ms=lambda: self.not_before_ms,
        )  # fmt: skip

    def read_now_ms(self) -> int:
        self.polls += 1
        return self.now_ms

    async def handle(self, due: Due) -> bool:
        while self.meanwhile:
            self.write(*self.meanwhile.pop())
        await asyncio.sleep(0)
        works = not self.failures
        if works:
            self.kv.write({keys.due(when_ms, what): None for when_ms, what in due})
            self.handled += [what for _, what in due]
        else:
            self.failures -= 1
        self.calls.put_nowait(due)
        return works

    def write(self, when_ms: int, what: bytes) -> None:
        self.kv.write({keys.due(when_ms, what): b""})
        self.sweep.arm(when_ms)

    async def call(self) -> list[bytes]:
        """What the next call was given."""
        async with asyncio.timeout(20):
            return [what for _, what in await self.calls.get()]

    async def is_quiet(self) -> bool:
        """Whether nothing is handled although the sweep had its turn."""
        for _ in range(10):
            await asyncio.sleep(0)
        return self.calls.empty()


@pytest.fixture
async def bench() -> AsyncIterator[Bench]:
    bench = Bench()
    running = asyncio.create_task(bench.sweep.run())
    yield bench
    assert not running.done()
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def test_rows_from_before_the_start_are_handled() -> None:
    bench = Bench()
    bench.kv.write({keys.due(START_MS - 5, b"old"): b"", keys.due(START_MS, b"now"): b""})
    running = asyncio.create_task(bench.sweep.run())
    assert await bench.call() == [b"old", b"now"]
    running.cancel()


async def test_a_row_is_handled_when_it_is_due_and_not_before(bench: Bench) -> None:
    bench.write(START_MS + 2, b"a")
    assert await bench.is_quiet()
    bench.now_ms += 1
    assert await bench.is_quiet()
    bench.now_ms += 1
    assert await bench.call() == [b"a"]


async def test_an_earlier_row_is_not_held_up_by_a_later_one(bench: Bench) -> None:
    bench.write(START_MS + 50_000, b"later")
    assert await bench.is_quiet()
    bench.write(START_MS + 3, b"sooner")
    bench.now_ms += 3
    assert await bench.call() == [b"sooner"]
    assert await bench.is_quiet()


async def test_a_sweep_without_rows_does_not_look_at_the_clock(bench: Bench) -> None:
    assert await bench.is_quiet()
    polls = bench.polls
    await asyncio.sleep(0.01)
    assert bench.polls == polls


async def test_a_row_due_before_what_was_read_already_is_handled(bench: Bench) -> None:
    bench.write(START_MS, b"a")
    assert await bench.call() == [b"a"]
    bench.write(START_MS - 1000, b"late")
    assert await bench.call() == [b"late"]


async def test_a_row_written_while_others_are_handled_is_not_forgotten(bench: Bench) -> None:
    bench.meanwhile = [(START_MS - 1000, b"behind"), (START_MS, b"beside")]
    bench.write(START_MS - 1, b"a")
    assert await bench.call() == [b"a"]
    assert await bench.call() == [b"behind", b"beside"]


async def test_more_rows_than_a_batch_go_in_batches_in_order(bench: Bench) -> None:
    names = [b"%d" % index for index in range(2 * BATCH_ROWS + 1)]
    bench.kv.write({keys.due(START_MS - 10 + index, name): b"" for index, name in enumerate(names)})
    bench.sweep.arm(START_MS - 10)
    assert await bench.call() == names[:BATCH_ROWS]
    assert await bench.call() == names[BATCH_ROWS : 2 * BATCH_ROWS]
    assert await bench.call() == names[2 * BATCH_ROWS :]
    assert await bench.is_quiet()


async def test_more_rows_of_one_moment_than_a_batch(bench: Bench) -> None:
    names = [b"%d" % index for index in range(2 * BATCH_ROWS)]
    bench.kv.write({keys.due(START_MS, name): b"" for name in names})
    bench.sweep.arm(START_MS)
    await bench.call()
    await bench.call()
    assert bench.handled == names


async def test_a_call_that_failed_is_repeated(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sweeps, "RETRY_SECONDS", 0.001)
    bench.failures = 2
    bench.write(START_MS - 1, b"a")
    bench.write(START_MS, b"b")
    for _ in range(3):
        assert await bench.call() == [b"a", b"b"]
    assert bench.handled == [b"a", b"b"]
    assert await bench.is_quiet()


async def test_a_full_batch_that_failed_is_repeated_before_the_next(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sweeps, "RETRY_SECONDS", 0.001)
    names = [b"%d" % index for index in range(BATCH_ROWS + 1)]
    bench.failures = 1
    bench.kv.write({keys.due(START_MS - 10 + index, name): b"" for index, name in enumerate(names)})
    bench.sweep.arm(START_MS - 10)
    for expected in (names[:BATCH_ROWS], names[:BATCH_ROWS], names[BATCH_ROWS:]):
        assert await bench.call() == expected


async def test_nothing_is_handled_before_it_is_allowed(bench: Bench) -> None:
    bench.not_before_ms = START_MS + 2
    bench.write(START_MS - 1000, b"a")
    assert await bench.is_quiet()
    bench.now_ms += 1
    await asyncio.sleep(0.004)
    assert await bench.is_quiet()
    bench.now_ms += 1
    assert await bench.call() == [b"a"]


async def test_other_indexes_are_left_alone(bench: Bench) -> None:
    bench.kv.write(
        {keys.claim_expiry(1, b"x" * 16): b"", keys.retention(1, b"y" * 16): b"", keys.dead(b"q", 1, b"z"): b""}
    )
    bench.sweep.arm(1)
    assert await bench.is_quiet()
