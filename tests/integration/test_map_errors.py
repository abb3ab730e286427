"""What goes wrong with a cluster is told in sentences that a person can act on, and does no harm."""

import asyncio
import secrets
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from holdfast.client import (
    Client,
    Conflict,
    HoldfastError,
    InvalidArgument,
    MoveWish,
    NewTask,
    NotFound,
    Rejected,
)
from holdfast.cluster.etcd.api import Put, Unchanged
from holdfast.cluster.etcd.client import EtcdClient
from holdfast.cluster.map.keys import keys_of
from holdfast.cluster.map.records import FORMAT, QueueRecord, ShardRecord
from holdfast.cluster.map.store import MapStore
from holdfast.proto.v1 import backups_pb2, broker_calls_pb2
from holdfast.routing.groups import RANDOM_BITS, incarnation_of, mapped_group
from tests.integration.cluster import HOST, SETTINGS, NodeProcess, free_ports
from tests.integration.cluster_tools import Refusal, enqueue_request, raw_call
from tests.integration.map_cluster import NAME, MapCluster, RouterProcess, until
from tests.integration.map_load import claim_all, load_on, queues_of_all_shards
from tests.integration.server import DEADLINE_S

SHARDS = 2

Spare = Callable[..., NodeProcess]


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MapCluster]:
    """etcd and two nodes, which are yet to become a cluster of three."""
    with MapCluster(tmp_path_factory.mktemp("errors"), size=3, shards=SHARDS) as made:
        made.etcd.start()
        for _ in range(2):
            made.add_node()
        yield made


@pytest.fixture(scope="module")
def cluster(bare: MapCluster) -> MapCluster:
    """Initialised, if no test before has done it."""
    if len(bare.nodes) < 3:
        bare.add_node()
        bare.init()
    [router] = bare.routers
    router.start()
    until(lambda: router.get("/readyz")[0] == 200, "the router to be ready")
    bare.wait_settled()
    return bare


@pytest.fixture(scope="module")
def spare(tmp_path_factory: pytest.TempPathFactory, bare: MapCluster) -> Iterator[Spare]:
    """Makes more brokers, which are not counted among those of the cluster; ends them."""
    made: list[NodeProcess] = []

    def make(name: str, *, data_dir: Path | None = None, endpoint: str = "", cluster_name: str = NAME) -> NodeProcess:
        home = tmp_path_factory.mktemp(name)
        port, peer_port = free_ports(2)
        config = home / "broker.toml"
        config.write_text(
            f'node_name = "{name}"\ncluster_name = "{cluster_name}"\n'
            f'etcd_endpoints = "{endpoint or bare.etcd.endpoint}"\nport = {port}\npeer_port = {peer_port}\n'
        )
        settings = {**SETTINGS, "free_bytes_min": 0}
        made.append(NodeProcess(home, name, port, config, data_dir or home / "data", **settings))
        return made[-1]

    yield make
    for process in made:
        process.close()


def check_ends(node: NodeProcess, *sentences: str) -> None:
    """By itself, with all of these words and without a traceback."""
    until(lambda: not node.is_up, f"{node.name} to end")
    assert node.exit_code == 1, node.log_text
    for sentence in sentences:
        assert sentence in node.log_text
    assert "Traceback" not in node.log_text


def test_a_cluster_is_made_of_enough_nodes_and_only_once(bare: MapCluster) -> None:
    assert len(bare.nodes) == 2, "the first test of this file"
    first = bare.nodes["n1"]
    with Client(first.address, timeout_s=DEADLINE_S) as client:
        until(lambda: len(client.describe_cluster().nodes) == 2, "both nodes to be registered")
        with pytest.raises(Conflict, match="at least 3 nodes.* 2 can take shards; start more brokers") as refused:
            client.init_cluster(SHARDS)
        assert refused.value.reason == "NOT_ENOUGH_NODES"
        status, body = first.get("/readyz")
        assert (status, "serving, but " in body, "holdfast cluster init" in body) == (200, True, True), body
        with pytest.raises(Rejected, match="holdfast cluster init") as none:
            client.topology()
        assert none.value.reason == "NO_CLUSTER"
        with pytest.raises(HoldfastError):
            client.enqueue(NewTask("q", "t"), timeout_s=1)
        with pytest.raises(InvalidArgument, match="odd"):
            client.init_cluster(SHARDS, replication=2)
        bare.add_node()
        until(lambda: len(client.describe_cluster().nodes) == 3, "the third node to be registered")
        cluster_id = client.init_cluster(SHARDS)
        assert client.init_cluster(SHARDS) == cluster_id, "the same again changes nothing"
        with pytest.raises(Conflict, match=f"{cluster_id} was made before.*; nothing was changed") as other:
            client.init_cluster(SHARDS + 1)
        assert other.value.reason == "CLUSTER_EXISTS"
        until(lambda: client.describe_cluster().cluster_id == cluster_id, "the node to know the cluster")
    bare.wait_settled()
    assert bare.info().shards_count == SHARDS
    bare.check_hashes()


def test_without_etcd_a_new_server_says_what_it_waits_for(cluster: MapCluster, spare: Spare, tmp_path: Path) -> None:
    nobody = f"{HOST}:{free_ports(1)[0]}"
    broker = spare("lonely", endpoint=nobody)
    broker.launch()
    router_home = tmp_path / "router"
    router_home.mkdir()
    router = RouterProcess(router_home, free_ports(1)[0], nobody)
    try:
        router.start()
        broker.wait_serving()
        until(lambda: f"etcd does not answer at {nobody}" in broker.get("/readyz")[1], "the broker to say so")
        assert broker.get("/readyz")[0] == 200, "a broker is ready by itself, so that all can be started at once"
        until(lambda: "etcd does not answer" in router.get("/readyz")[1], "the router to say so")
        assert router.get("/readyz")[0] == 503
        with Client(f"{HOST}:{router.port}", timeout_s=DEADLINE_S, retry=False) as client:
            with pytest.raises(Rejected, match="etcd") as refused:
                client.enqueue(NewTask("q", "t"))
            assert refused.value.reason == "ETCD_UNAVAILABLE"
        assert broker.is_up
    finally:
        router.close()


def test_servers_that_are_too_old_for_the_map_say_so(bare: MapCluster, spare: Spare, tmp_path: Path) -> None:
    """A later release has written the record of the cluster: advice to make one would be the worst there is."""
    name = "newer"
    router = RouterProcess(tmp_path, free_ports(1)[0], bare.etcd.endpoint, cluster_name=name)
    broker = spare("old", cluster_name=name)
    asyncio.run(write(bare, keys_of(name).cluster, cluster_record(FORMAT + 1)))
    broker.launch()
    try:
        router.start()
        until(lambda: "too old for the cluster; upgrade it" in router.get("/readyz")[1], "the router to say so")
        with Client(f"{HOST}:{router.port}", timeout_s=DEADLINE_S, retry=False) as client:
            calls: list[Callable[[], object]] = [
                lambda: client.enqueue(NewTask("q", "t")),
                lambda: client.reserve(["q"]),
                client.describe_cluster,
                client.topology,
                lambda: client.init_cluster(SHARDS),
                lambda: client.set_queue("q", spread=2),
            ]
            for call in calls:
                with pytest.raises(Conflict, match="too old for the cluster; upgrade it") as refused:
                    call()
                assert refused.value.reason == "VERSION_TOO_OLD"
        assert "Traceback" not in router.log_text
        check_ends(broker, "too old for the cluster; upgrade it")
    finally:
        router.close()


def test_a_server_that_the_map_has_become_too_new_for_goes_on(bare: MapCluster, spare: Spare) -> None:
    """A later release writes the record of the cluster while it serves, and then it loses its place in the map: who
    serves is not ended by what is wrong with the map, and has its place again once that is right."""
    name, cluster_id = "outgrown", secrets.token_hex(16)
    keys = keys_of(name)
    asyncio.run(write(bare, keys.cluster, cluster_record(FORMAT, cluster_id)))
    broker = spare("stays", cluster_name=name)
    broker.launch()
    broker.wait_for_event("registered")
    asyncio.run(write(bare, keys.cluster, cluster_record(FORMAT + 1, cluster_id)))
    asyncio.run(revoke_lease_of(bare, keys.node("stays")))
    assert "too old for the cluster; upgrade it" in broker.wait_for_event("not_registered")["error"]
    asyncio.run(write(bare, keys.cluster, cluster_record(FORMAT, cluster_id)))
    until(lambda: len(broker.events("registered")) == 2, "it to be registered again")
    assert broker.is_up
    assert "Traceback" not in broker.log_text


def cluster_record(format_number: int, cluster_id: str = "") -> bytes:
    return b'{"format":%d,"id":"%s","shards":2,"replication":3}' % (
        format_number, (cluster_id or secrets.token_hex(16)).encode(),
    )  # fmt: skip


async def revoke_lease_of(cluster: MapCluster, key: bytes) -> None:
    etcd = EtcdClient([cluster.etcd.endpoint])
    row = await etcd.get(key)
    assert row is not None
    await etcd.revoke(row.lease)
    await etcd.close()


async def write(cluster: MapCluster, key: bytes, value: bytes) -> None:
    etcd = EtcdClient([cluster.etcd.endpoint])
    assert (await etcd.commit([], [Put(key, value)])).is_done
    await etcd.close()


@dataclass(frozen=True)
class Intruders:
    """A node that belongs to the cluster, one on a copy of its data, and one that has the name of another node."""

    guest: NodeProcess
    copied: NodeProcess
    namesake: NodeProcess


@pytest.fixture(scope="module")
def intruders(cluster: MapCluster, spare: Spare) -> Intruders:
    """Launched early: they are given the time of a lease, and the last test sees what became of them."""
    guest = spare("guest")
    guest.start()
    copy = guest.data_dir / "MAP"
    cluster_id = cluster.info().cluster_id
    until(lambda: copy.exists() and cluster_id in copy.read_text(), "it to know its cluster")
    assert guest.stop() == 0
    copied = spare("guest")
    shutil.copytree(guest.data_dir, copied.data_dir)
    guest.start()
    until(lambda: guest.events("registered"), "it to be back")
    namesake = spare("n1")
    copied.launch()
    namesake.launch()
    return Intruders(guest, copied, namesake)


def test_data_of_another_cluster_is_refused(cluster: MapCluster, intruders: Intruders, spare: Spare) -> None:
    """By its id, and by its name."""
    queues = queues_of_all_shards("guests", SHARDS)
    with load_on(cluster, queues) as load:
        check_wrong_cluster(cluster, spare, intruders.guest.data_dir)
        load.wait_for(20)
    load.check(cluster)


def check_wrong_cluster(cluster: MapCluster, spare: Spare, of_whom: Path) -> None:
    cluster_id, other_id = cluster.info().cluster_id, secrets.token_hex(16)
    other_name, other = spare("stray", cluster_name="another"), spare("lost")
    for node in (other_name, other):
        shutil.copytree(of_whom, node.data_dir)
    copy = other.data_dir / "MAP"
    copy.write_text(copy.read_text().replace(cluster_id, other_id))
    for node in (other_name, other):
        node.launch()
    check_ends(other_name, "Expected a node of the cluster named another", f"one named {NAME}", "Set cluster_name")
    check_ends(other, f"Expected the cluster {other_id}", f"the one in etcd is {cluster_id}", "etcd_endpoints")


def test_calls_about_no_shard_or_one_that_is_not_there(cluster: MapCluster) -> None:
    broker, router = cluster.nodes["n1"].address, f"{HOST}:{cluster.routers[0].port}"
    unnamed = raw_call(broker, "Tasks/Enqueue", enqueue_request("q"))
    assert isinstance(unnamed, Refusal)
    assert (unnamed.code, unnamed.reason) == ("INVALID_ARGUMENT", "MISSING_FIELD")
    with Client(broker, timeout_s=DEADLINE_S) as client, pytest.raises(InvalidArgument, match=r"router.*direct=True"):
        client.enqueue(NewTask("q", "t"))
    for address in (broker, router):
        unknown = raw_call(address, "Tasks/Enqueue", enqueue_request("q"), shard=99)
        assert isinstance(unknown, Refusal)
        assert (unknown.code, unknown.reason) == ("NOT_FOUND", "SHARD_NOT_FOUND"), address
    with Client(router, timeout_s=DEADLINE_S) as operator:
        calls: list[Callable[[], object]] = [
            lambda: operator.make_plan(move=MoveWish(99, "n1", "n2")),
            lambda: operator.transfer(99, "n1"),
            lambda: operator.hash_shard(99),
            lambda: operator.set_queue("q", pin=[99]),
        ]
        for call in calls:
            with pytest.raises(NotFound, match=r"\b99\b") as refused:
                call()
            assert refused.value.reason == "SHARD_NOT_FOUND"
        with pytest.raises(NotFound, match="nobody") as no_node:
            operator.drain_node("nobody")
        assert no_node.value.reason == "NODE_NOT_FOUND"
        assert "q" not in {queue.queue for queue in operator.list_queues().queues}, "nothing was done"


def test_strangers_neither_restore_a_cluster_that_works_nor_speak_as_brokers(cluster: MapCluster) -> None:
    """What an operator does to a cluster that is restored needs one. What brokers ask each other is served on the port
    between them only."""
    router, brokers = f"{HOST}:{cluster.routers[0].port}", [node.address for node in cluster.nodes.values()]
    copy = backups_pb2.QueueRecordCopy(queue="restored", record=QueueRecord().encode())
    file = backups_pb2.RestoreFile(name="CURRENT", size_bytes=1)
    state = backups_pb2.RestoreShardRequest(id=1, index=1, term=1, files=backups_pb2.RestoreFiles(files=[file]))
    news = broker_calls_pb2.SettingsNewsRequest()
    task = broker_calls_pb2.ReceiveTasksRequest(source_shard=1, source_incarnation=1, first_sequence=1000)
    task.messages.add().task.CopyFrom(enqueue_request("q").tasks[0])
    shares = broker_calls_pb2.AllocateRequest(source_shard=1, reports=[broker_calls_pb2.AllocationReport(queue="q")])
    for address in (*brokers, router):
        for method, request, reason in (
            ("Backups/RestoreQueues", backups_pb2.RestoreQueuesRequest(queues=[copy]), "RESTORE_REFUSED"),
            ("Backups/RestoreShard", state, "SHARD_NOT_FOUND" if address == router else "RESTORE_REFUSED"),
        ):
            refused = raw_call(address, method, request)
            assert isinstance(refused, Refusal), (address, method)
            assert refused.reason == reason, (address, method)
        for service in ("Tasks", "Shards", "Cluster"):
            for name, call in (
                ("ReceiveTasks", task), ("Allocate", shares), ("SettingsNews", news),
            ):  # fmt: skip
                refused = raw_call(address, f"{service}/{name}", call, shard=0)
                assert isinstance(refused, Refusal), (address, service, name)
                assert refused.code == "UNIMPLEMENTED", (address, service, name)
    with Client(router, timeout_s=DEADLINE_S) as operator:
        assert "restored" not in {queue.queue for queue in operator.list_queues().queues}


# --- a shard that was made anew ------------------------------------------------------------------------------------


def test_a_shard_that_is_made_anew_never_mixes_with_its_former_incarnation(cluster: MapCluster) -> None:
    """One replica is away meanwhile, and comes back with the old life on its disk."""
    first, second = queues_of_all_shards("lives", SHARDS)
    with Client(cluster.address, timeout_s=DEADLINE_S) as client:
        for n in range(5):
            client.enqueue(NewTask(first, "t", b"old", request_id=f"r{n}"))
        kept = client.enqueue(NewTask(second, "t", b"kept", request_id="r"))
        [old] = client.reserve([first], worker="w", lease_ms=60_000)
        leader = cluster.wait_for_leader(0)
        away = min(name for name in cluster.nodes if name != leader)
        cluster.nodes[away].kill()
        group = asyncio.run(make_anew(cluster, 0))
        assert incarnation_of(group) == 2
        until(lambda: is_new(cluster, 0, away), "the new life to be led")
        new = client.enqueue(NewTask(first, "t", b"new", request_id="r0"))
        assert not new.duplicate, "request ids of the former incarnation are forgotten"
        cluster.nodes[away].launch()
        cluster.wait_settled()
        deleted = [cluster.nodes[name].events("replica_deleted") for name in cluster.nodes]
        assert all([event["former_incarnation"] for event in events] == [True] for events in deleted)
        claims = client.reserve([first], max_tasks=10, worker="w", wait_ms=1000)
        assert [(claim.task_id, claim.payload) for claim in claims] == [(new.task_id, b"new")]
        assert claims[0].token > old.token
        with pytest.raises(NotFound):
            client.ack(old)
        with pytest.raises(NotFound):
            client.get_task(old.task_id)
        client.ack(claims[0])
        assert client.enqueue(NewTask(second, "t", b"kept", request_id="r")).task_id == kept.task_id
    assert cluster.shard(0).group == group
    check_each_node_can_lead(cluster)
    cluster.check_hashes()


async def make_anew(cluster: MapCluster, number: int) -> int:
    """As an operator would who gave a shard up; its new group."""
    etcd = EtcdClient([cluster.etcd.endpoint])
    store = MapStore(etcd, NAME)
    found = await store.read_shard(number)
    assert found is not None
    record, revision = found
    group = mapped_group(record.incarnation + 1, secrets.randbits(RANDOM_BITS))
    # The founder must be somebody who is there.
    leader = cluster.wait_for_leader(number)
    founders = sorted(record.voters, key=lambda item: not item.startswith(f"{leader}/"))
    new = ShardRecord(group=group, replicas=record.replicas, founders=tuple(founders))
    key = keys_of(NAME).shard(number)
    assert (await etcd.commit([Unchanged(key, revision)], [Put(key, new.encode())])).is_done
    await etcd.close()
    return group


def is_new(cluster: MapCluster, number: int, away: str) -> bool:
    """Whether the shard is founded, and all who are there have deleted what they had."""
    events = [node.events("replica_deleted") for name, node in cluster.nodes.items() if name != away]
    shard = cluster.shard(number)
    return all(events) and bool(shard.voters) and bool(cluster.leader(number)) and shard.version > 0


def check_each_node_can_lead(cluster: MapCluster) -> None:
    [queue] = queues_of_all_shards("led", SHARDS)[:1]
    with Client(cluster.address, timeout_s=DEADLINE_S) as client:
        for name in cluster.shard(0).replicas:
            if cluster.leader(0) != name:
                assert client.transfer(0, name).leader == name
            client.enqueue(NewTask(queue, "t", name.encode(), request_id=name))
        claims = claim_all(client, [queue], 3)
        assert sorted(claim.payload.decode() for claim in claims) == sorted(cluster.shard(0).replicas)


def test_a_name_and_a_node_id_are_one_nodes_only(cluster: MapCluster, intruders: Intruders) -> None:
    """Whoever comes second ends, and has harmed nobody."""
    first = cluster.nodes["n1"]
    check_ends(intruders.namesake, "Expected to be the only node named n1", first.address, "another node_name")
    check_ends(intruders.copied, "Expected to be the only one with this node id", intruders.guest.address, "was copied")
    assert all(node.is_up for node in (intruders.guest, *cluster.nodes.values()))
    nodes = {node.name: node.address for node in cluster.info().nodes if node.is_alive}
    assert nodes.keys() == {"n1", "n2", "n3", "guest"}
    assert (nodes["n1"], nodes["guest"]) == (first.address, intruders.guest.address)
    cluster.check_hashes()
