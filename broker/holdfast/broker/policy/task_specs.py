"""What a task is to be, as its producer and the policy of its queue say: checked, with defaults filled in. Pure."""

from collections.abc import Iterable
from hashlib import blake2b
from typing import Any, NamedTuple

from holdfast.broker.config import BrokerConfig
from holdfast.broker.policy import fields
from holdfast.broker.policy.policies import (
    ATTEMPTS_MAX,
    CLAIMS_MAX,
    TIMEOUT_MS_MAX,
    TIMEOUT_MS_MIN,
    TTL_MS_MAX,
    TTL_MS_MIN,
    EffectivePolicy,
    Policies,
    default_policy,
)
from holdfast.machine.ids import TIME_MS_MAX
from holdfast.machine.keys import PRIORITY_MAX
from holdfast.machine.new_tasks import NewTask
from holdfast.machine.rows import HAS_RETRY, UNIQUE_UNTIL_DONE, UNIQUE_WHILE_WAITING
from holdfast.proto.v1 import tasks_pb2 as pb
from holdfast.routing.sets import is_automatic_key
from holdfast.serving.refusals import INVALID_FIELD, MISSING_FIELD, OUT_OF_RANGE, RefusedError
from holdfast.serving.request_limits import HEADERS_MAX, NON_RETRYABLE_MAX

HEADERS_BYTES_MAX = 16 * 1024
REQUEST_ID_TTL_MS_MIN = 1000
REQUEST_ID_TTL_MS_MAX = 366 * 24 * 60 * 60 * 1000
PRIORITY_DEFAULT = 5
TEXTS_KNOWN_MAX = 10_000
HEADERS_KNOWN_MAX = 4096
HEADER_KNOWN_BYTES_MAX = 512
ERROR_TYPE_BYTES_MAX = 256

_UNIQUE_FLAGS = {
    pb.UNIQUE_SCOPE_UNSPECIFIED: UNIQUE_UNTIL_DONE,
    pb.UNIQUE_SCOPE_UNTIL_DONE: UNIQUE_UNTIL_DONE,
    pb.UNIQUE_SCOPE_WHILE_WAITING: UNIQUE_WHILE_WAITING,
}

# A policy, and what a task gets by it: all before its request id, between that and its envelope, and after it.
_KnownHeader = tuple[EffectivePolicy, tuple[Any, ...], tuple[Any, ...], tuple[Any, ...]]


class Member(NamedTuple):
    """A task that may become one of a run."""

    task: NewTask
    payload: bytes
    spec: pb.TaskSpec

    def header(self) -> bytes:
        """Its envelope without payload and request id. Takes both from the spec."""
        spec = self.spec
        spec.ClearField("payload")
        spec.ClearField("request_id")
        return spec.SerializeToString()


_QUEUE_NAME_ALLOWED = "1-128 of [A-Za-z0-9._-]"


class TaskSpecs:
    """Makes tasks of what producers say, within the limits of this node."""

    def __init__(self, config: BrokerConfig) -> None:
        self._config = config
        self._default_policy = default_policy(config)
        self._known_queues: dict[str, bytes] = {}
        self._known_types: set[str] = set()
        self._known_headers: dict[bytes, _KnownHeader] = {}

    def queue(self, name: str, field: str = "queue") -> bytes:
        known = self._known_queues.get(name)
        if known is not None:
            return known
        if not name:
            raise RefusedError(MISSING_FIELD, "Expected {field} to name a queue, but it is empty.", field)
        if not fields.QUEUE_NAME.fullmatch(name):
            raise RefusedError(
                INVALID_FIELD, f"Expected {{field}} of {_QUEUE_NAME_ALLOWED}, but got another name.", field,
                _QUEUE_NAME_ALLOWED,
            )  # fmt: skip
        if len(self._known_queues) >= TEXTS_KNOWN_MAX:
            self._known_queues.clear()
        encoded = self._known_queues[name] = name.encode()
        return encoded

    def new_task(self, spec: pb.TaskSpec, now_ms: int, policies: Policies | None = None) -> NewTask:
        """`policies` of the shard's queues; None if all are as the configuration says. May take from `spec` what only
        this task has."""
        request_id = spec.request_id
        if spec.headers or not is_automatic_key(request_id):
            return self._new_task(spec, now_ms, policies)
        # Nearly all tasks differ in payload and id alone: what else they have is checked once.
        envelope = spec.SerializeToString()
        spec.ClearField("payload")
        spec.ClearField("request_id")
        header = spec.SerializeToString()
        known = self._known_headers.get(header)
        if known is not None and len(envelope) <= self._config.payload_bytes_max:
            policy, front, middle, rest = known
            if policy is (self._default_policy if policies is None else policies.of(front[0])):
                return NewTask._make((*front, request_id.encode(), *middle, envelope, *rest))
        spec.ParseFromString(envelope)
        new = self._new_task(spec, now_ms, policies)
        if not new.run_at_ms and not new.start_by_ms and len(header) <= HEADER_KNOWN_BYTES_MAX:
            if len(self._known_headers) >= HEADERS_KNOWN_MAX:
                self._known_headers.clear()
            policy = self._default_policy if policies is None else policies.of(new.queue)
            self._known_headers[header] = policy, new[:3], new[4:9], new[10:]
        return new

    def new_member(self, spec: pb.TaskSpec, now_ms: int, policies: Policies | None = None) -> Member:
        """The same task, and what it would have in common with others."""
        payload = spec.payload  # which may be taken from it
        return Member(self.new_task(spec, now_ms, policies), payload, spec)

    def _new_task(self, spec: pb.TaskSpec, now_ms: int, policies: Policies | None) -> NewTask:
        queue = self.queue(spec.queue)
        policy = self._default_policy if policies is None else policies.of(queue)
        if spec.type not in self._known_types:
            self._type(spec.type)
        self.task_sizes(spec)
        start = spec.WhichOneof("start")
        run_at_ms = 0 if start is None else self._run_at_ms(spec, start, now_ms)
        return self._make_task(spec, queue, policy, now_ms, run_at_ms, self._config.delay_ms_max)

    def task_sizes(self, spec: pb.TaskSpec) -> None:
        """Of what may be large: to be called before anything is made of a task."""
        fields.size(len(spec.payload), "payload", self._config.payload_bytes_max)
        if spec.headers:
            self._headers(spec)

    def received_task(self, spec: pb.TaskSpec, now_ms: int, run_at_ms: int, policies: Policies | None) -> NewTask:
        """A task that another shard has accepted: limits of size and time were its business, defaults are ours."""
        queue = self.queue(spec.queue)
        policy = self._default_policy if policies is None else policies.of(queue)
        run_at_ms = fields.number(run_at_ms, "run_at_ms", 0, TIME_MS_MAX)
        return self._make_task(spec, queue, policy, now_ms, run_at_ms, TIME_MS_MAX)

    def _make_task(
        self, spec: pb.TaskSpec, queue: bytes, policy: EffectivePolicy, now_ms: int, run_at_ms: int, delay_ms_max: int
    ) -> NewTask:
        """What a task does not say is not looked at: nearly all say very little."""
        has = spec.HasField
        tenant, limit_key, unique_key, request_id = spec.tenant, spec.limit_key, spec.unique_key, spec.request_id
        priority = fields.number(spec.priority, "priority", 0, PRIORITY_MAX) if has("priority") else PRIORITY_DEFAULT
        max_attempts, max_claims = self._budgets(spec, policy)
        is_own_id = bool(request_id) and not is_automatic_key(request_id)
        dedup_window_ms = policy.dedup_window_ms if request_id else 0
        if has("request_id_ttl_ms"):
            dedup_window_ms = self._request_id_ttl_ms(spec)
        ttl_ms = fields.number(spec.ttl_ms, "ttl_ms", TTL_MS_MIN, TTL_MS_MAX) if has("ttl_ms") else policy.ttl_ms
        return NewTask(
            queue,
            priority,
            fields.name(tenant, "tenant") if tenant else b"",
            fields.text(request_id, "request_id") if is_own_id else request_id.encode(),
            dedup_window_ms,
            run_at_ms,
            max_attempts,
            max_claims,
            fields.number(spec.result_ttl_ms, "result_ttl_ms", 0, delay_ms_max)
            if has("result_ttl_ms")
            else policy.result_ttl_ms,
            spec.SerializeToString(),
            spec.type.encode(),
            fields.name(limit_key, "limit_key") if limit_key else b"",
            fields.text(unique_key, "unique_key") if unique_key else b"",
            self._flags(spec, delay_ms_max) if unique_key or spec.unique_scope or has("retry") else 0,
            fields.number(spec.timeout_ms, "timeout_ms", TIMEOUT_MS_MIN, TIMEOUT_MS_MAX)
            if has("timeout_ms")
            else policy.timeout_ms,
            max(now_ms, run_at_ms) + ttl_ms if ttl_ms else 0,  # counted from when it may start first
            digests_of(spec, (spec.payload,))[0] if is_own_id else 0,
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
            fields.number(retry.base_ms, "retry.base_ms", 0, delay_ms_max)
        if retry.HasField("factor"):
            fields.fraction(retry.factor, "retry.factor", 1, 100)
        if retry.HasField("cap_ms"):
            fields.number(retry.cap_ms, "retry.cap_ms", 0, delay_ms_max)
            if retry.base_ms > retry.cap_ms:
                message = f"Expected {{field}} of at most cap_ms ({retry.cap_ms}), but it is {retry.base_ms}."
                raise RefusedError(OUT_OF_RANGE, message, "retry.base_ms", f"0..{retry.cap_ms}")
        if retry.HasField("jitter"):
            fields.fraction(retry.jitter, "retry.jitter", 0, 1)
        fields.size(len(retry.non_retryable), "retry.non_retryable", NON_RETRYABLE_MAX, "types")
        for index, name in enumerate(retry.non_retryable):
            field = f"retry.non_retryable[{index}]"
            if not name:
                raise RefusedError(MISSING_FIELD, "Expected {field} to name a type of errors, but it is empty.", field)
            fields.text(name, field, ERROR_TYPE_BYTES_MAX)

    def _type(self, name: str) -> None:
        if not name:
            raise RefusedError(MISSING_FIELD, "Expected {field} to name a handler, but it is empty.", "type")
        fields.text(name, "type")
        if len(self._known_types) >= TEXTS_KNOWN_MAX:
            self._known_types.clear()
        self._known_types.add(name)

    def _headers(self, spec: pb.TaskSpec) -> None:
        fields.size(len(spec.headers), "headers", HEADERS_MAX, "entries")
        size = sum(len(name.encode()) + len(value.encode()) for name, value in spec.headers.items())
        fields.size(size, "headers", HEADERS_BYTES_MAX)

    def _budgets(self, spec: pb.TaskSpec, policy: EffectivePolicy) -> tuple[int, int]:
        max_attempts, max_claims = policy.max_attempts, policy.max_claims
        has_own_attempts = spec.HasField("max_attempts")
        if has_own_attempts:
            max_attempts = fields.number(spec.max_attempts, "max_attempts", 1, ATTEMPTS_MAX)
        if spec.HasField("max_claims"):
            return max_attempts, fields.number(spec.max_claims, "max_claims", 1, CLAIMS_MAX)
        if max_claims is None or has_own_attempts:
            # Every attempt needs a claim, so a default limit on claims never undercuts the one on attempts.
            max_claims = max(max_claims or self._config.max_claims_default, 2 * max_attempts)
        return max_attempts, max_claims

    def _run_at_ms(self, spec: pb.TaskSpec, start: str, now_ms: int) -> int:
        limit_ms = self._config.delay_ms_max
        if start == "run_at_ms":
            return fields.number(spec.run_at_ms, "run_at_ms", 0, now_ms + limit_ms)
        delay_ms = fields.number(spec.delay_ms, "delay_ms", 0, limit_ms)
        return now_ms + delay_ms if delay_ms else 0

    @staticmethod
    def _request_id_ttl_ms(spec: pb.TaskSpec) -> int:
        if not spec.request_id:
            raise RefusedError(
                INVALID_FIELD,
                "Expected {field} only together with a request_id, but there is none.",
                "request_id_ttl_ms",
            )
        return fields.number(spec.request_id_ttl_ms, "request_id_ttl_ms", REQUEST_ID_TTL_MS_MIN, REQUEST_ID_TTL_MS_MAX)


def digests_of(spec: pb.TaskSpec, payloads: Iterable[bytes]) -> list[int]:
    """What the request ids of tasks with these payloads stand for, in short: not when, how urgently or how often."""
    shared = blake2b(digest_size=8)
    texts = [spec.type, spec.tenant, spec.unique_key, spec.limit_key]
    for name in sorted(spec.headers):
        texts += (name, spec.headers[name])
    for text in map(str.encode, texts):
        shared.update(len(text).to_bytes(4, "big"))
        shared.update(text)
    digests = []
    for payload in payloads:
        hashed = shared.copy()
        hashed.update(len(payload).to_bytes(4, "big"))
        hashed.update(payload)
        digests.append(int.from_bytes(hashed.digest(), "big") or 1)  # 0 means: not to be compared
    return digests
