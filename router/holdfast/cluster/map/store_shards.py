"""Writes about shards: who should have them, who does, and who leads."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from holdfast.cluster.etcd.api import Put, Row
from holdfast.cluster.map.records import LeaderRecord, Members, NodeRecord, ShardRecord, name_of
from holdfast.cluster.map.transactions import Decision, Transactions
from holdfast.routing.groups import incarnation_of
from holdfast.serving.refusals import SHARD_NOT_FOUND, RefusedError

# The shard's next record; None if it is right as it is.
ShardChange = Callable[[ShardRecord], ShardRecord | None]


class ShardStore(Transactions):
    """For the leaders of shards and the nodes that have replicas of them."""

    async def read_shard(self, shard: int) -> tuple[ShardRecord, int] | None:
        """The record as it is now, and the revision of its last change."""
        row = await self.etcd.get(self.keys.shard(shard))
        return None if row is None else (shard_of(row), row.mod_revision)

    async def read_shards(self) -> Mapping[int, ShardRecord]:
        snapshot = await self.etcd.read(self.keys.shards)
        return {int(row.key[-5:]): shard_of(row) for row in snapshot.rows}

    async def publish_members(self, shard: int, group: int, members: Members) -> ShardRecord:
        """Tell who belongs to the shard, and so that it is founded. The record as it is then.

        Nothing changes if the shard is of another founding by now, or if newer members were told. Whoever belonged to
        it before and does not any more has to delete its replica: it is put into `leaving`.
        """
        replaced = await self._replaced_nodes(shard)

        def change(record: ShardRecord) -> ShardRecord | None:
            if record.group != group or (record.is_founded and members.version <= record.members.version):
                return None
            before = {*record.leaving, *record.voters, *record.members.learners}
            leaving = before - {*members.voters, *members.learners} - replaced
            return replace(record, is_founded=True, members=members, leaving=tuple(sorted(leaving)))

        return await self.change_shard(shard, change)

    async def reclaim_shard(self, shard: int, group: int, members: Members) -> ShardRecord:
        """A later life of the shard has begun, with these members alone; the record as it is then. Nothing changes if
        the map knows of that life, or of a later one."""

        def change(record: ShardRecord) -> ShardRecord | None:
            if incarnation_of(record.group) >= incarnation_of(group):
                return None
            return replace(
                record, group=group, founders=members.voters, is_founded=True, members=members, leaving=()
            )  # fmt: skip

        return await self.change_shard(shard, change)

    async def note_leaving(self, shard: int, identity: str) -> None:
        """A replica that nobody wants or knows is to be deleted. Nothing changes if somebody does by now."""

        def change(record: ShardRecord) -> ShardRecord | None:
            members = {*record.voters, *record.members.learners}
            if identity in members or name_of(identity) in record.replicas or identity in record.leaving:
                return None
            return replace(record, leaving=tuple(sorted((*record.leaving, identity))))

        await self.change_shard(shard, change)

    async def forget_leaving(self, shard: int, identity: str) -> None:
        """The replica is deleted, or will never be seen again."""

        def change(record: ShardRecord) -> ShardRecord | None:
            if identity not in record.leaving:
                return None
            return replace(record, leaving=tuple(replica for replica in record.leaving if replica != identity))

        await self.change_shard(shard, change)

    async def hint_leader(self, shard: int, leader: LeaderRecord) -> bool:
        """Tell who leads. False if a later one was told of: hints only move forward."""
        key = self.keys.leader(shard)

        def decide(rows: Sequence[Row | None]) -> Decision[bool]:
            row, shard_row = rows
            known = None if row is None else LeaderRecord.decode(row.key.decode(), row.value)
            group = None if shard_row is None else shard_of(shard_row).group
            # Of the same life, but not of this founding: left by a cluster that was here before.
            is_foreign = (
                known is not None and known.order[0] == leader.order[0] and known.group != leader.group == group
            )
            if known is None or known.order < leader.order or is_foreign:
                return Decision(True, [Put(key, leader.encode())])
            return Decision(known == leader)

        return (await self.decide([key, self.keys.shard(shard)], decide, f"the leader of shard {shard}"))[0]

    async def change_shard(self, shard: int, change: ShardChange) -> ShardRecord:
        key = self.keys.shard(shard)

        def decide(rows: Sequence[Row | None]) -> Decision[ShardRecord]:
            if rows[0] is None:
                raise RefusedError(SHARD_NOT_FOUND, f"Expected a record of shard {shard}, but there is none.", "shard")
            record = shard_of(rows[0])
            new = change(record)
            return Decision(record) if new is None or new == record else Decision(new, [Put(key, new.encode())])

        return (await self.decide([key], decide, f"the shard {shard}"))[0]

    async def _replaced_nodes(self, shard: int) -> set[str]:
        """Those leaving whose name is now that of a node with other data: there is nothing left to delete."""
        found = await self.read_shard(shard)
        replaced = set()
        for identity in found[0].leaving if found else ():
            row = await self.etcd.get(self.keys.node(name_of(identity)))
            if row is not None and node_of(row).identity != identity:
                replaced.add(identity)
        return replaced


def shard_of(row: Row) -> ShardRecord:
    return ShardRecord.decode(row.key.decode(), row.value)


def node_of(row: Row) -> NodeRecord:
    key = row.key.decode()
    return NodeRecord.decode(key, row.value, key.rpartition("/")[2])
