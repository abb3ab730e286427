"""A static cluster: the list of nodes in the configuration, how it is founded, and how membership follows it.

The first node of the list founds all shards, once, when all nodes are there and none of them has anything yet: not a
log, not a vote, not a promise. From then on the log of each shard is the only authority on its members; its leader
brings them in line with the list, one change at a time.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from holdfast.broker.clock import TimeSource
from holdfast.broker.clock_evidence import ClockEvidence
from holdfast.broker.config import BATCH_BYTES_LIMIT, BrokerConfig, ClusterNode
from holdfast.broker.hosting import Host
from holdfast.broker.member_plan import Change, Step, next_change
from holdfast.broker.peers.bodies import BodyError, pack, pack_within, unpack
from holdfast.broker.peers.identities import node_list_digest
from holdfast.broker.peers.records import PeerLimits
from holdfast.broker.peers.tls import PeerTls
from holdfast.broker.peers.transport import Peers
from holdfast.broker.raft.membership import ChangeRefusedError
from holdfast.broker.replica import Replica
from holdfast.broker.rounds import Message, Rounds
from holdfast.serving.logs import get_logger

CLOCK_SECONDS = 1.0
FOUND_SECONDS = 0.5  # between attempts to found
WAITING_SECONDS = 2.0  # without anything before that is said, and then
WAITING_AGAIN_SECONDS = 30.0
FRAME_SPARE_BYTES = 4 * 1024 * 1024  # beyond the largest batch: one more message, and heads

_log = get_logger(__name__)


class PeerWire:
    """Frames to and from the other nodes, for `Rounds`."""

    def __init__(self, peers: Peers, rounds: Rounds, evidence: ClockEvidence, source: TimeSource, body_bytes_max: int):
        self._peers = peers
        self._rounds = rounds
        self._evidence = evidence
        self._source = source
        self._body_bytes_max = body_bytes_max

    def send(self, identity: str, messages: list[Message]) -> None:
        for body in pack_within(int(self._source.wall_ms()), messages, self._body_bytes_max):
            self._peers.send(identity, body)

    def send_clock(self, identity: str) -> None:
        """A frame without messages, which carries the time."""
        self._peers.send(identity, pack(int(self._source.wall_ms()), ()))

    def on_frame(self, identity: str, body: bytes) -> None:
        try:
            wall_ms, messages = unpack(body)
        except BodyError as error:
            self._peers.drop(identity, str(error))
            return
        self._evidence.note(identity, wall_ms)
        self._rounds.receive(identity, messages)

    def pause_reading(self) -> None:
        self._peers.pause_reading()

    def resume_reading(self) -> None:
        self._peers.resume_reading()


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


class Cluster:
    """The other nodes, for a node that is not alone."""

    def __init__(self, config: BrokerConfig, node_id: str, host: Host, rounds: Rounds, source: TimeSource) -> None:
        self._config = config
        self._host = host
        self._rounds = rounds
        self._changed = asyncio.Event()  # somebody came or went
        # Not by the present setting: the log may have entries from a time when more was allowed in one call.
        body_bytes_max = BATCH_BYTES_LIMIT + FRAME_SPARE_BYTES
        others = [node for node in config.nodes if node.name != config.node_name]
        self.peers = Peers(
            name=config.node_name,
            node_id=node_id,
            cluster=config.cluster_name,
            digest=_digest(config),
            blank=lambda: host.is_blank,
            addresses={node.name: _host_and_port(node) for node in others},
            on_frame=lambda identity, body: self.wire.on_frame(identity, body),
            on_change=self._changed.set,
            tls=_tls(config),
            limits=PeerLimits(body_bytes_max=body_bytes_max, outgoing_bytes_max=body_bytes_max),
        )
        self.wire = PeerWire(self.peers, rounds, host.evidence, source, body_bytes_max)
        rounds.wire = self.wire
        rounds.on_stranger = host.join
        rounds.on_other_group = host.note_other_group

    async def start(self) -> int:
        return await self.peers.start(self._config.host, self._config.peer_port)

    async def stop(self) -> None:
        await self.peers.stop()

    async def run(self) -> None:
        """Founds the cluster, if that is this node's part and has not been done, and lets its clock be heard."""
        await asyncio.gather(self._found(), self._tell_time(), self._tell_waiting())

    async def _tell_time(self) -> None:
        """Followers have nothing to say to each other, but each needs the others' clocks, and a sign of life."""
        while True:
            for peer in self.peers.connected().values():
                self.wire.send_clock(peer.identity)
            await asyncio.sleep(CLOCK_SECONDS)

    async def _tell_waiting(self) -> None:
        """A node that has nothing and serves nothing must say what it waits for."""
        await asyncio.sleep(WAITING_SECONDS)
        while self._host.is_blank:
            waiting = self.waiting()
            _log.warning(
                waiting.event, missing=waiting.missing, with_data=waiting.with_data,
                founder=self._config.nodes[0].name, detail=waiting.sentence,
            )  # fmt: skip
            await asyncio.sleep(WAITING_AGAIN_SECONDS)

    def waiting(self) -> Waiting:
        connected = self.peers.connected()
        others = [node.name for node in self._config.nodes if node.name != self._config.node_name]
        return Waiting(
            [name for name in others if name not in connected],
            [name for name in others if name in connected and not connected[name].blank],
        )

    async def _found(self) -> None:
        if self._config.nodes[0].name != self._config.node_name:
            return
        while self._host.is_blank:
            self._changed.clear()
            if await self.peers.all_blank() and self._host.is_blank:
                connected = self.peers.connected()
                if len(connected) == len(self._config.nodes) - 1:
                    self._host.found([self._host.me, *(peer.identity for peer in connected.values())])
                    return
            try:
                async with asyncio.timeout(FOUND_SECONDS):
                    await self._changed.wait()
            except TimeoutError:
                continue

    def care(self, replica: Replica) -> None:
        """In the rounds of a shard that this node leads: brings its members in line with the list, by one step."""
        if not replica.shard.serves:
            return
        present = {name: peer.identity for name, peer in self.peers.connected().items()}
        present[self._config.node_name] = self._host.me
        raft = replica.raft
        change = next_change(raft.configuration, present, raft.has_caught_up)
        if change is not None:
            self._change(replica, change)

    def _change(self, replica: Replica, change: Change) -> None:
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


def _digest(config: BrokerConfig) -> bytes:
    """Of all that must be the same on every node."""
    rows = [[node.name, node.address, node.peer_address] for node in config.nodes]
    return node_list_digest([*rows, ["shards", str(config.shards)]])


def _host_and_port(node: ClusterNode) -> tuple[str, int]:
    host, _, port = node.peer_address.rpartition(":")
    return host.strip("[]"), int(port)


def _tls(config: BrokerConfig) -> PeerTls | None:
    if config.peer_certificate is None or config.peer_key is None or config.peer_authority is None:
        return None
    return PeerTls(config.peer_certificate, config.peer_key, config.peer_authority)
