"""What may honestly have delayed something: faults on its own way, and nothing else. Pure.

A call goes from its worker, through a router or not, to the leader of a shard, which asks a majority. Whatever strikes
somebody who is not on this way excuses nothing, and no operation does: it must not be felt.
"""

from bisect import bisect_left, bisect_right
from collections import defaultdict

from chaos.history import Event, HandlerRun, Story, Window

S = 1_000_000_000
_BEFORE_NS = 1 * S  # a fault is written down once it has struck
_AFTER_NS = 1 * S  # until things are as before
_STALL_NS_MAX = 10 * S  # of a handler that stalls its worker and never came to its end
# What is felt for up to as long again as it had lasted: TCP tries again after ever longer pauses, and what a disk did
# not take is written first.
_LINGERING = frozenset({
    "cut-one-way", "cut-two-way", "cut-ring", "cut-majority", "unplug", "host-dies", "loss", "slow-link", "disk-full",
    "disk-slow", "disk-stall",
})  # fmt: skip
_BROKER, _ROUTER = "n", "r"  # how their names begin


class Leaders:
    """Who led which shard when, as far as it was seen."""

    def __init__(self, seen: list[Event]) -> None:
        self._changes: dict[int, list[tuple[int, str]]] = defaultdict(list)
        for event in seen:
            self._changes[int(event.req_id)].append((event.t_ns, event.node))

    def at(self, shard: int, t_ns: int) -> str:
        changes = self._changes[shard]
        place = bisect_right(changes, t_ns, key=lambda change: change[0])
        return changes[place - 1][1] if place else ""

    def stays(self, shard: int, from_ns: int, to_ns: int) -> str:
        """Who led for all of this time; empty if it changed, or nobody did."""
        return self.at(shard, from_ns) if self.stays_until_ns(shard, from_ns) > to_ns else ""

    def stays_until_ns(self, shard: int, from_ns: int) -> float:
        """When the next change was seen."""
        changes = self._changes[shard]
        place = bisect_right(changes, from_ns, key=lambda change: change[0])
        return changes[place][0] if place < len(changes) else float("inf")


class Excuses:
    """Of one story."""

    def __init__(self, story: Story) -> None:
        self.leaders = Leaders(story.leaders)
        self.windows = sorted(story.windows(), key=lambda one: one.from_ns)
        self._starts_ns = [one.from_ns for one in self.windows]
        self._stalls: dict[str, list[HandlerRun]] = defaultdict(list)
        guilty = {send.value for send in story.sends() if send.guilty}
        for run in story.runs:
            if run.value in guilty:
                self._stalls[run.worker].append(run)

    def struck(self, from_ns: float, to_ns: float) -> set[str]:
        """Whom faults struck in this time, or so shortly before it that they may still feel it."""
        soon = self.windows[: bisect_left(self._starts_ns, to_ns + _BEFORE_NS)]
        return {name for one in soon if from_ns <= felt_until_ns(one) for name in one.nodes}

    def shard(self, shard: int | None, from_ns: int, to_ns: int) -> bool:
        """Its leader was struck or replaced, or so many others that there may have been no majority."""
        leader = self.leaders.stays(shard, from_ns - _BEFORE_NS, to_ns) if shard is not None else ""
        brokers = {name for name in self.struck(from_ns, to_ns) if name.startswith(_BROKER)}
        return not leader or leader in brokers or len(brokers) > 1

    def way(self, worker: str, from_ns: int, to_ns: int) -> bool:
        """The worker itself was struck or stalled, or a router that it goes through. Without a name: any router."""
        struck = self.struck(from_ns, to_ns)
        if worker.partition("/")[0] in struck or self.stalled(worker, from_ns, to_ns):
            return True
        return not _goes_straight(worker) and any(name.startswith(_ROUTER) for name in struck)

    def stalled(self, worker: str, from_ns: int, to_ns: int) -> bool:
        """Whether one of its own handlers took the whole process for itself."""
        return any(
            run.started_ns - S <= to_ns and from_ns <= (run.ended_ns or run.started_ns + _STALL_NS_MAX) + S
            for run in self._stalls[worker]
        )


def felt_until_ns(window: Window) -> int:
    """When a fault is over for whoever it struck."""
    lasted_ns = window.to_ns - window.from_ns
    return window.to_ns + _AFTER_NS + (lasted_ns if window.what in _LINGERING else 0)


def _goes_straight(worker: str) -> bool:
    """Every second worker goes to the brokers; so the system makes them."""
    number = worker.partition("/")[0].removeprefix("w")
    return number.isdigit() and int(number) % 2 == 0
