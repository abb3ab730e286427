"""A cluster with its map in etcd, from the view of one node: it follows the map, is found in it, and finds the others.

The node serves, elects and fails over without etcd. What needs it waits until it is back: changes of members, new
nodes, settings of queues.
"""

import asyncio
import secrets
from collections.abc import Callable, Mapping
from typing import Any, Final

from holdfast.access.identities import Identity
from holdfast.broker.api.internal import InternalService
from holdfast.broker.api.shard_services import ShardServices
from holdfast.broker.cluster_view.map_view import MapClusterView, MapCopy
from holdfast.broker.config import BrokerConfig
from holdfast.broker.leader.clock import TimeSource
from holdfast.broker.leader.clock_evidence import ClockEvidence
from holdfast.broker.membership.handover import NodeHandover, OwnRecord
from holdfast.broker.membership.peer_cluster import PeerCluster
from holdfast.broker.membership.queue_reconciler import QueueReconciler
from holdfast.broker.membership.reconciler import ShardReconciler
from holdfast.broker.membership.settings_news import SettingsNews
from holdfast.broker.metrics import Metrics
from holdfast.broker.peers.identities import node_list_digest
from holdfast.broker.replica.commit_loop import CommitLoop
from holdfast.broker.replica.host import Host
from holdfast.broker.replica.peer_wire import PeerWire, host_and_port
from holdfast.cluster.admin.backups import ClusterBackups
from holdfast.cluster.admin.cluster_service import ClusterAdmin
from holdfast.cluster.admin.conversion import handover_message
from holdfast.cluster.admin.node_answers import NodeAnswers
from holdfast.cluster.admin.node_calls import NodeCalls
from holdfast.cluster.etcd.api import Etcd, EtcdError, EtcdUnavailableError, LeaseLostError
from holdfast.cluster.map.follower import MapFollower
from holdfast.cluster.map.partition_map import PartitionMap
from holdfast.cluster.map.records import NewerFormatError, NodeRecord, RecordError
from holdfast.cluster.map.store import MapStore
from holdfast.cluster.map.store_nodes import DuplicateNodeError, RegistrationError, RemovedNodeError
from holdfast.common.service import Service, Work, end_tasks
from holdfast.machine.entries import MACHINE_LEVEL
from holdfast.proto.v1 import cluster_pb2 as pb
from holdfast.serving.access_rules import AccessRules
from holdfast.serving.logs import get_logger
from holdfast.serving.refusals import RefusedError
from holdfast.serving.reloading import Reloaded
from holdfast.storage.data_dir import DataDir
from holdfast_queue import version

LEASE_SECONDS: Final = 10
REGISTER_SECONDS: Final = 1.0  # between attempts
MEET_SECONDS: Final = 3.0  # without etcd, before others are met
SAVE_SECONDS: Final = 1.0  # between copies of the map on disk
WAITING_SECONDS: Final = 2.0
WAITING_AGAIN_SECONDS: Final = 30.0
STOP_SECONDS_MAX: Final = 2.0  # for the last word to etcd

_log = get_logger(__name__)


class MappedCluster(PeerCluster):
    """The other nodes, and the map. `announce` before `run`."""

    def __init__(
        self,
        config: BrokerConfig,
        data_dir: DataDir,
        host: Host,
        commit_loop: CommitLoop,
        wire: PeerWire,
        *,
        cluster_view: MapClusterView,
        etcd: Etcd,
        services: ShardServices,
        metrics: Metrics,
        access: AccessRules,
    ) -> None:
        super().__init__(host, commit_loop, wire)
        self._config = config
        self._node_id = data_dir.node_id
        self._cluster_view = cluster_view
        self._copy = MapCopy(data_dir.path, config.cluster_name)
        self._etcd = etcd
        self.store = MapStore(etcd, config.cluster_name)
        self.follower = MapFollower(etcd, config.cluster_name, cluster_view.map, freshness=cluster_view.freshness)
        self.follower.on_change.append(self._take)
        self._access = access
        if cluster_view.map.revision:
            access.take(cluster_view.map.access)
        self.follower.on_change.append(lambda newer: access.take(newer.access))
        self._reconciler = ShardReconciler(host, self.store, cluster_view, self._identities)
        self._queues = QueueReconciler(host, self.store, cluster_view)
        me = Identity(config.node_name, "node")
        self._calls = NodeCalls(lambda: access.words.word(me))
        answers = NodeAnswers(self._calls, lambda: cluster_view.map)
        self._answers = answers
        self._own = OwnRecord()
        self._handover = NodeHandover(host, self.store, cluster_view, self._own, answers.describe)
        self.admin = ClusterAdmin(self.store, self.follower, answers, self._hand_over)
        self.backups = ClusterBackups(self.store, self.follower)
        internal = InternalService(services, cluster_view, metrics, batch_bytes_max=config.batch_bytes_max)
        wire.calls.serve(internal)
        self._news = SettingsNews(cluster_view, wire.calls, host, self._peers.connected)
        self._peer_address = ""
        self._lease = 0
        self._registered = asyncio.Event()  # once, since the start
        self._meets_peers = False
        self._changed = asyncio.Event()  # the map has, since it was saved
        self._background = Service(
            self.follower.run, self._register, self._save, self._report_waiting, self._wire.report_time,
            lambda: self._once_registered(self._reconciler.run), lambda: self._once_registered(self._queues.run),
            self._end_if_removed, self._meet_without_etcd, self._handover.run, self._news.run,
        )  # fmt: skip

    # --- life -------------------------------------------------------------------------------------------------

    async def start(self) -> int:
        """Listens for the other nodes; returns the port."""
        await self.store.begin_access(self._access)
        port = await self._wire.start()
        self._peer_address = self._config.advertise_peer_address or f"{self._config.host}:{port}"
        return port

    def announce(self, address: str, ops_address: str) -> None:
        """Where this node listens for clients and for operators."""
        self._own.record = NodeRecord(
            name=self._config.node_name,
            node_id=self._node_id,
            address=self._config.advertise_address or address,
            peer_address=self._peer_address,
            ops_address=ops_address,
            zone=self._config.zone or "",
            capacity=self._config.capacity,
            version=version(),
            session=secrets.token_hex(8),
            machine_level=MACHINE_LEVEL,
        )

    async def run(self) -> None:
        """Until cancelled. Raises what a person has to act on."""
        await self._background.run()

    async def _once_registered(self, work: Callable[[], Work]) -> None:
        """Only of a cluster that this node is part of: one that was removed must not put itself back into the map."""
        await self._registered.wait()
        await work()

    async def stop(self) -> None:
        """Lets go of the lease, so that nobody waits for this node."""
        await self._background.stop()
        try:
            async with asyncio.timeout(STOP_SECONDS_MAX):
                if self._lease:
                    await self._etcd.revoke(self._lease)
        except (TimeoutError, EtcdError):
            _log.info("lease_left_to_expire", seconds=LEASE_SECONDS)
        await self._etcd.close()
        await self._calls.close()
        await self._wire.stop()

    # --- the map ----------------------------------------------------------------------------------------------

    def leaders_changed(self) -> None:
        """Whoever begins to lead tells the map at once."""
        self._reconciler.wanted.set()

    def _take(self, newer: PartitionMap) -> None:
        self._cluster_view.map = newer
        self._know_peers()
        self._changed.set()
        self._reconciler.wanted.set()

    async def _save(self) -> None:
        """A copy on disk, for a start without etcd."""
        while True:
            await self._changed.wait()
            self._changed.clear()
            try:
                await asyncio.to_thread(self._copy.save, self._cluster_view.map)
            except OSError as error:
                _log.warning("map_not_saved", error=error.strerror or str(error))
            await asyncio.sleep(SAVE_SECONDS)

    async def _register(self) -> None:
        """Is in the map for as long as this process lives."""
        assert self._own.record is not None, "announced before"
        reported = ""  # the last trouble, said once
        while True:
            try:
                self._lease = await self._etcd.grant(LEASE_SECONDS)
                await self._hold(self._own.record, self._lease)
            except LeaseLostError:
                _log.warning("lease_lost", node=self._config.node_name)
            except EtcdUnavailableError as error:
                _log.debug("not_registered", error=str(error))
            except (EtcdError, RefusedError, RegistrationError, RecordError) as error:
                # Only at the start is this a reason to end: later on somebody did something to the map, and a node
                # that serves must not be ended by that.
                if isinstance(error, RegistrationError | NewerFormatError) and not self._registered.is_set():
                    raise
                if isinstance(error, DuplicateNodeError) and error.other.node_id == self._node_id:
                    raise  # a copy of this very node: two must not vote under one identity
                if str(error) != reported:
                    reported = str(error)
                    _log.error("not_registered", error=reported)
            await asyncio.sleep(REGISTER_SECONDS)

    async def _hold(self, record: NodeRecord, lease: int) -> None:
        """Until the lease is lost. To be registered may take as long as the lease of a former process."""
        holding = asyncio.create_task(self._etcd.keep_alive(lease, LEASE_SECONDS))
        try:
            await self.store.register_node(record, lease, cluster_id=self._cluster_view.cluster_id or None)
            self._registered.set()
            self._meet_peers()
            _log.info("registered", node=record.name, address=record.address)
            await holding
        finally:
            await end_tasks([holding])

    async def _hand_over(self, request: pb.HandOverNodeRequest) -> pb.HandOverNodeResponse:
        """Of this node or of another one."""
        if request.node != self._config.node_name:
            return await self._answers.hand_over(request)
        if request.undo:
            await self._handover.undo()
            return pb.HandOverNodeResponse()
        return handover_message(await self._handover.ask())

    async def _end_if_removed(self) -> None:
        """A node that was removed from the cluster, and has nothing that it could be needed for, is of no more use."""
        name = self._config.node_name
        await self.follower.wait_until(
            lambda cluster_map: cluster_map.is_removed(name, self._node_id) and not self._host.replicas
        )
        raise RemovedNodeError(
            f"The node {name} was removed from the cluster, and has nothing left to do; start it with an empty data "
            "directory to add it anew."
        )

    async def _report_waiting(self) -> None:
        """A node that has nothing and serves nothing must say what it waits for."""
        await asyncio.sleep(WAITING_SECONDS)
        while True:
            if self._host.is_empty:
                _log.warning("waiting", detail=self.waits_for())
            await asyncio.sleep(WAITING_AGAIN_SECONDS)

    def waits_for(self) -> str:
        """What a node without anything waits for, in a sentence; empty if it is meant to have nothing."""
        if not self.follower.is_current and not self._cluster_view.cluster_id:
            why = self.follower.trouble or f"etcd does not answer at {self._config.etcd_endpoints}"
            return f"nothing is known of the cluster yet: {why}"
        if not self._cluster_view.cluster_id:
            return self.follower.map.why_no_cluster
        if not self._cluster_view.shards_here:
            return ""
        return "this node is to have replicas, and waits for the leaders of their shards to add it"

    # --- the other nodes --------------------------------------------------------------------------------------

    def peers_changed(self) -> None:
        self._reconciler.wanted.set()

    def _meet_peers(self) -> None:
        if not self._meets_peers:
            self._meets_peers = True
            self._know_peers()

    async def _meet_without_etcd(self) -> None:
        """A node meets the others once it is registered: a copy of another's data directory must not speak, let alone
        vote, under its identity. If etcd is away, so that nobody can tell, it goes by what it knows."""
        while not self._meets_peers:
            await asyncio.sleep(MEET_SECONDS)
            if not self.follower.is_current and not self._meets_peers:
                _log.warning("meeting_without_etcd", map_revision=self._cluster_view.map.revision)
                self._meet_peers()

    def _know_peers(self) -> None:
        if self._meets_peers and self._cluster_view.cluster_id:
            self._peers.set_digest(node_list_digest([["cluster", self._cluster_view.cluster_id]]))
            self._peers.set_addresses(self._peer_addresses())

    def _peer_addresses(self) -> dict[str, tuple[str, int]]:
        others = self._cluster_view.map.last_nodes
        return {
            name: host_and_port(record.peer_address)
            for name, record in others.items()
            if name != self._config.node_name and record.peer_address
        }

    def _identities(self) -> Mapping[str, str]:
        return {name: peer.identity for name, peer in self.connected().items()}

    @property
    def certificates(self) -> list[Reloaded[Any]]:
        """Of the peers and of etcd, if there are any."""
        return [
            certificate
            for certificate in (self._peers.certificates, self._etcd.certificates)
            if certificate is not None
        ]


def mapped_wire(config: BrokerConfig, node_id: str, source: TimeSource, evidence: ClockEvidence) -> PeerWire:
    """To the nodes that the map will name. Nobody has this digest, until it is known which cluster this is."""
    return PeerWire(config, node_id, source, evidence, digest=node_id.encode(), addresses={})
