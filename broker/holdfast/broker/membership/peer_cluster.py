"""What a node has of the others, whether it finds them in a list or in the map."""

from collections.abc import Mapping

from holdfast.broker.peers.records import PeerCounters
from holdfast.broker.peers.transport import PeerInfo
from holdfast.broker.replica.commit_loop import CommitLoop, Message
from holdfast.broker.replica.host import Host, HostListener
from holdfast.broker.replica.peer_wire import PeerNode, PeerWire


class PeerCluster(HostListener, PeerNode):
    """This node, as the others meet it: what they say of shards goes to the commit loop."""

    def __init__(self, host: Host, commit_loop: CommitLoop, wire: PeerWire) -> None:
        self._host = host
        self._commit_loop = commit_loop
        self._wire = wire
        self._peers = wire.peers
        host.listen(self)
        wire.serve(self)

    @property
    def is_empty(self) -> bool:
        return self._host.is_empty

    def receive(self, identity: str, messages: list[Message]) -> None:
        self._commit_loop.receive(identity, messages)

    def connected(self) -> Mapping[str, PeerInfo]:
        return self._peers.connected()

    def failed(self) -> BaseException | None:
        """The error that ended a part of what connects nodes, if one did: a bug that must stop this one."""
        return self._peers.failed()

    @property
    def counters(self) -> PeerCounters:
        return self._peers.counters
