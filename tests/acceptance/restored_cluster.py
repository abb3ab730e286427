"""A cluster that is made of a backup."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from holdfast.client import Client
from tests.integration.map_cluster import MapCluster
from tests.integration.server import DEADLINE_S, wait_until


class RestoredCluster(MapCluster):
    """Nodes of other names, which are not initialised but made of a backup."""

    node_prefix = "other-"

    def __init__(self, directory: Path, restore: Callable[[str], None], **settings: Any) -> None:
        super().__init__(directory, **settings)
        self._restore = restore

    def init(self) -> None:
        with Client(self.broker_addresses[0], timeout_s=DEADLINE_S) as client:
            wait_until(lambda: self._are_all_there(client), "all nodes to be registered")
        self._restore(self.broker_addresses[0])

    def _are_all_there(self, client: Client) -> bool:
        return sum(node.is_alive for node in client.describe_cluster().nodes) == self._size
