"""The wire API: translates requests into entries and outcomes into answers. It holds no rules of its own."""

import random
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, NamedTuple, TypeVar

from holdfast.broker.api.answering import Answering, in_order, succeeded
from holdfast.broker.api.claims import fill_claims, read_claims
from holdfast.broker.api.conversion import (
    allocate_response,
    fill_follow_up,
    limit_reports,
    task_message,
    wire_state,
)
from holdfast.broker.api.dead_letters import DeadLetterService
from holdfast.broker.api.enqueueing import Enqueueing
from holdfast.broker.api.home_guard import HomeGuard, Homes
from holdfast.broker.api.queues import QueueService
from holdfast.broker.api.schedules import ScheduleService
from holdfast.broker.api.validation import Validator
from holdfast.broker.cluster_view.view import StaticClusterView
from holdfast.broker.config import BrokerConfig
from holdfast.broker.leader.clock import ShardClock
from holdfast.broker.leader.decisions import fail_verdict
from holdfast.broker.leader.result_waiters import ENDS
from holdfast.broker.leader.suspects import RunDry
from holdfast.broker.metrics import Metrics
from holdfast.broker.policy.policies import EffectivePolicy, Policies, RetentionPart, default_policy
from holdfast.broker.policy.retry_rules import rules_of
from holdfast.broker.policy.task_errors import brief_error
from holdfast.broker.replica.shard import Shard
from holdfast.machine import rejections
from holdfast.machine.entries import (
    MACHINE_LEVEL,
    Ack,
    AckAway,
    AckItem,
    Cancel,
    ClaimRef,
    Entry,
    Extend,
    ExtendItem,
    Fail,
    FailItem,
    Receive,
    Release,
    RemoteFollowUp,
)
from holdfast.machine.entry_parts import DEPARTING_BYTES_MAX, departing_bytes, in_parts
from holdfast.machine.ids import later_task_id
from holdfast.machine.new_tasks import NewTask
from holdfast.machine.operator_entries import UpdateTasks
from holdfast.machine.outcomes import Accepted, Acked, AckedRange, Extended, Failed, Moved, Outcome, Received
from holdfast.machine.reader import EnvelopeOf, TaskView
from holdfast.machine.rejections import Rejection
from holdfast.machine.rows import DEAD, HAS_RETRY, NOT_DEAD, Execution
from holdfast.machine.run_entries import AckRange, AckRanges
from holdfast.proto.v1 import broker_calls_pb2 as calls_pb
from holdfast.proto.v1 import tasks_pb2 as pb
from holdfast.serving.refusals import INVALID_FIELD, RefusedError

OUTBOX_TASKS_MAX = 10_000  # on their way to one shard
ENTRY_TASKS_MAX = 250  # made by the acks of one entry: applying it takes 10 ms, with all that tasks can have 40

Valid = TypeVar("Valid")


class _Call:
    """A call whose answer tells of leases: what is left of them then, and how long the call had waited by then. Both of
    one moment, so that they are true together, however shard time was moved before it."""

    def __init__(self, clock: ShardClock) -> None:
        self._clock = clock
        self._received_ms = clock.monotonic_ms()

    def now_ms(self) -> int:
        """Shard time."""
        return self._clock.now_ms()

    def waited_ms(self) -> int:
        return int(self._clock.monotonic_ms() - self._received_ms)


class _Part(NamedTuple):
    """Some of the items of a call, by their places, in one entry."""

    places: Sequence[int]
    entry: Entry


class TaskService:
    """One method per RPC about tasks; what is about dead letters, queues and schedules is in rooms of its own."""

    def __init__(
        self,
        shard: Shard,
        config: BrokerConfig,
        metrics: Metrics,
        *,
        draw: Callable[[], float] = random.random,
        cluster_view: Homes | None = None,
    ) -> None:
        """`cluster_view`: None without one: then tasks may be on any shard."""
        self.shard = self._shard = shard
        self.check_open = shard.check_open  # refuses if no write can be taken now, whatever it is
        self._config = config
        self._metrics = metrics
        self.validator = self._validator = Validator(config)
        self._default_policy = default_policy(config)
        self._draw = draw
        self._cluster_view = cluster_view or StaticClusterView(config)
        self._answering = Answering(self._validator, metrics)
        self.dead_letters = DeadLetterService(shard, config, self._validator, self._answering)
        self.queues = QueueService(shard, config, self._validator)
        self._homes = HomeGuard(shard, self._cluster_view)
        self._enqueueing = Enqueueing(shard, self._validator, self._answering, self._homes, metrics)
        self.schedules = ScheduleService(shard, self._validator, self._homes)

    # --- producers --------------------------------------------------------------------------------------------

    def enqueue(self, request: pb.EnqueueRequest) -> Coroutine[Any, Any, pb.EnqueueResponse]:
        """No coroutine of its own, which would keep the request until the answer is there."""
        return self._enqueueing.enqueue(request)

    async def cancel(self, request: pb.CancelRequest) -> pb.CancelResponse:
        task_ids, refused = self._answering.validate_ids(request.task_ids)
        now_ms = self._shard.now_ms()
        tasks = self._shard.executions(task_ids)
        outcomes = await self._submit_kept(
            task_ids, tasks, lambda keep_ms, _dead_ms, chosen: Cancel(now_ms, keep_ms, chosen)
        )  # fmt: skip
        response = pb.CancelResponse()
        for index, outcome in in_order(len(request.task_ids), outcomes, refused):
            item = response.outcomes.add()
            if isinstance(outcome, Moved):
                item.cancelled.state = wire_state(outcome.state)
            else:
                self._answering.reject(item, outcome, refused.get(index))
        self._metrics.tasks_cancelled.inc(succeeded(outcomes))
        return response

    async def update_tasks(self, request: pb.UpdateTasksRequest) -> pb.UpdateTasksResponse:
        self._validator.batch(len(request.items), "items")
        now_ms = self._shard.now_ms()
        items, refused = self._answering.validate(request.items, "items", self._validator.update_item, now_ms)
        tasks = self._shard.executions([item.task_id for item in items])
        outcomes = await self._submit_kept(items, tasks, lambda _keep_ms, _dead_ms, chosen: UpdateTasks(now_ms, chosen))
        response = pb.UpdateTasksResponse()
        for index, outcome in in_order(len(request.items), outcomes, refused):
            answer = response.outcomes.add()
            if isinstance(outcome, Moved):
                answer.updated.state = wire_state(outcome.state)
            else:
                self._answering.reject(answer, outcome, refused.get(index))
        return response

    async def get_task(self, request: pb.GetTaskRequest) -> pb.GetTaskResponse:
        task_id = self._validator.task_id(request.task_id)
        return pb.GetTaskResponse(task=task_message(await self._shard.current_task(task_id)))

    async def wait_tasks(self, request: pb.WaitTasksRequest) -> pb.WaitTasksResponse:
        task_ids, refused = self._answering.validate_ids(request.task_ids)
        wait_ms = self._validator.wait_ms(request.wait_ms)
        found = iter(zip(task_ids, await self._shard.wait_finished(task_ids, wait_ms), strict=True))
        reports = self._shard.reader.reports(self._config.batch_bytes_max)
        now_ms = self._shard.now_ms()
        response = pb.WaitTasksResponse()
        for index in range(len(request.task_ids)):
            answer = response.outcomes.add()
            task_id, task = next(found) if index not in refused else (b"", None)
            if task is None:
                self._answering.reject(answer, rejections.task_not_found(), refused.get(index))
                continue
            report, omitted = reports.read(task_id)
            view = TaskView.make(task_id, task, now_ms, report=report)
            answer.task.MergeFrom(task_message(view, with_payload=False))
            answer.task.result_omitted = omitted and (task.state in ENDS or task.failures > 0)
        return response

    async def queue_stats(self, request: pb.QueueStatsRequest) -> pb.QueueStatsResponse:
        return await self.queues.queue_stats(request, self._answering)

    async def list_queues(self, request: pb.ListQueuesRequest) -> pb.ListQueuesResponse:
        return await self.queues.list_queues(request)

    # --- workers ----------------------------------------------------------------------------------------------

    async def reserve(self, request: pb.ReserveRequest) -> pb.ReserveResponse:
        wanted = self._validator.reserve(request)
        call = _Call(self._shard.leader_clock())
        with self._shard.stats.worker_asks(wanted.worker, wanted.queues, call.now_ms()):
            claims = await self._shard.reserve(wanted)
        if isinstance(claims, RunDry):
            return pb.ReserveResponse(run_dry_ms=claims.wait_ms)
        if not claims:
            return pb.ReserveResponse()
        details = read_claims(self._shard.reader, claims)
        waited_ms, now_ms = call.waited_ms(), call.now_ms()
        response = pb.ReserveResponse(waited_ms=waited_ms)
        fill_claims(response, details, now_ms, takes_runs=request.takes_runs)
        self._metrics.tasks_claimed.inc(sum([claim.tasks for claim in claims]))
        return response

    async def await_tasks(self, request: pb.AwaitTasksRequest) -> pb.AwaitTasksResponse:
        wanted = self._validator.await_tasks(request)
        with self._shard.stats.worker_asks(wanted.worker, wanted.queues, self._shard.now_ms()):
            tasks, held, suspects = await self._shard.await_tasks(wanted)
        return pb.AwaitTasksResponse(ready=tasks > 0, held=held, tasks=tasks, suspects=suspects)

    async def ack(self, request: pb.AckRequest) -> pb.AckResponse:
        counts = [claim_range.count for claim_range in request.ranges]
        ranged = sum([max(1, count) for count in counts])
        self._validator.batch(len(request.items) + ranged, "ranges" if ranged else "items")
        self._validator.all_follow_ups(request.items)
        now_ms = self._shard.now_ms()
        policies = self._shard.policies
        validate = self._answering.validate
        items, refused = validate(request.items, "items", self._ack_item, now_ms, policies)
        parts = await self._ack_parts(items, now_ms) if items else []
        ranges, refused_ranges = validate(request.ranges, "ranges", self._validator.ack_range)
        range_parts = self._range_parts(ranges, now_ms) if ranges else []
        outcomes, of_ranges = await self._submit_parts(parts, range_parts)
        response = pb.AckResponse()
        acked = 0
        for index, outcome in in_order(len(request.items), outcomes, refused):
            answer = response.outcomes.add()
            if isinstance(outcome, Acked):
                answer.acked.SetInParent()
                acked += 1
                for accepted in outcome.follow_ups:
                    fill_follow_up(answer.acked.follow_ups.add(), accepted)
            else:
                follow_up = outcome.place if isinstance(outcome, Rejection) else 0
                self._answering.reject(answer, outcome, refused.get(index), f"items[{index}].follow_ups[{follow_up}]")
        self._metrics.tasks_acked.inc(acked)
        if counts:
            self._fill_ranges(response, counts, of_ranges, refused_ranges)
        return response

    async def _ack_parts(self, items: list[AckItem], now_ms: int) -> list[_Part]:
        has_remote = any(item.remote_follow_ups for item in items)
        if has_remote:
            await self._shard.use_level(MACHINE_LEVEL)

        def make_entry(keep_ms: int, _dead_ms: int, chosen: list[AckItem]) -> Entry:
            if has_remote:
                return AckAway(now_ms, keep_ms, OUTBOX_TASKS_MAX, chosen)
            return Ack(now_ms, keep_ms, chosen)

        made = [_tasks_made(item) for item in items]
        return self._parts(items, self._heard_of(items, now_ms), make_entry, made, ENTRY_TASKS_MAX)

    def _range_parts(self, ranges: list[AckRange], now_ms: int) -> list[_Part]:
        tasks = self._heard_of(ranges, now_ms)
        if self._shard.policies is not None:
            # One that reaches into another queue is kept as long as the one of them that keeps longer says.
            last = self._shard.executions(
                [later_task_id(claim_range.task_id, claim_range.tasks - 1) for claim_range in ranges]
            )
            tasks = [max(pair, key=self._keeps_ms) for pair in zip(tasks, last, strict=True)]
        return self._parts(ranges, tasks, lambda keep_ms, _dead_ms, chosen: AckRanges(now_ms, keep_ms, chosen))

    def _keeps_ms(self, task: Execution | None) -> int:
        return -1 if task is None else self._policy_of(task, self._shard.policies).finished_retention_ms

    def _fill_ranges(
        self, response: pb.AckResponse, counts: list[int], outcomes: list[Outcome], refused: dict[int, RefusedError]
    ) -> None:
        for index, outcome in in_order(len(counts), outcomes, refused):
            answer = response.ranges.add()
            if not isinstance(outcome, AckedRange):
                self._answering.reject(answer, outcome, refused.get(index), tasks=max(1, counts[index]))
                continue
            for place, rejection in outcome.refused:
                self._answering.reject(answer.refused.add(at=place), rejection, None)
            self._metrics.tasks_acked.inc(counts[index] - len(outcome.refused))

    def _ack_item(self, item: pb.AckItem, now_ms: int, policies: Policies | None) -> AckItem:
        task_id, token = self._answering.claim_ref(item.claim)
        result = self._validator.result(item.result) if item.HasField("result") else None
        follow_ups = self._validator.follow_ups(item, now_ms, policies) if item.follow_ups else ()
        remote_follow_ups: list[RemoteFollowUp] = []
        for index, new in enumerate(follow_ups):
            destination = self._shard.elsewhere(new)
            if destination is not None:
                remote_follow_ups.append(RemoteFollowUp(index, destination, new.run_at_ms, new.envelope))
        if remote_follow_ups:
            away = {remote.place for remote in remote_follow_ups}
            follow_ups = tuple(new for position, new in enumerate(follow_ups) if position not in away)
        return AckItem(task_id, token, result, follow_ups, tuple(remote_follow_ups))

    async def fail(self, request: pb.FailRequest) -> pb.FailResponse:
        self._validator.batch(len(request.items), "items")
        now_ms = self._shard.now_ms()
        policies = self._shard.policies
        envelope_of = self._shard.reader.envelope_reader()
        items, refused = self._answering.validate(
            request.items, "items", self._fail_item, now_ms, policies, envelope_of
        )
        outcomes = await self._submit_kept(
            items,
            self._heard_of(items, now_ms),
            lambda keep_ms, dead_ms, chosen: Fail(now_ms, keep_ms, dead_ms, chosen),
        )
        response = pb.FailResponse()
        dead = 0
        for index, outcome in in_order(len(request.items), outcomes, refused):
            answer = response.outcomes.add()
            if isinstance(outcome, Failed):
                answer.failed.state = wire_state(outcome.state)
                answer.failed.retry_at_ms = outcome.retry_at_ms
                dead += outcome.state == DEAD
            else:
                self._answering.reject(answer, outcome, refused.get(index))
        self._metrics.tasks_failed.inc(succeeded(outcomes))
        self._metrics.tasks_dead.inc(dead)
        return response

    def _fail_item(
        self, item: pb.FailItem, now_ms: int, policies: Policies | None, envelope_of: EnvelopeOf
    ) -> FailItem:
        """Decides between another attempt and a dead letter. Only the holder's failure counts, so what is read here
        cannot change before the entry is applied without the holder losing its claim."""
        task_id, token = self._answering.claim_ref(item.claim)
        error = self._validator.error(item.error)
        delay_ms = self._validator.retry_delay_ms(item)
        at_ms = self._validator.retry_at_ms(item, now_ms)
        brief = brief_error(item.error)
        (task,) = self._shard.executions([task_id])
        if task is None:
            return FailItem(task_id, token, now_ms + 1, NOT_DEAD, error, brief)  # it is refused
        own = envelope_of(task_id) if task.flags & HAS_RETRY else None
        rules = rules_of(self._policy_of(task, policies), own)
        verdict = fail_verdict(task, gave_up=item.dead, error_type=item.error.type, rules=rules)
        if verdict != NOT_DEAD:
            return FailItem(task_id, token, 0, verdict, error, brief)
        retry_at_ms = rules.retry_at_ms(now_ms, task.failures + 1, self._draw, at_ms=at_ms, delay_ms=delay_ms)
        return FailItem(task_id, token, retry_at_ms, NOT_DEAD, error, brief)

    def _policy_of(self, task: Execution, policies: Policies | None) -> EffectivePolicy:
        return self._default_policy if policies is None else policies.of(task.queue)

    async def extend(self, request: pb.ExtendRequest) -> pb.ExtendResponse:
        self._validator.batch(len(request.items), "items")
        call = _Call(self._shard.leader_clock())
        now_ms = call.now_ms()
        items, refused = self._answering.validate(request.items, "items", self._extend_item, now_ms)
        self._heard_of(items, now_ms)
        outcomes = await self._submit(Extend(now_ms, items), items)
        waited_ms, now_ms = call.waited_ms(), call.now_ms()
        asked = iter(items)
        response = pb.ExtendResponse()
        for index, outcome in in_order(len(request.items), outcomes, refused):
            answer = response.outcomes.add()
            item = None if index in refused else next(asked)
            if isinstance(outcome, Extended) and item is not None:
                answer.extended.lease_ms = max(0, outcome.expiry_ms - now_ms)
                answer.extended.waited_ms = waited_ms
                answer.extended.ends_attempt = outcome.expiry_ms < item.expiry_ms
                answer.extended.cancel_requested = outcome.cancel_requested
                answer.extended.draining = self._shard.is_draining
            else:
                self._answering.reject(answer, outcome, refused.get(index))
        return response

    def _extend_item(self, item: pb.ExtendItem, now_ms: int) -> ExtendItem:
        task_id, token = self._answering.claim_ref(item.claim)
        return ExtendItem(task_id, token, now_ms + self._validator.lease_ms(item.lease_ms))

    async def release(self, request: pb.ReleaseRequest) -> pb.ReleaseResponse:
        self._validator.batch(len(request.claims), "claims")
        items, refused = self._answering.validate(
            request.claims, "claims", lambda ref: ClaimRef(*self._validator.claim_ref(ref))
        )
        delay_ms = self._validator.snooze_ms(request.delay_ms)
        now_ms = self._shard.now_ms()
        ready_at_ms = now_ms + delay_ms if delay_ms else 0

        def make_entry(keep_ms: int, _dead_ms: int, chosen: list[ClaimRef]) -> Entry:
            return Release(now_ms, keep_ms, chosen, ready_at_ms)

        outcomes = await self._submit_kept(items, self._heard_of(items, now_ms), make_entry)
        response = pb.ReleaseResponse()
        for index, outcome in in_order(len(request.claims), outcomes, refused):
            answer = response.outcomes.add()
            if isinstance(outcome, Moved):
                answer.released.state = wire_state(outcome.state)
            else:
                self._answering.reject(answer, outcome, refused.get(index))
        return response

    # --- other shards -----------------------------------------------------------------------------------------

    async def receive_tasks(self, request: calls_pb.ReceiveTasksRequest) -> calls_pb.ReceiveTasksResponse:
        """What the leader of another shard brings out of its outbox."""
        now_ms = self._shard.now_ms()
        new_tasks = self._validator.received(
            request, now_ms, self._cluster_view.cluster_id, self._shard.number, self._shard.policies
        )
        await self._shard.use_level(MACHINE_LEVEL)
        last = 0
        for (outcome,) in await self._shard.submit_all(self._receipts(request, now_ms, new_tasks)):
            if not isinstance(outcome, Received):
                assert isinstance(outcome, Rejection)
                raise RefusedError(INVALID_FIELD, outcome.message, "first_sequence")
            last = outcome.last
            self._count_received(outcome.accepted)
        return calls_pb.ReceiveTasksResponse(received=last)

    def _receipts(self, request: calls_pb.ReceiveTasksRequest, now_ms: int, new_tasks: list[NewTask]) -> list[Receive]:
        """One entry as a rule: an entry says only once how long dead letters are kept, and queues may differ in it."""
        policies, default = self._shard.policies, self._default_policy
        entries: list[Receive] = []
        for index, new in enumerate(new_tasks):
            dead_ms = (default if policies is None else policies.of(new.queue)).dead_retention_ms
            if not entries or entries[-1].dead_keep_ms != dead_ms:
                source = request.source_shard, request.source_incarnation
                entries.append(Receive(now_ms, *source, request.first_sequence + index, dead_ms, []))
            entries[-1].tasks.append(new)
        return entries

    def _count_received(self, accepted: Sequence[Accepted]) -> None:
        duplicates = sum(outcome.duplicate for outcome in accepted)
        self._metrics.tasks_enqueued.inc(len(accepted) - duplicates)
        self._metrics.duplicates.inc(duplicates)
        self._metrics.tasks_dead.inc(sum(not outcome.duplicate and outcome.state == DEAD for outcome in accepted))

    async def allocate(self, request: calls_pb.AllocateRequest) -> calls_pb.AllocateResponse:
        """What the leader of another shard asks for of limits of queues that are at home here."""
        self._validator.allocation_reports(request, self._cluster_view.cluster_id, self._shard.number)
        return allocate_response(await self._shard.allocate(request.source_shard, limit_reports(request)))

    # --- shared -----------------------------------------------------------------------------------------------

    def _heard_of(
        self, items: Sequence[AckItem | AckRange | FailItem | ExtendItem | ClaimRef], now_ms: int
    ) -> list[Execution | None]:
        """Whoever says something about its claims is at work. A call may have claims of several workers, so each item
        is looked at; the executions of claimed tasks are mostly in memory. Returns them."""
        tasks = self._shard.executions([item.task_id for item in items])
        held = {
            task.worker
            for task, item in zip(tasks, items, strict=True)
            if task is not None and task.token == item.token
        }
        stats = self._shard.stats
        for worker in held:
            stats.worker_seen(worker, now_ms)
        return tasks

    async def _submit(self, entry: Entry, items: Sequence[object]) -> list[Outcome]:
        return await self._shard.submit(entry) if items else []

    async def _submit_kept(
        self,
        items: Sequence[Valid],
        tasks: Sequence[Execution | None],  # theirs, read just now
        make_entry: Callable[[int, int, list[Valid]], Entry],  # of how long what ends is kept, finished or dead
    ) -> list[Outcome]:
        """The outcomes of items in their order."""
        sizes = [departing_bytes(task) for task in tasks]
        (outcomes,) = await self._submit_parts(self._parts(items, tasks, make_entry, sizes, DEPARTING_BYTES_MAX))
        return outcomes

    async def _submit_parts(self, *lists: list[_Part]) -> list[list[Outcome]]:
        """The outcomes of the items of each list. All entries are taken together or not at all."""
        entries = [part.entry for parts in lists for part in parts]
        if len(entries) == 1:
            applied = iter([await self._shard.submit(entries[0])])
        else:
            applied = iter(await self._shard.submit_all(entries) if entries else [])
        found: list[list[Outcome]] = []
        for parts in lists:
            if len(parts) == 1:  # as nearly always: it has all of them, in order
                found.append(next(applied))
                continue
            by_place: dict[int, Outcome] = {}
            for part in parts:
                by_place.update(zip(part.places, next(applied), strict=True))
            found.append([by_place[index] for index in range(len(by_place))])
        return found

    def _parts(
        self,
        items: Sequence[Valid],
        tasks: Sequence[Execution | None],
        make_entry: Callable[[int, int, list[Valid]], Entry],
        weights: Sequence[int] = (),  # of the items
        weight_max: int = 0,
    ) -> list[_Part]:
        """What ends is kept as its queue says, and an entry says it but once: so items of queues that differ in this go
        into different entries. The same if they weigh too much together: between entries others have a turn."""
        if not items:
            return []
        policies, default = self._shard.policies, self._default_policy
        if policies is None:
            groups = [RetentionPart(default.finished_retention_ms, default.dead_retention_ms, [])]
        else:
            groups = policies.kept(tasks)
        if sum(weights) > weight_max:
            all_items = range(len(items))
            groups = [
                RetentionPart(keep_ms, dead_ms, part)
                for keep_ms, dead_ms, places in groups
                for part in in_parts(places or all_items, weights, weight_max)
            ]
        if len(groups) == 1:
            keep_ms, dead_ms, _ = groups[0]
            return [_Part(range(len(items)), make_entry(keep_ms, dead_ms, list(items)))]
        return [
            _Part(places, make_entry(keep_ms, dead_ms, [items[index] for index in places]))
            for keep_ms, dead_ms, places in groups
        ]


def _tasks_made(item: AckItem) -> int:
    return len(item.follow_ups) + len(item.remote_follow_ups)
