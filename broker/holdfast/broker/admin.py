"""What operators may ask of a node: how its replicas are, who should lead, who belongs to a shard, and hashes.

Everything that touches an engine is done inside a round.
"""

import asyncio
import importlib.metadata
from collections.abc import Callable
from typing import TypeVar

from holdfast.broker.checkpoints import Checkpointer
from holdfast.broker.config import BrokerConfig
from holdfast.broker.hosting import Host
from holdfast.broker.log.node_log import NodeLog
from holdfast.broker.peers.identities import name_of
from holdfast.broker.raft.library import CANDIDATE, LEADER
from holdfast.broker.raft.membership import ChangeRefusedError
from holdfast.broker.raft.messages import PROBE
from holdfast.broker.refusals import OutcomeUnknownError, change_refused, probe_not_found
from holdfast.broker.replica import Replica
from holdfast.broker.shard_service import (
    ChangeKind,
    LeaderView,
    NodeAddress,
    NodeView,
    ProbeView,
    ReplicaView,
    Role,
)

CHANGE_SECONDS_MAX = 10.0  # for a change of leader or members to come about

Result = TypeVar("Result")


class Admin:
    """See `ShardAdmin`."""

    def __init__(
        self, config: BrokerConfig, node_id: str, host: Host, log: NodeLog, checkpointer: Checkpointer
    ) -> None:
        self._config = config
        self._node_id = node_id
        self._host = host
        self._log = log
        self._checkpointer = checkpointer
        self.own_address = ""  # known once the server listens

    # --- looks ------------------------------------------------------------------------------------------------

    def describe(self) -> NodeView:
        replicas = [self._describe(replica) for _, replica in sorted(self._host.replicas.items())]
        version = importlib.metadata.version("holdfast")
        return NodeView(self._config.node_name, self._node_id, version, self._nodes(), replicas)

    def _nodes(self) -> list[NodeAddress]:
        if not self._config.nodes:
            return [NodeAddress(self._config.node_name, self.own_address)]
        return [NodeAddress(node.name, node.address) for node in self._config.nodes]

    def _describe(self, replica: Replica) -> ReplicaView:
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
        )

    def find_leader(self, shard: int) -> LeaderView:
        raft = self._host.find(shard).raft
        if raft.leader is None or (raft.leader == self._host.me and not self._host.find(shard).shard.serves):
            return LeaderView(raft.term, None)
        name = name_of(raft.leader)
        return LeaderView(raft.term, next((node for node in self._nodes() if node.name == name), None))

    # --- changes ----------------------------------------------------------------------------------------------

    async def transfer(self, shard: int, to: str) -> LeaderView:
        replica = self._host.find(shard)
        if not replica.shard.serves:
            raise self._host.redirect(shard)
        members = [voter for voter in replica.raft.configuration.voters if name_of(voter) == to]
        if not members:
            raise change_refused("NOT_A_VOTER", f"Expected a voter of shard {shard}, but {to} is none.")
        if members[0] != self._host.me and not await self._in_round(
            replica, lambda: replica.raft.hand_over(members[0])
        ):
            raise self._host.redirect(shard)
        try:
            async with asyncio.timeout(CHANGE_SECONDS_MAX):
                while replica.raft.leader != members[0]:
                    await replica.next_round()
        except TimeoutError:
            raise change_refused("NO_HAND_OVER", f"Expected {to} to take over, but it did not in time.") from None
        return self.find_leader(shard)

    async def change_membership(self, shard: int, expected_version: int, kind: ChangeKind, replica: str) -> int:
        here = self._host.find(shard)
        if not here.shard.serves:
            raise self._host.redirect(shard)
        raft = here.raft
        if kind is ChangeKind.REMOVE and replica == self._host.me and raft.configuration.version == expected_version:
            # A leader cannot remove itself: another takes over, and the caller is sent there.
            await self._host.hand_over(here)
            raise self._host.redirect(shard)
        steps = {ChangeKind.ADD: raft.add_member, ChangeKind.PROMOTE: raft.promote, ChangeKind.REMOVE: raft.remove}
        try:
            index = await self._in_round(here, lambda: steps[kind](replica, expected_version))
        except ChangeRefusedError as refused:
            if refused.reason == "ALREADY":
                return raft.configuration.version
            raise change_refused(refused.reason, str(refused)) from None
        await self._committed(here, index)
        return expected_version + 1

    # --- hashes -----------------------------------------------------------------------------------------------

    async def probe(self, shard: int) -> int:
        replica = self._host.find(shard)
        if not replica.shard.serves:
            raise self._host.redirect(shard)
        index = await self._in_round(replica, lambda: replica.raft.propose(b"", PROBE))
        if index is None:
            raise self._host.redirect(shard)
        await self._committed(replica, index)
        return index

    async def read_probe(self, shard: int, index: int, wait_ms: int) -> ProbeView:
        replica = self._host.find(shard)
        probes = self._host.probes[shard]
        found = await probes.wait_for(index, lambda: replica.applied_index, wait_ms / 1000)
        if found is None and probes.has_lost(index, replica.applied_index):
            raise probe_not_found(shard, index)
        return ProbeView(replica.applied_index, found)

    # --- shared -----------------------------------------------------------------------------------------------

    async def _in_round(self, replica: Replica, act: Callable[[], Result]) -> Result:
        return await self._host.in_round(replica, act)

    async def _committed(self, replica: Replica, index: int) -> None:
        """Waits until an entry of this leader is applied; if it leads no more, nobody here knows what becomes of it."""
        term = replica.raft.term
        try:
            async with asyncio.timeout(CHANGE_SECONDS_MAX):
                while replica.applied_index < index:
                    if replica.raft.term != term or replica.raft.role != LEADER:
                        raise OutcomeUnknownError
                    await replica.next_round()
        except TimeoutError:
            raise OutcomeUnknownError from None


def _role(replica: Replica, me: str) -> Role:
    raft = replica.raft
    if raft.role == LEADER:
        return Role.LEADER
    if raft.role == CANDIDATE:
        return Role.CANDIDATE
    if not raft.configuration.version:
        return Role.BLANK
    return Role.FOLLOWER if me in raft.configuration.voters else Role.LEARNER
