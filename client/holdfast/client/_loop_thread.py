"""An event loop on a thread of its own, so that code without one can use a client that needs one.

The thread is a daemon and knows nothing of the `LoopThread` that owns it: one that is dropped without a word is
collected, and its thread ends. What still runs at the end of the program is stopped before the interpreter goes away.

A fork would leave the child with a client whose thread is gone. So a client that is idle lets go of its thread and its
connection before the fork, and parent and child each take new ones when they need them. One that is busy is left alone.
"""

import asyncio
import atexit
import gc
import os
import threading
import weakref
from collections.abc import Callable, Coroutine
from concurrent.futures import CancelledError, Future, wait
from functools import partial
from typing import Any, Generic, Protocol, TypeVar

from holdfast.client import _forks
from holdfast.client.errors import ClientClosed
from holdfast.common.loop import new_event_loop
from holdfast.common.service import end_tasks

# Neither the end of the program nor a fork waits longer than this for a thread.
_WAIT_S_MAX = 2.0
_IDLE_WAIT_S_MAX = 0.25
_SIGNALS_S = 1.0


class Closable(Protocol):
    """What lives on the loop. Closing it makes the calls that still run end."""

    async def close(self) -> None: ...


ClientT = TypeVar("ClientT", bound=Closable)
T = TypeVar("T")


class LoopThread(Generic[ClientT]):
    """Makes calls on a client that lives on a loop of its own, for callers on any thread and on any other loop."""

    def __init__(self, name: str, make: Callable[[], ClientT]) -> None:
        """Nothing is made or started before the first call."""
        self._name = name
        self._make = make
        self._lock = threading.Lock()
        self._current: _RunningLoop[ClientT] | None = None
        self._collected: weakref.finalize[Any, Any] | None = None
        self._closed = False
        _all[id(self)] = self

    def run(self, call: Callable[[ClientT], Coroutine[Any, Any, T]]) -> T:
        """Waits for the result. What interrupts the wait, e.g. Ctrl-C, cancels the call."""
        future = self._submit(call)
        try:
            while not future.done():
                try:
                    # A signal that comes just before the wait begins does not end it, so no wait is long.
                    return future.result(_SIGNALS_S)
                except TimeoutError:
                    pass
            return future.result()
        finally:
            future.cancel()  # changes nothing if it is done
            del future  # an error holds this frame, which would hold the error

    async def run_async(self, call: Callable[[ClientT], Coroutine[Any, Any, T]]) -> T:
        """The same for a caller on another loop, which goes on meanwhile. Its cancellation cancels the call."""
        return await asyncio.wrap_future(self._submit(call))

    @property
    def client(self) -> ClientT | None:
        """The one that is in use, to be looked at from any thread but its own; None if there is none now."""
        current = self._current
        if current is None or self._closed:
            return None
        _refuse_own_thread(current)
        return current.client

    def close(self) -> None:
        """Ends the thread; calls that still run end with `ClientClosed`. May be called more than once."""
        with self._lock:
            self._closed = True
            current = self._current
        if current is not None:
            _refuse_own_thread(current)
            current.stop()
            current.thread.join()

    def _submit(self, call: Callable[[ClientT], Coroutine[Any, Any, T]]) -> "Future[T]":
        # Under the lock, so that nothing can be handed over after the request to stop.
        with self._lock:
            if self._closed:
                raise ClientClosed
            _forks.check()
            if self._current is None:
                self._current = _RunningLoop(self._name, self._make())
                self._collected = weakref.finalize(self, self._current.stop)
                self._collected.atexit = False  # see _at_exit
            _refuse_own_thread(self._current)
            return self._current.submit(call)

    # ------------------------------------------------------------------------------------------- end and fork

    def end_silently(self) -> None:
        """The program ends: callers on daemon threads stay where they are rather than to fail for all to see."""
        self._closed = True
        if self._current is not None:
            self._current.end_silently()

    def before_fork(self) -> bool:
        """Ends the thread, unless a call is running, and holds the lock: no call can begin until after the fork.

        False if the lock cannot be had, because another thread forks as well and takes too long.
        """
        if not self._lock.acquire(timeout=_WAIT_S_MAX):
            return False
        if self._current is not None and self._current.waited_until_idle():
            self._current.stop()
            self._current.thread.join(_WAIT_S_MAX)
            self._forget_current()
        return True

    def after_fork_in_parent(self) -> None:
        self._lock.release()

    def after_fork_in_child(self) -> None:
        self._lock = threading.Lock()
        if self._current is not None:
            # Its loop shares its descriptors with the parent's: never touch it, not even to free it.
            _inherited.append(self._current)
            self._forget_current()

    def _forget_current(self) -> None:
        self._current = None
        if self._collected is not None:
            self._collected.detach()


class _Handed(Future[T]):
    """The result of a call on the loop's thread. Cancelling it cancels the call."""

    task: "asyncio.Task[T] | None" = None

    def cancel(self) -> bool:
        is_cancelled, task = super().cancel(), self.task
        if is_cancelled and task is not None and not task.done():
            task.get_loop().call_soon_threadsafe(task.cancel)
        return is_cancelled


class _RunningLoop(Generic[ClientT]):
    """A loop, its thread and its client. Apart from `LoopThread`, which its own thread must not keep alive."""

    def __init__(self, name: str, client: ClientT) -> None:
        self._loop = new_event_loop()
        self.client = client
        self._running: set[Future[Any]] = set()
        self._stopping = False
        self._silent = False
        self.thread = threading.Thread(target=self._serve, name=name, daemon=True)
        self.thread.start()

    def waited_until_idle(self) -> bool:
        """Whether no call is running. Most last some milliseconds: worth the wait; a long poll is not."""
        if threading.current_thread() is self.thread:
            return False
        return not wait(list(self._running), _IDLE_WAIT_S_MAX).not_done

    def submit(self, call: Callable[[ClientT], Coroutine[Any, Any, T]]) -> "Future[T]":
        future: _Handed[T] = _Handed()
        self._running.add(future)
        self._loop.call_soon_threadsafe(self._begin, call, future)
        return future

    def stop(self) -> None:
        """Asks the thread to end. Takes no lock and waits for nothing: the garbage collector may call it anywhere."""
        if not self._stopping:
            self._stopping = True
            self._loop.call_soon_threadsafe(self._loop.stop)

    def end_silently(self) -> None:
        self._silent = True
        self.stop()
        self.thread.join(_WAIT_S_MAX)

    def _begin(self, call: Callable[[ClientT], Coroutine[Any, Any, T]], future: _Handed[T]) -> None:
        task = future.task = self._loop.create_task(self._made(call))
        task.add_done_callback(partial(self._deliver, future))
        if future.cancelled():  # before there was a task
            task.cancel()

    async def _made(self, call: Callable[[ClientT], Coroutine[Any, Any, T]]) -> T:
        return await call(self.client)  # in here, so that the caller also hears of a call that cannot be made

    def _deliver(self, future: _Handed[T], task: "asyncio.Task[T]") -> None:
        self._running.discard(future)
        future.task = None
        error: BaseException | None
        if task.cancelled():
            error = ClientClosed() if self._stopping else CancelledError()
        else:
            error = task.exception()
        if self._silent or not future.set_running_or_notify_cancel():
            return
        if error is None:
            future.set_result(task.result())
        else:
            future.set_exception(error)

    def _serve(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_forever()
            self._loop.run_until_complete(self._wind_up())
        finally:
            asyncio.set_event_loop(None)
            self._loop.close()

    async def _wind_up(self) -> None:
        await self.client.close()
        await end_tasks(asyncio.all_tasks() - {asyncio.current_task()})


def _refuse_own_thread(current: _RunningLoop[Any]) -> None:
    if threading.current_thread() is current.thread:
        raise RuntimeError(
            "Expected a call from another thread, but this is the client's own, which would wait for itself."
        )


_all: "weakref.WeakValueDictionary[int, LoopThread[Any]]" = weakref.WeakValueDictionary()
_inherited: list[_RunningLoop[Any]] = []


class _Fork(threading.local):
    """The fork that a thread has under way: it is the one thread that goes on in the child, too."""

    def __init__(self) -> None:
        self.held: list[LoopThread[Any]] = []


_fork = _Fork()


def _living() -> list[LoopThread[Any]]:
    # The references are copied in one step, whatever other threads make meanwhile.
    return [thread for reference in _all.valuerefs() if (thread := reference()) is not None]


def _at_exit() -> None:
    for thread in _living():
        thread.end_silently()


def _before_fork() -> None:
    living = _living()
    _fork.held = [thread for thread in living if thread.before_fork()]
    if not living:
        return
    if _forks.in_use():
        gc.collect()  # errors hold the calls that they came from, in cycles, and those hold gRPC
    if not _forks.in_use():
        _forks.settle()


def _after_fork_in_parent() -> None:
    for thread in _fork.held:
        thread.after_fork_in_parent()
    _fork.held = []


def _after_fork_in_child() -> None:
    for thread in _living():
        thread.after_fork_in_child()
    _fork.held = []


atexit.register(_at_exit)
os.register_at_fork(before=_before_fork, after_in_parent=_after_fork_in_parent, after_in_child=_after_fork_in_child)
