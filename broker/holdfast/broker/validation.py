"""Turns requests into what the shard works with, or refuses them with the field and the limit. Pure."""

import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from hashlib import blake2b

from holdfast.broker.awaiting import AwaitWanted
from holdfast.broker.config import BrokerConfig
from holdfast.broker.dealer import LIMITS
from holdfast.broker.page_tokens import QUEUE_NAME, PageTokens
from holdfast.broker.policies import (
    ATTEMPTS_MAX,
    CLAIMS_MAX,
    TIMEOUT_MS_MAX,
    TIMEOUT_MS_MIN,
    TTL_MS_MAX,
    TTL_MS_MIN,
    Policies,
    QueuePolicy,
    default_policy,
)
from holdfast.broker.reserving import ReserveWanted
from holdfast.broker.settings_guard import SETTINGS
from holdfast.broker.stats import Heartbeat
from holdfast.machine.ids import INCARNATION_MAX, SECRET_BITS, SEQUENCE_MAX, SHARD_MAX, TIME_MS_MAX, parse_task_id
from holdfast.machine.keys import PRIORITY_MAX
from holdfast.machine.new_tasks import NewTask
from holdfast.machine.operator_entries import KEEP_PRIORITY, KEEP_START, START_AT, UpdateItem
from holdfast.machine.rejections import request_id_conflict
from holdfast.machine.rows import DEAD_REASONS, HAS_RETRY, STATE_NAMES, UNIQUE_UNTIL_DONE, UNIQUE_WHILE_WAITING
from holdfast.proto.v1 import couriers_pb2 as couriers_pb
from holdfast.proto.v1 import queues_pb2 as queues_pb
from holdfast.proto.v1 import tasks_pb2 as pb
from holdfast.routing.sets import is_made_up
from holdfast.serving.refusals import (
    BATCH_TOO_LARGE,
    INVALID_FIELD,
    MISSING_FIELD,
    OUT_OF_RANGE,
    TOO_LARGE,
    RefusedError,
)
from holdfast.serving.request_limits import (
    FOLLOW_UPS_MAX,
    HEADERS_MAX,
    LEASES_PER_RESERVE_MAX,
    NON_RETRYABLE_MAX,
    QUEUES_PER_RESERVE_MAX,
    QUEUES_PER_STATS_MAX,
)

ID_BYTES_MAX = 256
HEADERS_BYTES_MAX = 16 * 1024
PAGE_DEFAULT = 100
PAGE_MAX = 1000
CALLERS_MAX = 1_000_000  # behind one wait
NUMBER_MAX = (1 << 63) - 1
LETTERS_MAX = 1000  # in one call of a courier, whatever clients may send: it must get rid of what was accepted
REQUEST_ID_TTL_MS_MIN = 1000
REQUEST_ID_TTL_MS_MAX = 366 * 24 * 60 * 60 * 1000
ERROR_TYPE_BYTES_MAX = 256
ERROR_TEXT_BYTES_MAX = 16 * 1024
PRIORITY_DEFAULT = 5
TEXTS_KNOWN_MAX = 10_000
SLOTS_MAX = 1_000_000  # of a worker
DESIRED_STATES = (
    queues_pb.WORKER_STATE_RUNNING,
    queues_pb.WORKER_STATE_QUIET,
    queues_pb.WORKER_STATE_STOPPING,
)
WORKER_STATES = (*DESIRED_STATES, queues_pb.WORKER_STATE_DRAINED, queues_pb.WORKER_STATE_GONE)

_UNIQUE_FLAGS = {
    pb.UNIQUE_SCOPE_UNSPECIFIED: UNIQUE_UNTIL_DONE,
    pb.UNIQUE_SCOPE_UNTIL_DONE: UNIQUE_UNTIL_DONE,
    pb.UNIQUE_SCOPE_WHILE_WAITING: UNIQUE_WHILE_WAITING,
}

_QUEUE_NAME_ALLOWED = "1-128 of [A-Za-z0-9._-]"
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")


def _number(value: int, field: str, low: int, high: int) -> int:
    _fraction(value, field, low, high)
    return value


def _fraction(value: float, field: str, low: float, high: float) -> None:
    """What is no number at all is not between any two."""
    if not low <= value <= high:
        raise RefusedError(
            OUT_OF_RANGE, f"Expected {{field}} from {low} to {high}, but got {value}.", field, f"{low}..{high}"
        )


def _size(size: int, field: str, size_max: int, unit: str = "bytes") -> None:
    if size > size_max:
        raise RefusedError(
            TOO_LARGE, f"Expected {{field}} of at most {size_max} {unit}, but got {size}.", field, str(size_max)
        )


def _text(value: str, field: str, bytes_max: int = ID_BYTES_MAX) -> bytes:
    """A text that may be empty; control characters would break logs, keys and terminals."""
    encoded = value.encode()
    _size(len(encoded), field, bytes_max)
    if _CONTROL.search(value):
        raise RefusedError(INVALID_FIELD, "Expected {field} without control characters, but it has some.", field)
    return encoded


_name = lru_cache(maxsize=4096)(_text)  # of what many tasks have in common


def _batch(count: int, field: str, count_max: int) -> None:
    if not count:
        raise RefusedError(MISSING_FIELD, "Expected at least one item in {field}, but got none.", field)
    if count > count_max:
        raise RefusedError(
            BATCH_TOO_LARGE, f"Expected at most {count_max} items in {{field}}, but got {count}.", field, str(count_max)
        )


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


def _digest(spec: pb.TaskSpec) -> int:
    """What a request id stands for, in short: not when, how urgently or how often."""
    hashed = blake2b(digest_size=8)
    texts = [spec.type, spec.tenant, spec.unique_key, spec.limit_key]
    for name in sorted(spec.headers):
        texts += (name, spec.headers[name])
    for part in (*map(str.encode, texts), spec.payload):
        hashed.update(len(part).to_bytes(4, "big"))
        hashed.update(part)
    return int.from_bytes(hashed.digest(), "big") or 1  # 0 means: not to be compared


def _refuse_conflicts(follow_ups: Sequence[NewTask]) -> None:
    """Of one ack, wherever they go: the shards that some are for do not see the others."""
    digests: dict[tuple[bytes, bytes], int] = {}
    for at, new in enumerate(follow_ups):
        if new.digest and digests.setdefault((new.queue, new.request_id), new.digest) != new.digest:
            conflict = request_id_conflict()
            raise RefusedError(conflict.code, conflict.message, f"follow_ups[{at}].request_id")


def _at_the_right_door(
    request: couriers_pb.ReceiveTasksRequest | couriers_pb.DealSharesRequest, cluster_id: str, shard: int
) -> None:
    if cluster_id and request.cluster_id != cluster_id:
        sentence = f"Expected letters for the cluster {cluster_id}, but these are for another one."
        raise RefusedError(INVALID_FIELD, sentence, "cluster_id")
    if request.destination_shard != shard:
        sentence = f"Expected letters for shard {shard}, but these are for shard {request.destination_shard}."
        raise RefusedError(INVALID_FIELD, sentence, "destination_shard")


def _worker_name(name: str) -> bytes:
    if not name:
        raise RefusedError(MISSING_FIELD, "Expected {field} to name a worker, but it is empty.", "worker")
    return _text(name, "worker")


def _one_of(state: queues_pb.WorkerState, field: str, states: Sequence[queues_pb.WorkerState]) -> queues_pb.WorkerState:
    if state not in states:
        names = ", ".join(queues_pb.WorkerState.Name(each) for each in states)
        raise RefusedError(INVALID_FIELD, f"Expected {{field}} to be one of {names}, but got {state}.", field)
    return state


class Validator(PageTokens):
    """Checks requests against the limits of this node."""

    def __init__(self, config: BrokerConfig) -> None:
        self._config = config
        self._default_policy = default_policy(config)
        self._known_queues: dict[str, bytes] = {}
        self._known_types: set[str] = set()

    # --- shared -----------------------------------------------------------------------------------------------

    def batch(self, count: int, field: str) -> None:
        _batch(count, field, self._config.batch_tasks_max)

    def queues(self, count: int) -> None:
        _batch(count, "queues", QUEUES_PER_STATS_MAX)

    def queue(self, name: str, field: str = "queue") -> bytes:
        known = self._known_queues.get(name)
        if known is not None:
            return known
        if not name:
            raise RefusedError(MISSING_FIELD, "Expected {field} to name a queue, but it is empty.", field)
        if not QUEUE_NAME.fullmatch(name):
            raise RefusedError(
                INVALID_FIELD, f"Expected {{field}} of {_QUEUE_NAME_ALLOWED}, but got another name.", field,
                _QUEUE_NAME_ALLOWED,
            )  # fmt: skip
        if len(self._known_queues) >= TEXTS_KNOWN_MAX:
            self._known_queues.clear()
        encoded = self._known_queues[name] = name.encode()
        return encoded

    def task_id(self, text: str, field: str = "task_id") -> bytes:
        task_id = parse_task_id(text)
        if task_id is None:
            reason = INVALID_FIELD if text else MISSING_FIELD
            raise RefusedError(reason, "Expected {field} to be a task id as Enqueue returned it, but it is not.", field)
        return task_id

    def page_size(self, value: int, default: int, largest: int) -> int:
        return _number(value, "page_size", 0, largest) or default

    def wait_ms(self, value: int) -> int:
        return _number(value, "wait_ms", 0, self._config.wait_ms_max)

    # --- tasks ------------------------------------------------------------------------------------------------

    def new_task(self, spec: pb.TaskSpec, now_ms: int, policies: Policies | None = None) -> NewTask:
        """`policies` of the shard's queues; None if all are as the configuration says."""
        queue = self.queue(spec.queue)
        policy = self._default_policy if policies is None else policies.of(queue)
        if spec.type not in self._known_types:
            self._type(spec.type)
        self.task_sizes(spec)
        return self._make_task(spec, queue, policy, now_ms, self._run_at_ms(spec, now_ms), self._config.delay_ms_max)

    def task_sizes(self, spec: pb.TaskSpec) -> None:
        """Of what may be large: to be called before anything is made of a task."""
        _size(len(spec.payload), "payload", self._config.payload_bytes_max)
        if spec.headers:
            self._headers(spec)

    def received_task(self, spec: pb.TaskSpec, now_ms: int, run_at_ms: int, policies: Policies | None) -> NewTask:
        """A task that another shard has accepted: limits of size and time were its business, defaults are ours."""
        queue = self.queue(spec.queue)
        policy = self._default_policy if policies is None else policies.of(queue)
        run_at_ms = _number(run_at_ms, "run_at_ms", 0, TIME_MS_MAX)
        return self._make_task(spec, queue, policy, now_ms, run_at_ms, TIME_MS_MAX)

    def _make_task(
        self, spec: pb.TaskSpec, queue: bytes, policy: QueuePolicy, now_ms: int, run_at_ms: int, delay_ms_max: int
    ) -> NewTask:
        priority = PRIORITY_DEFAULT
        if spec.HasField("priority"):
            priority = _number(spec.priority, "priority", 0, PRIORITY_MAX)
        tenant, limit_key, request_id = spec.tenant, spec.limit_key, spec.request_id
        max_attempts, max_claims = self._budgets(spec, policy)
        return NewTask(
            queue,
            priority,
            _name(tenant, "tenant") if tenant else b"",
            _text(request_id, "request_id") if request_id else b"",
            self._dedup_window_ms(spec, policy),
            run_at_ms,
            max_attempts,
            max_claims,
            self._result_ttl_ms(spec, policy, delay_ms_max),
            spec.SerializeToString(),
            spec.type.encode(),
            _name(limit_key, "limit_key") if limit_key else b"",
            _text(spec.unique_key, "unique_key") if spec.unique_key else b"",
            self._flags(spec, delay_ms_max),
            self._timeout_ms(spec, policy),
            self._start_by_ms(spec, policy, max(now_ms, run_at_ms)),
            _digest(spec) if request_id and not is_made_up(request_id) else 0,
        )

    def _flags(self, spec: pb.TaskSpec, delay_ms_max: int) -> int:
        flags = 0
        if spec.HasField("retry"):
            self._retry(spec.retry, delay_ms_max)
            flags |= HAS_RETRY
        if spec.unique_key:
            flag = _UNIQUE_FLAGS.get(spec.unique_scope)
            if flag is None:
                raise RefusedError(
                    INVALID_FIELD, f"Expected {{field}} from 0 to 2, but got {spec.unique_scope}.", "unique_scope"
                )
            flags |= flag
        elif spec.unique_scope:
            raise RefusedError(
                INVALID_FIELD, "Expected {field} only together with a unique_key, but there is none.", "unique_scope"
            )
        return flags

    @staticmethod
    def _retry(retry: pb.RetryPolicy, delay_ms_max: int) -> None:
        if retry.shape not in pb.RetryShape.values():
            raise RefusedError(INVALID_FIELD, f"Expected {{field}} from 0 to 3, but got {retry.shape}.", "retry.shape")
        if retry.HasField("base_ms"):
            _number(retry.base_ms, "retry.base_ms", 0, delay_ms_max)
        if retry.HasField("factor"):
            _fraction(retry.factor, "retry.factor", 1, 100)
        if retry.HasField("cap_ms"):
            _number(retry.cap_ms, "retry.cap_ms", 0, delay_ms_max)
            if retry.base_ms > retry.cap_ms:
                message = f"Expected {{field}} of at most cap_ms ({retry.cap_ms}), but it is {retry.base_ms}."
                raise RefusedError(OUT_OF_RANGE, message, "retry.base_ms", f"0..{retry.cap_ms}")
        if retry.HasField("jitter"):
            _fraction(retry.jitter, "retry.jitter", 0, 1)
        _size(len(retry.non_retryable), "retry.non_retryable", NON_RETRYABLE_MAX, "types")
        for at, name in enumerate(retry.non_retryable):
            field = f"retry.non_retryable[{at}]"
            if not name:
                raise RefusedError(MISSING_FIELD, "Expected {field} to name a type of errors, but it is empty.", field)
            _text(name, field, ERROR_TYPE_BYTES_MAX)

    @staticmethod
    def _timeout_ms(spec: pb.TaskSpec, policy: QueuePolicy) -> int:
        if not spec.HasField("timeout_ms"):
            return policy.timeout_ms
        return _number(spec.timeout_ms, "timeout_ms", TIMEOUT_MS_MIN, TIMEOUT_MS_MAX)

    @staticmethod
    def _start_by_ms(spec: pb.TaskSpec, policy: QueuePolicy, first_ms: int) -> int:
        """Counted from when it may start first."""
        ttl_ms = policy.ttl_ms
        if spec.HasField("ttl_ms"):
            ttl_ms = _number(spec.ttl_ms, "ttl_ms", TTL_MS_MIN, TTL_MS_MAX)
        return first_ms + ttl_ms if ttl_ms else 0

    def update_item(self, item: pb.UpdateItem, now_ms: int) -> UpdateItem:
        task_id = self.task_id(item.task_id)
        start = item.WhichOneof("start")
        if start is None and not item.HasField("priority"):
            raise RefusedError(MISSING_FIELD, "Expected {field} or a time to start, but got neither.", "priority")
        priority = _number(item.priority, "priority", 0, PRIORITY_MAX) if item.HasField("priority") else KEEP_PRIORITY
        if start is None:
            return UpdateItem(task_id, priority, KEEP_START, 0)
        limit_ms = self._config.delay_ms_max
        if start == "run_at_ms":
            run_at_ms = _number(item.run_at_ms, "run_at_ms", 0, now_ms + limit_ms)
        else:
            run_at_ms = now_ms + _number(item.delay_ms, "delay_ms", 0, limit_ms)
        return UpdateItem(task_id, priority, START_AT, run_at_ms)

    def snooze_ms(self, value: int) -> int:
        return _number(value, "delay_ms", 0, self._config.delay_ms_max)

    def dead_letter_filter(self, wanted: pb.DeadLetterFilter) -> pb.DeadLetterFilter:
        for field in ("type", "tenant", "error"):
            _size(len(getattr(wanted, field).encode()), f"filter.{field}", ID_BYTES_MAX)
        for field in ("died_from_ms", "died_before_ms"):
            _number(getattr(wanted, field), f"filter.{field}", 0, TIME_MS_MAX)
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
            _size(len(text), f"filter.{field}", ID_BYTES_MAX)
        age_ms = _number(wanted.min_age_ms, "filter.min_age_ms", 0, TIME_MS_MAX)
        return frozenset(wanted.states or STATE_NAMES), *texts, age_ms

    def heartbeat(self, request: queues_pb.HeartbeatRequest) -> Heartbeat:
        _batch(len(request.queues) or 1, "queues", QUEUES_PER_RESERVE_MAX)
        state = _one_of(request.state, "state", WORKER_STATES)
        slots = _number(request.slots, "slots", 0, SLOTS_MAX)
        queues = tuple(self.queue(name, f"queues[{at}]") for at, name in enumerate(request.queues))
        return Heartbeat(_worker_name(request.worker), state, slots, _text(request.version, "version"), queues)

    def worker_signal(self, request: queues_pb.SignalWorkerRequest) -> tuple[bytes, queues_pb.WorkerState]:
        """Who, and the state that is wanted."""
        return _worker_name(request.worker), _one_of(request.desired, "desired", DESIRED_STATES)

    def own_request_id(self, text: str) -> None:
        """Where no client makes one up: what such an id stands for is not compared."""
        if is_made_up(text):
            raise RefusedError(
                INVALID_FIELD,
                "Expected {field} that does not look like one that clients make up (~0.x.0), but it does.",
                "request_id",
            )

    def signature(self, text: str, field: str) -> bytes:
        """Who did something, or why."""
        return _text(text, field)

    def _type(self, name: str) -> None:
        if not name:
            raise RefusedError(MISSING_FIELD, "Expected {field} to name a handler, but it is empty.", "type")
        _text(name, "type")
        if len(self._known_types) >= TEXTS_KNOWN_MAX:
            self._known_types.clear()
        self._known_types.add(name)

    def _headers(self, spec: pb.TaskSpec) -> None:
        _size(len(spec.headers), "headers", HEADERS_MAX, "entries")
        size = sum(len(name.encode()) + len(value.encode()) for name, value in spec.headers.items())
        _size(size, "headers", HEADERS_BYTES_MAX)

    def _budgets(self, spec: pb.TaskSpec, policy: QueuePolicy) -> tuple[int, int]:
        max_attempts, max_claims = policy.max_attempts, policy.max_claims
        has_own_attempts = spec.HasField("max_attempts")
        if has_own_attempts:
            max_attempts = _number(spec.max_attempts, "max_attempts", 1, ATTEMPTS_MAX)
        if spec.HasField("max_claims"):
            return max_attempts, _number(spec.max_claims, "max_claims", 1, CLAIMS_MAX)
        if max_claims is None or has_own_attempts:
            # Every attempt needs a claim, so a default limit on claims never undercuts the one on attempts.
            max_claims = max(max_claims or self._config.max_claims_default, 2 * max_attempts)
        return max_attempts, max_claims

    def _run_at_ms(self, spec: pb.TaskSpec, now_ms: int) -> int:
        start = spec.WhichOneof("start")
        if start is None:
            return 0
        limit_ms = self._config.delay_ms_max
        if start == "run_at_ms":
            return _number(spec.run_at_ms, "run_at_ms", 0, now_ms + limit_ms)
        delay_ms = _number(spec.delay_ms, "delay_ms", 0, limit_ms)
        return now_ms + delay_ms if delay_ms else 0

    def _dedup_window_ms(self, spec: pb.TaskSpec, policy: QueuePolicy) -> int:
        if not spec.HasField("request_id_ttl_ms"):
            return policy.dedup_window_ms if spec.request_id else 0
        if not spec.request_id:
            raise RefusedError(
                INVALID_FIELD,
                "Expected {field} only together with a request_id, but there is none.",
                "request_id_ttl_ms",
            )
        return _number(spec.request_id_ttl_ms, "request_id_ttl_ms", REQUEST_ID_TTL_MS_MIN, REQUEST_ID_TTL_MS_MAX)

    @staticmethod
    def _result_ttl_ms(spec: pb.TaskSpec, policy: QueuePolicy, delay_ms_max: int) -> int:
        if spec.HasField("result_ttl_ms"):
            return _number(spec.result_ttl_ms, "result_ttl_ms", 0, delay_ms_max)
        return policy.result_ttl_ms

    def received(
        self,
        request: couriers_pb.ReceiveTasksRequest,
        now_ms: int,
        cluster_id: str,
        shard: int,
        policies: Policies | None,
    ) -> list[NewTask]:
        """What a courier brings, if it is at the right door."""
        _at_the_right_door(request, cluster_id, shard)
        _batch(len(request.letters), "letters", LETTERS_MAX)
        _number(request.source_shard, "source_shard", 0, SHARD_MAX)
        _number(request.source_incarnation, "source_incarnation", 0, INCARNATION_MAX)
        _number(request.first_sequence, "first_sequence", 1, SEQUENCE_MAX)
        new_tasks = []
        for at, letter in enumerate(request.letters):
            try:
                new_tasks.append(self.received_task(letter.task, now_ms, letter.run_at_ms, policies))
            except RefusedError as error:
                raise error.within(f"letters[{at}]") from None
        return new_tasks

    def share_reports(self, request: couriers_pb.DealSharesRequest, cluster_id: str, shard: int) -> None:
        _at_the_right_door(request, cluster_id, shard)
        _batch(len(request.reports), "reports", LETTERS_MAX)
        _number(request.source_shard, "source_shard", 0, SHARD_MAX)
        for at, report in enumerate(request.reports):
            self.queue(report.queue, f"reports[{at}].queue")
            if report.what not in LIMITS and report.what != SETTINGS:
                sentence = "Expected {field} to be concurrency, rate or settings."
                raise RefusedError(INVALID_FIELD, sentence, f"reports[{at}].what")
            for name in ("holds", "uses", "demand", "number", "version"):
                _number(getattr(report, name), f"reports[{at}].{name}", 0, NUMBER_MAX)

    # --- claims -----------------------------------------------------------------------------------------------

    def claim_ref(self, ref: pb.ClaimRef) -> tuple[bytes, int]:
        task_id = self.task_id(ref.task_id)
        for name, value in (("token", ref.token), ("secret", ref.secret)):
            if not value:
                raise RefusedError(MISSING_FIELD, "Expected {field} from the claim, but it is missing.", name)
        return task_id, ref.token << SECRET_BITS | ref.secret

    def lease_ms(self, value: int, field: str = "lease_ms") -> int:
        return _number(value, field, self._config.lease_ms_min, self._config.lease_ms_max)

    def result(self, result: bytes) -> bytes:
        _size(len(result), "result", self._config.result_bytes_max)
        return result

    def all_follow_ups(self, items: Sequence[pb.AckItem]) -> None:
        """Of all acks of a call together, like the tasks of an Enqueue; one ack may always have its own number."""
        count_max = max(self._config.batch_tasks_max, FOLLOW_UPS_MAX)
        count = sum(len(item.follow_ups) for item in items)
        if count > count_max:
            sentence = f"Expected at most {count_max} follow-ups of all acks together ({{field}}), but got {count}; "
            sentence += "send the acks in several calls."
            raise RefusedError(BATCH_TOO_LARGE, sentence, "items.follow_ups", str(count_max))

    def follow_ups(self, item: pb.AckItem, now_ms: int, policies: Policies | None = None) -> tuple[NewTask, ...]:
        if len(item.follow_ups) > FOLLOW_UPS_MAX:
            _batch(len(item.follow_ups), "follow_ups", FOLLOW_UPS_MAX)
        new_tasks = []
        for at, spec in enumerate(item.follow_ups):
            try:
                new_tasks.append(self.new_task(spec, now_ms, policies))
            except RefusedError as error:
                raise error.within(f"follow_ups[{at}]") from None
        if len(new_tasks) > 1:
            _refuse_conflicts(new_tasks)
        return tuple(new_tasks)

    def error(self, error: pb.TaskError) -> bytes:
        _size(len(error.type.encode()), "error.type", ERROR_TYPE_BYTES_MAX)
        _size(len(error.message.encode()), "error.message", ERROR_TEXT_BYTES_MAX)
        _size(len(error.traceback.encode()), "error.traceback", ERROR_TEXT_BYTES_MAX)
        return error.SerializeToString()

    def retry_delay_ms(self, item: pb.FailItem) -> int | None:
        if not item.HasField("retry_delay_ms"):
            return None
        if item.HasField("retry_at_ms"):
            raise RefusedError(INVALID_FIELD, "Expected retry_delay_ms or {field}, but got both.", "retry_at_ms")
        return _number(item.retry_delay_ms, "retry_delay_ms", 0, self._config.delay_ms_max)

    def retry_at_ms(self, item: pb.FailItem, now_ms: int) -> int | None:
        if not item.HasField("retry_at_ms"):
            return None
        return _number(item.retry_at_ms, "retry_at_ms", 0, now_ms + self._config.delay_ms_max)

    def _queues_to_claim_from(self, names: Sequence[str]) -> list[bytes]:
        _batch(len(names), "queues", QUEUES_PER_RESERVE_MAX)
        return [self.queue(name, f"queues[{at}]") for at, name in enumerate(names)]

    def await_tasks(self, request: pb.AwaitTasksRequest) -> AwaitWanted:
        return AwaitWanted(
            queues=list(dict.fromkeys(self._queues_to_claim_from(request.queues))),
            wait_ms=self.wait_ms(request.wait_ms),
            worker=_text(request.worker, "worker"),
            request_id=_text(request.claim_request_id, "claim_request_id"),
            tasks_max=_number(request.max_tasks, "max_tasks", 0, self._config.batch_tasks_max) or 1,
            callers=_number(request.callers, "callers", 0, CALLERS_MAX) or 1,
            empty_handed=_empty_handed(request),
            suspects_only=request.suspects_only,
        )

    def reserve(self, request: pb.ReserveRequest) -> ReserveWanted:
        config = self._config
        queues = self._queues_to_claim_from(request.queues)
        return ReserveWanted(
            queues=list(dict.fromkeys(queues)),
            tasks_max=_number(request.max_tasks, "max_tasks", 1, config.batch_tasks_max),
            lease_ms=self.lease_ms(request.lease_ms),
            wait_ms=self.wait_ms(request.wait_ms),
            worker=_text(request.worker, "worker"),
            request_id=_text(request.claim_request_id, "claim_request_id"),
            queue_tasks_max=self._queue_tasks_max(queues, request.queue_tasks_max) if request.queue_tasks_max else {},
            type_lease_ms=self._type_lease_ms(request.type_lease_ms) if request.type_lease_ms else {},
            empty_handed=_empty_handed(request),
            suspects_only=request.suspects_only,
            held_only=_held_only(request),
        )

    def _type_lease_ms(self, leases: Mapping[str, int]) -> dict[bytes, int]:
        field = "type_lease_ms"
        _batch(len(leases), field, LEASES_PER_RESERVE_MAX)
        return {_name(name, field): self.lease_ms(lease_ms, field) for name, lease_ms in leases.items()}

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
        for at, (queue, limit) in enumerate(zip(queues, limits, strict=True)):
            if _number(limit, f"{field}[{at}]", 0, self._config.batch_tasks_max):
                by_queue[queue] = min(limit, by_queue.get(queue, limit))
        return by_queue
