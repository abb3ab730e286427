"""A cluster with a map: a real etcd, real brokers, real routers, on this machine. Everything here blocks."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Self

import pytest

from holdfast.client import Client, ClusterInfo, ClusterShard, NotFound, Plan, ReplicaInfo, ReplicaRole, Tls
from holdfast.cluster.etcd.process import EtcdProcess
from tests.integration.cluster import HOST, LAG_MAX, SETTINGS, NodeProcess, free_ports
from tests.integration.server import DEADLINE_S, Closed, ServerProcess, wait_until

NAME = "tested"
POLL_EVERY_S = 0.05


class RouterProcess(ServerProcess):
    """One router, always on the same port."""

    def __init__(
        self, directory: Path, port: int, endpoints: str, *, cluster_name: str = NAME, **settings: object
    ) -> None:
        super().__init__(directory, **settings)  # type: ignore[arg-type]  # settings pass through
        self.port = port
        self._cluster_name = cluster_name
        self._endpoints = endpoints

    def launch(self) -> None:
        self._launch(
            "router", etcd_endpoints=self._endpoints, cluster_name=self._cluster_name, log_format="json", ops_port=0,
            port=self.port,
        )  # fmt: skip

    def wait_serving(self) -> None:
        wait_until(lambda: self.events("serving"), "the router to serve")
        self.ops_port = self.events("serving")[-1]["ops_port"]


class MapCluster(Closed):
    """`size` brokers and `routers` routers, initialised with `shards` shards."""

    node_prefix = "n"  # of their names

    def __init__(
        self, directory: Path, *, size: int = 3, shards: int = 4, routers: int = 1, replication: int = 3,
        zones: Sequence[str] = (), env: Mapping[str, str] | None = None, etcd_members: int = 1,
        router_settings: Mapping[str, object] | None = None, tls: Tls | None = None, **settings: object,
    ) -> None:  # fmt: skip
        """`tls`: of clients."""
        self.tls = tls
        self.directory = directory
        self.shards = shards
        self._size = size
        self._replication = replication
        self._zones = zones
        self._settings = {"env": env, **SETTINGS, "free_bytes_min": 0, **settings}
        self.etcds = _etcd_of(directory, etcd_members)
        self.etcd = self.etcds[0]
        self.etcd_endpoints = ",".join(member.endpoint for member in self.etcds)
        self.nodes: dict[str, NodeProcess] = {}
        self._onlooker: Client | None = None
        ports = enumerate(free_ports(routers))
        self.routers = [
            RouterProcess(self._home(f"r{index + 1}"), port, self.etcd_endpoints, **(router_settings or {}))  # type: ignore[arg-type]
            for index, port in ports
        ]

    def _home(self, name: str) -> Path:
        home = self.directory / name
        home.mkdir(parents=True)
        return home

    # --- life -------------------------------------------------------------------------------------------------

    def start(self) -> Self:
        """Everything, founded and led."""
        for member in self.etcds:
            member.launch()
        for member in self.etcds:
            member.wait_until_healthy()
        for _ in range(self._size):
            self.add_node(wait=False)
        for node in self.nodes.values():
            node.wait_serving()
        self.init()
        for router in self.routers:
            router.launch()
        for router in self.routers:
            router.wait_serving()
        self.wait_settled()
        return self

    def init(self) -> None:
        with Client(self.broker_addresses[0], timeout_s=DEADLINE_S, tls=self.tls) as client:
            wait_until(lambda: len(_alive(client.describe_cluster())) == self._size, "all nodes to be registered")
            client.init_cluster(self.shards, replication=self._replication)

    def close(self) -> None:
        """Leaves nothing running, whatever the test did."""
        if self._onlooker is not None:
            self._onlooker.close()
        for process in (*self.nodes.values(), *self.routers):
            process.close()
        for member in self.etcds:
            member.kill()

    def add_node(self, *, wait: bool = True, env: Mapping[str, str] | None = None) -> str:
        """One more broker, with nothing."""
        number = len(self.nodes) + 1
        name = f"{self.node_prefix}{number}"
        home = self._home(name)
        port, peer_port = free_ports(2)
        lines = [
            f'node_name = "{name}"', f'cluster_name = "{NAME}"', f'etcd_endpoints = "{self.endpoints_of(name)}"',
            f"port = {port}", f"peer_port = {peer_port}",
        ]  # fmt: skip
        if self._zones:
            lines.append(f'zone = "{self._zones[(number - 1) % len(self._zones)]}"')
        config = home / f"{name}.toml"
        config.write_text("\n".join(lines) + "\n", encoding="utf-8")
        settings = self._settings | ({"env": env} if env else {})
        self.nodes[name] = NodeProcess(home, name, port, config, home / "data", **settings)
        self.nodes[name].launch()
        if wait:
            self.nodes[name].wait_serving()
        return name

    def endpoints_of(self, _name: str) -> str:
        """Where a node finds etcd."""
        return self.etcd_endpoints

    # --- where ------------------------------------------------------------------------------------------------

    @property
    def address(self) -> str:
        """Of the routers, as a client takes it."""
        return ",".join(f"{HOST}:{router.port}" for router in self.routers)

    @property
    def broker_addresses(self) -> list[str]:
        return [node.address for node in self.nodes.values() if node.is_up and not node.paused]

    @property
    def onlooker(self) -> Client:
        """Asks the brokers that run. The same one for as long as they are the same: tests look again and again."""
        address = ",".join(self.broker_addresses)
        if self._onlooker is None or self._onlooker.address != address:
            before, self._onlooker = self._onlooker, Client(address, timeout_s=5, tls=self.tls)
            if before is not None:
                before.close()
        return self._onlooker

    def info(self) -> ClusterInfo:
        return self.onlooker.describe_cluster()

    def shard(self, number: int) -> ClusterShard:
        return self.info().shards[number]

    # --- looks ------------------------------------------------------------------------------------------------

    def replicas(self) -> dict[tuple[int, str], ReplicaInfo]:
        """By shard and node: what the node says of its replica. Nodes that do not answer are left out."""
        reports = self.onlooker.describe_nodes(timeout_s=2)
        reported = {report.name: report.node.replicas for report in reports if report.node is not None}
        return {(one.shard, name): one for name, replicas in reported.items() for one in replicas}

    def leader(self, shard: int) -> str:
        """In the newest term; empty if nobody leads."""
        leading = [
            (one.term, name)
            for (number, name), one in self.replicas().items()
            if number == shard and one.role is ReplicaRole.LEADER
        ]
        return max(leading)[1] if leading else ""

    def wait_for_leader(self, shard: int) -> str:
        """Who leads, once somebody does and says so."""
        return wait_until(lambda: self.leader(shard), f"a leader of shard {shard}", deadline_s=2 * DEADLINE_S)

    def wait_settled(self, deadline_s: float = 3 * DEADLINE_S) -> None:
        """Returns once every shard has the replicas that it should have, on no other nodes, all led and caught up."""
        until(self._is_settled, "the shards to be as the map desires", deadline_s=deadline_s)

    def _is_settled(self) -> bool:
        info, replicas = self.info(), self.replicas()
        if len(info.shards) != self.shards:
            return False
        for shard in info.shards:
            names = set(shard.replicas)
            here = {name: one for (number, name), one in replicas.items() if number == shard.shard}
            voting = [one for one in here.values() if one.role in (ReplicaRole.LEADER, ReplicaRole.FOLLOWER)]
            newest = max((one.commit_index for one in voting), default=0)
            is_right = (
                {voter.partition("/")[0] for voter in shard.voters} == names
                and not shard.learners
                and not shard.leaving
                and here.keys() == names
                and len(voting) == len(names)
                and sum(one.role is ReplicaRole.LEADER for one in voting) == 1
                and all(one.applied_index + LAG_MAX > newest and not one.problem for one in voting)
            )
            if not is_right:
                return False
        return True

    def check_hashes(self) -> None:
        """All replicas of each shard hold the same."""
        with Client(",".join(self.broker_addresses), timeout_s=DEADLINE_S, tls=self.tls) as client:
            for number in range(self.shards):
                # A replica that was sent a snapshot meanwhile has passed the place without a look.
                hashes = wait_until(partial(_all_hashes, client, number), f"hashes of shard {number}")
                assert len(set(hashes)) == 1, f"shard {number}: {hashes}"


def map_cluster(**settings: Any) -> Any:
    """A fixture: one cluster for all tests of a module."""

    @pytest.fixture(scope="module")
    def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MapCluster]:
        with MapCluster(tmp_path_factory.mktemp("cluster"), **settings) as running:
            yield running.start()

    return cluster


def _etcd_of(directory: Path, size: int) -> list[EtcdProcess]:
    """Its members, not yet started; with one it is alone."""
    names = [f"etcd{number or ''}" for number in range(size)]
    client_ports, peer_ports = free_ports(size), dict(zip(names, free_ports(size), strict=True))
    return [
        EtcdProcess(
            directory / name, name=name, client_port=client_port, peer_port=peer_ports[name],
            cluster=peer_ports if size > 1 else None, log_file=directory / f"{name}.log",
        )
        for name, client_port in zip(names, client_ports, strict=True)
    ]  # fmt: skip


def _all_hashes(client: Client, shard: int) -> list[str]:
    """Of each replica; none if one has none."""
    hashes = [one.state_hash for one in client.hash_shard(shard).replicas]
    return [shard_hash for shard_hash in hashes if shard_hash is not None] if None not in hashes else []


def _alive(info: ClusterInfo) -> list[str]:
    return [node.name for node in info.nodes if node.is_alive]


def until(condition: Callable[[], object], what: str, deadline_s: float = 3 * DEADLINE_S) -> None:
    """Looks less often than `wait_until`: a look at a cluster asks all of its nodes, and they have other work."""

    def poll() -> bool:
        if condition():
            return True
        time.sleep(POLL_EVERY_S)
        return False

    wait_until(poll, what, deadline_s=deadline_s)


def apply_plan(operator: Client, plan: Plan) -> None:
    """Carries a plan out, as the only operator."""
    started = operator.start_plan(plan)
    until(lambda: is_plan_done(operator, started.id), "the plan to be done")


def is_plan_done(operator: Client, plan_id: str) -> bool:
    """Begins what may begin; whether nothing is left to do."""
    try:
        return operator.advance_plan(plan_id).is_done
    except NotFound:
        return True  # and forgotten
