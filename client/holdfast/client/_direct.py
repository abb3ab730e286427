"""Straight to the leaders: takes a call as a router would, splits it over the shards, and joins what they answer.

It has the methods of `Connection` and stands in its place in a client with `direct=True`. Where a call goes is a matter
of `holdfast.routing`, as in a router. What a shard's leader does not take goes to the servers that the user named, with
the shard in its metadata, so that a router, and a broker too, knows what to do with it.
"""

import itertools
import random
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, cast

from holdfast.client._direct_reserve import DirectReserve
from holdfast.client._rpc import Connection, Method, Reply, RequestT, ResponseT
from holdfast.client._topology import TopologyCache
from holdfast.client.errors import (
    STALE_MAP,
    ClientClosed,
    ConnectionFailed,
    DeadlineExceeded,
    HoldfastError,
    InvalidArgument,
    OutcomeUnknown,
    Rejected,
    Unavailable,
    UnexpectedAnswer,
    as_rejected,
    rejected,
)
from holdfast.proto.v1 import queues_pb2, schedules_pb2
from holdfast.proto.v1 import tasks_pb2 as pb
from holdfast.routing.calls import ENQUEUED
from holdfast.routing.placing import place, specs_of
from holdfast.routing.sets import QueueRoute, UnknownGenerationError
from holdfast.transport.giving_up import ENDLESS, Patience
from holdfast.transport.over_shards import SplitCall, send_over_shards, send_parts
from holdfast.transport.parts import Parts

_NO_ANSWER = (ConnectionFailed, DeadlineExceeded, OutcomeUnknown, Unavailable)

# Those that are about all queues, or about none, if they name none.
_OF_ALL_WITHOUT_A_QUEUE = (
    pb.ListDiscardsRequest, queues_pb2.ListTasksRequest, schedules_pb2.ListSchedulesRequest,
    schedules_pb2.PreviewScheduleRequest,
)  # fmt: skip


class DirectSplitCall(SplitCall[Reply[ResponseT]]):
    """Of a client. `send`: one request to the leader of a shard."""

    def __init__(
        self, method: Method[RequestT, ResponseT], request: RequestT,
        send: Callable[[RequestT, int, Patience], Awaitable[Reply[ResponseT]]], topology: TopologyCache,
    ) -> None:  # fmt: skip
        super().__init__(method.name, request, method.response, (HoldfastError,))
        self._send: Callable[[Any, int, Patience], Awaitable[Reply[ResponseT]]] = send
        self._topology = topology
        self._began_s = time.monotonic()

    async def send_whole(self, shard: int) -> Reply[ResponseT]:
        return await self._send(self.request, shard, ENDLESS)

    async def send(self, shard: int, request: Any, patience: Patience = ENDLESS) -> ResponseT:
        reply = await self._send(request, shard, patience)
        self.sent_s[shard] = reply.sent_s
        return reply.message

    def reply(self, response: Any) -> Reply[ResponseT]:
        return Reply(response, min(self.sent_s.values(), default=self._began_s))

    def rejection(self, failure: Any) -> pb.Rejection:
        if isinstance(failure, ClientClosed):
            raise failure
        self._topology.request_refresh_after(failure)
        return _rejection(failure)

    def are_alike(self, failures: Sequence[HoldfastError]) -> bool:
        kinds = {(type(error), error.reason if isinstance(error, Rejected) else "") for error in failures}
        return len(kinds) == 1 and all(getattr(error, "sent", True) for error in failures)

    def malformed(self, outcomes: int, items: int) -> Exception:
        return UnexpectedAnswer(f"{outcomes} outcomes for {items} items")

    def may_miss(self, failure: Exception) -> bool:
        return not isinstance(failure, InvalidArgument | ClientClosed)

    async def bad_token(self, shard: int) -> Reply[ResponseT]:
        return await self.send_whole(shard)  # it refuses what no page ended with


class Direct:
    """Calls that go to the leaders of the shards that they are about."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._topology = TopologyCache(connection)
        self._reserves = DirectReserve(connection, self._topology)
        self._parts: Parts[Any] = Parts(self._topology.leader_of, _has_answered)
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
        wait_ms: int = 0,
        attempt: int = 0,
        is_first: bool = False,
    ) -> Reply[ResponseT]:
        """As `Connection.call`."""
        ends_s = time.monotonic() + timeout_s

        async def send(part: RequestT, shard: int, patience: Patience) -> Reply[ResponseT]:
            left_s = ends_s - time.monotonic()
            aimed = self._topology.aim(shard)
            return await self._connection.call(
                method, part, timeout_s=left_s, repeatable=repeatable, shard=aimed, patience=patience
            )

        routes = await self._topology.routes(_queues(request), timeout_s)
        if routes is None:
            return await self._connection.call(
                method, request, timeout_s=ends_s - time.monotonic(), repeatable=repeatable, wait_ms=wait_ms,
                attempt=attempt, is_first=is_first,
            )  # fmt: skip
        call = DirectSplitCall(method, request, send, self._topology)
        with self._topology.refreshing_after_errors():
            if isinstance(request, pb.ReserveRequest):
                return cast(Reply[ResponseT], await self._reserves.reserve(request, timeout_s, attempt))
            if isinstance(request, pb.EnqueueRequest):
                keys = _enqueue_keys(request, routes, next(self._turns))
                reply = await send_parts(call, self._parts, ENQUEUED, keys)
                for queue, generation in cast(pb.EnqueueResponse, reply.message).generations.items():
                    self._topology.heard_of(queue, generation)
                return reply
            return await send_over_shards(
                call, self._parts, routes.__getitem__, self._topology.shards, next(self._turns)
            )

    async def poll(
        self,
        method: Method[RequestT, ResponseT],
        request: RequestT,
        *,
        ends_s: float,
        answer_s: float,
    ) -> Reply[ResponseT]:
        """As `Connection.poll`, for a wait for tasks."""
        routes = await self._topology.routes((), answer_s)
        if routes is None:
            return await self._connection.poll(method, request, ends_s=ends_s, answer_s=answer_s)

        async def send(part: RequestT, shard: int, _patience: Patience) -> Reply[ResponseT]:
            aimed = self._topology.aim(shard)
            return await self._connection.poll(method, part, ends_s=ends_s, answer_s=answer_s, shard=aimed)

        call = DirectSplitCall(method, request, send, self._topology)
        with self._topology.refreshing_after_errors():
            return await send_over_shards(call, self._parts, routes.__getitem__, self._topology.shards, 0)


def _queues(request: Any) -> Iterable[str]:
    """The queues that a request is about, by name; none if it is about tasks by their ids, or about all shards."""
    if isinstance(request, pb.EnqueueRequest):
        return [spec.queue for spec in specs_of(request)]
    if isinstance(request, pb.QueueStatsRequest | pb.ReserveRequest):
        return request.queues
    if isinstance(request, _OF_ALL_WITHOUT_A_QUEUE) and not request.queue:
        return ()
    return [request.queue] if hasattr(request, "queue") else ()


def _enqueue_keys(request: pb.EnqueueRequest, routes: dict[str, QueueRoute], turn: int) -> list[int]:
    try:
        return place(specs_of(request), routes.__getitem__, turn).shards
    except UnknownGenerationError as unknown:  # as a router says it, before anything is sent
        raise rejected(STALE_MAP, str(unknown), retry_after_ms=100, metadata=unknown.metadata) from None


# ------------------------------------------------------------------------------------------------ outcomes


def _has_answered(answer: Any) -> bool | None:
    if isinstance(answer, HoldfastError):
        return False if isinstance(answer, _NO_ANSWER) else None
    return True


def _rejection(error: HoldfastError) -> pb.Rejection:
    refusal = as_rejected(error)
    return pb.Rejection(
        reason=refusal.reason, message=refusal.message, field=refusal.field, retry_after_ms=refusal.retry_after_ms
    )
