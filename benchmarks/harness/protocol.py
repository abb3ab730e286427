"""What a benchmark and its load processes say to each other: JSON lines over the child's stdin and stdout.

    parent: the LoadSpec        child: {"event": "ready"}            connected and warmed up
    parent: go                  child: {"event": "progress", ...}    now and then
    parent: stop (consumers)    child: {"event": "result", ...}      the LoadResult, then it exits

End of input means that the parent is gone: the child exits. All times are CLOCK_MONOTONIC, which the processes of one
machine share.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

GO = "go"
STOP = "stop"
READY = "ready"
PROGRESS = "progress"
RESULT = "result"

PRODUCE = "produce"  # enqueues batches, a few calls in flight
CONSUME = "consume"  # reserves and acks batches
PACE = "pace"  # enqueues single tasks by a schedule, whether or not earlier ones have returned
PRODUCE_CALLS = "produce_calls"  # enqueues calls of an app in batches
PRODUCE_SINGLY = "produce_singly"  # enqueues one call of an app after the other, blocking
WORK = "work"  # runs a worker with a task that does nothing
PICK_UP = "pick_up"  # waits for single tasks and measures how old they are
PROBE = "probe"  # enqueues single tasks by a schedule until told to stop, and tells when each was sent
WORK_STEADILY = "work_steadily"  # reserves and acks batches by a schedule until told to stop
FLOOD = "flood"  # enqueues single tasks from many callers until told to stop, whatever the server refuses
SATURATE = "saturate"  # enqueues, reserves and acks batches in each of many queues until told to stop
HOLD = "hold"  # reserves and does nothing more: all leases end at one moment


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadSpec:
    """What one load process does."""

    role: str
    address: str
    queue: str
    tasks: int = 0  # how many in all; 0: until told to stop
    batch_tasks: int = 100  # per call
    payload_bytes: int = 1024
    calls_in_flight: int = 1  # of a worker: its slots
    rate_per_s: float = 0.0  # of a schedule
    worker: str = ""  # of a consumer
    direct: bool = False  # straight to the leaders of a cluster with a map
    # Nothing is repeated unless told: a lost answer would blur what is measured.
    retry: bool = False
    # What the tasks of a producer have besides; 0: nothing of the kind.
    tenants: int = 0  # different ones, taken in turn
    priorities: int = 0  # different ones, mixed
    limit_keys: int = 0  # different ones, taken in turn: with as many tenants each has its own
    limit_keys_mixed: bool = False  # every tenant has tasks of every key
    run_at_ms: int = 0  # since the Unix epoch
    request_ids: bool = False  # each its own: such tasks are stored one by one
    lease_ends_s: float = 0.0  # of one who holds
    queues: Sequence[str] = ()  # of one who saturates


@dataclass(slots=True, kw_only=True)
class LoadResult:
    """What one load process did between `go` and its last answer."""

    done: int = 0  # tasks
    started_s: float = 0.0
    ended_s: float = 0.0
    cpu_s: float = 0.0  # of all its threads
    call_ms: list[float] = field(default_factory=list)  # one per call, or per task for single ones
    send_ms: list[float] = field(default_factory=list)  # the same from when it was really sent, for a schedule
    refused: int = 0  # calls, for a flood and for one who saturates
    unknown: int = 0  # calls of which nobody knows the outcome, for one who saturates
    sent_s: list[float] = field(default_factory=list)  # when it was, for a probe
