"""etcd is gone, for a while: tasks go on, shards fail over, nodes restart. Then it comes back.

`make test-long` makes it a minute.
"""

import shutil
import time

import pytest

from holdfast.cli.main import main
from holdfast.cli.problems import ExitCode
from holdfast.client import Accepted, Client, Conflict, MoveWish, NewTask, QueuePolicy, Unavailable
from holdfast.cluster.map.partition_map import PartitionMap
from tests.integration.map_cluster import MapCluster, apply_plan, map_cluster, until
from tests.integration.map_load import claim_all, load_on, queues_of_all_shards
from tests.integration.server import DEADLINE_S
from tests.long import IS_LONG

SHARDS = 3
OUTAGE_S = 60.0 if IS_LONG else 6.0

pytestmark = pytest.mark.timeout(120 + OUTAGE_S)


cluster = map_cluster(size=4, shards=SHARDS)


def test_an_outage_of_etcd_stops_neither_tasks_nor_fail_over(cluster: MapCluster) -> None:
    brokers = ",".join(cluster.broker_addresses)
    queues = queues_of_all_shards("load", SHARDS)
    until(lambda: all(copy_is_whole(cluster, name) for name in cluster.nodes), "all nodes to have a copy of the map")
    with load_on(cluster, queues, kinds=["own", "automatic"], direct_through=brokers) as load:
        cluster.etcd.kill()
        gone_s = time.monotonic()
        assert not answers(cluster, cluster.address), "the router misses it at once"
        assert not answers(cluster, brokers)
        load.wait_for(20)
        check_operators_are_told(cluster.address)
        for address, is_direct in ((cluster.address, False), (brokers, True)):
            check_new_queue(address, is_direct=is_direct)
        victim = fail_over(cluster, 0)
        load.wait_for(40)
        restart_and_lead(cluster, victim, 0)
        load.wait_for(40)
        assert "last known map" in cluster.routers[0].get("/readyz")[1]
        while time.monotonic() < gone_s + OUTAGE_S:
            load.wait_for(10)
        assert not answers(cluster, cluster.address), "etcd was away all the time"
        cluster.etcd.start()
        check_reconciled(cluster)
        load.wait_for(20)
        check_desired_are_carried_out(cluster)
        load.wait_for(20)
    load.check(cluster)


def test_an_etcd_that_hangs_is_as_good_as_none(cluster: MapCluster) -> None:
    """It takes connections and says nothing; a broker that is started then comes back all the same."""
    queues = queues_of_all_shards("hangs", SHARDS)
    with load_on(cluster, queues) as load:
        cluster.etcd.pause()
        try:
            victim = fail_over(cluster, 1)
            load.wait_for(30)
            restart_and_lead(cluster, victim, 1)
            load.wait_for(30)
        finally:
            cluster.etcd.proceed()
        check_reconciled(cluster)
    load.check(cluster)


def test_settings_that_are_made_again_after_a_restore_count(cluster: MapCluster) -> None:
    """The restored etcd counts its revisions from the backup on, so they have smaller ones than those in the logs."""
    cluster.etcd.kill()
    backup = cluster.directory / "backup"
    shutil.copytree(cluster.etcd.data_dir, backup)
    cluster.etcd.start()
    check_reconciled(cluster)
    with Client(cluster.address, timeout_s=DEADLINE_S) as operator:
        for attempts in range(2, 42):
            operator.set_queue("other", policy=QueuePolicy(max_attempts=attempts))
        queues = queues_of_all_shards("again", SHARDS)
        for queue in queues:
            operator.enqueue(NewTask(queue, "t"))
            operator.pause_queue(queue)
        until(lambda: all(operator.queue_stats(queue).paused for queue in queues), "the queues to be paused")
        cluster.etcd.kill()
        shutil.rmtree(cluster.etcd.data_dir)
        shutil.copytree(backup, cluster.etcd.data_dir)
        cluster.etcd.start()
        check_reconciled(cluster)
        by_hand, resumed, left = queues
        operator.set_queue(by_hand, policy=QueuePolicy(max_attempts=9))
        operator.resume_queue(resumed)
        until(lambda: budget(operator, by_hand) == 9, "the setting to count")
        for queue in (by_hand, resumed):
            assert claim_all(operator, [queue], 1), f"{queue} is not paused any more"
        until(lambda: not operator.queue_stats(left).paused, "what the backup says to count where nothing was done")
        until(lambda: budget(operator, "other") != 41, "as well as for a queue with settings that are forgotten")


def budget(client: Client, queue: str) -> int:
    """How many attempts a task gets that comes now."""
    return client.get_task(client.enqueue(NewTask(queue, "t")).task_id).max_attempts


# --- looks --------------------------------------------------------------------------------------------------------


def copy_is_whole(cluster: MapCluster, name: str) -> bool:
    """What a node has on its disk of the map: all that it needs to find the others."""
    path = cluster.nodes[name].data_dir / "MAP"
    return path.exists() and PartitionMap.from_json(path.read_bytes()).last_nodes.keys() == cluster.nodes.keys()


def answers(cluster: MapCluster, address: str) -> bool:
    """Whether etcd does, as the server sees it."""
    with Client(address, timeout_s=DEADLINE_S) as client:
        return client.describe_cluster().etcd_answers


def check_operators_are_told(address: str) -> None:
    """What needs etcd is refused with a sentence; what is known is told still."""
    with Client(address, timeout_s=DEADLINE_S, retry=False) as client:
        with pytest.raises(Unavailable, match="etcd") as refused:
            client.set_queue("some", spread=2)
        assert refused.value.reason == "ETCD_UNAVAILABLE"
        assert refused.value.retry_after_ms > 0
        assert len(client.describe_cluster().shards) == SHARDS
        for command in ("cluster status", "node ls"):
            assert main([*command.split(), "--address", address]) == ExitCode.LAST_KNOWN, command
        with pytest.raises(Unavailable, match="no plan is made of a map that is not current"):
            client.make_plan()
        assert len(client.topology().leaders) == SHARDS


def check_new_queue(address: str, *, is_direct: bool) -> None:
    """Nobody has ever heard of these; they take tasks, hand them out and finish them."""
    queues = queues_of_all_shards(f"new-{is_direct}-", SHARDS)
    with Client(address, timeout_s=DEADLINE_S, direct=is_direct) as client:
        sent = [client.enqueue(NewTask(queue, "t", b"x")) for queue in queues]
        sent += [
            one for one in client.enqueue_many([NewTask(queue, "t") for queue in queues]) if isinstance(one, Accepted)
        ]
        claims = claim_all(client, queues, len(sent))
        assert sorted(claim.task_id for claim in claims) == sorted(one.task_id for one in sent)
        assert not [one for one in client.ack_many(claims) if isinstance(one, Exception)]
        assert [client.queue_stats(queue).succeeded_total for queue in queues] == [2] * SHARDS


def fail_over(cluster: MapCluster, shard: int) -> str:
    """Kills the leader; its name, once there is another one."""
    victim = cluster.wait_for_leader(shard)
    cluster.nodes[victim].kill()
    until(lambda: cluster.leader(shard) not in ("", victim), "another leader")
    return victim


def restart_and_lead(cluster: MapCluster, name: str, shard: int) -> None:
    """The node comes back without etcd, catches up, and serves as the leader."""
    cluster.nodes[name].start()
    assert not cluster.nodes[name].events("registered")
    until(lambda: (one := cluster.replicas().get((shard, name))) and one.lag < 50, "its replica to catch up")
    until(lambda: has_led(cluster, shard, name), "it to lead")


def has_led(cluster: MapCluster, shard: int, name: str) -> bool:
    """Leadership may be taken only by who has everything: until then it is refused."""
    with Client(",".join(cluster.broker_addresses), timeout_s=DEADLINE_S) as operator:
        try:
            operator.transfer(shard, name)
        except Conflict:
            return False
        queue = queues_of_all_shards("led", SHARDS)[shard]
    with Client(cluster.address, timeout_s=DEADLINE_S) as client:
        client.enqueue(NewTask(queue, "t", request_id="led"))
    return cluster.leader(shard) == name


def check_reconciled(cluster: MapCluster) -> None:
    """Everybody has etcd again, is registered with a lease, and the map says who leads."""
    for address in (cluster.address, *cluster.broker_addresses):
        until(lambda address=address: answers(cluster, address), f"{address} to have etcd")  # type: ignore[misc]
    until(lambda: all(node.is_alive for node in cluster.info().nodes), "all nodes to be registered")
    until(lambda: hints(cluster) == [cluster.leader(shard) for shard in range(SHARDS)], "the map to say who leads")
    cluster.wait_settled()
    serving = '{"ready":true,"reason":"serving"}'
    until(lambda: cluster.routers[0].get("/readyz")[1] == serving, "the router to say nothing of etcd any more")


def hints(cluster: MapCluster) -> list[str]:
    return [shard.leader for shard in cluster.info().shards]


def check_desired_are_carried_out(cluster: MapCluster) -> None:
    """A replica moves, and a queue is spread."""
    before = set(cluster.shard(2).replicas)
    [destination] = set(cluster.nodes) - before
    source = min(before)
    with Client(cluster.address, timeout_s=DEADLINE_S) as operator:
        apply_plan(operator, operator.make_plan(move=MoveWish(2, source, destination)))
        cluster.wait_settled()
        assert set(cluster.shard(2).replicas) == before - {source} | {destination}
        assert len(operator.set_queue("wide", spread=SHARDS).route.shards) == SHARDS
