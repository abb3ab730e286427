"""One broker process: puts the parts together, starts them in order, and stops them in the reverse order."""

import asyncio
import gc
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

from holdfast.broker.api.admin import Admin
from holdfast.broker.api.backups import BackupService
from holdfast.broker.api.figures import latencies, queue_figures
from holdfast.broker.api.server import RpcServer
from holdfast.broker.api.shard_services import HostedServices
from holdfast.broker.api.shards import ShardService
from holdfast.broker.cluster_view.map_view import MapClusterView, MapCopy
from holdfast.broker.cluster_view.view import StaticClusterView
from holdfast.broker.config import BrokerConfig
from holdfast.broker.leader.clock import SystemTime, TimeSource
from holdfast.broker.leader.clock_evidence import ClockEvidence
from holdfast.broker.leader.roles import NodeContext
from holdfast.broker.leader.webhook_rules import WebhookRules
from holdfast.broker.leader.webhooks import Webhooks
from holdfast.broker.membership.delivering import Deliveries
from holdfast.broker.membership.mapped_cluster import MappedCluster, mapped_wire
from holdfast.broker.membership.static import StaticCluster, static_wire
from holdfast.broker.membership.static_topology import StaticTopology
from holdfast.broker.metrics import Metrics
from holdfast.broker.peers.identities import identity_of
from holdfast.broker.replica.backups import Backups
from holdfast.broker.replica.commit_loop import CommitLoop
from holdfast.broker.replica.host import Host, HostListener
from holdfast.broker.replica.peer_wire import PeerWire
from holdfast.broker.replica.shard import Shard
from holdfast.broker.replica.stuck_shards import STALL_SECONDS, Leaderless, Stalls, Written
from holdfast.cluster.connect import Certificates, connect
from holdfast.common.service import Service
from holdfast.raft.library import LEADER
from holdfast.serving.access_rules import AccessRules
from holdfast.serving.audit_log import AuditLog
from holdfast.serving.audited import GuardedAudit, OpenAudit
from holdfast.serving.call_server import FramesAt
from holdfast.serving.grpc_server import ServerLimits
from holdfast.serving.logs import get_logger
from holdfast.serving.memory import give_back_memory, keep_little_memory
from holdfast.serving.open_files import allow_many_files, connections_allowed
from holdfast.serving.openness import report_openness
from holdfast.serving.ops import OpsServer
from holdfast.serving.ports import PortError
from holdfast.serving.refusals import shutting_down
from holdfast.serving.reloading import certificate_gauges
from holdfast.serving.request_limits import read_bytes_max
from holdfast.storage.checkpoints import Checkpointer
from holdfast.storage.data_dir import DataDir, not_in_place
from holdfast.storage.disk_guard import DiskGuard, free_bytes
from holdfast.storage.disk_watch import WatchedThread, end_in_time
from holdfast.wal.disk import RealDisk
from holdfast.wal.errors import LogError
from holdfast.wal.node_log import NodeLog

SWITCH_SECONDS = 0.0001  # with Python's default the hand-over from the sync thread alone costs tens of milliseconds
GC_THRESHOLDS = (50_000, 20, 50)  # a batch makes thousands of short-lived objects, none of them in cycles
WATCH_SECONDS = 1.0
CALLS_SPARE = 1000
STOP_SECONDS_MAX = 30.0  # beyond the grace period
EXIT_FORCED = 1  # of a stop that was asked for twice, or could not be finished; 3 is the missing extra

_log = get_logger(__name__)


class Node:
    """A broker with one shard. `start`, then `run` until a signal or a failure, which it returns."""

    def __init__(self, config: BrokerConfig) -> None:
        self._config = config
        self._stack = ExitStack()  # what must be closed, in reverse order
        self._stop_asked = asyncio.Event()
        self._background = Service()
        self._audit: AuditLog | None = None
        self._ready = False
        self.metrics = Metrics()
        self.port = 0
        self.frames_port = 0  # 0: there are no frames
        self.ops_port = 0

    async def start(self) -> None:
        """Recovers and begins to serve. Raises what a person can act on; then nothing is left running."""
        try:
            loop = asyncio.get_running_loop()
            for signum in (signal.SIGTERM, signal.SIGINT):
                loop.add_signal_handler(signum, self.ask_to_stop)
            sys.setswitchinterval(SWITCH_SECONDS)
            gc.set_threshold(*GC_THRESHOLDS)
            keep_little_memory()
            self._open_files_max = allow_many_files()
            _log.debug("open_files_allowed", limit=self._open_files_max)
            self._certificates = await asyncio.to_thread(Certificates, self._config)
            await asyncio.to_thread(self._open_storage)
            self._build()
            await self._open_replicas()
            self._committing = self._background.spawn(self._commit_loop.run(self._host), "commit loop")
            if self._cluster_view.is_alone:
                await self._lead_alone()
            self._background.spawn(self._checkpointer.run(WATCH_SECONDS), "checkpoints")
            self._background.spawn(self._watch(), "watch")
            self._background.spawn(self._certificates.keep_current(), "certificates")
            self._background.spawn(report_openness(self._config), "openness")
            self._background.spawn(self._follow_clocks(), "clocks")
            self._background.spawn(give_back_memory(self._rpc.intake), "memory")
            if self._access is not None:
                self._background.spawn(self._access.run(), "access")
            if self._cluster is not None:
                await self._start_cluster(self._cluster)
            self.port = await self._rpc.start(self._config.host, self._config.port)
            self._warn_of_port("port", self.port)
            self.frames_port = self._rpc.frames_port
            await self._ops.start()
            self.ops_port = self._ops.port
            self._announce(f"{self._config.host}:{self.port}", f"{self._ops.host}:{self.ops_port}")
            if self._cluster is not None:
                self._background.spawn(self._cluster.run(), "cluster")
            self._ready = True
        except BaseException:
            await self._abandon()
            raise

    def _open_storage(self) -> None:
        config = self._config
        self._data_dir = DataDir.open(config.data_dir)
        self._stack.callback(self._data_dir.close)
        self._log_disk = RealDisk(self._data_dir.log_dir)
        self._node_log = NodeLog.open(self._log_disk, segment_bytes=config.segment_bytes)
        self._data_dir.check_log(is_empty=self._node_log.is_empty)
        self._cluster_view = self._make_cluster_view()

    def _make_cluster_view(self) -> StaticClusterView | MapClusterView:
        config = self._config
        if config.etcd_endpoints is None:
            return StaticClusterView(config)
        known = MapCopy(self._data_dir.path, config.cluster_name).load()
        return MapClusterView(identity_of(config.node_name, self._data_dir.node_id), known)

    def _build(self) -> None:
        config, metrics = self._config, self.metrics
        rules = WebhookRules(self._config.webhook_hosts, self._config.webhook_networks)
        self._webhooks = Webhooks(rules, metrics.webhooks_failed.inc)
        self._guard = DiskGuard(lambda: free_bytes(config.data_dir), config.free_bytes_min)
        self._log_syncs = WatchedThread("holdfast-log")
        self._stack.callback(self._log_syncs.close)
        self._stalls = Stalls()
        flush_thread = self._stack.enter_context(ThreadPoolExecutor(1, "holdfast-flush"))
        source = SystemTime()
        evidence = ClockEvidence(source)
        self._wire = self._make_wire(source, evidence)
        self._commit_loop = CommitLoop(
            self._node_log, metrics, begin_sync=self._log_syncs.begin, disk=self._guard,
            on_first_sync=self._data_dir.note_log_begun, wire=self._wire,
        )  # fmt: skip
        context = NodeContext(config, metrics, self._guard, self._cluster_view, self._other_shards(), self._webhooks)
        self._host = Host(context, self._data_dir, self._node_log, self._commit_loop, source, evidence)
        self._stack.callback(self._host.close)
        self._services = HostedServices(self._host, config, metrics, self._cluster_view)
        self._access = self._open_access()
        self._cluster = self._make_cluster()
        self._checkpointer = Checkpointer(
            self._node_log,
            self._host.kept,
            log_bytes_max=config.state_flush_log_bytes,
            age_seconds_max=config.state_flush_age_seconds,
            keep_bytes=config.log_keep_bytes,
            run_blocking=_runner(flush_thread),
            may_flush=lambda: not self._guard.critical,
        )
        self._host.listen(_Flushes(self._checkpointer))
        self._backups = Backups(self._host)
        self._admin = Admin(
            config, self._data_dir.node_id, self._host, self._cluster_view, self._node_log, self._checkpointer
        )
        self._rpc = RpcServer(
            self._services,
            ShardService(self._admin),
            self._cluster_service(),
            self._backup_service(),
            metrics,
            self._server_limits(),
            batch_bytes_max=config.batch_bytes_max,
            payload_bytes_max=config.payload_bytes_max,
            readiness=self._readiness,
            frames_at=self._frames_at(),
            tls=self._certificates.listening,
            access=self._access,
            audit=self._open_audit(),
        )
        self._ops = OpsServer(
            config.ops_host or config.host, config.ops_port, metrics, self._readiness, self._certificates.http,
            shows_metrics=config.metrics == "on",
        )  # fmt: skip
        metrics.watch_queues(lambda: queue_figures(self._host.shards))
        metrics.watch_latencies(lambda: latencies(self._host.shards))

    def _open_access(self) -> AccessRules | None:
        """Who may do what; None if nobody will ever be asked."""
        config, view = self._config, self._cluster_view
        if not config.asks_who_calls and isinstance(view, StaticClusterView):
            return None
        return AccessRules.open(
            config.access_file, config.router_secret_file, is_required=config.access == "required",
            cluster_id=lambda: view.cluster_id, follows_map=isinstance(view, MapClusterView),
        )  # fmt: skip

    def _open_audit(self) -> OpenAudit | None:
        if self._config.audit == "off":
            return None
        self._audit = AuditLog(self._data_dir.path / "audit", self._config.node_name)
        self._stack.callback(self._audit.close)
        return OpenAudit(self._audit) if self._access is None else GuardedAudit(self._audit, self._access)

    def _server_limits(self) -> ServerLimits:
        config = self._config
        ports = 1 if config.frames == "off" else 2
        connections_max = connections_allowed(
            config.connections_max, self._open_files_max, with_states=True, ports=ports
        )
        return ServerLimits(
            message_bytes_max=read_bytes_max(config.batch_bytes_max),
            bytes_max=config.bytes_in_flight_max,
            calls_max=2 * config.waiters_max + config.proposals_max + CALLS_SPARE,
            connections_max=connections_max,
            has_reflection=config.reflection == "on",
        )

    def _frames_at(self) -> FramesAt | None:
        if self._config.frames == "off":
            return None
        me = identity_of(self._config.node_name, self._data_dir.node_id)
        return FramesAt(self._config.frames_port, lambda: me, self._config.frames_host)

    def _make_wire(self, source: TimeSource, evidence: ClockEvidence) -> PeerWire | None:
        """To the other nodes; None for a node alone."""
        if self._cluster_view.is_alone:
            return None
        make_wire = mapped_wire if isinstance(self._cluster_view, MapClusterView) else static_wire
        return make_wire(self._config, self._data_dir.node_id, source, evidence)

    def _other_shards(self) -> Deliveries | None:
        """Without a map nobody knows where they are."""
        if self._wire is None or not isinstance(self._cluster_view, MapClusterView):
            return None
        return Deliveries(self._wire.calls, self._cluster_view)

    def _make_cluster(self) -> StaticCluster | MappedCluster | None:
        config = self._config
        if self._wire is None:
            return None
        if self._access is None or not isinstance(self._cluster_view, MapClusterView):
            return StaticCluster(config, self._host, self._commit_loop, self._wire)
        return MappedCluster(
            config, self._data_dir, self._host, self._commit_loop, self._wire, cluster_view=self._cluster_view,
            etcd=connect(config), services=self._services, metrics=self.metrics,
            to_brokers=self._certificates.to_brokers, access=self._access,
        )  # fmt: skip

    def _cluster_service(self) -> object:
        if isinstance(self._cluster, MappedCluster):
            return self._cluster.admin
        return StaticTopology(self._host, self._cluster_view)

    def _backup_service(self) -> BackupService:
        cluster_map = self._cluster.backups if isinstance(self._cluster, MappedCluster) else None
        replication = max(1, len(self._config.nodes))
        return BackupService(self._backups, self._host, self._cluster_view, cluster_map, replication)

    def _announce(self, address: str, ops_address: str) -> None:
        if isinstance(self._cluster_view, StaticClusterView):
            self._cluster_view.own_address = address
        elif isinstance(self._cluster, MappedCluster):
            self._cluster.announce(address, ops_address)

    async def _open_replicas(self) -> None:
        started = time.perf_counter()
        if (cut := self._node_log.cut_tail) is not None:
            _log.warning("torn_tail_cut", file=cut.file, offset=cut.offset, bytes=cut.size_bytes)
        await asyncio.to_thread(self._host.open)
        if self._host.is_empty and self._cluster_view.is_alone:
            self._host.found_all([self._host.me])
        self._host.attach_all()
        _log.info(
            "recovered",
            shards=len(self._host.replicas),
            entries_to_apply=sum(
                replica.raft.last_index - replica.applied_index for replica in self._host.replicas.values()
            ),
            log_bytes=self._node_log.size_bytes,
            clean=self._node_log.was_closed,
            seconds=round(time.perf_counter() - started, 3),
        )

    async def _start_cluster(self, cluster: StaticCluster | MappedCluster) -> None:
        try:
            self._warn_of_port("peer_port", await cluster.start())
        except OSError as error:
            raise PortError(
                f"Expected to listen for the other nodes on {self._config.peer_host or self._config.host}:"
                f"{self._config.peer_port}, but it cannot be had: {error.strerror or error}."
            ) from error

    def _warn_of_port(self, setting: str, port: int) -> None:
        """The list says where others look for this node. It may be meant so: there can be a proxy in between."""
        own = next((node for node in self._config.nodes if node.name == self._config.node_name), None)
        listed = own and (own.address if setting == "port" else own.peer_address)
        if listed and int(listed.rpartition(":")[2]) != port:
            _log.warning("listens_elsewhere", setting=setting, port=port, listed=listed)

    async def _lead_alone(self) -> None:
        """A node alone serves from the start; neither a disk that fails meanwhile nor a signal must leave this waiting.

        What is in the log is applied meanwhile: that can take a while.
        """
        while not self._host.all_served():
            self._host.leaders_changed.clear()
            await self._background.wait(self._host.leaders_changed.wait(), self._stop_asked.wait())
            failure = self._background.failed()
            if self._stop_asked.is_set() or failure is not None:
                raise failure or shutting_down()

    async def run(self) -> BaseException | None:
        """Serves until SIGTERM, SIGINT or `ask_to_stop`, then stops gracefully. Returns the failure that ended it."""
        await self._background.wait(self._stop_asked.wait())
        failure = self._background.failed()
        if failure is not None:
            end_in_time(failure)
            await self._abandon()
            return failure
        return await self._stop()

    def ask_to_stop(self) -> None:
        """Asked once: stops gracefully, within bounds. Asked twice: at once; nothing that was acknowledged is lost."""
        if self._stop_asked.is_set():
            os._exit(EXIT_FORCED)
        self._stop_asked.set()
        # A disk that hangs can block every orderly way out.
        patience = threading.Timer(3 * self._config.shutdown_grace_seconds + STOP_SECONDS_MAX, os._exit, [EXIT_FORCED])
        patience.daemon = True
        patience.start()

    async def _stop(self) -> BaseException | None:
        """Finishes what is on its way, then closes everything so that the next start has nothing to replay."""
        _log.info("stopping", grace_seconds=self._config.shutdown_grace_seconds)
        self._ready = False
        self._rpc.drain()
        await self._host.hand_over_all()
        for shard in self._host.shards:
            shard.drain()
        await self._rpc.stop(self._config.shutdown_grace_seconds)
        await self._ops.stop()
        for shard in self._host.shards:
            await shard.stop()
        await self._webhooks.close()
        self._commit_loop.stop()
        await self._backups.close()
        await self._host.stop()
        if self._cluster is not None:
            await self._cluster.stop()
        # On a full disk the state may take nothing for as long as one likes to wait; the log has everything.
        done, _ = await asyncio.wait([self._committing], timeout=max(1.0, self._config.shutdown_grace_seconds))
        failure = self._background.failed()
        if failure is not None:
            await self._abandon()
            return failure
        await self._background.stop()
        try:
            if done and not self._guard.critical:
                await self._checkpointer.flush_all()
            self._log_syncs.close()
            self._node_log.close(clean=bool(done))
        except LogError as error:
            return error
        finally:
            self._stack.close()
        _log.info("stopped")
        return None

    async def _abandon(self) -> None:
        """Something failed: nothing more is written, callers are told that the outcome of their writes is unknown."""
        self._ready = False
        try:
            if hasattr(self, "_ops"):  # the last part that is built: then all are there
                for shard in self._host.shards:
                    shard.give_up()
                await self._rpc.stop(0.2)
                await self._ops.stop()
                for shard in self._host.shards:
                    await shard.stop()
                await self._webhooks.close()
                await self._backups.close()
                await self._host.stop()
                if self._cluster is not None:
                    await self._cluster.stop()
            await self._background.stop()
            if hasattr(self, "_log_syncs"):
                self._log_syncs.close()  # a sync may be under way still
            if hasattr(self, "_node_log"):
                self._node_log.close(clean=False)
        finally:
            self._stack.close()

    # --- what is shown ----------------------------------------------------------------------------------------

    async def _watch(self) -> None:
        """Looks at disk and clock, once a second, and keeps the gauges. What it raises stops the node. It waits for
        nothing, least of all for the disk that it looks at."""
        jumped: set[int] = set()
        leaderless = Leaderless()
        refusing = self._guard.refusing
        while True:
            self._check_in_place()
            self._log_syncs.check()
            if self._guard.poll():
                for shard in self._host.shards:
                    shard.serve_all_waiters()
            if self._guard.refusing != refusing:
                refusing = self._guard.refusing
                _log.warning(
                    "writes_refused" if refusing else "writes_resumed", free_bytes=self._guard.free_bytes,
                    free_bytes_min=self._config.free_bytes_min,
                )  # fmt: skip
            for number, replica in list(self._host.replicas.items()):
                self._watch_clock(number, replica.shard, jumped)
                failure = replica.shard.failed() or self._host.damage
                if failure is not None:
                    raise failure
            failure = self._cluster.failed() if self._cluster is not None else None
            if failure is not None:
                raise failure
            self._watch_leaders(leaderless)
            self._watch_writes()
            self._show()
            await asyncio.sleep(WATCH_SECONDS)

    def _check_in_place(self) -> None:
        self._data_dir.check_in_place()
        lost = self._log_disk.lost_file(self._node_log.segment_names) or self._host.lost_file()
        if lost is not None:
            raise not_in_place(lost)

    async def _follow_clocks(self) -> None:
        """A step of shard time is an entry, which takes as long as the disk and the other nodes do."""
        while True:
            for number, replica in list(self._host.replicas.items()):
                if await replica.shard.follow_clock():
                    _log.warning("shard_time_moved", shard=number, evidence="a majority of the nodes' clocks")
            await asyncio.sleep(WATCH_SECONDS)

    def _watch_leaders(self, leaderless: Leaderless) -> None:
        replicas = self._host.replicas
        without = [number for number, replica in replicas.items() if replica.raft.leader is None]
        connected = self._cluster.connected() if self._cluster is not None else {}
        for number, seconds in leaderless.poll(without, time.monotonic()):
            voters = replicas[number].raft.configuration.voters
            there = {self._host.me, *(peer.identity for peer in connected.values())}
            _log.warning(
                "no_leader", shard=number, seconds=round(seconds), connected=sorted(connected), voters=list(voters),
                voters_missing=[voter for voter in voters if voter not in there],
            )  # fmt: skip

    def _watch_writes(self) -> None:
        rafts = {number: replica.raft for number, replica in self._host.replicas.items()}
        led = {
            number: Written(raft.commit_index, raft.last_index) for number, raft in rafts.items() if raft.role == LEADER
        }
        self._stalls.poll(led, time.monotonic())

    def _watch_clock(self, number: int, shard: Shard, jumped: set[int]) -> None:
        clock = shard.clock
        if clock is None:
            jumped.discard(number)
            return
        clock.now_ms()
        if clock.jumped and number not in jumped:
            _log.warning(
                "wall_clock_jumped",
                shard=number,
                offset_ms=round(clock.wall_offset_ms),
                followed="no, until the next start" if self._cluster_view.is_alone else "no: the majority's clock is",
            )
            jumped.add(number)
        if not clock.jumped:
            jumped.discard(number)

    def _show(self) -> None:
        metrics = self.metrics
        shards = list(self._host.shards)
        clocks = [shard.clock for shard in shards if shard.clock is not None]
        metrics.proposals_waiting.set(sum(shard.proposals_waiting for shard in shards))
        metrics.waiters.set(sum(shard.waiters for shard in shards))
        metrics.calls.show_frames(self._rpc.frame_connections, self._rpc.frame_calls)
        metrics.workers.set(len(set[bytes]().union(*(shard.stats.worker_names for shard in shards if shard.serves))))
        metrics.watched_tasks.set(sum(shard.watched_tasks for shard in shards))
        metrics.log_bytes.set(self._node_log.size_bytes)
        metrics.applied_index.set(sum(shard.applied_index for shard in shards))
        metrics.audit_lost.number = 0 if self._audit is None else self._audit.lost
        metrics.free_bytes.set(self._guard.free_bytes)
        metrics.writes_refused.set(self._guard.refusing)
        metrics.replicas.set(len(shards))
        metrics.shards_led.set(sum(shard.serves for shard in shards))
        metrics.replication_lag_entries.set(max((replica.lag for replica in self._host.replicas.values()), default=0))
        if self._cluster is not None:
            counters = self._cluster.counters
            metrics.peers_connected.set(len(self._cluster.connected()))
            metrics.peer_bytes_sent.set(counters.bytes_sent)
            metrics.peer_frames_dropped.set(counters.frames_dropped_full + counters.frames_dropped_unconnected)
        if isinstance(self._cluster, MappedCluster):
            metrics.map_revision.set(self._cluster.follower.map.revision)
            metrics.map_is_current.set(self._cluster.follower.is_current)
        of_cluster = () if self._cluster is None else self._cluster.certificates
        for name, value in certificate_gauges([*self._certificates.all, *of_cluster]).items():
            metrics.certificates[name].set(value)
        metrics.clock_offset_seconds.set(max((clock.wall_offset_ms for clock in clocks), key=abs, default=0.0) / 1000)

    def _readiness(self) -> tuple[bool, str]:
        """Only this node's own state makes it unready. What it lacks of others is told beside it: nodes that waited for
        each other to be ready would never be started or replaced one after the other."""
        if not self._ready:
            return False, "starting or stopping"
        if self._guard.refusing:
            return False, f"new tasks are refused: {self._guard.free_bytes} bytes of disk are free"
        if self._log_syncs.busy_s >= STALL_SECONDS:
            return False, f"the disk has not answered a sync for {self._log_syncs.busy_s:.0f} s"
        why = self._lacks()
        return True, f"serving, but {why}" if why else "serving"

    def _lacks(self) -> str:
        """What keeps this node from all that it is for, although it takes calls; empty if nothing does."""
        if self._cluster is not None and not self._host.replicas and (why := self._cluster.waits_for()):
            return why
        if not self._host.all_served():
            return "there is a shard of which no leader is known"
        if stalled := self._stalls.stalled(time.monotonic()):
            return f"shard {stalled[0]} waits for other nodes to write what it was given"
        return next(filter(None, map(self._host.clock_problem, self._host.replicas)), "")


class _Flushes(HostListener):
    """What is known of flushes is of one state only."""

    def __init__(self, checkpointer: Checkpointer) -> None:
        self._checkpointer = checkpointer

    def state_replaced(self, number: int) -> None:
        self._checkpointer.forget(number)


def _runner(executor: ThreadPoolExecutor) -> Callable[[Callable[[], None]], "asyncio.Future[None]"]:
    def run(function: Callable[[], None]) -> "asyncio.Future[None]":
        return asyncio.get_running_loop().run_in_executor(executor, function)

    return run
