"""Nodes come and go under load: two are added, plans are carried out by several operators, two are removed."""

import json
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial

import pytest

from holdfast.client import Client, ClusterShard, Conflict, HoldfastError, MoveWish, Plan, PlanStep, StepState
from tests.integration.cluster import NodeProcess
from tests.integration.map_cluster import MapCluster, apply_plan, is_plan_done, map_cluster, until
from tests.integration.map_load import load_on, queues_of_all_shards
from tests.integration.server import DEADLINE_S
from tests.long import long_only

SHARDS = 4
REPLICATION = 3
ZONES = ("a", "b", "c")


# Leaders stay where they are, also while the machine is busy for a moment: where they are is looked at.
cluster = map_cluster(size=3, shards=SHARDS, zones=ZONES, election_ms=3000)


@pytest.fixture(scope="module")
def operator(cluster: MapCluster) -> Iterator[Client]:
    with Client(cluster.address, timeout_s=DEADLINE_S) as connected:
        yield connected


# --- looks --------------------------------------------------------------------------------------------------------


@contextmanager
def replication_is_kept(cluster: MapCluster) -> Iterator[None]:
    """All the time: no configuration that any replica is in has fewer voters than it should."""
    ends, seen = threading.Event(), set[tuple[int, int, int]]()
    before = cluster.info().shards

    def poll() -> None:
        with Client(cluster.address, timeout_s=DEADLINE_S) as client:
            while not ends.wait(0.05):
                nodes = [report.node for report in client.describe_nodes(timeout_s=2) if report.node is not None]
                for one in (replica for node in nodes for replica in node.replicas if replica.membership.version):
                    seen.add((one.shard, one.membership.version, len(one.membership.voters)))

    with ThreadPoolExecutor(1) as threads:
        looking = threads.submit(poll)
        try:
            yield
        finally:
            ends.set()
        looking.result()
    assert {shard for shard, _, _ in seen} == set(range(SHARDS))
    assert [item for item in seen if item[2] < REPLICATION] == []
    for shard in before:
        check_each_configuration(cluster, shard)


def check_each_configuration(cluster: MapCluster, before: ClusterShard) -> None:
    """Also those that lasted too short a time to be seen: leaders have written down each change."""
    logs = [path.read_text() for path in cluster.directory.glob("n*/server.log")]
    lines = [json.loads(line) for log in logs for line in log.splitlines() if '"member_change"' in line]
    changes = {line["version"]: line for line in lines if line["shard"] == before.shard}
    now = cluster.shard(before.shard)
    voters = set(before.voters)
    for version in range(before.version + 1, now.version + 1):
        change = changes[version]
        if change["step"] == "promote":
            voters.add(change["replica"])
        elif change["step"] == "remove":
            voters.discard(change["replica"])
        assert len(voters) >= REPLICATION, change
    assert voters == set(now.voters)


def zone_of(name: str) -> str:
    return ZONES[(int(name[1:]) - 1) % len(ZONES)]


def check_placed(cluster: MapCluster, counts: dict[str, int]) -> None:
    """Replicas on each node, and each shard in all zones."""
    shards = cluster.info().shards
    assert Counter(name for shard in shards for name in shard.replicas) == counts
    assert all({zone_of(name) for name in shard.replicas} == set(ZONES) for shard in shards)


def leaders(cluster: MapCluster) -> Counter[str]:
    return Counter(cluster.leader(shard) for shard in range(SHARDS))


def have_five(cluster: MapCluster) -> None:
    while len(cluster.nodes) < 5:
        cluster.add_node()
    with Client(cluster.address, timeout_s=DEADLINE_S) as router:
        for poll in (cluster.info, router.describe_cluster):  # whoever makes plans knows them, too
            until(lambda poll=poll: sum(node.is_alive for node in poll().nodes) == 5, "five nodes")  # type: ignore[misc]


# --- scenes -------------------------------------------------------------------------------------------------------


def test_two_nodes_come_and_operators_change_in_the_middle(cluster: MapCluster, operator: Client) -> None:
    """The first operator is gone after the first step. Two others go on at the same time, at different servers."""
    with load_on(cluster, queues_of_all_shards("come", SHARDS)) as load, replication_is_kept(cluster):
        have_five(cluster)
        load.wait_for(10)
        until(lambda: all(step.state_bytes is not None for step in moves_of(operator.make_plan())), "all to be known")
        plan = operator.make_plan()
        moves = moves_of(plan)
        assert Counter(step.destination for step in moves) == {"n4": 2, "n5": 2}
        assert {zone_of(step.source) == zone_of(step.destination) for step in moves} == {True}
        assert all(step.why and step.state_bytes is not None for step in moves)
        with Client(cluster.address, timeout_s=DEADLINE_S) as first:
            started = first.start_plan(plan)
            progress = first.advance_plan(started.id)
            assert not progress.is_done
            assert any(step.state in (StepState.COPYING, StepState.LEAVING) for step in progress.plan.steps)
        check_only_one_plan(cluster, operator, plan)
        finish_together(cluster)
        cluster.wait_settled()
        load.wait_for(10)
    check_placed(cluster, {"n1": 2, "n2": 2, "n3": 4, "n4": 2, "n5": 2})
    assert max(leaders(cluster).values()) == 1, "as many leaders as nodes can have, each on one"
    assert operator.make_plan().steps == (), "nothing is left to do"
    load.check(cluster)


def moves_of(plan: Plan) -> list[PlanStep]:
    return [step for step in plan.steps if not step.is_transfer]


def check_only_one_plan(cluster: MapCluster, operator: Client, plan: Plan) -> None:
    """The same plan is a success and begins nothing twice; another one is refused, with the name of the first."""
    assert operator.start_plan(plan).id == plan.id
    shard = cluster.info().shards[0]
    others = [MoveWish(0, source, to) for source in shard.replicas for to in cluster.nodes if to not in shard.replicas]
    with pytest.raises(Conflict) as refused:
        operator.start_plan(operator.make_plan(move=others[0]))
    assert (refused.value.reason, refused.value.metadata["plan"]) == ("PLAN_UNDER_WAY", plan.id)


def finish_together(cluster: MapCluster) -> None:
    """Operators that never heard of the plan find it in the map."""
    until(lambda: cluster.info().plan is not None, "the plan to be in the map")
    found = cluster.info().plan
    assert found is not None
    addresses = [cluster.address, *cluster.broker_addresses[-2:]]
    with ThreadPoolExecutor(len(addresses)) as threads:
        list(threads.map(lambda address: _finish(address, found.id), addresses))
    until(lambda: cluster.info().plan is None, "the plan to be forgotten")


def _finish(address: str, plan_id: str) -> None:
    with Client(address, timeout_s=DEADLINE_S) as operator:
        until(lambda: is_plan_done(operator, plan_id), "the plan to be done")


def test_a_plan_that_would_leave_no_majority_is_refused(cluster: MapCluster, operator: Client) -> None:
    """Two of a shard's three nodes are down: whatever moves, nothing could be committed."""
    have_five(cluster)
    cluster.wait_settled()
    shard = cluster.info().shards[0]
    left, *down = shard.replicas
    [free, *_] = set(cluster.nodes) - set(shard.replicas)
    with load_on(cluster, [queues_of_all_shards("down", SHARDS)[0]]) as load:
        load.wait_for(20)
    ready = operator.make_plan(move=MoveWish(0, left, free))
    with stopped(cluster, down):
        check_refused(operator, ready, MoveWish(0, left, free), MoveWish(0, down[0], free))
    cluster.wait_settled()
    assert set(cluster.shard(0).replicas) == set(shard.replicas)
    load.check(cluster)


@contextmanager
def stopped(cluster: MapCluster, names: Sequence[str]) -> Iterator[None]:
    """In good order, so that nobody waits for their leases."""
    for name in names:
        assert cluster.nodes[name].stop() == 0
    try:
        yield
    finally:
        for name in names:
            cluster.nodes[name].launch()


def check_refused(operator: Client, ready: Plan, *moves: MoveWish) -> None:
    """`ready`: a plan that was made while all was well."""
    until(lambda: sum(node.is_alive for node in operator.describe_cluster().nodes) == 3, "two nodes to be gone")
    calls: list[Callable[[], Plan]] = [partial(operator.make_plan, move=move) for move in moves]
    calls.append(partial(operator.start_plan, ready))
    for call in calls:
        with pytest.raises(Conflict, match="majority.*bring back n. or n. first") as refused:
            call()
        assert (refused.value.reason, refused.value.metadata["why"]) == ("PLAN_REFUSED", "NO_MAJORITY")
    assert operator.describe_cluster().plan is None


def test_two_nodes_are_drained_and_removed_under_load(cluster: MapCluster, operator: Client) -> None:
    """The oldest two. Each plan is begun by one operator and finished by another one at a broker."""
    have_five(cluster)
    with load_on(cluster, queues_of_all_shards("go", SHARDS)) as load, replication_is_kept(cluster):
        with pytest.raises(HoldfastError, match="drain"):
            operator.remove_node("n1")
        for name in ("n1", "n2"):
            operator.drain_node(name)
        until(lambda: sum(node.is_draining for node in operator.describe_cluster().nodes) == 2, "two to drain")
        with pytest.raises(Conflict, match="replicas") as refused:
            operator.remove_node("n1")
        assert refused.value.metadata["why"] == "holds_replicas"
        plan = operator.start_plan(operator.make_plan())
        assert {step.source for step in plan.steps if not step.is_transfer} == {"n1", "n2"}
        operator.advance_plan(plan.id)
        load.wait_for(10)
        _finish(cluster.nodes["n5"].address, plan.id)
        cluster.wait_settled()
        until(lambda: not holds_replicas(operator, "n1", "n2"), "the router to know that two nodes are empty")
        for name in ("n1", "n2"):
            operator.remove_node(name)
        until(lambda: len(operator.describe_cluster().nodes) == 3, "two nodes to be forgotten")
        load.wait_for(10)
        check_removed_do_not_come_back(cluster)
        load.wait_for(10)
    check_placed(cluster, {"n3": 4, "n4": 4, "n5": 4})
    load.check(cluster)


def holds_replicas(operator: Client, *names: str) -> bool:
    """As the server that is asked sees it."""
    shards = operator.describe_cluster().shards
    held = {
        replica.partition("/")[0] for shard in shards for replica in (*shard.replicas, *shard.voters, *shard.leaving)
    }
    return bool(held & set(names))


def check_removed_do_not_come_back(cluster: MapCluster) -> None:
    """They end by themselves, and again when they are started."""
    for name in ("n1", "n2"):
        removed = cluster.nodes.pop(name)
        check_ends_as_removed(removed)
        removed.launch()
        check_ends_as_removed(removed)


def check_ends_as_removed(node: NodeProcess) -> None:
    until(lambda: not node.is_up, f"{node.name} to end")
    assert node.exit_code == 1
    for words in (node.name, "was removed", "empty data directory"):
        assert words in node.log_text
    assert "Traceback" not in node.log_text


@long_only
def test_leaders_are_spread_again_after_a_rolling_restart(cluster: MapCluster, operator: Client) -> None:
    with load_on(cluster, queues_of_all_shards("roll", SHARDS)) as load:
        for node in list(cluster.nodes.values()):
            assert node.stop() == 0
            load.wait_for(10)
            node.start()
            cluster.wait_settled()
        last = list(cluster.nodes)[-1]
        assert leaders(cluster)[last] == 0, "whoever was restarted last leads nothing"
        plan = operator.make_plan(leaders=True)
        assert plan.steps
        assert all(step.is_transfer for step in plan.steps)
        apply_plan(operator, plan)
        counts = [leaders(cluster)[name] for name in cluster.nodes]
        assert max(counts) - min(counts) <= 1
        load.wait_for(10)
    assert operator.make_plan(leaders=True).steps == ()
    load.check(cluster)
