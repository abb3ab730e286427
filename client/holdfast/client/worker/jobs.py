"""One claimed task on its way through the worker, and how its handler ended."""

import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from enum import Enum

from holdfast.client._options import type_name
from holdfast.client.context import RetryAt, Snooze
from holdfast.client.errors import GiveUp, RetryAfter
from holdfast.client.models import ClaimedTask, Extended, TaskError

TIMEOUT_TYPE = "TaskTimeout"  # what the server calls it, too

# The server's limits: what is longer is cut here, because a report that is refused would help nobody.
_TYPE_BYTES_MAX = 256
_TEXT_BYTES_MAX = 16 * 1024
_DELAY_S_MAX = 365 * 24 * 3600
_CLOCKS_S = 3600  # by how much the server's clock may be behind ours without refusing a moment within the limit
_CUT = " … "
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Phase(Enum):
    RUNNING = "running"  # its handler has not ended
    REPORTING = "reporting"  # its outcome is on its way to the server
    DONE = "done"


@dataclass(slots=True, eq=False)
class Job:
    """A claim and what has become of it. Changed by the worker's loop only; handlers read the flags."""

    claim: ClaimedTask
    lease_ms: int  # what heartbeats ask for
    lease_ends_s: float  # on time.monotonic()
    extend_at_s: float  # when the next heartbeat is due
    deadline_s: float | None = None  # when this attempt has taken too long; None if there is no limit, or none is known
    began_s: float | None = None  # when its handler was started
    ran_s: float = 0.0  # for how long it ran, once it has ended
    phase: Phase = Phase.RUNNING
    cancel_requested: bool = False
    lease_lost: bool = False
    timed_out: bool = False  # its deadline came before its handler ended
    interrupted: bool = False  # its handler was told to stop
    interrupt: Callable[[], None] | None = field(default=None, repr=False)  # how to tell it, if that is possible


def new_job(claim: ClaimedTask, lease_ms: int, asked_ms: int) -> Job:
    """`lease_ms`: what heartbeats are to ask for. `asked_ms`: what the claim was asked with."""
    ends_s = claim.lease_ends_s
    job = Job(claim, lease_ms, ends_s, ends_s - min(asked_ms, claim.lease_ms) / 1000 * 2 / 3)
    if claim.timeout_ms is not None:
        # Counted back from the end of the lease, so that it is never after the server's. Not from when the claim was
        # asked for: the answer may have waited for a task longer than the timeout is.
        claimed_s = ends_s - min(asked_ms, claim.timeout_ms) / 1000
        job.deadline_s = claimed_s + claim.timeout_ms / 1000
        if claim.timeout_ms <= asked_ms:
            job.extend_at_s = claimed_s + lease_ms / 1000 / 3  # no more to be had: only to hear of a cancellation
    return job


def note_extended(job: Job, extended: Extended) -> None:
    """The server has extended the lease, by less than was asked for if its end is also the end of the attempt."""
    lease_ends_s = extended.lease_ends_s
    # When no more is to be had, the next heartbeat is only to hear of a cancellation.
    lease_ms = job.lease_ms if extended.ends_attempt else min(job.lease_ms, extended.lease_ms)
    job.extend_at_s = lease_ends_s - extended.lease_ms / 1000 + lease_ms / 1000 / 3
    if not extended.ends_attempt:
        job.lease_ends_s = lease_ends_s
    elif job.claim.timeout_ms is None or job.deadline_s is None:
        # The timeout is the queue's: this is how a worker gets to know of it.
        job.deadline_s = job.lease_ends_s = lease_ends_s
    else:
        # Both are on the safe side of the same moment, by the delays of two calls: the later one is closer to it.
        job.lease_ends_s = max(lease_ends_s, job.deadline_s)


@dataclass(frozen=True, slots=True)
class Succeeded:
    """The handler returned."""

    result: bytes | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class AttemptFailed:
    """The handler raised, or could not be called."""

    error: TaskError
    retry_delay_ms: int | None = None
    dead: bool = False
    retry_at_ms: int | None = None


@dataclass(frozen=True, slots=True)
class Snoozed:
    """The handler wants to have the task again later: it goes back and no attempt is spent."""

    delay_ms: int


@dataclass(frozen=True, slots=True)
class Interrupted:
    """The handler stopped because the worker told it to: the task goes back and no attempt is spent."""


Outcome = Succeeded | AttemptFailed | Snoozed | Interrupted


def outcome_of(error: BaseException) -> AttemptFailed | Snoozed:
    """What an exception that left a handler means. Raises nothing itself, whatever the exception holds."""
    # By name: a subclass may have forgotten to set it.
    if isinstance(error, Snooze):
        delay_ms = _delay_ms(getattr(error, "delay_s", None))
        return AttemptFailed(describe(error)) if delay_ms is None else Snoozed(delay_ms)
    delay_ms = _delay_ms(getattr(error, "delay_s", None)) if isinstance(error, RetryAfter) else None
    at_ms = _instant_ms(getattr(error, "when", None)) if isinstance(error, RetryAt) else None
    if at_ms is not None:
        left_s = at_ms / 1000 - time.time()
        if left_s > _DELAY_S_MAX - _CLOCKS_S:
            # Too far away, or nearly so: a delay is counted by the server's clock alone, and can be cut.
            at_ms, delay_ms = None, _delay_ms(left_s)
    return AttemptFailed(describe(error), delay_ms, dead=isinstance(error, GiveUp), retry_at_ms=at_ms)


def timeout_of(job: Job, error: BaseException | None = None) -> AttemptFailed:
    """What is reported for an attempt that took too long; `error` is what its handler was stopped with."""
    timeout_ms = job.claim.timeout_ms
    limit = "" if timeout_ms is None else f" of {timeout_ms / 1000:g} s"
    where = "" if error is None else describe(error).traceback
    return AttemptFailed(TaskError(TIMEOUT_TYPE, f"The attempt took longer than its timeout{limit}.", where))


def _delay_ms(delay_s: object) -> int | None:
    """A delay that the server takes; None, for the server's own back-off, if what was given is no number."""
    if not isinstance(delay_s, int | float) or delay_s != delay_s:
        return None
    return round(min(max(delay_s, 0), _DELAY_S_MAX) * 1000)


def _instant_ms(when: object) -> int | None:
    """A moment that the server takes; None, for the server's own back-off, if what was given is none."""
    if not isinstance(when, datetime) or when.tzinfo is None:
        return None
    return max(0, (when - _EPOCH) // timedelta(milliseconds=1))


def describe(error: BaseException) -> TaskError:
    name = type_name(type(error))
    try:
        message = str(error)
    except Exception:  # noqa: BLE001 - whatever a handler's exception does when asked for its text
        message = "its text cannot be had"
    lines = traceback.format_exception(error)
    return TaskError(
        type=_cut(name, _TYPE_BYTES_MAX),
        message=_cut(message, _TEXT_BYTES_MAX),
        traceback=_cut("".join(lines), _TEXT_BYTES_MAX),
    )


def with_note(error: TaskError, note: str) -> TaskError:
    """The same error, and more to read behind its message; what is too long is cut out of the message."""
    note = _cut(f" ({note})", _TEXT_BYTES_MAX // 2)
    return replace(error, message=_cut(error.message, _TEXT_BYTES_MAX - len(note.encode())) + note)


def _cut(text: str, bytes_max: int) -> str:
    """The beginning and the end of a text that is too long; both tell more than its middle."""
    data = text.encode(errors="replace")
    if len(data) <= bytes_max:
        return data.decode()
    half = (bytes_max - len(_CUT.encode())) // 2
    return data[:half].decode(errors="ignore") + _CUT + data[-half:].decode(errors="ignore")
