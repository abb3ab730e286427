"""Everything that changes the partition map. Each write compares what it was decided on, and is decided on again when
somebody was faster; after too many times it is refused with CONFLICT.

    store_shards.py   members of shards, hints of leaders        by the leaders of the shards
    store_nodes.py    registration, drain, removal               by brokers, and by operators
    bootstrap.py      the making of a cluster                    by operators, once
    here              queues, desired replicas, plans            by operators; what has drained: by leaders

Methods raise RefusedError for what people can be told, and pass errors of etcd on.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace

from holdfast.access.documents import to_json
from holdfast.access.policies import AccessPolicy
from holdfast.cluster.etcd.api import Delete, EtcdError, Put, Row
from holdfast.cluster.map.bootstrap import ClusterMaker
from holdfast.cluster.map.queues import QueueChange, change_queue, note_drained, note_draining
from holdfast.cluster.map.records import (
    ClusterRecord,
    PlanRecord,
    QueueRecord,
    RebalancingRecord,
    RecordError,
    ShardRecord,
    access_of,
)
from holdfast.cluster.map.store_nodes import NodeStore, check_destination
from holdfast.cluster.map.store_shards import shard_of
from holdfast.cluster.map.transactions import Decision
from holdfast.serving.access_rules import AccessRules
from holdfast.serving.logs import get_logger
from holdfast.serving.refusals import (
    CLUSTER_EXISTS,
    RefusedError,
    change_refused,
    no_cluster,
    plan_not_found,
    plan_under_way,
)

BEGIN_SECONDS_MAX = 2.0

_log = get_logger(__name__)

RebalancingChange = Callable[[RebalancingRecord], RebalancingRecord]
# Why a step must not begin now, given the plan, its number and the shard as they are; nothing if it may.
MayBegin = Callable[[PlanRecord, int, ShardRecord], str]


class MapStore(NodeStore):
    """The one writer's side of the map that brokers and routers share."""

    async def init_cluster(self, shards: int, replication: int) -> ClusterRecord:
        """Make the cluster, on the nodes that are there, or find it made; CLUSTER_EXISTS if it has another shape."""
        return await ClusterMaker(self).init(shards, replication)

    async def restore_cluster(self, replication: int, backup_id: str, incarnations: Sequence[int]) -> ClusterRecord:
        """The same, of a backup; the same backup again is a success."""
        try:
            return await ClusterMaker(self).init(
                len(incarnations), replication, backup_id=backup_id, incarnations=incarnations
            )
        except RefusedError as refused:
            if refused.reason == CLUSTER_EXISTS and (found := await self.cluster()).backup_id == backup_id:
                return found
            raise

    async def restore_queue(self, queue: str, record: QueueRecord) -> None:
        """Put the queue's record as it was, if it has none; one that was set meanwhile stays."""
        await self._change_queue(queue, lambda found: record if found is None else None)

    # Queues

    async def set_queue(self, queue: str, change: QueueChange) -> tuple[QueueRecord, int]:
        """The queue's record after the change, and its version."""
        shard_count = (await self.cluster()).shards
        found, version = await self._change_queue(
            queue, lambda record: change_queue(queue, record, change, shard_count)
        )
        return found or QueueRecord(), version

    async def read_queue(self, queue: str, cluster_id: str) -> tuple[QueueRecord, int]:
        """The queue's record as etcd has it at this moment, and its version, 0 if it has none.

        Refused if this is not the etcd of that cluster: then it says nothing about its queues.
        """
        row = await self.etcd.get(self.keys.queue(queue))
        cluster = await self.etcd.get(self.keys.cluster)  # after the queue: an etcd that lost both must not pass
        if cluster is None or ClusterRecord.decode(cluster.key.decode(), cluster.value).cluster_id != cluster_id:
            raise no_cluster()
        return (
            (QueueRecord(), 0) if row is None else (QueueRecord.decode(row.key.decode(), row.value), row.mod_revision)
        )

    async def note_drained(self, queue: str, shard: int) -> None:
        """The shard, which new tasks no longer go to, has none of the queue's any more."""
        shard_count = (await self.cluster()).shards
        await self._change_queue(queue, lambda record: note_drained(queue, record, shard, shard_count))

    async def note_draining(self, queue: str, shard: int) -> None:
        """The shard has some of the queue's tasks, though new ones do not go there."""
        shard_count = (await self.cluster()).shards
        await self._change_queue(queue, lambda record: note_draining(queue, record, shard, shard_count))

    async def _change_queue(
        self, queue: str, change: Callable[[QueueRecord | None], QueueRecord | None]
    ) -> tuple[QueueRecord | None, int]:
        key = self.keys.queue(queue)

        def decide(rows: Sequence[Row | None]) -> Decision[tuple[QueueRecord | None, int]]:
            row = rows[0]
            record = None if row is None else QueueRecord.decode(row.key.decode(), row.value)
            new = change(record)
            if new is None or new == (record or QueueRecord()):
                return Decision((record, row.mod_revision if row else 0))
            return Decision((new, 0), [Put(key, new.encode())])

        (found, version), revision = await self.decide([key], decide, f"the queue {queue}")
        return found, revision or version

    # Plans

    async def read_plan(self) -> tuple[PlanRecord, int] | None:
        """The plan under way as it is now, and the revision of its last change."""
        row = await self.etcd.get(self.keys.plan)
        return None if row is None else (plan_of(row), row.mod_revision)

    async def start_plan(self, plan: PlanRecord) -> PlanRecord:
        """Make it the one under way; the same again is a success, and goes on where it is."""

        def decide(rows: Sequence[Row | None]) -> Decision[PlanRecord]:
            if rows[0] is None:
                return Decision(plan, [Put(self.keys.plan, plan.encode())])
            found = plan_of(rows[0])
            if found.plan_id != plan.plan_id:
                raise plan_under_way(found.plan_id)
            return Decision(found)

        return (await self.decide([self.keys.plan], decide, "the plan"))[0]

    async def begin_move(self, plan_id: str, number: int, may_begin: MayBegin) -> tuple[PlanRecord, str]:
        """Desires the replica that a step moves, and write down that it began, in one commit.

        So two operators never begin the same step twice, nor two that must not be under way together: both need the
        plan as it was. The plan as it is then, and why the step did not begin, if it did not.
        """
        found = await self.read_plan()
        if found is None or found[0].plan_id != plan_id:
            raise plan_not_found(plan_id)
        step = found[0].steps[number]
        shard_key = self.keys.shard(step.shard)
        keys = [
            self.keys.plan,
            shard_key,
            self.keys.node(step.destination),
            self.keys.removed(step.destination),
        ]

        def decide(rows: Sequence[Row | None]) -> Decision[tuple[PlanRecord, str]]:
            plan_row, shard_row, node, removed = rows
            if plan_row is None or (plan := plan_of(plan_row)).plan_id != plan_id:
                raise plan_not_found(plan_id)
            if shard_row is None:
                return Decision((plan, f"there is no shard {step.shard}"))
            if number in plan.began:
                return Decision((plan, ""))
            shard = shard_of(shard_row)
            if why := check_destination(step.destination, node, removed) or may_begin(plan, number, shard):
                return Decision((plan, why))
            if step.source not in shard.replicas or step.destination in shard.replicas:
                return Decision((plan, "the shard was changed meanwhile"))
            desired = tuple(step.destination if name == step.source else name for name in shard.replicas)
            begun = replace(plan, began=tuple(sorted((*plan.began, number))))
            puts = [
                Put(shard_key, replace(shard, replicas=desired).encode()),
                Put(self.keys.plan, begun.encode()),
            ]
            return Decision((begun, ""), puts)

        return (await self.decide(keys, decide, "the plan"))[0]

    async def begin_steps(self, plan_id: str, numbers: Sequence[int]) -> PlanRecord:
        """Write down that these steps, which are transfers, were carried out."""

        def decide(rows: Sequence[Row | None]) -> Decision[PlanRecord]:
            if rows[0] is None or (plan := plan_of(rows[0])).plan_id != plan_id:
                raise plan_not_found(plan_id)
            began = tuple(sorted({*plan.began, *numbers}))
            if began == plan.began:
                return Decision(plan)
            begun = replace(plan, began=began)
            return Decision(begun, [Put(self.keys.plan, begun.encode())])

        return (await self.decide([self.keys.plan], decide, "the plan"))[0]

    async def finish_plan(self, plan_id: str) -> bool:
        """Forget it; False if it is not under way, because somebody else did, or another one is."""

        def decide(rows: Sequence[Row | None]) -> Decision[bool]:
            if rows[0] is None or plan_of(rows[0]).plan_id != plan_id:
                return Decision(False)
            return Decision(True, [Delete(self.keys.plan)])

        return (await self.decide([self.keys.plan], decide, "the plan"))[0]

    # Access

    async def read_access(self) -> tuple[AccessPolicy | None, int]:
        """The access rules as etcd has them, and their version; 0 if there are none."""
        row = await self.etcd.get(self.keys.access)
        return (None, 0) if row is None else (access_of(row.key.decode(), row.value), row.mod_revision)

    async def begin_access(self, access: AccessRules) -> None:
        """At a server's start: it goes by the rules of this moment before it serves. If etcd is away it goes by those
        that it knew last, and lets nobody in if it knew nothing."""
        try:
            async with asyncio.timeout(BEGIN_SECONDS_MAX):
                policy, _ = await self.read_access()
        except (TimeoutError, EtcdError, RecordError) as error:
            _log.warning("access_rules_not_read", error=str(error) or "etcd does not answer")
        else:
            access.take(policy)

    async def set_access(self, policy: AccessPolicy | None, version: int) -> int:
        """Put them in the place of those of this version; their version. CHANGE_REFUSED if others are there."""
        key = self.keys.access
        wanted = None if policy is None else to_json(policy)

        def decide(rows: Sequence[Row | None]) -> Decision[int]:
            row = rows[0]
            if (None if row is None else row.value) == wanted:
                return Decision(0 if row is None else row.mod_revision)
            if (0 if row is None else row.mod_revision) != version:
                raise change_refused(
                    "OTHER_VERSION",
                    "Expected the access rules to be as the caller has seen them, but somebody has changed them since: "
                    "look at them again, and change those.",
                )
            return Decision(0, [Delete(key) if wanted is None else Put(key, wanted)])

        found, revision = await self.decide([key], decide, "the access rules")
        return 0 if wanted is None else revision or found

    # Rebalancing

    async def change_rebalancing(self, change: RebalancingChange) -> RebalancingRecord:
        """The record after the change. `change` is asked again if somebody was faster."""
        key = self.keys.rebalancing

        def decide(rows: Sequence[Row | None]) -> Decision[RebalancingRecord]:
            row = rows[0]
            found = RebalancingRecord() if row is None else RebalancingRecord.decode(row.key.decode(), row.value)
            changed = change(found)
            return Decision(changed, [] if changed == found else [Put(key, changed.encode())])

        return (await self.decide([key], decide, "what is said of rebalancing"))[0]


def plan_of(row: Row) -> PlanRecord:
    return PlanRecord.decode(row.key.decode(), row.value)
