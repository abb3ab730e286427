"""A whole router with an etcd in memory: it waits for its map, says why, serves, and stops at once."""

import asyncio
import json
import socket
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc.aio
import pytest
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2
from structlog.testing import capture_logs

from holdfast.cluster.etcd.api import Put
from holdfast.cluster.etcd.fake import FakeEtcd
from holdfast.cluster.map.keys import keys_of
from holdfast.cluster.map.partition_map import PartitionMap
from holdfast.cluster.map.policy import PolicyRecord
from holdfast.cluster.map.records import ClusterRecord, LeaderRecord, Members, NodeRecord, QueueRecord, ShardRecord
from holdfast.proto.v1 import cluster_pb2
from holdfast.router import server
from holdfast.router.config import RouterConfig
from holdfast.router.main import run_router
from holdfast.router.routes import Routes
from holdfast.router.server import Router
from holdfast.router.shared_waits import SharedWaits
from holdfast.routing.groups import mapped_group
from holdfast.serving.ports import PortError
from holdfast.serving.starting import EXIT_FAILED, EXIT_REFUSED
from tests.stalls import stalls

KEYS = keys_of("holdfast")
GROUP = mapped_group(3, 1)


def identity(name: str) -> str:
    return f"{name}/{name[1:] * 32}"


async def write_cluster(etcd: FakeEtcd) -> None:
    nodes = [
        NodeRecord(name=name, node_id=name[1:] * 32, address=f"{name}:1", peer_address=f"{name}:2")
        for name in ("n1", "n2", "n3", "n4")
    ]
    members = Members(2, (identity("n1"), identity("n2")), (identity("n3"),))
    record = ShardRecord(
        group=GROUP, replicas=("n2", "n3"), founders=(), is_founded=True, members=members, leaving=(identity("n4"),)
    )
    changes = [Put(KEYS.node(node.name), node.encode()) for node in nodes]
    changes += [Put(KEYS.shard(0), record.encode()), Put(KEYS.cluster, ClusterRecord("c" * 32, 1, 2).encode())]
    assert (await etcd.commit([], changes)).is_done


@pytest.fixture
async def etcd() -> FakeEtcd:
    return FakeEtcd()


@pytest.fixture
async def router(etcd: FakeEtcd) -> AsyncIterator[Router]:
    running = Router(RouterConfig(port=0, ops_port=0, shutdown_grace_seconds=5), etcd=etcd)
    await running.start(with_signals=False)
    yield running
    await running.stop()


async def health(router: Router, service: str = "") -> int:
    async with grpc.aio.insecure_channel(f"127.0.0.1:{router.port}") as channel:
        ask = channel.unary_unary(
            "/grpc.health.v1.Health/Check",
            request_serializer=health_pb2.HealthCheckRequest.SerializeToString,
            response_deserializer=health_pb2.HealthCheckResponse.FromString,
        )
        answer = await ask(health_pb2.HealthCheckRequest(service=service), timeout=5)
        return int(answer.status)


async def until_ready(router: Router, *, is_ready: bool = True) -> None:
    async with asyncio.timeout(10):
        while router.readiness()[0] is not is_ready:
            await asyncio.sleep(0.01)


async def test_it_is_ready_once_there_is_a_cluster(router: Router, etcd: FakeEtcd) -> None:
    assert await health(router) == health_pb2.HealthCheckResponse.NOT_SERVING
    async with asyncio.timeout(10):
        while "not initialised" not in router.readiness()[1]:
            await asyncio.sleep(0.01)
    await write_cluster(etcd)
    await until_ready(router)
    async with asyncio.timeout(10):
        while await health(router, "holdfast.proto.v1.Tasks") != health_pb2.HealthCheckResponse.SERVING:
            await asyncio.sleep(0.01)
    etcd.stop()
    assert router.readiness()[0], "it needs etcd only to learn of changes"


async def test_without_a_cluster_it_says_what_it_waits_for(etcd: FakeEtcd, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "WAITING_SECONDS", 0.01)
    monkeypatch.setattr(server, "WAITING_AGAIN_SECONDS", 0.01)
    router = Router(RouterConfig(port=0, ops_port=0, cluster_name="holdfast"), etcd=etcd)
    with capture_logs() as lines:

        def said() -> list[Any]:
            return [line for line in lines if line["log_level"] == "warning"]

        await router.start(with_signals=False)
        try:
            async with asyncio.timeout(10):
                while not said() or "not initialised" not in said()[-1]["detail"]:
                    await asyncio.sleep(0.01)
            assert {(line["event"], line["cluster_name"]) for line in said()} == {("waiting", "holdfast")}
            await write_cluster(etcd)
            await until_ready(router)
            before = len(said())
            await asyncio.sleep(0.1)
            assert len(said()) == before
        finally:
            await router.stop()


async def test_a_map_that_it_is_too_old_for_is_no_reason_to_make_a_cluster(router: Router, etcd: FakeEtcd) -> None:
    await etcd.commit([], [Put(KEYS.cluster, b'{"format":2,"id":"new","shards":8,"replication":3}')])
    async with asyncio.timeout(10):
        while "too old" not in router.readiness()[1]:
            await asyncio.sleep(0.01)
    async with grpc.aio.insecure_channel(f"127.0.0.1:{router.port}") as channel:
        ask: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary("/holdfast.proto.v1.Tasks/Enqueue")
        with pytest.raises(grpc.aio.AioRpcError, match="too old for the cluster; upgrade it") as refused:
            await ask(b"", timeout=10)
    assert refused.value.code() == grpc.StatusCode.FAILED_PRECONDITION


async def test_calls_that_wait_hear_of_queues_on_other_shards(
    router: Router, etcd: FakeEtcd, monkeypatch: pytest.MonkeyPatch
) -> None:
    await write_cluster(etcd)
    await until_ready(router)
    heard: asyncio.Queue[list[str]] = asyncio.Queue()

    def notify(_waits: SharedWaits, queues: list[str]) -> None:
        if queues:
            heard.put_nowait(queues)

    monkeypatch.setattr(SharedWaits, "routes_changed", notify)
    await etcd.commit([], [Put(KEYS.queue("paused"), QueueRecord(policy=PolicyRecord(paused=True)).encode())])
    await etcd.commit([], [Put(KEYS.queue("pinned"), QueueRecord(generation=1, sets=((1, (3,)),)).encode())])
    assert await asyncio.wait_for(heard.get(), 10) == ["pinned"]


async def test_it_serves_the_map_to_clients(router: Router, etcd: FakeEtcd) -> None:
    await write_cluster(etcd)
    await until_ready(router)
    async with grpc.aio.insecure_channel(f"127.0.0.1:{router.port}") as channel:
        ask: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(
            "/holdfast.proto.v1.Cluster/GetTopology"
        )
        request = cluster_pb2.GetTopologyRequest(queues=["q"])
        answer = cluster_pb2.GetTopologyResponse.FromString(await ask(request.SerializeToString(), timeout=5))
        assert (answer.shards, answer.routes[0].home) == (1, 0)
        reflect: grpc.aio.StreamStreamMultiCallable[bytes, bytes] = channel.stream_stream(
            "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo"
        )
        call = reflect()
        await call.write(reflection_pb2.ServerReflectionRequest(list_services="").SerializeToString())
        listed = await call.read()
        assert isinstance(listed, bytes)
        services = reflection_pb2.ServerReflectionResponse.FromString(listed).list_services_response.service
        assert {service.name for service in services} >= {
            f"holdfast.proto.v1.{name}" for name in ("Tasks", "DeadLetters", "Shards", "Cluster")
        }
        call.cancel()


async def test_an_idle_router_stops_at_once(etcd: FakeEtcd) -> None:
    await write_cluster(etcd)
    router = Router(RouterConfig(port=0, ops_port=0, shutdown_grace_seconds=5), etcd=etcd)
    await router.start(with_signals=False)
    await until_ready(router)
    running = asyncio.create_task(router.run())
    await asyncio.sleep(0)
    began_s, cpu_s = time.monotonic(), time.process_time()
    with stalls() as stalled:
        router.ask_to_stop()
        assert await asyncio.wait_for(running, 10) is None
    assert time.monotonic() - began_s - stalled.seconds < 4
    assert time.process_time() - cpu_s < 1.5, "it must not spin while it stops"


async def test_it_goes_on_where_memory_cannot_be_given_back(etcd: FakeEtcd, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a system with another C library that work ends at once, and ends nothing else."""
    monkeypatch.setattr("holdfast.serving.memory.glibc", lambda: None)
    router = Router(RouterConfig(port=0, ops_port=0, shutdown_grace_seconds=5), etcd=etcd)
    await router.start(with_signals=False)
    running = asyncio.create_task(router.run())
    done, _ = await asyncio.wait([running], timeout=0.2)
    assert not done
    router.ask_to_stop()
    assert await running is None


async def test_a_taken_port_is_named(etcd: FakeEtcd) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        router = Router(RouterConfig(port=port, ops_port=0), etcd=etcd)
        with pytest.raises(PortError, match=str(port)):
            await router.start(with_signals=False)


async def test_replicas_are_looked_for_at_everybody_who_may_know(etcd: FakeEtcd) -> None:
    await write_cluster(etcd)
    loaded = PartitionMap.load("holdfast", await etcd.read(KEYS.prefix))
    routes = Routes(lambda: loaded)
    assert routes.shard_count == 1
    assert routes.replica_addresses(0) == ["n2:1", "n3:1", "n1:1", "n4:1"]
    assert routes.leader_hint(0) is None
    assert routes.replica_addresses(7) == []
    await etcd.commit([], [Put(KEYS.leader(0), LeaderRecord("n1", GROUP, 5).encode())])
    loaded = PartitionMap.load("holdfast", await etcd.read(KEYS.prefix))
    assert routes.leader_hint(0) == ("n1:1", 5)
    # A hint of the shard's former incarnation is none.
    await etcd.commit([], [Put(KEYS.leader(0), LeaderRecord("n1", mapped_group(2, 1), 900).encode())])
    loaded = PartitionMap.load("holdfast", await etcd.read(KEYS.prefix))
    assert routes.leader_hint(0) is None


def test_the_command_says_why_it_does_not_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.router.main.setup_logs", lambda *_settings: None)  # it is for the whole process
    monkeypatch.delenv("HOLDFAST_PORT", raising=False)
    assert run_router(None, {"port": 99_999}, as_json=True) == EXIT_REFUSED
    error = json.loads(capsys.readouterr().err)["error"]
    assert error["reason"] == "CONFIGURATION_REFUSED"
    assert "port: got 99999" in error["message"]
    config = tmp_path / "router.toml"
    with socket.create_server(("127.0.0.1", 0)) as taken:
        config.write_text(f"port = {taken.getsockname()[1]}\nops_port = 0\nlog_level = 'error'\n")
        assert run_router(config, {}) == EXIT_FAILED
    assert "cannot start" in capsys.readouterr().err
