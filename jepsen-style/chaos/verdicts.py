"""What the judges work with: the state in the end, broken promises, and for how long a claim surely holds."""

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from chaos.history import EXTEND, FAIL, OK, SETTLING, Call, Claim, Story

SUCCEEDED, DEAD, CANCELLED, CLAIMED = "SUCCEEDED", "DEAD", "CANCELLED", "CLAIMED"
TTL_PASSED, CLAIMS_SPENT = "TTL_PASSED", "CLAIMS_SPENT"  # why a task is dead
MS = 1_000_000
# A duration of the shard is at least this much of ours: its clock is hurried by no more than clocks drift, and a
# fail-over costs a millisecond or so.
SHARE = 0.97
# And this much at the most: its clock runs up to 10 % slower while it is ahead of the wall clocks.
SLOWEST = 0.85


@dataclass(frozen=True, slots=True)
class Violation:
    """One broken promise."""

    kind: str
    sentence: str
    tasks: tuple[str, ...] = ()  # whose lines in the history to look at

    def __str__(self) -> str:
        return f"{self.kind}: {self.sentence}"


@dataclass(frozen=True, slots=True)
class Judged:
    """How many facts a judge could judge: one that had none has proven nothing."""

    kind: str
    facts: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Ticks:
    """Which ticks a schedule must have made a task of, in the shard's time."""

    first_ms: int
    every_ms: int
    last_ms: int  # the newest one that the servers have dealt with
    fired_total: int  # tasks, as the servers count

    def values(self, schedule: str) -> dict[str, int]:
        """Each tick by the value that names its task in the history."""
        return {tick_value(schedule, index): index for index in range(self.first_ms, self.last_ms + 1, self.every_ms)}


def tick_value(schedule: str, tick_ms: int | str) -> str:
    """Tasks of schedules have no value of their own: they are named by their tick."""
    return f"{schedule}@{tick_ms}"


@dataclass(frozen=True, slots=True)
class Rate:
    """How many claims of a queue may begin in a second, and at once."""

    per_second: float
    burst: int


@dataclass(frozen=True)
class Final:
    """What is there once all faults are over and the queue was drained."""

    drained: bool = True
    live: bool = True  # a write was acknowledged in time after the last healing
    # By task id; one that the servers do not know is absent. None: they did not answer, and then nothing follows.
    states: Mapping[str, str] | None = field(default_factory=dict)
    reasons: Mapping[str, str] = field(default_factory=dict)  # by task: why it is dead
    errors: Mapping[str, str] = field(default_factory=dict)  # by dead task: the type of its last error
    results: Mapping[str, str] = field(default_factory=dict)  # by task that has succeeded; empty if there is none
    enqueued_total: int | None = None  # as the servers count; None if they were not asked
    # By shard and node: applied index, hash of the state.
    hashes: Mapping[str, Mapping[str, tuple[int, str]]] = field(default_factory=dict)
    replicas: int = 0  # how many of each shard must have told their hash
    leaders: Sequence[tuple[int, int, str]] = ()  # every (shard, term, node) in which a node said that it leads
    unnoticed: Sequence[str] = ()  # damage that a broker did not notice, a sentence each
    states_compared: int = 0  # of how many replicas all rows were compared with each other
    unsound: Sequence[str] = ()  # what did not fit together there, a sentence each
    broken: Sequence[str] = ()  # what a broker did not do, a sentence each
    caps: Mapping[str, int] = field(default_factory=dict)  # by queue: how many claims it allows at the same time
    key_caps: Mapping[str, int] = field(default_factory=dict)  # and how many of each limit key
    tenant_caps: Mapping[str, int] = field(default_factory=dict)  # and of each tenant
    rates: Mapping[str, Rate] = field(default_factory=dict)  # by queue
    ticks: Mapping[str, Ticks] = field(default_factory=dict)  # by schedule
    ranked: Sequence[str] = ()  # queues of one caller each, whose priorities are strict
    spread: Sequence[str] = ()  # queues that must have had tasks on several shards
    operations: Mapping[str, int] = field(default_factory=dict)  # by name, of those asked for: how often each was done


Finding = Violation | Judged
Checker = Callable[[Story, Final], Iterator[Finding]]


@dataclass
class Verdict:
    """What all judges say."""

    violations: list[Violation] = field(default_factory=list)
    judged: dict[str, int] = field(default_factory=dict)  # by kind: how many facts

    def add(self, finding: Finding) -> None:
        if isinstance(finding, Violation):
            self.violations.append(finding)
        else:
            self.judged[finding.kind] = self.judged.get(finding.kind, 0) + finding.facts

    @property
    def inert(self) -> list[str]:
        """The kinds of which there was nothing to judge."""
        return sorted(kind for kind, facts in self.judged.items() if not facts)


def claims_by_task(story: Story) -> dict[str, list[Claim]]:
    found: dict[str, list[Claim]] = defaultdict(list)
    for claim in story.claims:
        found[claim.task].append(claim)
    return found


def holds(story: Story) -> Callable[[Claim], float]:
    """Until when the holder of a claim may count on it, in nanoseconds."""
    extended: dict[tuple[str, int], list[Call]] = defaultdict(list)
    given_back_ns: dict[tuple[str, int], int] = {}  # the earliest moment at which the claim may have been ended
    for call in story.with_token():
        key = (call.task, call.token)
        if call.f == EXTEND and call.outcome == OK:
            extended[key].append(call)
        elif call.f in SETTLING and call.outcome != FAIL:
            given_back_ns[key] = min(call.invoked_ns, given_back_ns.get(key, call.invoked_ns))

    def until_ns(claim: Claim) -> float:
        key = (claim.task, claim.token)
        leases: list[Claim | Call] = [claim, *extended[key]]
        ends_ns = max(map(_surely_until_ns, leases))
        return min(ends_ns, given_back_ns.get(key, ends_ns))

    return until_ns


def _surely_until_ns(hold: Claim | Call) -> float:
    if hold.ends_ns:  # as a worker of the library counts; its call may have waited for longer than its lease
        return hold.ends_ns - hold.lease_ms * MS * (1 - SHARE)
    return _lease_start(hold) + hold.lease_ms * MS * SHARE


def _lease_start(hold: Claim | Call) -> int:
    return hold.sent_ns if isinstance(hold, Claim) else hold.invoked_ns
