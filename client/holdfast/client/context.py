"""What a handler can ask about the task it is working on."""

from contextvars import ContextVar
from typing import Protocol

from holdfast.client.models import ClaimedTask


class Signals(Protocol):
    """What the worker learns about a task while its handler runs."""

    @property
    def cancel_requested(self) -> bool: ...
    @property
    def lease_lost(self) -> bool: ...
    @property
    def interrupted(self) -> bool: ...


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
    def headers(self) -> dict[str, str]:
        return dict(self._claim.headers)

    @property
    def cancel_requested(self) -> bool:
        """Somebody cancelled the task: stop when you can. An async handler is interrupted instead."""
        return self._signals.cancel_requested

    @property
    def lease_lost(self) -> bool:
        """Another worker may have the task by now: whatever this handler returns no longer counts."""
        return self._signals.lease_lost

    @property
    def should_stop(self) -> bool:
        """Whether a blocking handler had better end soon, for one of these reasons or because its worker stops."""
        return self._signals.interrupted


_current: ContextVar[RunningTask] = ContextVar("holdfast_current_task")


def current_task() -> RunningTask:
    """The task that is being worked on, in a handler or in whatever it calls."""
    try:
        return _current.get()
    except LookupError:
        raise LookupError(
            "There is no current task here: current_task() works in handlers that a worker runs."
        ) from None


def set_current_task(task: RunningTask) -> None:
    """For the worker, in the context in which it runs a handler."""
    _current.set(task)
