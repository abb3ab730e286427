"""Budgets are exact, and a task whose budget is spent waits for a person."""

import time

import pytest

from holdfast.client import (
    AsyncClient,
    ClaimedTask,
    DeadLetterProgress,
    NewTask,
    NotDead,
    NotFound,
    TaskError,
    TaskState,
)

LONG_LEASE_MS = 600_000


async def claim_one(client: AsyncClient, queue: str) -> ClaimedTask:
    [claim] = await client.reserve([queue], wait_ms=20_000, lease_ms=LONG_LEASE_MS)
    return claim


async def kill_task(client: AsyncClient, queue: str, **options: int) -> str:
    """A task that a worker gives up at once."""
    accepted = await client.enqueue(NewTask(queue, "t", b"body", **options))  # type: ignore[arg-type]
    await client.fail(await claim_one(client, queue), TaskError("Broken", "cannot work"), dead=True)
    return accepted.task_id


async def test_a_task_is_dead_after_exactly_its_attempts(client: AsyncClient, queue: str) -> None:
    accepted = await client.enqueue(NewTask(queue, "t", b"body", headers={"h": "v"}, max_attempts=3))
    for attempt, expected in ((1, TaskState.RETRY_PENDING), (2, TaskState.RETRY_PENDING), (3, TaskState.DEAD)):
        claim = await claim_one(client, queue)
        assert claim.attempt == attempt
        failed = await client.fail(claim, TaskError("Boom", f"attempt {attempt}", "at line 1"), retry_delay_ms=0)
        assert failed.state is expected
    assert await client.reserve([queue], wait_ms=200) == []

    letter = await client.get_dead_letter(accepted.task_id)
    assert (letter.state, letter.failures, letter.max_attempts, letter.claims) == (TaskState.DEAD, 3, 3, 3)
    assert letter.task is not None
    assert (letter.task.payload, letter.task.headers) == (b"body", {"h": "v"})
    assert letter.last_error == TaskError("Boom", "attempt 3", "at line 1")
    assert letter.dead_reason == "ATTEMPTS_SPENT"
    stats = await client.queue_stats(queue)
    assert (stats.dead, stats.dead_total, stats.failed_total, stats.retrying, stats.ready) == (1, 1, 3, 0, 0)


async def test_one_attempt_means_one(client: AsyncClient, queue: str) -> None:
    await client.enqueue(NewTask(queue, "t", max_attempts=1))
    assert (await client.fail(await claim_one(client, queue))).state is TaskState.DEAD


async def test_a_retried_letter_has_fresh_budgets(client: AsyncClient, queue: str) -> None:
    accepted = await client.enqueue(NewTask(queue, "t", b"body", max_attempts=2))
    for _ in range(2):
        await client.fail(await claim_one(client, queue), retry_delay_ms=0)
    await client.retry_dead_letter(accepted.task_id)
    info = await client.get_task(accepted.task_id)
    assert (info.state, info.failures, info.claims, info.dead_reason) == (TaskState.READY, 0, 0, "")

    for attempt, expected in ((1, TaskState.RETRY_PENDING), (2, TaskState.DEAD)):
        claim = await claim_one(client, queue)
        assert (claim.task_id, claim.attempt, claim.payload) == (accepted.task_id, attempt, b"body")
        assert (await client.fail(claim, retry_delay_ms=0)).state is expected
    await client.retry_dead_letter(accepted.task_id)
    await client.ack(await claim_one(client, queue))
    assert (await client.get_task(accepted.task_id)).state is TaskState.SUCCEEDED


async def test_a_discarded_letter_is_gone(client: AsyncClient, queue: str) -> None:
    task_id = await kill_task(client, queue)
    await client.discard_dead_letter(task_id)
    for poll in (client.get_task(task_id), client.get_dead_letter(task_id)):
        with pytest.raises(NotFound):
            await poll
    assert (await client.list_dead_letters(queue)).tasks == ()
    [again] = await client.discard_dead_letters([task_id])
    assert isinstance(again, NotFound)
    stats = await client.queue_stats(queue)
    assert (stats.dead, stats.dead_total) == (0, 1)


async def test_letters_are_listed_oldest_first_in_pages(client: AsyncClient, queue: str) -> None:
    task_ids = [await kill_task(client, queue) for _ in range(5)]
    await kill_task(client, f"{queue}.other")
    seen: list[str] = []
    token = ""
    while True:
        page = await client.list_dead_letters(queue, page_size=2, page_token=token)
        assert len(page.tasks) <= 2
        assert all(letter.task is None or letter.task.payload == b"" for letter in page.tasks)
        assert all(letter.dead_reason == "WORKER_GAVE_UP" for letter in page.tasks)
        seen += [letter.task_id for letter in page.tasks]
        token = page.next_page_token
        if len(seen) == 2:
            # A letter that leaves between two pages shifts nothing.
            await client.discard_dead_letter(task_ids[0])
        if not token:
            break
    assert seen == task_ids


async def test_only_dead_tasks_are_dead_letters(client: AsyncClient, queue: str) -> None:
    living = await client.enqueue(NewTask(queue, "t"))
    dead_id = await kill_task(client, f"{queue}.dead")
    with pytest.raises(NotDead):
        await client.get_dead_letter(living.task_id)
    for call in (client.retry_dead_letters, client.discard_dead_letters):
        refused, done = await call([living.task_id, dead_id])
        assert isinstance(refused, NotDead)
        assert not isinstance(done, NotDead)
        if call == client.retry_dead_letters:
            await client.fail(await claim_one(client, f"{queue}.dead"), dead=True)
    assert (await client.get_task(living.task_id)).state is TaskState.READY


async def test_a_task_that_kills_its_workers_is_dead_after_exactly_its_claims(client: AsyncClient, queue: str) -> None:
    accepted = await client.enqueue(NewTask(queue, "poison", max_claims=2))
    for worker, claims, alone in (("first", 1, False), ("second", 1, True), ("third", 2, True)):
        # A worker that never answers: its lease ends, and the task is handed out once more or never again. The first
        # claim is not counted: the worker may have held other tasks, too.
        [claim] = await client.reserve([queue], wait_ms=20_000, lease_ms=1000, worker=worker)
        assert (claim.claims, claim.attempt, claim.alone) == (claims, 1, alone)
    assert await client.reserve([queue], wait_ms=1500) == []
    await client.wait_task(accepted.task_id, timeout_s=20)
    assert await client.reserve([queue]) == []
    letter = await client.get_dead_letter(accepted.task_id)
    assert (letter.claims, letter.max_claims, letter.failures, letter.dead_reason) == (2, 2, 0, "CLAIMS_SPENT")
    assert letter.last_error is not None
    assert "worker third" in letter.last_error.message
    assert (await client.queue_stats(queue)).expired_total == 3
    await client.retry_dead_letter(accepted.task_id)
    await client.ack(await claim_one(client, queue))


async def test_a_released_claim_spends_nothing(client: AsyncClient, queue: str) -> None:
    await client.enqueue(NewTask(queue, "t", max_claims=1, max_attempts=1))
    for _ in range(3):
        claim = await claim_one(client, queue)
        assert (claim.claims, claim.attempt) == (1, 1)
        await client.release(claim)
    await client.ack(await claim_one(client, queue))


async def test_the_back_off_grows_with_each_failure(client: AsyncClient, queue: str) -> None:
    """1 s and 2 s, each with a fifth of jitter either way; the second is read and not waited for."""
    await client.enqueue(NewTask(queue, "t"))
    for plain_ms in (1000, 2000):
        claim = await claim_one(client, queue)
        failed = await client.fail(claim)
        # When it failed is told by its attempts: the task itself may be ready again by now.
        [*_, attempt] = (await client.get_task(claim.task_id)).attempts
        assert failed.retry_at_ms is not None
        assert 0.8 * plain_ms <= failed.retry_at_ms - attempt.ended_at_ms <= 1.2 * plain_ms


def client_clock_off_by(monkeypatch: pytest.MonkeyPatch, seconds: int) -> None:
    """The server is another process, and keeps the right time."""
    true_ns = time.time_ns
    monkeypatch.setattr(time, "time_ns", lambda: true_ns() + seconds * 1_000_000_000)


@pytest.mark.parametrize("seconds", [-60, 60])
async def test_a_wrong_clock_of_the_caller_does_not_decide_which_letters_are_meant(
    client: AsyncClient, queue: str, monkeypatch: pytest.MonkeyPatch, seconds: int
) -> None:
    for _ in range(5):
        await kill_task(client, queue)
    client_clock_off_by(monkeypatch, seconds)
    assert (await client.retry_dead_letters_where(queue, dry_run=True, batch_size=2)).found == 5
    assert (await client.discard_dead_letters_where(queue, batch_size=2)).done == 5


async def test_letters_that_die_again_meanwhile_are_left_alone(
    client: AsyncClient, queue: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever was retried is dead again before the next page is read."""
    ids = [await kill_task(client, queue) for _ in range(5)]
    client_clock_off_by(monkeypatch, 60)
    listed: list[str] = []
    list_dead_letters = client.list_dead_letters

    async def kill_and_list(*args: object, **options: object) -> object:
        for claim in await client.reserve([queue], max_tasks=10):
            await client.fail(claim, dead=True)
        page = await list_dead_letters(*args, **options)  # type: ignore[arg-type]
        listed.extend(letter.task_id for letter in page.tasks)
        return page

    monkeypatch.setattr(client, "list_dead_letters", kill_and_list)
    reported = await client.retry_dead_letters_where(queue, batch_size=2)
    assert reported == DeadLetterProgress(found=5, done=5)
    assert listed == ids
