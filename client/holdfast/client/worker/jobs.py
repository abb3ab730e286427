"""One claimed task on its way through the worker, and how its handler ended."""

import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum

from holdfast.client.errors import GiveUp, RetryAfter
from holdfast.client.models import ClaimedTask, TaskError

# The server's limits: what is longer is cut here, because a report that is refused would help nobody.
_TYPE_BYTES_MAX = 256
_TEXT_BYTES_MAX = 16 * 1024
_DELAY_S_MAX = 365 * 24 * 3600
_CUT = " … "


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
    phase: Phase = Phase.RUNNING
    cancel_requested: bool = False
    lease_lost: bool = False
    interrupted: bool = False  # its handler was told to stop
    interrupt: Callable[[], None] | None = field(default=None, repr=False)  # how to tell it, if that is possible


def new_job(claim: ClaimedTask, lease_ms: int) -> Job:
    return Job(claim, lease_ms, claim.lease_ends_s, claim.lease_ends_s - claim.lease_ms / 1000 * 2 / 3)


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


@dataclass(frozen=True, slots=True)
class Interrupted:
    """The handler stopped because the worker told it to: the task goes back and no attempt is spent."""


Outcome = Succeeded | AttemptFailed | Interrupted


def failure_of(error: BaseException) -> AttemptFailed:
    """What is reported for an exception that left a handler. Raises nothing itself, whatever the exception holds."""
    # By name: a subclass may have forgotten to set it.
    delay_ms = _delay_ms(getattr(error, "delay_s", None)) if isinstance(error, RetryAfter) else None
    return AttemptFailed(describe(error), delay_ms, dead=isinstance(error, GiveUp))


def _delay_ms(delay_s: object) -> int | None:
    """A delay that the server takes; None, for the server's own back-off, if what was given is no number."""
    if not isinstance(delay_s, int | float) or delay_s != delay_s:
        return None
    return round(min(max(delay_s, 0), _DELAY_S_MAX) * 1000)


def describe(error: BaseException) -> TaskError:
    kind = type(error)
    name = kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
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


def _cut(text: str, bytes_max: int) -> str:
    """The beginning and the end of a text that is too long; both tell more than its middle."""
    data = text.encode(errors="replace")
    if len(data) <= bytes_max:
        return data.decode()
    half = (bytes_max - len(_CUT.encode())) // 2
    return data[:half].decode(errors="ignore") + _CUT + data[-half:].decode(errors="ignore")
