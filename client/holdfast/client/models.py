"""What goes in and comes out of the client: frozen values, no behaviour.

Instants are milliseconds since the Unix epoch, durations are milliseconds, and names end with the unit. Payloads,
results, headers and tokens are left out of every `repr`, so that they do not end up in logs.
"""

from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from enum import StrEnum
from typing import Protocol

from holdfast.client.errors import HoldfastError


class TaskState(StrEnum):
    """Where a task is in its life."""

    READY = "READY"  # waiting for a worker
    CLAIMED = "CLAIMED"  # a worker holds it
    DELAYED = "DELAYED"  # waits for its time
    RETRY_PENDING = "RETRY_PENDING"  # failed, waits for its next attempt
    SUCCEEDED = "SUCCEEDED"
    DEAD = "DEAD"  # its budget is spent, or a worker gave it up
    CANCELLED = "CANCELLED"
    UNKNOWN = "UNKNOWN"  # a state that only a newer client knows

    @property
    def is_final(self) -> bool:
        """Whether the task has finished: succeeded, dead or cancelled."""
        return self in _FINAL_STATES


_FINAL_STATES = frozenset({TaskState.SUCCEEDED, TaskState.DEAD, TaskState.CANCELLED})


class Claim(Protocol):
    """What ack, fail, extend and release need: a `ClaimedTask`, or a `ClaimRef` made from stored parts."""

    @property
    def task_id(self) -> str: ...
    @property
    def token(self) -> int: ...


@dataclass(frozen=True, slots=True)
class NewTask:
    """What a producer hands over. It never changes once accepted.

    >>> NewTask("mail", "welcome", b'{"to": "ada@example.org"}', delay_ms=5_000)
    NewTask(queue='mail', type='welcome', priority=None, tenant='', request_id=None, \
request_id_ttl_ms=None, run_at_ms=None, delay_ms=5000, max_attempts=None, max_claims=None, result_ttl_ms=None)
    """

    queue: str  # 1-128 of [A-Za-z0-9._-]
    type: str  # names the handler
    payload: bytes = field(default=b"", repr=False)  # opaque to the server
    _: KW_ONLY
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    priority: int | None = None  # 0-9, higher first; the server's default is 5
    tenant: str = ""  # may be empty
    # One task per (queue, request_id): makes the enqueue safe to retry. None: the client makes one up for its own
    # retries, of the form ~0.x.0, which no other may have. Empty: none, and an enqueue whose connection is lost is not
    # repeated.
    request_id: str | None = None
    request_id_ttl_ms: int | None = None  # how long a given request_id is remembered, and at least while the task lives
    run_at_ms: int | None = None  # not before this instant; at most one of run_at_ms and delay_ms
    delay_ms: int | None = None  # counted from acceptance
    max_attempts: int | None = None  # failures allowed before the task is dead
    max_claims: int | None = None  # claims allowed, however each ended
    result_ttl_ms: int | None = None  # how long a result is kept


@dataclass(frozen=True, slots=True)
class Accepted:
    """The task is durable."""

    task_id: str  # a UUID; empty for a follow-up that is still on its way to another shard: see `Acked`
    duplicate: bool = False  # the request_id was seen before: task_id is the task it made


@dataclass(frozen=True, slots=True)
class ClaimRef:
    """Names a claim by its parts."""

    task_id: str  # a UUID
    token: int = field(repr=False)  # the fencing token


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimedTask:
    """A task this worker holds until its lease ends."""

    task_id: str  # a UUID
    token: int = field(repr=False)  # the fencing token: proves that the claim is the current one
    queue: str
    type: str  # names the handler
    payload: bytes = field(default=b"", repr=False)
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    priority: int | None = None  # as the producer gave it
    tenant: str = ""
    request_id: str = ""
    attempt: int = 1  # 1 for the first
    claims: int = 1  # how often the task has been handed out, this time included
    max_attempts: int | None = None  # as the producer gave it
    enqueued_at_ms: int = 0
    lease_ms: int = 0  # how long the claim holds, counted from when this client sent the request
    lease_ends_s: float = 0.0  # that moment on this machine's time.monotonic()


@dataclass(frozen=True, slots=True)
class TaskError:
    """Why an attempt failed."""

    type: str = ""  # e.g. the class of the exception
    message: str = ""
    traceback: str = field(default="", repr=False)


@dataclass(frozen=True, slots=True)
class Ack:
    """One item of `ack_many` that has a result or follow-up tasks. A bare claim will do where there is neither."""

    claim: Claim
    result: bytes | None = field(default=None, repr=False)  # kept for the task's result_ttl_ms
    follow_ups: Sequence[NewTask] = ()  # accepted together with the ack or not at all


@dataclass(frozen=True, slots=True)
class Acked:
    """The task has succeeded and is never handed out again.

    In a cluster with several shards a follow-up whose queue lives on another shard than the task goes there by itself,
    exactly once. It is durable, but gets its id only when it arrives: until then its `task_id` is empty."""

    follow_ups: tuple[Accepted, ...] = ()  # in the order of Ack.follow_ups


@dataclass(frozen=True, slots=True)
class Failure:
    """One item of `fail_many`."""

    claim: Claim
    error: TaskError = TaskError()
    retry_delay_ms: int | None = None  # overrides the server's back-off
    dead: bool = False  # no attempt can succeed: make it a dead letter now


@dataclass(frozen=True, slots=True)
class Failed:
    """The failure is recorded."""

    state: TaskState  # RETRY_PENDING, DEAD or CANCELLED
    retry_at_ms: int | None = None  # for RETRY_PENDING


@dataclass(frozen=True, slots=True)
class Extension:
    """One item of `extend_many`."""

    claim: Claim
    lease_ms: int  # the new lease, counted from now


@dataclass(frozen=True, slots=True)
class Extended:
    """The lease is prolonged."""

    lease_ms: int  # counted from when this client sent the request
    lease_ends_s: float = 0.0  # that moment on this machine's time.monotonic()
    cancel_requested: bool = False  # stop working on it; ack, fail and release are still accepted
    draining: bool = False  # the server is shutting down


@dataclass(frozen=True, slots=True)
class Released:
    """The claim is given back and no attempt was spent."""

    state: TaskState  # READY, or CANCELLED if a cancellation was waiting


@dataclass(frozen=True, slots=True)
class Cancelled:
    """The cancellation is recorded."""

    state: TaskState  # CANCELLED, or CLAIMED if the worker that holds it will be told


@dataclass(frozen=True, slots=True)
class DeadLetterDone:
    """The dead letter is ready again, or gone for good, as was asked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskInfo:
    """All that the server knows about a task."""

    task_id: str  # a UUID
    state: TaskState
    queue: str
    task: NewTask | None = None  # as the producer gave it; None once the task has finished
    priority: int = 0
    failures: int = 0  # attempts that failed
    max_attempts: int = 0  # failures allowed
    claims: int = 0  # how often it has been handed out
    max_claims: int = 0  # claims allowed
    enqueued_at_ms: int = 0
    changed_at_ms: int = 0  # when it entered this state
    due_at_ms: int | None = None  # when a delayed or retrying task becomes ready
    lease_expires_at_ms: int | None = None  # of a claimed task
    worker: str = ""  # the last one that claimed it
    cancel_requested: bool = False
    last_error: TaskError | None = None
    result: bytes | None = field(default=None, repr=False)
    purge_at_ms: int | None = None  # when a finished task is forgotten
    dead_reason: str = ""  # why a dead task died


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


@dataclass(frozen=True, slots=True)
class QueuePage:
    """Some queues, by name."""

    queues: tuple[QueueStats, ...]
    next_page_token: str = ""  # empty on the last page


@dataclass(frozen=True, slots=True)
class DeadLetterPage:
    """Some dead letters of a queue, oldest first."""

    tasks: tuple[TaskInfo, ...]  # without their payloads: get_dead_letter has them
    next_page_token: str = ""  # empty on the last page


class ReplicaRole(StrEnum):
    """What a replica of a shard is at the moment."""

    LEADER = "LEADER"
    FOLLOWER = "FOLLOWER"  # a voter that follows
    LEARNER = "LEARNER"  # follows, but does not count yet
    CANDIDATE = "CANDIDATE"  # asks for votes
    BLANK = "BLANK"  # has no log yet
    UNKNOWN = "UNKNOWN"  # a role that only a newer client knows


@dataclass(frozen=True, slots=True)
class Membership:
    """Who the members of a shard are. A replica is named by its node's name, a slash and the node's id."""

    version: int = 0  # grows by one with each change
    voters: tuple[str, ...] = ()
    learners: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaInfo:
    """One replica, as its own node sees it."""

    shard: int
    role: ReplicaRole
    term: int = 0  # the epoch it is in
    leader: str = ""  # the name of the node that leads in this term; empty if not known
    commit_index: int = 0  # the last entry known to be on a majority
    applied_index: int = 0  # the last entry in its state
    last_index: int = 0  # the last entry in its log
    lag: int = 0  # entries that it has not applied of those that are committed, as any replica that was asked knows
    log_bytes: int = 0  # what its entries take in the node's log
    snapshot_age_ms: int | None = None  # since its state was last made durable by itself; None if never
    membership: Membership = Membership()
    problem: str = ""  # why it refuses to serve

    @property
    def knows_leader(self) -> bool:
        """If not, its node is cut off from the others, or no majority of them runs."""
        return self.role is ReplicaRole.LEADER or bool(self.leader)


@dataclass(frozen=True, slots=True)
class NodeAddress:
    """A node of a cluster."""

    name: str
    address: str  # host:port


@dataclass(frozen=True, slots=True)
class NodeInfo:
    """What a node says of itself."""

    name: str
    node_id: str  # another one after its disk was lost
    version: str  # of Holdfast
    nodes: tuple[NodeAddress, ...]  # all of the cluster
    replicas: tuple[ReplicaInfo, ...]  # by shard


@dataclass(frozen=True, slots=True)
class NodeReport:
    """What came of asking one node: what it said, or why it said nothing."""

    name: str  # empty if nobody knows the name of what did not answer
    address: str  # where it was asked
    node: NodeInfo | None = None
    error: HoldfastError | None = None


@dataclass(frozen=True, slots=True)
class ReplicaHash:
    """The hash of one replica's state at a probe."""

    node: str  # its name
    address: str
    state_hash: str | None = None  # in hex; None if it is not to be had
    applied_index: int = 0  # how far a replica is that did not get to the probe in time
    error: HoldfastError | None = None  # what else kept it from answering


@dataclass(frozen=True, slots=True)
class ShardHash:
    """The hashes of all replicas of a shard at one index."""

    shard: int
    index: int
    replicas: tuple[ReplicaHash, ...]  # every member, voters and learners

    @property
    def complete(self) -> bool:
        """Whether every replica has told its hash."""
        return all(replica.state_hash is not None for replica in self.replicas)

    @property
    def different(self) -> bool:
        """Whether two replicas differ, of those that have told."""
        return len({replica.state_hash for replica in self.replicas if replica.state_hash is not None}) > 1


@dataclass(frozen=True, slots=True)
class Transferred:
    """The node leads the shard."""

    leader: str  # the node's name
    epoch: int  # in which it leads


# ------------------------------------------------------------------------------------------------- clusters


@dataclass(frozen=True, slots=True)
class QueueSet:
    """The shards that new tasks of a queue go to, from one change of its settings to the next."""

    generation: int  # grows with each change
    shards: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class QueueRoute:
    """Where the tasks of a queue are.

    >>> QueueRoute("mail", home=3, generation=2, sets=(QueueSet(1, (3, 4)), QueueSet(2, (5, 6))), draining=(4,)).shards
    (3, 4, 5, 6)
    """

    queue: str
    home: int  # the shard of all its tasks with a request_id of the producer's own
    generation: int = 0  # of the newest set; 0 if it never had another than its home
    sets: tuple[QueueSet, ...] = ()  # all but generation 0, which is the home; the oldest first
    draining: tuple[int, ...] = ()  # shards outside the newest set and the home that still have tasks

    @property
    def shards(self) -> tuple[int, ...]:
        """All shards that may have tasks of the queue."""
        newest = self.sets[-1].shards if self.sets else ()
        return tuple(sorted({self.home, *newest, *self.draining}))


@dataclass(frozen=True, slots=True)
class ShardLeader:
    """Who leads a shard, as far as is known."""

    shard: int
    node: str  # its name
    address: str  # host:port
    epoch: int  # in which it leads


@dataclass(frozen=True, slots=True, kw_only=True)
class Topology:
    """What a client needs to go straight to the leaders, as one server knows it."""

    cluster_id: str
    revision: int = 0  # of the map that the server has
    shards: int = 0  # how many there are
    leaders: tuple[ShardLeader, ...] = ()  # of the shards whose leader is known
    routes: tuple[QueueRoute, ...] = ()  # of the queues that were asked for, in that order
    addresses: tuple[str, ...] = ()  # host:port of every broker that is there


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterNode:
    """A node, as the map has it."""

    name: str
    node_id: str = ""  # another one after its disk was lost
    address: str = ""  # host:port of its gRPC
    peer_address: str = ""
    ops_address: str = ""
    zone: str = ""  # empty if it is in none
    capacity: int = 0  # how much it is to hold, compared with the others
    version: str = ""  # of Holdfast
    is_alive: bool = False  # it holds its lease
    is_draining: bool = False  # it should hold nothing
    replicas: int = 0  # of which it is a voter or a learner
    leaders: int = 0  # shards that it leads


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterShard:
    """A shard, as the map has it. A replica is named by its node's name, a slash and the node's id."""

    shard: int
    group: int = 0  # which founding of the shard
    replicas: tuple[str, ...] = ()  # names of the nodes that should have it
    version: int = 0  # of its membership, as its leader last told
    voters: tuple[str, ...] = ()
    learners: tuple[str, ...] = ()
    leaving: tuple[str, ...] = ()  # removed, and to be deleted on their nodes
    leader: str = ""  # the name of a node; empty if not known
    epoch: int = 0


class StepState(StrEnum):
    """How far a step of a plan is."""

    WAITING = "WAITING"  # for its turn
    COPYING = "COPYING"  # the new replica learns
    LEAVING = "LEAVING"  # the new one votes, the old one goes
    DONE = "DONE"
    OVERTAKEN = "OVERTAKEN"  # the map was changed meanwhile in a way that makes it needless or impossible
    UNKNOWN = "UNKNOWN"  # not begun, or a state that only a newer client knows

    @property
    def is_final(self) -> bool:
        """Whether nothing more will come of the step."""
        return self in (StepState.DONE, StepState.OVERTAKEN)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanStep:
    """One replica that moves, or one shard that gets another leader."""

    shard: int
    source: str = ""  # of a move: the node that gives its replica up
    destination: str = ""  # of a move: the node that gets one; otherwise: the node that is to lead
    is_transfer: bool = False  # only leadership moves
    state_bytes: int | None = None  # about what has to be copied; None if not known
    why: str = ""  # a few words
    state: StepState = StepState.UNKNOWN
    detail: str = ""  # a few words: what it waits for
    lag: int | None = None  # entries that the new replica lacks; None if not known


@dataclass(frozen=True, slots=True)
class Plan:
    """What should move and why."""

    id: str  # the same for the same steps from the same map
    revision: int = 0  # of the map that it was made from
    steps: tuple[PlanStep, ...] = ()  # none if there is nothing to do
    summary: str = ""  # one sentence


@dataclass(frozen=True, slots=True)
class PlanProgress:
    """How far a plan is."""

    plan: Plan
    is_done: bool  # all its steps are, and it is forgotten


@dataclass(frozen=True, slots=True)
class MoveWish:
    """One replica that is to move."""

    shard: int
    source: str  # the node that gives it up
    destination: str  # the node that gets it


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterInfo:
    """Nodes, shards and the plan under way, as the map has them."""

    cluster_id: str
    name: str = ""
    shards_count: int = 0
    replication: int = 0
    revision: int = 0  # of the map
    etcd_answers: bool = True  # otherwise this is the last that was known
    nodes: tuple[ClusterNode, ...] = ()  # by name
    shards: tuple[ClusterShard, ...] = ()  # by number
    plan: Plan | None = None  # the one under way


@dataclass(frozen=True, slots=True, kw_only=True)
class QueuePolicy:
    """What a queue does in its own way. `None`: as the brokers' configuration says."""

    max_attempts: int | None = None
    max_claims: int | None = None
    retry_base_ms: int | None = None
    retry_factor: float | None = None
    retry_cap_ms: int | None = None
    retry_jitter: float | None = None
    dedup_window_ms: int | None = None
    result_ttl_ms: int | None = None
    finished_retention_ms: int | None = None
    dead_retention_ms: int | None = None


@dataclass(frozen=True, slots=True)
class QueueSettings:
    """Where a queue is and what it does in its own way."""

    route: QueueRoute
    policy: QueuePolicy = QueuePolicy()
    version: int = 0  # of its record; 0 if it has none and is in everything as by default


@dataclass(frozen=True, slots=True)
class QueueSettingsPage:
    """Some queues that differ from the default, by name."""

    queues: tuple[QueueSettings, ...]
    next_page_token: str = ""  # empty on the last page
