"""What goes in and comes out of the calls about queues, their workers and their dead letters."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import accumulate

from holdfast.client.errors import InvalidArgument, Rejected
from holdfast.client.models import TaskInfo, TaskState

# The upper bounds of a histogram's buckets: 1, 2, 5, 10, ... 1e8. One bucket more has what was longer.
HISTOGRAM_BOUNDS_MS: tuple[int, ...] = (*(step * 10**power for power in range(8) for step in (1, 2, 5)), 10**8)


@dataclass(frozen=True, slots=True)
class Histogram:
    """How long something took, as counts of durations up to 1, 2, 5, 10, 20, 50 ms and so on.

    >>> waits = Histogram((0, 0, 6, 3, 1), total_ms=50)  # six of 2-5 ms, three of 5-10 ms, one of 10-20 ms
    >>> waits.count, waits.mean_ms, waits.quantile_ms(0.5), waits.quantile_ms(1)
    (10, 5.0, 4.5, 20.0)
    """

    counts: Sequence[int] = ()  # by bucket; those that are left out at the end are 0
    total_ms: int = 0  # the sum of all durations

    @property
    def count(self) -> int:
        """How many durations it knows."""
        return sum(self.counts)

    @property
    def mean_ms(self) -> float | None:
        """None if it knows of none."""
        return self.total_ms / self.count if self.count else None

    def quantile_ms(self, share: float) -> float | None:
        """About how long the fastest of this share (0-1) took at most; None if it knows of none.

        It lies in the right bucket, and within that as if the durations were spread evenly. Of what was longer than the
        last bound, only that bound is known.
        """
        if not 0 <= share <= 1:
            raise InvalidArgument(
                "Expected share to be from 0 to 1, but it is not.", reason="OUT_OF_RANGE", field="share"
            )
        wanted = share * self.count
        for bucket, below in enumerate(accumulate(self.counts)):
            count = self.counts[bucket]
            if count and below >= wanted:
                lower_ms = HISTOGRAM_BOUNDS_MS[bucket - 1] if bucket else 0
                if bucket >= len(HISTOGRAM_BOUNDS_MS):
                    return float(lower_ms)
                upper_ms = HISTOGRAM_BOUNDS_MS[bucket]
                return lower_ms + (upper_ms - lower_ms) * (wanted - (below - count)) / count
        return None


@dataclass(frozen=True, slots=True)
class TypeLatency:
    """How long tasks of one type took."""

    type: str  # "(other)" for all beyond those that are told apart
    ready_to_claim: Histogram = Histogram()  # from when it could start to when a worker got it
    claim_to_ack: Histogram = Histogram()  # from then to its success


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueStats:
    """How many tasks of a queue are in which state, and what has happened in it so far."""

    queue: str
    ready: int = 0
    claimed: int = 0
    delayed: int = 0
    retrying: int = 0
    dead: int = 0
    enqueued_total: int = 0
    claimed_total: int = 0
    succeeded_total: int = 0
    failed_total: int = 0
    expired_total: int = 0  # leases that ran out
    cancelled_total: int = 0
    dead_total: int = 0
    oldest_ready_age_ms: int = 0  # 0 if nothing is ready
    waiting_reserves: int = 0  # reserve calls waiting for a task of this queue
    paused: bool = False  # nothing is handed out
    enqueued_per_second: float = (
        0.0  # over the last minute, as far as the present leaders were there; the next three too
    )
    claimed_per_second: float = 0.0
    succeeded_per_second: float = 0.0
    failed_per_second: float = 0.0
    latencies: tuple[TypeLatency, ...] = ()  # by type; only in queue_stats, as far as the present leaders were there
    dead_alert: bool = False  # as many are dead as the queue's dead_alert_at
    oldest_claim_age_ms: int = 0  # for how long the oldest claim has been held, as seen some seconds ago; 0 if none is


@dataclass(frozen=True, slots=True)
class QueuePage:
    """Some queues, by name."""

    queues: tuple[QueueStats, ...]
    next_page_token: str = ""  # empty on the last page
    missing_shards: tuple[int, ...] = ()  # only with `partial`: what is there is not in these numbers


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskFilter:
    """Which tasks. What is not given does not matter; what is given must all be true.

    >>> TaskFilter(states=[TaskState.CLAIMED], worker="host-1")
    TaskFilter(states=[<TaskState.CLAIMED: 'CLAIMED'>], type='', tenant='', worker='host-1', min_age_ms=0)
    """

    states: Sequence[TaskState] = ()  # one of these; none: any
    type: str = ""
    tenant: str = ""
    worker: str = ""  # the last one that claimed it
    min_age_ms: int = 0  # accepted at least so long ago


@dataclass(frozen=True, slots=True)
class TaskPage:
    """Some tasks, without what their producers handed over, results and errors: `get_task` has these."""

    tasks: tuple[TaskInfo, ...]  # may be none, and there are more
    next_page_token: str = ""  # empty on the last page
    missing_shards: tuple[int, ...] = ()  # only with `partial`: passed over on this page


class WorkerState(StrEnum):
    """What a worker does, as its heartbeats say."""

    RUNNING = "RUNNING"  # claims tasks
    QUIET = "QUIET"  # claims none, and goes on with those that it has
    DRAINED = "DRAINED"  # claims none, and has none left
    STOPPING = "STOPPING"  # as QUIET, and ends then
    GONE = "GONE"  # it has ended, or nothing was heard of it for a minute
    UNKNOWN = "UNKNOWN"  # it has no heartbeats, or its state is one that only a newer client knows


@dataclass(frozen=True, slots=True)
class HeartbeatAnswer:
    """What a worker hears when it has said that it is there."""

    desired: WorkerState | None  # what operators want of it; None: that it goes on
    next_s: float  # when the next heartbeat is due


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerInfo:
    """One who claims tasks."""

    worker: str  # the name that it gives itself
    claims: int = 0  # that it holds
    last_seen_ms: int | None = None  # None if the present leader has not heard of it yet
    queues: tuple[str, ...] = ()  # from which it last asked for tasks
    is_waiting: bool = False  # a reserve of it waits at this moment
    state: WorkerState = WorkerState.UNKNOWN  # this and the following are of its heartbeats
    slots: int = 0  # how many tasks it runs at once
    version: str = ""
    desired: WorkerState | None = None  # what it was asked for and has not heard yet


@dataclass(frozen=True, slots=True)
class WorkerPage:
    """Some workers, by name."""

    workers: tuple[WorkerInfo, ...]
    next_page_token: str = ""  # empty on the last page
    missing_shards: tuple[
        int, ...
    ] = ()  # only with `partial`: workers and claims that are known there alone are not here


# --------------------------------------------------------------------------------------------- dead letters


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetterFilter:
    """Which dead letters. What is not given does not matter; what is given must all be true.

    >>> DeadLetterFilter(type="welcome", error="timeout")
    DeadLetterFilter(type='welcome', tenant='', error='timeout', died_from_ms=None, died_before_ms=None, reason='')
    """

    type: str = ""
    tenant: str = ""
    error: str = ""  # part of the type or the message of the last error, whatever its case
    died_from_ms: int | None = None
    died_before_ms: int | None = None
    reason: str = ""  # as in TaskInfo.dead_reason


@dataclass(frozen=True, slots=True)
class DeadLetterPage:
    """Some dead letters of a queue, oldest first."""

    tasks: tuple[TaskInfo, ...]  # without their payloads: get_dead_letter has them; may be none if there was a filter
    next_page_token: str = ""  # empty on the last page


@dataclass(frozen=True, slots=True)
class DeadLetterDone:
    """The dead letter is ready again, or gone for good, as was asked."""


@dataclass(frozen=True, slots=True)
class DeadLetterProgress:
    """How far a call is that retries or discards all dead letters of a kind."""

    found: int = 0  # letters that fit
    done: int = 0  # of these; none in a dry run
    refused: int = 0  # of these, e.g. because somebody else was faster
    last_refusal: Rejected | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Discard:
    """What is left of a dead letter that was discarded."""

    task_id: str
    queue: str = ""
    type: str = ""
    tenant: str = ""
    dead_reason: str = ""
    died_at_ms: int = 0
    discarded_at_ms: int = 0
    by: str = ""  # who discarded it
    note: str = ""  # why


@dataclass(frozen=True, slots=True)
class DiscardPage:
    """Some records of discarded dead letters, the oldest first."""

    discards: tuple[Discard, ...]
    next_page_token: str = ""  # empty on the last page
