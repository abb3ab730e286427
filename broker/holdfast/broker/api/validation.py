"""Turns requests into what the shard works with, or refuses them with the field and the limit. Pure."""

from collections.abc import Mapping, Sequence

from holdfast.broker.api.page_tokens import PageTokens
from holdfast.broker.leader.ready_waiters import AwaitWanted
from holdfast.broker.leader.reserver import ReserveWanted
from holdfast.broker.leader.stats import Heartbeat
from holdfast.broker.policy import fields
from holdfast.broker.policy.policies import Policies
from holdfast.broker.policy.run_specs import RunSpecs
from holdfast.broker.policy.settings_guard import SETTINGS
from holdfast.broker.policy.task_specs import ERROR_TYPE_BYTES_MAX
from holdfast.broker.quota.coordinator import LIMITS
from holdfast.machine.ids import (
    INCARNATION_MAX,
    SECRET_BITS,
    SEQUENCE_MAX,
    SHARD_MAX,
    TIME_MS_MAX,
    TOKEN_NUMBER_MAX,
    parse_task_id,
)
from holdfast.machine.keys import PRIORITY_MAX
from holdfast.machine.new_tasks import NewTask
from holdfast.machine.operator_entries import KEEP_PRIORITY, KEEP_START, START_AT, UpdateItem
from holdfast.machine.rejections import request_id_conflict
from holdfast.machine.rows import DEAD_REASONS, STATE_NAMES
from holdfast.machine.run_entries import AckRange
from holdfast.proto.v1 import broker_calls_pb2 as calls_pb
from holdfast.proto.v1 import queues_pb2 as queues_pb
from holdfast.proto.v1 import tasks_pb2 as pb
from holdfast.routing.sets import is_automatic_key
from holdfast.serving.refusals import BATCH_TOO_LARGE, INVALID_FIELD, MISSING_FIELD, RefusedError
from holdfast.serving.request_limits import (
    FOLLOW_UPS_MAX,
    LEASES_PER_RESERVE_MAX,
    QUEUES_PER_RESERVE_MAX,
    QUEUES_PER_STATS_MAX,
)

PAGE_DEFAULT = 100
PAGE_MAX = 1000
CALLERS_MAX = 1_000_000  # behind one wait
NUMBER_MAX = (1 << 63) - 1
MESSAGES_MAX = 1000  # in one call of a relay, whatever clients may send: it must get rid of what was accepted
ERROR_TEXT_BYTES_MAX = 16 * 1024
SLOTS_MAX = 1_000_000  # of a worker
DESIRED_STATES = (
    queues_pb.WORKER_STATE_RUNNING,
    queues_pb.WORKER_STATE_QUIET,
    queues_pb.WORKER_STATE_STOPPING,
)
WORKER_STATES = (*DESIRED_STATES, queues_pb.WORKER_STATE_DRAINED, queues_pb.WORKER_STATE_GONE)


def _empty_handed(request: pb.ReserveRequest | pb.AwaitTasksRequest) -> bool | None:
    empty_handed = request.empty_handed if request.HasField("empty_handed") else None
    if request.suspects_only and not empty_handed:
        sentence = "Expected {field} only with empty_handed, but got it without: suspects are given to no one else."
        raise RefusedError(INVALID_FIELD, sentence, "suspects_only")
    return empty_handed


def _held_only(request: pb.ReserveRequest) -> bool:
    if request.held_only and not request.claim_request_id:
        sentence = (
            "Expected {field} only with a claim_request_id, but got it without: nothing else names earlier claims."
        )
        raise RefusedError(INVALID_FIELD, sentence, "held_only")
    return request.held_only


def _refuse_conflicts(follow_ups: Sequence[NewTask]) -> None:
    """Of one ack, wherever they go: the shards that some are for do not see the others."""
    digests: dict[tuple[bytes, bytes], int] = {}
    for index, new in enumerate(follow_ups):
        if new.digest and digests.setdefault((new.queue, new.request_id), new.digest) != new.digest:
            conflict = request_id_conflict()
            raise RefusedError(conflict.code, conflict.message, f"follow_ups[{index}].request_id")


def _at_the_right_door(
    request: calls_pb.ReceiveTasksRequest | calls_pb.AllocateRequest, cluster_id: str, shard: int
) -> None:
    if cluster_id and request.cluster_id != cluster_id:
        sentence = f"Expected messages for the cluster {cluster_id}, but these are for another one."
        raise RefusedError(INVALID_FIELD, sentence, "cluster_id")
    if request.destination_shard != shard:
        sentence = f"Expected messages for shard {shard}, but these are for shard {request.destination_shard}."
        raise RefusedError(INVALID_FIELD, sentence, "destination_shard")


def _worker_name(name: str) -> bytes:
    if not name:
        raise RefusedError(MISSING_FIELD, "Expected {field} to name a worker, but it is empty.", "worker")
    return fields.text(name, "worker")


def _one_of(state: queues_pb.WorkerState, field: str, states: Sequence[queues_pb.WorkerState]) -> queues_pb.WorkerState:
    if state not in states:
        names = ", ".join(queues_pb.WorkerState.Name(state) for state in states)
        raise RefusedError(INVALID_FIELD, f"Expected {{field}} to be one of {names}, but got {state}.", field)
    return state


class Validator(RunSpecs, PageTokens):
    """Checks requests against the limits of this node."""

    # --- shared -----------------------------------------------------------------------------------------------

    def batch(self, count: int, field: str) -> None:
        if not 0 < count <= self._config.batch_tasks_max:
            fields.batch(count, field, self._config.batch_tasks_max)  # refuses

    def queues(self, count: int) -> None:
        fields.batch(count, "queues", QUEUES_PER_STATS_MAX)

    def task_id(self, text: str, field: str = "task_id") -> bytes:
        task_id = parse_task_id(text)
        if task_id is None:
            reason = INVALID_FIELD if text else MISSING_FIELD
            raise RefusedError(reason, "Expected {field} to be a task id as Enqueue returned it, but it is not.", field)
        return task_id

    def page_size(self, value: int, default: int, largest: int) -> int:
        return fields.number(value, "page_size", 0, largest) or default

    def wait_ms(self, value: int) -> int:
        return fields.number(value, "wait_ms", 0, self._config.wait_ms_max)

    # --- tasks ------------------------------------------------------------------------------------------------

    def update_item(self, item: pb.UpdateItem, now_ms: int) -> UpdateItem:
        task_id = self.task_id(item.task_id)
        start = item.WhichOneof("start")
        if start is None and not item.HasField("priority"):
            raise RefusedError(MISSING_FIELD, "Expected {field} or a time to start, but got neither.", "priority")
        priority = KEEP_PRIORITY
        if item.HasField("priority"):
            priority = fields.number(item.priority, "priority", 0, PRIORITY_MAX)
        if start is None:
            return UpdateItem(task_id, priority, KEEP_START, 0)
        limit_ms = self._config.delay_ms_max
        if start == "run_at_ms":
            run_at_ms = fields.number(item.run_at_ms, "run_at_ms", 0, now_ms + limit_ms)
        else:
            run_at_ms = now_ms + fields.number(item.delay_ms, "delay_ms", 0, limit_ms)
        return UpdateItem(task_id, priority, START_AT, run_at_ms)

    def snooze_ms(self, value: int) -> int:
        return fields.number(value, "delay_ms", 0, self._config.delay_ms_max)

    def dead_letter_filter(self, wanted: pb.DeadLetterFilter) -> pb.DeadLetterFilter:
        for field in ("type", "tenant", "error"):
            fields.size(len(getattr(wanted, field).encode()), f"filter.{field}", fields.ID_BYTES_MAX)
        for field in ("died_from_ms", "died_before_ms"):
            fields.number(getattr(wanted, field), f"filter.{field}", 0, TIME_MS_MAX)
        if wanted.reason and wanted.reason not in DEAD_REASONS.values():
            known = ", ".join(filter(None, DEAD_REASONS.values()))
            raise RefusedError(
                INVALID_FIELD, f"Expected {{field}} to be one of {known}, but it is not.", "filter.reason"
            )
        return wanted

    def task_filter(self, wanted: queues_pb.TaskFilter) -> tuple[frozenset[int], bytes, bytes, bytes, int]:
        """States (all if none are named), type, tenant, worker and least age."""
        if not set(wanted.states) <= STATE_NAMES.keys():
            known = ", ".join(STATE_NAMES.values())
            raise RefusedError(INVALID_FIELD, f"Expected {{field}} to be of {known}, but got another.", "filter.states")
        texts = [getattr(wanted, field).encode() for field in ("type", "tenant", "worker")]
        for field, text in zip(("type", "tenant", "worker"), texts, strict=True):
            fields.size(len(text), f"filter.{field}", fields.ID_BYTES_MAX)
        age_ms = fields.number(wanted.min_age_ms, "filter.min_age_ms", 0, TIME_MS_MAX)
        return frozenset(wanted.states or STATE_NAMES), *texts, age_ms

    def heartbeat(self, request: queues_pb.HeartbeatRequest) -> Heartbeat:
        fields.batch(len(request.queues) or 1, "queues", QUEUES_PER_RESERVE_MAX)
        state = _one_of(request.state, "state", WORKER_STATES)
        slots = fields.number(request.slots, "slots", 0, SLOTS_MAX)
        queues = tuple(self.queue(name, f"queues[{index}]") for index, name in enumerate(request.queues))
        return Heartbeat(_worker_name(request.worker), state, slots, fields.text(request.version, "version"), queues)

    def worker_signal(self, request: queues_pb.SignalWorkerRequest) -> tuple[bytes, queues_pb.WorkerState]:
        """Who, and the state that is wanted."""
        return _worker_name(request.worker), _one_of(request.desired, "desired", DESIRED_STATES)

    def own_request_id(self, text: str) -> None:
        """Where no client makes one up: what such an id stands for is not compared."""
        if is_automatic_key(text):
            raise RefusedError(
                INVALID_FIELD,
                "Expected {field} that does not look like one that clients make up (~0.x.0), but it does.",
                "request_id",
            )

    def signature(self, text: str, field: str) -> bytes:
        """Who did something, or why."""
        return fields.text(text, field)

    def received(
        self,
        request: calls_pb.ReceiveTasksRequest,
        now_ms: int,
        cluster_id: str,
        shard: int,
        policies: Policies | None,
    ) -> list[NewTask]:
        """What a relay brings, if it is at the right door."""
        _at_the_right_door(request, cluster_id, shard)
        fields.batch(len(request.messages), "messages", MESSAGES_MAX)
        fields.number(request.source_shard, "source_shard", 0, SHARD_MAX)
        fields.number(request.source_incarnation, "source_incarnation", 0, INCARNATION_MAX)
        fields.number(request.first_sequence, "first_sequence", 1, SEQUENCE_MAX)
        new_tasks = []
        for index, message in enumerate(request.messages):
            try:
                new_tasks.append(self.received_task(message.task, now_ms, message.run_at_ms, policies))
            except RefusedError as error:
                raise error.within(f"messages[{index}]") from None
        return new_tasks

    def allocation_reports(self, request: calls_pb.AllocateRequest, cluster_id: str, shard: int) -> None:
        _at_the_right_door(request, cluster_id, shard)
        fields.batch(len(request.reports), "reports", MESSAGES_MAX)
        fields.number(request.source_shard, "source_shard", 0, SHARD_MAX)
        for index, report in enumerate(request.reports):
            self.queue(report.queue, f"reports[{index}].queue")
            if report.what not in LIMITS and report.what != SETTINGS:
                sentence = "Expected {field} to be concurrency, rate or settings."
                raise RefusedError(INVALID_FIELD, sentence, f"reports[{index}].what")
            for name in ("holds", "uses", "demand", "number", "version"):
                fields.number(getattr(report, name), f"reports[{index}].{name}", 0, NUMBER_MAX)

    # --- claims -----------------------------------------------------------------------------------------------

    def claim_ref(self, ref: pb.ClaimRef | pb.AckRange) -> tuple[bytes, int]:
        task_id = self.task_id(ref.task_id)
        token, secret = ref.token, ref.secret
        if not token or not secret:
            name = "secret" if token else "token"
            raise RefusedError(MISSING_FIELD, "Expected {field} from the claim, but it is missing.", name)
        return task_id, token << SECRET_BITS | secret

    def ack_range(self, wanted: pb.AckRange) -> AckRange:
        task_id, token = self.claim_ref(wanted)
        count = fields.number(wanted.count, "count", 1, self._config.batch_tasks_max)
        fields.number(wanted.token, "token", 1, TOKEN_NUMBER_MAX - count + 1)  # each of the others has one, too
        return AckRange(task_id, token, count)

    def lease_ms(self, value: int, field: str = "lease_ms") -> int:
        return fields.number(value, field, self._config.lease_ms_min, self._config.lease_ms_max)

    def result(self, result: bytes) -> bytes:
        fields.size(len(result), "result", self._config.result_bytes_max)
        return result

    def all_follow_ups(self, items: Sequence[pb.AckItem]) -> None:
        """Of all acks of a call together, like the tasks of an Enqueue; one ack may always have its own number."""
        count_max = max(self._config.batch_tasks_max, FOLLOW_UPS_MAX)
        count = sum([len(item.follow_ups) for item in items])
        if count > count_max:
            sentence = f"Expected at most {count_max} follow-ups of all acks together ({{field}}), but got {count}; "
            sentence += "send the acks in several calls."
            raise RefusedError(BATCH_TOO_LARGE, sentence, "items.follow_ups", str(count_max))

    def follow_ups(self, item: pb.AckItem, now_ms: int, policies: Policies | None = None) -> tuple[NewTask, ...]:
        if len(item.follow_ups) > FOLLOW_UPS_MAX:
            fields.batch(len(item.follow_ups), "follow_ups", FOLLOW_UPS_MAX)
        new_tasks = []
        for index, spec in enumerate(item.follow_ups):
            try:
                new_tasks.append(self.new_task(spec, now_ms, policies))
            except RefusedError as error:
                raise error.within(f"follow_ups[{index}]") from None
        if len(new_tasks) > 1:
            _refuse_conflicts(new_tasks)
        return tuple(new_tasks)

    def error(self, error: pb.TaskError) -> bytes:
        fields.size(len(error.type.encode()), "error.type", ERROR_TYPE_BYTES_MAX)
        fields.size(len(error.message.encode()), "error.message", ERROR_TEXT_BYTES_MAX)
        fields.size(len(error.traceback.encode()), "error.traceback", ERROR_TEXT_BYTES_MAX)
        return error.SerializeToString()

    def retry_delay_ms(self, item: pb.FailItem) -> int | None:
        if not item.HasField("retry_delay_ms"):
            return None
        if item.HasField("retry_at_ms"):
            raise RefusedError(INVALID_FIELD, "Expected retry_delay_ms or {field}, but got both.", "retry_at_ms")
        return fields.number(item.retry_delay_ms, "retry_delay_ms", 0, self._config.delay_ms_max)

    def retry_at_ms(self, item: pb.FailItem, now_ms: int) -> int | None:
        if not item.HasField("retry_at_ms"):
            return None
        return fields.number(item.retry_at_ms, "retry_at_ms", 0, now_ms + self._config.delay_ms_max)

    def _queues_to_claim_from(self, names: Sequence[str]) -> list[bytes]:
        fields.batch(len(names), "queues", QUEUES_PER_RESERVE_MAX)
        known = self._known_queues.get
        return [known(name) or self.queue(name, f"queues[{index}]") for index, name in enumerate(names)]

    def await_tasks(self, request: pb.AwaitTasksRequest) -> AwaitWanted:
        return AwaitWanted(
            queues=list(dict.fromkeys(self._queues_to_claim_from(request.queues))),
            wait_ms=self.wait_ms(request.wait_ms),
            worker=fields.name(request.worker, "worker"),
            request_id=fields.text(request.claim_request_id, "claim_request_id"),
            tasks_max=fields.number(request.max_tasks, "max_tasks", 0, self._config.batch_tasks_max) or 1,
            callers=fields.number(request.callers, "callers", 0, CALLERS_MAX) or 1,
            empty_handed=_empty_handed(request),
            suspects_only=request.suspects_only,
        )

    def reserve(self, request: pb.ReserveRequest) -> ReserveWanted:
        config = self._config
        queues = self._queues_to_claim_from(request.queues)
        return ReserveWanted(
            queues=list(dict.fromkeys(queues)),
            tasks_max=fields.number(request.max_tasks, "max_tasks", 1, config.batch_tasks_max),
            lease_ms=self.lease_ms(request.lease_ms),
            wait_ms=self.wait_ms(request.wait_ms),
            worker=fields.name(request.worker, "worker"),
            request_id=fields.text(request.claim_request_id, "claim_request_id"),
            queue_tasks_max=self._queue_tasks_max(queues, request.queue_tasks_max) if request.queue_tasks_max else {},
            type_lease_ms=self._type_lease_ms(request.type_lease_ms) if request.type_lease_ms else {},
            empty_handed=_empty_handed(request),
            suspects_only=request.suspects_only,
            held_only=_held_only(request),
        )

    def _type_lease_ms(self, leases: Mapping[str, int]) -> dict[bytes, int]:
        field = "type_lease_ms"
        fields.batch(len(leases), field, LEASES_PER_RESERVE_MAX)
        return {fields.name(name, field): self.lease_ms(lease_ms, field) for name, lease_ms in leases.items()}

    def _queue_tasks_max(self, queues: Sequence[bytes], limits: Sequence[int]) -> dict[bytes, int]:
        """The limits by queue; the smallest one counts where a queue is named twice."""
        field = "queue_tasks_max"
        if len(limits) != len(queues):
            raise RefusedError(
                INVALID_FIELD,
                f"Expected {{field}} to be empty or to have one number per queue, {len(queues)} in all, but got "
                f"{len(limits)}.",
                field,
                str(len(queues)),
            )
        by_queue: dict[bytes, int] = {}
        for index, (queue, limit) in enumerate(zip(queues, limits, strict=True)):
            if fields.number(limit, f"{field}[{index}]", 0, self._config.batch_tasks_max):
                by_queue[queue] = min(limit, by_queue.get(queue, limit))
        return by_queue
