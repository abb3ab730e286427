"""How the settings of a queue change. Pure: one record in, the next one out.

A set of shards never changes; another one gets the next generation and is appended. Shards that new tasks no longer go
to drain: they stay visible until their leaders say that they have none of the queue's tasks left.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from math import isfinite

from holdfast.cluster.keys import NAME
from holdfast.cluster.records import POLICY_FIELDS, POLICY_FRACTIONS, QueuePolicy, QueueRecord, QueueSet
from holdfast.routing.homes import home_shard, spread_shards
from holdfast.serving.refusals import (
    INVALID_FIELD,
    MISSING_FIELD,
    OUT_OF_RANGE,
    RefusedError,
    change_refused,
    no_such_shard,
)

GENERATIONS_MAX = 32  # kept of a queue, so that retries meet their first attempt

_MINUTE_MS = 60_000
_YEAR_MS = 366 * 24 * 60 * _MINUTE_MS

# As the brokers take them for all queues in their configuration, or for a single task.
POLICY_LIMITS: Mapping[str, tuple[float, float]] = {
    "max_attempts": (1, 1000),
    "max_claims": (1, 10_000),
    "retry_base_ms": (0, _YEAR_MS),
    "retry_factor": (1, 100),
    "retry_cap_ms": (0, _YEAR_MS),
    "retry_jitter": (0, 1),
    "dedup_window_ms": (1000, _YEAR_MS),
    "result_ttl_ms": (0, 10 * _YEAR_MS),
    "finished_retention_ms": (10 * _MINUTE_MS, 10 * _YEAR_MS),
    "dead_retention_ms": (1, 10 * _YEAR_MS),
}
# The first of each pair must not exceed the second, if a queue sets both.
_ORDERED = (("retry_base_ms", "retry_cap_ms"), ("max_attempts", "max_claims"))


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
    policy: Mapping[str, int | float] | None = None  # fields to set
    clear: Collection[str] = ()  # fields that go back to the default


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


def change_queue(queue: str, record: QueueRecord | None, change: QueueChange, shard_count: int) -> QueueRecord:
    """The queue's next record, or RefusedError; equal to the present one if nothing differs."""
    found = record or QueueRecord()
    policy = change_policy(found.policy, change.policy or {}, change.clear)
    if policy != found.policy:
        found = replace(found, policy=policy)
    if change.placement is None:
        return found
    home = home_shard(queue, shard_count)
    return _with_set(found, home, _shards_for(queue, change.placement, shard_count))


def change_policy(policy: QueuePolicy, given: Mapping[str, int | float], clear: Collection[str]) -> QueuePolicy:
    for name in clear:
        if name not in POLICY_FIELDS:
            raise RefusedError(
                INVALID_FIELD,
                f"Expected {{field}} to name fields of the policy ({', '.join(POLICY_FIELDS)}), but it has {name!r}.",
                "clear",
            )
        if name in given:
            raise RefusedError(INVALID_FIELD, f"Expected {name} to be set or cleared, but it is both.", "clear")
    values = {name: value for name, value in policy.given().items() if name not in clear}
    values |= {name: _policy_value(name, value) for name, value in given.items()}
    for low, high in _ORDERED:
        if low in values and high in values and values[low] > values[high]:
            raise RefusedError(
                OUT_OF_RANGE,
                f"Expected {{field}} of at most {high} ({values[high]}), but it is {values[low]}.",
                f"policy.{low}",
                str(values[high]),
            )
    return QueuePolicy(**values)  # type: ignore[arg-type]  # whole where the field is


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
    known = {shard for _, each in sets for shard in each}
    drained = _ordered((set(record.drained) & known) - in_use - set(draining))
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


def _policy_value(name: str, value: int | float) -> int | float:
    low, high = POLICY_LIMITS[name]
    if not (isfinite(value) and low <= value <= high):
        raise RefusedError(
            OUT_OF_RANGE,
            f"Expected {{field}} from {low} to {high}, but got {value}.",
            f"policy.{name}",
            f"{low}..{high}",
        )
    return float(value) if name in POLICY_FRACTIONS else int(value)


def _ordered(shards: Collection[int]) -> tuple[int, ...]:
    return tuple(sorted(shards))


def _with(shards: Collection[int], shard: int) -> tuple[int, ...]:
    return _ordered({*shards, shard})


def _without(shards: Collection[int], shard: int) -> tuple[int, ...]:
    return _ordered(set(shards) - {shard})
