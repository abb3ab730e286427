"""How old the line of a queue is, as stats and metrics tell it."""

import asyncio
from bisect import bisect_left, insort
from collections.abc import Mapping
from typing import Any

import pytest

from holdfast.broker.leader.watermarks import RAISE_AT
from holdfast.machine import entries, keys
from holdfast.machine.entries import ClaimRef, ExpireItem
from holdfast.machine.operator_entries import TtlExpire
from holdfast.machine.outcomes import Claimed
from holdfast.machine.rows import CLAIMED, READY
from tests.unit.machine.machine_shard import DEAD_KEEP_MS, KEEP_MS, QUEUE, START_MS
from tests.unit.replica.small_shard import FillingKV, SmallShard, settle

KINDS = pytest.mark.parametrize(
    "kind", [{}, {"tenant": b"blue"}, {"limit_key": b"disk"}], ids=["plain", "of a tenant", "of a limit key"]
)


def age_ms(small: SmallShard) -> int:
    queue = small.machine.queue(QUEUE)
    assert queue is not None
    return small.shard.oldest_ready_age_ms(QUEUE, queue)


def pass_time(small: SmallShard, until_ms: int) -> None:
    small.time.now_ms = until_ms
    assert small.shard.now_ms() == until_ms


async def expire(small: SmallShard, claim: Claimed) -> None:
    item = ExpireItem(claim.task_id, claim.token, 0)
    await small.submit(entries.Expire(small.time.now_ms, KEEP_MS, DEAD_KEEP_MS, [item]))


@KINDS
async def test_the_oldest_task_that_comes_back_is_as_old_as_before(kind: dict[str, Any]) -> None:
    small = SmallShard()
    await small.enqueue(6, **kind)
    pass_time(small, START_MS + 3_000)
    assert age_ms(small) == 3_000
    [claim] = await small.claim()
    await small.release(claim)
    assert age_ms(small) == 3_000
    [claim] = await small.claim()
    pass_time(small, claim.expiry_ms)
    await expire(small, claim)
    assert age_ms(small) == 3_000 + 30_000, "also if its worker died with it"


@KINDS
async def test_a_task_that_joins_the_end_of_the_line_begins_anew(kind: dict[str, Any]) -> None:
    small = SmallShard()
    [task_id] = await small.enqueue(run_at_ms=small.time.now_ms + 500, **kind)
    pass_time(small, START_MS + 700)
    assert age_ms(small) == 0
    await small.submit(entries.Promote(small.time.now_ms, [task_id]))
    pass_time(small, START_MS + 740)
    assert age_ms(small) == 40


# --- After many have left without a claim ----------------------------------------------------------------------------


class CountingKV(FillingKV):
    """A state that leaves tombstones where something was, and counts those that scans walk over."""

    def __init__(self) -> None:
        super().__init__()
        self.buried: list[bytes] = []
        self.walked = 0

    def write(self, changes: Mapping[bytes, bytes | None]) -> None:
        for key, row in changes.items():
            if row is None and key[0] in (keys.READY, keys.READY_AGE):
                insort(self.buried, key)
        super().write(changes)

    def scan(self, start: bytes, stop: bytes, limit: int) -> list[tuple[bytes, bytes]]:
        found = super().scan(start, stop, limit)
        end = found[-1][0] if len(found) == limit else stop
        if limit < 1000:  # the invariants are read in pages of that
            self.walked += bisect_left(self.buried, end) - bisect_left(self.buried, start)
        return found


class PurgedShard(SmallShard):
    """A shard whose marks are kept."""

    kv: CountingKV

    def __init__(self, **settings: Any) -> None:
        super().__init__(kv=CountingKV(), **settings)
        assert self.shard._leading is not None
        self.marks = self.shard._leading.marks
        self.marks.start()

    async def purge(self, task_ids: list[bytes]) -> None:
        """As an operator does it, page by page."""
        for index in range(0, len(task_ids), PAGE):
            page = task_ids[index : index + PAGE]
            await self.submit(entries.Cancel(self.time.now_ms, KEEP_MS, page, waiting_only=True))
        await self.round()
        await self.round()

    async def ttl_expire(self, task_ids: list[bytes]) -> None:
        pass_time(self, START_MS + 50)
        for index in range(0, len(task_ids), PAGE):
            await self.submit(TtlExpire(self.time.now_ms, DEAD_KEEP_MS, b"late", task_ids[index : index + PAGE]))
        await self.round()
        await self.round()

    def walked_for_age(self) -> int:
        before = self.kv.walked
        age_ms(self)
        return self.kv.walked - before

    async def walked_for_claim(self) -> int:
        before = self.kv.walked
        assert await self.claim() != []
        return self.kv.walked - before


PAGE = 200
MANY = 2_000


@KINDS
@pytest.mark.parametrize("how", ["purge", "ttl_expire"])
async def test_what_was_purged_is_not_walked_over_at_every_look(kind: dict[str, Any], how: str) -> None:
    small = PurgedShard()
    gone = await small.enqueue(MANY, start_by_ms=START_MS + 50, **kind)
    kept = await small.enqueue(3, **kind)
    assert (await small.claim(tasks_max=1))[0].task_id == gone[0], "a window is open"
    await (small.purge(gone[1:]) if how == "purge" else small.ttl_expire(gone[1:]))
    assert small.walked_for_age() < RAISE_AT + PAGE
    assert await small.walked_for_claim() < 2 * (RAISE_AT + PAGE), "of the window that was open"
    assert age_ms(small) == small.time.now_ms - START_MS
    small.shard._leading.reserver.reset()  # type: ignore[union-attr]
    assert await small.walked_for_claim() < 2 * (RAISE_AT + PAGE), "of one that is opened anew"
    assert [small.shard.executions([task_id])[0].state for task_id in kept] == [CLAIMED, CLAIMED, READY]  # type: ignore[union-attr]
    await small.marks.stop()


@KINDS
async def test_a_queue_that_was_emptied_begins_behind_what_was(kind: dict[str, Any]) -> None:
    small = PurgedShard()
    await small.purge(await small.enqueue(MANY, **kind))
    await small.enqueue(**kind)
    assert small.walked_for_age() < RAISE_AT + PAGE
    assert await small.walked_for_claim() < 2 * (RAISE_AT + PAGE)
    await small.marks.stop()


@KINDS
@pytest.mark.parametrize("held", [1, 4096])
async def test_a_task_that_returns_while_marks_are_raised_is_not_passed_over(kind: dict[str, Any], held: int) -> None:
    """Neither by the marks nor by a window, be it one that has to read the task again."""
    small = PurgedShard(ready_window_tasks=held)
    tasks = await small.enqueue(RAISE_AT + 10, **kind)
    [claim] = await small.claim()
    assert claim.task_id == tasks[0]
    cancel = asyncio.ensure_future(
        small.shard.submit(entries.Cancel(small.time.now_ms, KEEP_MS, tasks[1 : RAISE_AT + 1]))
    )
    release = entries.Release(small.time.now_ms, KEEP_MS, [ClaimRef(claim.task_id, claim.token)])
    await small.round()
    await settle()
    assert small.shard.proposals_waiting == 1, "the marks are on their way"
    back = asyncio.ensure_future(small.shard.submit(release))
    await small.round()  # behind client traffic: the task is back before they are raised
    await small.round()
    await asyncio.gather(cancel, back)
    [claim] = await small.claim()
    assert claim.task_id == tasks[0]
    await small.marks.stop()
