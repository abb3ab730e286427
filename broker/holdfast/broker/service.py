"""The wire API: translates requests into entries and outcomes into answers. It holds no rules of its own."""

import asyncio
import random
from collections.abc import Callable, Iterator, Sequence
from typing import Protocol, TypeVar

from holdfast.broker import views
from holdfast.broker.config import BrokerConfig
from holdfast.broker.decisions import fail_verdict
from holdfast.broker.finishing import ENDS
from holdfast.broker.messages import fill_claim, fill_follow_up, fill_queue, task_message, wire_state
from holdfast.broker.metrics import Metrics
from holdfast.broker.policies import Policies, default_policy
from holdfast.broker.shard import Shard
from holdfast.broker.validation import Validator
from holdfast.machine import rejections
from holdfast.machine.entries import (
    MACHINE_LEVEL,
    Ack,
    AckAway,
    AckItem,
    Cancel,
    ClaimRef,
    DiscardDead,
    Enqueue,
    Entry,
    Extend,
    ExtendItem,
    Fail,
    FailItem,
    Parcel,
    Receive,
    Release,
    RetryDead,
)
from holdfast.machine.ids import format_task_id
from holdfast.machine.outcomes import Accepted, Acked, Extended, Failed, Moved, Outcome, Received
from holdfast.machine.rejections import Rejection
from holdfast.machine.rows import DEAD, NOT_DEAD, Queue
from holdfast.proto.v1 import couriers_pb2 as couriers_pb
from holdfast.proto.v1 import tasks_pb2 as pb
from holdfast.serving.refusals import INVALID_FIELD, QUEUE_NOT_FOUND, RefusedError

PAGE_DEFAULT = 100
PAGE_MAX = 1000
QUEUES_PER_SLICE = 50  # how many are looked at before other work of the loop gets a turn
DEAD_PAGE_BYTES_MAX = 2 * 1024 * 1024
OUTBOX_TASKS_MAX = 10_000  # on their way to one shard
OUTBOX_RETRY_MS = 2000


Item = TypeVar("Item")
Valid = TypeVar("Valid")


class _HasRejection(Protocol):
    @property
    def rejection(self) -> pb.Rejection: ...


class Service:
    """One method per RPC."""

    def __init__(
        self,
        shard: Shard,
        config: BrokerConfig,
        metrics: Metrics,
        *,
        draw: Callable[[], float] = random.random,
        cluster_id: Callable[[], str] = lambda: "",
    ) -> None:
        self._shard = shard
        self._config = config
        self._metrics = metrics
        self._validator = Validator(config)
        self._default_policy = default_policy(config)
        self._draw = draw
        self._cluster_id = cluster_id  # what a courier must name; nothing is checked while it is empty

    @property
    def shard(self) -> Shard:
        return self._shard

    @property
    def validator(self) -> Validator:
        return self._validator

    # --- producers --------------------------------------------------------------------------------------------

    async def enqueue(self, request: pb.EnqueueRequest) -> pb.EnqueueResponse:
        self._validator.batch(len(request.tasks), "tasks")
        now_ms = self._shard.now_ms()
        policies = self._shard.policies
        new_tasks, refused = self._validate(
            request.tasks, "tasks", lambda spec: self._validator.new_task(spec, now_ms, policies)
        )
        outcomes = await self._submit(Enqueue(now_ms, new_tasks), new_tasks)
        response = pb.EnqueueResponse()
        duplicates = 0
        for at, outcome in _in_order(len(request.tasks), outcomes, refused):
            item = response.outcomes.add()
            if isinstance(outcome, Accepted):
                item.accepted.task_id = format_task_id(outcome.task_id)
                if outcome.duplicate:
                    item.accepted.duplicate = True
                    duplicates += 1
            else:
                self._reject(item, outcome, refused.get(at))
        self._metrics.tasks_enqueued.inc(len(outcomes) - duplicates)
        self._metrics.duplicates.inc(duplicates)
        return response

    async def cancel(self, request: pb.CancelRequest) -> pb.CancelResponse:
        task_ids, refused = self._validate_ids(request.task_ids)
        now_ms = self._shard.now_ms()
        outcomes = await self._submit_kept(
            task_ids, lambda task_id: task_id, lambda keep_ms, _dead_ms, chosen: Cancel(now_ms, keep_ms, chosen)
        )
        response = pb.CancelResponse()
        for at, outcome in _in_order(len(request.task_ids), outcomes, refused):
            item = response.outcomes.add()
            if isinstance(outcome, Moved):
                item.cancelled.state = wire_state(outcome.state)
            else:
                self._reject(item, outcome, refused.get(at))
        self._metrics.tasks_cancelled.inc(_succeeded(outcomes))
        return response

    async def get_task(self, request: pb.GetTaskRequest) -> pb.GetTaskResponse:
        return pb.GetTaskResponse(task=task_message(await self._read_task(request.task_id)))

    async def wait_tasks(self, request: pb.WaitTasksRequest) -> pb.WaitTasksResponse:
        task_ids, refused = self._validate_ids(request.task_ids)
        wait_ms = self._validator.wait_ms(request.wait_ms)
        found = iter(zip(task_ids, await self._shard.wait_finished(task_ids, wait_ms), strict=True))
        reports = views.ReportReader(self._shard.kv, self._config.batch_bytes_max)
        response = pb.WaitTasksResponse()
        for at in range(len(request.task_ids)):
            answer = response.outcomes.add()
            task_id, task = next(found) if at not in refused else (b"", None)
            if task is None:
                self._reject(answer, rejections.task_not_found(), refused.get(at))
                continue
            report, omitted = reports.read(task_id)
            answer.task.MergeFrom(task_message(views.make_view(task_id, task, None, report), with_payload=False))
            answer.task.result_omitted = omitted and (task.state in ENDS or task.failures > 0)
        return response

    async def queue_stats(self, request: pb.QueueStatsRequest) -> pb.QueueStatsResponse:
        self._validator.queues(len(request.queues))
        await self._shard.be_current()
        response = pb.QueueStatsResponse()
        for at, name in enumerate(request.queues):
            item = response.outcomes.add()
            try:
                queue = self._validator.queue(name, f"queues[{at}]")
                counters = self._shard.queue(queue)
                if counters is None:
                    raise RefusedError(QUEUE_NOT_FOUND, f"Expected a queue named {name}, but it was never used.")
            except RefusedError as error:
                self._reject(item, None, error)
                continue
            self._fill_counts(item.counts, queue, counters)
        return response

    async def list_queues(self, request: pb.ListQueuesRequest) -> pb.ListQueuesResponse:
        limit = self._validator.page_size(request.page_size, PAGE_DEFAULT, PAGE_MAX)
        after = self._validator.queue_page_token(request.page_token)
        await self._shard.be_current()
        queues, more = views.read_queues(self._shard.kv, after, limit)
        response = pb.ListQueuesResponse(next_page_token=queues[-1][0].decode() if more else "")
        for at, (name, counters) in enumerate(queues):
            if at and at % QUEUES_PER_SLICE == 0:
                await asyncio.sleep(0)
            self._fill_counts(response.queues.add(), name, counters)
        return response

    def _fill_counts(self, message: pb.QueueCounts, name: bytes, counters: Queue) -> None:
        fill_queue(message, name.decode(), counters)
        message.oldest_ready_age_ms = self._shard.oldest_ready_age_ms(name, counters)
        message.waiting_reserves = self._shard.waiting_for(name)

    # --- workers ----------------------------------------------------------------------------------------------

    async def reserve(self, request: pb.ReserveRequest) -> pb.ReserveResponse:
        wanted = self._validator.reserve(request)
        now_ms = self._shard.now_ms()  # the worker counts its lease from when it asked, however long it waited
        claims = await self._shard.reserve(wanted)
        envelopes = views.read_envelopes(self._shard.kv, [claim.task_id for claim in claims])
        response = pb.ReserveResponse()
        for claim, envelope in zip(claims, envelopes, strict=True):
            if envelope is not None:
                fill_claim(response.claims.add(), claim, envelope, now_ms)
        self._metrics.tasks_claimed.inc(len(claims))
        return response

    async def await_tasks(self, request: pb.AwaitTasksRequest) -> pb.AwaitTasksResponse:
        ready, held = await self._shard.await_tasks(self._validator.await_tasks(request))
        return pb.AwaitTasksResponse(ready=ready, held=held)

    async def ack(self, request: pb.AckRequest) -> pb.AckResponse:
        self._validator.batch(len(request.items), "items")
        now_ms = self._shard.now_ms()
        policies = self._shard.policies
        items, refused = self._validate(request.items, "items", lambda item: self._ack_item(item, now_ms, policies))
        has_parcels = any(item.parcels for item in items)
        if has_parcels:
            await self._shard.use_level(MACHINE_LEVEL)

        def make_entry(keep_ms: int, _dead_ms: int, chosen: list[AckItem]) -> Entry:
            if has_parcels:
                return AckAway(now_ms, keep_ms, OUTBOX_TASKS_MAX, chosen)
            return Ack(now_ms, keep_ms, chosen)

        outcomes = await self._submit_kept(items, lambda item: item.task_id, make_entry)
        response = pb.AckResponse()
        for at, outcome in _in_order(len(request.items), outcomes, refused):
            answer = response.outcomes.add()
            if isinstance(outcome, Acked):
                answer.acked.SetInParent()
                for accepted in outcome.follow_ups:
                    fill_follow_up(answer.acked.follow_ups.add(), accepted)
            else:
                self._reject(answer, outcome, refused.get(at))
        self._metrics.tasks_acked.inc(_succeeded(outcomes))
        return response

    def _ack_item(self, item: pb.AckItem, now_ms: int, policies: Policies | None) -> AckItem:
        task_id, token = self._claim_ref(item.claim)
        result = self._validator.result(item.result) if item.HasField("result") else None
        follow_ups = self._validator.follow_ups(item, now_ms, policies) if item.follow_ups else ()
        parcels: list[Parcel] = []
        for at, new in enumerate(follow_ups):
            destination = self._shard.elsewhere(new.queue, new.request_id)
            if destination is not None:
                parcels.append(Parcel(at, destination, new.run_at_ms, new.envelope))
        if parcels:
            away = {parcel.place for parcel in parcels}
            follow_ups = tuple(new for at, new in enumerate(follow_ups) if at not in away)
        return AckItem(task_id, token, result, follow_ups, tuple(parcels))

    async def fail(self, request: pb.FailRequest) -> pb.FailResponse:
        self._validator.batch(len(request.items), "items")
        now_ms = self._shard.now_ms()
        policies = self._shard.policies
        items, refused = self._validate(request.items, "items", lambda item: self._fail_item(item, now_ms, policies))
        outcomes = await self._submit_kept(
            items, lambda item: item.task_id, lambda keep_ms, dead_ms, chosen: Fail(now_ms, keep_ms, dead_ms, chosen)
        )
        response = pb.FailResponse()
        dead = 0
        for at, outcome in _in_order(len(request.items), outcomes, refused):
            answer = response.outcomes.add()
            if isinstance(outcome, Failed):
                answer.failed.state = wire_state(outcome.state)
                answer.failed.retry_at_ms = outcome.retry_at_ms
                dead += outcome.state == DEAD
            else:
                self._reject(answer, outcome, refused.get(at))
        self._metrics.tasks_failed.inc(_succeeded(outcomes))
        self._metrics.tasks_dead.inc(dead)
        return response

    def _fail_item(self, item: pb.FailItem, now_ms: int, policies: Policies | None) -> FailItem:
        """Decides between another attempt and a dead letter. Only the holder's failure counts, so what is read here
        cannot change before the entry is applied without the holder losing its claim."""
        task_id, token = self._claim_ref(item.claim)
        error = self._validator.error(item.error)
        delay_ms = self._validator.retry_delay_ms(item)
        (task,) = self._shard.executions([task_id])
        verdict = fail_verdict(task, gave_up=item.dead) if task is not None else NOT_DEAD
        if verdict != NOT_DEAD:
            return FailItem(task_id, token, 0, verdict, error)
        if delay_ms is None:
            policy = self._default_policy if policies is None or task is None else policies.of(task.queue)
            delay_ms = policy.back_off.delay_ms((task.failures if task is not None else 0) + 1, self._draw)
        return FailItem(task_id, token, now_ms + delay_ms, NOT_DEAD, error)

    async def extend(self, request: pb.ExtendRequest) -> pb.ExtendResponse:
        self._validator.batch(len(request.items), "items")
        now_ms = self._shard.now_ms()
        items, refused = self._validate(request.items, "items", lambda item: self._extend_item(item, now_ms))
        outcomes = await self._submit(Extend(now_ms, items), items)
        response = pb.ExtendResponse()
        for at, outcome in _in_order(len(request.items), outcomes, refused):
            answer = response.outcomes.add()
            if isinstance(outcome, Extended):
                answer.extended.lease_ms = max(0, outcome.expiry_ms - now_ms)
                answer.extended.cancel_requested = outcome.cancel_requested
                answer.extended.draining = self._shard.is_draining
            else:
                self._reject(answer, outcome, refused.get(at))
        return response

    def _extend_item(self, item: pb.ExtendItem, now_ms: int) -> ExtendItem:
        task_id, token = self._claim_ref(item.claim)
        return ExtendItem(task_id, token, now_ms + self._validator.lease_ms(item.lease_ms))

    async def release(self, request: pb.ReleaseRequest) -> pb.ReleaseResponse:
        self._validator.batch(len(request.claims), "claims")
        items, refused = self._validate(request.claims, "claims", lambda ref: ClaimRef(*self._validator.claim_ref(ref)))
        now_ms = self._shard.now_ms()
        outcomes = await self._submit_kept(
            items, lambda item: item.task_id, lambda keep_ms, _dead_ms, chosen: Release(now_ms, keep_ms, chosen)
        )
        response = pb.ReleaseResponse()
        for at, outcome in _in_order(len(request.claims), outcomes, refused):
            answer = response.outcomes.add()
            if isinstance(outcome, Moved):
                answer.released.state = wire_state(outcome.state)
            else:
                self._reject(answer, outcome, refused.get(at))
        return response

    # --- other shards -----------------------------------------------------------------------------------------

    async def receive_tasks(self, request: couriers_pb.ReceiveTasksRequest) -> couriers_pb.ReceiveTasksResponse:
        """What the leader of another shard brings out of its outbox."""
        now_ms = self._shard.now_ms()
        new_tasks = self._validator.received(request, self._cluster_id(), self._shard.number, self._shard.policies)
        await self._shard.use_level(MACHINE_LEVEL)
        first = request.first_sequence
        entry = Receive(now_ms, request.source_shard, request.source_incarnation, first, new_tasks)
        (outcome,) = await self._shard.submit(entry)
        if not isinstance(outcome, Received):
            assert isinstance(outcome, Rejection)
            raise RefusedError(INVALID_FIELD, outcome.message, "first_sequence")
        duplicates = sum(accepted.duplicate for accepted in outcome.accepted)
        self._metrics.tasks_enqueued.inc(len(outcome.accepted) - duplicates)
        self._metrics.duplicates.inc(duplicates)
        return couriers_pb.ReceiveTasksResponse(received=outcome.last)

    # --- dead letters -----------------------------------------------------------------------------------------

    async def list_dead_letters(self, request: pb.ListDeadLettersRequest) -> pb.ListDeadLettersResponse:
        queue = self._validator.queue(request.queue)
        limit = self._validator.page_size(request.page_size, PAGE_DEFAULT, PAGE_MAX)
        after = self._validator.page_token(request.page_token)
        await self._shard.be_current()
        places, more = views.read_dead(self._shard.kv, queue, after, limit)
        response = pb.ListDeadLettersResponse()
        size = 0
        for at, place in enumerate(places):
            task = views.read_task(self._shard.kv, place[8:])
            if task is None:
                continue
            message = task_message(task, with_payload=False)
            size += message.ByteSize() + task.execution.size_bytes  # what was read counts, not only what is sent
            response.tasks.append(message)
            last = at == len(places) - 1
            if (last and more) or (not last and size > DEAD_PAGE_BYTES_MAX):
                response.next_page_token = place.hex()
                break
        return response

    async def get_dead_letter(self, request: pb.GetDeadLetterRequest) -> pb.GetDeadLetterResponse:
        task = await self._read_task(request.task_id)
        if task.execution.state != DEAD:
            raise RefusedError(*rejections.not_dead(task.execution.state_name), field="task_id")
        return pb.GetDeadLetterResponse(task=task_message(task))

    async def retry_dead_letters(self, request: pb.RetryDeadLettersRequest) -> pb.RetryDeadLettersResponse:
        response = pb.RetryDeadLettersResponse()
        await self._for_dead(request.task_ids, RetryDead, response.outcomes.add)
        return response

    async def discard_dead_letters(self, request: pb.DiscardDeadLettersRequest) -> pb.DiscardDeadLettersResponse:
        response = pb.DiscardDeadLettersResponse()
        await self._for_dead(request.task_ids, DiscardDead, response.outcomes.add)
        return response

    async def _for_dead(
        self,
        texts: Sequence[str],
        make_entry: Callable[[int, list[bytes]], Entry],
        add: Callable[[], pb.DeadLetterOutcome],
    ) -> None:
        task_ids, refused = self._validate_ids(texts)
        outcomes = await self._submit(make_entry(self._shard.now_ms(), task_ids), task_ids)
        for at, outcome in _in_order(len(texts), outcomes, refused):
            answer = add()
            if isinstance(outcome, Moved):
                answer.done.SetInParent()
            else:
                self._reject(answer, outcome, refused.get(at))

    # --- shared -----------------------------------------------------------------------------------------------

    def _validate(
        self, items: Sequence[Item], field: str, check: Callable[[Item], Valid]
    ) -> tuple[list[Valid], dict[int, RefusedError]]:
        """The valid items, and the refusals of the others by their place in the request's `field`."""
        valid: list[Valid] = []
        refused: dict[int, RefusedError] = {}
        for at, item in enumerate(items):
            try:
                valid.append(check(item))
            except RefusedError as error:
                refused[at] = error.within(f"{field}[{at}]")
        return valid, refused

    def _validate_ids(self, texts: Sequence[str]) -> tuple[list[bytes], dict[int, RefusedError]]:
        self._validator.batch(len(texts), "task_ids")
        return self._validate(texts, "task_ids", lambda text: self._validator.task_id(text, ""))

    def _claim_ref(self, ref: pb.ClaimRef) -> tuple[bytes, int]:
        try:
            return self._validator.claim_ref(ref)
        except RefusedError as error:
            raise error.within("claim") from None

    async def _submit(self, entry: Entry, items: Sequence[object]) -> list[Outcome]:
        return await self._shard.submit(entry) if items else []

    async def _submit_kept(
        self,
        items: Sequence[Valid],
        task_id_of: Callable[[Valid], bytes],
        make_entry: Callable[[int, int, list[Valid]], Entry],  # of how long what ends is kept, finished or dead
    ) -> list[Outcome]:
        """The outcomes of items in their order. What ends is kept as its queue says, and an entry says it but once: so
        items of queues that differ in this go into different entries, which are taken together or not at all."""
        if not items:
            return []
        policies, default = self._shard.policies, self._default_policy
        if policies is None:
            keep_ms, dead_ms = default.finished_retention_ms, default.dead_retention_ms
            return await self._shard.submit(make_entry(keep_ms, dead_ms, list(items)))
        groups = policies.kept(self._shard.executions([task_id_of(item) for item in items]))
        entries = [make_entry(keep_ms, dead_ms, [items[at] for at in places]) for keep_ms, dead_ms, places in groups]
        by_place: dict[int, Outcome] = {}
        for group, outcomes in zip(groups, await self._shard.submit_all(entries), strict=True):
            by_place.update(zip(group.places, outcomes, strict=True))
        return [by_place[at] for at in range(len(items))]

    async def _read_task(self, text: str) -> views.TaskView:
        task_id = self._validator.task_id(text)
        await self._shard.be_current()
        task = views.read_task(self._shard.kv, task_id)
        if task is None:
            raise RefusedError(*rejections.task_not_found(), field="task_id")
        return task

    def _reject(self, answer: _HasRejection, outcome: Outcome | None, refused: RefusedError | None) -> None:
        message = answer.rejection
        if refused is not None:
            message.reason = refused.reason
            message.message = refused.message
            message.field = refused.field
            message.retry_after_ms = refused.retry_after_ms
        elif isinstance(outcome, Rejection):
            message.reason, message.message = outcome
            if outcome.code == rejections.OUTBOX_FULL:
                message.retry_after_ms = OUTBOX_RETRY_MS
        self._metrics.rejected(message.reason).inc()


def _in_order(
    count: int, outcomes: Sequence[Outcome], refused: dict[int, RefusedError]
) -> Iterator[tuple[int, Outcome | None]]:
    """The outcome of each item of a request, None for those that were refused before they were proposed."""
    applied = iter(outcomes)
    for at in range(count):
        yield at, None if at in refused else next(applied)


def _succeeded(outcomes: Sequence[Outcome]) -> int:
    return sum(not isinstance(outcome, Rejection) for outcome in outcomes)
