"""One router process: puts the parts together, starts them in order, and stops them in the reverse order."""

import asyncio
import gc
import os
import signal
import socket
import threading
import time

from holdfast.cluster.admin.backups import ClusterBackups
from holdfast.cluster.admin.cluster_service import ClusterAdmin
from holdfast.cluster.admin.node_answers import NodeAnswers
from holdfast.cluster.admin.node_calls import NodeCalls
from holdfast.cluster.connect import Certificates, connect
from holdfast.cluster.etcd.api import Etcd
from holdfast.cluster.map.follower import MapFollower
from holdfast.cluster.map.partition_map import PartitionMap
from holdfast.cluster.map.store import MapStore
from holdfast.common.service import Service
from holdfast.router.admission import Admission
from holdfast.router.config import RouterConfig
from holdfast.router.forwarding import Forwarder
from holdfast.router.gateway import Gateway
from holdfast.router.leaders import Leaders
from holdfast.router.metrics import Metrics
from holdfast.router.own import OwnCalls
from holdfast.router.passing_on import ROUTER, PassingOn
from holdfast.router.releases import Releases
from holdfast.router.routes import Routes, moved_queues
from holdfast.router.wire import RouterServer
from holdfast.serving.access_rules import AccessRules
from holdfast.serving.audit_log import AuditLog
from holdfast.serving.audited import GuardedAudit
from holdfast.serving.call_server import FramesAt
from holdfast.serving.grpc_server import ServerLimits
from holdfast.serving.logs import get_logger
from holdfast.serving.memory import give_back_memory, keep_little_memory
from holdfast.serving.open_files import allow_many_files, connections_allowed
from holdfast.serving.openness import report_openness
from holdfast.serving.ops import OpsServer
from holdfast.serving.refusals import etcd_unavailable
from holdfast.serving.reloading import certificate_gauges
from holdfast.serving.request_limits import read_bytes_max
from holdfast.transport.negotiated import NegotiatedChannels

GC_THRESHOLDS = (50_000, 20, 50)  # as in brokers: many short-lived objects, none of them in cycles
WATCH_SECONDS = 1.0
WAITING_SECONDS = 2.0  # without a cluster, before that is told
WAITING_AGAIN_SECONDS = 30.0
CALLS_SPARE = 1000
STOP_SECONDS_MAX = 10.0  # beyond the grace period
RELEASE_SECONDS_MAX = 3.0
EXIT_FORCED = 1  # of a stop that was asked for twice, or could not be finished

_log = get_logger(__name__)


class Router:
    """`start`, then `run` until a signal or a failure, which it returns."""

    def __init__(self, config: RouterConfig, *, etcd: Etcd | None = None) -> None:
        """`etcd`: another one than the configuration says, for tests."""
        self._config = config
        self._etcd = etcd
        self._stop_asked = asyncio.Event()
        self._background = Service()
        self._audit: AuditLog | None = None
        self._started = False
        self._stopping = False
        self._patience: threading.Timer | None = None  # ends the process if a stop takes too long
        self.metrics = Metrics()
        self.port = 0
        self.frames_port = 0  # 0: there are no frames
        self.ops_port = 0

    async def start(self, *, with_signals: bool = True) -> None:
        """Begins to serve; without a map yet, calls are refused for now. Raises what a person can act on; then nothing
        is left running."""
        try:
            if with_signals:
                loop = asyncio.get_running_loop()
                for signum in (signal.SIGTERM, signal.SIGINT):
                    loop.add_signal_handler(signum, self.ask_to_stop)
            gc.set_threshold(*GC_THRESHOLDS)
            keep_little_memory()
            self._certificates = await asyncio.to_thread(Certificates, self._config)
            self._build(self._etcd or connect(self._config))
            self._background.spawn(self._certificates.keep_current(), "certificates")
            self._background.spawn(report_openness(self._config), "openness")
            self._background.spawn(self._follower.run(), "map")
            self._background.spawn(self._access.run(), "access")
            await self._store.begin_access(self._access)
            self.port = await self._rpc.start(self._config.host, self._config.port)
            self.frames_port = self._rpc.frames_port
            await self._ops.start()
            self.ops_port = self._ops.port
            self._started = True
            self._background.spawn(self._watch(), "watch")
            self._background.spawn(give_back_memory(self._rpc.intake), "memory")
            self._background.spawn(self._report_waiting(), "waiting")
        except BaseException:
            await self._close(0.0)
            raise

    def _build(self, etcd: Etcd) -> None:
        config = self._config
        self._etcd = etcd
        self._follower = follower = MapFollower(etcd, config.cluster_name)
        self._routes = routes = Routes(lambda: follower.map)
        self._admission = Admission(
            calls_max=config.calls_max,
            calls_per_shard_max=config.calls_per_shard_max,
            waits_max=config.waits_max,
            # The rest of the room is for those who do not wait.
            wait_bytes_max=min(config.wait_bytes_max, config.bytes_in_flight_max // 2),
        )
        self._channels = NegotiatedChannels(
            message_bytes_max=config.message_bytes_max, keepalive_s=20, connects_first=True, caller="router",
            tls=self._certificates.to_brokers,
        )  # fmt: skip
        self._access = access = self._open_access(follower)
        self._forwarder = Forwarder(Leaders(routes), self._channels, self._admission, PassingOn(access))
        self._releases = Releases(self._forwarder)
        self._node_calls = NodeCalls(self._certificates.to_brokers, lambda: access.words.word(ROUTER))
        answers = NodeAnswers(self._node_calls, lambda: follower.map)
        self._store = store = MapStore(etcd, config.cluster_name)
        admin = ClusterAdmin(store, follower, answers, answers.hand_over)
        self._gateway = Gateway(
            routes,
            self._forwarder,
            self._releases,
            self._admission,
            check_map=self._check_map,
            own=OwnCalls(admin, ClusterBackups(store, follower), routes.nodes),
            wait_ms_max=config.wait_ms_max,
            idle_wait_ms_max=config.idle_wait_ms_max,
            call_s_default=config.call_seconds_default,
            message_bytes_max=config.message_bytes_max,
            broker_waits_max=config.broker_waits_max,
        )
        self._routed_by = follower.map
        follower.on_change.append(self._map_changed)
        ports = 1 if config.frames == "off" else 2
        connections_max = connections_allowed(
            config.connections_max, allow_many_files(), with_states=False, ports=ports
        )
        limits = ServerLimits(
            message_bytes_max=min(read_bytes_max(config.batch_bytes_max), config.message_bytes_max),
            bytes_max=config.bytes_in_flight_max,
            calls_max=config.calls_max + config.waits_max + CALLS_SPARE,
            connections_max=connections_max,
            has_reflection=config.reflection == "on",
        )
        if config.audit_dir is not None:
            self._audit = AuditLog(config.audit_dir, socket.gethostname())
        self._rpc = RouterServer(
            self._gateway, self.metrics, limits, batch_bytes_max=config.batch_bytes_max, readiness=self.readiness,
            frames_at=self._frames_at(), whole_calls=self._gateway.whole_calls, access=access,
            tls=self._certificates.listening,
            audit=None if self._audit is None else GuardedAudit(self._audit, access),
        )  # fmt: skip
        self._ops = OpsServer(
            config.ops_host or config.host,
            config.ops_port,
            self.metrics,
            self.readiness,
            self._certificates.http,
            shows_metrics=config.metrics == "on",
        )
        self.metrics.watch(self._read_gauges)

    def _open_access(self, follower: MapFollower) -> AccessRules:
        """Who may do what: the map says it, or a file."""
        config = self._config
        access = AccessRules.open(
            config.access_file, config.router_secret_file, is_required=config.access == "required",
            cluster_id=lambda: "" if follower.map.cluster is None else follower.map.cluster.cluster_id,
            follows_map=True,
        )  # fmt: skip
        follower.on_change.append(lambda table: access.take(table.access))
        return access

    async def run(self) -> BaseException | None:
        """Serves until SIGTERM, SIGINT or `ask_to_stop`, then stops gracefully. Returns the failure that ended it."""
        await self._background.wait(self._stop_asked.wait())
        failure = self._background.failed()
        await self.stop()
        return failure

    def ask_to_stop(self) -> None:
        """Asked once: stops gracefully, within bounds. Asked twice: at once."""
        if self._stop_asked.is_set():
            os._exit(EXIT_FORCED)
        self._stop_asked.set()
        patience_s = 2 * self._config.shutdown_grace_seconds + STOP_SECONDS_MAX
        self._patience = threading.Timer(patience_s, os._exit, [EXIT_FORCED])
        self._patience.daemon = True
        self._patience.start()

    async def stop(self) -> None:
        """Finishes what is on its way; what waits for tasks is sent to another router."""
        grace_s = self._config.shutdown_grace_seconds
        _log.info("stopping", grace_seconds=grace_s)
        self._stopping = True
        self._rpc.drain()
        self._gateway.stop()
        await self._close(grace_s)
        if self._patience is not None:
            self._patience.cancel()
        _log.info("stopped")

    async def _close(self, grace_s: float) -> None:
        if hasattr(self, "_ops"):  # all of them, or none
            await self._rpc.stop(grace_s)
            await self._gateway.close()
            await self._releases.close(min(grace_s, RELEASE_SECONDS_MAX))
            await self._ops.stop()
            await self._forwarder.close()
            await self._channels.close()
            await self._node_calls.close()
        await self._background.stop()
        if self._audit is not None:
            await asyncio.to_thread(self._audit.close)
        if self._etcd is not None:
            await self._etcd.close()

    def _frames_at(self) -> FramesAt | None:
        """All routers of a cluster answer alike, and stand behind one address."""
        if self._config.frames == "off":
            return None
        return FramesAt(self._config.frames_port, self._name, self._config.frames_host)

    def _name(self) -> str:
        cluster = self._follower.map.cluster
        return f"router of {cluster.cluster_id if cluster is not None else self._config.cluster_name}"

    def _map_changed(self, table: PartitionMap) -> None:
        """Workers that wait for tasks of a queue that was spread or pinned wait at its new shards from now on, and what
        waits for a former leader goes to the new one."""
        before, self._routed_by = self._routed_by, table
        self._gateway.routes_changed(moved_queues(before, table))
        led = {shard for shard, leader in table.leaders.items() if before.leaders.get(shard) != leader}
        if led:
            self._forwarder.leaders_changed(led)

    def _check_map(self) -> None:
        table = self._follower.map
        if table.cluster is not None:
            return
        if not table.revision:
            raise etcd_unavailable("this router has not been able to read the partition map yet")
        raise table.refusal_without_cluster()

    def readiness(self) -> tuple[bool, str]:
        if not self._started or self._stopping:
            return False, "starting or stopping"
        table = self._follower.map
        if not table.revision:
            return False, "the partition map could not be read yet: etcd does not answer"
        if table.cluster is None:
            return False, table.why_no_cluster
        if self._follower.is_current:
            return True, "serving"
        return True, f"serving with the last known map: {self._follower.trouble or 'etcd does not answer'}"

    async def _watch(self) -> None:
        """Says when it becomes ready and ceases to be, and closes channels that nobody needs."""
        was_ready = False
        while True:
            is_ready, reason = self.readiness()
            if is_ready != was_ready:
                if is_ready:
                    gc.collect()
                    gc.freeze()  # the map is large and stays: the collector need not look at it again and again
                _log.info("ready" if is_ready else "not_ready", reason=reason)
                was_ready = is_ready
            await self._channels.close_unused(time.monotonic())
            await self._next_poll()

    async def _report_waiting(self) -> None:
        """A router without a cluster serves nothing, and must say what it waits for."""
        await asyncio.sleep(WAITING_SECONDS)
        while True:
            if self._follower.map.cluster is None:
                _log.warning("waiting", detail=self.readiness()[1], cluster_name=self._config.cluster_name)
            await asyncio.sleep(WAITING_AGAIN_SECONDS)

    async def _next_poll(self) -> None:
        """After a second; at once when the map comes, so that a start is not longer than it must be."""
        if self._follower.map.cluster is not None:
            await asyncio.sleep(WATCH_SECONDS)
            return
        try:
            await self._follower.wait_until(lambda table: table.cluster is not None, timeout=WATCH_SECONDS)
        except TimeoutError:
            pass

    def _read_gauges(self) -> dict[str, float]:
        self.metrics.calls.show_frames(self._rpc.frame_connections, self._rpc.frame_calls)
        table = self._follower.map
        return {
            "calls_under_way": self._admission.working.calls,
            "calls_waiting": self._admission.waiting.calls,
            "broker_waits": self._gateway.broker_waits,
            "bytes_under_way": self._rpc.intake.bytes,
            "channels": len(self._channels),
            "attempts_repeated": self._forwarder.repeated,
            "claims_released": self._releases.released,
            "claims_not_released": self._releases.given_up,
            **certificate_gauges([*self._certificates.all, self._etcd.certificates if self._etcd else None]),
            "audit_lost": 0 if self._audit is None else self._audit.lost,
            "map_revision": table.revision,
            "map_is_current": self._follower.is_current,
            "map_shards": len(table.shards),
            "map_queues": len(table.queues),
            "map_nodes": len(table.nodes),
        }
