"""Routers whose map is old, whose leaders move or fall silent, that die, or that have too much to do."""

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.message import Message

from holdfast.cli.audit_files import entries, verify
from holdfast.client import (
    Accepted,
    AsyncClient,
    ClaimedTask,
    Client,
    ClusterShard,
    HoldfastError,
    MoveWish,
    NewTask,
    QueuePolicy,
    TaskInfo,
    TaskState,
)
from holdfast.proto.v1 import shards_pb2
from holdfast.proto.v1 import tasks_pb2 as pb
from tests.acceptance.apps import chores
from tests.acceptance.worker_process import WorkerProcess
from tests.integration.cluster import HOST, free_ports
from tests.integration.cluster_tools import Refusal, holdfast, raw_call
from tests.integration.map_cluster import MapCluster, RouterProcess, apply_plan, map_cluster, until
from tests.integration.map_load import claim_all, load_on, queues_of_all_shards
from tests.integration.proxy import Proxy
from tests.integration.server import DEADLINE_S, wait_until
from tests.stalls import stalls

SHARDS = 3


cluster = map_cluster(size=4, shards=SHARDS, routers=2)


@contextmanager
def another_router(cluster: MapCluster, name: str, endpoints: str, **settings: object) -> Iterator[RouterProcess]:
    home = cluster.directory / name
    home.mkdir()
    router = RouterProcess(home, free_ports(1)[0], endpoints, **settings)  # type: ignore[arg-type]  # passed through
    try:
        router.start()
        until(lambda: router.get("/readyz")[0] == 200, "the router to be ready")
        yield router
    finally:
        router.close()


def transfer(cluster: MapCluster, shard: int) -> str:
    """To another replica of the shard; its name."""
    leader = cluster.wait_for_leader(shard)
    to = min(name for name in cluster.shard(shard).replicas if name != leader)
    with Client(cluster.address, timeout_s=DEADLINE_S) as operator:
        return operator.transfer(shard, to).leader


def test_a_router_whose_map_is_old_is_led_to_the_leaders(cluster: MapCluster) -> None:
    """It is cut off from etcd; then every shard gets another leader, and one a replica on a node that had none, which
    leads. Workers and producers notice nothing."""
    queues = queues_of_all_shards("stale", SHARDS)
    with (
        Proxy(cluster.etcd.client_port) as to_etcd,
        another_router(cluster, "stale", to_etcd.address) as router,
        Client(f"{HOST}:{router.port}", timeout_s=DEADLINE_S) as client,
    ):
        for queue in queues:
            client.enqueue(NewTask(queue, "t", b"before", request_id="a"))
        to_etcd.set(refuses=True)
        to_etcd.reset()
        until(lambda: router.metric("holdfast_router_map_is_current") == 0, "the router to miss etcd")
        revision = router.metric("holdfast_router_map_revision")
        for shard in range(SHARDS):
            transfer(cluster, shard)
        destination = move_away(cluster, 0)
        accepted = client.enqueue_many([NewTask(queue, "t", b"after", request_id="b") for queue in queues])
        assert all(isinstance(one, Accepted) and not one.duplicate for one in accepted)
        again = [client.enqueue(NewTask(queue, "t", b"after", request_id="b")).task_id for queue in queues]
        assert again == [one.task_id for one in accepted if isinstance(one, Accepted)]
        claims = claim_all(client, queues, 2 * SHARDS)
        assert sorted((claim.queue, claim.payload) for claim in claims) == sorted(
            (queue, payload) for queue in queues for payload in (b"before", b"after")
        )
        assert {claim.task_id for claim in claims} >= set(again)
        assert not [one for one in client.ack_many(claims) if isinstance(one, Exception)]
        assert router.metric("holdfast_router_map_revision") == revision, "its map was old all the time"
        status, body = router.get("/readyz")
        assert (status, "last known map" in body) == (200, True)
        to_etcd.set()
        until(lambda: router.metric("holdfast_router_map_is_current") == 1, "the router to have etcd again")
        until(lambda: _told_leader(client, 0) == destination, "the router to know who leads")
    cluster.wait_settled()
    cluster.check_hashes()


def _told_leader(client: Client, shard: int) -> str:
    return next((one.node for one in client.topology().leaders if one.shard == shard), "")


def move_away(cluster: MapCluster, number: int) -> str:
    """The leader's replica, to the node that has none; that one leads then."""
    shard: ClusterShard = cluster.shard(number)
    [destination] = set(cluster.nodes) - set(shard.replicas)
    with Client(cluster.address, timeout_s=DEADLINE_S) as operator:
        apply_plan(operator, operator.make_plan(move=MoveWish(number, cluster.wait_for_leader(number), destination)))
        assert operator.transfer(number, destination).leader == destination
    return destination


def test_leaders_that_move_under_load_cost_no_error_and_no_task(cluster: MapCluster) -> None:
    queues = queues_of_all_shards("moved", SHARDS)
    with load_on(cluster, queues, kinds=["own", "automatic"]) as load:
        for shard in (*range(SHARDS), *range(SHARDS)):
            transfer(cluster, shard)
            load.wait_for(20)
    load.check(cluster)


def test_a_leader_that_falls_silent_is_passed_over_in_time(cluster: MapCluster) -> None:
    """SIGSTOP: its connections stay, and nothing comes back on them."""
    queues = queues_of_all_shards("silent", SHARDS)
    with load_on(cluster, queues) as load:
        silent = cluster.nodes[cluster.wait_for_leader(1)]
        silent.pause()
        try:
            with Client(cluster.address, timeout_s=DEADLINE_S) as client:
                began_s = time.monotonic()
                client.enqueue(NewTask(queues[1], "t", b"during", request_id="during"), timeout_s=15)
                took_s = time.monotonic() - began_s
            load.wait_for(40)
        finally:
            silent.resume()
    assert took_s < 15
    cluster.wait_settled()
    load.check(cluster)


def test_a_router_that_is_killed_is_replaced_by_the_next(cluster: MapCluster) -> None:
    queues = queues_of_all_shards("killed", SHARDS)
    with load_on(cluster, queues, kinds=["own", "automatic"]) as load:
        for router in cluster.routers:
            load.wait_for(20)
            router.kill()
            load.wait_for(40)
            router.start()
            until(lambda router=router: router.get("/readyz")[0] == 200, "the router to be ready")  # type: ignore[misc]
    load.check(cluster)


def test_a_router_that_is_stopped_sends_those_who_wait_elsewhere_at_once(cluster: MapCluster) -> None:
    """Idle workers would hold it up for as long as they are patient. They go to the next one, and miss nothing."""
    first, second = cluster.routers
    addresses = f"{HOST}:{first.port},{HOST}:{second.port}"
    queue = "idle-while-stopped"
    with Client(addresses, timeout_s=DEADLINE_S) as worker, ThreadPoolExecutor(1) as threads:
        polling = threads.submit(lambda: worker.reserve([queue], worker="w", wait_ms=25_000))
        until(
            lambda: sum(router.metric("holdfast_router_calls_waiting") for router in cluster.routers) == 1, "its poll"
        )
        waits_at = first if first.metric("holdfast_router_calls_waiting") else second
        other = second if waits_at is first else first
        before_s = time.monotonic()
        waits_at.ask_to_stop()
        until(lambda: other.metric("holdfast_router_calls_waiting") == 1, "it to wait at the other one")
        assert waits_at.wait_for_exit() == 0
        assert time.monotonic() - before_s < 5, "no poll is waited for, and none comes in"
        with Client(f"{HOST}:{other.port}", timeout_s=DEADLINE_S) as producer:
            producer.enqueue(NewTask(queue, "t"))
        assert len(polling.result(DEADLINE_S)) == 1
    waits_at.start()
    until(lambda: waits_at.get("/readyz")[0] == 200, "the router to be ready")


@pytest.mark.parametrize(("silence", "names"), [("kill", ["n2"]), ("pause", ["n2"]), ("kill", ["n2", "n3"])])
def test_a_node_that_was_killed_is_told_within_a_second_or_so(
    cluster: MapCluster, silence: str, names: list[str]
) -> None:
    """Its lease says for ten seconds that it is there; the command asks the nodes themselves. It waits neither for the
    lease nor for shards that are left without a majority."""
    cluster.wait_settled()
    for name in names:
        getattr(cluster.nodes[name], silence)()
    began_s = time.monotonic()
    with stalls() as stalled:
        status = holdfast("cluster", "status", "--address", cluster.address, exit_code=1, or_exit_code=4)
    took_s = time.monotonic() - began_s
    reported = {node["name"]: (node["is_alive"], node["answers"]) for node in status["nodes"]}
    assert [reported[name] for name in names] == [(True, False)] * len(names)
    assert took_s - stalled.seconds < 5, "also if it is silent, and does not refuse"
    for name in names:
        if silence == "kill":
            cluster.nodes[name].launch()
        else:
            cluster.nodes[name].resume()
    for name in names:
        cluster.nodes[name].wait_serving()
    cluster.wait_settled()


def test_a_worker_gets_every_task_of_all_shards(cluster: MapCluster) -> None:
    """Whatever it asks for at once, and however the tasks lie."""
    queues = queues_of_all_shards("every", SHARDS)
    sizes = (1, 7, 40)
    with Client(cluster.address, timeout_s=DEADLINE_S) as client:
        sent = [NewTask(queue, "t", b"%d" % n, request_id=f"{n}") for queue, size in zip(queues, sizes, strict=True)
                for n in range(size)]  # fmt: skip
        accepted = {one.task_id for one in client.enqueue_many(sent) if isinstance(one, Accepted)}
        assert len(accepted) == sum(sizes)
        claimed: list[str] = []

        def take(wait_ms: int = 1000) -> bool:
            claims = client.reserve(queues, max_tasks=5, worker="w", lease_ms=60_000, wait_ms=wait_ms)
            assert len(claims) <= 5
            claimed.extend(claim.task_id for claim in claims)
            client.ack_many(claims)
            return len(claimed) >= len(accepted)

        wait_until(take, "all tasks")
        take(wait_ms=0)
        assert sorted(claimed) == sorted(accepted)
        assert [client.queue_stats(queue).succeeded_total for queue in queues] == list(sizes)
    cluster.check_hashes()


def call(router: RouterProcess, path: str, request: Message, response: type[Any]) -> Any:
    """As it is on the wire, without what a client does."""
    answer = raw_call(f"{HOST}:{router.port}", path, request)
    assert isinstance(answer, bytes), answer
    return response.FromString(answer)


def test_batches_over_all_shards_come_back_in_their_order_from_every_call(cluster: MapCluster) -> None:
    """Of queues at home on each shard, and of one that is spread over all."""
    router = cluster.routers[0]
    with Client(cluster.address, timeout_s=DEADLINE_S) as client:
        client.set_queue("wide", spread=SHARDS)
        until(lambda: client.topology(["wide"]).routes[0].generation == 1, "the queue to be spread")
    queues = [*queues_of_all_shards("batches", SHARDS), "wide"]
    ids = [f"~1.k{n}.0" if n % 4 == 3 else f"r{n}" for n in range(80)]
    tasks = [pb.TaskSpec(queue=queues[n % 4], type="t", payload=b"%d" % n, request_id=ids[n]) for n in range(80)]
    request = pb.EnqueueRequest(tasks=tasks)
    first, again = (call(router, "Tasks/Enqueue", request, pb.EnqueueResponse) for _ in range(2))
    names = [outcome.accepted.task_id for outcome in first.outcomes]
    assert len(set(names)) == 80
    assert [outcome.accepted.task_id for outcome in again.outcomes] == names
    assert all(outcome.accepted.duplicate for outcome in again.outcomes)
    stats = call(router, "Tasks/QueueStats", pb.QueueStatsRequest(queues=queues), pb.QueueStatsResponse)
    assert [outcome.counts.ready for outcome in stats.outcomes] == [20, 20, 20, 20]
    listed = call(router, "Tasks/ListQueues", pb.ListQueuesRequest(), pb.ListQueuesResponse)
    assert {(queue.queue, queue.ready) for queue in listed.queues} >= {(queue, 20) for queue in queues}
    with Client(cluster.address, timeout_s=DEADLINE_S) as client:
        claims = claim_all(client, queues, 80)
    assert {claim.task_id: claim.payload for claim in claims} == {name: b"%d" % n for n, name in enumerate(names)}
    tokens = [(claim.task_id, claim.token >> 64, claim.token % 2**64) for claim in claims]
    refs = [pb.ClaimRef(task_id=task_id, token=token, secret=secret) for task_id, token, secret in tokens]
    bad = pb.ClaimRef(task_id=names[5], token=1, secret=1)
    acks = pb.AckRequest(items=[pb.AckItem(claim=ref) for ref in (*refs, bad)])
    acked = call(router, "Tasks/Ack", acks, pb.AckResponse)
    assert [outcome.WhichOneof("outcome") for outcome in acked.outcomes] == ["acked"] * 80 + ["rejection"]
    done = call(router, "Tasks/WaitTasks", pb.WaitTasksRequest(task_ids=names), pb.WaitTasksResponse)
    assert [outcome.task.state for outcome in done.outcomes] == [pb.TASK_STATE_SUCCEEDED] * 80


def test_operators_see_the_router(cluster: MapCluster) -> None:
    router = cluster.routers[0]
    described = call(router, "Shards/DescribeNode", shards_pb2.DescribeNodeRequest(), shards_pb2.DescribeNodeResponse)
    nodes = {(name, node.address) for name, node in cluster.nodes.items()}
    assert {(node.name, node.address) for node in described.nodes} == nodes
    found = call(router, "Shards/FindLeader", shards_pb2.FindLeaderRequest(shard=1), shards_pb2.FindLeaderResponse)
    assert found.leader == cluster.leader(1)
    assert router.metric("holdfast_router_map_shards") == SHARDS
    assert router.metric('holdfast_router_rpc_calls_total{code="OK",method="FindLeader"}') >= 1


def test_a_result_that_is_gone_is_told_from_none_also_by_the_next_leader(cluster: MapCluster) -> None:
    [queue, *_] = queues_of_all_shards("expired", SHARDS)
    with Client(cluster.address, timeout_s=DEADLINE_S) as client:
        ids = [client.enqueue(NewTask(queue, "t", result_ttl_ms=1)).task_id for _ in range(2)]
        claims = {claim.task_id: claim for claim in client.reserve([queue], max_tasks=2, worker="w")}
        for task_id, result in zip(ids, (b"42", None), strict=True):
            client.ack(claims[task_id], result=result)
        wait_until(lambda: client.get_task(ids[0]).result_expired_at_ms, "a millisecond of the shard's time")
        before = client.wait_tasks(ids)
        assert all(isinstance(info, TaskInfo) and info.result is None for info in before)
        victim = cluster.nodes[cluster.wait_for_leader(0)]
        victim.kill()
        assert client.wait_tasks(ids) == before
        shown = [(info.changed_at_ms, info.result_expired_at_ms) for info in map(client.get_task, ids)]
        assert [expired_at_ms for _, expired_at_ms in shown] == [shown[0][0] + 1, None]
    victim.start()
    cluster.wait_settled()


def test_a_worker_that_was_idle_for_longer_than_its_lease_runs_what_it_claims(
    cluster: MapCluster, tmp_path: Path
) -> None:
    """Its queues are on several shards, so that the router waits for it and then claims: the wait is no part of the
    lease, nor of the task's timeout."""
    lease_s = 2.0
    queues = queues_of_all_shards("idle", SHARDS)
    worker = WorkerProcess(tmp_path / "worker", cluster.address, queues, lease=lease_s)
    with worker.start(), chores.make_app(cluster.address) as app:
        until(lambda: any(map(_calls, cluster.routers)), "the worker to wait")
        time.sleep(lease_s + 0.5)  # longer than the lease: that is what this is about
        handle = app.tasks["work"].options(queue=queues[1], timeout=lease_s, max_attempts=1).enqueue(0.01)
        assert handle.result(timeout=DEADLINE_S) == worker.pid
        info = handle.info()
        assert (info.state, info.claims, info.failures) == (TaskState.SUCCEEDED, 1, 0)
        assert len(worker.journal("begin", handle.id)) == 1
        report = worker.stop()
    assert (report.succeeded, report.lost) == (1, 0)


def test_what_a_call_waited_before_its_leader_changed_is_no_part_of_the_lease(cluster: MapCluster) -> None:
    lease_s, waits_s = 20.0, 2.0
    [queue, *_] = queues_of_all_shards("changed", SHARDS)
    claims: list[ClaimedTask] = []

    def reserve() -> None:
        with Client(cluster.address, timeout_s=DEADLINE_S) as waiting:
            claims.extend(waiting.reserve([queue], worker="w", wait_ms=30_000, lease_ms=int(lease_s * 1000)))

    worker = threading.Thread(target=reserve)
    with Client(cluster.address, timeout_s=DEADLINE_S) as client:
        worker.start()
        until(lambda: any(map(_calls, cluster.routers)), "the worker to wait")
        time.sleep(waits_s)
        transfer(cluster, 0)
        began_s = time.monotonic()
        client.enqueue(NewTask(queue, "t"))
        worker.join()
    [claim] = claims
    assert began_s - waits_s / 2 < claim.lease_ends_s - lease_s < time.monotonic()


@pytest.mark.parametrize("direct", [False, True], ids=["router", "direct"])
def test_tasks_of_a_silent_worker_are_handed_out_alone(cluster: MapCluster, direct: bool) -> None:
    """From whichever shards they are: one to each call, none to those who hold something, who are asked to run dry."""
    queues = queues_of_all_shards(f"silent{direct}", SHARDS)
    with Client(cluster.address, timeout_s=DEADLINE_S, direct=direct) as client:
        sent = client.enqueue_many([NewTask(queue, "t") for queue in queues for _ in range(2)])
        task_ids = {one.task_id for one in sent if isinstance(one, Accepted)}
        lost: set[str] = set()
        while len(lost) < len(task_ids):
            lost |= {claim.task_id for claim in client.reserve(queues, max_tasks=9, lease_ms=1000, worker="silent")}
        until(lambda: all(client.get_task(task_id).suspect for task_id in task_ids), "all to be suspects")

        busy = client.reserve(queues, max_tasks=9, wait_ms=10_000, worker="busy", empty_handed=False)
        assert (list(busy), busy.run_dry_s > 0) == ([], True)
        for number in range(len(task_ids)):
            # Not only those that are there: also for a call that waits.
            [claim] = client.reserve(
                queues, max_tasks=9, wait_ms=10_000 * (number % 2), worker=f"w{number}", empty_handed=True,
                suspects_only=not number % 2, lease_ms=60_000,
            )  # fmt: skip
            assert claim.alone
            task_ids.remove(claim.task_id)
            client.ack(claim)
        assert client.reserve(queues, worker="last", empty_handed=True) == []


def test_a_worker_that_vanishes_while_it_waits_takes_no_task_along(cluster: MapCluster) -> None:
    """Its connection breaks before, while and after a task comes for it. The task is somebody else's at the latest when
    the lease is over, and at once if the router could give it back."""
    lease_ms = 3000
    pauses_s = (0.0, 0.0, 0.002, 0.005, 0.01, 0.03, 0.1)
    queues: list[str] = []
    sent: set[str] = set()
    watched, other = cluster.routers
    with Proxy(watched.port) as wire, Client(f"{HOST}:{other.port}", timeout_s=DEADLINE_S) as client:
        for n, pause_s in enumerate(pauses_s):
            waited_for = queues_of_all_shards(f"gone{n}-", SHARDS)
            waiting = threading.Thread(target=_reserve_and_forget, args=(wire.address, waited_for, lease_ms))
            waiting.start()
            until(lambda: _calls(watched) == 1, "the worker to wait")
            if n == 0:
                wire.reset()
                waiting.join()
            queues.append(waited_for[n % SHARDS])
            sent.add(client.enqueue(NewTask(queues[-1], "t")).task_id)
            time.sleep(pause_s)
            wire.reset()
            waiting.join()
            until(lambda: _calls(watched) == 0, "nobody to wait any more")
        claimed: dict[str, int] = {}

        def take() -> bool:
            claims = client.reserve(queues, max_tasks=10, worker="heir", wait_ms=1000, lease_ms=60_000)
            claimed.update({claim.task_id: claim.claims for claim in claims})
            client.ack_many(claims)
            return len(claimed) == len(pauses_s)

        wait_until(take, "all tasks to come back", deadline_s=3 * lease_ms / 1000 + DEADLINE_S)
        assert set(claimed) == sent
        stats = [client.queue_stats(queue) for queue in queues]
        assert sum(one.succeeded_total for one in stats) == len(pauses_s)
        until(lambda: not any(client.queue_stats(queue).waiting_reserves for queue in queues), "nobody to wait")
    cluster.check_hashes()


def _reserve_and_forget(address: str, queues: list[str], lease_ms: int) -> None:
    with Client(address, timeout_s=DEADLINE_S, retry=False, transport="grpc") as client:
        try:
            client.reserve(queues, max_tasks=3, worker="vanishes", wait_ms=20_000, lease_ms=lease_ms)
        except HoldfastError:
            return


def _calls(router: RouterProcess) -> float:
    return router.metric("holdfast_router_calls_under_way") + router.metric("holdfast_router_calls_waiting")


async def test_hundreds_of_idle_workers_share_a_wait_and_keep_nobody_from_being_served(cluster: MapCluster) -> None:
    workers = 300
    settings = {"waits_max": workers, "calls_max": 10, "calls_per_shard_max": 10}
    with another_router(cluster, "small", cluster.etcd.endpoint, **settings) as router:
        address = f"{HOST}:{router.port}"
        async with AsyncClient(address, timeout_s=DEADLINE_S) as client, asyncio.timeout(4 * DEADLINE_S):

            async def wait_until(is_so: Callable[[], bool]) -> None:
                await asyncio.to_thread(until, is_so, "the router to be so far")

            def poll(number: int) -> "asyncio.Task[list[ClaimedTask]]":
                wait = client.reserve(["idle"], wait_ms=60_000, worker=f"w{number}", lease_ms=60_000)
                return asyncio.create_task(wait)

            await client.set_queue("idle", spread=SHARDS)
            polls = [poll(number) for number in range(workers)]
            await wait_until(lambda: router.metric("holdfast_router_calls_waiting") == workers)
            assert router.metric("holdfast_router_broker_waits") == SHARDS
            too_many = pb.ReserveRequest(queues=["idle"], max_tasks=1, lease_ms=5000, wait_ms=60_000)
            refusal = await asyncio.to_thread(raw_call, address, "Tasks/Reserve", too_many)
            assert isinstance(refusal, Refusal)
            assert (refusal.code, refusal.reason) == ("RESOURCE_EXHAUSTED", "OVERLOADED")
            assert refusal.retry_after_ms > 0
            # A client that may, comes back by itself, and is served when there is room.
            refused = _refusals(router)
            polls.append(poll(workers))
            await wait_until(lambda: _refusals(router) > refused)
            for count in (workers // 2, workers - workers // 2 + 1):
                sent = await client.enqueue_many([NewTask("idle", "t") for _ in range(count)])
                assert all(isinstance(one, Accepted) for one in sent)
            claims = [claim for claims in await asyncio.gather(*polls) for claim in claims]
            assert len({claim.task_id for claim in claims}) == len(claims) == workers + 1
            assert not [one for one in await client.ack_many(claims) if isinstance(one, Exception)]
            assert (await client.queue_stats("idle")).succeeded_total == workers + 1
    cluster.check_hashes()


def _refusals(router: RouterProcess) -> float:
    return router.metric('holdfast_router_rpc_calls_total{code="RESOURCE_EXHAUSTED",method="Reserve"}')


def test_what_operators_do_through_a_router_is_noted_there_and_at_the_broker(
    cluster: MapCluster, tmp_path: Path
) -> None:
    directory = tmp_path / "audit"
    with (
        another_router(cluster, "audited", cluster.etcd_endpoints, audit_dir=directory) as router,
        Client(f"{HOST}:{router.port}") as client,
    ):
        client.enqueue(NewTask("audited", "t"))
        client.set_queue("audited", policy=QueuePolicy(max_attempts=3))
        client.purge_queue("audited")

        def purged(place: Path) -> bool:
            noted = entries(place, 99) if any(place.rglob("audit-*")) else []
            return any((entry.what, entry.on) == ("Queues/PurgeQueue", "queue=audited") for entry in noted)

        until(lambda: purged(directory), "the purge to be noted")
        noted = entries(directory, 9)
        assert {entry.what for entry in noted} == {"Cluster/SetQueue", "Queues/PurgeQueue"}
        assert {(entry.on, entry.result) for entry in noted} == {("queue=audited", "OK")}
        places = [node.data_dir for node in cluster.nodes.values()]
        until(lambda: any(map(purged, places)), "the purge to be noted by the broker that did it")
        assert router.metric("holdfast_router_audit_lost") == 0
    assert verify(directory, None).found.lost == 0
