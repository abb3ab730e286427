"""What a router does with each call: finds the shards it is about, sends it there, and makes one answer of theirs.

A call that is about one shard passes as bytes in both directions. That is every call that names its shard in the
metadata, if it is about what can be there, and of the others nearly all.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, Protocol

from google.protobuf.message import DecodeError

from holdfast.router.admission import Admission, Budget
from holdfast.router.batches import check_named_shard, place, with_generations
from holdfast.router.callers import Caller
from holdfast.router.forwarding import Forwarder
from holdfast.router.leaders import Map
from holdfast.router.methods import ALL, Method
from holdfast.router.releases import Releases
from holdfast.router.reserving import Reserving
from holdfast.router.split_calls import RouterSplitCall, has_answered
from holdfast.router.whole_calls import WholeCalls
from holdfast.routing.calls import ENQUEUED
from holdfast.routing.reserve_calls import Places
from holdfast.routing.sets import visible
from holdfast.routing.splitting import split_over
from holdfast.serving.refusals import no_such_shard, shutting_down
from holdfast.serving.request_limits import QUEUES_PER_RESERVE_MAX
from holdfast.transport.over_shards import send_over_shards, send_parts
from holdfast.transport.parts import Parts

_WAITING_BYTES_MAX = 64 * 1024  # 1,000 task ids, or 64 queues and all else that a Reserve may name

_Handler = Callable[[Method, bytes, Caller, float], Coroutine[Any, Any, bytes]]


class OwnService(Protocol):
    """Calls that the router answers itself, or not by a rule of this file: one method per call, in snake case."""

    def find(self, name: str) -> Callable[[Any], Awaitable[Any]] | None:
        """The method of a call; None if this service does not answer it."""
        ...


class Gateway:
    """Answers the calls to all services. `handle` raises CallFailedError or RefusedError."""

    def __init__(
        self,
        table: Map,
        forwarder: Forwarder,
        releases: Releases,
        admission: Admission,
        *,
        check_map: Callable[[], None],
        own: OwnService,
        wait_ms_max: int,
        call_s_default: float,
        message_bytes_max: int,
        broker_waits_max: int = 10_000,
        idle_wait_ms_max: int = 0,
    ) -> None:
        """`check_map` refuses while there is no map to route by."""
        self._table = table
        self._forwarder = forwarder
        self._admission = admission
        self._check_map = check_map
        self._own = own
        self.reserving = Reserving(
            forwarder, releases, wait_ms_max=wait_ms_max, idle_wait_ms_max=idle_wait_ms_max, find_places=self._places,
            leader_of=table.leader_hint, waits_max=broker_waits_max,
        )  # fmt: skip
        self.whole_calls = WholeCalls(
            table, forwarder, releases, admission, check_map=check_map, call_s_max=call_s_default
        )  # fmt: skip
        self._parts: Parts[Any] = Parts(table.leader_hint, has_answered)
        self._wait_s_max = wait_ms_max / 1000
        self._reserve_s_max = max(wait_ms_max, idle_wait_ms_max) / 1000
        self._call_s_default = call_s_default
        self._message_bytes_max = message_bytes_max
        self._picks = 0
        self._stopping = False
        self._waiting: set[asyncio.Task[Any]] = set()  # that answer calls which wait
        self._handlers: dict[str, _Handler] = {
            "Enqueue": self._enqueue,
            "Reserve": self._reserve,
            "AwaitTasks": self._reserve,
            "ListWorkers": self._list_workers,
            **{method.name: self._by_shard for method in ALL if method.names_shard},
        }

    def stop(self) -> None:
        """From now on calls are sent elsewhere. Those under way go on, but for those that only wait for a task."""
        self._stopping = True
        for waiting in self._waiting:
            waiting.cancel()

    async def close(self) -> None:
        await self.reserving.waits.close()

    @property
    def broker_waits(self) -> int:
        """Waits at brokers that the calls which wait here share."""
        return self.reserving.waits.at_brokers

    def routes_changed(self, queues: Sequence[str]) -> None:
        """The map has them on other shards than before."""
        self.reserving.routes_changed(queues)

    def check(self, method: Method) -> None:
        """Refuses what would be refused whatever is in it: to be called before a request is let in."""
        if self._stopping:
            raise shutting_down()
        self._admission.check(may_wait=method.waits)

    async def handle(self, method: Method, data: bytes, caller: Caller) -> bytes:
        if self._stopping:
            raise shutting_down()
        budget, size = self._budget(method, data), len(data)
        budget.enter(size)
        try:
            own = self._own.find(method.name)
            if own is not None:
                answer: bytes = (await own(method.parse(data))).SerializeToString()
                return answer
            self._check_map()
            handler = self._handlers.get(method.name, self._over_shards)
            if caller.shard is not None:
                handler = self._as_it_is
            deadline_s = self._deadline_s(method, caller)
            if method.waits:
                return await self._wait(handler(method, data, caller, deadline_s))
            return await handler(method, data, caller, deadline_s)
        finally:
            budget.leave(size)

    def _budget(self, method: Method, data: bytes) -> Budget:
        """What is too large for a call that waits is read later, as any other."""
        waits = method.waits and len(data) <= _WAITING_BYTES_MAX and method.wait_ms(data) > 0
        return self._admission.waiting if waits else self._admission.working

    async def _wait(self, answer: Awaitable[bytes]) -> bytes:
        """A call that may wait for long: a stop sends it elsewhere."""
        task = asyncio.current_task()
        assert task is not None
        self._waiting.add(task)
        try:
            return await answer
        except asyncio.CancelledError:
            if self._stopping and task.uncancel() == 0:
                raise shutting_down() from None
            raise
        finally:
            self._waiting.discard(task)

    def _deadline_s(self, method: Method, caller: Caller) -> float:
        wait_s = self._reserve_s_max if method.name == "Reserve" else self._wait_s_max
        longest_s = self._call_s_default + (wait_s if method.waits else 0.0)
        return min(caller.deadline_s, time.monotonic() + longest_s)

    # --- one shard ----------------------------------------------------------------------------------------------

    async def _as_it_is(self, method: Method, data: bytes, caller: Caller, deadline_s: float) -> bytes:
        assert caller.shard is not None
        shard = self._checked(caller.shard)
        check_named_shard(method, data, shard, self._table)
        return await self._at_one(method, shard, data, caller, deadline_s)

    async def _at_one(self, method: Method, shard: int, data: bytes, caller: Caller, deadline_s: float) -> bytes:
        if method.name == "Reserve":
            return await self.reserving.claim(shard, data, caller, deadline_s)
        return await self._forwarder.send(method, shard, data, deadline_s)

    async def _by_shard(self, method: Method, data: bytes, _caller: Caller, deadline_s: float) -> bytes:
        return await self._forwarder.send(method, self._checked(method.parse(data).shard), data, deadline_s)

    def _checked(self, shard: int) -> int:
        count = self._table.shard_count
        if not 0 <= shard < count:
            raise no_such_shard(shard, count)
        return shard

    # --- several ------------------------------------------------------------------------------------------------

    def _split_call(self, method: Method, data: bytes, deadline_s: float) -> RouterSplitCall:
        return RouterSplitCall(self._forwarder, method, data, deadline_s, answer_bytes_max=self._message_bytes_max // 2)

    async def _enqueue(self, method: Method, data: bytes, caller: Caller, deadline_s: float) -> bytes:
        call = self._split_call(method, data, deadline_s)
        self._picks += 1
        placed = place(call.request, self._table, self._picks, is_first=caller.is_first)
        return with_generations(await send_parts(call, self._parts, ENQUEUED, placed.shards), placed.generations)

    async def _over_shards(self, method: Method, data: bytes, _caller: Caller, deadline_s: float) -> bytes:
        call = self._split_call(method, data, deadline_s)
        self._picks += 1
        return await send_over_shards(call, self._parts, self._table.route, self._table.shard_count, self._picks)

    # --- queues -------------------------------------------------------------------------------------------------

    def _places(self, queues: Sequence[str]) -> Places:
        """The shards of some queues, and by position which of the queues each may have tasks of."""
        return split_over(visible(self._table.route(queue)) for queue in queues)

    async def _reserve(self, method: Method, data: bytes, caller: Caller, deadline_s: float) -> bytes:
        request = method.parse(data)
        if len(request.queues) > QUEUES_PER_RESERVE_MAX:  # a broker says what is wrong with it
            return await self._at_one(method, self._table.route(request.queues[0]).home, data, caller, deadline_s)
        if method.name == "AwaitTasks":
            return await self.reserving.await_tasks(request, data, caller, deadline_s)
        for shard in request.held_at:
            self._checked(shard)
        return await self.reserving.reserve(request, data, caller, deadline_s)

    async def _list_workers(self, method: Method, data: bytes, caller: Caller, deadline_s: float) -> bytes:
        """Brokers do not know who shares the waits of this router."""
        answer = await self._over_shards(method, data, caller, deadline_s)
        try:
            page = method.response.FromString(answer)
        except DecodeError:
            return answer  # the caller will say that it cannot be read
        for worker in page.workers:
            worker.is_waiting = worker.is_waiting or self.reserving.waits.is_waiting(worker.worker)
        result: bytes = page.SerializeToString()
        return result
