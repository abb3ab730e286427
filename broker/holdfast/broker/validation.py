"""Turns requests into what the shard works with, or refuses them with the field and the limit. Pure."""

import re

from holdfast.broker.config import BrokerConfig
from holdfast.broker.refusals import (
    BATCH_TOO_LARGE,
    INVALID_FIELD,
    MISSING_FIELD,
    OUT_OF_RANGE,
    TOO_LARGE,
    RefusedError,
)
from holdfast.broker.shard import ReserveWanted
from holdfast.machine.entries import NewTask
from holdfast.machine.ids import parse_task_id
from holdfast.machine.keys import PRIORITY_MAX
from holdfast.proto.v1 import tasks_pb2 as pb

QUEUE_NAME_CHARS_MAX = 128
ID_BYTES_MAX = 256
HEADERS_MAX = 64
HEADERS_BYTES_MAX = 16 * 1024
QUEUES_PER_RESERVE_MAX = 64
ATTEMPTS_MAX = 1000
CLAIMS_MAX = 10_000
FOLLOW_UPS_MAX = 100
ERROR_TYPE_BYTES_MAX = 256
ERROR_TEXT_BYTES_MAX = 16 * 1024
PRIORITY_DEFAULT = 5
QUEUES_KNOWN_MAX = 10_000

_QUEUE_NAME = re.compile(r"[A-Za-z0-9._-]{1,128}")
_PAGE_TOKEN = re.compile(r"[0-9a-f]{48}")
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")


def _number(value: int, field: str, low: int, high: int) -> int:
    if not low <= value <= high:
        raise RefusedError(
            OUT_OF_RANGE, f"Expected {field} from {low} to {high}, but got {value}.", field, limit=f"{low}..{high}"
        )
    return value


def _text(value: str, field: str, bytes_max: int) -> bytes:
    """A text that may be empty; control characters would break logs, keys and terminals."""
    encoded = value.encode()
    if len(encoded) > bytes_max:
        raise RefusedError(
            TOO_LARGE, f"Expected {field} of at most {bytes_max} bytes, but got {len(encoded)}.", field, str(bytes_max)
        )
    if _CONTROL.search(value):
        raise RefusedError(INVALID_FIELD, f"Expected {field} without control characters, but it has some.", field)
    return encoded


def _batch(count: int, field: str, count_max: int) -> None:
    if not count:
        raise RefusedError(MISSING_FIELD, f"Expected at least one item in {field}, but got none.", field)
    if count > count_max:
        raise RefusedError(
            BATCH_TOO_LARGE, f"Expected at most {count_max} items in {field}, but got {count}.", field, str(count_max)
        )


class Validator:
    """Checks requests against the limits of this node."""

    def __init__(self, config: BrokerConfig) -> None:
        self._config = config
        self._known_queues: dict[str, bytes] = {}

    def batch_bytes(self, size: int) -> None:
        limit = self._config.batch_bytes_max
        if size > limit:
            raise RefusedError(
                BATCH_TOO_LARGE, f"Expected a call of at most {limit} bytes, but got {size}.", "request", str(limit)
            )

    def batch(self, count: int, field: str) -> None:
        _batch(count, field, self._config.batch_tasks_max)

    def queue(self, name: str, field: str) -> bytes:
        known = self._known_queues.get(name)
        if known is not None:
            return known
        if not name:
            raise RefusedError(MISSING_FIELD, f"Expected {field} to name a queue, but it is empty.", field)
        if not _QUEUE_NAME.fullmatch(name):
            allowed = f"1-{QUEUE_NAME_CHARS_MAX} of [A-Za-z0-9._-]"
            raise RefusedError(INVALID_FIELD, f"Expected {field} of {allowed}, but got another name.", field, allowed)
        if len(self._known_queues) >= QUEUES_KNOWN_MAX:
            self._known_queues.clear()
        encoded = self._known_queues[name] = name.encode()
        return encoded

    def task_id(self, text: str, field: str) -> bytes:
        task_id = parse_task_id(text)
        if task_id is None:
            reason = INVALID_FIELD if text else MISSING_FIELD
            raise RefusedError(
                reason, f"Expected {field} to be a task id as Enqueue returned it, but it is not.", field
            )
        return task_id

    def claim_ref(self, ref: pb.ClaimRef, field: str) -> tuple[bytes, int]:
        task_id = self.task_id(ref.task_id, f"{field}.task_id")
        if not ref.token:
            raise RefusedError(
                MISSING_FIELD, f"Expected {field}.token from the claim, but it is missing.", f"{field}.token"
            )
        return task_id, ref.token

    def lease_ms(self, value: int, field: str) -> int:
        return _number(value, field, self._config.lease_ms_min, self._config.lease_ms_max)

    def new_task(self, spec: pb.TaskSpec, field: str, now_ms: int) -> NewTask:
        config = self._config
        queue = self.queue(spec.queue, f"{field}.queue")
        if not spec.type:
            raise RefusedError(
                MISSING_FIELD, f"Expected {field}.type to name a handler, but it is empty.", f"{field}.type"
            )
        _text(spec.type, f"{field}.type", ID_BYTES_MAX)
        payload_bytes = len(spec.payload)
        if payload_bytes > config.payload_bytes_max:
            raise RefusedError(
                TOO_LARGE,
                f"Expected {field}.payload of at most {config.payload_bytes_max} bytes, but got {payload_bytes}.",
                f"{field}.payload",
                str(config.payload_bytes_max),
            )
        if spec.headers:
            self._headers(spec, f"{field}.headers")
        max_attempts, max_claims = self._budgets(spec, field)
        return NewTask(
            queue,
            _number(spec.priority, f"{field}.priority", 0, PRIORITY_MAX)
            if spec.HasField("priority")
            else PRIORITY_DEFAULT,
            _text(spec.tenant, f"{field}.tenant", ID_BYTES_MAX) if spec.tenant else b"",
            _text(spec.request_id, f"{field}.request_id", ID_BYTES_MAX) if spec.request_id else b"",
            self._run_at_ms(spec, field, now_ms),
            max_attempts,
            max_claims,
            self._result_ttl_ms(spec, field),
            spec.SerializeToString(),
        )

    def _headers(self, spec: pb.TaskSpec, field: str) -> None:
        if len(spec.headers) > HEADERS_MAX:
            raise RefusedError(
                TOO_LARGE, f"Expected at most {HEADERS_MAX} {field}, but got {len(spec.headers)}.", field,
                str(HEADERS_MAX),
            )  # fmt: skip
        size = sum(len(name) + len(value) for name, value in spec.headers.items())
        if size > HEADERS_BYTES_MAX:
            raise RefusedError(
                TOO_LARGE, f"Expected {field} of at most {HEADERS_BYTES_MAX} characters, but got {size}.", field,
                str(HEADERS_BYTES_MAX),
            )  # fmt: skip

    def _budgets(self, spec: pb.TaskSpec, field: str) -> tuple[int, int]:
        config = self._config
        max_attempts = config.max_attempts_default
        if spec.HasField("max_attempts"):
            max_attempts = _number(spec.max_attempts, f"{field}.max_attempts", 1, ATTEMPTS_MAX)
        # Every attempt needs a claim, so the default limit on claims never undercuts the one on attempts.
        max_claims = max(config.max_claims_default, 2 * max_attempts)
        if spec.HasField("max_claims"):
            max_claims = _number(spec.max_claims, f"{field}.max_claims", 1, CLAIMS_MAX)
        return max_attempts, max_claims

    def _run_at_ms(self, spec: pb.TaskSpec, field: str, now_ms: int) -> int:
        match spec.WhichOneof("start"):
            case "delay_ms":
                delay_ms = _number(spec.delay_ms, f"{field}.delay_ms", 0, self._config.delay_ms_max)
                return now_ms + delay_ms if delay_ms else 0
            case "run_at_ms":
                return _number(spec.run_at_ms, f"{field}.run_at_ms", 0, now_ms + self._config.delay_ms_max)
        return 0

    def _result_ttl_ms(self, spec: pb.TaskSpec, field: str) -> int:
        if spec.HasField("result_ttl_ms"):
            return _number(spec.result_ttl_ms, f"{field}.result_ttl_ms", 0, self._config.delay_ms_max)
        return self._config.result_ttl_default_ms

    def result(self, result: bytes, field: str) -> bytes:
        limit = self._config.result_bytes_max
        if len(result) > limit:
            raise RefusedError(
                TOO_LARGE, f"Expected {field} of at most {limit} bytes, but got {len(result)}.", field, str(limit)
            )
        return result

    def follow_ups(self, item: pb.AckItem, field: str, now_ms: int) -> tuple[NewTask, ...]:
        if len(item.follow_ups) > FOLLOW_UPS_MAX:
            raise RefusedError(
                BATCH_TOO_LARGE,
                f"Expected at most {FOLLOW_UPS_MAX} {field}.follow_ups, but got {len(item.follow_ups)}.",
                f"{field}.follow_ups",
                str(FOLLOW_UPS_MAX),
            )
        return tuple(
            self.new_task(spec, f"{field}.follow_ups[{at}]", now_ms) for at, spec in enumerate(item.follow_ups)
        )

    def error(self, error: pb.TaskError, field: str) -> bytes:
        for name, value, limit in (
            ("type", error.type, ERROR_TYPE_BYTES_MAX),
            ("message", error.message, ERROR_TEXT_BYTES_MAX),
            ("traceback", error.traceback, ERROR_TEXT_BYTES_MAX),
        ):
            size = len(value.encode())
            if size > limit:
                where = f"{field}.{name}"
                raise RefusedError(
                    TOO_LARGE, f"Expected {where} of at most {limit} bytes, but got {size}.", where, str(limit)
                )
        return error.SerializeToString()

    def retry_delay_ms(self, item: pb.FailItem, field: str) -> int | None:
        if not item.HasField("retry_delay_ms"):
            return None
        return _number(item.retry_delay_ms, f"{field}.retry_delay_ms", 0, self._config.delay_ms_max)

    def page_size(self, value: int, default: int, largest: int) -> int:
        return _number(value, "page_size", 0, largest) or default

    def page_token(self, text: str) -> bytes:
        """A place in a listing: 8 bytes of time and a task id, in hex; empty for the first page."""
        if text and not _PAGE_TOKEN.fullmatch(text):
            raise RefusedError(INVALID_FIELD, "Expected page_token as a page returned it, but it is not.", "page_token")
        return bytes.fromhex(text)

    def reserve(self, request: pb.ReserveRequest) -> ReserveWanted:
        config = self._config
        _batch(len(request.queues), "queues", QUEUES_PER_RESERVE_MAX)
        queues = [self.queue(name, f"queues[{at}]") for at, name in enumerate(request.queues)]
        return ReserveWanted(
            queues=list(dict.fromkeys(queues)),
            tasks_max=_number(request.max_tasks, "max_tasks", 1, config.batch_tasks_max),
            lease_ms=self.lease_ms(request.lease_ms, "lease_ms"),
            wait_ms=_number(request.wait_ms, "wait_ms", 0, config.wait_ms_max),
            worker=_text(request.worker, "worker", ID_BYTES_MAX),
            request_id=_text(request.claim_request_id, "claim_request_id", ID_BYTES_MAX),
        )
