"""What is told about queues whose tasks are on several shards, and about all shards: numbers added up, pages over all
of them."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from holdfast.proto.v1 import queues_pb2, schedules_pb2
from holdfast.proto.v1 import tasks_pb2 as pb
from holdfast.router.failures import FAILURES, Failure, is_passing, may_pass_if_read, rejection_of, same_status
from holdfast.router.methods import TASKS, Method
from holdfast.routing.pages import PAGE_DEFAULT, PAGE_MAX, PageTokenError, Walk, merge_by_name, worker_token
from holdfast.routing.reserve_calls import Places
from holdfast.routing.sums import add_counts, add_worker, sum_parts
from holdfast.serving.refusals import INVALID_FIELD, OUT_OF_RANGE, RefusedError

SHARDS_AT_ONCE = 16
_PARTIAL_S_MAX = 4.0
_PARTIAL_SHARE = 0.8  # of the time that the caller has

_STATS = TASKS["QueueStats"]

# Sends a request to a shard; raises CallFailedError or RefusedError.
Send = Callable[[Method, int, bytes], Awaitable[bytes]]


async def queue_stats(request: pb.QueueStatsRequest, places: Places, send: Send) -> pb.QueueStatsResponse:
    """Each queue's numbers, added up over all shards that ever had it: totals never fall. If one of
    them cannot say, neither can we."""
    shards = list(places)
    parts = [
        pb.QueueStatsRequest(queues=[request.queues[at] for at in places[shard]]).SerializeToString()
        for shard in shards
    ]
    answers = await _at_all(_STATS, list(zip(shards, parts, strict=True)), send)
    failures = [answer for answer in answers if isinstance(answer, FAILURES)]
    if failures and len(failures) == len(answers) and same_status(failures):
        raise failures[0]
    told = (
        rejection_of(answer) if isinstance(answer, FAILURES) else pb.QueueStatsResponse.FromString(answer)
        for answer in answers
    )
    response: pb.QueueStatsResponse = sum_parts(
        pb.QueueStatsResponse, zip(places.values(), told, strict=True), len(request.queues)
    )
    return response


async def list_queues(
    method: Method, request: pb.ListQueuesRequest, shard_count: int, send: Send
) -> pb.ListQueuesResponse:
    """One page in the order of names. The token is the last name: every shard goes on after it."""
    limit, pages, missing = await _same_page_of_all(method, request, shard_count, send)
    told = [(page.queues, bool(page.next_page_token)) for page in pages]
    queues, last = merge_by_name(told, lambda counts: counts.queue, add_counts, limit)
    return pb.ListQueuesResponse(queues=queues, next_page_token=last, missing_shards=missing)


async def list_workers(
    method: Method, request: queues_pb2.ListWorkersRequest, shard_count: int, send: Send
) -> queues_pb2.ListWorkersResponse:
    """The same. A worker may have claims at several shards."""
    limit, pages, missing = await _same_page_of_all(method, request, shard_count, send)
    told = [(page.workers, bool(page.next_page_token)) for page in pages]
    workers, last = merge_by_name(told, lambda worker: worker.worker, add_worker, limit)
    return queues_pb2.ListWorkersResponse(
        workers=workers, next_page_token=worker_token(last), missing_shards=missing
    )  # fmt: skip


async def _same_page_of_all(
    method: Method, request: Any, shard_count: int, send: Send
) -> tuple[int, list[Any], list[int]]:
    """How many items a page has, the pages of all shards, and which of these did not answer. That is a failure unless
    the caller wants to know what the others know; if nobody answers, it is one all the same."""
    request.page_size = limit = _page_size(request.page_size)
    asked = request.SerializeToString()
    pages, missing = [], []
    failure: Failure | None = None
    for shard, answer in enumerate(await _at_all(method, [(shard, asked) for shard in range(shard_count)], send)):
        if not isinstance(answer, FAILURES):
            pages.append(method.response.FromString(answer))
        elif _may_be_missing(request, answer):
            missing.append(shard)
            failure = failure or answer
        else:
            raise answer
    if failure is not None and not pages:
        raise failure
    return limit, pages, missing


def _may_be_missing(request: Any, failure: Failure) -> bool:
    return _is_partial(request) and (is_passing(failure) or may_pass_if_read(failure))


def _is_partial(request: Any) -> bool:
    """Not every list can be."""
    return getattr(request, "partial", False)


def answers_by_s(request: Any, deadline_s: float) -> float:
    """Until when a shard must have answered. Where some may be missing, those without a leader do not use up the time
    of the caller, who has to hear of the others."""
    if not _is_partial(request):
        return deadline_s
    now_s = time.monotonic()
    return now_s + min(_PARTIAL_S_MAX, max(0.0, deadline_s - now_s) * _PARTIAL_SHARE)


# By method: the field of its response that has the items.
_ITEMS = {"ListDeadLetters": "tasks", "ListDiscards": "discards", "ListSchedules": "schedules", "ListTasks": "tasks"}

ListRequest = (
    pb.ListDeadLettersRequest
    | pb.ListDiscardsRequest
    | schedules_pb2.ListSchedulesRequest
    | queues_pb2.ListTasksRequest
)


async def list_in_order(method: Method, request: ListRequest, order: Sequence[int], send: Send) -> Any:
    """Pages of one shard after another. A page may have fewer items than were asked for, or none: neither this nor a
    shard looks at more than so much in one call.

    A shard that does not answer is passed over if the caller wants that and there are others."""
    walk = _walk(order, request.page_token, _page_size(request.page_size))
    response = method.response()
    items = getattr(response, _ITEMS[method.name])
    while not walk.is_done:
        request.page_size, request.page_token = walk.wanted, walk.token
        try:
            page = method.response.FromString(await send(method, walk.shard, request.SerializeToString()))
        except FAILURES as failure:
            if len(order) == 1 or not _may_be_missing(request, failure):
                raise
            response.missing_shards.append(walk.shard)
            walk.missed()
            continue
        came = getattr(page, _ITEMS[method.name])
        items.extend(came)
        walk.came(len(came), page.ByteSize(), page.next_page_token)
    response.next_page_token = walk.next_token
    return response


async def purge_queue(
    method: Method, request: queues_pb2.PurgeQueueRequest, order: Sequence[int], send: Send
) -> queues_pb2.PurgeQueueResponse:
    """A page of one shard: if another one failed behind it, nobody would hear how many were purged."""
    walk = _walk(order, request.page_token, 1, shards_max=1)
    if walk.is_done:
        return queues_pb2.PurgeQueueResponse()
    request.page_token = walk.token
    answer = await send(method, walk.shard, request.SerializeToString())
    response = queues_pb2.PurgeQueueResponse.FromString(answer)
    walk.came(0, 0, response.next_page_token)
    response.next_page_token = walk.next_token
    return response


def _walk(order: Sequence[int], token: str, wanted: int, **options: int) -> Walk:
    try:
        return Walk(order, token, wanted, **options)
    except PageTokenError:
        sentence = "Expected {field} as a page returned it, but it is not."
        raise RefusedError(INVALID_FIELD, sentence, "page_token") from None


def _page_size(value: int) -> int:
    if not 0 <= value <= PAGE_MAX:
        raise RefusedError(
            OUT_OF_RANGE, f"Expected {{field}} from 0 to {PAGE_MAX}, but got {value}.", "page_size", f"0..{PAGE_MAX}"
        )
    return value or PAGE_DEFAULT


async def _at_all(method: Method, asked: Sequence[tuple[int, bytes]], send: Send) -> list[bytes | Failure]:
    """The answers of many shards, not of all at the same time."""
    places = asyncio.Semaphore(SHARDS_AT_ONCE)

    async def ask(shard: int, data: bytes) -> bytes | Failure:
        async with places:
            try:
                return await send(method, shard, data)
            except FAILURES as failure:
                return failure

    return list(await asyncio.gather(*(ask(shard, data) for shard, data in asked)))
