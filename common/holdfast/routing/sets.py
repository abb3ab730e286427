"""Which shards the calls about a queue go to, while its set of shards changes.

A queue has a home and, if it was ever spread or pinned, numbered sets of shards: its generations. Tasks never move. New
ones go to the newest set; those of older sets drain where they are.

    request_id of the producer's own   to the home, whatever the sets: deduplication stays exact
    unique_key                         the same, whatever the request_id: one shard sees all tasks with the key
    limit_key                          the same: one shard counts all claims of the key, so that a cap of 1 is
                                       mutual exclusion, while sets change and whoever knows of them
    automatic key of a client          `~<generation>.<call key>.<n>`: by the call key over the set of that generation,
                                       so that a retry meets its first attempt, whichever set is the newest by then
    no request_id                      to any shard of the newest set

So all tasks of one call and queue go to one shard, unless they have keys.

A map may not know the generation of an automatic idempotency key: it is behind the client's, or has dropped that set.
Any shard would be a guess then, and a first attempt may be on another one.
"""

import re
from dataclasses import dataclass
from typing import NamedTuple

from holdfast.routing.homes import shard_of_key

# Numbers without leading zeros and of bounded length: one text per id, and no long work for a hostile one.
_AUTOMATIC_KEY = re.compile(r"~(0|[1-9][0-9]{0,17})\.([A-Za-z0-9_-]{1,64})\.(0|[1-9][0-9]{0,8})")

HOME_BEGINNING = 3  # characters of an id that `is_of_home` looks at


@dataclass(frozen=True, slots=True)
class QueueRoute:
    """Where the tasks of a queue are. With the defaults: a queue that nobody spread or pinned."""

    queue: str
    home: int
    generation: int = 0  # of the newest set
    sets: tuple[tuple[int, tuple[int, ...]], ...] = ()  # all but generation 0, which is the home; the oldest first
    draining: tuple[int, ...] = ()  # shards outside the newest set and the home that still have tasks
    drained: tuple[int, ...] = ()  # such shards that have none any more, but totals and records of the queue


class UnknownGenerationError(Exception):
    """Nobody can say by this map where a first attempt with such an id went, or will go. Nothing was done; by another
    map it may be known."""

    def __init__(self, queue: str, generation: int, newest: int) -> None:
        """`generation`: of the id; `newest`: that the map knows."""
        is_newer = generation > newest
        which = "it has not been heard of here yet" if is_newer else "it was left too long ago to be known"
        super().__init__(
            f"Expected a request_id made up for one of the sets of shards of queue {queue} that are known here, the "
            f"newest is {newest}, but it is for set {generation}: {which}."
        )
        why = "newer" if is_newer else "forgotten"
        self.metadata = {"queue": queue, "generation": str(newest), "why": why}  # of the refusal


class AutomaticKey(NamedTuple):
    """What an automatic idempotency key says: a request_id that a client chose for its own retries."""

    generation: int  # of the queue's set of shards, as the client knew it
    call_key: str  # one for all tasks of a call
    n: int  # which task of the call


def newest(route: QueueRoute) -> tuple[int, ...]:
    """The shards that new tasks go to; never none."""
    return (route.sets[-1][1] if route.sets else ()) or (route.home,)


def visible(route: QueueRoute) -> tuple[int, ...]:
    """All shards that may have tasks of the queue, each once: the home, the newest set, and what still drains."""
    return tuple(dict.fromkeys((route.home, *newest(route), *route.draining)))


def counted(route: QueueRoute) -> tuple[int, ...]:
    """All shards that ever had tasks of the queue, each once: what was counted there still counts."""
    return tuple(dict.fromkeys((*visible(route), *route.drained)))


def ever(route: QueueRoute) -> frozenset[int]:
    """All shards that the map knows to have had tasks of the queue, or to be going to."""
    return frozenset(counted(route)).union(*(shards for _, shards in route.sets))


def shard_for_task(route: QueueRoute, request_id: str, unique_key: str, limit_key: str, pick: int) -> int:
    """The shard of a new task. `pick` is any number, the same for all tasks of a call: it chooses where nothing else
    does. Raises UnknownGenerationError."""
    if unique_key or limit_key:
        return route.home
    if not request_id:
        shards = newest(route)
        return shards[pick % len(shards)]
    # As parse_automatic_key does, but without what is not needed: this runs for every task of every call.
    if request_id[0] != "~" or (found := _AUTOMATIC_KEY.fullmatch(request_id)) is None:
        return route.home
    return shard_of_key(found[2], _set_of(route, int(found[1])))


def owner_of_task(route: QueueRoute, request_id: str, unique_key: str, limit_key: str, here: int) -> int:
    """The shard of a task that a shard makes itself, e.g. a follow-up. It stays `here` if that is as good as any. A set
    that the map does not know is taken for the newest."""
    if not (request_id or unique_key or limit_key) and here in newest(route):
        return here
    try:
        return shard_for_task(route, request_id, unique_key, limit_key, here)
    except UnknownGenerationError:
        automatic = parse_automatic_key(request_id)
        assert automatic is not None
        return shard_of_key(automatic.call_key, newest(route))


def is_of_home(request_id: str) -> bool:
    """Whether it goes to the home of a queue that has no sets, by its first HOME_BEGINNING characters alone, whatever
    the task's keys. Of others nobody knows before they are parsed."""
    return request_id[:1] != "~" or request_id[:HOME_BEGINNING] == "~0."


def automatic_key(generation: int, call_key: str, n: int) -> str:
    """`call_key` is 1-64 of [A-Za-z0-9_-]; with any other the id counts as one of the producer's own."""
    return f"~{generation}.{call_key}.{n}"


def is_automatic_key(request_id: str) -> bool:
    """Whether a client made it up for its own retries."""
    return request_id[:1] == "~" and _AUTOMATIC_KEY.fullmatch(request_id) is not None


def parse_automatic_key(request_id: str) -> AutomaticKey | None:
    """None: it is an id of the producer's own. So is one that only looks automatic."""
    if request_id[:1] != "~" or (found := _AUTOMATIC_KEY.fullmatch(request_id)) is None:
        return None
    generation, call_key, n = found.groups()
    return AutomaticKey(int(generation), call_key, int(n))


def _set_of(route: QueueRoute, generation: int) -> tuple[int, ...]:
    if generation == 0:
        return (route.home,)
    for known, shards in reversed(route.sets):
        if known == generation:
            return shards or (route.home,)
    raise UnknownGenerationError(route.queue, generation, route.generation)
