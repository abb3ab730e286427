"""Queues with a policy of their own: what a leader decides by it, and that it decides as before without one."""

import asyncio
from typing import Any

import pytest

from holdfast.broker.api.tasks import TaskService
from holdfast.broker.policy.policies import Limits, Policies, default_policy, parse_policy
from holdfast.machine import entries, keys, rows
from holdfast.machine.ids import parse_task_id
from holdfast.machine.invariants import violations
from holdfast.machine.outcomes import Claimed
from holdfast.machine.rows import CANCELLED, DEAD, RETRY_PENDING, SUCCEEDED
from holdfast.proto.v1 import tasks_pb2 as pb
from holdfast.proto.v1.cluster_pb2 import QueuePolicy as PolicyMessage
from holdfast.proto.v1.cluster_pb2 import TenantPolicy
from holdfast.serving.refusals import CHANGE_REFUSED, NOT_LEADER, OutcomeUnknownError, RefusedError
from tests.unit.machine.machine_shard import QUEUE
from tests.unit.policy.own_policy import CONFIG, HOUR_MS, OWN, PLAIN
from tests.unit.replica.small_shard import SmallShard, claim_ref, settle

OTHER = b"other"


@pytest.fixture
async def small() -> SmallShard:
    return SmallShard()


async def test_a_policy_is_read_once_and_again_after_a_change(small: SmallShard) -> None:
    policies = Policies(small.machine.reader, CONFIG)
    assert policies.of(QUEUE) is policies.default
    small.kv.write(
        {keys.settings(QUEUE): rows.SettingsRow(1, PolicyMessage(max_attempts=4).SerializeToString()).encode()}
    )
    assert policies.of(QUEUE) is policies.default, "nobody looks before a change is told"
    assert policies.is_empty
    policies.changed([QUEUE])
    assert policies.of(QUEUE).max_attempts == 4
    assert policies.of(QUEUE) is policies.of(QUEUE)
    assert policies.of(OTHER) is policies.default
    assert not Policies(small.machine.reader, CONFIG).is_empty, "a new leader finds what is there"


async def test_what_the_map_expects_is_waited_for(small: SmallShard) -> None:
    """A shard that has just got a queue hands nothing out before it knows under which limits."""
    policies = Policies(small.machine.reader, CONFIG, is_expected=lambda queue: queue == QUEUE)
    assert policies.to_claim(QUEUE).paused
    assert not policies.of(QUEUE).paused
    assert not policies.to_claim(OTHER).paused
    small.kv.write(
        {keys.settings(QUEUE): rows.SettingsRow(1, PolicyMessage(max_attempts=4).SerializeToString()).encode()}
    )
    policies.changed([QUEUE])
    assert not policies.to_claim(QUEUE).paused


def test_which_changes_are_changes_of_rates() -> None:
    def limits(**policy: Any) -> Limits:
        return parse_policy(PolicyMessage(**policy).SerializeToString(), default_policy(CONFIG), 1).limits

    none, slow, fast = limits(), limits(rate_per_second=1), limits(rate_per_second=2)
    assert [none.changes_rates(slow), slow.changes_rates(slow), limits(concurrency_max=1).changes_rates(slow)] == [
        False
    ] * 3
    assert [slow.changes_rates(fast), slow.changes_rates(none)] == [True] * 2
    own = limits(tenant_rate_per_second=1, tenants=[TenantPolicy(tenant="a", rate_per_second=5)])
    assert own.changes_rates(limits(tenant_rate_per_second=1))
    assert limits(tenant_rate_per_second=1).changes_rates(own)


# --- the log ----------------------------------------------------------------------------------------------------------


def policies_of(small: SmallShard) -> Policies | None:
    return small.shard.policies


def attempts_of(small: SmallShard, queue: bytes = QUEUE) -> int:
    """As new tasks of the queue get them."""
    policies = policies_of(small)
    return PLAIN.max_attempts if policies is None else policies.of(queue).max_attempts


async def set_queue(small: SmallShard, queue: bytes = QUEUE, version: int = 1, **fields: Any) -> bool:
    return await small.rounds_until(small.shard.set_queue(queue, version, PolicyMessage(**fields).SerializeToString()))


async def test_settings_go_into_the_log_only_forward(small: SmallShard) -> None:
    assert small.shard.settings_version(QUEUE) == 0
    assert policies_of(small) is None
    assert await set_queue(small, version=7, max_attempts=4)
    assert small.shard.settings_version(QUEUE) == 7
    assert small.machine.meta.machine_level == entries.MACHINE_LEVEL
    assert not await set_queue(small, version=7, max_attempts=5)
    assert not await set_queue(small, version=6, max_attempts=5)
    assert attempts_of(small) == 4
    assert await set_queue(small, version=8)
    assert attempts_of(small) == PLAIN.max_attempts
    assert small.shard.settings_version(OTHER) == 0


async def test_nothing_new_is_written_before_every_replica_knows_it(small: SmallShard) -> None:
    asked: list[int] = []

    def not_yet(level: int) -> bool:
        asked.append(level)
        return False

    small.view.knows_level = not_yet
    with pytest.raises(RefusedError) as refused:
        await set_queue(small)
    assert (refused.value.reason, refused.value.metadata) == (CHANGE_REFUSED, {"why": "machine_level"})
    assert asked == [entries.MACHINE_LEVEL]
    assert small.machine.meta.applied_index == 0
    small.view.knows_level = lambda _level: True
    assert await set_queue(small)
    small.view.knows_level = not_yet
    assert await set_queue(small, version=2), "a level that was reached stays"


async def test_what_nobody_can_read_stays_out_of_the_log(small: SmallShard) -> None:
    with pytest.raises(Exception, match="pars"):
        await small.shard.set_queue(QUEUE, 1, b"\xff\xff")
    with pytest.raises(ValueError, match="too large"):
        await small.shard.set_queue(QUEUE, 1, bytes(64 * 1024 + 1))
    assert small.shard.proposals_waiting == 0


async def test_a_new_leader_goes_by_the_settings_at_once(small: SmallShard) -> None:
    await set_queue(small, max_attempts=4)
    small.lose()
    assert policies_of(small) is None
    assert small.shard.settings_version(QUEUE) == 1, "also who follows can tell"
    with pytest.raises(RefusedError) as refused:
        await small.shard.set_queue(QUEUE, 2, b"")
    assert refused.value.reason == NOT_LEADER
    small.log.term, small.log.serves = 3, True
    small.lead()
    assert attempts_of(small) == 4


# --- what a leader decides by it --------------------------------------------------------------------------------------


class Wire:
    """A service over a small shard, called as over the wire."""

    def __init__(self, small: SmallShard) -> None:
        self.small = small
        self.service = TaskService(small.shard, small.config, small.metrics, draw=lambda: 0.5)

    async def enqueue(self, queue: bytes, **fields: Any) -> rows.Execution:
        spec = pb.TaskSpec(queue=queue.decode(), type="t", **fields)
        response = await self.small.rounds_until(self.service.enqueue(pb.EnqueueRequest(tasks=[spec])))
        return self.task(response.outcomes[0].accepted.task_id)

    def task(self, text: str) -> rows.Execution:
        task_id = parse_task_id(text)
        assert task_id is not None
        (task,) = self.small.shard.executions([task_id])
        assert task is not None
        return task

    async def claim(self, *queues: bytes) -> list[pb.ClaimRef]:
        """One task of each."""
        claims: list[Claimed] = []
        for queue in queues:
            claims += await self.small.claim(queue)
        return [claim_ref(claim.task_id, claim.token) for claim in claims]


@pytest.fixture
async def wire(small: SmallShard) -> Wire:
    await set_queue(small, **OWN)
    return Wire(small)


async def test_new_tasks_have_the_budgets_of_their_queue(wire: Wire) -> None:
    own = await wire.enqueue(QUEUE)
    assert (own.max_attempts, own.max_claims, own.result_ttl_ms) == (2, 3, 2 * HOUR_MS)
    plain = await wire.enqueue(OTHER)
    assert (plain.max_attempts, plain.max_claims, plain.result_ttl_ms) == (10, 20, CONFIG.result_ttl_default_ms)
    said = await wire.enqueue(QUEUE, max_attempts=5, max_claims=4, result_ttl_ms=1)
    assert (said.max_attempts, said.max_claims, said.result_ttl_ms) == (5, 4, 1)
    more = await wire.enqueue(QUEUE, max_attempts=5)
    assert (more.max_attempts, more.max_claims) == (5, 10), "a default of claims never undercuts a task's attempts"


async def test_a_queue_without_claims_of_its_own_has_enough_for_its_attempts(small: SmallShard) -> None:
    await set_queue(small, max_attempts=30)
    assert (await Wire(small).enqueue(QUEUE)).max_claims == 60


async def test_request_ids_are_remembered_as_long_as_the_queue_says(wire: Wire) -> None:
    await wire.enqueue(QUEUE, request_id="r")
    await wire.enqueue(OTHER, request_id="r")
    await wire.enqueue(QUEUE, request_id="s", request_id_ttl_ms=9000)
    start, stop = keys.family_start(keys.DEDUP), keys.family_start(keys.DEDUP + 1)
    windows = {key[1:]: rows.Dedup.decode(row).window_ms for key, row in wire.small.kv.scan(start, stop, 9)}
    assert windows == {b"mail\0r": 5000, b"other\0r": CONFIG.dedup_window_ms, b"mail\0s": 9000}


async def test_a_failed_task_waits_as_its_queue_says(wire: Wire) -> None:
    await wire.enqueue(QUEUE, max_attempts=9)
    await wire.enqueue(OTHER)
    claims = await wire.claim(QUEUE, OTHER)
    request = pb.FailRequest(items=[pb.FailItem(claim=claim) for claim in claims])
    response = await wire.small.rounds_until(wire.service.fail(request))
    waits = [outcome.failed.retry_at_ms - wire.small.time.now_ms for outcome in response.outcomes]
    assert waits == [70, CONFIG.retry_base_ms]
    assert all(outcome.failed.state == RETRY_PENDING for outcome in response.outcomes)


async def test_tasks_are_kept_as_long_as_their_queue_says(wire: Wire) -> None:
    """Items of both queues in turns: each gets its own answer, in order."""
    for queue in (QUEUE, OTHER) * 4:
        await wire.enqueue(queue, max_attempts=1)
    refs = await wire.claim(*(QUEUE, OTHER) * 4)
    named = [*refs[:2], pb.ClaimRef(task_id="bad", token=1, secret=1)]
    acks = pb.AckRequest(items=[pb.AckItem(claim=ref) for ref in named])
    acked = await wire.small.rounds_until(wire.service.ack(acks))
    assert [outcome.WhichOneof("outcome") for outcome in acked.outcomes] == ["acked", "acked", "rejection"]
    fails = pb.FailRequest(items=[pb.FailItem(claim=ref) for ref in refs[2:4]])
    failed = await wire.small.rounds_until(wire.service.fail(fails))
    assert [outcome.failed.state for outcome in failed.outcomes] == [DEAD, DEAD]
    cancels = pb.CancelRequest(task_ids=[ref.task_id for ref in refs[4:]])
    await wire.small.rounds_until(wire.service.cancel(cancels))
    releases = pb.ReleaseRequest(claims=[*refs[4:6], refs[4]])
    released = await wire.small.rounds_until(wire.service.release(releases))
    assert [outcome.released.state for outcome in released.outcomes] == [CANCELLED] * 3
    kept = [wire.task(ref.task_id).timer_ms - wire.small.time.now_ms for ref in refs[:6]]
    finished, dead = CONFIG.finished_retention_ms, CONFIG.dead_retention_ms
    assert kept == [HOUR_MS, finished, 3 * HOUR_MS, dead, HOUR_MS, finished]
    assert [wire.task(ref.task_id).state for ref in refs[:6]] == [SUCCEEDED] * 2 + [DEAD] * 2 + [CANCELLED] * 2
    assert violations(wire.small.kv) == []


async def test_a_task_that_dies_of_expiries_is_kept_as_long_as_its_queue_says(wire: Wire) -> None:
    for queue in (QUEUE, OTHER):
        await wire.enqueue(queue, max_claims=1)
    small = wire.small
    housekeeping = small.leadership.housekeeping
    refs = await wire.claim(QUEUE, OTHER)
    for _ in range(2):
        small.time.now_ms += 40_000
        due = [(key[-16:], task) for key, task in small.kv.scan(b"\x07", b"\x08", 9)]
        assert len(due) == 2
        assert await small.rounds_until(housekeeping.expire([(0, task_id) for task_id, _ in due]))
        for queue in (QUEUE, OTHER):  # suspects now
            await small.claim(queue, worker=b"alone with " + queue)
    kept = [wire.task(ref.task_id).timer_ms - small.time.now_ms for ref in refs]
    assert kept == [3 * HOUR_MS, CONFIG.dead_retention_ms]


async def test_claims_that_go_back_by_themselves_keep_to_their_queue(wire: Wire) -> None:
    """A claim whose caller has gone, of a task that was cancelled on the way."""
    for queue in (QUEUE, OTHER):
        await wire.enqueue(queue)
    small = wire.small
    call = small.reserve(QUEUE, OTHER, tasks_max=2)
    await settle()
    call.cancel()
    await settle()
    start, stop = keys.family_start(keys.EXECUTION), keys.family_start(keys.EXECUTION + 1)
    task_ids = [key[1:] for key, _ in small.kv.scan(start, stop, 9)]
    cancelling = asyncio.ensure_future(small.shard.submit(entries.Cancel(small.time.now_ms, 1, task_ids)))
    await small.round()  # claimed, and marked as cancelled
    await cancelling
    await small.round()  # given back
    tasks = small.shard.executions(task_ids)
    assert [task.state for task in tasks if task] == [CANCELLED, CANCELLED]
    assert [task.timer_ms - small.time.now_ms for task in tasks if task] == [HOUR_MS, CONFIG.finished_retention_ms]


async def test_entries_that_belong_together_are_refused_together(wire: Wire) -> None:
    small = wire.small
    small.log.term, small.log.serves = 2, False
    both: list[entries.Entry] = [entries.Promote(small.time.now_ms, []), entries.Promote(small.time.now_ms, [])]
    call = asyncio.ensure_future(small.shard.submit_all(both))
    await settle()
    small.follow_role()
    with pytest.raises(RefusedError):
        await call
    small.log.term, small.log.serves = 3, True
    small.lead()
    call = asyncio.ensure_future(small.shard.submit_all(both))
    await settle()
    small.shard.stage()
    small.shard.give_up()
    with pytest.raises(OutcomeUnknownError):
        await call


async def test_without_settings_a_batch_is_one_entry(small: SmallShard) -> None:
    wire = Wire(small)
    for queue in (QUEUE, OTHER):
        await wire.enqueue(queue)
    refs = await wire.claim(QUEUE, OTHER)
    before = small.machine.meta.applied_index
    await small.rounds_until(wire.service.ack(pb.AckRequest(items=[pb.AckItem(claim=ref) for ref in refs])))
    assert small.machine.meta.applied_index == before + 1
