"""A client's certificate says who calls, over real TLS: on both transports, of a single broker and of a cluster."""

import asyncio
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from holdfast.access.identities import Identity
from holdfast.access.policies import AccessPolicy
from holdfast.cli.certificates import Kind
from holdfast.cli.main import main
from holdfast.client import AsyncClient, Client, NewTask, PermissionDenied, Tls, Unauthenticated
from holdfast.client.tls import CurrentTls
from holdfast.common.metadata import CALLER_KEY
from holdfast.serving.router_word import RouterWords
from holdfast.transport.channels import CallFailedError
from holdfast.transport.negotiated import NegotiatedChannels
from tests.integration.access import Access, make_secret
from tests.integration.map_cluster import MapCluster
from tests.integration.server import DEADLINE_S, ServerProcess, wait_until
from tests.tls_files import CertsDirectory

GRANTS = {"certificate:admin": ["admin"], "certificate:billing": ["all-of-q"], "certificate:worker": ["worker"]}
ROUTERS = ["r1", "nodes"]  # brokers ask each other as well


@pytest.fixture(scope="module")
def certs(tmp_path_factory: pytest.TempPathFactory) -> CertsDirectory:
    return CertsDirectory(tmp_path_factory.mktemp("certs") / "certs")


@pytest.fixture(scope="module")
def access(tmp_path_factory: pytest.TempPathFactory) -> Access:
    """With tokens too, which count more than a certificate."""
    made = Access.make(tmp_path_factory.mktemp("rules"))
    made.policy = AccessPolicy.read({**made.policy.mapping(), "routers": ROUTERS})
    made.policy = AccessPolicy.read({**made.policy.mapping(), "grants": {**made.policy.mapping()["grants"], **GRANTS}})
    made.write()
    return made


@pytest.fixture(scope="module")
def node(certs: CertsDirectory, access: Access, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with ServerProcess(tmp_path_factory.mktemp("node"), **certs.settings("n1"), access_file=access.path) as server:
        yield server.start()


@pytest.fixture(scope="module", params=["certificate", "secret"])
def cluster(
    request: pytest.FixtureRequest, certs: CertsDirectory, access: Access, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[MapCluster]:
    """Brokers believe a router because of its certificate, or because of a secret."""
    directory = tmp_path_factory.mktemp("cluster")
    rules = access.policy.mapping()
    shared: dict[str, Any] = {}
    if request.param == "secret":
        shared = {"router_secret_file": make_secret(directory)}
        rules = {name: value for name, value in rules.items() if name != "routers"}
    with MapCluster(
        directory, size=2, shards=2, replication=1, tls=certs.client("admin"),
        router_settings={**certs.settings("r1", Kind.ROUTER), **shared},
        **certs.settings("nodes", hosts=["n1", "n2"]), **certs.peer_settings("nodes"), **shared,
    ) as running:  # fmt: skip
        running.start()
        with Client(running.address, tls=certs.client("admin"), timeout_s=DEADLINE_S) as admin:
            admin.set_access(rules, version=admin.get_access().version)
        for address in (running.address, *running.broker_addresses):
            wait_until(partial(has_rules, address, certs.client("stranger")), f"{address} to have rules")
        yield running


def has_rules(address: str, stranger: Tls) -> bool:
    with Client(address, tls=stranger, timeout_s=DEADLINE_S) as client:
        try:
            client.list_queues()
        except PermissionDenied:
            return True
        return False


async def until_framed(client: AsyncClient, frame_calls: Callable[[], float]) -> None:
    """Frames are there soon after the first call, which says where they are. Gauges are renewed once a second."""
    before = await asyncio.to_thread(frame_calls)
    async with asyncio.timeout(DEADLINE_S):
        while await asyncio.to_thread(frame_calls) <= before:
            await client.topology()


async def expect_rights_of_billing(client: AsyncClient) -> None:
    """Of the role all-of-q, and no others."""
    for _ in range(3):
        accepted = await client.enqueue(NewTask("q", "t"))
        [task] = await client.reserve(["q"], wait_ms=5_000, worker="w")
        assert task.task_id == accepted.task_id
        await client.ack(task)
        with pytest.raises(PermissionDenied) as refused:
            await client.enqueue(NewTask("other", "t"))
        assert refused.value.metadata == {"right": "enqueue", "queue": "other"}
        assert "certificate:billing" in refused.value.message
        outcomes = await client.enqueue_many([NewTask("other", "t"), NewTask("q.2", "t")])
        assert [isinstance(outcome, PermissionDenied) for outcome in outcomes] == [True, False]
        with pytest.raises(PermissionDenied):
            await client.get_access()


@pytest.mark.parametrize("transport", ["grpc", "auto"])
async def test_a_certificate_is_an_identity_with_rights(
    node: ServerProcess, certs: CertsDirectory, transport: str
) -> None:
    async with AsyncClient(node.address, tls=certs.client("billing"), transport=transport) as client:
        if transport == "auto":
            await until_framed(client, partial(node.metric, "holdfast_frame_calls"))
        await expect_rights_of_billing(client)


@pytest.mark.parametrize("transport", ["grpc", "auto"])
async def test_one_without_a_role_may_do_nothing(node: ServerProcess, certs: CertsDirectory, transport: str) -> None:
    """TLS lets it in, since its certificate is signed; what it may do the rules say."""
    async with AsyncClient(node.address, tls=certs.client("stranger"), transport=transport) as client:
        for _ in range(5):
            with pytest.raises(PermissionDenied, match="certificate:stranger"):
                await client.enqueue(NewTask("q", "t"))


@pytest.mark.parametrize("transport", ["grpc", "auto"])
async def test_a_token_counts_more_than_a_certificate(
    node: ServerProcess, certs: CertsDirectory, access: Access, transport: str
) -> None:
    mine, token = certs.client("billing"), access.tokens["all-of-other"]
    async with AsyncClient(node.address, tls=mine, token=token, transport=transport) as client:
        if transport == "auto":
            await until_framed(client, partial(node.metric, "holdfast_frame_calls"))
        await client.enqueue(NewTask("other", "t"))
        with pytest.raises(PermissionDenied, match="token:all-of-other"):
            await client.enqueue(NewTask("q", "t"))
    async with AsyncClient(node.address, tls=mine, token=access.tokens["expired"], transport=transport) as client:
        with pytest.raises(Unauthenticated):
            await client.enqueue(NewTask("q", "t"))


def test_a_thread_with_a_connection_of_its_own_is_known_there(node: ServerProcess, certs: CertsDirectory) -> None:
    with Client(node.address, tls=certs.client("billing"), timeout_s=DEADLINE_S) as client:

        def has_two() -> bool:  # that of its event loop, and that of this thread
            client.enqueue(NewTask("q", "t"))
            return node.metric("holdfast_frame_connections") == 2

        wait_until(has_two, "a connection of its own")
        for _ in range(3):
            client.enqueue(NewTask("q", "t"))
            with pytest.raises(PermissionDenied, match="certificate:billing"):
                client.enqueue(NewTask("other", "t"))
        assert has_two()


@pytest.mark.parametrize("transport", ["grpc", "auto"])
async def test_a_token_goes_over_tls_that_asks_for_no_certificate(
    certs: CertsDirectory, access: Access, tmp_path: Path, transport: str
) -> None:
    settings = {**certs.settings("n1"), "tls_client_certs": "no", "access_file": access.path}
    with ServerProcess(tmp_path, **settings) as server:
        await asyncio.to_thread(server.start)
        address, trust = server.address, certs.only_trust
        async with AsyncClient(address, tls=trust, token=access.tokens["all-of-q"], transport=transport) as client:
            if transport == "auto":
                await until_framed(client, partial(server.metric, "holdfast_frame_calls"))
            await client.enqueue(NewTask("q", "t"))
            with pytest.raises(PermissionDenied):
                await client.enqueue(NewTask("other", "t"))
        for nobody in (trust, certs.client("billing")):  # nobody has asked for what the second one would show
            async with AsyncClient(address, tls=nobody, transport=transport) as client:
                with pytest.raises(Unauthenticated):
                    await client.enqueue(NewTask("q", "t"))


@pytest.mark.parametrize("transport", ["grpc", "auto"])
@pytest.mark.parametrize("direct", [False, True])
async def test_brokers_know_for_whom_a_router_calls(
    cluster: MapCluster, certs: CertsDirectory, transport: str, direct: bool
) -> None:
    mine = certs.client("billing")
    async with AsyncClient(
        cluster.address, tls=mine, transport=transport, direct=direct, timeout_s=DEADLINE_S
    ) as client:
        if transport == "auto":
            await until_framed(client, partial(cluster.routers[0].metric, "holdfast_router_frame_calls"))
        await expect_rights_of_billing(client)


@pytest.mark.parametrize("command", [["cluster", "status"], ["node", "ls"], ["shard", "ls"], ["shard", "plan"]])
def test_operators_are_known_by_their_certificates(
    cluster: MapCluster, certs: CertsDirectory, capsys: pytest.CaptureFixture[str], command: list[str]
) -> None:
    """Routers and brokers ask brokers for some of that, on their own account."""

    def ended(name: str, address: str) -> int:
        mine = certs.client(name)
        options = ["--tls-ca", str(mine.ca), "--tls-cert", str(mine.cert), "--tls-key", str(mine.key), "--json"]
        return main([*command, "--address", address, *options])

    for address in (cluster.address, ",".join(cluster.broker_addresses)):
        assert ended("admin", address) == 0, capsys.readouterr().err
        capsys.readouterr()
        assert ended("billing", address) == 1
        assert "PERMISSION_DENIED" in capsys.readouterr().err


@pytest.fixture(params=["grpc", "auto"])
def make_channels(request: pytest.FixtureRequest, certs: CertsDirectory) -> Callable[[str], NegotiatedChannels]:
    def make(name: str) -> NegotiatedChannels:
        tls = CurrentTls(certs.client(name))
        return NegotiatedChannels(
            message_bytes_max=1 << 20, keepalive_s=30, connects_first=True, transport=request.param, tls=tls
        )

    return make


async def test_only_a_router_is_believed(
    cluster: MapCluster, certs: CertsDirectory, make_channels: Callable[[str], NegotiatedChannels]
) -> None:
    """Whoever has a certificate can say that it calls for the administrator."""
    address = cluster.broker_addresses[0]
    async with AsyncClient(cluster.address, tls=certs.client("admin")) as client:
        cluster_id = (await client.describe_cluster()).cluster_id
    word = RouterWords(None, lambda: cluster_id).word(Identity("admin", "certificate", ("certificate:admin",)))
    path = "/holdfast.proto.v1.Cluster/DescribeCluster"
    is_believed = cluster.nodes["n1"].settings.get("router_secret_file") is None
    for name, is_router in (("billing", False), ("r1", True)):
        channels = make_channels(name)
        try:
            for _ in range(3):
                call = channels.call(address, path, b"", ((CALLER_KEY, word),), DEADLINE_S)
                if is_router and is_believed:
                    await call.answer()
                    continue
                with pytest.raises(CallFailedError) as refused:
                    await call.answer()
                assert refused.value.reason == "UNAUTHENTICATED"
        finally:
            await channels.close()
