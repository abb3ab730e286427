"""What a node does for the shards of a cluster with a map, until map and shards say the same.

The map holds what is desired, and copies of what is so. The log of a shard is the only authority on its members. Its
leader:
  * brings them in line with what is desired, one change at a time,
  * tells the map each configuration that is committed, and with it who has left,
  * tells the map that it leads.
Every node deletes its replicas of shards that it has left, and founds those that it was chosen to found.

**A replica may come back to a node that has deleted one.** It has the same identity, so nobody must add it while it is
being deleted: whoever left is listed as leaving, in the same write that tells of the configuration without it; it takes
itself off the list once nothing of it is left; and a leader reads the list, not from its copy of the map but from etcd,
before it adds anybody, after it has told of its own configuration. (raft/node_journal.py keeps what it has promised.)

All work is begun anew until there is none left, so a crash at any line costs nothing but time.
"""

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from typing import Any

from holdfast.broker import failpoints
from holdfast.broker.cluster_view.map_view import MapClusterView
from holdfast.broker.peers.identities import name_of
from holdfast.broker.replica.host import Host
from holdfast.broker.replica.member_plan import MemberChange, Step, next_change
from holdfast.broker.replica.replica import Replica
from holdfast.cluster.etcd.api import EtcdError, EtcdUnavailableError
from holdfast.cluster.map.records import LeaderRecord, Members, RecordError, ShardRecord
from holdfast.cluster.map.store import MapStore
from holdfast.common.service import Service
from holdfast.raft.membership import ChangeRefusedError
from holdfast.routing.groups import incarnation_of
from holdfast.serving.logs import get_logger
from holdfast.serving.refusals import OutcomeUnknownError, RefusedError, change_refused

POLL_SECONDS = 0.25
EVERYWHERE_POLLS = 8
AGAIN_SECONDS = 1.0  # after something went wrong
WORKS_AT_ONCE_MAX = 16

_log = get_logger(__name__)


@dataclass(slots=True)
class _Pause:
    """After something went wrong with a shard."""

    until_s: float
    was: str  # logged once


class ShardReconciler:
    """`run` looks after all shards of this node. `connected` tells the identity of each node that is there, by name."""

    def __init__(
        self, host: Host, store: MapStore, cluster_view: MapClusterView, connected: Callable[[], Mapping[str, str]]
    ) -> None:
        self._host = host
        self._me = host.me
        self._store = store
        self._cluster_view = cluster_view
        self._connected = connected
        self._there: dict[str, str] = {}  # who is, by name, as of the last look
        self._background = Service()
        self._busy: set[int] = set()  # shards that something is done with: one thing at a time
        self._pauses: dict[int, _Pause] = {}
        self._slots = asyncio.Semaphore(WORKS_AT_ONCE_MAX)
        self.wanted = asyncio.Event()  # the map has changed, or who leads here

    async def run(self) -> None:
        polls = 0
        try:
            while True:
                # What others wait for this node to do is in the map; it need not be gone through at every look.
                self.poll(everywhere=self.wanted.is_set() or polls % EVERYWHERE_POLLS == 0)
                self.wanted.clear()
                polls += 1
                try:
                    async with asyncio.timeout(POLL_SECONDS):
                        await self.wanted.wait()
                except TimeoutError:
                    continue
        finally:
            await self._background.stop()
            self._busy.clear()  # also of those that had not begun

    def poll(self, *, everywhere: bool) -> None:
        """Begins whatever there is to do with the shards of this node, or with all."""
        self._there = {**self._connected(), name_of(self._me): self._me}
        shards = self._cluster_view.map.shards
        for number in list(shards if everywhere else self._host.replicas):
            record, replica = shards.get(number), self._host.replicas.get(number)
            work = None if record is None else self._work_of(number, record, replica)
            if work is not None:
                self._begin(number, work)

    def _work_of(
        self, number: int, record: ShardRecord, replica: Replica | None
    ) -> Callable[[int], Coroutine[Any, Any, None]] | None:
        if replica is None:
            if self._me in record.leaving:
                return self._retire
            is_founder = bool(record.founders) and record.founders[0] == self._me and not record.is_founded
            return self._found if is_founder and not self._is_of_backup() else None
        if replica.group != record.group:
            if incarnation_of(record.group) > incarnation_of(replica.group):
                return self._retire
            return self._reclaim if self._is_recovered(record, replica) else None
        if replica.shard.serves:
            is_settled = self._is_reported(number, record, replica) and self._is_as_desired(record, replica)
            return None if is_settled else self._reconcile
        if self._me in record.leaving:
            return self._retire
        return self._leave if self._is_stray(record, replica) else None

    def _is_of_backup(self) -> bool:
        """Whether shards begin with a state that an operator brings (api/backups.py), and not with nothing."""
        cluster = self._cluster_view.map.cluster
        return cluster is None or bool(cluster.backup_id)

    def _is_recovered(self, record: ShardRecord, replica: Replica) -> bool:
        """Whether an operator has made the shard anew of this replica alone (offline/restoring.py), and the map has not
        heard of it yet."""
        is_newer = incarnation_of(replica.group) > incarnation_of(record.group)
        return is_newer and replica.raft.configuration.members == (self._me,)

    def _is_stray(self, record: ShardRecord, replica: Replica) -> bool:
        """Whether nobody wants or knows this replica: it was made for a node that spoke of what is no more."""
        members = record.members
        is_known = self._me in (*members.voters, *members.learners) or name_of(self._me) in record.replicas
        return record.is_founded and not is_known and members.version >= replica.raft.configuration.version

    def _begin(self, number: int, work: Callable[[int], Coroutine[Any, Any, None]]) -> None:
        now_s = asyncio.get_running_loop().time()
        pause = self._pauses.get(number)
        if number not in self._busy and (pause is None or pause.until_s <= now_s):
            self._busy.add(number)
            self._background.spawn(self._do(number, work), f"reconciler {number}")

    async def _do(self, number: int, work: Callable[[int], Coroutine[Any, Any, None]]) -> None:
        try:
            async with self._slots:
                await work(number)
            self._pauses.pop(number, None)
        except (EtcdError, ChangeRefusedError, RefusedError, OutcomeUnknownError, RecordError) as error:
            self._pause(number, error)
        except Exception as error:  # noqa: BLE001 - a fault here must not end the node, which serves without it
            _log.error("reconciler_failed", shard=number, error=type(error).__name__, exc_info=error)
            self._pause(number, error)
        finally:
            self._busy.discard(number)

    def _pause(self, number: int, error: Exception) -> None:
        sentence = str(error) or type(error).__name__
        before = self._pauses.get(number)
        # Without etcd every shard has the same to say, and the follower of the map has said it.
        if (before is None or before.was != sentence) and not isinstance(error, EtcdUnavailableError):
            _log.info("put_off", shard=number, error=sentence)
        self._pauses[number] = _Pause(asyncio.get_running_loop().time() + AGAIN_SECONDS, sentence)

    # --- shards that this node leads --------------------------------------------------------------------------

    def _is_reported(self, number: int, record: ShardRecord, replica: Replica) -> bool:
        """Whether the map knows who leads and who the members are."""
        is_reported = record.is_founded and record.members.version >= replica.raft.configuration.version
        return is_reported and self._is_hinted(number, replica)

    def _is_hinted(self, number: int, replica: Replica) -> bool:
        # While it still serves it may have heard of a newer term: whoever leads in that one says so itself, and could
        # not if this node had done so before.
        if replica.raft.leader != self._me:
            return True
        hint = self._cluster_view.map.leaders.get(number)
        return hint is not None and hint.order >= self._leads(replica).order

    def _leads(self, replica: Replica) -> LeaderRecord:
        return LeaderRecord(name_of(self._me), replica.group, replica.raft.term)

    async def _hint(self, number: int, replica: Replica) -> None:
        if not self._is_hinted(number, replica):
            await self._store.hint_leader(number, self._leads(replica))

    def _is_as_desired(self, record: ShardRecord, replica: Replica) -> bool:
        now = replica.raft.configuration
        present = self._present(record)
        is_moving = any(present.get(name_of(voter), voter) != voter for voter in now.voters)
        return not now.learners and not is_moving and {name_of(voter) for voter in now.voters} == set(record.replicas)

    def _present(self, record: ShardRecord) -> dict[str, str]:
        """Who is there and may be a member: nobody who is being deleted."""
        return {name: identity for name, identity in self._there.items() if identity not in record.leaving}

    async def _reconcile(self, number: int) -> None:
        """Until nothing can be done at the moment."""
        while (replica := self._host.replicas.get(number)) is not None and replica.shard.serves:
            record = await self._read(number)
            raft = replica.raft
            if record is None or record.group != replica.group:
                return
            await self._hint(number, replica)
            if raft.configuration_index > raft.commit_index:
                return
            now = raft.configuration
            if record.members.version < now.version or not record.is_founded:
                failpoints.reached("reconciler:telling")
                await self._store.publish_members(number, replica.group, Members(now.version, now.voters, now.learners))
                failpoints.reached("reconciler:reported")
                continue
            if record.members.version > now.version:
                return  # somebody leads who knows more
            change = next_change(now, self._present(record), raft.has_caught_up, record.replicas, self._me)
            if change is None:
                return
            if change == MemberChange(Step.REMOVE, self._me):
                desired = [voter for voter in now.voters if name_of(voter) in record.replicas]
                if not await self._host.hand_over(replica, desired):
                    raise change_refused("NO_HAND_OVER", "Expected one of those who stay to take over, but none did.")
                return
            failpoints.reached(f"reconciler:{change.step.value}")
            await self._host.change_members(replica, change, now.version)
            failpoints.reached(f"reconciler:{change.step.value}_done")
            _log.info(
                "member_change", shard=number, step=change.step.value, replica=change.replica, version=now.version + 1
            )

    async def _read(self, number: int) -> ShardRecord | None:
        """Not from the copy: what is decided here must be decided on what is so."""
        found = await self._store.read_shard(number)
        return None if found is None else found[0]

    # --- shards that this node has, or should have ------------------------------------------------------------

    async def _retire(self, number: int) -> None:
        """Deletes a replica that has left its shard, or belongs to a former incarnation of it."""
        record = await self._read(number)
        if record is None:
            return
        replica = self._host.replicas.get(number)
        is_former = replica is not None and incarnation_of(record.group) > incarnation_of(replica.group)
        if self._me not in record.leaving and not is_former:
            return
        if replica is not None and not is_former and (replica.group != record.group or self._is_back(record, replica)):
            return
        if replica is not None:
            failpoints.reached("retire:dropping")
            await self._host.drop(replica)
            _log.info("replica_deleted", shard=number, former_incarnation=is_former)
        failpoints.reached("retire:dropped")
        if self._me in record.leaving:
            await self._store.forget_leaving(number, self._me)
        failpoints.reached("retire:forgotten")

    async def _reclaim(self, number: int) -> None:
        """Tells the map of a shard that was made anew of this replica: it is the shard from now on, and what others
        have of the former incarnation is deleted."""
        replica = self._host.replicas.get(number)
        if replica is None:
            return
        members = Members(replica.raft.configuration.version, (self._me,))
        record = await self._store.reclaim_shard(number, replica.group, members)
        if record.group == replica.group:
            _log.warning("shard_reclaimed", shard=number, incarnation=record.incarnation, node=name_of(self._me))

    async def _leave(self, number: int) -> None:
        """Puts this replica among those that leave: from then on nobody adds it, and it can be deleted."""
        await self._store.note_leaving(number, self._me)

    def _is_back(self, record: ShardRecord, replica: Replica) -> bool:
        """Whether the log knows of a later configuration, with this replica: then the record is an old one, as of an
        etcd that was restored from a backup, and the leader will tell the new one."""
        known = (configuration for _, configuration in replica.journal.configurations)
        return any(
            configuration.version > record.members.version and self._me in configuration.members
            for configuration in known
        )

    async def _found(self, number: int) -> None:
        """The first founder begins the shard. Its disk knows if it has done so before, whatever the map says."""
        record = await self._read(number)
        if record is None or record.is_founded or record.founders[0] != self._me or number in self._host.replicas:
            return
        if self._host.has_had(number, record.group):
            return
        self._host.found(number, record.group, record.founders)
