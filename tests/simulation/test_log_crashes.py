"""The log under power failures, process deaths, failing syncs and a full disk, all chosen by seed.

The checker knows what was acknowledged. After each open the log must hold exactly that, or that and the one round that
was under way: all of it or nothing of it.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, replace

import pytest

from holdfast.wal import recovery
from holdfast.wal.disk import Disk, DiskFailedError, DiskFullError
from holdfast.wal.errors import LogError
from holdfast.wal.node_log import LogRecord, NodeLog
from tests.simulation.fake_disk import FakeDisk, SimulatedCrash

SEEDS = 250
SEEDS_OF_AN_ABLATION = 100
LIVES = 8
STEPS_PER_LIFE_MAX = 25
SHARDS = (0, 1, 7)


class BrokenPromiseError(AssertionError):
    """The log broke its promise."""


@dataclass(frozen=True)
class Shard:
    """What one shard must look like."""

    entries: tuple[LogRecord, ...] = ()
    keep_from: int = 0  # entries below may have been cut
    hard_state: bytes | None = None

    @property
    def next_index(self) -> int:
        return self.entries[-1].index + 1 if self.entries else max(self.keep_from, 1)


State = dict[int, Shard]


class History:
    """One seed's life of one log, over many processes."""

    def __init__(self, seed: int, make_disk: Callable[[random.Random], FakeDisk] = FakeDisk) -> None:
        self.rng = random.Random(seed)
        self.disk = make_disk(self.rng)
        self.segment_bytes = self.rng.choice((16_384, 20_000, 40_960, 65_536))
        # The states that the next open may find.
        self.possible: list[State] = [{shard: Shard() for shard in SHARDS}]
        self.flushes = 0

    def run(self) -> None:
        for _ in range(LIVES):
            try:
                self.live_once()
            except SimulatedCrash:
                self.disk.crash()
            except DiskFailedError:
                self.end_process()
        self.disk.capacity_bytes = 1 << 40
        self.open_log()

    def live_once(self) -> None:
        rng, disk = self.rng, self.disk
        disk.capacity_bytes = 1 << 40
        if rng.random() < 0.7:
            # Also hits the open itself, so that recoveries are interrupted.
            disk.crash_after(int(rng.expovariate(1 / 25)))
        disk.fail_next_sync = rng.random() < 0.05
        log = self.open_log()
        for _ in range(rng.randrange(STEPS_PER_LIFE_MAX)):
            if not self.step(log):
                break
        else:
            if rng.random() < 0.5:
                log.close(clean=rng.random() < 0.7)
        self.end_process()

    def end_process(self) -> None:
        """The process is gone; sometimes the power as well."""
        if self.rng.random() < 0.5:
            self.disk.crash()
        else:
            self.disk.restart()

    def open_log(self) -> NodeLog:
        try:
            log = NodeLog.open(self.disk, segment_bytes=self.segment_bytes, random_bytes=self.rng.randbytes)
        except DiskFailedError:
            raise
        except LogError as error:
            raise BrokenPromiseError(f"a crash was taken for {error!r}") from error
        problems = []
        for state in self.possible:
            problem = difference(log, state)
            if problem is None:
                # What an open has shown counts as durable: replies may be built on it.
                self.possible = [state]
                return log
            problems.append(problem)
        raise BrokenPromiseError("; or ".join(problems))

    def step(self, log: NodeLog) -> bool:
        """One thing a node does. False when it must stop."""
        choice = self.rng.random()
        if choice < 0.1:
            self.cut(log)
            return True
        if choice < 0.14:
            self.disk.fail_next_sync = True
        elif choice < 0.16:
            self.disk.fail_next_write = True
        elif choice < 0.3:
            room = self.rng.randrange(3 * self.segment_bytes)
            self.disk.capacity_bytes += room - self.disk.free_bytes()
        elif choice < 0.4:
            self.disk.capacity_bytes = 1 << 40
        return self.flush(log)

    def flush(self, log: NodeLog) -> bool:
        before = self.possible[0]
        after = self.stage(log, before)
        flush = log.begin_flush()
        if flush is None:
            return True
        self.possible = [before, after]
        try:
            flush.run()
        except DiskFullError:
            self.possible = [before]
            flush.abort()
        except DiskFailedError:
            with pytest.raises(DiskFailedError):
                log.begin_flush()
            return False
        else:
            self.possible = [after]
            flush.done()
            self.flushes += 1
        if self.rng.random() < 0.2:
            problem = difference(log, self.possible[0])
            if problem is not None:
                raise BrokenPromiseError(f"without a restart: {problem}")
        return True

    def stage(self, log: NodeLog, state: State) -> State:
        state = dict(state)
        for _ in range(self.rng.randrange(6)):
            number = self.rng.choice(SHARDS)
            choice = self.rng.random()
            if choice < 0.15:
                payload = self.rng.randbytes(self.rng.randrange(20))
                log.stage_hard_state(number, payload)
                state[number] = replace(state[number], hard_state=payload)
            elif choice < 0.3:
                state[number] = self.stage_truncate(log, number, state[number])
            else:
                state[number] = self.stage_entry(log, number, state[number])
        return state

    def stage_entry(self, log: NodeLog, number: int, shard: Shard) -> Shard:
        rng = self.rng
        size = rng.choice((0, 1, 100, 700, 5000, 12_000, 2 * self.segment_bytes if rng.random() < 0.1 else 300))
        # Real bytes of the log inside a payload must not confuse anyone.
        files = [name for name in self.disk.list_files() if rng.random() < 0.02]
        payload = self.disk.content(files[0]) if files else rng.randbytes(size)
        if not shard.entries:
            # Two possible states may look alike when they are empty; this makes any first index right.
            log.stage_truncate(number, 0)
        entry = LogRecord(number, shard.next_index, rng.randrange(1, 9), payload)
        log.stage_entry(entry.shard, entry.index, entry.term, entry.payload)
        return replace(shard, entries=(*shard.entries, entry))

    def stage_truncate(self, log: NodeLog, number: int, shard: Shard) -> Shard:
        if self.rng.random() < 0.2:
            log.stage_truncate(number, 0)
            # As after a snapshot: the shard goes on far ahead of where it was.
            return Shard(keep_from=shard.next_index + self.rng.randrange(100), hard_state=shard.hard_state)
        lowest = max(shard.keep_from, shard.entries[0].index if shard.entries else 0, shard.next_index - 5)
        if lowest > shard.next_index or not shard.entries:
            return shard
        from_index = self.rng.randrange(lowest, shard.next_index + 1)
        log.stage_truncate(number, from_index)
        kept = tuple(entry for entry in shard.entries if entry.index < from_index)
        return replace(shard, entries=kept, keep_from=from_index if not kept else shard.keep_from)

    def cut(self, log: NodeLog) -> None:
        state = dict(self.possible[0])
        keep_from = {}
        for number, shard in state.items():
            if self.rng.random() < 0.9:
                lowest = min(shard.keep_from, shard.next_index)
                keep_from[number] = self.rng.randrange(lowest, shard.next_index + 1)
                state[number] = replace(shard, keep_from=max(shard.keep_from, keep_from[number]))
        self.possible = [state]
        log.cut(keep_from)


def difference(log: NodeLog, state: State) -> str | None:
    """What the log has otherwise than the state; None when they agree."""
    for number, shard in state.items():
        found = tuple(log.entries(number, 0))
        missing = len(shard.entries) - len(found)
        if missing < 0 or found != shard.entries[missing:]:
            return f"shard {number}: found {_summary(found)}, expected {_summary(shard.entries)}"
        if any(entry.index >= shard.keep_from for entry in shard.entries[:missing]):
            return f"shard {number}: lost {_summary(shard.entries[:missing])}, wanted from {shard.keep_from}"
        if (log.first_index(number), log.last_index(number)) != (_index(found, 0), _index(found, -1)):
            return f"shard {number}: first and last index are not those of its entries"
        if log.hard_states.get(number) != shard.hard_state:
            return f"shard {number}: another hard state"
    extra = set(log.hard_states) - set(state)
    return f"hard states of unknown shards {extra}" if extra else None


def _summary(entries: tuple[LogRecord, ...]) -> list[tuple[int, int, int]]:
    return [(entry.index, entry.term, len(entry.payload)) for entry in entries]


def _index(entries: tuple[LogRecord, ...], position: int) -> int:
    return entries[position].index if entries else 0


def test_nothing_acknowledged_is_ever_lost_and_nothing_else_appears() -> None:
    flushes = 0
    for seed in range(SEEDS):
        history = History(seed)
        try:
            history.run()
        except BrokenPromiseError as broken:
            raise AssertionError(f"seed {seed}: {broken}") from broken
        flushes += history.flushes
    assert flushes > 10 * SEEDS, "the histories do too little to mean anything"


class DiskWithoutSync(FakeDisk):
    def fdatasync(self, handle: int) -> None:
        self._change()


class DiskWithoutDirectorySync(FakeDisk):
    def fsync_directory(self) -> None:
        self._change()


@pytest.mark.parametrize("make_disk", [DiskWithoutSync, DiskWithoutDirectorySync])
def test_the_checker_catches_a_disk_that_does_not_sync(make_disk: Callable[[random.Random], FakeDisk]) -> None:
    assert _is_caught(make_disk)


def test_the_checker_catches_a_recovery_that_trusts_the_page_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    def write_nothing(disk: Disk, handle: int, segment: object, offset: int) -> None:
        pass

    monkeypatch.setattr(recovery, "write_last_round_again", write_nothing)
    assert _is_caught()


def _is_caught(make_disk: Callable[[random.Random], FakeDisk] = FakeDisk) -> bool:
    for seed in range(SEEDS_OF_AN_ABLATION):
        try:
            History(seed, make_disk).run()
        except BrokenPromiseError:
            return True
    return False
