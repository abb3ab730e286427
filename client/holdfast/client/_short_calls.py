"""Calls of one request each, made by the thread that wants the answer.

To hand a call to the thread of the event loop and its answer back costs more than the call. So a thread sends it over a
connection of its own and waits for the answer there, if frames are to be had and no other thread does so at the moment.
What else a call may need goes on on the loop: it is made there if it cannot be sent, or has failed, or if its server is
silent and others can be asked.
"""

import asyncio
import atexit
import os
import threading
import time
import weakref
from collections.abc import Callable, Coroutine, Generator
from typing import Any, Generic, TypeVar

from holdfast.client._attempts import MESSAGE_BYTES_MAX, checked
from holdfast.client._fitting import at_place, only
from holdfast.client._loop_thread import LoopThread
from holdfast.client._rpc import (
    Connection,
    FailedAttempt,
    FirstAttempt,
    Method,
    OwnWay,
    Reply,
    RequestT,
    ResponseT,
    UnderWay,
    metadata_of,
)
from holdfast.client._single_enqueues import REPEATED, SingleEnqueue
from holdfast.client.aio import AsyncClient
from holdfast.client.errors import HoldfastError, Rejected
from holdfast.client.models import Accepted, NewTask
from holdfast.transport.blocking_link import BlockingCall, BlockingLink
from holdfast.transport.channels import CallFailedError, Metadata
from holdfast.transport.frame_channels import NoFramesError
from holdfast.transport.giving_up import ENDLESS, Patience

_KEEPALIVE_S = 30.0
QUIET_S = 0.5  # of a server: after that others are asked, by the loop
# So long after two threads have met all go to the loop: what several enqueue at the same time shares requests there.
SHARED_S = 0.05
STEADY_S = 10.0  # a connection that is lost sooner counts as one that could not be made
_AGAIN_S = 5.0  # after one of those

T = TypeVar("T")


class _OnLoop(Generic[T]):
    """What a coroutine waits for when it needs the event loop. The thread that carries it out has it done there."""

    def __init__(self, call: Callable[[AsyncClient], Coroutine[Any, Any, T]]) -> None:
        self.call = call

    def __await__(self) -> Generator["_OnLoop[T]", T, T]:
        result = yield self
        return result


class _SilentCall:
    """An attempt that has no answer yet, as those see it who look after it on the loop."""

    is_unsent = False

    def __init__(self, link: BlockingLink, call: BlockingCall) -> None:
        self._link = link
        self._call = call
        self._was_given_up = False

    def cancel(self) -> None:
        self._was_given_up = True
        self._link.shut_down()

    async def answer(self) -> bytes:
        try:
            return await asyncio.to_thread(self._link.answer, self._call)
        except CallFailedError:
            if self._was_given_up:
                raise CallFailedError("CANCELLED", "It was silent.", was_given_up=True) from None
            raise
        except asyncio.CancelledError:  # nobody waits for it any more
            self._link.shut_down()
            raise


class _OwnConnection(Connection):
    """Makes first attempts on the thread that calls it, and has the loop go on where more is needed."""

    def __init__(self, way: OwnWay, link: BlockingLink, *, retry: bool) -> None:
        super().__init__(way.address, retry=retry, transport="grpc")  # which it leaves alone
        self._way = way
        self._link = link

    async def call(
        self,
        method: Method[RequestT, ResponseT],
        request: RequestT,
        *,
        timeout_s: float,
        repeatable: bool,
        wait_ms: int = 0,
        attempt: int = 0,
        shard: int | None = None,
        is_first: bool = False,
        repeats_s: float = float("inf"),
        patience: Patience = ENDLESS,
        first: FirstAttempt | None = None,
    ) -> Reply[ResponseT]:
        if first is None and shard is None and not (wait_ms and self._way.has_others):
            metadata = metadata_of(None, attempt, is_first=is_first)
            made = self._attempt(method, request, max(0, wait_ms) / 1000 + timeout_s, metadata)
            if isinstance(made, Reply):
                return made
            first = made
        reply: Reply[ResponseT] = await _OnLoop(
            lambda client: client._connection.call(
                method, request, timeout_s=timeout_s, repeatable=repeatable, wait_ms=wait_ms, attempt=attempt,
                shard=shard, is_first=is_first, repeats_s=repeats_s, patience=patience, first=first,
            )
        )  # fmt: skip
        return reply

    def begin_call(
        self, method: Method[RequestT, ResponseT], request: RequestT, timeout_s: float, *, repeatable: bool,
        is_first: bool, on_end: Callable[[Reply[ResponseT] | FirstAttempt | HoldfastError], None],
    ) -> bool:  # fmt: skip
        """It has ended when this returns."""
        try:
            made = self._attempt(method, request, timeout_s, metadata_of(None, 0, is_first=is_first))
        except HoldfastError as error:
            on_end(error)
            return True
        if made is None:
            return False
        on_end(made)
        return True

    def _attempt(
        self, method: Method[RequestT, ResponseT], request: RequestT, timeout_s: float, metadata: Metadata | None
    ) -> Reply[ResponseT] | FirstAttempt | None:
        """None if it cannot be sent this way."""
        data = checked(request.SerializeToString())
        if not self._link.takes(method.path, len(data)):
            return None
        begun_s, address = time.monotonic(), self._way.address
        quiet_s = QUIET_S if self._way.has_others else float("inf")
        try:
            answer = self._link.call(method.path, data, metadata, timeout_s, quiet_s)
        except CallFailedError as failure:
            return FailedAttempt(failure.with_traceback(None), address, begun_s)
        if isinstance(answer, BlockingCall):
            return UnderWay(_SilentCall(self._link, answer), address, begun_s)
        return Reply(self._read(method, answer, address), begun_s)


class _OwnClient(AsyncClient):
    """The calls of a client over such a connection. Their coroutines wait for nothing but what is done on the loop."""

    def __init__(self, client: AsyncClient, connection: _OwnConnection) -> None:
        self._use(connection, None, client._timeout_s, client._coding)

    async def enqueue(self, task: NewTask, *, timeout_s: float | None = None) -> Accepted:
        if timeout_s is not None or task.request_id == "":
            return only(await self.enqueue_many([task], timeout_s=timeout_s))
        item, begun_s = SingleEnqueue(self._coding.task(task)), time.monotonic()
        ended: list[Any] = []
        outcome: Accepted | Rejected
        if not self._enqueues.begin_singles([item], self._timeout_s, ended.append):
            outcome = await _OnLoop(lambda client: client.enqueue(task))
        elif isinstance(ended[0], list):
            [outcome] = ended[0]
        else:
            [outcome], [item.request_id] = await ended[0]
            if isinstance(outcome, Rejected) and outcome.reason in REPEATED:
                left_s = self._timeout_s - (time.monotonic() - begun_s)
                outcome = await _OnLoop(lambda client: client._put_single(item, left_s))
        if isinstance(outcome, Rejected):
            raise at_place(outcome, 0)
        return outcome


class _Connecting:
    """A connection that is being made, on a thread of its own: no call waits for it."""

    def __init__(self, way: OwnWay, token: str) -> None:
        """`token`: who calls over it."""
        self.way = way
        self.token = token
        self.link: BlockingLink | None = None
        self.has_failed = False
        self.began_s = time.monotonic()
        self._is_given_up = False
        self._lock = threading.Lock()
        threading.Thread(target=self._connect, name="holdfast-connect", daemon=True).start()

    def _connect(self) -> None:
        try:
            link = BlockingLink(self.way.frames, "client", MESSAGE_BYTES_MAX, _KEEPALIVE_S, self.token)
        except NoFramesError:
            self.has_failed = True
            return
        with self._lock:
            if self._is_given_up:
                link.close()
            else:
                self.link = link

    def give_up(self) -> None:
        with self._lock:
            self._is_given_up = True
            if self.link is not None:
                self.link.close()


class ShortCalls:
    """Of one client; for any number of threads, of which one at a time goes this way."""

    def __init__(self, thread: LoopThread[AsyncClient]) -> None:
        """`thread`: which everything else goes to."""
        self._thread = thread
        self._lock = threading.Lock()
        self._connecting: _Connecting | None = None
        self._way: OwnWay | None = None
        self._link: BlockingLink | None = None
        self._client: _OwnClient | None = None
        self._of: AsyncClient | None = None  # whose calls it makes
        self._not_before_s = 0.0
        self._is_shared_until_s = 0.0
        self._collected: weakref.finalize[Any, Any] | None = None
        _all.add(self)

    def run(self, call: Callable[[AsyncClient], Coroutine[Any, Any, T]]) -> T:
        """As that of the thread, for calls that make one request."""
        now_s = time.monotonic()
        if now_s < self._is_shared_until_s:
            return self._thread.run(call)
        if not self._lock.acquire(blocking=False):
            self._is_shared_until_s = now_s + SHARED_S
            return self._thread.run(call)
        try:
            client = self._own_client()
            if client is not None:
                return self._carry_out(call(client))
        finally:
            self._lock.release()
        return self._thread.run(call)

    def _carry_out(self, coroutine: Coroutine[Any, Any, T]) -> T:
        step: Callable[[], Any] = lambda: coroutine.send(None)  # noqa: E731
        while True:
            try:
                wanted: _OnLoop[Any] = step()
            except StopIteration as end:
                done: T = end.value
                return done
            try:
                result = self._thread.run(wanted.call)
            except BaseException as error:  # noqa: BLE001 - the coroutine is who hears of it
                step = _raising(coroutine, error)
            else:
                step = _sending(coroutine, result)

    def _own_client(self) -> _OwnClient | None:
        """None if there is no such connection now."""
        client = self._thread.client
        way = None if client is None else client._own_way()
        if client is None or way is None:
            return None
        source = client._connection.token
        token = "" if source is None else source()
        is_same = way == self._way and client is self._of
        link = self._link
        if is_same and self._client is not None and link is not None and link.is_open and link.token == token:
            return self._client
        connecting = self._connecting
        if connecting is None or connecting.way != way or connecting.token != token:
            self._connect(way, token)
        elif connecting.has_failed or (connecting.link is not None and not connecting.link.is_open):
            now_s = time.monotonic()
            if now_s - connecting.began_s < STEADY_S:
                self._not_before_s = now_s + _AGAIN_S
            self._connect(way, token)
        elif connecting.link is not None:
            self._way, self._link, self._of = way, connecting.link, client
            own = _OwnConnection(way, self._link, retry=client._connection.retries)
            self._client = _OwnClient(client, own)
            return self._client
        return None

    def _connect(self, way: OwnWay, token: str) -> None:
        self._drop()
        if time.monotonic() >= self._not_before_s:
            self._connecting = _Connecting(way, token)
            self._collected = weakref.finalize(self, self._connecting.give_up)
            self._collected.atexit = False  # see _at_exit

    def _drop(self) -> None:
        connecting, self._connecting = self._connecting, None
        self._link = self._client = self._of = self._way = None
        if self._collected is not None:
            self._collected.detach()
        if connecting is not None:
            connecting.give_up()

    def close(self) -> None:
        """Ends a call under way. The thread is closed already, so nothing goes on."""
        if self._link is not None:
            self._link.shut_down()
        if self._lock.acquire(timeout=_AGAIN_S):
            try:
                self._drop()
            finally:
                self._lock.release()

    def close_if_idle(self) -> None:
        """The program ends: a caller on a daemon thread stays where it is rather than to fail for all to see."""
        if self._lock.acquire(blocking=False):
            self._drop()

    def after_fork_in_child(self) -> None:
        """The connection is the parent's, and perhaps a call over it is under way there."""
        self._lock = threading.Lock()
        if self._connecting is not None and self._connecting.link is not None:
            self._connecting.link.forget()
        self._connecting = None
        self._drop()


def _sending(coroutine: Coroutine[Any, Any, T], result: Any) -> Callable[[], Any]:
    return lambda: coroutine.send(result)


def _raising(coroutine: Coroutine[Any, Any, T], error: BaseException) -> Callable[[], Any]:
    return lambda: coroutine.throw(error)


_all: "weakref.WeakSet[ShortCalls]" = weakref.WeakSet()


def _at_exit() -> None:
    for calls in list(_all):
        calls.close_if_idle()


def _after_fork_in_child() -> None:
    for calls in list(_all):
        calls.after_fork_in_child()


atexit.register(_at_exit)
os.register_at_fork(after_in_child=_after_fork_in_child)
