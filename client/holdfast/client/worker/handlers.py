"""Runs handlers: async ones on an event loop of their own, blocking ones on threads.

All threads are daemons: a handler that does not end must not keep the process after its task was given back.
"""

import asyncio
import contextvars
import logging
import threading
from collections.abc import Callable, Mapping
from functools import partial
from queue import SimpleQueue
from typing import Any, Protocol

from holdfast.client.arguments import decode_call, encode_json
from holdfast.client.context import RunningTask, set_current_task
from holdfast.client.errors import KeyMissing, NotJson, Unreadable
from holdfast.client.models import TaskError
from holdfast.client.worker.jobs import (
    AttemptFailed,
    Interrupted,
    Job,
    Outcome,
    Succeeded,
    describe,
    outcome_of,
    timeout_of,
)
from holdfast.client.worker.mailboxes import Mailbox

log = logging.getLogger("holdfast.worker")

UNKNOWN_TYPE = "holdfast.UnknownTaskType"
_CLOSE_S_MAX = 1.0
_NAMES_SHOWN_MAX = 10


class Handler(Protocol):
    """What the worker needs to know of a task's function."""

    @property
    def name(self) -> str: ...
    @property
    def is_async(self) -> bool: ...
    @property
    def function(self) -> Callable[..., Any]: ...


class Handlers:
    """Starts handlers by the type of their task. `ended` is called on a handler's thread, exactly once per job."""

    def __init__(
        self, handlers: Mapping[str, Handler], threads_max: int, ended: Callable[[Job, Outcome], None]
    ) -> None:
        self._handlers = handlers
        self._ended = ended
        self._threads = _Threads(threads_max)
        self._loop = _HandlerLoop(ended) if any(handler.is_async for handler in handlers.values()) else None

    def start(self, job: Job) -> None:
        handler = self._handlers.get(job.claim.type)
        if handler is None:
            self._ended(job, AttemptFailed(self._unknown(job.claim.type)))
        elif handler.is_async and self._loop is not None:
            job.interrupt = partial(self._loop.interrupt, job)
            self._loop.start(job, handler)
        else:
            self._threads.start(partial(self._run_blocking, job, handler))

    def _unknown(self, name: str) -> TaskError:
        # Not given up at once: while a new version rolls out, other workers may know it already.
        known = ", ".join(sorted(self._handlers)[:_NAMES_SHOWN_MAX])
        return TaskError(UNKNOWN_TYPE, f"This worker has no task named {name}; it knows {known}.")

    def _run_blocking(self, job: Job, handler: Handler) -> None:
        try:
            outcome = contextvars.Context().run(_call_blocking, job, handler)
        except BaseException as error:  # noqa: BLE001 - whatever it is, the job must end
            outcome = _unexplained(error)
        self._ended(job, outcome)

    def close(self) -> None:
        """Lets go of the threads. Handlers that still run go on, and nobody listens to them."""
        self._threads.close()
        if self._loop is not None:
            self._loop.close()


def interrupt(job: Job) -> None:
    """Tells a handler to stop: an async one is cancelled, a blocking one can only look at its flags."""
    if not job.interrupted:
        job.interrupted = True
        if job.interrupt is not None:
            job.interrupt()


def _call_blocking(job: Job, handler: Handler) -> Outcome:
    set_current_task(RunningTask(job.claim, job))
    call = _call_of(job)
    if isinstance(call, AttemptFailed):
        return call
    args, kwargs = call
    try:
        return _succeeded(handler, handler.function(*args, **kwargs))
    except BaseException as error:  # noqa: BLE001 - also sys.exit(): a handler must not end the worker
        return outcome_of(error)


async def _call_async(job: Job, handler: Handler) -> Outcome:
    set_current_task(RunningTask(job.claim, job))
    call = _call_of(job)
    if isinstance(call, AttemptFailed):
        return call
    args, kwargs = call
    try:
        return _succeeded(handler, await handler.function(*args, **kwargs))
    except asyncio.CancelledError as error:
        if job.timed_out:
            return timeout_of(job, error)  # its traceback tells what the handler was waiting for
        return Interrupted() if job.interrupted else outcome_of(error)
    except BaseException as error:  # noqa: BLE001 - also sys.exit(): a handler must not end the worker
        return outcome_of(error)


def _call_of(job: Job) -> tuple[list[Any], dict[str, Any]] | AttemptFailed:
    """What the handler is called with."""
    try:
        return decode_call(job.claim.payload)
    except KeyMissing as error:
        # Not given up at once: while a new key is handed out, other workers may have it already.
        return AttemptFailed(describe(error))
    except (NotJson, Unreadable) as error:
        return AttemptFailed(describe(error), dead=True)


def _succeeded(handler: Handler, result: object) -> Outcome:
    if result is None:
        return Succeeded()
    try:
        return Succeeded(encode_json(result, f"the result of {handler.name}"))
    except NotJson as error:
        # The next attempt would do the work once more and end here again.
        return AttemptFailed(describe(error), dead=True)


def _unexplained(error: BaseException) -> AttemptFailed:
    """For what is raised while the outcome is made, so that nothing more is asked of the error than its name."""
    return AttemptFailed(TaskError(type(error).__name__, "The handler has ended, but its outcome could not be told."))


class _HandlerLoop:
    """An event loop on its own thread for the async handlers."""

    def __init__(self, ended: Callable[[Job, Outcome], None]) -> None:
        self._ended = ended
        self._closing = False
        self._running: dict[Job, asyncio.Task[Outcome]] = {}
        self._loop = asyncio.new_event_loop()
        self._box: Mailbox[Callable[[], None]] = Mailbox(self._loop, lambda step: step())
        self._thread = threading.Thread(target=self._serve, name="holdfast-handlers", daemon=True)
        self._thread.start()

    def start(self, job: Job, handler: Handler) -> None:
        self._box.put(partial(self._start, job, handler))

    def interrupt(self, job: Job) -> None:
        self._box.put(partial(self._cancel, job))

    def _start(self, job: Job, handler: Handler) -> None:
        task = self._loop.create_task(_call_async(job, handler), name=f"holdfast-{job.claim.task_id}")
        self._running[job] = task
        task.add_done_callback(partial(self._done, job))

    def _done(self, job: Job, task: asyncio.Task[Outcome]) -> None:
        del self._running[job]
        error = None if task.cancelled() else task.exception()
        if task.cancelled():  # as a whole: interrupted before its first step
            self._ended(job, Interrupted())
        elif error is not None:
            self._ended(job, _unexplained(error))
        else:
            self._ended(job, task.result())

    def _cancel(self, job: Job) -> None:
        task = self._running.get(job)
        if task is not None:
            task.cancel()

    def _serve(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            while not self._closing:
                try:
                    self._loop.run_forever()
                except BaseException as error:  # noqa: BLE001 - sys.exit() in a task that a handler had started
                    log.warning("A task of a handler tried to end the worker with %s.", type(error).__name__)
            for task in self._running.values():
                task.cancel()
            self._loop.run_until_complete(asyncio.gather(*self._running.values(), return_exceptions=True))
            self._loop.run_until_complete(self._loop.shutdown_asyncgens())
        finally:
            self._loop.close()

    def close(self) -> None:
        self._closing = True
        self._box.put(self._loop.stop)
        self._thread.join(_CLOSE_S_MAX)  # a handler that blocks the loop is left to itself


class _Threads:
    """Daemon threads for blocking handlers, started when there is no idle one."""

    def __init__(self, threads_max: int) -> None:
        self._threads_max = threads_max
        self._count = 0
        self._idle = threading.Semaphore(0)
        self._work: SimpleQueue[Callable[[], None] | None] = SimpleQueue()

    def start(self, work: Callable[[], None]) -> None:
        self._work.put(work)
        if not self._idle.acquire(blocking=False) and self._count < self._threads_max:
            self._count += 1
            threading.Thread(target=self._serve, name=f"holdfast-handler-{self._count}", daemon=True).start()

    def _serve(self) -> None:
        while (work := self._work.get()) is not None:
            work()
            self._idle.release()

    def close(self) -> None:
        for _ in range(self._count):
            self._work.put(None)
