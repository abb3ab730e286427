"""The other nodes, as the rounds see them: frames with messages of all shards, and the clocks that they carry."""

import asyncio
from typing import Final

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
from holdfast.broker.replica.commit_loop import CommitLoop, Message
from holdfast.serving.logs import get_logger

CLOCK_SECONDS: Final = 1.0

_log = get_logger(__name__)

# Beyond the largest batch: one more message, and heads. The largest that may ever be set, not the one that is: the log
# may have entries from a time when more was allowed in one call.
_BODY_BYTES_MAX: Final = BATCH_BYTES_LIMIT + 4 * 1024 * 1024

PEER_LIMITS: Final = PeerLimits(body_bytes_max=_BODY_BYTES_MAX)


class PeerWire:
    """Frames to and from the other nodes, for `CommitLoop`."""

    def __init__(
        self,
        peers: Peers,
        rounds: CommitLoop,
        evidence: ClockEvidence,
        source: TimeSource,
        calls: PeerCalls | None = None,
    ) -> None:
        """`calls`: between brokers, where there are any."""
        self._peers = peers
        self._rounds = rounds
        self._evidence = evidence
        self._source = source
        self._calls = calls

    def send(self, identity: str, messages: list[Message]) -> None:
        for body in pack_within(int(self._source.wall_ms()), messages, _BODY_BYTES_MAX):
            self._peers.send(identity, body)

    def send_clock(self, identity: str) -> None:
        """A frame without messages, which carries the time."""
        self._peers.send(identity, pack(int(self._source.wall_ms()), ()))

    def on_frame(self, identity: str, body: bytes) -> None:
        if self._calls is not None and is_call(body):
            self._calls.on_frame(identity, body)
            return
        try:
            wall_ms, messages = unpack(body)
        except BodyError as error:
            self._peers.drop(identity, str(error))
            return
        self._evidence.note(identity, wall_ms)
        self._rounds.receive(identity, messages)

    def drop(self, identity: str, detail: str) -> None:
        self._peers.drop(identity, detail)

    def pause_reading(self) -> None:
        self._peers.pause_reading()

    def resume_reading(self) -> None:
        self._peers.resume_reading()

    async def tell_time(self) -> None:
        """Followers have nothing to say to each other, but each needs the others' clocks, and a sign of life."""
        while True:
            for peer in self._peers.connected().values():
                self.send_clock(peer.identity)
            await asyncio.sleep(CLOCK_SECONDS)


def peer_tls(config: BrokerConfig) -> PeerTls | None:
    if config.peer_certificate is None or config.peer_key is None or config.peer_authority is None:
        return None
    return PeerTls(config.peer_certificate, config.peer_key, config.peer_authority)


def cluster_secret(config: BrokerConfig) -> ClusterSecret | None:
    """Raises ClusterSecretError. Reads a file: at the start only."""
    if config.cluster_secret_file is not None:
        return ClusterSecret.read(config.cluster_secret_file)
    return None if config.cluster_secret is None else ClusterSecret(config.cluster_secret.encode())


def warn_of_claims(config: BrokerConfig) -> None:
    """Allowed on one machine, where whoever is on it could read a secret as well."""
    if not config.proves_peers:
        _log.warning(
            "peers_not_proven",
            detail="other nodes are believed to be who they say; set cluster_secret_file to have them prove it",
        )


def host_and_port(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    return host.strip("[]"), int(port)
