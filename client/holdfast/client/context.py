"""What a handler can ask about the task it is working on, and how it has the task come again later."""

import logging
import time
from contextvars import ContextVar
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Protocol

from holdfast.client.errors import HandlerSignal
from holdfast.client.models import ClaimedTask


class Snooze(HandlerSignal):
    """Raise it in a handler to have the task again after `delay_s` seconds without spending an attempt."""

    def __init__(self, delay_s: float | timedelta, message: str = "") -> None:
        super().__init__(delay_s, message)
        self.delay_s = self._checked_s(delay_s)
        self.message = message

    def __str__(self) -> str:
        return self.message or f"to be looked at again after {self.delay_s} s"


class RetryAt(HandlerSignal):
    """Raise it in a handler to fail this attempt and have the next one at this moment, which needs a time zone."""

    def __init__(self, when: datetime, message: str = "") -> None:
        if not isinstance(when, datetime):
            raise TypeError(f"Expected RetryAt with a datetime, but got {when!r}.")
        if when.tzinfo is None:
            raise ValueError(
                "Expected a moment with a time zone, but it has none: datetime.now(UTC), for example, has one."
            )
        super().__init__(when, message)
        self.when = when
        self.message = message

    def __str__(self) -> str:
        return self.message or f"to be tried again at {self.when.isoformat()}"


class StopReason(StrEnum):
    """Why a handler should stop."""

    CANCELLED = "CANCELLED"  # somebody cancelled the task
    TIMED_OUT = "TIMED_OUT"  # this attempt has run for as long as it may: it has failed, whatever comes of it
    LEASE_LOST = "LEASE_LOST"  # another worker may have the task by now
    WORKER_STOPS = "WORKER_STOPS"  # the task goes to another worker unless it ends soon


class Signals(Protocol):
    """What the worker learns about a task while its handler runs."""

    @property
    def cancel_requested(self) -> bool: ...
    @property
    def lease_lost(self) -> bool: ...
    @property
    def timed_out(self) -> bool: ...
    @property
    def interrupted(self) -> bool: ...
    @property
    def deadline_s(self) -> float | None: ...


class RunningTask:
    """The task whose handler is running. Get it with `current_task()`."""

    __slots__ = ("_claim", "_signals")

    def __init__(self, claim: ClaimedTask, signals: Signals) -> None:
        self._claim = claim
        self._signals = signals

    def __repr__(self) -> str:
        return f"RunningTask({self.id!r}, type={self.type!r}, queue={self.queue!r}, attempt={self.attempt})"

    @property
    def id(self) -> str:
        """The task's id, a UUID."""
        return self._claim.task_id

    @property
    def idempotency_key(self) -> str:
        """The same in every attempt of this task and in no other task: hand it to whatever must act once only."""
        return self._claim.task_id

    @property
    def queue(self) -> str:
        return self._claim.queue

    @property
    def type(self) -> str:
        """The name of the task's function."""
        return self._claim.type

    @property
    def attempt(self) -> int:
        """1 for the first."""
        return self._claim.attempt

    @property
    def tenant(self) -> str:
        return self._claim.tenant

    @property
    def limit_key(self) -> str:
        """What the queue's limits per key count it by; empty if by nothing."""
        return self._claim.limit_key

    @property
    def headers(self) -> dict[str, str]:
        return dict(self._claim.headers)

    @property
    def seconds_left(self) -> float | None:
        """How long this attempt may go on, 0 if it may no more; None if there is no limit, or none is known yet.

        A timeout that comes from the queue and not from the task is known after the first heartbeats only.
        """
        deadline_s = self._signals.deadline_s
        return None if deadline_s is None else max(0.0, deadline_s - time.monotonic())

    @property
    def deadline(self) -> datetime | None:
        """That moment, by this machine's clock."""
        left_s = self.seconds_left
        return None if left_s is None else datetime.now(UTC) + timedelta(seconds=left_s)

    @property
    def cancel_requested(self) -> bool:
        """Somebody cancelled the task: stop when you can. An async handler is interrupted instead."""
        return self._signals.cancel_requested

    @property
    def lease_lost(self) -> bool:
        """Another worker may have the task by now: whatever this handler returns no longer counts."""
        return self._signals.lease_lost

    @property
    def timed_out(self) -> bool:
        """This attempt took longer than the task's timeout: it has failed, whatever this handler returns."""
        return self._signals.timed_out

    @property
    def should_stop(self) -> bool:
        """Whether a blocking handler had better end soon, for one of these reasons or because its worker stops."""
        return self._signals.interrupted

    @property
    def stop_reason(self) -> StopReason | None:
        """Why it should stop; None while it may go on. Of several reasons the one that leaves it the least."""
        if not self._signals.interrupted:
            return None
        if self._signals.lease_lost:
            return StopReason.LEASE_LOST
        if self._signals.timed_out:
            return StopReason.TIMED_OUT
        return StopReason.CANCELLED if self._signals.cancel_requested else StopReason.WORKER_STOPS


_current: ContextVar[RunningTask] = ContextVar("holdfast_current_task")


def current_task() -> RunningTask:
    """The task that is being worked on, in a handler or in whatever it calls."""
    try:
        return _current.get()
    except LookupError:
        raise LookupError(
            "There is no current task here: current_task() works in handlers that a worker runs."
        ) from None


TASK_FIELDS = ("task_id", "task_type", "queue", "attempt")


class TaskLogFilter(logging.Filter):
    """Gives records that are logged in a handler the fields `task_id`, `task_type`, `queue` and `attempt`.

    Add it to a `logging.Handler`; `holdfast worker` does so for its own. It lets every record pass, and changes no
    field that a record has already. In threads that a handler starts itself there is no current task, unless they run
    in a copy of its context, as those of `asyncio.to_thread` do.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        task = _current.get(None)
        if task is not None:
            for field, value in zip(TASK_FIELDS, (task.id, task.type, task.queue, task.attempt), strict=True):
                if not hasattr(record, field):
                    setattr(record, field, value)
        return True


def set_current_task(task: RunningTask) -> None:
    """For the worker, in the context in which it runs a handler."""
    _current.set(task)
