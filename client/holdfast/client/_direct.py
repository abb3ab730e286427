"""Straight to the leaders: takes a call as a router would, splits it over the shards, and joins what they answer.

It has the methods of `Connection` and stands in its place in a client with `direct=True`. Where a call goes is a matter
of `holdfast.routing`, as in a router. What a shard's leader does not take goes to the servers that the user named, with
the shard in its metadata, so that a router, and a broker too, knows what to do with it.

A call that is split is done in parts. If some of them fail, or are not answered when the others are, their items are
refused one by one, so that the outcomes of the others are neither lost nor late; if all fail in the same way, that
error is raised.
"""

import itertools
import random
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol, TypeVar, cast

from google.protobuf.message import Message

from holdfast.client._direct_lists import LISTS, are_alike, list_over_shards, queue_stats
from holdfast.client._direct_reserve import DirectReserve
from holdfast.client._rpc import Connection, Method, Reply, RequestT, ResponseT
from holdfast.client._topology import TopologyCache
from holdfast.client.errors import (
    STALE_MAP,
    ClientClosed,
    ConnectionFailed,
    DeadlineExceeded,
    HoldfastError,
    OutcomeUnknown,
    Rejected,
    Unavailable,
    UnexpectedAnswer,
    rejected,
)
from holdfast.proto.v1 import queues_pb2, schedules_pb2
from holdfast.proto.v1 import tasks_pb2 as pb
from holdfast.routing.calls import BY_SCHEDULE, BY_TASK, BY_WORKER
from holdfast.routing.homes import home_shard
from holdfast.routing.leases import count_from
from holdfast.routing.sets import NewerGenerationError, QueueRoute, UnknownGenerationError, is_of_home, shard_for_task
from holdfast.routing.splitting import join_parts, split, split_request
from holdfast.routing.task_ids import shard_of_task
from holdfast.transport.giving_up import ENDLESS, GivingUp, Patience
from holdfast.transport.parts import Parts

_PartT = TypeVar("_PartT", bound=Message, contravariant=True)

_NO_ANSWER = (ConnectionFailed, DeadlineExceeded, OutcomeUnknown, Unavailable)
_RETRY_AFTER_MS = 200  # of a shard whose leader was out of reach


def _of_id(task_id: str) -> int:
    # What is no task id at all may go to any shard: the answer is the same everywhere.
    return shard_of_task(task_id) or 0


# Those that are about all queues, or about none, if they name none.
_OF_ALL_WITHOUT_A_QUEUE = (
    pb.ListDiscardsRequest, queues_pb2.ListTasksRequest, schedules_pb2.ListSchedulesRequest,
    schedules_pb2.PreviewScheduleRequest,
)  # fmt: skip


class Send(Protocol[_PartT, ResponseT]):
    """Sends a part to its shard."""

    async def __call__(self, part: _PartT, shard: int, patience: Patience = ...) -> Reply[ResponseT]: ...


class Direct:
    """Calls that go to the leaders of the shards that they are about."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._topology = TopologyCache(connection)
        self._reserves = DirectReserve(connection, self._topology)
        self._parts = Parts(self._topology.leader_of, _has_answered)
        self._turns = itertools.count(random.randrange(1 << 16))

    async def close(self) -> None:
        await self._reserves.close()
        await self._topology.close()

    async def learn_of(self, queues: Iterable[str], timeout_s: float) -> None:
        """Asks where these queues are, if that is not known well enough."""
        await self._topology.routes(queues, timeout_s)

    def generation_of(self, queue: str) -> int:
        """Of the queue's set of shards, as far as is known."""
        return self._topology.generation_of(queue)

    async def call(
        self,
        method: Method[RequestT, ResponseT],
        request: RequestT,
        *,
        timeout_s: float,
        repeatable: bool,
        is_first: bool = False,
    ) -> Reply[ResponseT]:
        """As `Connection.call`."""
        ends_s = time.monotonic() + timeout_s

        async def send(part: RequestT, shard: int, patience: Patience = ENDLESS) -> Reply[ResponseT]:
            left_s = ends_s - time.monotonic()
            aimed = self._topology.aim(shard)
            return await self._connection.call(
                method, part, timeout_s=left_s, repeatable=repeatable, shard=aimed, patience=patience
            )

        routes = await self._topology.routes(_queues(request), timeout_s)
        if routes is None:
            left_s = ends_s - time.monotonic()
            return await self._connection.call(
                method, request, timeout_s=left_s, repeatable=repeatable, is_first=is_first
            )
        try:
            return await self._dispatch(method, request, routes, send)
        except HoldfastError as error:
            self._topology.doubt_after(error)
            raise

    async def _dispatch(
        self,
        method: Method[RequestT, ResponseT],
        request: RequestT,
        routes: dict[str, QueueRoute],
        send: Send[RequestT, ResponseT],
    ) -> Reply[ResponseT]:
        anything = cast(Any, request)
        if method.name in BY_TASK:
            return await self._in_parts(method, request, BY_TASK[method.name].field, _task_keys(method, request), send)
        if isinstance(request, pb.EnqueueRequest):
            keys = _enqueue_keys(request, routes, next(self._turns))
            reply = await self._in_parts(method, request, "tasks", keys, send)
            for queue, generation in cast(pb.EnqueueResponse, reply.message).generations.items():
                self._topology.heard_of(queue, generation)
            return reply
        if isinstance(request, pb.GetTaskRequest | pb.GetDeadLetterRequest):
            return await send(request, _of_id(request.task_id))
        if isinstance(request, pb.QueueStatsRequest):
            return cast(Reply[ResponseT], await queue_stats(request, routes, cast(Any, send), _told))
        if method.name in BY_WORKER:
            return await send(request, home_shard(anything.worker, self._topology.shards))
        if method.name in BY_SCHEDULE:
            return await send(request, routes[anything.queue].home)
        if isinstance(request, schedules_pb2.PreviewScheduleRequest):
            own = routes.get(request.queue) if request.name else None
            return await send(request, own.home if own else next(self._turns) % self._topology.shards)
        if method.name in LISTS:
            route = routes.get(anything.queue) if hasattr(request, "queue") else None
            return await list_over_shards(method, request, route, self._topology.shards, send)
        raise AssertionError(f"{method.name} has no way to the leaders")

    async def wait(
        self,
        method: Method[RequestT, ResponseT],
        make: Callable[[int], RequestT],
        *,
        wait_ms: int,
        timeout_s: float,
        repeatable: bool,
        attempt: int = 0,
    ) -> Reply[ResponseT]:
        """As `Connection.wait`, for a reserve."""
        request = make(wait_ms)
        assert isinstance(request, pb.ReserveRequest), f"{method.name} has no way to the leaders"
        routes = await self._topology.routes(request.queues, timeout_s)
        if routes is None:
            return await self._connection.wait(
                method, make, wait_ms=wait_ms, timeout_s=timeout_s, repeatable=repeatable, attempt=attempt
            )
        try:
            return cast(Reply[ResponseT], await self._reserves.reserve(request, timeout_s, attempt))
        except HoldfastError as error:
            self._topology.doubt_after(error)
            raise

    async def poll(
        self,
        method: Method[RequestT, ResponseT],
        make: Callable[[int], RequestT],
        *,
        ends_s: float,
        answer_s: float,
    ) -> Reply[ResponseT]:
        """As `Connection.poll`, for a wait for tasks."""
        request = cast(Any, make(0))
        if await self._topology.routes((), answer_s) is None:
            return await self._connection.poll(method, make, ends_s=ends_s, answer_s=answer_s)

        async def send(part: RequestT, shard: int, patience: Patience = ENDLESS) -> Reply[ResponseT]:
            def make_part(wait_ms: int) -> RequestT:
                cast(Any, part).wait_ms = wait_ms
                return part

            aimed = self._topology.aim(shard)
            return await self._connection.poll(method, make_part, ends_s=ends_s, answer_s=answer_s, shard=aimed)

        try:
            return await self._in_parts(method, request, BY_TASK[method.name].field, _task_keys(method, request), send)
        except HoldfastError as error:
            self._topology.doubt_after(error)
            raise

    async def _in_parts(
        self,
        method: Method[RequestT, ResponseT],
        request: RequestT,
        field: str,
        keys: Sequence[int],
        send: Send[RequestT, ResponseT],
    ) -> Reply[ResponseT]:
        """`keys`: the shard of each item of the repeated field."""
        parts = split(keys)
        if len(parts) <= 1:
            return await send(request, keys[0] if keys else 0)
        whole = method.request()
        whole.CopyFrom(request)  # it is taken apart, and the caller may need it again
        requests = split_request(whole, field, parts)

        async def one(shard: int, giving_up: GivingUp) -> Reply[ResponseT] | HoldfastError:
            try:
                return await send(requests[shard], shard, giving_up)
            except ClientClosed:
                raise
            except HoldfastError as error:
                return error

        replies = await self._parts.send(requests, one, is_impatient=method.name != "WaitTasks")
        errors = [reply for reply in replies.values() if isinstance(reply, HoldfastError)]
        if len(errors) == len(parts) and are_alike(errors):
            raise errors[0]
        for error in errors:
            self._topology.doubt_after(error)
        good = [reply for reply in replies.values() if isinstance(reply, Reply)]
        sent_s = min((reply.sent_s for reply in good), default=time.monotonic())
        for reply in good:
            if isinstance(reply.message, pb.ExtendResponse):
                count_from(reply.message, int((reply.sent_s - sent_s) * 1000))
        told = [(positions, _told(replies[shard], positions)) for shard, positions in parts.items()]
        return Reply(join_parts(method.response, told), sent_s)


def _queues(request: Any) -> Iterable[str]:
    """The queues that a request is about, by name; none if it is about tasks by their ids, or about all shards."""
    if isinstance(request, pb.EnqueueRequest):
        return [task.queue for task in request.tasks]
    if isinstance(request, pb.QueueStatsRequest):
        return request.queues
    if isinstance(request, _OF_ALL_WITHOUT_A_QUEUE) and not request.queue:
        return ()
    return [request.queue] if hasattr(request, "queue") else ()


def _task_keys(method: Method[Any, Any], request: Any) -> list[int]:
    field, task_id = BY_TASK[method.name]
    return [_of_id(task_id(item)) for item in getattr(request, field)]


def _enqueue_keys(request: pb.EnqueueRequest, routes: dict[str, QueueRoute], turn: int) -> list[int]:
    keys = []
    for task in request.tasks:
        route = routes[task.queue]
        if not route.sets and is_of_home(task.request_id):  # nearly all queues were never anywhere but at home
            keys.append(route.home)
            continue
        try:
            keys.append(shard_for_task(route, task.request_id, task.unique_key, task.limit_key, turn))
        except UnknownGenerationError as unknown:
            raise _stale_map(unknown) from None
    return keys


def _stale_map(unknown: UnknownGenerationError) -> Rejected:
    """As a router says it, before anything is sent."""
    return rejected(
        STALE_MAP,
        f"Expected a request_id of a set of shards of queue {unknown.queue} that the map knows, but it has none of "
        f"generation {unknown.generation}; try again.",
        retry_after_ms=100,
        metadata={
            "queue": unknown.queue,
            "generation": str(unknown.newest),
            "why": "newer" if isinstance(unknown, NewerGenerationError) else "forgotten",
        },
    )


# ------------------------------------------------------------------------------------------------ outcomes


def _told(reply: "Reply[Any] | HoldfastError", positions: Sequence[int]) -> Any:
    """Of one part: its response, or the rejection of each of its items."""
    if isinstance(reply, HoldfastError):
        return _rejection(reply)
    if len(reply.message.outcomes) != len(positions):
        raise UnexpectedAnswer(f"{len(reply.message.outcomes)} outcomes for {len(positions)} items")
    return reply.message


def _has_answered(reply: Reply[Any] | HoldfastError) -> bool | None:
    if isinstance(reply, HoldfastError):
        return False if isinstance(reply, _NO_ANSWER) else None
    return True


def _rejection(error: HoldfastError) -> pb.Rejection:
    if isinstance(error, Rejected):
        return pb.Rejection(
            reason=error.reason, message=error.message, field=error.field, retry_after_ms=error.retry_after_ms
        )
    if isinstance(error, ConnectionFailed) and not error.sent:
        return pb.Rejection(reason="NOT_LEADER", message=str(error), retry_after_ms=_RETRY_AFTER_MS)
    # A lost connection, or silence: the call may have taken effect.
    return pb.Rejection(reason="OUTCOME_UNKNOWN", message=str(error), retry_after_ms=1)
