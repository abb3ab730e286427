"""The cluster around a node, as far as the node's own parts need to know it: who else is there, and where."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Protocol

from holdfast.broker.config import BrokerConfig
from holdfast.broker.peers.identities import name_of
from holdfast.limits.equal_parts import WHOLE, Part
from holdfast.machine.new_tasks import NewTask


@dataclass(frozen=True, slots=True)
class NodeAddress:
    """A node of the cluster."""

    name: str
    address: str  # host:port of its gRPC


class ClusterView(Protocol):
    """A list in the configuration, or a map in etcd."""

    @property
    def is_alone(self) -> bool:
        """Whether there are no other nodes, and never will be."""
        ...

    @property
    def has_map(self) -> bool:
        """Whether shards and queues are in a map, which clients and routers know too."""
        ...

    @property
    def cluster_id(self) -> str:
        """Empty without a map, and before the cluster is initialised."""
        ...

    @property
    def shard_count(self) -> int:
        """0 if that is not known yet."""
        ...

    @property
    def nodes(self) -> Sequence[NodeAddress]:
        """All of the cluster, this one included."""
        ...

    @property
    def shards_here(self) -> Collection[int]:
        """Shards that this node should have a replica of."""
        ...

    def address_of(self, name: str) -> str | None:
        """Where clients find a node."""
        ...

    def takes_leadership(self, name: str, *, at_need: bool = False) -> bool:
        """Whether a node should lead if it is asked to: not if it is about to be stopped; at need, not if it may be."""
        ...

    def admits(self, sender: str, number: int, group: int) -> bool:
        """Whether an empty replica may listen to a node that speaks of this shard."""
        ...

    def owner_of(self, here: int, new: NewTask) -> int:
        """The shard of a task that was handed in on the shard `here`."""
        ...

    def home_of(self, queue: bytes) -> int | None:
        """The shard that remembers the request ids of a queue; None if nobody but the caller says which one it is."""
        ...

    def may_have(self, shard: int, queue: bytes) -> bool:
        """Whether new tasks of a queue may be on a shard, as far as the map is known."""
        ...

    def home_if_spread(self, queue: bytes) -> int | None:
        """The home shard of a queue that is on several shards; None if it is on one."""
        ...

    def part_of(self, here: int, queue: bytes) -> Part:
        """Which part of the shards of a queue the shard `here` is."""
        ...

    def has_policy(self, queue: bytes) -> bool:
        """Whether a policy of the queue must be, or will soon be, in the log of its shards."""
        ...

    def settings_version(self, queue: bytes) -> int:
        """Of what is set for the queue, as far as is known; 0 if nothing is."""
        ...

    def age_s(self) -> float | None:
        """How long ago all that is known was said to be the newest; None if it was not since the start."""
        ...

    def all_know_level(self, members: Collection[str], level: int) -> bool:
        """Whether the nodes of all these replicas know the log entries of this level of the machine."""
        ...

    def objection(self, number: int, group: int, voters: Collection[str], others: Sequence[str]) -> str:
        """Why a replica of this group must not be led or served from here; empty if it may. `others` are identities
        that spoke of another founding of the same shard."""
        ...


class StaticClusterView:
    """The list of nodes in the configuration; without one, this node is alone."""

    def __init__(self, config: BrokerConfig) -> None:
        self._config = config
        self._addresses = {node.name: node.address for node in config.nodes}
        self.own_address = ""  # known once the server listens
        self.shard_count = config.shards
        self.cluster_id = ""
        self.has_map = False

    @property
    def is_alone(self) -> bool:
        return not self._config.nodes

    @property
    def nodes(self) -> Sequence[NodeAddress]:
        if self.is_alone:
            return [NodeAddress(self._config.node_name, self.own_address)]
        return [NodeAddress(name, address) for name, address in self._addresses.items()]

    @property
    def shards_here(self) -> Collection[int]:
        return range(self.shard_count)

    def address_of(self, name: str) -> str | None:
        return self._addresses.get(name)

    def takes_leadership(self, name: str, *, at_need: bool = False) -> bool:
        return True

    def admits(self, sender: str, number: int, group: int) -> bool:
        return number < self.shard_count and name_of(sender) in self._addresses

    def owner_of(self, here: int, new: NewTask) -> int:
        """Without a map nobody but the caller says which shard is meant."""
        return here

    def home_of(self, queue: bytes) -> int | None:
        """As above."""
        return None

    def may_have(self, shard: int, queue: bytes) -> bool:
        """As above."""
        return True

    def home_if_spread(self, queue: bytes) -> int | None:
        """Without a map no queue is spread."""
        return None

    def part_of(self, here: int, queue: bytes) -> Part:
        """As above."""
        return WHOLE

    def has_policy(self, queue: bytes) -> bool:
        """Without a map the log is the only place where a policy is."""
        return False

    def settings_version(self, queue: bytes) -> int:
        """As above."""
        return 0

    def age_s(self) -> float | None:
        """As above."""
        return 0.0

    def all_know_level(self, members: Collection[str], level: int) -> bool:
        """Nodes of one list are of one version."""
        return True

    def objection(self, number: int, group: int, voters: Collection[str], others: Sequence[str]) -> str:
        """Of two foundings the one that most nodes of the list belong to goes on. If neither has most of them, nobody
        can tell which one is meant, and clients would find one or the other: both refuse."""
        if not others or 2 * len({name_of(voter) for voter in voters} & self._addresses.keys()) > len(self._addresses):
            return ""
        return f"{name_of(min(others))} has a shard {number} that was founded apart from the one here"
