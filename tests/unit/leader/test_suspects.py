"""Who is given suspects: workers that hold nothing, in turns with other tasks; where none does, one runs dry."""

import asyncio
from typing import Any

from holdfast.broker.leader.ready_waiters import AwaitWanted
from holdfast.broker.leader.reserver import ReserveWanted
from holdfast.broker.leader.suspects import (
    PATIENCE_MS,
    PATIENCE_MS_MAX,
    RUN_DRY_MS,
    SUSPECTS_PER_WORKER,
    DryRuns,
    Hands,
    RunDry,
    busy_line,
    suspects_line,
)
from holdfast.machine import entries
from holdfast.machine.entries import ExpireItem, ExtendItem
from holdfast.machine.outcomes import Claimed
from holdfast.serving.refusals import WORKER_AT_LIMIT
from tests.unit.machine.machine_shard import DEAD_KEEP_MS, KEEP_MS, QUEUE
from tests.unit.replica.small_shard import SmallShard, refusal, settle

OTHER = b"other"


async def die(small: SmallShard, *claims: Claimed) -> None:
    """The worker that has them falls silent."""
    now_ms = small.time.now_ms
    await small.submit(entries.Extend(now_ms, [ExtendItem(claim.task_id, claim.token, now_ms) for claim in claims]))
    items = [ExpireItem(claim.task_id, claim.token, 0) for claim in claims]
    await small.submit(entries.Expire(now_ms, KEEP_MS, DEAD_KEEP_MS, items))


async def make_suspects(small: SmallShard, count: int = 1, **changes: Any) -> list[bytes]:
    task_ids = await small.enqueue(count, **changes)
    claims = await small.claim(changes.get("queue", QUEUE), tasks_max=count, worker=b"dies")
    assert [claim.task_id for claim in claims] == task_ids
    await die(small, *claims)
    return task_ids


def wanted(worker: bytes, *, empty_handed: bool | None = None, wait_ms: int = 0, **more: Any) -> ReserveWanted:
    return ReserveWanted([QUEUE], 10, 30_000, wait_ms, worker, b"", empty_handed=empty_handed, **more)


async def ask(small: SmallShard, worker: bytes, **more: Any) -> list[bytes] | RunDry:
    """What a call is given: ids, or that it should run dry."""
    got = await small.rounds_until(small.shard.reserve(wanted(worker, **more)))
    if isinstance(got, RunDry):
        return got
    assert all(claim.is_alone for claim in got) or not any(claim.is_alone for claim in got)
    return [claim.task_id for claim in got]


async def test_suspects_are_handed_out_one_at_a_time(small: SmallShard) -> None:
    suspects = await make_suspects(small, 3)
    for number, suspect in enumerate(suspects):
        assert await ask(small, b"w%d" % number, empty_handed=True) == [suspect]
    assert await ask(small, b"w9", empty_handed=True) == []


async def test_who_holds_something_is_given_no_suspect(small: SmallShard) -> None:
    [suspect] = await make_suspects(small)
    plain = await small.enqueue(2)
    assert await ask(small, b"", empty_handed=False) == plain, "without a name it cannot be asked to run dry"
    assert await ask(small, b"raw") == [suspect], "as far as this shard knows it holds nothing"
    await small.enqueue(1)
    assert await refusal(small.reserve(worker=b"raw")) == WORKER_AT_LIMIT, "and nothing else until it is settled"


async def test_a_worker_that_holds_something_here_is_known_to(small: SmallShard) -> None:
    plain = await small.enqueue(1)
    assert await ask(small, b"raw") == plain
    [suspect] = await make_suspects(small)
    assert await ask(small, b"raw") == []
    assert await ask(small, b"raw", empty_handed=True) == [suspect], "it is its own word that counts"


async def test_suspects_and_others_take_turns(small: SmallShard) -> None:
    suspects = await make_suspects(small, 2)
    first, second = await small.enqueue(2)
    turns = [await ask(small, b"w%d" % number, empty_handed=True) for number in range(3)]
    assert turns == [[suspects[0]], [first, second], [suspects[1]]]
    plain = await small.enqueue(1)
    assert await ask(small, b"w3", empty_handed=True, suspects_only=True) == []
    assert await ask(small, b"w3", empty_handed=True) == plain


async def test_a_worker_that_waits_and_holds_nothing_has_it_at_once(small: SmallShard) -> None:
    busy, idle = (
        asyncio.ensure_future(small.shard.reserve(wanted(worker, empty_handed=empty, wait_ms=60_000)))
        for worker, empty in ((b"busy", False), (b"idle", True))
    )
    await settle()
    [task_id] = await small.enqueue(1, queue=OTHER)
    claims = await small.claim(OTHER, worker=b"dies")
    await die(small, *claims)
    assert not busy.done() and not idle.done(), "it is of another queue"  # noqa: PT018
    call = asyncio.ensure_future(
        small.shard.reserve(ReserveWanted([OTHER], 1, 30_000, 60_000, b"third", b"", empty_handed=True))
    )
    await small.round()
    got = await call
    assert isinstance(got, list)
    assert [claim.task_id for claim in got] == [task_id]
    for waiting in (busy, idle):
        waiting.cancel()


async def test_where_all_are_busy_one_is_asked_to_run_dry(small: SmallShard) -> None:
    waiting = [
        asyncio.ensure_future(small.shard.reserve(wanted(b"busy%d" % number, empty_handed=False, wait_ms=60_000)))
        for number in range(2)
    ]
    await settle()
    await small.enqueue(1)
    await small.round()
    claims = await waiting[0]  # the only one that is left to die with it
    assert isinstance(claims, list)
    again = asyncio.ensure_future(small.shard.reserve(wanted(b"busy0", empty_handed=False, wait_ms=60_000)))
    await settle()
    await die(small, *claims)
    await small.round()
    assert waiting[1].done()
    assert await waiting[1] == RunDry()
    assert not again.done(), "one is enough"
    assert await ask(small, b"busy2", empty_handed=False) == []
    assert await ask(small, b"busy1", empty_handed=False) == RunDry(), "it asks whether it still need"
    assert await ask(small, b"busy1", empty_handed=True, suspects_only=True) == [claims[0].task_id]
    assert await ask(small, b"busy2", empty_handed=False) == []
    again.cancel()


async def test_what_is_on_its_way_or_claimed_waits_no_more(small: SmallShard) -> None:
    blocked, free = await make_suspects(small, 2)
    window = small.leadership.reserver.scheduler
    assert window.open_suspects(QUEUE) == 2
    assert await ask(small, b"w", empty_handed=True) == [blocked]
    assert window.open_suspects(QUEUE) == 1
    assert await ask(small, b"v", empty_handed=True) == [free]
    assert window.open_suspects(QUEUE) == 0


async def test_a_call_that_waits_to_claim_is_told_of_suspects(small: SmallShard) -> None:
    async def reported(**more: Any) -> int:
        return (await small.shard.await_tasks(AwaitWanted([QUEUE], 0, b"w", b"", **more))).tasks

    assert await reported(empty_handed=True) == 0
    await make_suspects(small)
    assert await reported(empty_handed=True) == 1
    assert await reported(empty_handed=True, suspects_only=True) == 1
    assert await reported(empty_handed=False) == 1, "it may be asked to run dry"
    assert await ask(small, b"w", empty_handed=False) == RunDry()
    await asyncio.sleep(0.06)  # what was offered is offered again
    assert await reported(empty_handed=False) == 0
    assert await reported() == 1, "a router asks so, for all its callers"


def test_lines() -> None:
    assert Hands(may_take_suspects=True, may_run_dry=False).lines([b"a"]) == [b"a", suspects_line(b"a")]
    assert Hands(may_take_suspects=False, may_run_dry=True).lines([b"a"]) == [b"a", busy_line(b"a")]
    assert Hands(True, False, suspects_only=True).lines([b"a", b"b"]) == [suspects_line(b"a"), suspects_line(b"b")]


def test_one_runs_dry_and_more_only_where_many_suspects_wait() -> None:
    runs = DryRuns()
    assert [runs.ask(b"w%d" % number, 1, 0) for number in range(3)] == [True, False, False]
    many = 2 * SUSPECTS_PER_WORKER + 1
    assert [runs.ask(b"w%d" % number, many, 0) for number in range(4)] == [True, True, True, False]


def test_a_worker_that_is_not_heard_of_any_more_is_not_counted_on() -> None:
    runs = DryRuns()
    assert runs.ask(b"dies", 1, 0)
    assert not runs.ask(b"next", 1, 2 * RUN_DRY_MS)
    assert runs.ask(b"next", 1, 3 * RUN_DRY_MS)


def test_a_worker_whose_handlers_do_not_end_is_let_go_and_the_next_has_longer() -> None:
    runs, now_ms, patience_ms = DryRuns(), 0, PATIENCE_MS
    for number in range(30):
        worker = b"w%d" % number
        began_ms = now_ms
        while runs.ask(worker, 1, now_ms):
            now_ms += RUN_DRY_MS
        assert 0 <= now_ms - began_ms - patience_ms < RUN_DRY_MS
        patience_ms = min(2 * patience_ms, PATIENCE_MS_MAX)
        if patience_ms >= PATIENCE_MS * 64:
            break
    assert runs.ask(b"last", 1, now_ms)
    runs.came(b"last")
    assert runs.ask(b"w", 1, now_ms)
    assert not runs.ask(b"w", 1, now_ms + PATIENCE_MS), "all is as at first"
