"""What goes in and comes out of the calls of operators about clusters, nodes and the settings of queues."""

from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from enum import StrEnum
from typing import Any

from holdfast.client.errors import HoldfastError
from holdfast.client.models import RetryShape


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
    home: int  # the shard of all its tasks with a unique_key or with a request_id of the producer's own
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
    handover: str = ""  # ASKED: it is about to be stopped, and leads nothing if it can; GRANTED: it may be


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
class HandoverProgress:
    """Whether a node that is about to be stopped may stop now, and what stands against it."""

    may_stop: bool  # every shard keeps its majority without it
    leads: int  # shards that it leads still
    held_back: Mapping[int, str]  # shards that would lose their majority, and why, in a few words
    single: tuple[int, ...]  # shards of which it has the only replica: nothing can keep them, so nothing waits


@dataclass(frozen=True, slots=True)
class MoveWish:
    """One replica that is to move."""

    shard: int
    source: str  # the node that gives it up
    destination: str  # the node that gets it


@dataclass(frozen=True, slots=True, kw_only=True)
class Rebalancing:
    """Whether replicas are moved without anybody asking for it (`holdfast rebalance --watch`)."""

    active: str = ""  # which process does it; empty if none runs
    is_paused: bool = False
    why: str = ""  # it was paused
    gone_ms: Mapping[str, int] = field(default_factory=dict)  # nodes that have replicas and are away, and how long
    given_up: tuple[str, ...] = ()  # nodes that were away for too long: what they had is made anew elsewhere


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterInfo:
    """Nodes, shards and the plan under way, as the map has them."""

    cluster_id: str
    name: str = ""
    shards_count: int = 0
    replication: int = 0
    revision: int = 0  # of the map
    etcd_answers: bool = True  # otherwise this is the last that was known
    age_ms: int | None = 0  # how long ago etcd last confirmed it; None if it has not since the server was started
    nodes: tuple[ClusterNode, ...] = ()  # by name
    shards: tuple[ClusterShard, ...] = ()  # by number
    plan: Plan | None = None  # the one under way
    rebalancing: Rebalancing = Rebalancing()


@dataclass(frozen=True, slots=True)
class TenantPolicy:
    """What one tenant of a queue has in its own way. `None`, in a change: as it is."""

    tenant: str
    _: KW_ONLY
    weight: int | None = None  # 1-100: how many tasks it gives in its turn; 1 by default
    concurrency_max: int | None = None  # instead of the queue's tenant_concurrency_max
    rate_per_second: float | None = None  # instead of the queue's tenant_rate_per_second
    rate_burst: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class QueuePolicy:
    """What a queue does in its own way. `None` and an empty list: as the brokers' configuration says.

    Caps count what is claimed at the same time, and rates what is claimed in a second: of the whole queue, of each
    tenant, and of each limit_key. A rate has a burst of whole tasks: by default one second's worth and at least 1.

    >>> QueuePolicy(retry_shape=RetryShape.FIXED, concurrency_max=20, tenants=[TenantPolicy("acme", weight=3)]).tenants
    [TenantPolicy(tenant='acme', weight=3, concurrency_max=None, rate_per_second=None, rate_burst=None)]
    """

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
    retry_shape: RetryShape | None = None
    non_retryable: Sequence[str] = ()  # types of errors after which a task is dead at once
    oldest_share_percent: int | None = None  # of the claims, for the oldest task of any priority; 0 is strict priority
    paused: bool | None = None  # nothing is handed out
    timeout_ms: int | None = None  # of one attempt, for tasks that name none
    ttl_ms: int | None = None  # for tasks that name none
    concurrency_max: int | None = None
    tenant_concurrency_max: int | None = None
    key_concurrency_max: int | None = None
    rate_per_second: float | None = None
    rate_burst: int | None = None
    tenant_rate_per_second: float | None = None
    tenant_rate_burst: int | None = None
    key_rate_per_second: float | None = None
    key_rate_burst: int | None = None
    dead_alert_at: int | None = None  # as many dead letters on one shard raise an alert
    dead_alert_url: str | None = None  # http or https; gets a POST when the alert is raised
    tenants: Sequence[TenantPolicy] = ()  # those that differ from the others


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


@dataclass(frozen=True, slots=True)
class AccessRules:
    """Who may do what, as the map of a cluster has it: roles, grants, and tokens as salted hashes.

    >>> AccessRules({"roles": {}}, version=7).version
    7
    """

    rules: Mapping[str, Any]  # as in an access file; empty if there are none
    version: int = 0  # 0 if there are none
