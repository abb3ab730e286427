"""Why a call or an item is refused before it reaches the log.

RefusedError            a typed refusal: code, reason, sentence, field, retry-after
OutcomeUnknownError     the write was handed to the log, but its fate is not known here
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from dataclasses import field as extra  # `field` is a name of this file

from holdfast.common.metadata import SHARD_KEY

_SETS_REPORTED = 20  # with one refusal: names are long, and what goes with a status has little room

# Reasons. They are part of the wire API (ErrorInfo.reason, Rejection.reason) and never change their meaning.
MALFORMED_REQUEST = "MALFORMED_REQUEST"
MISSING_FIELD = "MISSING_FIELD"
INVALID_FIELD = "INVALID_FIELD"
OUT_OF_RANGE = "OUT_OF_RANGE"
TOO_LARGE = "TOO_LARGE"
BATCH_TOO_LARGE = "BATCH_TOO_LARGE"
QUEUE_NOT_FOUND = "QUEUE_NOT_FOUND"
WORKER_NOT_FOUND = "WORKER_NOT_FOUND"
SHARD_NOT_FOUND = "SHARD_NOT_FOUND"
PROBE_NOT_FOUND = "PROBE_NOT_FOUND"
BACKUP_NOT_FOUND = "BACKUP_NOT_FOUND"
RESTORE_REFUSED = "RESTORE_REFUSED"
CHANGE_REFUSED = "CHANGE_REFUSED"
OVERLOADED = "OVERLOADED"
DISK_LOW = "DISK_LOW"
WORKER_AT_LIMIT = "WORKER_AT_LIMIT"
NOT_LEADER = "NOT_LEADER"
SHUTTING_DOWN = "SHUTTING_DOWN"
STALE_MAP = "STALE_MAP"
WRONG_SHARD = "WRONG_SHARD"
OUTCOME_UNKNOWN = "OUTCOME_UNKNOWN"
NO_CLUSTER = "NO_CLUSTER"
VERSION_TOO_OLD = "VERSION_TOO_OLD"
BAD_RECORD = "BAD_RECORD"
CLUSTER_EXISTS = "CLUSTER_EXISTS"
NOT_ENOUGH_NODES = "NOT_ENOUGH_NODES"
NODE_NOT_FOUND = "NODE_NOT_FOUND"
PLAN_NOT_FOUND = "PLAN_NOT_FOUND"
PLAN_REFUSED = "PLAN_REFUSED"
PLAN_UNDER_WAY = "PLAN_UNDER_WAY"
ETCD_UNAVAILABLE = "ETCD_UNAVAILABLE"
CONFLICT = "CONFLICT"
INTERNAL = "INTERNAL"
UNAUTHENTICATED = "UNAUTHENTICATED"
PERMISSION_DENIED = "PERMISSION_DENIED"


@dataclass(eq=False)
class RefusedError(Exception):
    """Nothing was changed. `field` names the offending field of bad input; `limit` says what is allowed.

    Checks name a field by itself; only when one fails does the caller say where in the request it stands. So the good
    path never builds a field's full name. A `{field}` in the sentence stands for it.
    """

    reason: str
    sentence: str
    field: str = ""
    limit: str = ""
    retry_after_ms: int = 0
    metadata: dict[str, str] = extra(default_factory=dict)  # what else programs should know, e.g. who leads

    @property
    def message(self) -> str:
        return self.sentence.replace("{field}", self.field)

    def within(self, parent: str) -> "RefusedError":
        """The same refusal, of a field inside `parent`."""
        return replace(self, field=f"{parent}.{self.field}" if self.field else parent)

    def __str__(self) -> str:
        return self.message


class OutcomeUnknownError(Exception):
    """The write may or may not have happened: repeat it with the same request id to find out."""


def forget_frames(error: BaseException) -> None:
    """To be called when an error has been answered: the frames that it came through hold the request, and often the
    error itself. In such a cycle both wait for the garbage collector, which goes by the number of objects: a few
    thousand refused calls of a megabyte each are nothing to it."""
    seen: BaseException | None = error
    while seen is not None:
        seen.__traceback__ = None
        seen = seen.__context__


def overloaded(what: str, limit: int) -> RefusedError:
    return RefusedError(
        OVERLOADED,
        f"Expected fewer than {limit} {what}, but that many are waiting already; back off and try again.",
        limit=str(limit),
        retry_after_ms=200,
    )


def disk_low(free_bytes: int, free_bytes_min: int) -> RefusedError:
    return RefusedError(
        DISK_LOW,
        f"Expected at least {free_bytes_min} bytes of free disk, but {free_bytes} are left; free some space, service "
        "resumes by itself.",
        limit=str(free_bytes_min),
        retry_after_ms=5000,
    )


def worker_at_limit(limit: int) -> RefusedError:
    return RefusedError(
        WORKER_AT_LIMIT,
        f"Expected the worker to hold fewer than {limit} claims, but it does not; settle some first.",
        field="worker",
        limit=str(limit),
        retry_after_ms=1000,
    )


def worker_holds_suspect() -> RefusedError:
    return RefusedError(
        WORKER_AT_LIMIT,
        "Expected a worker that holds no suspect, but it holds one, which must stay alone; settle it first.",
        field="worker",
        limit="1",
        retry_after_ms=1000,
    )


def not_leader(shard: int, epoch: int, leader_address: str | None) -> RefusedError:
    """Nothing was done, so every call may be repeated where the leader is."""
    metadata = {"shard": str(shard), "epoch": str(epoch)}
    if leader_address is None:
        return RefusedError(
            NOT_LEADER,
            f"Expected to lead shard {shard}, but this node does not, and nobody is known to; try again in a moment.",
            retry_after_ms=100,
            metadata=metadata,
        )
    return RefusedError(
        NOT_LEADER,
        f"Expected to lead shard {shard}, but the leader is at {leader_address}.",
        metadata={**metadata, "leader": leader_address},
    )


def shard_not_found(shard: int) -> RefusedError:
    return RefusedError(SHARD_NOT_FOUND, f"Expected a replica of shard {shard}, but this node has none.", field="shard")


def probe_not_found(shard: int, index: int) -> RefusedError:
    return RefusedError(
        PROBE_NOT_FOUND,
        f"Expected the hash of shard {shard} at index {index}, but this replica does not have it; probe again.",
        field="index",
    )


def backup_not_found(shard: int) -> RefusedError:
    return RefusedError(
        BACKUP_NOT_FOUND,
        f"Expected a backup of shard {shard} to be under way, but this node knows none of that id: it was ended, "
        "nobody asked for it for too long, or another node leads the shard now; begin again.",
        field="id",
    )


def restore_refused(why: str, sentence: str) -> RefusedError:
    """A shard is not founded from a backup, or not from this one; `why` is a word for programs."""
    return RefusedError(RESTORE_REFUSED, sentence, metadata={"why": why})


def change_refused(why: str, sentence: str) -> RefusedError:
    """Membership or leadership cannot change like this, or not now; `why` is a word for programs."""
    return RefusedError(CHANGE_REFUSED, sentence, metadata={"why": why})


def shutting_down() -> RefusedError:
    return RefusedError(SHUTTING_DOWN, "This broker is shutting down; try again in a moment.", retry_after_ms=1000)


def older_set(generations: Mapping[str, int]) -> RefusedError:
    """Nothing was done: the tasks of these queues should go to newer sets of shards than their automatic keys name."""
    [(queue, newest), *others] = list(generations.items())[:_SETS_REPORTED]
    return RefusedError(
        STALE_MAP,
        f"Expected a request_id made up for the newest set of shards of queue {queue}, which is {newest}, with the "
        "first attempt of a call, but it is for an older one; make up others.",
        retry_after_ms=1,
        metadata={
            "queue": queue,
            "generation": str(newest),
            "why": "older",
            "others": ",".join(f"{name}={generation}" for name, generation in others),
        },
    )


def wrong_shard(queue: str, here: int, home: int) -> RefusedError:
    """Nothing was done. Asking again does not help before the caller has asked where the shards are."""
    return RefusedError(
        WRONG_SHARD,
        f"Expected tasks of queue {queue} with a request_id of their own, a unique_key or a limit_key, and its "
        f"schedules, on its home, shard {home}, but this is shard {here}; ask for the topology again, or leave the "
        "shard to a router.",
        metadata={"queue": queue, "shard": str(here), "home": str(home)},
    )


def not_on_shard(queue: str, here: int, home: int) -> RefusedError:
    """The same for what could be on any shard of the queue, but not on this one: a task there would never be found."""
    return RefusedError(
        WRONG_SHARD,
        f"Expected one of the shards of queue {queue}, whose home is shard {home}, but shard {here} is none of them; "
        "ask for the topology again, or leave the shard to a router.",
        metadata={"queue": queue, "shard": str(here), "home": str(home)},
    )


def not_known_here(queue: str, here: int) -> RefusedError:
    """Nothing was done. The queue may have been spread a moment ago, and then asking again helps."""
    return RefusedError(
        STALE_MAP,
        f"Expected one of the shards of queue {queue}, but shard {here} is none of them, as far as this server has "
        "heard; ask for the topology again, or leave the shard to a router.",
        retry_after_ms=100,
        metadata={"queue": queue, "shard": str(here), "why": "newer"},
    )


def another_shard(named: int, meant: int) -> RefusedError:
    """The metadata of a call and its request are about different shards: nobody can know which one is meant."""
    return RefusedError(
        INVALID_FIELD,
        f"Expected the metadata {SHARD_KEY} to name the shard of what is asked for, {meant}, but it names {named}.",
        field=SHARD_KEY,
    )


def outcome_unknown() -> RefusedError:
    return RefusedError(
        OUTCOME_UNKNOWN,
        "The write was on its way when this broker stopped or ceased to lead, so it may or may not have happened; "
        "repeat it with the same request id.",
        retry_after_ms=1000,
    )


def no_cluster() -> RefusedError:
    return RefusedError(
        NO_CLUSTER,
        "Expected a cluster, but none was initialised yet, or this server belongs to none; once enough brokers run, "
        "`holdfast cluster init` makes one.",
    )


def version_too_old(sentence: str) -> RefusedError:
    """There is a cluster, but this server cannot read what the newer ones have written."""
    return RefusedError(VERSION_TOO_OLD, sentence)


def bad_record(sentence: str) -> RefusedError:
    return RefusedError(
        BAD_RECORD,
        f"{sentence.rstrip('.')}; nothing was changed. Restore etcd from a backup, or put the record right.",
    )


def cluster_exists(cluster_id: str, shards: int, replication: int) -> RefusedError:
    return RefusedError(
        CLUSTER_EXISTS,
        f"Expected no cluster yet, or one of this very shape, but {cluster_id} was made before, with {shards} shards "
        f"and {replication} replicas of each; nothing was changed.",
        metadata={"cluster": cluster_id},
    )


def not_enough_nodes(replication: int, nodes: int) -> RefusedError:
    return RefusedError(
        NOT_ENOUGH_NODES,
        f"Expected at least {replication} nodes for a replication factor of {replication}, but {nodes} can take "
        "shards; start more brokers, or take a smaller factor.",
        field="replication",
        limit=str(nodes),
    )


def node_not_found(node: str, field: str = "node") -> RefusedError:
    return RefusedError(NODE_NOT_FOUND, f"Expected {{field}} to be a node of the cluster, but {node} is none.", field)


def no_such_shard(shard: int, shard_count: int, field: str = "shard") -> RefusedError:
    """The cluster has none of this number, unlike `shard_not_found`, which is about one node."""
    return RefusedError(
        SHARD_NOT_FOUND,
        f"Expected {{field}} to be a shard from 0 to {shard_count - 1}, but got {shard}.",
        field,
        f"0..{shard_count - 1}",
    )


def plan_not_found(plan_id: str) -> RefusedError:
    what = f"the plan {plan_id} to be under way, but it is not" if plan_id else "a plan under way, but there is none"
    return RefusedError(PLAN_NOT_FOUND, f"Expected {what}; it may be done already.", field="id" if plan_id else "")


def plan_refused(why: str, sentence: str) -> RefusedError:
    """`why` is a word for programs."""
    return RefusedError(PLAN_REFUSED, sentence, metadata={"why": why})


def plan_under_way(plan_id: str) -> RefusedError:
    return RefusedError(
        PLAN_UNDER_WAY,
        f"Expected no plan under way, but {plan_id} is; let it come to its end, or cancel it.",
        metadata={"plan": plan_id},
    )


def etcd_unavailable(sentence: str) -> RefusedError:
    return RefusedError(
        ETCD_UNAVAILABLE,
        f"Expected an answer of etcd, but there was none ({sentence.rstrip('.')}); tasks are served all the same. "
        "Look after etcd, then ask again.",
        retry_after_ms=1000,
    )


def conflict(what: str) -> RefusedError:
    return RefusedError(
        CONFLICT, f"Somebody else changed {what} at the same time; look at it and ask again.", retry_after_ms=100
    )


def unauthenticated(sentence: str, *, retry_after_ms: int = 0) -> RefusedError:
    """Nobody knows who calls."""
    return RefusedError(UNAUTHENTICATED, sentence, retry_after_ms=retry_after_ms)


def permission_denied(who: str, right: str, what: str, *, field: str = "", queue: str = "") -> RefusedError:
    """The caller is known, and has no role for this. The same whether or not there is such a thing."""
    return RefusedError(
        PERMISSION_DENIED,
        f"Expected the right to {right} {what}, but {who} has no role that allows it; an administrator can grant one "
        "(`holdfast access grant`).",
        field=field,
        metadata={"right": right, "queue": queue},
    )


def internal_error() -> RefusedError:
    return RefusedError(INTERNAL, "Expected to answer, but the broker failed; its log has the details.")
