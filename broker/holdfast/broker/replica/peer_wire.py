"""The other nodes, as the rounds see them: frames with messages of all shards, and the clocks that they carry."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Final, Protocol

from holdfast.broker.config import BATCH_BYTES_LIMIT, BrokerConfig
from holdfast.broker.leader.clock import TimeSource
from holdfast.broker.leader.clock_evidence import ClockEvidence
from holdfast.broker.peers.bodies import BodyError, pack, pack_within, unpack
from holdfast.broker.peers.calls import is_call
from holdfast.broker.peers.handshake import ClusterSecret
from holdfast.broker.peers.peer_calls import PeerCalls
from holdfast.broker.peers.records import PeerLimits
from holdfast.broker.peers.tls import PeerTls
from holdfast.broker.peers.transport import Peers
from holdfast.broker.replica.commit_loop import Message
from holdfast.serving.logs import get_logger

CLOCK_SECONDS: Final = 1.0

_log = get_logger(__name__)

# Beyond the largest batch: one more message, and heads. The largest that may ever be set, not the one that is: the log
# may have entries from a time when more was allowed in one call.
_BODY_BYTES_MAX: Final = BATCH_BYTES_LIMIT + 4 * 1024 * 1024

PEER_LIMITS: Final = PeerLimits(body_bytes_max=_BODY_BYTES_MAX)


class PeerNode(Protocol):
    """This node, as the others meet it."""

    @property
    def is_empty(self) -> bool:
        """Whether it has nothing yet: no log, no vote, no promise."""
        ...

    def receive(self, identity: str, messages: list[Message]) -> None:
        """What another node says of shards."""
        ...

    def peers_changed(self) -> None:
        """Somebody came or went, or has something now."""
        ...


class PeerWire:
    """Frames to and from the other nodes. `serve` before `start`; until then nobody hears this node."""

    def __init__(
        self,
        config: BrokerConfig,
        node_id: str,
        source: TimeSource,
        evidence: ClockEvidence,
        *,
        digest: bytes,
        addresses: Mapping[str, tuple[str, int]],
    ) -> None:
        """`digest`: of what must be the same on every node. `evidence`: what is known of the others' clocks."""
        self._config = config
        self._source = source
        self._evidence = evidence
        self._node: PeerNode | None = None
        self.peers = Peers(
            name=config.node_name,
            node_id=node_id,
            cluster=config.cluster_name,
            digest=digest,
            addresses=addresses,
            listener=self,
            tls=_peer_tls(config),
            secret=_cluster_secret(config),
            limits=PEER_LIMITS,
        )
        self.calls = PeerCalls(config.node_name, self.peers)

    def serve(self, node: PeerNode) -> None:
        self._node = node

    async def start(self) -> int:
        """Listens and begins to dial; returns the port."""
        assert self._node is not None, "somebody has to hear"
        _warn_of_claims(self._config)
        return await self.peers.start(self._config.peer_host or self._config.host, self._config.peer_port)

    async def stop(self) -> None:
        await self.calls.stop()
        await self.peers.stop()

    # --- what its connections tell ----------------------------------------------------------------------------

    @property
    def is_empty(self) -> bool:
        assert self._node is not None
        return self._node.is_empty

    def peers_changed(self) -> None:
        assert self._node is not None
        self.calls.connected({peer.identity for peer in self.peers.connected().values()})
        self._node.peers_changed()

    def frame_came(self, identity: str, body: bytes) -> None:
        assert self._node is not None
        if self.calls.is_serving and is_call(body):
            self.calls.on_frame(identity, body)
            return
        try:
            wall_ms, messages = unpack(body)
        except BodyError as error:
            self.peers.drop(identity, str(error))
            return
        self._evidence.note(identity, wall_ms)
        self._node.receive(identity, messages)

    # --- what the commit loop needs ---------------------------------------------------------------------------

    def send(self, identities: Sequence[str], messages: list[Message]) -> None:
        for body in pack_within(int(self._source.wall_ms()), messages, _BODY_BYTES_MAX):
            self.peers.send_each(identities, body)

    def send_clock(self, identity: str) -> None:
        """A frame without messages, which carries the time."""
        self.peers.send(identity, pack(int(self._source.wall_ms()), ()))

    def drop(self, identity: str, detail: str) -> None:
        self.peers.drop(identity, detail)

    def pause_reading(self) -> None:
        self.peers.pause_reading()

    def resume_reading(self) -> None:
        self.peers.resume_reading()

    async def report_time(self) -> None:
        """Followers have nothing to say to each other, but each needs the others' clocks, and a sign of life."""
        while True:
            for peer in self.peers.connected().values():
                self.send_clock(peer.identity)
            await asyncio.sleep(CLOCK_SECONDS)


def _peer_tls(config: BrokerConfig) -> PeerTls | None:
    if config.peer_certificate is None or config.peer_key is None or config.peer_authority is None:
        return None
    return PeerTls(config.peer_certificate, config.peer_key, config.peer_authority)


def _cluster_secret(config: BrokerConfig) -> ClusterSecret | None:
    """Raises ClusterSecretError. Reads a file: at the start only."""
    if config.cluster_secret_file is not None:
        return ClusterSecret.read(config.cluster_secret_file)
    return None if config.cluster_secret is None else ClusterSecret(config.cluster_secret.encode())


def _warn_of_claims(config: BrokerConfig) -> None:
    """Allowed on one machine, where whoever is on it could read a secret as well."""
    if not config.proves_peers:
        _log.warning(
            "peers_not_proven",
            detail="other nodes are believed to be who they say; set cluster_secret_file to have them prove it",
        )


def host_and_port(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    return host.strip("[]"), int(port)
