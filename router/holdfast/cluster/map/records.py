"""The records of the partition map, and how they stand in etcd: compact JSON with sorted keys.

ClusterRecord   what never changes: id, number of shards, replication factor
NodeRecord      a broker that is there, bound to its lease
ShardRecord     who should have a shard, and who does
LeaderRecord    who leads it: a hint
QueueRecord     what a queue does in its own way; its policy is in policy.py
PlanRecord      moves that are being carried out
the access rules  who may do what: an AccessPolicy, as it stands in a file
RebalancingRecord, RebalancerRecord  whether replicas are moved without anybody asking for it, and who does that

Unknown fields are passed over, so that an older version can read what a newer one wrote; a field that is missing or of
another type is a `RecordError`.
"""

import re
from dataclasses import asdict, dataclass
from enum import StrEnum

from holdfast.access.documents import from_json
from holdfast.access.fields import AccessPolicyError
from holdfast.access.policies import AccessPolicy
from holdfast.cluster.map.fields import Fields, RecordError, encode
from holdfast.cluster.map.policy import NO_POLICY, PolicyRecord
from holdfast.routing.groups import incarnation_of
from holdfast.serving.refusals import RefusedError, bad_record, version_too_old

__all__ = [
    "ClusterRecord",
    "Handover",
    "LeaderRecord",
    "Members",
    "NewerFormatError",
    "NodeRecord",
    "PlanRecord",
    "PolicyRecord",
    "QueueRecord",
    "RebalancerRecord",
    "RebalancingRecord",
    "RecordError",
    "RemovedRecord",
    "ShardRecord",
    "StepRecord",
    "access_of",
    "identity_of",
    "name_of",
]

FORMAT = 1
SHARDS_MAX = 4096  # a task id has 16 bits for its shard
REPLICATION_MAX = 9
EMPTY = b"{}"  # of a key that says all by being there

_SHARD_MAX = SHARDS_MAX - 1
_IDENTITY = re.compile(r"[A-Za-z0-9._-]{1,128}/[0-9a-f]{32}")


def identity_of(name: str, node_id: str) -> str:
    """What a replica on this node is called in its shard: a node whose data is gone is another one."""
    return f"{name}/{node_id}"


def name_of(identity: str) -> str:
    return identity.partition("/")[0]


def access_of(key: str, value: bytes) -> AccessPolicy:
    """The access rules. Fields that are not known are refused: they may be there to forbid something."""
    try:
        return from_json(value)
    except AccessPolicyError as error:
        raise RecordError(key, error.field, error.limit) from None


def _identities(fields: Fields, name: str) -> tuple[str, ...]:
    found = fields.texts(name)
    for identity in found:
        if not _IDENTITY.fullmatch(identity):
            raise fields.wrong(name, "a list of identities, each a name, a slash and 32 hex digits")
    return found


class NewerFormatError(RecordError):
    """The map was written by a version of Holdfast that this one is too old for."""

    def __init__(self, key: str, found: int) -> None:
        super().__init__(key, "format", f"at most {FORMAT}")
        self.args = (
            f"Expected a map of format {FORMAT} or older, but the one in etcd has format {found}: this version of "
            "Holdfast is too old for the cluster; upgrade it.",
        )


def unreadable(error: RecordError) -> RefusedError:
    """What a caller hears of a record that cannot be read."""
    return version_too_old(str(error)) if isinstance(error, NewerFormatError) else bad_record(str(error))


@dataclass(frozen=True, slots=True)
class ClusterRecord:
    """Written once, last of all, when the cluster is initialised: without it the other records count for nothing."""

    cluster_id: str  # 32 hex digits
    shards: int
    replication: int
    backup_id: str = ""  # of which its shards are founded; empty: they begin with nothing

    def is_restored_from(self, backup_id: str) -> bool:
        """Never from an empty id: it would be that of every cluster which was not restored at all."""
        return bool(backup_id) and self.backup_id == backup_id

    def encode(self) -> bytes:
        return encode({
            "id": self.cluster_id,
            "shards": self.shards,
            "replication": self.replication,
            "format": FORMAT,
            **({"backup_id": self.backup_id} if self.backup_id else {}),
        })  # fmt: skip

    @classmethod
    def decode(cls, key: str, value: bytes) -> "ClusterRecord":
        fields = Fields.parse(key, value)
        if fields.whole("format") > FORMAT:
            raise NewerFormatError(key, fields.whole("format"))
        shards, replication = fields.whole("shards", 1, SHARDS_MAX), fields.whole("replication", 1, REPLICATION_MAX)
        return cls(fields.text("id"), shards, replication, fields.text("backup_id", ""))


class Handover(StrEnum):
    """Whether a node is about to be stopped; see cluster/admin/handovers.py."""

    NONE = ""
    ASKED = "asked"  # it leads nothing if it can
    GRANTED = "granted"  # and was told that it may stop: nobody counts on it any more


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeRecord:
    """A broker. Its name stands in the key only."""

    name: str
    node_id: str  # 32 hex digits, drawn with its data directory
    address: str  # host:port, gRPC
    peer_address: str  # host:port, for the other nodes
    ops_address: str = ""  # host:port, HTTP
    zone: str = ""
    capacity: int = 100
    version: str = ""
    session: str = ""  # drawn at each start: tells a process from its successor
    machine_level: int = 1  # which kinds of log entries it knows
    handover: Handover = Handover.NONE

    @property
    def identity(self) -> str:
        return identity_of(self.name, self.node_id)

    def encode(self) -> bytes:
        values = asdict(self)
        del values["name"]
        return encode(values)

    @classmethod
    def decode(cls, key: str, value: bytes, name: str) -> "NodeRecord":
        fields = Fields.parse(key, value)
        node_id = fields.text("node_id")
        if not _IDENTITY.fullmatch(f"{name}/{node_id}"):
            raise fields.wrong("node_id", "32 hex digits")
        return cls(
            name=name,
            node_id=node_id,
            address=fields.text("address"),
            peer_address=fields.text("peer_address"),
            ops_address=fields.text("ops_address", ""),
            zone=fields.text("zone", ""),
            capacity=fields.whole("capacity", 0, 1_000_000, default=100),
            version=fields.text("version", ""),
            session=fields.text("session", ""),
            machine_level=fields.whole("machine_level", 1, default=1),
            handover=_handover(fields),
        )


def _handover(fields: Fields) -> Handover:
    text = fields.text("handover", "")
    try:
        return Handover(text)
    except ValueError:
        raise fields.wrong("handover", "empty, asked or granted") from None


@dataclass(frozen=True, slots=True)
class RemovedRecord:
    """A node that was removed: one of this name may come, but not with this data."""

    node_id: str

    def encode(self) -> bytes:
        return encode({"node_id": self.node_id})

    @classmethod
    def decode(cls, key: str, value: bytes) -> "RemovedRecord":
        return cls(Fields.parse(key, value).text("node_id"))


@dataclass(frozen=True, slots=True)
class Members:
    """Who belongs to a shard, as its leader last told; identities in order."""

    version: int = 0  # it grows with each change; 0: nobody told yet
    voters: tuple[str, ...] = ()
    learners: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardRecord:
    """`replicas` is what operators desire, the preferred leader first; the shard's leader brings it about."""

    group: int  # which founding of the shard, with its incarnation
    replicas: tuple[str, ...]  # names of nodes
    founders: tuple[str, ...]  # identities; the first one founds
    is_founded: bool = False
    members: Members = Members()
    leaving: tuple[str, ...] = ()  # identities: removed from the shard, and to be deleted on their nodes

    @property
    def incarnation(self) -> int:
        return incarnation_of(self.group)

    @property
    def voters(self) -> tuple[str, ...]:
        """Identities; of a shard that is yet to be founded those who will be its first."""
        return self.members.voters if self.is_founded else self.founders

    def encode(self) -> bytes:
        return encode(asdict(self))

    @classmethod
    def decode(cls, key: str, value: bytes) -> "ShardRecord":
        fields = Fields.parse(key, value)
        members = fields.inner("members")
        return cls(
            group=fields.whole("group", 1),
            replicas=fields.texts("replicas"),
            founders=_identities(fields, "founders"),
            is_founded=fields.flag("is_founded"),
            members=Members(
                members.whole("version"), _identities(members, "voters"), _identities(members, "learners")
            ),
            leaving=_identities(fields, "leaving"),
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class LeaderRecord:
    """Who led a shard when this was written. It only moves forward: see `order`."""

    node: str  # a name
    group: int
    epoch: int

    @property
    def order(self) -> tuple[int, int]:
        return incarnation_of(self.group), self.epoch

    def encode(self) -> bytes:
        return encode(asdict(self))

    @classmethod
    def decode(cls, key: str, value: bytes) -> "LeaderRecord":
        fields = Fields.parse(key, value)
        return cls(fields.text("node"), fields.whole("group", 1), fields.whole("epoch"))


QueueSet = tuple[int, tuple[int, ...]]  # a generation and its shards


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueRecord:
    """With the defaults it says nothing: the queue lives on its home shard."""

    generation: int = 0  # of the newest set
    sets: tuple[QueueSet, ...] = ()  # the oldest first; generation 0, the home alone, is not among them
    draining: tuple[int, ...] = ()  # shards outside the newest set and the home that may still have tasks
    drained: tuple[int, ...] = ()  # such shards that have none any more; never forgotten, for their totals count
    policy: PolicyRecord = NO_POLICY

    @property
    def newest(self) -> tuple[int, ...]:
        """Shards of the newest set; none if the queue has its home only."""
        return self.sets[-1][1] if self.sets else ()

    def encode(self) -> bytes:
        return encode({
            "generation": self.generation,
            "sets": self.sets,
            "draining": self.draining,
            "drained": self.drained,
            "policy": self.policy.given(),
        })  # fmt: skip

    @classmethod
    def decode(cls, key: str, value: bytes) -> "QueueRecord":
        fields = Fields.parse(key, value)
        sets = fields.pairs("sets", _queue_set)
        generation = fields.whole("generation")
        if generation != (sets[-1][0] if sets else 0):
            raise fields.wrong("generation", "that of the last set")
        return cls(
            generation=generation,
            sets=sets,
            draining=fields.wholes("draining", 0, _SHARD_MAX),
            drained=fields.wholes("drained", 0, _SHARD_MAX),
            policy=PolicyRecord.of(fields.inner("policy")) if fields.has("policy") else NO_POLICY,
        )


def _queue_set(fields: Fields, generation: object, shards: object) -> QueueSet:
    one = Fields(fields.key, {"generation": generation, "shards": shards}, "sets.")
    return one.whole("generation", 1), one.wholes("shards", 0, _SHARD_MAX)


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRecord:
    """One replica moves from `source` to `destination`, or leadership does."""

    shard: int
    source: str
    destination: str
    is_transfer: bool
    why: str = ""
    state_bytes: int = -1  # about what has to be copied; -1 if that was not known

    @classmethod
    def of(cls, fields: Fields) -> "StepRecord":
        return cls(
            shard=fields.whole("shard", 0, _SHARD_MAX),
            source=fields.text("source"),
            destination=fields.text("destination"),
            is_transfer=fields.flag("is_transfer"),
            why=fields.text("why", ""),
            state_bytes=fields.whole("state_bytes", -1, default=-1),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanRecord:
    """The plan that is being carried out."""

    plan_id: str
    revision: int  # of the map that it was made from
    kind: str
    summary: str
    steps: tuple[StepRecord, ...]
    began: tuple[int, ...] = ()  # numbers of steps: of moves that were written as desired, of transfers that were done

    def encode(self) -> bytes:
        values = asdict(self)
        values["id"] = values.pop("plan_id")
        return encode(values)

    @classmethod
    def decode(cls, key: str, value: bytes) -> "PlanRecord":
        fields = Fields.parse(key, value)
        steps = tuple(StepRecord.of(inner) for inner in fields.inners("steps"))
        return cls(
            plan_id=fields.text("id"),
            revision=fields.whole("revision"),
            kind=fields.text("kind"),
            summary=fields.text("summary"),
            steps=steps,
            began=fields.wholes("began", 0, max(len(steps) - 1, 0)),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class RebalancingRecord:
    """What operators have said about rebalancing, and what whoever does it must not forget."""

    is_paused: bool = False
    why: str = ""  # it was paused
    gone: tuple[tuple[str, int], ...] = ()  # nodes that are away, and for how many seconds that was seen
    given_up: tuple[str, ...] = ()  # nodes that were marked as draining because they were away for too long

    def encode(self) -> bytes:
        return encode(asdict(self))

    @classmethod
    def decode(cls, key: str, value: bytes) -> "RebalancingRecord":
        fields = Fields.parse(key, value)
        return cls(
            is_paused=fields.flag("is_paused"),
            why=fields.text("why", ""),
            gone=fields.pairs("gone", _gone),
            given_up=fields.texts("given_up"),
        )


def _gone(fields: Fields, name: object, seconds: object) -> tuple[str, int]:
    one = Fields(fields.key, {"name": name, "seconds": seconds}, "gone.")
    return one.text("name"), one.whole("seconds")


@dataclass(frozen=True, slots=True)
class RebalancerRecord:
    """The process that rebalances, bound to its lease."""

    name: str

    def encode(self) -> bytes:
        return encode({"name": self.name})

    @classmethod
    def decode(cls, key: str, value: bytes) -> "RebalancerRecord":
        return cls(Fields.parse(key, value).text("name"))
