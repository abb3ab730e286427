"""The judge of caps: of queues, also of those that are spread over shards, of their limit keys and of tenants. Pure, as
those in `checkers.py`."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

from chaos.history import Claim, Story
from chaos.verdicts import MS, Final, Finding, Judged, Violation, holds
from holdfast.routing.task_ids import shard_of_task

# What is set for a queue counts on a shard from when its leader has heard of it; so long does that take, and so long at
# the most where etcd is out of its reach.
_HEARD_NS = 2_000 * MS
_UNHEARD_NS = 10_000 * MS
_KEEPS_FROM_ETCD = frozenset({"cut-from-etcd", "etcd-quorum", "etcd-pause", "unplug"})
# Task and token: the numbers of tokens are those of a shard, and two shards give out the same.
_ClaimKey = tuple[str, int]


def cap(story: Story, final: Final) -> Iterator[Finding]:
    """A claim counts from when its holder was told of it until it may have ended. At the first moment with too many."""
    until_ns = holds(story)
    capped = _capped(story, final)
    yield Judged("cap", sum(map(len, capped.values())))
    for limit, claims in capped.items():
        # By time, and what ends comes before what begins then.
        changes: list[tuple[float, int, _ClaimKey]] = []
        for key, (begins_ns, ends_ns) in _counted(claims, _changes_of_shards(story, limit), until_ns).items():
            changes += [(begins_ns, 1, key), (ends_ns, 0, key)]
        held: set[_ClaimKey] = set()
        for at_ns, begins, key in sorted(changes):
            if not begins:
                held.discard(key)
                continue
            held.add(key)
            if len(held) > limit.most_of(held):
                sentence = f"{len(held)} tasks of {limit.whose} were held at {at_ns / MS:.0f} ms"
                tasks = tuple(sorted({task for task, _ in held}))
                yield Violation("cap", f"{sentence}, where {limit.most_of(held)} may be", tasks)
                break


@dataclass(frozen=True)
class _Cap:
    """Of a queue, of one of its limit keys, or of a tenant in it."""

    whose: str
    queue: str
    most: int
    # Of a spread queue: that of a tenant is split among the shards, each of which lets one through at least; that of a
    # key holds at its home, whatever the other shards are; of the queue, claims that are there when the shards change
    # may be too many.
    is_split: bool = False
    is_at_home: bool = False

    def most_of(self, held: Iterable[_ClaimKey]) -> int:
        return max(self.most, len({shard_of_task(task) for task, _ in held})) if self.is_split else self.most


def _capped(story: Story, final: Final) -> dict[_Cap, dict[_ClaimKey, list[Claim]]]:
    """By cap: the claims that it counts. A claim that was asked for again is one claim."""
    found: dict[_Cap, dict[_ClaimKey, list[Claim]]] = defaultdict(lambda: defaultdict(list))
    for claim in story.claims:
        queue, limits = claim.queue, []
        if queue in final.caps:
            limits.append(_Cap(queue, queue, final.caps[queue]))
        if claim.limit_key and queue in final.key_caps:
            whose = f"{queue} with limit key {claim.limit_key}"
            limits.append(_Cap(whose, queue, final.key_caps[queue], is_at_home=True))
        if claim.tenant and queue in final.tenant_caps:
            limits.append(_Cap(f"{queue} of tenant {claim.tenant}", queue, final.tenant_caps[queue], is_split=True))
        for limit in limits:
            found[limit][claim.task, claim.token].append(claim)
    return found


def _counted(
    claims: Mapping[_ClaimKey, list[Claim]], changes: list[tuple[int, int]], until_ns: Callable[[Claim], float]
) -> dict[_ClaimKey, tuple[float, float]]:
    """From when to when each was surely held. What was there when the queue got other shards is not counted any more
    from then on, and what is claimed until all shards have heard of it is not counted at all."""
    found: dict[_ClaimKey, tuple[float, float]] = {}
    for key, mine in claims.items():
        begins_ns = min(claim.ended_ns for claim in mine)
        ends_ns = max(map(until_ns, mine))
        for from_ns, to_ns in changes:
            if begins_ns < to_ns:
                ends_ns = min(ends_ns, from_ns)
        if begins_ns < ends_ns:
            found[key] = (begins_ns, ends_ns)
    return found


def _changes_of_shards(story: Story, limit: _Cap) -> list[tuple[int, int]]:
    """Those that matter to a cap: from when each began until every shard has heard of it. That is within seconds, or
    within the time after which one that hears nothing from etcd hands out nothing of the queue."""
    windows = [] if limit.is_at_home else story.windows()
    silences = [one for one in windows if one.what in _KEEPS_FROM_ETCD]
    found = []
    for window in windows:
        if window.what != "spread" or window.queue not in ("", limit.queue):
            continue
        is_heard = not any(one.from_ns < window.to_ns + _HEARD_NS and window.from_ns < one.to_ns for one in silences)
        found.append((window.from_ns, window.to_ns + (_HEARD_NS if is_heard else _UNHEARD_NS)))
    return found
