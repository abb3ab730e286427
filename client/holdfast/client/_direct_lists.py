"""What is told about queues on several shards and about all shards, by a client that asks their leaders itself.

Numbers are added up and pages follow each other as routers do it (`holdfast.routing`), so that a list that was begun
through a router can be gone on with here.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar, cast

from holdfast.client._rpc import Method, Reply, RequestT, ResponseT
from holdfast.client.errors import ClientClosed, HoldfastError, InvalidArgument, Rejected
from holdfast.proto.v1 import tasks_pb2 as pb
from holdfast.routing.pages import PAGE_DEFAULT, PageTokenError, Walk, merge_by_name, order_of, worker_token
from holdfast.routing.sets import QueueRoute, counted
from holdfast.routing.splitting import split_over
from holdfast.routing.sums import add_counts, add_worker, sum_parts

T = TypeVar("T")

_SHARDS_AT_ONCE = 16

_Ask = Callable[[Any, int], Awaitable[Reply[Any]]]

# Lists of all shards by name: the field with the items, the one with an item's name, how two of a name become one, and
# how the last name becomes a token.
_BY_NAME: dict[str, tuple[str, str, Callable[[Any, Any], None], Callable[[str], str]]] = {
    "ListQueues": ("queues", "queue", add_counts, str),
    "ListWorkers": ("workers", "worker", add_worker, worker_token),
}
# Lists of one shard after the other: the field with the items.
_IN_ORDER = {"ListDeadLetters": "tasks", "ListDiscards": "discards", "ListSchedules": "schedules", "ListTasks": "tasks"}
# Of those, the ones that tell also of shards which a queue has left.
_WITH_DRAINED = ("ListDiscards", "ListTasks")
LISTS = frozenset({*_BY_NAME, *_IN_ORDER, "PurgeQueue"})


async def list_over_shards(
    method: Method[RequestT, ResponseT], request: RequestT, route: QueueRoute | None, shards: int, send: _Ask
) -> Reply[ResponseT]:
    """One page of any of LISTS. `route`: of the queue that it is about; None if it is about all of them."""
    if method.name in _BY_NAME:
        return await _by_name(method, request, shards, send)
    order = range(shards) if route is None else order_of(route, with_drained=method.name in _WITH_DRAINED)
    asked = cast(Any, method.request())
    asked.CopyFrom(request)
    if route is not None and _is_of_the_home_alone(method.name, asked.page_token, order):
        return await send(request, route.home)
    try:
        if method.name == "PurgeQueue":
            return await _purge(method, asked, Walk(order, asked.page_token, 1, shards_max=1), send)
        walk = Walk(order, asked.page_token, asked.page_size or PAGE_DEFAULT)
    except PageTokenError:
        return await send(request, order[0])  # it refuses what no page ended with
    return await _in_order(method, asked, walk, send, may_miss=getattr(asked, "partial", False) and len(order) > 1)


def _is_of_the_home_alone(name: str, token: str, order: Sequence[int]) -> bool:
    """Then tokens are the home's own. A queue's schedules are nowhere else."""
    return name == "ListSchedules" or (name == "ListDeadLetters" and len(order) == 1 and "." not in token)


async def _in_order(
    method: Method[RequestT, ResponseT], asked: Any, walk: Walk, send: _Ask, *, may_miss: bool
) -> Reply[ResponseT]:
    """Pages of one shard after the other. A page may have fewer items than were asked for, or none. `may_miss`: a shard
    that does not answer is passed over."""
    sent_s = time.monotonic()
    response = cast(Any, method.response())
    items = getattr(response, _IN_ORDER[method.name])
    while not walk.is_done:
        asked.page_size, asked.page_token = walk.wanted, walk.token
        try:
            page = (await send(asked, walk.shard)).message
        except HoldfastError as error:
            if not may_miss or isinstance(error, InvalidArgument | ClientClosed):
                raise
            response.missing_shards.append(walk.shard)
            walk.missed()
            continue
        came = getattr(page, _IN_ORDER[method.name])
        items.extend(came)
        walk.came(len(came), page.ByteSize(), page.next_page_token)
    response.next_page_token = walk.next_token
    return Reply(response, sent_s)


async def _purge(method: Method[RequestT, ResponseT], asked: Any, walk: Walk, send: _Ask) -> Reply[ResponseT]:
    """A page of one shard: if another one failed behind it, nobody would hear how many were purged."""
    if walk.is_done:
        return Reply(method.response(), time.monotonic())
    asked.page_token = walk.token
    reply = await send(asked, walk.shard)
    walk.came(0, 0, reply.message.next_page_token)
    reply.message.next_page_token = walk.next_token
    return reply


async def _by_name(method: Method[RequestT, ResponseT], request: RequestT, shards: int, send: _Ask) -> Reply[ResponseT]:
    """Every shard's page from the same name on; a queue or a worker may be known at several."""
    if shards == 1:
        return await send(request, 0)
    sent_s = time.monotonic()
    items, name, add, token_of = _BY_NAME[method.name]
    pages: list[tuple[Sequence[Any], bool]] = []
    missing: dict[int, HoldfastError] = {}
    for shard, reply in (await all_of({shard: send(request, shard) for shard in range(shards)})).items():
        if not isinstance(reply, HoldfastError):
            pages.append((getattr(reply.message, items), bool(reply.message.next_page_token)))
        elif isinstance(reply, InvalidArgument) or not cast(Any, request).partial:
            raise reply
        else:
            missing[shard] = reply
    if missing and not pages:
        raise next(iter(missing.values()))
    limit = cast(Any, request).page_size or PAGE_DEFAULT
    told, last = merge_by_name(pages, lambda item: str(getattr(item, name)), add, limit)
    answer = {items: told, "next_page_token": token_of(last), "missing_shards": list(missing)}
    return Reply(method.response(**answer), sent_s)


async def queue_stats(
    request: pb.QueueStatsRequest,
    routes: dict[str, QueueRoute],
    send: _Ask,
    told_by: Callable[["Reply[Any] | HoldfastError", Sequence[int]], Any],
) -> Reply[pb.QueueStatsResponse]:
    """Each queue's numbers, added up over all shards that ever had it: totals never fall. If one of
    them cannot say, neither can we.

    `told_by`: a part's response, or the rejection of each of its items."""
    sent_s = time.monotonic()
    asked = split_over(counted(routes[queue]) for queue in request.queues)
    if len(asked) <= 1:
        return await send(request, next(iter(asked), 0))
    parts = {
        shard: pb.QueueStatsRequest(queues=[request.queues[at] for at in places]) for shard, places in asked.items()
    }
    replies = await all_of({shard: send(part, shard) for shard, part in parts.items()})
    errors = [reply for reply in replies.values() if isinstance(reply, HoldfastError)]
    if len(errors) == len(replies) and are_alike(errors):
        raise errors[0]
    told = ((places, told_by(replies[shard], places)) for shard, places in asked.items())
    return Reply(sum_parts(pb.QueueStatsResponse, told, len(request.queues)), sent_s)


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


def are_alike(errors: Sequence[HoldfastError]) -> bool:
    """If they are not, one of them could hide that another part may have taken effect."""
    kinds = {(type(error), error.reason if isinstance(error, Rejected) else "") for error in errors}
    return len(kinds) == 1 and all(getattr(error, "sent", True) for error in errors)
