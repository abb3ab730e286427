"""Who answers calls about the shards of a node."""

from typing import Protocol

from holdfast.broker.api.tasks import TaskService
from holdfast.broker.cluster_view.view import ClusterView
from holdfast.broker.config import BrokerConfig
from holdfast.broker.metrics import Metrics
from holdfast.broker.replica.host import Host
from holdfast.common.metadata import SHARD_KEY
from holdfast.serving.refusals import MISSING_FIELD, RefusedError


class ShardServices(Protocol):
    """Those of one node. `HostedServices` are the real ones."""

    def find(self, number: int) -> TaskService:
        """Of a shard; refuses if it is not served here."""
        ...

    def default_shard(self) -> int:
        """Of a call that names none; may refuse it."""
        ...

    def note_damage(self, error: Exception) -> None:
        """A state is damaged, as a call has found."""
        ...


class HostedServices:
    """Of the replicas of a host, made when they are first asked for."""

    def __init__(self, host: Host, config: BrokerConfig, metrics: Metrics, cluster_view: ClusterView) -> None:
        self._host = host
        self._config = config
        self._metrics = metrics
        self._cluster_view = cluster_view
        self._services: dict[int, TaskService] = {}
        self.note_damage = host.note_damage

    def find(self, number: int) -> TaskService:
        shard = (self._host.replicas.get(number) or self._host.find_to_serve(number)).shard
        service = self._services.get(number)
        if service is None or service.shard is not shard:  # a replica may leave, and come back as a new one
            service = TaskService(shard, self._config, self._metrics, cluster_view=self._cluster_view)
            self._services[number] = service
        return service

    def default_shard(self) -> int:
        """In a cluster with a map, whoever does not know of shards needs a router."""
        shards = self._cluster_view.shard_count
        if shards <= 1 or not self._cluster_view.has_map:
            return 0
        raise RefusedError(
            MISSING_FIELD,
            f"Expected the number of a shard in the metadata {SHARD_KEY}, because this cluster has {shards} of them; "
            "connect to a router, or let the client find the leaders itself (direct=True).",
            field=SHARD_KEY,
        )
