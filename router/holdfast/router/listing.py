"""What is told about queues whose tasks are on several shards: numbers added up, pages over all shards."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence

from holdfast.proto.v1 import tasks_pb2 as pb
from holdfast.router.failures import FAILURES, Failure, rejection_of, same_status
from holdfast.router.methods import DEAD_LETTERS, TASKS, Method
from holdfast.router.reserving import Places
from holdfast.routing.sets import QueueRoute, visible
from holdfast.serving.refusals import INVALID_FIELD, OUT_OF_RANGE, QUEUE_NOT_FOUND, RefusedError

PAGE_DEFAULT = 100
PAGE_MAX = 1000
SHARDS_AT_ONCE = 16
PAGE_BYTES_MAX = 2 * 1024 * 1024

_STATS = TASKS["QueueStats"]
_LIST_QUEUES = TASKS["ListQueues"]
_LIST_DEAD = DEAD_LETTERS["ListDeadLetters"]
_SUMMED = [
    field.name
    for field in pb.QueueCounts.DESCRIPTOR.fields
    if field.name not in ("queue", "oldest_ready_age_ms")
]  # fmt: skip

# Sends a request to a shard; raises CallFailedError or RefusedError.
Send = Callable[[Method, int, bytes], Awaitable[bytes]]


def add_counts(into: pb.QueueCounts, more: pb.QueueCounts) -> None:
    for name in _SUMMED:
        setattr(into, name, getattr(into, name) + getattr(more, name))
    into.oldest_ready_age_ms = max(into.oldest_ready_age_ms, more.oldest_ready_age_ms)


async def queue_stats(request: pb.QueueStatsRequest, places: Places, send: Send) -> pb.QueueStatsResponse:
    """Each queue's numbers, added up over its shards. If one of them cannot say, neither can we."""
    shards = list(places)
    parts = [
        pb.QueueStatsRequest(queues=[request.queues[at] for at in places[shard]]).SerializeToString()
        for shard in shards
    ]
    answers = await _at_all(_STATS, list(zip(shards, parts, strict=True)), send)
    failures = [answer for answer in answers if isinstance(answer, FAILURES)]
    if failures and len(failures) == len(answers) and same_status(failures):
        raise failures[0]
    response = pb.QueueStatsResponse()
    told: list[list[pb.QueueStatsOutcome]] = [[] for _ in request.queues]
    for shard, answer in zip(shards, answers, strict=True):
        positions = places[shard]
        if isinstance(answer, FAILURES):
            failed = pb.QueueStatsOutcome(rejection=rejection_of(answer))
            outcomes: Iterable[pb.QueueStatsOutcome] = [failed] * len(positions)
        else:
            outcomes = pb.QueueStatsResponse.FromString(answer).outcomes
        for at, outcome in zip(positions, outcomes, strict=True):
            told[at].append(outcome)
    for at, outcomes in enumerate(told):
        response.outcomes.append(_sum_of(at, outcomes))
    return response


def _sum_of(at: int, outcomes: Sequence[pb.QueueStatsOutcome]) -> pb.QueueStatsOutcome:
    counted = [outcome for outcome in outcomes if outcome.HasField("counts")]
    refused = [outcome for outcome in outcomes if not outcome.HasField("counts")]
    real = [outcome for outcome in refused if outcome.rejection.reason != QUEUE_NOT_FOUND]
    if real or not counted:
        found = pb.QueueStatsOutcome()
        found.CopyFrom((real or refused)[0])
        if found.rejection.field:
            found.rejection.message = found.rejection.message.replace(found.rejection.field, f"queues[{at}]")
            found.rejection.field = f"queues[{at}]"
        return found
    total = counted[0]
    for outcome in counted[1:]:
        add_counts(total.counts, outcome.counts)
    return total


async def list_queues(request: pb.ListQueuesRequest, shard_count: int, send: Send) -> pb.ListQueuesResponse:
    """One page in the order of names. The token is the last name: every shard goes on after it."""
    limit = _page_size(request.page_size)
    asked = pb.ListQueuesRequest(page_size=limit, page_token=request.page_token).SerializeToString()
    answers = await _at_all(_LIST_QUEUES, [(shard, asked) for shard in range(shard_count)], send)
    found: dict[str, pb.QueueCounts] = {}
    complete_to: str | None = None  # beyond this name, a shard has told only a part
    for answer in answers:
        if isinstance(answer, FAILURES):
            raise answer
        page = pb.ListQueuesResponse.FromString(answer)
        for counts in page.queues:
            if counts.queue in found:
                add_counts(found[counts.queue], counts)
            else:
                found[counts.queue] = counts
        if page.next_page_token and page.queues:
            last = page.queues[-1].queue
            complete_to = last if complete_to is None else min(complete_to, last)
    names = sorted(name for name in found if complete_to is None or name <= complete_to)
    response = pb.ListQueuesResponse(queues=[found[name] for name in names[:limit]])
    if len(names) > limit or complete_to is not None:
        response.next_page_token = names[min(limit, len(names)) - 1]
    return response


async def list_dead_letters(
    request: pb.ListDeadLettersRequest, route: QueueRoute, send: Send
) -> pb.ListDeadLettersResponse:
    """Pages of one shard after another: the home, then by number. A token names the shard, then comes that shard's
    own token; without a shard it is the home's, as a queue gave it out that had no other."""
    limit = _page_size(request.page_size)
    order = [route.home, *sorted(shard for shard in visible(route) if shard != route.home)]
    at, token = _place_of(request.page_token, order)
    response = pb.ListDeadLettersResponse()
    size = 0
    while at < len(order):
        shard = order[at]
        asked = pb.ListDeadLettersRequest(queue=request.queue, page_size=limit - len(response.tasks), page_token=token)
        page = pb.ListDeadLettersResponse.FromString(await send(_LIST_DEAD, shard, asked.SerializeToString()))
        response.tasks.extend(page.tasks)
        size += page.ByteSize()
        at, token = (at, page.next_page_token) if page.next_page_token else (at + 1, "")
        if at < len(order) and (len(response.tasks) >= limit or size >= PAGE_BYTES_MAX):
            response.next_page_token = f"{order[at]}.{token}"
            break
    return response


def _place_of(token: str, order: Sequence[int]) -> tuple[int, str]:
    """Where in the order a page begins. A shard that has drained meanwhile is passed over."""
    if "." not in token:
        return 0, token
    number, _, inner = token.partition(".")
    if not (number.isascii() and number.isdigit() and len(number) <= 5):
        raise RefusedError(INVALID_FIELD, "Expected {field} as a page returned it, but it is not.", "page_token")
    shard = int(number)
    if shard in order:
        return order.index(shard), inner
    following = [at for at, each in enumerate(order) if at and each > shard]
    return (following[0], "") if following else (len(order), "")


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
