"""Leadership won and lost: who is told what, nobody is told twice, and what is in the log is applied once."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any

import pytest

from holdfast.broker.replica import shard
from holdfast.machine import entries
from holdfast.machine.entries import FailItem, LeaderStarted
from holdfast.machine.invariants import violations
from holdfast.machine.outcomes import Accepted, Claimed
from holdfast.machine.rows import CLAIMED, READY, WORKER_GAVE_UP
from holdfast.proto.v1.cluster_pb2 import QueuePolicy
from holdfast.serving.refusals import NOT_LEADER, OVERLOADED, SHUTTING_DOWN, OutcomeUnknownError, RefusedError
from tests.unit.machine.machine_shard import KEEP_MS, QUEUE, new_task
from tests.unit.replica.small_shard import SmallShard, settle


class Replica(SmallShard):
    """A shard in a group of several, that leads in the terms that a test gives it."""

    def stage(self) -> None:
        """What waits goes into the log and on its way to the others; whether they take it is not known."""
        self.shard.stage()

    def lose(self, term: int) -> None:
        self.log.term, self.log.serves, self.log.accepts = term, False, False
        self.follow_role()

    def win(self, term: int) -> None:
        self.log.term, self.log.serves, self.log.accepts = term, True, True
        self.follow_role()

    async def commit(self) -> None:
        """What is in the log turns out to be on a majority."""
        self.log.flushed()
        while not await self.shard.apply_committed():
            pass  # a turn ends with its time, which a busy machine may take
        await settle()
        assert violations(self.kv) == []

    async def stop(self) -> None:
        await self.shard.stop()

    def submit_enqueue(self, count: int = 1, **changes: Any) -> "asyncio.Task[Any]":
        entry = entries.Enqueue(self.time.now_ms, [new_task(**changes)] * count)
        return asyncio.ensure_future(self.shard.submit(entry))

    def serves(self) -> bool:
        return self.shard.serves

    def enqueued(self) -> int:
        queue = self.shard.queue(QUEUE)
        return 0 if queue is None else queue.enqueued_total


@pytest.fixture
async def replica() -> AsyncIterator[Replica]:
    replica = Replica()
    yield replica
    await replica.stop()


async def refused(work: "Coroutine[Any, Any, Any] | asyncio.Task[Any]") -> RefusedError:
    task = asyncio.ensure_future(work)
    await settle()
    assert task.done(), "it was left waiting"
    with pytest.raises(RefusedError) as refusal:
        await task
    return refusal.value


async def test_what_is_in_the_log_is_unknown_and_what_waits_was_not_begun(replica: Replica) -> None:
    in_flight = replica.submit_enqueue()
    await settle()
    replica.stage()
    queued = replica.submit_enqueue()
    await settle()
    replica.lose(term=2)
    with pytest.raises(OutcomeUnknownError):
        await in_flight
    refusal = await refused(queued)
    assert refusal.reason == NOT_LEADER
    assert refusal.metadata == {"shard": "0", "epoch": "2", "leader": "elsewhere:1"}
    assert replica.shard.proposals_waiting == 0
    assert not replica.shard.has_work


async def test_writes_that_wait_for_a_majority_are_bounded() -> None:
    replica = Replica(proposals_max=4)
    in_flight = []
    for _ in range(4):  # each in a round of its own, and nobody commits
        in_flight.append(replica.submit_enqueue())
        await settle()
        replica.stage()
    refusal = await refused(replica.submit_enqueue())
    assert (refusal.reason, refusal.limit) == (OVERLOADED, "4")
    chore = asyncio.ensure_future(replica.shard.submit_housekeeping(entries.Purge(replica.time.now_ms, [])))
    await settle()
    replica.stage()
    await replica.commit()
    assert chore.done(), "what the node does by itself is not held up"
    assert all(call.done() for call in in_flight)
    await replica.submit(entries.Enqueue(replica.time.now_ms, [new_task()]))
    assert replica.enqueued() == 5


@pytest.mark.parametrize("is_behind", [False, True])
async def test_housekeeping_is_left_for_callers_but_not_before_others_who_wait_behind_it(
    replica: Replica, monkeypatch: pytest.MonkeyPatch, is_behind: bool
) -> None:
    monkeypatch.setattr(shard, "APPLY_SECONDS_MAX", float("inf"))  # a turn does not end because the machine is busy
    chore = asyncio.ensure_future(replica.shard.submit_housekeeping(entries.Purge(replica.time.now_ms, [])))
    await settle()
    replica.stage()
    if is_behind:
        durable = replica.submit_enqueue()
        await settle()
        replica.stage()
    waiting = replica.submit_enqueue()
    await settle()
    replica.log.flushed()
    is_all_applied = await replica.shard.apply_committed(callers_first=True)
    await settle()
    assert is_all_applied == chore.done() == is_behind
    assert replica.enqueued() == is_behind
    assert not waiting.done()
    if is_behind:
        assert durable.done()
    replica.log.take_again(replica.shard.applied_index)
    await replica.round()
    assert chore.done()
    assert waiting.done()


async def test_bytes_that_wait_for_a_majority_are_bounded() -> None:
    replica = Replica(proposals_bytes_max=2000)
    in_flight = replica.submit_enqueue(envelope=bytes(2000))
    await settle()
    replica.stage()
    assert (await refused(replica.submit_enqueue())).reason == OVERLOADED
    await replica.commit()
    await in_flight
    await replica.submit(entries.Enqueue(replica.time.now_ms, [new_task()]))


async def test_who_leads_again_has_room_again() -> None:
    replica = Replica(proposals_max=2)
    in_flight = [replica.submit_enqueue() for _ in range(2)]
    await settle()
    replica.stage()
    replica.lose(term=2)
    for call in in_flight:
        with pytest.raises(OutcomeUnknownError):
            await call
    replica.log.aborted()
    replica.win(term=3)
    await replica.round()
    calls = [replica.submit_enqueue() for _ in range(2)]
    await settle()
    assert (await refused(replica.submit_enqueue())).reason == OVERLOADED
    await replica.round_without_room()
    assert all(call.exception() for call in calls)
    await replica.enqueue()
    await replica.stop()


async def test_an_entry_that_another_leader_commits_is_applied_once_and_answered_no_more(replica: Replica) -> None:
    in_flight = replica.submit_enqueue(3)
    await settle()
    replica.stage()
    replica.lose(term=2)
    await settle()
    await replica.commit()
    assert replica.enqueued() == 3
    with pytest.raises(OutcomeUnknownError):
        await in_flight
    replica.win(term=3)
    await replica.round()
    assert replica.enqueued() == 3
    assert len(await replica.claim(tasks_max=10)) == 3


async def test_an_entry_that_another_leader_cuts_is_not_applied(replica: Replica) -> None:
    """Another one is in its place, and must not be taken for it."""
    in_flight = replica.submit_enqueue(3)
    await settle()
    replica.stage()
    replica.lose(term=2)
    replica.log.aborted()
    replica.log.propose(entries.encode(entries.Enqueue(replica.time.now_ms, [new_task()])))
    await replica.commit()
    assert replica.enqueued() == 1
    with pytest.raises(OutcomeUnknownError):
        await in_flight


class Told:
    """Other systems, and what they were told."""

    def __init__(self) -> None:
        self.messages: list[dict[str, Any]] = []
        self.hears = False

    def post(self, _url: str, message: dict[str, Any], _on_end: Callable[[bool], None]) -> None:
        if self.hears:
            self.messages.append(message)


async def test_an_alert_that_is_lost_with_its_leader_is_told_by_the_next_one_at_once() -> None:
    """It does not wait for another dead letter, which may never come, nor for its first sample."""
    reported = Told()
    replica = Replica(notifier=reported)
    policy = QueuePolicy(dead_alert_at=1, dead_alert_url="https://hooks.example/").SerializeToString()
    now_ms = replica.time.now_ms
    await replica.submit(entries.SetQueue(now_ms, QUEUE, 1, policy))
    await replica.enqueue()
    [claim] = await replica.claim()
    item = FailItem(claim.task_id, claim.token, 0, WORKER_GAVE_UP, b"error")
    await replica.submit(entries.Fail(now_ms, KEEP_MS, KEEP_MS, [item]))
    replica.lose(term=2)
    reported.hears = True
    replica.win(term=3)
    assert reported.messages == [], "it may not serve before its first entry is applied: it may not know all"
    await replica.round()
    assert [(message["queue"], message["dead"]) for message in reported.messages] == [(QUEUE.decode(), 1)]


async def test_leadership_lost_and_won_between_two_rounds_is_not_the_same_leadership(replica: Replica) -> None:
    """What was staged in the old term may have been cut meanwhile."""
    in_flight, waiting = replica.submit_enqueue(), replica.reserve(b"other")
    await settle()
    replica.stage()
    replica.log.aborted()
    replica.win(term=3)
    with pytest.raises(OutcomeUnknownError):
        await in_flight
    assert (await refused(waiting)).reason == NOT_LEADER
    assert not replica.serves(), "its first entry is not applied yet"
    await replica.round()
    assert replica.serves()
    assert replica.enqueued() == 0


async def test_everyone_who_waits_is_sent_to_the_leader(replica: Replica) -> None:
    [task_id] = await replica.enqueue(queue=b"kept")
    reserve = replica.reserve(b"empty")
    repeated = replica.reserve(b"empty", request_id=b"r")
    watching = asyncio.ensure_future(replica.shard.wait_finished([task_id], 60_000))
    await settle()
    assert (replica.shard.waiters, replica.shard.watched_tasks) == (2, 1)
    replica.lose(term=2)
    for call in (reserve, repeated, watching):
        refusal = await refused(call)
        assert (refusal.reason, refusal.metadata["epoch"]) == (NOT_LEADER, "2")
    assert (replica.shard.waiters, replica.shard.watched_tasks) == (0, 0)


async def test_reads_that_wait_for_proof_are_sent_to_the_leader(
    replica: Replica, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replica.log, "is_alone", False, raising=False)
    monkeypatch.setattr(replica.log, "may_read", lambda _number: False)
    asked = asyncio.ensure_future(replica.shard.read_barrier())
    await settle()
    replica.stage()
    coming = asyncio.ensure_future(replica.shard.read_barrier())
    await settle()
    replica.stage()
    assert not asked.done()
    assert not coming.done()
    replica.lose(term=2)
    assert (await refused(asked)).reason == NOT_LEADER
    assert (await refused(coming)).reason == NOT_LEADER


async def test_a_follower_answers_nothing_by_itself(replica: Replica) -> None:
    replica.lose(term=2)
    calls: list[Coroutine[Any, Any, Any]] = [
        replica.shard.submit(entries.Enqueue(replica.time.now_ms, [new_task()])),
        replica.shard.wait_finished([b"x"], 0),
        replica.shard.read_barrier(),
    ]
    for call in calls:
        assert (await refused(call)).reason == NOT_LEADER
    assert (await refused(replica.reserve())).reason == NOT_LEADER
    with pytest.raises(RefusedError):
        replica.shard.now_ms()
    assert (replica.shard.time_ms(), replica.shard.clock, replica.serves()) == (0, None, False)
    assert not await replica.shard.follow_clock()
    replica.shard.serve_all_waiters()
    assert replica.shard.waiting_for(QUEUE) == 0


async def test_it_serves_once_an_entry_of_its_own_is_applied(replica: Replica) -> None:
    replica.lose(term=2)
    replica.win(term=3)
    assert not replica.serves()
    assert (await refused(replica.reserve())).reason == NOT_LEADER
    replica.stage()
    assert (await refused(replica.reserve())).reason == NOT_LEADER, "it is not on a majority yet"
    await replica.commit()
    assert replica.serves()
    assert replica.shard.time_ms() == replica.time.now_ms
    assert replica.said == [False, True]
    assert await replica.enqueue()


async def test_leadership_lost_before_it_began_is_not_talked_about(replica: Replica) -> None:
    replica.lose(term=2)
    replica.win(term=3)
    replica.stage()
    replica.lose(term=4)
    await replica.commit()
    assert replica.said == [False], "of the first one"
    assert replica.shard._leading is None
    assert not replica.serves()


async def test_a_first_entry_of_an_old_term_does_not_open_a_new_one(replica: Replica) -> None:
    """It is committed together with the new leader's, but before it."""
    replica.lose(term=2)
    replica.win(term=3)
    replica.stage()
    replica.win(term=5)
    await replica.commit()
    assert not replica.serves()
    await replica.round()
    assert replica.serves()


async def test_a_claim_in_flight_that_was_committed_holds_and_its_repeat_finds_it(replica: Replica) -> None:
    [task_id] = await replica.enqueue()
    claim = replica.reserve(request_id=b"r")
    await settle()
    replica.stage()
    replica.lose(term=2)
    with pytest.raises(OutcomeUnknownError):
        await claim
    await replica.commit()
    replica.win(term=3)
    await replica.round()
    [execution] = replica.shard.executions([task_id])
    assert execution is not None
    assert execution.state == CLAIMED
    assert await replica.claim(worker=b"another") == [], "nobody else gets it"
    [again] = await replica.claim(request_id=b"r")
    assert again.task_id == task_id
    assert not isinstance(await replica.ack(again), RefusedError)


async def test_a_claim_in_flight_that_was_cut_is_handed_out_again(replica: Replica) -> None:
    """The scheduler begins afresh: what it had set aside is not lost."""
    [task_id] = await replica.enqueue()
    claim = replica.reserve()
    await settle()
    replica.stage()
    replica.lose(term=2)
    replica.log.aborted()
    with pytest.raises(OutcomeUnknownError):
        await claim
    replica.win(term=3)
    await replica.round()
    [execution] = replica.shard.executions([task_id])
    assert execution is not None
    assert execution.state == READY
    [again] = await replica.claim()
    assert isinstance(again, Claimed)
    assert again.task_id == task_id


async def test_a_repeated_enqueue_is_one_task_whoever_committed_the_first(replica: Replica) -> None:
    in_flight = replica.submit_enqueue(request_id=b"once")
    await settle()
    replica.stage()
    replica.lose(term=2)
    with pytest.raises(OutcomeUnknownError):
        await in_flight
    await replica.commit()
    replica.win(term=3)
    await replica.round()
    [outcome] = await replica.submit(entries.Enqueue(replica.time.now_ms, [new_task(request_id=b"once")]))
    assert isinstance(outcome, Accepted)
    assert outcome.duplicate
    assert replica.enqueued() == 1


async def test_while_handing_over_nothing_new_goes_into_the_log(replica: Replica) -> None:
    """It waits, and is refused when the other leads: it was not begun."""
    replica.log.accepts = False
    call = replica.submit_enqueue()
    await settle()
    replica.stage()
    assert (call.done(), replica.shard.has_work) == (False, False)
    replica.lose(term=2)
    assert (await refused(call)).reason == NOT_LEADER
    await replica.commit()
    assert replica.enqueued() == 0


async def test_a_hand_over_that_came_to_nothing_goes_on(replica: Replica) -> None:
    replica.log.accepts = False
    call = replica.submit_enqueue()
    await settle()
    replica.stage()
    replica.log.accepts = True
    await replica.round()
    [outcome] = await call
    assert isinstance(outcome, Accepted)


async def test_who_is_about_to_stop_does_not_begin_to_lead(replica: Replica) -> None:
    replica.lose(term=2)
    replica.shard.drain()
    replica.win(term=3)
    await replica.round()
    assert not replica.serves()
    entry = entries.Enqueue(replica.time.now_ms, [new_task()])
    assert (await refused(replica.shard.submit(entry))).reason == SHUTTING_DOWN


async def test_housekeeping_ends_with_its_leadership(replica: Replica) -> None:
    replica.lose(term=2)
    replica.win(term=3)
    await replica.round()
    assert replica.shard._leading is not None
    old = replica.shard._leading.housekeeping
    moving = asyncio.ensure_future(replica.shard.submit_housekeeping(LeaderStarted(replica.time.now_ms, False)))
    await settle()
    replica.lose(term=4)
    assert (await refused(moving)).reason == NOT_LEADER
    await settle()
    assert old.failed() is None
    assert replica.shard.failed() is None
