"""What a router does with each call: finds the shards it is about, sends it there, and makes one answer of theirs.

A call that is about one shard passes as bytes in both directions. That is every call that names its shard in the
metadata, if it is about what can be there, and of the others nearly all.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from functools import partial
from typing import Any, Protocol

from google.protobuf.message import DecodeError, Message

from holdfast.proto.v1 import tasks_pb2 as pb
from holdfast.router import listing
from holdfast.router.admission import Admission, Budget
from holdfast.router.batches import (
    check_named_shard,
    fit,
    has_too_many_follow_ups,
    parts_of,
    place,
    shard_of_id,
    shards_of_tasks,
    with_generations,
)
from holdfast.router.callers import Caller
from holdfast.router.forwarding import Forwarder
from holdfast.router.leaders import Map
from holdfast.router.methods import Method
from holdfast.router.parts import Parts
from holdfast.router.releases import Releases
from holdfast.router.reserving import Reserving
from holdfast.routing.calls import BY_TASK
from holdfast.routing.homes import home_shard
from holdfast.routing.pages import order_of
from holdfast.routing.reserve_calls import Places
from holdfast.routing.sets import QueueRoute, counted, visible
from holdfast.routing.splitting import split_over
from holdfast.serving.refusals import no_such_shard, shutting_down
from holdfast.serving.request_limits import ITEMS_MAX, QUEUES_PER_RESERVE_MAX, QUEUES_PER_STATS_MAX

_WAITING_BYTES_MAX = 64 * 1024  # 1,000 task ids, or 64 queues and all else that a Reserve may name

_Handler = Callable[[Method, bytes, Caller, float], Coroutine[Any, Any, bytes]]
_ListAll = Callable[[Method, Any, int, listing.Send], Awaitable[Message]]  # a page over all shards


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
        self._reserving = Reserving(
            forwarder, releases, wait_ms_max=wait_ms_max, idle_wait_ms_max=idle_wait_ms_max, find_places=self._places,
            leader_of=table.leader_hint, waits_max=broker_waits_max,
        )  # fmt: skip
        self._parts = Parts(forwarder, table.leader_hint)
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
            "AwaitTasks": self._await_tasks,
            "GetTask": self._by_task_id,
            "GetDeadLetter": self._by_task_id,
            "QueueStats": self._queue_stats,
            "ListQueues": partial(self._list_by_name, listing.list_queues),
            "ListDeadLetters": self._list_dead_letters,
            "ListDiscards": self._list_of_queue_or_all,
            "ListTasks": self._list_of_queue_or_all,
            "PurgeQueue": self._purge_queue,
            "ListWorkers": self._list_workers,
            "Heartbeat": self._by_worker,
            "SignalWorker": self._by_worker,
            "PutSchedule": self._at_home,
            "GetSchedule": self._at_home,
            "DeleteSchedule": self._at_home,
            "PauseSchedule": self._at_home,
            "TriggerSchedule": self._at_home,
            "ListSchedules": self._list_schedules,
            "PreviewSchedule": self._preview_schedule,
            "FindLeader": self._by_shard,
            "TransferLeadership": self._by_shard,
            "ProbeShard": self._by_shard,
            "ChangeMembership": self._by_shard,
            "BeginBackup": self._by_shard,
            "CopyShard": self._by_shard,
            "ResumeDeliveries": self._by_shard,
            "ListBackupFiles": self._by_shard,
            "ReadBackupFile": self._by_shard,
            "EndBackup": self._by_shard,
        }
        for name in BY_TASK:
            self._handlers[name] = self._batch

    def stop(self) -> None:
        """From now on calls are sent elsewhere. Those under way go on, but for those that only wait for a task."""
        self._stopping = True
        for waiting in self._waiting:
            waiting.cancel()

    async def close(self) -> None:
        await self._reserving.waits.close()

    @property
    def broker_waits(self) -> int:
        """Waits at brokers that the calls which wait here share."""
        return self._reserving.waits.at_brokers

    def routes_changed(self, queues: Sequence[str]) -> None:
        """The map has them on other shards than before."""
        self._reserving.routes_changed(queues)

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
            handler = self._handlers[method.name]
            if caller.shard is not None:
                handler = self._reserve_as_it_is if method.name == "Reserve" else self._as_it_is
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
        return await self._forwarder.send(method, shard, data, deadline_s)

    async def _reserve_as_it_is(self, method: Method, data: bytes, caller: Caller, deadline_s: float) -> bytes:
        assert caller.shard is not None
        shard = self._checked(caller.shard)
        check_named_shard(method, data, shard, self._table)
        return await self._reserving.claim(shard, data, caller, deadline_s)

    async def _by_task_id(self, method: Method, data: bytes, _caller: Caller, deadline_s: float) -> bytes:
        shard = shard_of_id(method.parse(data).task_id, self._table.shard_count)
        return await self._forwarder.send(method, shard or 0, data, deadline_s)

    async def _by_worker(self, method: Method, data: bytes, _caller: Caller, deadline_s: float) -> bytes:
        """What is known of a worker beside its claims is at the home of its name."""
        shard = home_shard(method.parse(data).worker, self._table.shard_count)
        return await self._forwarder.send(method, shard, data, deadline_s)

    async def _by_shard(self, method: Method, data: bytes, _caller: Caller, deadline_s: float) -> bytes:
        return await self._forwarder.send(method, self._checked(method.parse(data).shard), data, deadline_s)

    def _checked(self, shard: int) -> int:
        count = self._table.shard_count
        if not 0 <= shard < count:
            raise no_such_shard(shard, count)
        return shard

    # --- batches ------------------------------------------------------------------------------------------------

    async def _enqueue(self, method: Method, data: bytes, caller: Caller, deadline_s: float) -> bytes:
        request = method.parse(data)
        self._picks += 1
        placed = place(request, self._table, self._picks, is_first=caller.is_first)
        if len(placed.shards) == 1 or len(request.tasks) > ITEMS_MAX:
            answer = await self._forwarder.send(method, placed.shards[0], data, deadline_s)
            return with_generations(answer, placed.generations)
        response = await self._parts.send(method, parts_of(request, "tasks", placed.shards), deadline_s)
        response.generations.update(placed.generations)
        result: bytes = response.SerializeToString()
        return result

    async def _batch(self, method: Method, data: bytes, _caller: Caller, deadline_s: float) -> bytes:
        field, task_id = BY_TASK[method.name]
        request = method.parse(data)
        items = getattr(request, field)
        shards = shards_of_tasks([task_id(item) for item in items], self._table.shard_count)
        # What no broker takes whole is not split: one of them says what is wrong with it.
        if len(set(shards)) <= 1 or len(items) > ITEMS_MAX or has_too_many_follow_ups(request):
            return await self._forwarder.send(method, shards[0] if shards else 0, data, deadline_s)
        response = await self._parts.send(method, parts_of(request, field, shards), deadline_s)
        if isinstance(response, pb.WaitTasksResponse):
            fit(response, self._message_bytes_max // 2)
        result: bytes = response.SerializeToString()
        return result

    # --- queues -------------------------------------------------------------------------------------------------

    def _places(self, queues: Sequence[str], shards_of: Callable[[QueueRoute], tuple[int, ...]] = visible) -> Places:
        """The shards of some queues, and by position which of the queues each may have tasks of."""
        return split_over(shards_of(self._table.route(queue)) for queue in queues)

    async def _reserve(self, method: Method, data: bytes, caller: Caller, deadline_s: float) -> bytes:
        request = method.parse(data)
        if len(request.queues) > QUEUES_PER_RESERVE_MAX:  # a broker says what is wrong with it
            shard = self._table.route(request.queues[0]).home
            return await self._reserving.claim(shard, data, caller, deadline_s)
        for shard in request.held_at:
            self._checked(shard)
        return await self._reserving.reserve(request, data, caller, deadline_s)

    async def _await_tasks(self, method: Method, data: bytes, caller: Caller, deadline_s: float) -> bytes:
        request = method.parse(data)
        if len(request.queues) > QUEUES_PER_RESERVE_MAX:
            shard = self._table.route(request.queues[0]).home
            return await self._forwarder.send(method, shard, data, deadline_s)
        return await self._reserving.await_tasks(request, data, caller, deadline_s)

    async def _queue_stats(self, method: Method, data: bytes, _caller: Caller, deadline_s: float) -> bytes:
        request = method.parse(data)
        places = self._places(request.queues, counted)
        if len(places) <= 1 or len(request.queues) > QUEUES_PER_STATS_MAX:
            return await self._forwarder.send(method, next(iter(places), 0), data, deadline_s)
        return (await listing.queue_stats(request, places, self._sender(deadline_s))).SerializeToString()

    async def _list_by_name(
        self, list_all: _ListAll, method: Method, data: bytes, _caller: Caller, deadline_s: float
    ) -> bytes:
        if self._table.shard_count == 1:
            return await self._forwarder.send(method, 0, data, deadline_s)
        request = method.parse(data)
        send = self._sender(listing.answers_by_s(request, deadline_s))
        page = await list_all(method, request, self._table.shard_count, send)
        return page.SerializeToString()

    async def _list_workers(self, method: Method, data: bytes, caller: Caller, deadline_s: float) -> bytes:
        """Brokers do not know who shares the waits of this router."""
        answer = await self._list_by_name(listing.list_workers, method, data, caller, deadline_s)
        try:
            page = method.response.FromString(answer)
        except DecodeError:
            return answer  # the caller will say that it cannot be read
        for worker in page.workers:
            worker.is_waiting = worker.is_waiting or self._reserving.waits.is_waiting(worker.worker)
        result: bytes = page.SerializeToString()
        return result

    async def _list_dead_letters(self, method: Method, data: bytes, _caller: Caller, deadline_s: float) -> bytes:
        request = method.parse(data)
        route = self._table.route(request.queue)
        if visible(route) == (route.home,) and "." not in request.page_token:
            return await self._forwarder.send(method, route.home, data, deadline_s)
        return await self._list_in_order(method, request, order_of(route), deadline_s)

    async def _list_of_queue_or_all(self, method: Method, data: bytes, _caller: Caller, deadline_s: float) -> bytes:
        """Also of shards that a queue has left: what is discarded, and what has finished, stays where it was."""
        request = method.parse(data)
        whole = range(self._table.shard_count)
        order = order_of(self._table.route(request.queue), with_drained=True) if request.queue else whole
        return await self._list_in_order(method, request, order, deadline_s)

    async def _list_in_order(self, method: Method, request: Any, order: Sequence[int], deadline_s: float) -> bytes:
        send = self._sender(listing.answers_by_s(request, deadline_s))
        page = await listing.list_in_order(method, request, order, send)
        result: bytes = page.SerializeToString()
        return result

    async def _purge_queue(self, method: Method, data: bytes, _caller: Caller, deadline_s: float) -> bytes:
        request = method.parse(data)
        order = order_of(self._table.route(request.queue))
        return (await listing.purge_queue(method, request, order, self._sender(deadline_s))).SerializeToString()

    # --- schedules: they live on the home of their queue -------------------------------------------------------

    async def _at_home(self, method: Method, data: bytes, _caller: Caller, deadline_s: float) -> bytes:
        home = self._table.route(method.parse(data).queue).home
        return await self._forwarder.send(method, home, data, deadline_s)

    async def _list_schedules(self, method: Method, data: bytes, caller: Caller, deadline_s: float) -> bytes:
        request = method.parse(data)
        if request.queue:
            return await self._at_home(method, data, caller, deadline_s)
        return await self._list_in_order(method, request, range(self._table.shard_count), deadline_s)

    async def _preview_schedule(self, method: Method, data: bytes, caller: Caller, deadline_s: float) -> bytes:
        request = method.parse(data)
        if request.queue and request.name:
            return await self._at_home(method, data, caller, deadline_s)
        self._picks += 1  # any shard can tell when an expression fires
        return await self._forwarder.send(method, self._picks % self._table.shard_count, data, deadline_s)

    def _sender(self, deadline_s: float) -> listing.Send:
        async def send(method: Method, shard: int, data: bytes) -> bytes:
            return await self._forwarder.send(method, shard, data, deadline_s)

        return send
