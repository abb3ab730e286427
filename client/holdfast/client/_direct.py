"""Straight to the leaders: takes a call as a router would, splits it over the shards, and joins what they answer.

It has the methods of `Connection` and stands in its place in a client with `direct=True`. Where a call goes is a matter
of `holdfast.routing`, as in a router. What a shard's leader does not take goes to the servers that the user named, with
the shard in its metadata, so that a router, and a broker too, knows what to do with it.

A call that is split is done in parts. If some of them fail, their items are refused one by one, so that the outcomes of
the others are not lost; if all fail in the same way, that error is raised.
"""

import asyncio
import itertools
import random
import re
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar, cast

from holdfast.client._direct_reserve import ReserveOverShards
from holdfast.client._rpc import Connection, Method, Reply, RequestT, ResponseT
from holdfast.client._topology import TopologyCache
from holdfast.client.errors import STALE_MAP, ClientClosed, HoldfastError, Rejected, UnexpectedAnswer, rejected
from holdfast.proto.v1 import tasks_pb2 as pb
from holdfast.routing.sets import (
    NewerGenerationError,
    QueueRoute,
    UnknownGenerationError,
    is_of_home,
    shard_for_request,
    visible,
)
from holdfast.routing.splitting import join, split
from holdfast.routing.task_ids import shard_of_task

T = TypeVar("T")

_PAGE_SIZE = 100  # of a list, if the caller leaves it to the server
_PAGE_BYTES_MAX = 2 * 1024 * 1024
_SHARDS_AT_ONCE = 16
_PLACE = re.compile(r"(tasks|items|claims|task_ids|queues)\[(\d+)\]")


def _of_id(task_id: str) -> int:
    # What is no task id at all may go to any shard: the answer is the same everywhere.
    return shard_of_task(task_id) or 0


def _of_claim(item: Any) -> int:
    return _of_id(item.claim.task_id)


# The calls on tasks by their ids: the field that has the items, and the shard of an item.
_BY_ID: dict[str, tuple[str, Callable[[Any], int]]] = {
    "Ack": ("items", _of_claim),
    "Fail": ("items", _of_claim),
    "Extend": ("items", _of_claim),
    "Release": ("claims", lambda claim: _of_id(claim.task_id)),
    "Cancel": ("task_ids", _of_id),
    "WaitTasks": ("task_ids", _of_id),
    "RetryDeadLetters": ("task_ids", _of_id),
    "DiscardDeadLetters": ("task_ids", _of_id),
}


class Direct:
    """Calls that go to the leaders of the shards that they are about."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._topology = TopologyCache(connection)
        self._reserves = ReserveOverShards(connection, self._topology)
        self._turns = itertools.count(random.randrange(1 << 16))

    async def close(self) -> None:
        await self._topology.close()

    def generation_of(self, queue: str) -> int:
        """Of the queue's set of shards, as far as is known."""
        return self._topology.generation_of(queue)

    async def call(
        self, method: Method[RequestT, ResponseT], request: RequestT, *, timeout_s: float, repeatable: bool
    ) -> Reply[ResponseT]:
        """As `Connection.call`."""
        ends_s = time.monotonic() + timeout_s

        async def send(part: RequestT, shard: int) -> Reply[ResponseT]:
            left_s = ends_s - time.monotonic()
            aimed = self._topology.aim(shard)
            return await self._connection.call(method, part, timeout_s=left_s, repeatable=repeatable, shard=aimed)

        routes = await self._topology.routes(_queues(request), timeout_s)
        if routes is None:
            left_s = ends_s - time.monotonic()
            return await self._connection.call(method, request, timeout_s=left_s, repeatable=repeatable)
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
        send: Callable[[RequestT, int], Awaitable[Reply[ResponseT]]],
    ) -> Reply[ResponseT]:
        anything = cast(Any, request)
        if method.name in _BY_ID:
            field, shard_of = _BY_ID[method.name]
            keys = [shard_of(item) for item in getattr(anything, field)]
            return await self._in_parts(method, request, field, keys, send)
        if isinstance(request, pb.EnqueueRequest):
            keys = _enqueue_keys(request, routes, next(self._turns))
            reply = await self._in_parts(method, request, "tasks", keys, send)
            for queue, generation in cast(pb.EnqueueResponse, reply.message).generations.items():
                self._topology.heard_of(queue, generation)
            return reply
        if isinstance(request, pb.GetTaskRequest | pb.GetDeadLetterRequest):
            return await send(request, _of_id(request.task_id))
        if isinstance(request, pb.QueueStatsRequest):
            return cast(Reply[ResponseT], await _queue_stats(request, routes, cast(Any, send)))
        if isinstance(request, pb.ListDeadLettersRequest):
            route = routes[request.queue]
            return cast(Reply[ResponseT], await _dead_letters(request, route, cast(Any, send)))
        if isinstance(request, pb.ListQueuesRequest):
            return cast(Reply[ResponseT], await _all_queues(request, range(self._topology.shards), cast(Any, send)))
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
        field, shard_of = _BY_ID[method.name]

        async def send(part: RequestT, shard: int) -> Reply[ResponseT]:
            def make_part(wait_ms: int) -> RequestT:
                cast(Any, part).wait_ms = wait_ms
                return part

            aimed = self._topology.aim(shard)
            return await self._connection.poll(method, make_part, ends_s=ends_s, answer_s=answer_s, shard=aimed)

        keys = [shard_of(item) for item in getattr(request, field)]
        try:
            return await self._in_parts(method, request, field, keys, send)
        except HoldfastError as error:
            self._topology.doubt_after(error)
            raise

    async def _in_parts(
        self,
        method: Method[RequestT, ResponseT],
        request: RequestT,
        field: str,
        keys: Sequence[int],
        send: Callable[[RequestT, int], Awaitable[Reply[ResponseT]]],
    ) -> Reply[ResponseT]:
        """`keys`: the shard of each item of the repeated field."""
        parts = split(keys)
        if len(parts) <= 1:
            return await send(request, keys[0] if keys else 0)
        items = getattr(request, field)
        requests = {shard: method.request() for shard in parts}
        for shard, positions in parts.items():
            getattr(requests[shard], field).extend(items[at] for at in positions)
        replies = await all_of({shard: send(part, shard) for shard, part in requests.items()})
        errors = [reply for reply in replies.values() if isinstance(reply, HoldfastError)]
        if len(errors) == len(parts) and _are_alike(errors):
            raise errors[0]
        for error in errors:
            self._topology.doubt_after(error)
        response = method.response()
        joined = [
            (positions, _outcomes(method.response, replies[shard], positions)) for shard, positions in parts.items()
        ]
        cast(Any, response).outcomes.extend(join(joined, len(keys)))
        good = [reply for reply in replies.values() if isinstance(reply, Reply)]
        if isinstance(response, pb.EnqueueResponse):
            for reply in good:
                response.generations.update(cast(Any, reply.message).generations)
        # Leases count from when the first part was sent: rather too short than too long.
        return Reply(response, min((reply.sent_s for reply in good), default=time.monotonic()))


def _queues(request: Any) -> Sequence[str]:
    """The queues that a request is about, by name; none if it is about tasks by their ids."""
    if isinstance(request, pb.EnqueueRequest):
        return [task.queue for task in request.tasks]
    if isinstance(request, pb.QueueStatsRequest):
        return request.queues
    return [request.queue] if isinstance(request, pb.ListDeadLettersRequest) else ()


def _enqueue_keys(request: pb.EnqueueRequest, routes: dict[str, QueueRoute], turn: int) -> list[int]:
    keys = []
    for task in request.tasks:
        route = routes[task.queue]
        if not route.sets and is_of_home(task.request_id):  # nearly all queues were never anywhere but at home
            keys.append(route.home)
            continue
        try:
            keys.append(shard_for_request(route, task.request_id, turn))
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


async def all_of(calls: dict[int, Awaitable[T]]) -> dict[int, T | HoldfastError]:
    """What came of each, in the same order; an error of this library in the place of an answer. Not all of many at the
    same time."""
    room = asyncio.Semaphore(_SHARDS_AT_ONCE)

    async def one(call: Awaitable[T]) -> T | HoldfastError:
        async with room:
            try:
                return await call
            except ClientClosed:
                raise
            except HoldfastError as error:
                return error

    answers = await asyncio.gather(*map(one, calls.values()))
    return dict(zip(calls, answers, strict=True))


def _are_alike(errors: Sequence[HoldfastError]) -> bool:
    """If they are not, one of them could hide that another part may have taken effect."""
    kinds = {(type(error), error.reason if isinstance(error, Rejected) else "") for error in errors}
    return len(kinds) == 1 and all(getattr(error, "sent", True) for error in errors)


# ------------------------------------------------------------------------------------------------ outcomes


def _outcomes(kind: Any, reply: "Reply[Any] | HoldfastError", positions: Sequence[int]) -> list[Any]:
    """Of one part, with its places as they are in the whole; `kind` is that of the response."""
    if isinstance(reply, HoldfastError):
        response = kind()
        for _ in positions:
            response.outcomes.add(rejection=_rejection(reply))
    else:
        response = reply.message
        if len(response.outcomes) != len(positions):
            raise UnexpectedAnswer(f"{len(response.outcomes)} outcomes for {len(positions)} items")
    for outcome in response.outcomes:
        rejection = outcome.rejection
        if rejection.field:
            rejection.message = _renumbered(rejection.message, positions)
            rejection.field = _renumbered(rejection.field, positions)
    return list(response.outcomes)


def _renumbered(text: str, positions: Sequence[int]) -> str:
    def place(found: re.Match[str]) -> str:
        at = int(found[2])
        return f"{found[1]}[{positions[at]}]" if at < len(positions) else found[0]

    return _PLACE.sub(place, text, count=1)


def _rejection(error: HoldfastError) -> pb.Rejection:
    if isinstance(error, Rejected):
        return pb.Rejection(
            reason=error.reason, message=error.message, field=error.field, retry_after_ms=error.retry_after_ms
        )
    # A lost connection, or silence: the call may have taken effect.
    return pb.Rejection(reason="OUTCOME_UNKNOWN", message=str(error), retry_after_ms=1)


# --------------------------------------------------------------------------------------------- over all shards

_Ask = Callable[[Any, int], Awaitable[Reply[Any]]]


async def _queue_stats(
    request: pb.QueueStatsRequest, routes: dict[str, QueueRoute], send: _Ask
) -> Reply[pb.QueueStatsResponse]:
    """Each queue's numbers, added up over its shards. If one of them cannot say, neither can we."""
    sent_s = time.monotonic()
    asked: dict[int, list[int]] = {}  # by shard: the places of the queues
    for at, queue in enumerate(request.queues):
        for shard in visible(routes[queue]):
            asked.setdefault(shard, []).append(at)
    if len(asked) <= 1:
        return await send(request, next(iter(asked), 0))
    parts = {
        shard: pb.QueueStatsRequest(queues=[request.queues[at] for at in places]) for shard, places in asked.items()
    }
    replies = await all_of({shard: send(part, shard) for shard, part in parts.items()})
    errors = [reply for reply in replies.values() if isinstance(reply, HoldfastError)]
    if len(errors) == len(replies) and _are_alike(errors):
        raise errors[0]
    told: list[list[pb.QueueStatsOutcome]] = [[] for _ in request.queues]
    for shard, places in asked.items():
        for at, outcome in zip(places, _outcomes(pb.QueueStatsResponse, replies[shard], places), strict=True):
            told[at].append(outcome)
    return Reply(pb.QueueStatsResponse(outcomes=[_sum_outcomes(each) for each in told]), sent_s)


def _sum_outcomes(outcomes: Sequence[pb.QueueStatsOutcome]) -> pb.QueueStatsOutcome:
    """A queue need not have been used on each of its shards: one that knows it is enough."""
    counts = [outcome.counts for outcome in outcomes if outcome.HasField("counts")]
    refused = next((each for each in outcomes if each.rejection.reason not in ("", "QUEUE_NOT_FOUND")), None)
    if refused is not None or not counts:
        return refused or outcomes[0]
    return pb.QueueStatsOutcome(counts=_sum(counts))


def _sum(counts: Sequence[pb.QueueCounts]) -> pb.QueueCounts:
    total = pb.QueueCounts(queue=counts[0].queue)
    for field in pb.QueueCounts.DESCRIPTOR.fields:
        if field.name != "queue":
            together = max if field.name == "oldest_ready_age_ms" else sum
            setattr(total, field.name, together(getattr(each, field.name) for each in counts))
    return total


async def _dead_letters(
    request: pb.ListDeadLettersRequest, route: QueueRoute, send: _Ask
) -> Reply[pb.ListDeadLettersResponse]:
    """Pages of one shard after another: the home, then by number. Tokens are as routers write them: the shard, a dot
    and that shard's own token; without a shard it is the home's."""
    if visible(route) == (route.home,) and "." not in request.page_token:
        return await send(request, route.home)
    sent_s = time.monotonic()
    line = [route.home, *sorted(shard for shard in visible(route) if shard != route.home)]
    at, token = _page_place(request.page_token, line)
    limit = request.page_size or _PAGE_SIZE
    response = pb.ListDeadLettersResponse()
    bytes_left = _PAGE_BYTES_MAX
    while at < len(line):
        part = pb.ListDeadLettersRequest(queue=request.queue, page_size=limit - len(response.tasks), page_token=token)
        page = (await send(part, line[at])).message
        response.tasks.extend(page.tasks)
        bytes_left -= page.ByteSize()
        at, token = (at, page.next_page_token) if page.next_page_token else (at + 1, "")
        if at < len(line) and (len(response.tasks) >= limit or bytes_left <= 0):
            response.next_page_token = f"{line[at]}.{token}"
            break
    return Reply(response, sent_s)


def _page_place(token: str, line: Sequence[int]) -> tuple[int, str]:
    """Where in the line of shards a page begins. A shard that has drained meanwhile is passed over."""
    number, dot, rest = token.partition(".")
    if not dot or not (number.isascii() and number.isdigit()):
        return 0, token  # the home's own, or one that it refuses
    shard = int(number)
    if shard in line:
        return line.index(shard), rest
    return next((at for at, each in enumerate(line) if at and each > shard), len(line)), ""


async def _all_queues(request: pb.ListQueuesRequest, shards: Sequence[int], send: _Ask) -> Reply[pb.ListQueuesResponse]:
    """Every shard's page from the same name on; a queue may be on several."""
    if len(shards) == 1:
        return await send(request, shards[0])
    sent_s = time.monotonic()
    pages: list[pb.ListQueuesResponse] = []
    for reply in (await all_of({shard: send(request, shard) for shard in shards})).values():
        if isinstance(reply, HoldfastError):
            raise reply
        pages.append(reply.message)
    by_name: dict[str, list[pb.QueueCounts]] = {}
    # Beyond the end of a page that is not the last of its shard, that shard may have more.
    complete_to = min((page.queues[-1].queue for page in pages if page.next_page_token and page.queues), default="")
    for counts in (counts for page in pages for counts in page.queues):
        if not complete_to or counts.queue <= complete_to:
            by_name.setdefault(counts.queue, []).append(counts)
    size = request.page_size or _PAGE_SIZE
    names = sorted(by_name)
    response = pb.ListQueuesResponse(queues=[_sum(by_name[name]) for name in names[:size]])
    if complete_to or len(names) > size:
        response.next_page_token = names[:size][-1]
    return Reply(response, sent_s)
