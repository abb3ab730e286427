"""One rebalancer process: puts the parts together, starts them in order, and stops them in the reverse order."""

import asyncio
import os
import signal
import socket

from holdfast.access.identities import Identity
from holdfast.cluster.admin.node_answers import NodeAnswers
from holdfast.cluster.admin.node_calls import NodeCalls
from holdfast.cluster.admin.plans import PlanAdmin
from holdfast.cluster.connect import Certificates, connect
from holdfast.cluster.etcd.api import Etcd
from holdfast.cluster.map.follower import MapFollower
from holdfast.cluster.map.records import RebalancingRecord
from holdfast.cluster.map.store import MapStore
from holdfast.common.service import Service
from holdfast.rebalancer.config import RebalancerConfig
from holdfast.rebalancer.election import Election
from holdfast.rebalancer.metrics import Metrics
from holdfast.rebalancer.watcher import Watcher
from holdfast.serving.logs import get_logger
from holdfast.serving.ops import OpsServer
from holdfast.serving.reloading import certificate_gauges
from holdfast.serving.router_word import RouterWords, read_secret

_log = get_logger(__name__)


class Rebalancer:
    """`start`, then `run` until a signal or a failure, which it returns."""

    def __init__(self, config: RebalancerConfig, *, dry_run: bool = False, etcd: Etcd | None = None) -> None:
        """`dry_run`: it only says what it would do, and is no candidate: whoever is active moves replicas meanwhile.
        `etcd`: another one than the configuration says, for tests."""
        self._config = config
        self._dry_run = dry_run
        self._etcd = etcd or connect(config)
        self._stop_asked = asyncio.Event()
        self.metrics = Metrics()
        self.follower = MapFollower(self._etcd, config.cluster_name)
        self._certificates = Certificates(config)
        words = RouterWords(read_secret(config.router_secret_file), self._cluster_id)
        me = Identity("rebalancer", "router")
        self._calls = NodeCalls(self._certificates.to_brokers, lambda: words.word(me))
        store = MapStore(self._etcd, config.cluster_name)
        answers = NodeAnswers(self._calls, lambda: self.follower.map)
        plans = PlanAdmin(store, self.follower, answers)
        self._election = Election(self._etcd, self.follower, f"{socket.gethostname()}:{os.getpid()}")
        self._watcher = Watcher(config, store, self.follower, plans, self._election, self.metrics, dry_run=dry_run)
        candidacy = [] if dry_run else [self._election.run]
        self._background = Service(
            self.follower.run, *candidacy, self._watcher.run, self._certificates.keep_current
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

    @property
    def ops_port(self) -> int:
        return self._ops.port

    async def start(self) -> None:
        """Raises what a person can act on; then nothing is left running."""
        loop = asyncio.get_running_loop()
        for signum in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(signum, self._stop_asked.set)
        try:
            await self._ops.start()
        except BaseException:
            await self.close()
            raise
        self._background.start()

    async def run(self) -> BaseException | None:
        """Until SIGTERM or SIGINT. A plan that is under way stays in etcd: whoever is next goes on with it."""
        await self._background.wait(self._stop_asked.wait())
        failure = self._background.failed()
        await self.close()
        _log.info("stopped")
        return failure

    async def close(self) -> None:
        await self._background.stop()
        await self._ops.stop()
        await self._calls.close()
        await self._etcd.close()

    def readiness(self) -> tuple[bool, str]:
        """One that stands by is ready, too."""
        found = self.follower.map
        if not found.revision:
            return False, "the partition map could not be read yet: etcd does not answer"
        if found.cluster is None:
            return False, found.why_no_cluster
        if not self.follower.is_current:
            return True, f"waiting: {self.follower.trouble or 'etcd does not answer'}"
        if self._dry_run:
            return True, "a dry run: it says what it would do"
        if not self._election.is_active:
            return True, f"standing by: {found.rebalancer.name if found.rebalancer else 'nobody'} rebalances"
        return True, "paused" if found.rebalancing is not None and found.rebalancing.is_paused else "rebalancing"

    def _cluster_id(self) -> str:
        cluster = self.follower.map.cluster
        return "" if cluster is None else cluster.cluster_id

    def _read_gauges(self) -> dict[str, float]:
        record = self.follower.map.rebalancing or RebalancingRecord()
        return {
            "active": self._election.is_active,
            "paused": record.is_paused,
            "nodes_gone": len(record.gone),
            "nodes_given_up": len(record.given_up),
            "steps_left": self._watcher.steps_left,
            **certificate_gauges([*self._certificates.all, self._etcd.certificates]),
            "map_is_current": self.follower.is_current,
        }
