"""Access rules in the map of a cluster: routers and brokers go by them, and brokers know for whom a router calls."""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from holdfast.access.editing import revoke_token
from holdfast.access.identities import Identity
from holdfast.cli.audit_files import entries
from holdfast.client import (
    AsyncClient,
    Client,
    Conflict,
    HoldfastError,
    NewTask,
    NotFound,
    PermissionDenied,
    Unauthenticated,
)
from holdfast.common.metadata import CALLER_KEY
from holdfast.serving.router_word import RouterSecret, RouterWords
from holdfast.transport.channels import CallFailedError
from holdfast.transport.negotiated import NegotiatedChannels
from tests.acceptance.apps import chores
from tests.acceptance.worker_process import WorkerProcess
from tests.integration.access import SECRET, Access, close_with, make_secret, set_rules
from tests.integration.map_cluster import MapCluster
from tests.integration.server import DEADLINE_S, wait_until

EFFECTIVE_S = 5.0


@pytest.fixture(scope="module")
def access(tmp_path_factory: pytest.TempPathFactory) -> Access:
    return Access.make(tmp_path_factory.mktemp("rules"))


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory, access: Access) -> Iterator[MapCluster]:
    directory = tmp_path_factory.mktemp("access-cluster")
    secret = make_secret(directory)
    with MapCluster(directory, size=2, shards=3, replication=1, router_secret_file=secret) as running:
        for router in running.routers:
            router.settings |= {"router_secret_file": secret, "audit_dir": router_audit(running)}
        running.start()
        close_with(running, access)
        yield running


def router_audit(cluster: MapCluster) -> Path:
    return cluster.directory / "router-audit"


@pytest.fixture(params=["grpc", "auto", "direct"])
async def admin(request: pytest.FixtureRequest, cluster: MapCluster, access: Access) -> AsyncIterator[AsyncClient]:
    async with open_client(cluster, access.tokens["admin"], request.param) as client:
        yield client


def open_client(cluster: MapCluster, token: str, way: str) -> AsyncClient:
    transport = "auto" if way == "direct" else way
    return AsyncClient(cluster.address, token=token, transport=transport, direct=way == "direct", timeout_s=DEADLINE_S)


@pytest.fixture(params=["grpc", "auto", "direct"])
def way(request: pytest.FixtureRequest) -> str:
    return str(request.param)


async def test_tasks_go_their_way(cluster: MapCluster, access: Access, way: str) -> None:
    queue = f"q.{way}"
    async with open_client(cluster, access.tokens["all-of-q"], way) as client:
        ids = [(await client.enqueue(NewTask(queue, "t"))).task_id for _ in range(3)]
        claims = await client.reserve([queue], max_tasks=3, wait_ms=5_000)
        assert sorted(claim.task_id for claim in claims) == sorted(ids)
        assert not [outcome for outcome in await client.ack_many(claims) if isinstance(outcome, HoldfastError)]
        assert (await client.queue_stats(queue)).succeeded_total == 3
        waiting = asyncio.create_task(client.reserve([queue], wait_ms=20_000))
        await asyncio.sleep(0.2)
        later = await client.enqueue(NewTask(queue, "t"))
        assert [claim.task_id for claim in await waiting] == [later.task_id]
        with pytest.raises(PermissionDenied):
            await client.enqueue(NewTask("other", "t"))
        with pytest.raises(PermissionDenied):
            await client.reserve(["other"], wait_ms=10)
        outcomes = await client.enqueue_many([NewTask(queue, "t"), NewTask("other", "t"), NewTask(queue, "t")])
        assert [isinstance(outcome, PermissionDenied) for outcome in outcomes] == [False, True, False]


async def test_a_task_of_another_tenant_is_not_there(cluster: MapCluster, access: Access, way: str) -> None:
    async with (
        open_client(cluster, access.tokens["acme"], way) as acme,
        open_client(cluster, access.tokens["globex"], way) as globex,
    ):
        mine = (await acme.enqueue(NewTask("q", "t", tenant="acme"))).task_id
        assert (await acme.get_task(mine)).tenant == "acme"
        with pytest.raises(NotFound):
            await globex.get_task(mine)
        [cancelled] = await globex.cancel_many([mine])
        assert isinstance(cancelled, NotFound)
        assert mine not in [task.task_id for task in (await globex.list_tasks()).tasks]
        assert mine in [task.task_id for task in (await acme.list_tasks()).tasks]


def noted_in(place: Path) -> set[tuple[str, str, str, str]]:
    found = entries(place, 999) if any(place.rglob("audit-*")) else []
    return {(entry.who, entry.what, entry.on, entry.result) for entry in found}


async def test_routers_and_brokers_note_who_did_it_and_who_was_refused(
    cluster: MapCluster, access: Access, way: str
) -> None:
    """Each broker what it did, for whom the router said it was."""
    queue = f"q.audited.{way}"
    router, brokers = [router_audit(cluster)], [node.data_dir for node in cluster.nodes.values()]
    async with (
        open_client(cluster, access.tokens["operator"], way) as operator,
        open_client(cluster, access.tokens["all-of-q"], way) as producer,
    ):
        await producer.enqueue(NewTask(queue, "t"))
        await operator.purge_queue(queue)
        with pytest.raises(PermissionDenied):
            await producer.enqueue(NewTask(f"not.{way}", "t"))
    await asyncio.to_thread(set_rules, cluster, access)  # through the router
    done = "token:operator", "Queues/PurgeQueue", f"queue={queue}", "OK"
    refused = "token:all-of-q", "Tasks/Enqueue", f"queue=not.{way} items=1", "PERMISSION_DENIED"

    def is_noted(entry: tuple[str, ...], places: list[Path]) -> bool:
        return any(entry in noted_in(place) for place in places)

    await asyncio.to_thread(wait_until, lambda: is_noted(done, brokers), "the brokers to note it")
    if way != "direct":
        await asyncio.to_thread(wait_until, lambda: is_noted(done, router), "the router to note it")
    deciding = brokers if way == "direct" else router
    await asyncio.to_thread(wait_until, lambda: is_noted(refused, deciding), "the refusal to be noted")

    def has_rules() -> bool:
        noted = {(who, what, result) for who, what, _, result in noted_in(router_audit(cluster))}
        return ("token:admin", "Cluster/SetAccess", "OK") in noted

    await asyncio.to_thread(wait_until, has_rules, "the router to note that the rules were set")


async def test_operators_of_the_cluster_are_administrators(admin: AsyncClient) -> None:
    info = await admin.describe_cluster()
    assert len(info.shards) == 3
    await admin.make_plan()
    reports = await admin.describe_nodes()
    assert all(report.node is not None for report in reports), reports
    await admin.hash_shard(0)


async def test_brokers_do_not_believe_whoever_says_that_it_is_a_router(cluster: MapCluster, access: Access) -> None:
    """A caller that brings a word of its own is refused, whatever token it has."""
    with Client(cluster.address, token=access.tokens["admin"]) as client:
        cluster_id = client.topology().cluster_id
    right = RouterSecret(SECRET.encode())
    wrong = RouterSecret(b"another secret, which is long enough as well")
    admin = Identity("admin", "token", ("token:admin",))
    words = {
        "sealed": (RouterWords(right, lambda: cluster_id), True),
        "another secret": (RouterWords(wrong, lambda: cluster_id), False),
        "no seal": (RouterWords(None, lambda: cluster_id), False),
        "another cluster": (RouterWords(right, lambda: "0" * 32), False),
        "too old": (RouterWords(right, lambda: cluster_id, lambda: time.time() - 1000), False),
        "far ahead": (RouterWords(right, lambda: cluster_id, lambda: time.time() + 10_000), False),
    }
    channels = NegotiatedChannels(message_bytes_max=1 << 20, keepalive_s=30, connects_first=True)
    path = "/holdfast.proto.v1.Cluster/DescribeCluster"
    try:
        for what, (word, is_believed) in words.items():
            metadata = ((CALLER_KEY, word.word(admin)),)
            call = channels.call(cluster.broker_addresses[0], path, b"", metadata, DEADLINE_S)
            if is_believed:
                await call.answer()
                continue
            with pytest.raises(CallFailedError) as refused:
                await call.answer()
            assert refused.value.reason == "UNAUTHENTICATED", what
    finally:
        await channels.close()


async def test_rules_that_nobody_could_change_are_refused(admin: AsyncClient, access: Access) -> None:
    found = await admin.get_access()
    assert found.rules == json.loads(json.dumps(access.policy.mapping()))
    without = {**found.rules, "grants": {}}
    with pytest.raises(Conflict, match="nobody could change them again") as refused:
        await admin.set_access(without, version=found.version)
    assert refused.value.metadata["why"] == "NO_ADMINISTRATOR"
    with pytest.raises(HoldfastError, match="roles.x.queues"):
        await admin.set_access({"roles": {"x": {"rights": ["work"]}}}, version=found.version)
    with pytest.raises(Conflict):
        await admin.set_access({**found.rules, "routers": ["r"]}, version=found.version - 1)
    assert (await admin.get_access()).version == found.version


async def test_a_revoked_token_ends_everywhere(cluster: MapCluster, access: Access, way: str) -> None:
    name = f"short-{way}"
    access.add(name, "worker")
    await asyncio.to_thread(set_rules, cluster, access)
    async with open_client(cluster, access.tokens[name], way) as client:
        ends_s = time.monotonic() + EFFECTIVE_S
        while True:
            try:
                await client.reserve(["q.none"])
                break
            except (Unauthenticated, PermissionDenied):  # by a router, or by a broker behind it, that has not heard yet
                assert time.monotonic() < ends_s
                await asyncio.sleep(0.05)
        waiting = asyncio.create_task(client.reserve(["q.none"], wait_ms=50_000))
        await asyncio.sleep(0.3)
        access.policy = revoke_token(access.policy, access.ids[name])
        await asyncio.to_thread(set_rules, cluster, access)
        with pytest.raises(Unauthenticated):
            async with asyncio.timeout(EFFECTIVE_S):
                await waiting
        with pytest.raises(Unauthenticated):
            await client.reserve(["q.none"])


def test_a_worker_works_on_while_its_token_is_replaced(
    cluster: MapCluster, access: Access, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Through the command, with no right but to work."""
    file = tmp_path / "token"
    file.write_text(access.add("real-worker", "worker"))
    set_rules(cluster, access)
    monkeypatch.setenv("HOLDFAST_TOKEN", access.tokens["all-of-q"])
    worker = WorkerProcess(tmp_path / "worker", cluster.address, ["q.real"], options=["--token-file", str(file)])
    with worker.start(), chores.make_app(cluster.address) as app:
        work = app.tasks["work"].options(queue="q.real")
        assert work.enqueue(0.01).result(timeout=DEADLINE_S) == worker.pid
        old, new = access.ids["real-worker"], access.add("real-worker", "worker")
        set_rules(cluster, access)
        file.write_text(new)
        access.policy = revoke_token(access.policy, old)
        set_rules(cluster, access)
        time.sleep(2.5)  # every server has heard of it, and the worker has looked at its file
        assert work.enqueue(0.01).result(timeout=DEADLINE_S) == worker.pid
        assert worker.stop().succeeded == 2
        assert not [token for token in access.tokens.values() if token.rpartition("_")[2] in worker.log_text]


def test_a_broker_that_is_started_anew_asks_at_once(cluster: MapCluster, access: Access, tmp_path: Path) -> None:
    """Also one that has lost its copy of the map."""
    node = cluster.nodes["n1"]
    assert node.stop() == 0
    for copy in node.data_dir.glob("MAP*"):
        copy.unlink()
    node.start()
    with Client(node.address, timeout_s=DEADLINE_S) as nobody:
        for call in (nobody.describe_cluster, nobody.get_access):
            with pytest.raises(Unauthenticated):
                call()


def test_no_log_has_a_secret(cluster: MapCluster, access: Access) -> None:
    for process in (*cluster.nodes.values(), *cluster.routers):
        log = process.whole_log_text
        assert SECRET not in log
        assert not [token for token in access.tokens.values() if token.rpartition("_")[2] in log]
    logs = [*cluster.directory.rglob("audit-*.jsonl")]
    assert len(logs) > len(cluster.nodes)
    for log in (file.read_text() for file in logs):
        assert SECRET not in log
        assert not [token for token in access.tokens.values() if token.rpartition("_")[2] in log]
