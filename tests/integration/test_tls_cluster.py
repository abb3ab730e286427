"""TLS of a cluster: through its router, straight to its brokers, between its nodes; and all certificates change."""

import json
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.cli.certificates import Kind
from holdfast.cli.main import main
from holdfast.client import Accepted, Client, ConnectionFailed, HoldfastError, NewTask, Tls
from tests.integration.cluster import NodeProcess, free_ports
from tests.integration.map_cluster import MapCluster, RouterProcess, until
from tests.integration.map_load import load_on, queues_of_all_shards
from tests.integration.server import wait_until
from tests.long import long_only
from tests.tls_files import CertsDirectory

SHARDS = 2
NODES = ["n1", "n2", "n3"]


def secure_cluster(directory: Path, certs: CertsDirectory) -> MapCluster:
    return MapCluster(
        directory, size=3, shards=SHARDS, tls=certs.client("operator"),
        router_settings=certs.settings("r1", Kind.ROUTER),
        **certs.settings("nodes", hosts=NODES), **certs.peer_settings("nodes"),
    )  # fmt: skip


@pytest.fixture(scope="module")
def certs(tmp_path_factory: pytest.TempPathFactory) -> CertsDirectory:
    return CertsDirectory(tmp_path_factory.mktemp("certs") / "certs")


@pytest.fixture(scope="module")
def cluster(certs: CertsDirectory, tmp_path_factory: pytest.TempPathFactory) -> Iterator[MapCluster]:
    with secure_cluster(tmp_path_factory.mktemp("cluster"), certs) as running:
        yield running.start()


@pytest.mark.parametrize("direct", [False, True])
def test_tasks_go_through_the_router_and_straight_to_the_leaders(
    cluster: MapCluster, certs: CertsDirectory, direct: bool
) -> None:
    queues = queues_of_all_shards(f"direct{direct}-", SHARDS)
    with Client(cluster.address, tls=certs.client("billing"), direct=direct) as client:
        outcomes = client.enqueue_many([NewTask(queue, "t", bytes(5_000)) for queue in queues for _ in range(20)])
        assert all(isinstance(outcome, Accepted) for outcome in outcomes)
        done = 0
        while done < len(outcomes):
            claims = client.reserve(queues, max_tasks=20, wait_ms=5_000, worker="w")
            assert claims, "nothing more to claim"
            client.ack_many(claims)
            done += len(claims)


def test_operators_see_all_of_it(
    cluster: MapCluster, certs: CertsDirectory, capsys: pytest.CaptureFixture[str]
) -> None:
    """The router asks the brokers for some of that, and the brokers each other."""
    mine = certs.client("operator")
    options = ["--tls-ca", str(mine.ca), "--tls-cert", str(mine.cert), "--tls-key", str(mine.key), "--json"]
    for command in (["cluster", "status"], ["shard", "ls"], ["node", "ls"], ["shard", "plan"]):
        assert main([*command, "--address", cluster.address, *options]) == 0, capsys.readouterr()
        assert json.loads(capsys.readouterr().out)
    for node in cluster.nodes.values():
        assert "ended by an error" not in node.whole_log_text


def test_a_router_without_a_certificate_cannot_reach_the_brokers(
    cluster: MapCluster, certs: CertsDirectory, tmp_path: Path
) -> None:
    """And one that trusts others takes nobody for a broker."""
    other = CertsDirectory(tmp_path / "other")
    for place, settings in enumerate(({}, {"broker_ca": certs.path / "ca.crt"}, other.settings("r1", Kind.ROUTER))):
        home = tmp_path / f"router{place}"
        home.mkdir()
        tls = other.client("x") if "tls_cert" in settings else None
        with RouterProcess(home, 0, cluster.etcd_endpoints, **settings) as router:
            router.launch()
            router.wait_serving()
            router.port = router.events("serving")[-1]["port"]
            wait_until(lambda router=router: router.get("/readyz")[0] == 200, "the router to be ready")  # type: ignore[misc]
            with Client(router.address, timeout_s=2, retry=False, tls=tls) as client, pytest.raises(HoldfastError):
                client.enqueue(NewTask("mail", "t"))


def test_what_a_router_shows_opens_nothing_between_nodes(
    cluster: MapCluster, certs: CertsDirectory, tmp_path: Path
) -> None:
    """It is signed by who signs what callers show: a node that shows it to other nodes is not let in."""
    refused = dict(certs.settings("r1", Kind.ROUTER))
    refused |= {
        "peer_certificate": refused["tls_cert"], "peer_key": refused["tls_key"],
        "peer_authority": certs.path / "peers-ca.crt", "etcd_endpoints": cluster.etcd_endpoints,
    }  # fmt: skip
    home = tmp_path / "stranger"
    home.mkdir()
    port, peer_port = free_ports(2)
    config = home / "n4.toml"
    config.write_text(f'node_name = "n4"\ncluster_name = "tested"\nport = {port}\npeer_port = {peer_port}\n')
    with NodeProcess(home, "n4", port, config, home / "data", **refused) as stranger:
        stranger.launch()
        wait_until(lambda: "TLS_FAILED" in stranger.whole_log_text, "it to be refused")
        assert stranger.events("node connected") == []


@long_only
def test_all_certificates_are_replaced_under_load_and_no_call_fails(tmp_path: Path) -> None:
    certs, newer = CertsDirectory(tmp_path / "certs"), CertsDirectory(tmp_path / "newer")
    with secure_cluster(tmp_path / "cluster", certs) as cluster:
        prober = certs.client("prober")
        newer.issue("nodes", Kind.NODE, NODES)
        newer.issue("r1", Kind.ROUTER)
        for name in ("operator", "prober"):
            newer.issue(name, Kind.CLIENT)
        cluster.start()
        failures: list[HoldfastError] = []
        calls = 0
        ends = threading.Event()

        def probe(transport: str) -> None:
            """Without repeating anything."""
            nonlocal calls
            with Client(cluster.address, tls=prober, retry=False, transport=transport) as client:
                while not ends.wait(0.01):
                    try:
                        client.enqueue(NewTask("probed", "t"))
                        calls += 1
                    except HoldfastError as error:
                        failures.append(error)

        probers = [threading.Thread(target=probe, args=(transport,)) for transport in ("auto", "grpc")]
        for thread in probers:
            thread.start()

        def wait_reloaded(times: int) -> None:
            for server in (*cluster.nodes.values(), *cluster.routers):
                kind = "router_" if isinstance(server, RouterProcess) else ""
                until(
                    lambda server=server, kind=kind: (  # type: ignore[misc]
                        len(server.events("certificates_reloaded")) >= times * (2 if kind else 3)
                        and server.metric(f"holdfast_{kind}certificates_unusable") == 0
                    ),
                    f"{times} times new certificates",
                )
            load.wait_for(10)
            before = calls
            wait_until(lambda: calls > before + 50, "more calls")

        try:
            with load_on(cluster, queues_of_all_shards("certified", SHARDS)) as load:
                load.wait_for(5)
                certs.trust(newer)
                wait_reloaded(1)
                for name in ("nodes", "r1", "operator", "prober"):
                    certs.take_from(newer, name)
                wait_reloaded(2)
                certs.trust(newer, own=False)
                wait_reloaded(3)
                assert failures == []
                # It comes back with the new ones only, and everybody knows them.
                cluster.nodes["n3"].kill()
                cluster.nodes["n3"].start()
                cluster.wait_settled()
                load.wait_for(5)
            load.check(cluster)
        finally:
            ends.set()
            for thread in probers:
                thread.join()
        old = Tls(certs.path / "first-ca.crt", prober.cert, prober.key)
        with Client(cluster.address, tls=old, timeout_s=5, retry=False) as client, pytest.raises(ConnectionFailed):
            client.enqueue(NewTask("probed", "t"))
