"""How nodes come, are marked and go."""

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import replace

from holdfast.cluster.etcd.api import Delete, LeaseLostError, Put, Row, Unchanged
from holdfast.cluster.map.records import (
    EMPTY,
    ClusterRecord,
    NodeRecord,
    RemovedRecord,
    ShardRecord,
    identity_of,
    name_of,
)
from holdfast.cluster.map.store_shards import ShardStore, node_of
from holdfast.cluster.map.transactions import Decision, unchanged
from holdfast.serving.refusals import NO_CLUSTER, RefusedError, change_refused, conflict

NODE_TTL_S = 10  # of the lease that says that a node is there
_POLL_AGAIN_S = 0.5
_NAMED_MAX = 5  # shards in a sentence


class RegistrationError(Exception):
    """A node may not take part; the message says what to do."""


class DuplicateNodeError(RegistrationError):
    """Another process goes by the same name, or with a copy of the same data."""

    def __init__(self, record: NodeRecord, other: NodeRecord) -> None:
        who = f"the node {other.name} at {other.address}"
        if record.node_id == other.node_id:
            sentence = (
                f"Expected to be the only one with this node id, but {who} has it too: the data directory of "
                f"{record.name} was copied, or the same is used twice. Stop one of them and start it with an empty one."
            )
        else:
            sentence = (
                f"Expected to be the only node named {record.name}, but {who} is there with other data. Give this one "
                f"another node_name; or if it is to replace that one, stop that one and wait {NODE_TTL_S} s."
            )
        super().__init__(sentence)
        self.other = other


class RemovedNodeError(RegistrationError):
    """The node was removed from the cluster."""


class WrongClusterError(RegistrationError):
    """The node's data belongs to another cluster."""


class _ElsewhereError(Exception):
    """A node of this name with other data, or with the same data at another address."""

    def __init__(self, other: NodeRecord) -> None:
        super().__init__(other.address)
        self.other = other


class NodeStore(ShardStore):
    """Writes about nodes."""

    async def register_node(
        self, record: NodeRecord, lease: int, *, cluster_id: str | None = None, ttl_s: float = NODE_TTL_S
    ) -> str | None:
        """Say that a node is there for as long as its lease lasts. The cluster's id; None if it is yet to be made.

        cluster_id: the one that the node's data belongs to, if any. RegistrationError if the node may not take part. A
        former process at the same address is replaced at once; one at another address, or with other data, is given the
        time of its lease to go, in case the node has moved or has lost its disk.
        """
        waited_s = 0.0
        while True:
            try:
                return await self._register(record, lease, cluster_id)
            except _ElsewhereError as elsewhere:
                if waited_s > ttl_s:
                    raise DuplicateNodeError(record, elsewhere.other) from None
            await self.sleep(_POLL_AGAIN_S)
            waited_s += _POLL_AGAIN_S

    async def _register(self, record: NodeRecord, lease: int, cluster_id: str | None) -> str | None:
        key = self.keys.node(record.name)

        def decide(rows: Sequence[Row | None]) -> Decision[str | None]:
            cluster, removed, node = rows
            found = None if cluster is None else ClusterRecord.decode(cluster.key.decode(), cluster.value).cluster_id
            _check_cluster(record.name, cluster_id, found)
            if removed is not None and _removed(removed).node_id == record.node_id:
                raise RemovedNodeError(
                    f"Expected {record.name} to be a node of the cluster, but it was removed; start it with an empty "
                    "data directory to add it anew."
                )
            if node is not None:
                if (node.value, node.lease) == (record.encode(), lease):
                    return Decision(found)
                _check_other(record, node_of(node))
            return Decision(found, [Put(key, record.encode(), lease)])

        keys = [self.keys.cluster, self.keys.removed(record.name), key]
        return (await self.decide(keys, decide, f"the node {record.name}"))[0]

    async def read_nodes(self) -> dict[str, NodeRecord]:
        """All that are registered now, of one revision."""
        found = map(node_of, (await self.etcd.read(self.keys.nodes)).rows)
        return {node.name: node for node in found}

    async def read_turn(self) -> Unchanged:
        """The condition that nobody lets a node go from now on: see cluster/admin/handovers.py."""
        return unchanged(self.keys.turn, await self.etcd.get(self.keys.turn))

    async def note_handover(self, node: NodeRecord, turn: Unchanged | None = None) -> bool:
        """Say of a registered node whether it is about to be stopped. False if it is not registered, or if the turn is
        another's by now: then nothing was changed. OutcomeUnknownError is possible."""
        key = self.keys.node(node.name)
        row = await self.etcd.get(key)
        if row is None or (found := node_of(row)).session != node.session:
            return False
        compares, changes = (
            [unchanged(key, row)],
            [Put(key, replace(found, handover=node.handover).encode(), row.lease)],
        )
        if turn is not None:
            compares.append(turn)
            changes.append(Put(turn.key, secrets.token_hex(8).encode()))
        elif found.handover is node.handover:
            return True
        try:
            return (await self.etcd.commit(compares, changes)).is_done
        except LeaseLostError:
            return False

    async def drain_node(self, name: str) -> None:
        """Mark it as one that should hold nothing."""
        key = self.keys.drain(name)

        def decide(rows: Sequence[Row | None]) -> Decision[None]:
            return Decision(None, [] if rows[0] else [Put(key, EMPTY)])

        await self.decide([key], decide, f"the node {name}")

    async def undrain_node(self, name: str) -> None:
        key = self.keys.drain(name)

        def decide(rows: Sequence[Row | None]) -> Decision[None]:
            return Decision(None, [Delete(key)] if rows[0] else [])

        await self.decide([key], decide, f"the node {name}")

    async def remove_node(self, name: str, node_id: str | None) -> None:
        """Forget a node that holds nothing, and let it never come back with its data.

        node_id: as last known, None if nobody knows. The mark is set first, and only holds if the node still has
        nothing after that: whoever gives it a replica makes sure that there is no mark. See `check_destination`.
        """
        node = await self.etcd.get(self.keys.node(name))
        if node is not None:
            node_id = node_of(node).node_id
            if await self.etcd.get(self.keys.drain(name)) is None:
                raise change_refused(
                    "alive", f"Expected {name} to be down or to be draining, but it is neither; drain it first."
                )
        _refuse_if_holding(name, await self.read_shards(), node_id if node is not None else None)
        if node_id is not None:
            await self._mark_removed(name, node_id, is_alive=node is not None)
        await self._forget_node(name, node_id)

    async def _mark_removed(self, name: str, node_id: str, *, is_alive: bool) -> None:
        key = self.keys.removed(name)
        before = await self.etcd.get(key)
        mark = RemovedRecord(node_id).encode()

        def decide(rows: Sequence[Row | None]) -> Decision[None]:
            is_marked = rows[0] is not None and rows[0].value == mark
            return Decision(None, [] if is_marked else [Put(key, mark)])

        await self.decide([key], decide, f"the node {name}")
        try:
            _refuse_if_holding(name, await self.read_shards(), node_id if is_alive else None)
        except RefusedError:
            row = await self.etcd.get(key)
            if row is not None and row.value == mark:
                back = Delete(key) if before is None else Put(key, before.value)
                await self.etcd.commit([unchanged(key, row)], [back])
            raise

    async def _forget_node(self, name: str, node_id: str | None) -> None:
        """Its registration, its mark as draining, and what it would have had to delete."""
        keys = [self.keys.node(name), self.keys.drain(name)]

        def decide(rows: Sequence[Row | None]) -> Decision[None]:
            node = rows[0]
            if node is not None and node_of(node).node_id != node_id:
                raise conflict(f"the node {name}")  # another one has come in its place: it has done nothing wrong
            return Decision(None, [Delete(key) for key, row in zip(keys, rows, strict=True) if row is not None])

        await self.decide(keys, decide, f"the node {name}")
        for number, shard in (await self.read_shards()).items():
            for identity in shard.leaving:
                if name_of(identity) == name and (node_id is None or identity == identity_of(name, node_id)):
                    await self.forget_leaving(number, identity)


def check_destination(name: str, node: Row | None, removed: Row | None) -> str:
    """Why a replica must not go to this node, given its rows; nothing if it may. The commit must compare both."""
    if node is None:
        return f"{name} is down"
    record = node_of(node)
    if removed is not None and _removed(removed).node_id == record.node_id:
        return f"{name} was removed"
    return ""


def _removed(row: Row) -> RemovedRecord:
    return RemovedRecord.decode(row.key.decode(), row.value)


def _check_cluster(name: str, own: str | None, found: str | None) -> None:
    if own is None or own == found:
        return
    if found is None:
        # Not for good: whoever emptied etcd must not end a running cluster, and may bring it back.
        raise RefusedError(
            NO_CLUSTER,
            f"Expected the cluster {own}, to which the data of {name} belongs, but there is none in etcd. If etcd has "
            "lost its data restore it from a backup; otherwise check etcd_endpoints and cluster_name.",
        )
    raise WrongClusterError(
        f"Expected the cluster {own}, to which the data of {name} belongs, but the one in etcd is {found}. Check "
        "etcd_endpoints and cluster_name, or start with an empty data directory."
    )


def _check_other(record: NodeRecord, other: NodeRecord) -> None:
    """A node that was killed is in the map until its lease ends, also if it comes back with other data."""
    if (other.node_id, other.address) != (record.node_id, record.address):
        raise _ElsewhereError(other)


def _refuse_if_holding(name: str, shards: Mapping[int, ShardRecord], live_node_id: str | None) -> None:
    """What a live node has yet to delete counts as well; a dead one will never do it."""
    held = [
        number
        for number, shard in shards.items()
        if name in shard.replicas
        or any(name_of(member) == name for member in (*shard.voters, *shard.members.learners))
        or (live_node_id is not None and identity_of(name, live_node_id) in shard.leaving)
    ]
    if held:
        named = ", ".join(map(str, held[:_NAMED_MAX])) + (" …" if len(held) > _NAMED_MAX else "")
        raise change_refused(
            "holds_replicas",
            f"Expected {name} to hold nothing, but it has, or should have, replicas of {len(held)} shards ({named}); "
            "drain it, then make a plan and apply it.",
        )
