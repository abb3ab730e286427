"""How a task is enqueued: what the decorator of a function and its `options` take, checked and in units of the wire.

Pure functions. What is wrong is refused here, by the name of its option, so that it does not wait for the first call.
"""

import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

from holdfast.client._fitting import check_pauses
from holdfast.client.arguments import JSON_HEADERS
from holdfast.client.errors import InvalidArgument
from holdfast.client.models import NewTask, RetryPolicy, RetryShape, UniqueScope
from holdfast.transport.negotiated import TRANSPORTS, Transport

Seconds = float | timedelta  # durations of this API: a number of seconds, or a timedelta
Key = str | Callable[..., str]  # a text, or a function of the task's arguments that makes one

ChoiceT = TypeVar("ChoiceT", RetryShape, UniqueScope)

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_DAY_S = 24 * 3600
_YEAR_S = 366 * _DAY_S
_FOREVER_S = 1e9  # a limit that is longer is this: the clocks that calls are ended by cannot count much further
_TIMEOUT_S = (1, 30 * _DAY_S)
_TTL_S = (1, _YEAR_S)
_PAUSE_S = (0, _YEAR_S)
_FACTOR = (1, 100)
_JITTER = (0, 1)
_PRIORITY = (0, 9)
_ATTEMPTS = (1, 1_000)
_CLAIMS = (1, 10_000)
_NON_RETRYABLE = "retry.non_retryable"
_NON_RETRYABLE_MAX = 64
_TEXT_BYTES_MAX = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class Retry:
    """When a failed task is tried again, for `retry=` of a task. What is not given is as the queue says.

    shape: how pauses grow, `exponential` (base, base x factor, base x factor², …), `linear` (base, 2 x base, …) or
    `fixed` (base, always). base: the first pause. factor: 1 to 100. cap: no pause is longer.
    jitter: 0 to 1; 0.2 makes pauses up to 20 % shorter or longer, so that tasks do not come back all at once.
    non_retryable: exceptions after which the task is a dead letter at once. Exactly these classes, not their
    subclasses; or names of classes, with or without their module.

    >>> Retry(shape="linear", base=0.5, cap=60, non_retryable=[PermissionError]).policy()
    RetryPolicy(shape=<RetryShape.LINEAR: 'LINEAR'>, base_ms=500, factor=None, cap_ms=60000, jitter=None, \
non_retryable=('PermissionError',))
    """

    shape: RetryShape | str | None = None
    base: Seconds | None = None
    factor: float | None = None
    cap: Seconds | None = None
    jitter: float | None = None
    non_retryable: Iterable[type[BaseException] | str] = ()

    def __post_init__(self) -> None:
        # Kept as a tuple: an iterator would be empty the second time. And what is wrong raises here.
        object.__setattr__(self, "non_retryable", _error_types(self.non_retryable))
        self.policy()

    def policy(self) -> RetryPolicy:
        """The same as the wire has it."""
        base_ms, cap_ms = _ms("retry.base", self.base, _PAUSE_S), _ms("retry.cap", self.cap, _PAUSE_S)
        if base_ms is not None and cap_ms is not None and base_ms > cap_ms:
            raise _out_of_range(
                "retry.base", f"Expected retry.base of at most retry.cap, but got {self.base} and {self.cap}."
            )
        return RetryPolicy(
            shape=None if self.shape is None else _choice("retry.shape", RetryShape, self.shape),
            base_ms=base_ms,
            factor=_number("retry.factor", self.factor, _FACTOR),
            cap_ms=cap_ms,
            jitter=_number("retry.jitter", self.jitter, _JITTER),
            non_retryable=_error_types(self.non_retryable),
        )


@dataclass(frozen=True, slots=True)
class Options:
    """How a task is enqueued. `None` leaves it to the server."""

    queue: str
    priority: int | None = None
    max_attempts: int | None = None
    max_claims: int | None = None
    tenant: Key = ""
    request_id: Key | None = None
    request_id_ttl_ms: int | None = None
    delay_ms: int | None = None
    run_at_ms: int | None = None
    result_ttl_ms: int | None = None
    retry: RetryPolicy | None = None
    unique_key: Key = ""
    unique_scope: UniqueScope = UniqueScope.UNTIL_DONE
    limit_key: Key = ""
    timeout_ms: int | None = None
    ttl_ms: int | None = None
    headers: Mapping[str, str] = field(default_factory=lambda: JSON_HEADERS)

    def new_task(self, name: str, payload: bytes, arguments: inspect.BoundArguments) -> NewTask:
        """`arguments`: those of the call, bound to the parameters of its function, for keys that are made of them."""
        return NewTask(
            self.queue,
            name,
            payload,
            headers=self.headers,
            priority=self.priority,
            tenant=_key_of("tenant", self.tenant, arguments),
            request_id=_request_id_of(self.request_id, arguments),
            request_id_ttl_ms=self.request_id_ttl_ms,
            run_at_ms=self.run_at_ms,
            delay_ms=self.delay_ms,
            max_attempts=self.max_attempts,
            max_claims=self.max_claims,
            result_ttl_ms=self.result_ttl_ms,
            retry=self.retry,
            unique_key=_key_of("unique_key", self.unique_key, arguments),
            unique_scope=self.unique_scope,
            limit_key=_key_of("limit_key", self.limit_key, arguments),
            timeout_ms=self.timeout_ms,
            ttl_ms=self.ttl_ms,
        )


def checked(
    *,
    queue: str | None = None,
    priority: int | None = None,
    max_attempts: int | None = None,
    max_claims: int | None = None,
    retry: Retry | RetryPolicy | None = None,
    timeout: Seconds | None = None,
    ttl: Seconds | None = None,
    unique_key: Key | None = None,
    unique_scope: UniqueScope | str | None = None,
    limit_key: Key | None = None,
    tenant: Key | None = None,
    delay: Seconds | None = None,
    run_at: datetime | None = None,
    request_id: Key | None = None,
    request_id_ttl: Seconds | None = None,
    headers: Mapping[str, str] | None = None,
    result_ttl: Seconds | None = None,
) -> dict[str, Any]:
    """The fields of `Options` for what is given."""
    if delay is not None and run_at is not None:
        raise refused("delay", "Expected at most one of delay and run_at, but both are given.")
    given: dict[str, Any] = {
        "queue": queue,
        "priority": _whole("priority", priority, _PRIORITY),
        "max_attempts": _whole("max_attempts", max_attempts, _ATTEMPTS),
        "max_claims": _whole("max_claims", max_claims, _CLAIMS),
        "retry": _retry(retry),
        "timeout_ms": _ms("timeout", timeout, _TIMEOUT_S),
        "ttl_ms": _ms("ttl", ttl, _TTL_S),
        "unique_key": _key("unique_key", unique_key),
        "unique_scope": None if unique_scope is None else _choice("unique_scope", UniqueScope, unique_scope),
        "limit_key": _key("limit_key", limit_key),
        "tenant": _key("tenant", tenant),
        "delay_ms": _optional_ms("delay", delay),
        "run_at_ms": None if run_at is None else _instant_ms(run_at),
        "request_id": _request_id(request_id),
        "request_id_ttl_ms": _optional_ms("request_id_ttl", request_id_ttl),
        "headers": _headers(headers),
        "result_ttl_ms": _optional_ms("result_ttl", result_ttl),
    }
    return {name: value for name, value in given.items() if value is not None}


def type_name(kind: type[BaseException]) -> str:
    """What a class of exceptions is called, in reports of failures and in lists of what is not tried again.

    >>> from json import JSONDecodeError
    >>> type_name(KeyError), type_name(JSONDecodeError)
    ('KeyError', 'json.decoder.JSONDecodeError')
    """
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def _error_types(kinds: Iterable[type[BaseException] | str]) -> tuple[str, ...]:
    if isinstance(kinds, str | type) or not isinstance(kinds, Iterable):
        raise refused(
            _NON_RETRYABLE, f"Expected several exceptions in {_NON_RETRYABLE}, but got one: put it into a list."
        )
    names = tuple(dict.fromkeys(map(_error_type, kinds)))
    if len(names) > _NON_RETRYABLE_MAX:
        raise refused(
            _NON_RETRYABLE,
            f"Expected at most {_NON_RETRYABLE_MAX} exceptions in {_NON_RETRYABLE}, but got {len(names)}.",
            "TOO_LARGE",
        )
    return names


def _error_type(kind: object) -> str:
    if isinstance(kind, type) and issubclass(kind, BaseException):
        # A script that is run and not imported has another name than its workers, which import it, know it by: there
        # the name of the class has to do. The server compares that with the last part of an error's type.
        name = kind.__name__ if kind.__module__ == "__main__" else type_name(kind)
    elif isinstance(kind, str):
        name = kind
    else:
        raise refused(_NON_RETRYABLE, f"Expected exceptions or their names in {_NON_RETRYABLE}, but got {kind!r}.")
    if not name or len(name.encode()) > _TEXT_BYTES_MAX:
        raise refused(
            _NON_RETRYABLE, f"Expected names of 1 to {_TEXT_BYTES_MAX} bytes in {_NON_RETRYABLE}, but got {name!r}."
        )
    return name


def _retry(retry: Retry | RetryPolicy | None) -> RetryPolicy | None:
    if retry is None:
        return None
    if isinstance(retry, RetryPolicy):
        check_pauses(retry, "retry")
        return retry
    if not isinstance(retry, Retry):
        raise refused("retry", f"Expected retry to be a Retry, but got {type(retry).__name__}.")
    return retry.policy()


def _key(option: str, key: Key | None) -> Key | None:
    if key is None or isinstance(key, str):
        return key if key is None else _checked_text(option, key)
    if not callable(key) or inspect.iscoroutinefunction(key):
        raise refused(option, f"Expected {option} to be a text or a plain function of the arguments, but got {key!r}.")
    return key


def _key_of(option: str, key: Key, arguments: inspect.BoundArguments) -> str:
    """The key of one call. Defaults are filled in, so that calls that do the same have the same key."""
    if isinstance(key, str):
        return key
    arguments.apply_defaults()
    try:
        text = key(*arguments.args, **arguments.kwargs)
    except Exception as error:
        sentence = f"Expected {option} to be made of the arguments, but its function raised {type(error).__name__}."
        raise refused(option, sentence) from error
    return _checked_text(option, text)


def _checked_text(option: str, text: object) -> str:
    if not isinstance(text, str):
        raise refused(option, f"Expected {option} to be a text, but got {type(text).__name__}.")
    if len(text.encode(errors="replace")) > _TEXT_BYTES_MAX:
        raise refused(option, f"Expected {option} of at most {_TEXT_BYTES_MAX} bytes, but it is longer.", "TOO_LARGE")
    return text


def _request_id(given: Key | None) -> Key | None:
    if given == "":
        sentence = "Expected request_id to be a text, but it is empty: leave it out if there is none."
        raise refused("request_id", sentence, "MISSING_FIELD")
    return _key("request_id", given)


def _request_id_of(request_id: Key | None, arguments: inspect.BoundArguments) -> str | None:
    text = None if request_id is None else _key_of("request_id", request_id, arguments)
    _request_id(text)  # a function may have made an empty one
    return text


def _choice(option: str, kinds: type[ChoiceT], value: str) -> ChoiceT:
    try:
        choice = kinds(value)
    except ValueError:
        choice = kinds.UNKNOWN
    if choice is kinds.UNKNOWN:
        names = ", ".join(kind.lower() for kind in kinds if kind is not kinds.UNKNOWN)
        raise refused(option, f"Expected {option} to be one of {names}, but got {value!r}.")
    return choice


def _number(option: str, value: float | None, limits: tuple[float, float], unit: str = "") -> float | None:
    if value is None:
        return None
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise refused(option, f"Expected {option} to be a number, but got {type(value).__name__}.")
    low, high = limits
    if not low <= value <= high:
        raise _out_of_range(option, f"Expected {option} from {low} to {high}{unit}, but got {value}.")
    return value


def _whole(option: str, value: int | None, limits: tuple[int, int]) -> int | None:
    if isinstance(value, float):
        raise refused(option, f"Expected {option} to be a whole number, but got {value}.")
    return None if _number(option, value, limits) is None else value


def _ms(option: str, value: Seconds | None, limits: tuple[int, int]) -> int | None:
    given_s = value.total_seconds() if isinstance(value, timedelta) else value
    checked_s = _number(option, given_s, limits, " seconds")
    return None if checked_s is None else round(checked_s * 1000)


def limit_s(option: str, value: Seconds) -> float:
    """How long something may take: infinity is allowed and means decades, what is no number would never be over."""
    given_s = value.total_seconds() if isinstance(value, timedelta) else value
    if not isinstance(given_s, int | float) or isinstance(given_s, bool):
        raise refused(option, f"Expected {option} to be a number of seconds, but got {type(value).__name__}.")
    if not given_s >= 0:  # also for NaN
        raise _out_of_range(option, f"Expected {option} of at least 0 seconds, but got {given_s}.")
    return min(given_s, _FOREVER_S)


def call_limit_s(given_s: float | None, default_s: float) -> float:
    """How long a call may take: what it says itself, or else what its client says."""
    return default_s if given_s is None else limit_s("timeout_s", given_s)


def checked_transport(given: str) -> Transport:
    """How calls travel."""
    for known in TRANSPORTS:
        if given == known:
            return known
    raise refused("transport", f"Expected transport to be one of {', '.join(TRANSPORTS)}, but got {given!r}.")


def duration_ms(option: str, value: Seconds) -> int:
    """Of a duration whose upper limit the server knows."""
    given_s = limit_s(option, value)
    if given_s == _FOREVER_S:
        raise _out_of_range(option, f"Expected {option} to be a number of seconds with an end, but got {value}.")
    return round(given_s * 1000)


def refused(option: str, sentence: str, reason: str = "INVALID_FIELD") -> InvalidArgument:
    return InvalidArgument(sentence, reason=reason, field=option)


def _out_of_range(option: str, sentence: str) -> InvalidArgument:
    return refused(option, sentence, "OUT_OF_RANGE")


def _optional_ms(option: str, value: Seconds | None) -> int | None:
    return None if value is None else duration_ms(option, value)


def _headers(headers: object) -> dict[str, str] | None:
    if headers is None:
        return None
    if not isinstance(headers, Mapping):
        raise refused(
            "headers", f"Expected headers to be a mapping of texts to texts, but got {type(headers).__name__}."
        )
    for name, value in headers.items():
        if not isinstance(name, str) or not isinstance(value, str):
            kind = type(value if isinstance(name, str) else name).__name__
            raise refused("headers", f"Expected headers to map texts to texts, but got {kind} in {name!r}.")
    return {**JSON_HEADERS, **headers}


def _instant_ms(instant: datetime) -> int:
    if not isinstance(instant, datetime):
        raise refused("run_at", f"Expected run_at to be a datetime, but got {type(instant).__name__}.")
    if instant.tzinfo is None:
        raise refused(
            "run_at", "Expected run_at with a time zone, but it has none: datetime.now(UTC), for example, has one."
        )
    return (instant - _EPOCH) // timedelta(milliseconds=1)
