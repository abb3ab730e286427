"""The partition map: all records of a cluster as they were at one revision of etcd.

A map never changes; `apply` makes the next one, and shares with it what stayed the same. So whoever holds one can take
its time, and two of them can be compared.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from holdfast.access.documents import to_json
from holdfast.access.policies import AccessPolicy
from holdfast.cluster.etcd.api import Changes, Row, RowChange, Snapshot
from holdfast.cluster.map import keys as kinds
from holdfast.cluster.map.fields import Fields, RecordError, encode
from holdfast.cluster.map.keys import MapKeys, keys_of
from holdfast.cluster.map.records import (
    EMPTY,
    ClusterRecord,
    Handover,
    LeaderRecord,
    NodeRecord,
    PlanRecord,
    QueueRecord,
    RebalancerRecord,
    RebalancingRecord,
    RemovedRecord,
    ShardRecord,
    access_of,
    unreadable,
)
from holdfast.routing.homes import home_shard
from holdfast.routing.sets import QueueRoute
from holdfast.serving.refusals import RefusedError, no_cluster

COPY_FORMAT = 1

# Which field of the map holds the records of a kind of keys.
_SECTIONS = {
    kinds.NODES: "nodes",
    kinds.DRAINS: "drains",
    kinds.REMOVED: "removed",
    kinds.SHARDS: "all_shards",
    kinds.LEADERS: "leaders",
    kinds.QUEUES: "queues",
}
_SINGLES = (kinds.CLUSTER, kinds.ACCESS, kinds.PLAN, kinds.REBALANCING, kinds.REBALANCER)
_NUMBERED = frozenset((kinds.SHARDS, kinds.LEADERS))
_NOT_KEPT = frozenset((kinds.INIT, kinds.TURN))  # that say nothing to whoever reads the map


@dataclass(frozen=True, kw_only=True)
class PartitionMap:
    """Names of nodes and queues, and numbers of shards, to their records."""

    cluster_name: str
    revision: int = 0  # 0: nothing was ever read
    cluster: ClusterRecord | None = None
    access: AccessPolicy | None = None  # who may do what
    plan: PlanRecord | None = None
    rebalancing: RebalancingRecord | None = None
    rebalancer: RebalancerRecord | None = None
    nodes: Mapping[str, NodeRecord] = field(default_factory=dict)  # that hold their lease
    last_nodes: Mapping[str, NodeRecord] = field(default_factory=dict)  # also those whose lease is gone
    drains: Mapping[str, bool] = field(default_factory=dict)
    removed: Mapping[str, RemovedRecord] = field(default_factory=dict)
    all_shards: Mapping[int, ShardRecord] = field(default_factory=dict)  # also of an initialisation under way
    leaders: Mapping[int, LeaderRecord] = field(default_factory=dict)
    queues: Mapping[str, QueueRecord] = field(default_factory=dict)
    mod_revisions: Mapping[bytes, int] = field(default_factory=dict)  # of each key: when its record last changed
    problems: Mapping[bytes, RecordError] = field(default_factory=dict)  # keys whose newest record cannot be read

    @property
    def shards(self) -> Mapping[int, ShardRecord]:
        """None before the cluster is initialised: until then the records of its shards may still change."""
        return {} if self.cluster is None else self.all_shards

    @property
    def why_no_cluster(self) -> str:
        """Why there is no cluster to take part in, in a sentence; empty if there is one."""
        if self.cluster is not None:
            return ""
        problem = self.problems.get(keys_of(self.cluster_name).cluster)
        if problem is not None:
            return str(problem)
        return "the cluster is not initialised: run `holdfast cluster init` once all nodes are there"

    def refusal_without_cluster(self) -> RefusedError:
        """The same for callers. A cluster whose record cannot be read is there: nobody is to make another one."""
        problem = self.problems.get(keys_of(self.cluster_name).cluster)
        return no_cluster() if problem is None else unreadable(problem)

    # What is asked of it

    def route(self, queue: str) -> QueueRoute:
        """Where the tasks of a queue are; a queue without a record lives on its home."""
        if self.cluster is None:
            raise LookupError("Expected a map of an initialised cluster, but this one is not.")
        home = home_shard(queue, self.cluster.shards)
        record = self.queues.get(queue)
        if record is None:
            return QueueRoute(queue, home)
        return QueueRoute(queue, home, record.generation, record.sets, record.draining, record.drained)

    def shard_leader(self, shard: int) -> LeaderRecord | None:
        """A hint; none of a former incarnation of the shard."""
        leader, record = self.leaders.get(shard), self.shards.get(shard)
        if leader is None or record is None or leader.group != record.group:
            return None
        return leader

    def address_of(self, node: str) -> str | None:
        """Where a node is, or was last: without etcd its lease says nothing."""
        record = self.last_nodes.get(node)
        return None if record is None else record.address

    def is_alive(self, node: str) -> bool:
        return node in self.nodes

    @property
    def not_to_lead(self) -> frozenset[str]:
        """Nodes that should get no leadership: those that drain, and those that are about to be stopped."""
        leaving = (name for name, node in self.nodes.items() if node.handover is not Handover.NONE)
        return frozenset((*self.drains, *leaving))

    def is_there(self, identity: str) -> bool:
        """Whether the node of this replica holds its lease, with the same data."""
        name, _, node_id = identity.partition("/")
        record = self.nodes.get(name)
        return record is not None and record.node_id == node_id

    def is_removed(self, name: str, node_id: str) -> bool:
        record = self.removed.get(name)
        return record is not None and record.node_id == node_id

    def queue_version(self, queue: str) -> int:
        """When the queue's record last changed; 0 if it has none."""
        return self.mod_revisions.get(keys_of(self.cluster_name).queue(queue), 0)

    def same_records(self, other: "PartitionMap") -> bool:
        """Not by their revisions alone: in an etcd that was set back, the same number may be of another change."""
        return (
            self.mod_revisions == other.mod_revisions
            and self.problems.keys() == other.problems.keys()
            and all(getattr(self, section) == getattr(other, section) for section in (*_SECTIONS.values(), *_SINGLES))
        )

    # How it is made

    @classmethod
    def load(cls, cluster_name: str, snapshot: Snapshot, before: "PartitionMap | None" = None) -> "PartitionMap":
        """All that etcd has. A record that cannot be read stays as it was in the map `before`."""
        draft = _Draft(cls(cluster_name=cluster_name), before)
        for row in snapshot.rows:
            draft.put(row)
        return draft.finish(snapshot.revision)

    def apply(self, changes: Changes) -> "PartitionMap":
        """The map after these changes."""
        if not changes.changes:
            return replace(self, revision=changes.revision)
        draft = _Draft(self, self)
        for change in changes.changes:
            draft.change(change)
        return draft.finish(changes.revision)

    # The last good copy

    def to_json(self) -> bytes:
        """To be kept on disk, for a start without etcd."""
        names = keys_of(self.cluster_name)
        start = len(names.prefix)
        rows = [[key[start:].decode(), self.mod_revisions[key], value.decode()] for key, value in self._values(names)]
        gone = {name: node.encode().decode() for name, node in self.last_nodes.items() if name not in self.nodes}
        return encode({
            "format": COPY_FORMAT,
            "cluster_name": self.cluster_name,
            "revision": self.revision,
            "rows": rows,
            "gone": gone,
        })  # fmt: skip

    @classmethod
    def from_json(cls, text: bytes) -> "PartitionMap":
        """RecordError if this is no copy of a map, or has a record that cannot be read."""
        fields = Fields.parse("last good copy", text)
        fields.whole("format", COPY_FORMAT, COPY_FORMAT)
        cluster_name, revision = fields.text("cluster_name"), fields.whole("revision")
        if not kinds.NAME.fullmatch(cluster_name):
            raise fields.wrong("cluster_name", "the name of a cluster")
        draft = _Draft(cls(cluster_name=cluster_name), None)
        prefix = keys_of(cluster_name).prefix
        for key, mod_revision, value in fields.triples("rows"):
            draft.put(Row(prefix + key.encode(), value.encode(), mod_revision, mod_revision, 0))
        gone = fields.inner("gone")
        for name in gone.names():
            draft.remember(NodeRecord.decode("gone", gone.text(name).encode(), name))
        made = draft.finish(revision)
        for problem in made.problems.values():
            raise problem
        return made

    def _values(self, names: MapKeys) -> Iterable[tuple[bytes, bytes]]:
        """Every key that is in the map, and its record as it stands in etcd."""
        if self.cluster is not None:
            yield names.cluster, self.cluster.encode()
        if self.access is not None:
            yield names.access, to_json(self.access)
        if self.plan is not None:
            yield names.plan, self.plan.encode()
        if self.rebalancing is not None:
            yield names.rebalancing, self.rebalancing.encode()
        if self.rebalancer is not None:
            yield names.rebalancer, self.rebalancer.encode()
        yield from ((names.drain(name), EMPTY) for name in self.drains)
        yield from ((names.node(name), node.encode()) for name, node in self.nodes.items())
        yield from ((names.removed(name), removed.encode()) for name, removed in self.removed.items())
        yield from ((names.shard(number), shard.encode()) for number, shard in self.all_shards.items())
        yield from ((names.leader(number), leader.encode()) for number, leader in self.leaders.items())
        yield from ((names.queue(name), queue.encode()) for name, queue in self.queues.items())


class _Draft:
    """The next map in the making: it copies a section of the one before when the first record in it changes."""

    def __init__(self, base: PartitionMap, before: PartitionMap | None) -> None:
        self._base = base
        self._before = before  # where the last good record of a key is found
        self._names = keys_of(base.cluster_name)
        self._new: dict[str, Any] = {}
        self._mod_revisions = dict(base.mod_revisions)
        self._problems = dict(base.problems)
        self._last_nodes = dict(before.last_nodes if before is not None else {})

    def change(self, change: RowChange) -> None:
        if change.is_delete:
            self._delete(change.row.key)
        else:
            self.put(change.row)

    def put(self, row: Row) -> None:
        found = self._names.parse(row.key)
        if found is None or found[0] in _NOT_KEPT:
            return
        kind, name = found
        try:
            record = _decode(kind, name, row)
        except RecordError as problem:
            self._problems[row.key] = problem
            if self._before is None or (record := self._last_good(self._before, kind, name)) is None:
                return
            self._mod_revisions[row.key] = self._before.mod_revisions[row.key]
        else:
            self._problems.pop(row.key, None)
            self._mod_revisions[row.key] = row.mod_revision
        if kind in _SECTIONS:
            self._section(kind)[int(name) if kind in _NUMBERED else name] = record
        else:
            self._new[kind] = record
        if isinstance(record, NodeRecord):
            self.remember(record)

    def remember(self, node: NodeRecord) -> None:
        self._last_nodes[node.name] = node

    def finish(self, revision: int) -> PartitionMap:
        made = replace(
            self._base,
            revision=revision,
            mod_revisions=self._mod_revisions,
            problems=self._problems,
            last_nodes=self._last_nodes,
            **self._new,
        )
        for name in self._last_nodes.keys() & made.removed.keys() - made.nodes.keys():
            if made.is_removed(name, self._last_nodes[name].node_id):
                del self._last_nodes[name]
        return made

    def _delete(self, key: bytes) -> None:
        found = self._names.parse(key)
        if found is None or found[0] in _NOT_KEPT:
            return
        kind, name = found
        self._problems.pop(key, None)
        self._mod_revisions.pop(key, None)
        if kind in _SECTIONS:
            self._section(kind).pop(int(name) if kind in _NUMBERED else name, None)
        else:
            self._new[kind] = None

    def _section(self, kind: str) -> dict[Any, Any]:
        section = _SECTIONS[kind]
        if section not in self._new:
            self._new[section] = dict(getattr(self._base, section))
        copied: dict[Any, Any] = self._new[section]
        return copied

    def _last_good(self, before: PartitionMap, kind: str, name: str) -> object:
        if kind in _SECTIONS:
            return getattr(before, _SECTIONS[kind]).get(int(name) if kind in _NUMBERED else name)
        return getattr(before, kind)


def _decode(kind: str, name: str, row: Row) -> object:
    if kind == kinds.NODES:
        return NodeRecord.decode(row.key.decode(), row.value, name)
    decode = _DECODE.get(kind)
    return True if decode is None else decode(row.key.decode(), row.value)  # of a drain: its key says all


_DECODE: dict[str, Callable[[str, bytes], object]] = {
    kinds.QUEUES: QueueRecord.decode,
    kinds.SHARDS: ShardRecord.decode,
    kinds.LEADERS: LeaderRecord.decode,
    kinds.REMOVED: RemovedRecord.decode,
    kinds.CLUSTER: ClusterRecord.decode,
    kinds.ACCESS: access_of,
    kinds.PLAN: PlanRecord.decode,
    kinds.REBALANCING: RebalancingRecord.decode,
    kinds.REBALANCER: RebalancerRecord.decode,
}
