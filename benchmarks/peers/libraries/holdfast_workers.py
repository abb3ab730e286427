"""One node of Holdfast and `holdfast worker`."""

from collections.abc import Sequence

from peers.brokers.holdfast_nodes import Node
from peers.libraries.settings import PROCESSES, SLOTS
from peers.libraries.workers import LibraryPeer


class HoldfastWorkers(LibraryPeer, Node):
    def worker_commands(self, queue: str) -> Sequence[Sequence[str]]:
        app = "peers.libraries.holdfast_app:app"
        return [["-m", "holdfast.cli", "worker", app, "--concurrency", str(SLOTS)]] * PROCESSES
