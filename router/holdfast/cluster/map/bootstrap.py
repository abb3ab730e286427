"""The making of a cluster: its shards first, and last the record that makes them count.

Only one initialisation can be under way: it holds the key `init`, bound to a lease, and every write compares it. So
one that was interrupted leaves at most records of shards that count for nothing, and the next one replaces them.
"""

import secrets
from collections.abc import Mapping, Sequence
from contextlib import suppress

from holdfast.cluster.etcd.api import (
    CommitUnknownError,
    Delete,
    EtcdError,
    LeaseLostError,
    Put,
    Unchanged,
)
from holdfast.cluster.map.records import REPLICATION_MAX, SHARDS_MAX, ClusterRecord, NodeRecord, ShardRecord
from holdfast.cluster.map.store_shards import node_of
from holdfast.cluster.map.transactions import ATTEMPTS_MAX, Transactions
from holdfast.cluster.placement.placement import NodeSpec, place
from holdfast.common.backoff import Backoff
from holdfast.routing.groups import RANDOM_BITS, mapped_group
from holdfast.serving.refusals import (
    INVALID_FIELD,
    OUT_OF_RANGE,
    RefusedError,
    cluster_exists,
    conflict,
    not_enough_nodes,
)

_LEASE_S = 30
_CHANGES_MAX = 100  # in one commit
_BACKOFF = Backoff(first_s=0.02, max_s=5.12)  # all of them together take less than the lease


class _MadeBeforeError(Exception):
    """There is a cluster of the very shape that is asked for."""

    def __init__(self, cluster: ClusterRecord) -> None:
        super().__init__(cluster.cluster_id)
        self.cluster = cluster


class ClusterMaker:
    """One initialisation. It may be asked for again: a cluster of the same shape is left as it is."""

    def __init__(self, transactions: Transactions) -> None:
        self._etcd = transactions.etcd
        self._keys = transactions.keys
        self._sleep = transactions.sleep

    async def init(
        self, shards: int, replication: int, *, backup_id: str = "", incarnations: Sequence[int] = ()
    ) -> ClusterRecord:
        """`backup_id`: its shards are founded of that backup, in these lives."""
        check_size(shards, replication)
        self._shape = shards, replication
        self._backup_id = backup_id
        try:
            return await self._init(shards, replication, incarnations)
        except _MadeBeforeError as made:
            return made.cluster

    async def _init(self, shards: int, replication: int, incarnations: Sequence[int]) -> ClusterRecord:
        await self._check_not_there()
        nodes = await self._nodes()
        if len(nodes) < replication:
            raise not_enough_nodes(replication, len(nodes))
        lease = await self._etcd.grant(_LEASE_S)
        try:
            held = await self._hold(lease)
            records = first_records(shards, replication, nodes, incarnations)
            cluster = ClusterRecord(secrets.token_hex(16), shards, replication, self._backup_id)
            return await self._write(cluster, records, held)
        except LeaseLostError:
            raise conflict("the cluster") from None
        finally:
            with suppress(EtcdError):
                await self._etcd.revoke(lease)

    async def _write(
        self, cluster: ClusterRecord, records: Mapping[int, ShardRecord], held: Unchanged
    ) -> ClusterRecord:  # fmt: skip
        compares = [held, Unchanged(self._keys.cluster, 0)]
        await self._delete_rest(compares)
        puts = [Put(self._keys.shard(number), record.encode()) for number, record in records.items()]
        for start in range(0, len(puts), _CHANGES_MAX):
            await self._commit(compares, puts[start : start + _CHANGES_MAX])
        await self._commit(compares, [Put(self._keys.cluster, cluster.encode())], cluster)
        return cluster

    async def _nodes(self) -> list[NodeRecord]:
        """Those that are there and do not drain."""
        snapshot = await self._etcd.read(self._keys.prefix)
        names = {row.key for row in snapshot.rows}
        found = [node_of(row) for row in snapshot.rows if row.key.startswith(self._keys.nodes)]
        return [node for node in found if self._keys.drain(node.name) not in names]

    async def _hold(self, lease: int) -> Unchanged:
        """Be the only one; the condition that says so still."""
        key, token = self._keys.init, secrets.token_hex(16).encode()
        with suppress(CommitUnknownError):
            await self._etcd.commit([Unchanged(key, 0), Unchanged(self._keys.cluster, 0)], [Put(key, token, lease)])
        row = await self._etcd.get(key)
        if row is None or row.value != token:
            await self._check_not_there()
            raise conflict("the cluster")
        return Unchanged(key, row.mod_revision)

    async def _delete_rest(self, compares: Sequence[Unchanged]) -> None:
        """What an interrupted one has left; it may have wanted more shards."""
        snapshot = await self._etcd.read(self._keys.shards)
        deletes = [Delete(row.key) for row in snapshot.rows]
        for start in range(0, len(deletes), _CHANGES_MAX):
            await self._commit(compares, deletes[start : start + _CHANGES_MAX])

    async def _commit(
        self, compares: Sequence[Unchanged], changes: Sequence[Put | Delete], cluster: ClusterRecord | None = None
    ) -> None:
        """cluster: what this commit puts last; once it is there, it is done."""
        for attempt in range(ATTEMPTS_MAX):
            if attempt:
                await self._sleep(_BACKOFF.longest_s(attempt))
            try:
                committed = await self._etcd.commit(compares, changes)
            except CommitUnknownError:
                if attempt == ATTEMPTS_MAX - 1:
                    raise
                continue
            if committed.is_done:
                return
            row = await self._etcd.get(self._keys.cluster)
            if cluster is not None and row is not None and row.value == cluster.encode():
                return  # an earlier attempt of this commit, whose answer was lost
            await self._check_not_there()
            raise conflict("the cluster")

    async def _check_not_there(self) -> None:
        row = await self._etcd.get(self._keys.cluster)
        if row is None:
            return
        found = ClusterRecord.decode(row.key.decode(), row.value)
        # What is restored from a backup is not the cluster that was made before, unless of the same one.
        if (found.shards, found.replication) == self._shape and self._backup_id in ("", found.backup_id):
            raise _MadeBeforeError(found)
        raise cluster_exists(found.cluster_id, found.shards, found.replication)


def check_size(shards: int, replication: int) -> None:
    for value, field, high in ((shards, "shards", SHARDS_MAX), (replication, "replication", REPLICATION_MAX)):
        if not 1 <= value <= high:
            raise RefusedError(
                OUT_OF_RANGE, f"Expected {{field}} from 1 to {high}, but got {value}.", field, f"1..{high}"
            )
    if replication % 2 == 0:
        raise RefusedError(
            INVALID_FIELD,
            f"Expected {{field}} to be odd, but got {replication}: it survives the loss of no more nodes than "
            f"{replication - 1} and needs one more.",
            "replication",
            "1, 3, 5, 7 or 9",
        )


def first_records(
    shards: int, replication: int, nodes: Sequence[NodeRecord], incarnations: Sequence[int] = ()
) -> dict[int, ShardRecord]:
    """Each shard with its first replicas, in its first life, or in the one that is named."""
    by_name = {node.name: node for node in nodes}
    placed = place(shards, replication, [NodeSpec(node.name, node.zone, node.capacity) for node in nodes])
    return {
        number: ShardRecord(
            group=mapped_group(incarnations[number] if incarnations else 1, secrets.randbits(RANDOM_BITS)),
            replicas=tuple(names),
            founders=tuple(by_name[name].identity for name in names),
        )
        for number, names in sorted(placed.items())
    }
