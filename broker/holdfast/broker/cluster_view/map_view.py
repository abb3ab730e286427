"""The cluster around a node as the partition map tells it, and the copy of the map that the node keeps on its disk.

The copy lets a node start, find the others and serve while etcd is away. It also tells which cluster the data is of.
"""

import contextlib
import os
from collections.abc import Collection, Sequence
from pathlib import Path

from holdfast.broker.cluster_view.view import NodeAddress
from holdfast.broker.peers.identities import name_of
from holdfast.cluster.map.fields import RecordError
from holdfast.cluster.map.follower import Freshness
from holdfast.cluster.map.partition_map import PartitionMap
from holdfast.cluster.map.policy import NO_POLICY
from holdfast.cluster.map.records import Handover
from holdfast.cluster.map.store_nodes import WrongClusterError
from holdfast.limits.equal_parts import WHOLE, Part
from holdfast.machine.new_tasks import NewTask
from holdfast.routing.homes import home_shard
from holdfast.routing.sets import ever, owner_of_task, visible
from holdfast.serving.logs import get_logger
from holdfast.serving.refusals import INVALID_FIELD, RefusedError

NEWS_QUEUES = 1000  # told at once

_FILE = "MAP"

_log = get_logger(__name__)


class MapClusterView:
    """See `ClusterView`. `map` is replaced whenever there is a newer one."""

    is_alone = False
    has_map = True

    def __init__(self, me: str, known: PartitionMap) -> None:
        self._me = me
        self._name = name_of(me)
        self.map = known
        self.freshness = Freshness()

    @property
    def cluster_id(self) -> str:
        """Empty until the cluster is initialised."""
        return self.map.cluster.cluster_id if self.map.cluster is not None else ""

    @property
    def shard_count(self) -> int:
        return self.map.cluster.shards if self.map.cluster is not None else 0

    @property
    def nodes(self) -> Sequence[NodeAddress]:
        return [NodeAddress(name, record.address) for name, record in sorted(self.map.last_nodes.items())]

    @property
    def shards_here(self) -> Collection[int]:
        return [number for number, record in self.map.shards.items() if self._name in record.replicas]

    def address_of(self, name: str) -> str | None:
        record = self.map.last_nodes.get(name)
        return None if record is None else record.address

    def takes_leadership(self, name: str, *, at_need: bool = False) -> bool:
        record = self.map.nodes.get(name)
        handover = Handover.NONE if record is None else record.handover
        return handover is Handover.NONE or (at_need and handover is Handover.ASKED)

    def admits(self, sender: str, number: int, group: int) -> bool:
        """Only of the present incarnation of a shard, and only if this node should have it: what is left of a replica
        that moved away must not grow again because somebody has not heard of it."""
        record = self.map.shards.get(number)
        if record is None or record.group != group or self._me in record.leaving:
            return False
        is_wanted = self._name in record.replicas or self._me in record.members.voters + record.members.learners
        return is_wanted and name_of(sender) in self.map.last_nodes

    def may_speak_for(self, node: str, shard: int, incarnation: int) -> bool:
        """What operators desire counts as well: a replica may lead before the map has heard that it was added."""
        record = self.map.shards.get(shard)
        if record is None or incarnation > record.incarnation:
            return False
        members = (*record.voters, *record.members.learners, *record.leaving)
        return node in record.replicas or any(name_of(member) == node for member in members)

    def owner_of(self, here: int, new: NewTask) -> int:
        if self.map.cluster is None:
            return here
        keys = new.request_id.decode(), new.unique_key.decode(), new.limit_key.decode()
        return owner_of_task(self.map.route(new.queue.decode()), *keys, here)

    def home_of(self, queue: bytes) -> int | None:
        return home_shard(queue.decode(), self.shard_count) if self.map.cluster is not None else None

    def may_have(self, shard: int, queue: bytes) -> bool:
        return self.map.cluster is None or shard in ever(self.map.route(queue.decode()))

    def home_if_spread(self, queue: bytes) -> int | None:
        name = queue.decode()
        if name not in self.map.queues:
            return None
        route = self.map.route(name)
        return route.home if len(visible(route)) > 1 else None

    def part_of(self, here: int, queue: bytes) -> Part:
        name = queue.decode()
        if name not in self.map.queues:
            return WHOLE
        shards = sorted(visible(self.map.route(name)))
        if len(shards) == 1:
            return WHOLE
        # One that is not known to have tasks of it, and has some, is one more.
        return Part(shards.index(here), len(shards)) if here in shards else Part(len(shards), len(shards) + 1)

    def has_policy(self, queue: bytes) -> bool:
        record = self.map.queues.get(queue.decode())
        return record is not None and record.policy != NO_POLICY

    def settings_version(self, queue: bytes) -> int:
        return self.map.queue_version(queue.decode())

    def settings_news(self, cluster_id: str, after_version: int) -> list[tuple[str, int]]:
        """Queues of newer settings, and their versions. Of queues that were changed together all are told, or none."""
        cluster_map = self.map
        if not self.cluster_id or cluster_id != self.cluster_id:
            raise RefusedError(INVALID_FIELD, "Expected a call from a node of the same cluster.", "cluster_id")
        newer = sorted(
            (version, name)
            for name in cluster_map.queues
            if (version := cluster_map.queue_version(name)) > after_version
        )
        last = newer[:NEWS_QUEUES][-1][0] if newer else 0
        return [(name, version) for version, name in newer if version <= last]

    def age_s(self) -> float | None:
        return self.freshness.age_s

    def all_know_level(self, members: Collection[str], level: int) -> bool:
        known = (self.map.last_nodes.get(name_of(member)) for member in members)
        return all(record is not None and record.machine_level >= level for record in known)

    def objection(self, number: int, group: int, voters: Collection[str], others: Sequence[str]) -> str:
        record = self.map.shards.get(number)
        if record is None or record.group == group:
            return ""
        return f"shard {number} was created anew, and this replica is of its former incarnation"


class MapCopy:
    """The newest map that was believed, on disk."""

    def __init__(self, data_dir: Path, cluster_name: str) -> None:
        self._path = data_dir / _FILE
        self._cluster_name = cluster_name

    def load(self) -> PartitionMap:
        """Blocks. A copy that cannot be read is none: etcd has the original, and replicas name their group."""
        with contextlib.suppress(FileNotFoundError):
            try:
                known = PartitionMap.from_json(self._path.read_bytes())
            except RecordError as error:
                _log.warning("map_copy_unreadable", error=str(error))
            else:
                if known.cluster_name != self._cluster_name:
                    raise WrongClusterError(
                        f"Expected a node of the cluster named {self._cluster_name}, but the data directory belongs to "
                        f"one named {known.cluster_name}. Set cluster_name, or choose an empty data directory."
                    )
                return known
        return PartitionMap(cluster_name=self._cluster_name)

    def save(self, newest_map: PartitionMap) -> None:
        """Blocks. After a crash the file is the old one or the new one."""
        data = newest_map.to_json()
        new = self._path.with_name(f"{_FILE}.new")
        with open(new, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(new, self._path)
