"""Calls that may be about several shards, as routers and direct clients take them: sent as they came to the one shard
that they are about, or in parts whose answers are joined.

If some parts of a batch fail, or are not answered when the others are, their items are refused one by one, so that the
outcomes of the others are neither lost nor late; if all fail in the same way, that failure is raised. Numbers are added
up. Lists go from shard to shard, or are merged by name; one that was begun through a router can be gone on with by a
direct client.
"""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Generic, TypeVar

from holdfast.routing.calls import BY_SCHEDULE, BY_TASK, BY_WORKER, task_ids_of
from holdfast.routing.homes import home_shard
from holdfast.routing.pages import PAGE_DEFAULT, PageTokenError, Walk, merge_by_name, order_of, worker_token
from holdfast.routing.placing import shard_of_id, shards_of_tasks
from holdfast.routing.sets import QueueRoute, counted
from holdfast.routing.splitting import answered_in, join_parts, split_lists, split_over, split_request
from holdfast.routing.sums import add_counts, add_worker, sum_parts
from holdfast.transport.giving_up import ENDLESS, GivingUp, Patience
from holdfast.transport.parts import Parts

ReplyT = TypeVar("ReplyT")

SHARDS_AT_ONCE = 16

# Lists of all shards by name: the field with the items, the one with an item's name, how two of a name become one, and
# how the last name becomes a token.
_BY_NAME: dict[str, tuple[str, str, Callable[[Any, Any], None], Callable[[str], str]]] = {
    "ListQueues": ("queues", "queue", add_counts, str),
    "ListWorkers": ("workers", "worker", add_worker, worker_token),
}
# Lists of one shard after the other: the field with the items.
_IN_ORDER = {"ListDeadLetters": "tasks", "ListDiscards": "discards", "ListSchedules": "schedules", "ListTasks": "tasks"}
# Of those, the ones that tell also of shards which a queue has left: what is discarded, and what has finished, stays
# where it was.
_WITH_DRAINED = ("ListDiscards", "ListTasks")
LISTS = frozenset({*_BY_NAME, *_IN_ORDER})


class SplitCall(ABC, Generic[ReplyT]):
    """One call, as its side sends it."""

    def __init__(self, name: str, request: Any, response: type[Any], failures: tuple[type[Exception], ...]) -> None:
        """`failures`: how parts end that are not answered."""
        self.name = name
        self.request = request
        self.response = response
        self.failures = failures
        # By shard: when the part that was answered was sent. Left out where answers say how long that took (routed_ms).
        self.sent_s: dict[int, float] = {}

    @abstractmethod
    async def send_whole(self, shard: int) -> ReplyT:
        """The request as it came."""

    @abstractmethod
    async def send(self, shard: int, request: Any, patience: Patience = ENDLESS) -> Any:
        """A part of it; the response."""

    @abstractmethod
    def reply(self, response: Any) -> ReplyT:
        """To the caller, from the responses to parts."""

    @abstractmethod
    def rejection(self, failure: Exception) -> Any:
        """The same for one item."""

    @abstractmethod
    def are_alike(self, failures: Sequence[Any]) -> bool:
        """If they are not, one of them could hide that another part may have taken effect."""

    @abstractmethod
    def malformed(self, outcomes: int, items: int) -> Exception:
        """Of a part with a response that has another number of outcomes. One too few or too many, and all that follow
        would be told of somebody else's task."""

    @abstractmethod
    def may_miss(self, failure: Exception) -> bool:
        """Whether others may be told of when a shard fails like this."""

    @abstractmethod
    async def bad_token(self, shard: int) -> ReplyT:
        """Of a list: no page ended with it."""

    def may_split(self) -> bool:
        """What no broker takes whole is not split: one of them says what is wrong with it."""
        return True

    def page_size(self) -> int:
        return self.request.page_size or PAGE_DEFAULT


async def send_over_shards(
    call: SplitCall[ReplyT], parts: Parts[Any], route: Callable[[str], QueueRoute], shard_count: int, turn: int
) -> ReplyT:
    """Every call but Enqueue, Reserve and those that name a shard. `turn`: any number, which chooses where nothing else
    does."""
    name, request = call.name, call.request
    if name in BY_TASK:
        keys = shards_of_tasks([*task_ids_of(name, request)], shard_count)
        return await send_parts(call, parts, [items.field for items in BY_TASK[name]], keys)
    if name in ("GetTask", "GetDeadLetter"):
        return await call.send_whole(shard_of_id(request.task_id, shard_count) or 0)
    if name in BY_WORKER:
        return await call.send_whole(home_shard(request.worker, shard_count))
    if name in BY_SCHEDULE:
        return await call.send_whole(route(request.queue).home)
    if name == "PreviewSchedule":  # any shard can tell when an expression fires
        is_known = request.queue and request.name
        return await call.send_whole(route(request.queue).home if is_known else turn % shard_count)
    if name == "QueueStats":
        return await _queue_stats(call, route)
    if name in _BY_NAME:
        return await _list_by_name(call, shard_count)
    assert name in _IN_ORDER or name == "PurgeQueue", f"{name} has no way to the shards"
    own = route(request.queue) if request.queue or name in ("ListDeadLetters", "PurgeQueue") else None
    order = range(shard_count) if own is None else order_of(own, with_drained=name in _WITH_DRAINED)
    if own is not None and _is_of_the_home_alone(name, request.page_token, order):
        return await call.send_whole(own.home)
    try:
        return await (_purge(call, order) if name == "PurgeQueue" else _list_in_order(call, order))
    except PageTokenError:
        return await call.bad_token(order[0])


async def send_parts(call: SplitCall[ReplyT], parts: Parts[Any], fields: Sequence[str], keys: Sequence[int]) -> ReplyT:
    """`keys`: the shard of each item of these lists, one list behind the other, or one if all have the same."""
    if len(set(keys)) <= 1 or not call.may_split():
        return await call.send_whole(keys[0] if keys else 0)
    positions = split_lists(call.request, fields, keys)
    requests = split_request(call.request, positions)

    async def one(shard: int, giving_up: GivingUp) -> Any:
        try:
            response = await call.send(shard, requests[shard], giving_up)
        except call.failures as failure:
            return failure
        for field, of_field in positions[shard].items():
            outcomes = getattr(response, answered_in(field))
            if len(outcomes) != len(of_field):
                return call.malformed(len(outcomes), len(of_field))
        return response

    answers = await parts.send(requests, one, is_impatient=call.name != "WaitTasks")
    reported = _reported(call, answers)
    return call.reply(join_parts(call.response, [(positions[shard], reported[shard]) for shard in positions]))


def _reported(call: SplitCall[Any], answers: Mapping[int, Any]) -> dict[int, Any]:
    """By shard: the response to its part, or the rejection of each of its items. Raises if all failed alike."""
    failures = [answer for answer in answers.values() if isinstance(answer, call.failures)]
    if failures and len(failures) == len(answers) and call.are_alike(failures):
        raise failures[0]
    if call.name == "Extend":
        _count_leases(
            call, {shard: answered for shard, answered in answers.items() if not isinstance(answered, call.failures)}
        )
    return {
        shard: call.rejection(answer) if isinstance(answer, call.failures) else answer
        for shard, answer in answers.items()
    }


def _count_leases(call: SplitCall[Any], responses: Mapping[int, Any]) -> None:
    """The caller counts leases from one moment, but each part was sent at a moment of its own, the last time perhaps
    long after the others: what passed until then is added to its waits."""
    first_s = min(call.sent_s.values(), default=0.0)
    for shard, response in responses.items():
        waited_ms = int((call.sent_s.get(shard, first_s) - first_s) * 1000) + response.routed_ms
        response.routed_ms = 0
        for outcome in response.outcomes:
            if waited_ms and outcome.HasField("extended"):
                outcome.extended.waited_ms += waited_ms


async def _queue_stats(call: SplitCall[ReplyT], route: Callable[[str], QueueRoute]) -> ReplyT:
    """Each queue's numbers, added up over all shards that ever had it: totals never fall. If one of them cannot say,
    neither can we."""
    queues = call.request.queues
    places = split_over(counted(route(queue)) for queue in queues)
    if len(places) <= 1 or not call.may_split():
        return await call.send_whole(next(iter(places), 0))
    asked = {
        shard: type(call.request)(queues=[queues[index] for index in at_shard]) for shard, at_shard in places.items()
    }
    reported = _reported(call, await _at_all(call, asked))
    return call.reply(sum_parts(call.response, ((places[shard], reported[shard]) for shard in places), len(queues)))


def _is_of_the_home_alone(name: str, token: str, order: Sequence[int]) -> bool:
    """Then tokens are the home's own. A queue's schedules are nowhere else."""
    return name == "ListSchedules" or (name == "ListDeadLetters" and len(order) == 1 and "." not in token)


async def _list_by_name(call: SplitCall[ReplyT], shard_count: int) -> ReplyT:
    """Every shard's page from the same name on; a queue or a worker may be known at several."""
    if shard_count == 1:
        return await call.send_whole(0)
    items, name, add, token_of = _BY_NAME[call.name]
    request = _copy_of(call)
    request.page_size = limit = call.page_size()
    pages: list[tuple[Sequence[Any], bool]] = []
    missing: dict[int, Exception] = {}
    for shard, answer in (await _at_all(call, dict.fromkeys(range(shard_count), request))).items():
        if not isinstance(answer, call.failures):
            pages.append((getattr(answer, items), bool(answer.next_page_token)))
        elif call.request.partial and call.may_miss(answer):
            missing[shard] = answer
        else:
            raise answer
    if missing and not pages:
        raise next(iter(missing.values()))
    reported, last = merge_by_name(pages, lambda item: str(getattr(item, name)), add, limit)
    answer = {items: reported, "next_page_token": token_of(last), "missing_shards": list(missing)}
    return call.reply(call.response(**answer))


async def _list_in_order(call: SplitCall[ReplyT], order: Sequence[int]) -> ReplyT:
    """Pages of one shard after another. A page may have fewer items than were asked for, or none: neither this nor a
    shard looks at more than so much in one call.

    A shard that does not answer is passed over if the caller wants that and there are others."""
    request, response = _copy_of(call), call.response()
    walk = Walk(order, request.page_token, call.page_size())
    may_miss = len(order) > 1 and getattr(request, "partial", False)
    field = _IN_ORDER[call.name]
    while not walk.is_done:
        request.page_size, request.page_token = walk.wanted, walk.token
        try:
            page = await call.send(walk.shard, request)
        except call.failures as failure:
            if not may_miss or not call.may_miss(failure):
                raise
            response.missing_shards.append(walk.shard)
            walk.missed()
            continue
        came = getattr(page, field)
        getattr(response, field).extend(came)
        walk.came(len(came), page.ByteSize(), page.next_page_token)
    response.next_page_token = walk.next_token
    return call.reply(response)


async def _purge(call: SplitCall[ReplyT], order: Sequence[int]) -> ReplyT:
    """A page of one shard: if another one failed behind it, nobody would hear how many were purged."""
    request = _copy_of(call)
    walk = Walk(order, request.page_token, 1, shards_max=1)
    if walk.is_done:
        return call.reply(call.response())
    request.page_token = walk.token
    response = await call.send(walk.shard, request)
    walk.came(0, 0, response.next_page_token)
    response.next_page_token = walk.next_token
    return call.reply(response)


def _copy_of(call: SplitCall[Any]) -> Any:
    request = type(call.request)()
    request.CopyFrom(call.request)
    return request


async def _at_all(call: SplitCall[Any], requests: Mapping[int, Any]) -> dict[int, Any]:
    """The answers of many shards, or how they failed; not of all at the same time."""
    room = asyncio.Semaphore(SHARDS_AT_ONCE)

    async def ask(shard: int) -> Any:
        async with room:
            try:
                return await call.send(shard, requests[shard])
            except call.failures as failure:
                return failure

    answers: Awaitable[list[Any]] = asyncio.gather(*map(ask, requests))
    return dict(zip(requests, await answers, strict=True))
