"""What operators may ask of a node: how its replicas are, who should lead, who belongs to a shard, and hashes.

Everything that touches an engine is done inside a round.
"""

import asyncio
import time

from holdfast.broker.api.shards import (
    LeaderView,
    NodeView,
    ProbeView,
    ReplicaView,
    Role,
)
from holdfast.broker.cluster_view.view import ClusterView
from holdfast.broker.config import BrokerConfig
from holdfast.broker.peers.identities import name_of
from holdfast.broker.replica.host import CHANGE_SECONDS_MAX, Host, committed
from holdfast.broker.replica.replica import Replica
from holdfast.broker.replica.successors import answers, caught_up
from holdfast.raft.engine import ShardRaft
from holdfast.raft.library import CANDIDATE, LEADER
from holdfast.raft.messages import NO_CONFIGURATION, EntryKind
from holdfast.serving.refusals import change_refused, overloaded, probe_not_found
from holdfast.storage.checkpoints import Checkpointer
from holdfast.wal.node_log import NodeLog
from holdfast_queue import version

HAND_OVER_LAG_MAX = 10_000  # entries that a new leader may lack: it gets them while nothing is served


class Admin:
    """See `ShardAdmin`."""

    def __init__(
        self,
        config: BrokerConfig,
        node_id: str,
        host: Host,
        cluster_view: ClusterView,
        log: NodeLog,
        checkpointer: Checkpointer,
    ) -> None:
        self._config = config
        self._node_id = node_id
        self._host = host
        self._cluster_view = cluster_view
        self._log = log
        self._checkpointer = checkpointer
        self._probing: set[int] = set()
        self._version = version()  # reads a file

    # --- looks ------------------------------------------------------------------------------------------------

    def describe(self) -> NodeView:
        numbers = {*self._host.replicas, *self._cluster_view.shards_here}
        replicas = [self._describe(number) for number in sorted(numbers)]
        nodes = self._cluster_view.nodes
        return NodeView(
            self._config.node_name, self._node_id, self._version, nodes, replicas, is_stopping=self._host.is_stopping
        )

    def _describe(self, number: int) -> ReplicaView:
        replica = self._host.replicas.get(number)
        if replica is None:
            return _not_there_yet(number)
        raft = replica.raft
        age_s = self._checkpointer.age_s(replica.number)
        return ReplicaView(
            shard=replica.number,
            role=_role(replica, self._host.me),
            term=raft.term,
            leader=None if raft.leader is None else name_of(raft.leader),
            commit_index=raft.commit_index,
            applied_index=replica.applied_index,
            last_index=raft.last_index,
            lag=replica.lag,
            log_bytes=self._log.bytes_after(replica.number, raft.base_index),
            snapshot_age_ms=None if age_s is None else int(age_s * 1000),
            configuration=raft.configuration,
            problem=self._host.problem_of(replica.number) or self._host.clock_problem(replica.number),
            state_bytes=self._host.state_bytes(replica.number),
            caught_up=caught_up(raft, time.monotonic()) if replica.shard.serves else (),
        )

    def find_leader(self, shard: int) -> LeaderView:
        raft = self._host.find(shard).raft
        if raft.leader is None or (raft.leader == self._host.me and not self._host.find(shard).shard.serves):
            return LeaderView(raft.term, None)
        name = name_of(raft.leader)
        return LeaderView(raft.term, next((node for node in self._cluster_view.nodes if node.name == name), None))

    # --- changes ----------------------------------------------------------------------------------------------

    async def transfer(self, shard: int, to: str) -> LeaderView:
        replica = self._host.find_leading(shard)
        voters = {name_of(voter): voter for voter in replica.raft.configuration.voters}
        if to not in voters:
            names = ", ".join(voters)
            raise change_refused("NOT_A_VOTER", f"Expected a voter of shard {shard}, but {to} is none of {names}.")
        if voters[to] != self._host.me:
            if not self._cluster_view.takes_leadership(to):
                raise change_refused("LEAVING", f"Expected a node that stays, but {to} is about to be stopped.")
            await self._hand_over(replica, voters[to])
        return self.find_leader(shard)

    async def _hand_over(self, replica: Replica, member: str) -> None:
        """Returns once it leads. Whoever cannot take over is not tried: nothing is served meanwhile."""
        to, raft = name_of(member), replica.raft
        try:
            async with asyncio.timeout(2 * raft.timing.election_s_max):
                while not self._can_lead(raft, member) and replica.shard.serves:
                    await replica.next_round()
        except TimeoutError:
            raise change_refused(
                "NOT_CAUGHT_UP",
                f"Expected {to} to be able to lead shard {replica.number}, but it does not answer or is behind: "
                f"it lacks {raft.peer_lag(member)} entries; see `holdfast shard ls`.",
            ) from None
        if not await self._host.in_round(replica, lambda: replica.raft.hand_over(member)):
            raise self._host.redirect(replica.number)
        await taken_over(replica, member)

    @staticmethod
    def _can_lead(raft: ShardRaft, member: str) -> bool:
        return answers(raft, member, time.monotonic()) and raft.peer_lag(member) <= HAND_OVER_LAG_MAX

    # --- hashes -----------------------------------------------------------------------------------------------

    async def probe(self, shard: int) -> int:
        replica = self._host.find_leading(shard)
        if shard in self._probing or self._host.probes[shard].is_busy:
            raise overloaded(f"probes of shard {shard}", 1)  # each has every replica read all of its state
        self._probing.add(shard)
        try:
            return await self._write_probe(shard, replica)
        finally:
            self._probing.discard(shard)

    async def _write_probe(self, shard: int, replica: Replica) -> int:
        index, term = await self._host.in_round(
            replica, lambda: (replica.raft.propose(b"", EntryKind.PROBE), replica.raft.term)
        )
        if index is None:
            raise self._host.redirect(shard)
        await committed(replica, index, term)
        return index

    async def read_probe(self, shard: int, index: int, wait_ms: int) -> ProbeView:
        replica = self._host.find(shard)
        probes = self._host.probes[shard]
        found = await probes.wait_for(index, lambda: replica.applied_index, wait_ms / 1000)
        if found is None and probes.has_lost(index, replica.applied_index):
            raise probe_not_found(shard, index)
        return ProbeView(replica.applied_index, found)


async def taken_over(replica: Replica, member: str) -> None:
    """Returns once the member leads, after a hand-over to it has begun."""
    raft, to = replica.raft, name_of(member)
    try:
        async with asyncio.timeout(CHANGE_SECONDS_MAX):
            while raft.leader != member:
                if raft.accepts:
                    raise TimeoutError  # it serves again
                if raft.leader not in (None, raft.replica):
                    other = name_of(raft.leader)
                    raise change_refused("NO_HAND_OVER", f"Expected {to} to take over, but {other} was faster.")
                await replica.next_round()
    except TimeoutError:
        raise change_refused("NO_HAND_OVER", f"Expected {to} to take over, but it did not in time.") from None


def _not_there_yet(number: int) -> ReplicaView:
    """A shard of the cluster of which this node has heard nothing yet: nobody has founded it, or it lost its disk."""
    return ReplicaView(
        shard=number,
        role=Role.BLANK,
        term=0,
        leader=None,
        commit_index=0,
        applied_index=0,
        last_index=0,
        lag=0,
        log_bytes=0,
        snapshot_age_ms=None,
        configuration=NO_CONFIGURATION,
    )


def _role(replica: Replica, me: str) -> Role:
    raft = replica.raft
    if raft.role == LEADER:
        return Role.LEADER
    if raft.role == CANDIDATE:
        return Role.CANDIDATE
    if not raft.configuration.version:
        return Role.BLANK
    return Role.FOLLOWER if me in raft.configuration.voters else Role.LEARNER
