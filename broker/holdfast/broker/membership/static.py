"""A static cluster: the list of nodes in the configuration, how it is founded, and how membership follows it.

The first node of the list founds all shards, once, when all nodes are there and none of them has anything yet: not a
log, not a vote, not a promise. From then on the log of each shard is the only authority on its members; its leader
brings them in line with the list, one change at a time.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from holdfast.broker.config import BrokerConfig
from holdfast.broker.leader.clock import TimeSource
from holdfast.broker.leader.clock_evidence import ClockEvidence
from holdfast.broker.membership.peer_cluster import PeerCluster
from holdfast.broker.peers.identities import node_list_digest
from holdfast.broker.replica.commit_loop import CommitLoop
from holdfast.broker.replica.host import Host
from holdfast.broker.replica.member_plan import MemberChange, Step, next_change
from holdfast.broker.replica.peer_wire import PeerWire, host_and_port
from holdfast.broker.replica.replica import Replica
from holdfast.common.service import Service
from holdfast.raft.membership import ChangeRefusedError
from holdfast.serving.logs import get_logger
from holdfast.serving.reloading import Reloaded

FOUND_SECONDS = 0.5  # between attempts to found
WAITING_SECONDS = 2.0  # without anything before that is said, and then
WAITING_AGAIN_SECONDS = 30.0

_log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Waiting:
    """What a node without anything waits for."""

    missing: list[str]  # nodes of the list to which there is no connection
    with_data: list[str]  # nodes that have a log: the cluster is there already

    @property
    def event(self) -> str:
        return "waiting_to_join" if self.with_data else "waiting_to_found"

    @property
    def sentence(self) -> str:
        if self.with_data:
            return f"this node has no data and waits for the leader to add it; {', '.join(self.with_data)} has data"
        if self.missing:
            return f"waiting for {', '.join(self.missing)}: a cluster is founded when all of its nodes are there"
        return "all nodes are there, and the first of the list is about to found the cluster"


class StaticCluster(PeerCluster):
    """The other nodes, for a node that is not alone."""

    def __init__(self, config: BrokerConfig, host: Host, commit_loop: CommitLoop, wire: PeerWire) -> None:
        super().__init__(host, commit_loop, wire)
        self._config = config
        self._changed = asyncio.Event()  # somebody came or went

    async def start(self) -> int:
        return await self._wire.start()

    async def stop(self) -> None:
        await self._wire.stop()

    def peers_changed(self) -> None:
        self._changed.set()

    @property
    def certificates(self) -> Sequence[Reloaded[Any] | None]:
        return (self._peers.certificates,)

    async def run(self) -> None:
        """Founds the cluster, if that is this node's part and has not been done, and lets its clock be heard."""
        await Service(self._found, self._wire.report_time, self._report_waiting).run()

    async def _report_waiting(self) -> None:
        """A node that has nothing and serves nothing must say what it waits for."""
        await asyncio.sleep(WAITING_SECONDS)
        while self._host.is_empty:
            waiting = self.waiting()
            _log.warning(
                waiting.event, missing=waiting.missing, with_data=waiting.with_data,
                founder=self._config.nodes[0].name, detail=waiting.sentence,
            )  # fmt: skip
            await asyncio.sleep(WAITING_AGAIN_SECONDS)

    def waits_for(self) -> str:
        """What a node without anything waits for, in a sentence."""
        return self.waiting().sentence

    def waiting(self) -> Waiting:
        connected = self._peers.connected()
        others = [node.name for node in self._config.nodes if node.name != self._config.node_name]
        return Waiting(
            [name for name in others if name not in connected],
            [name for name in others if name in connected and not connected[name].empty],
        )

    async def _found(self) -> None:
        if self._config.nodes[0].name != self._config.node_name:
            return
        while self._host.is_empty:
            self._changed.clear()
            if await self._peers.all_empty() and self._host.is_empty:
                connected = self._peers.connected()
                if len(connected) == len(self._config.nodes) - 1:
                    self._host.found_all([self._host.me, *(peer.identity for peer in connected.values())])
                    return
            try:
                async with asyncio.timeout(FOUND_SECONDS):
                    await self._changed.wait()
            except TimeoutError:
                continue

    def replica_polled(self, replica: Replica) -> None:
        """In the rounds of a shard that this node leads: brings its members in line with the list, by one step."""
        if not replica.shard.serves:
            return
        present = {name: peer.identity for name, peer in self._peers.connected().items()}
        present[self._config.node_name] = self._host.me
        raft = replica.raft
        change = next_change(raft.configuration, present, raft.has_caught_up)
        if change is not None:
            self._change(replica, change)

    def _change(self, replica: Replica, change: MemberChange) -> None:
        raft = replica.raft
        steps: dict[Step, Callable[[str, int], int]] = {
            Step.ADD: raft.add_member,
            Step.PROMOTE: raft.promote,
            Step.REMOVE: raft.remove,
        }
        try:
            index = steps[change.step](change.replica, raft.configuration.version)
        except ChangeRefusedError as refused:
            _log.debug("member_change_refused", shard=replica.number, step=change.step.value, reason=str(refused))
            return
        _log.info(
            "member_change", shard=replica.number, step=change.step.value, replica=change.replica, index=index,
            version=raft.configuration.version,
        )  # fmt: skip


def static_wire(config: BrokerConfig, node_id: str, source: TimeSource, evidence: ClockEvidence) -> PeerWire:
    """To the other nodes of the list."""
    others = {node.name: host_and_port(node.peer_address) for node in config.nodes if node.name != config.node_name}
    return PeerWire(config, node_id, source, evidence, digest=_digest(config), addresses=others)


def _digest(config: BrokerConfig) -> bytes:
    """Of all that must be the same on every node."""
    rows = [[node.name, node.address, node.peer_address] for node in config.nodes]
    return node_list_digest([*rows, ["shards", str(config.shards)]])
