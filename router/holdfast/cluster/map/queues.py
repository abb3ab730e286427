"""How the settings of a queue change. Pure: one record in, the next one out. Its policy changes in policy.py.

A set of shards never changes; another one gets the next generation and is appended. Shards that new tasks no longer go
to drain: they stay visible until their leaders say that they have none of the queue's tasks left.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from holdfast.cluster.map.keys import NAME
from holdfast.cluster.map.policy import PolicyValue, change_policy
from holdfast.cluster.map.records import QueueRecord, QueueSet
from holdfast.routing.homes import home_shard, spread_shards
from holdfast.serving.refusals import (
    BATCH_TOO_LARGE,
    INVALID_FIELD,
    MISSING_FIELD,
    OUT_OF_RANGE,
    RefusedError,
    change_refused,
    no_such_shard,
)

GENERATIONS_MAX = 32  # kept of a queue, so that retries meet their first attempt
QUEUES_MAX = 1000  # in one call
PAGE_SIZE_DEFAULT = 100


@dataclass(frozen=True, slots=True)
class Spread:
    """Over so many shards, the home among them."""

    shards: int


@dataclass(frozen=True, slots=True)
class Pin:
    """On exactly these."""

    shards: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Home:
    """On the home alone, as at first."""


Placement = Spread | Pin | Home


@dataclass(frozen=True, slots=True)
class QueueChange:
    """What an operator wants; what is not named stays."""

    placement: Placement | None = None
    policy: Mapping[str, PolicyValue] | None = None  # fields to set
    # Fields that go back to the default; tenants.NAME for one tenant, tenant_weight.NAME for a field of it.
    clear: Collection[str] = ()


def check_queue_name(name: str, field: str = "queue") -> str:
    if not name:
        raise RefusedError(MISSING_FIELD, "Expected the name of a queue ({field}), but it is empty.", field)
    if not NAME.fullmatch(name):
        raise RefusedError(
            INVALID_FIELD,
            "Expected {field} to be the name of a queue, 1-128 of [A-Za-z0-9._-], but it is not.",
            field,
            "1-128 of [A-Za-z0-9._-]",
        )
    return name


def check_queue_names(queues: Sequence[str]) -> None:
    """Of one call."""
    if len(queues) > QUEUES_MAX:
        raise RefusedError(
            BATCH_TOO_LARGE,
            f"Expected at most {QUEUES_MAX} {{field}}, but got {len(queues)}.",
            "queues",
            str(QUEUES_MAX),
        )
    for number, queue in enumerate(queues):
        check_queue_name(queue, f"queues[{number}]")


def check_page(page_size: int, page_token: str) -> int:
    """How many queues a page may have; the token is the last name of the page before, or empty."""
    if not 0 <= page_size <= QUEUES_MAX:
        raise RefusedError(
            OUT_OF_RANGE,
            f"Expected {{field}} from 0 to {QUEUES_MAX}, but got {page_size}.",
            "page_size",
            f"0..{QUEUES_MAX}",
        )
    if page_token and not NAME.fullmatch(page_token):
        raise RefusedError(INVALID_FIELD, "Expected {field} as the page before had it, but it is not.", "page_token")
    return page_size or PAGE_SIZE_DEFAULT


def change_queue(queue: str, record: QueueRecord | None, change: QueueChange, shard_count: int) -> QueueRecord:
    """The queue's next record, or RefusedError; equal to the present one if nothing differs."""
    found = record or QueueRecord()
    policy = change_policy(found.policy, change.policy or {}, change.clear)
    if policy is not found.policy:
        found = replace(found, policy=policy)
    if change.placement is None:
        return found
    home = home_shard(queue, shard_count)
    return _with_set(found, home, _shards_for(queue, change.placement, shard_count))


def note_drained(queue: str, record: QueueRecord | None, shard: int, shard_count: int) -> QueueRecord | None:
    """The shard has none of the queue's tasks any more; None if that changes nothing."""
    if record is None or shard not in record.draining or _is_in_use(queue, record, shard, shard_count):
        return None
    return replace(record, draining=_without(record.draining, shard), drained=_with(record.drained, shard))


def note_draining(queue: str, record: QueueRecord | None, shard: int, shard_count: int) -> QueueRecord | None:
    """The shard has some all the same: a late call, or a dead task that was sent back; None if that is known."""
    found = record or QueueRecord()
    if shard in found.draining or _is_in_use(queue, found, shard, shard_count):
        return None
    return replace(found, draining=_with(found.draining, shard), drained=_without(found.drained, shard))


def _shards_for(queue: str, placement: Placement, shard_count: int) -> tuple[int, ...]:
    if isinstance(placement, Home):
        return (home_shard(queue, shard_count),)
    if isinstance(placement, Spread):
        if not 1 <= placement.shards <= shard_count:
            raise RefusedError(
                OUT_OF_RANGE,
                f"Expected {{field}} from 1 to {shard_count}, the number of shards, but got {placement.shards}.",
                "spread",
                f"1..{shard_count}",
            )
        return spread_shards(queue, shard_count, placement.shards)
    if not placement.shards:
        raise RefusedError(MISSING_FIELD, "Expected {field} to name shards, but it is empty.", "pin.shards")
    for shard in placement.shards:
        if not 0 <= shard < shard_count:
            raise no_such_shard(shard, shard_count, "pin.shards")
    return tuple(dict.fromkeys(placement.shards))


def _with_set(record: QueueRecord, home: int, shards: tuple[int, ...]) -> QueueRecord:
    if set(shards) == set(record.newest or (home,)):
        return record
    in_use = {home, *shards}
    left = [shard for shard in record.newest if shard not in in_use]
    draining = _ordered({*record.draining, *left} - in_use)
    generation = record.generation + 1
    sets = _forget_oldest((*record.sets, (generation, shards)), draining)
    drained = _ordered(set(record.drained) - in_use - set(draining))
    return replace(record, generation=generation, sets=sets, draining=draining, drained=drained)


def _forget_oldest(sets: Sequence[QueueSet], draining: Collection[int]) -> tuple[QueueSet, ...]:
    """A retry of a call over a set that is forgotten is refused: so only one whose shards have drained."""
    kept = list(sets)
    while len(kept) > GENERATIONS_MAX:
        waits_for = _ordered(set(kept[0][1]) & set(draining))
        if waits_for:
            raise change_refused(
                "draining",
                f"Expected the oldest of {GENERATIONS_MAX} sets of shards to have drained, but the queue still has "
                f"tasks on {', '.join(map(str, waits_for))}; wait until they are done.",
            )
        del kept[0]
    return tuple(kept)


def _is_in_use(queue: str, record: QueueRecord, shard: int, shard_count: int) -> bool:
    return shard in record.newest or shard == home_shard(queue, shard_count)


def _ordered(shards: Collection[int]) -> tuple[int, ...]:
    return tuple(sorted(shards))


def _with(shards: Collection[int], shard: int) -> tuple[int, ...]:
    return _ordered({*shards, shard})


def _without(shards: Collection[int], shard: int) -> tuple[int, ...]:
    return _ordered(set(shards) - {shard})
