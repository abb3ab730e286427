"""A replica moves from one node to another while somebody dies at every step of it."""

import itertools
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.client import Accepted, Client, HoldfastError, MoveWish, NewTask, NotFound
from tests.integration.cluster_tools import NOTHING_KEPT
from tests.integration.map_cluster import MapCluster, until
from tests.integration.server import DEADLINE_S

# Places that a move gets to. Whoever gets there first dies: the leader at the steward's, the destination where it joins
# and takes a snapshot, the source where it retires. `make moves` tries them all.
EVERYWHERE = [
    "steward:add", "steward:add_done", "steward:telling", "host:joined", "snapshot:offered", "snapshot:taken",
    "steward:promote", "steward:promote_done", "steward:told", "steward:remove", "steward:remove_done",
    "retire:dropping", "retire:dropped", "retire:forgotten",
]  # fmt: skip
SOMEWHERE = ["steward:add_done", "snapshot:taken", "steward:remove_done", "retire:dropped"]
PLACES = EVERYWHERE if os.environ.get("PLACES") == "all" else SOMEWHERE


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MapCluster]:
    directory = tmp_path_factory.mktemp("moves")
    env = {"HOLDFAST_FAILPOINT_FILE": str(directory / "failpoint")}
    with MapCluster(directory, size=4, shards=1, env=env, **NOTHING_KEPT) as running:
        yield running.start()


class Load:
    """Enqueues through the router until stopped; remembers what was accepted."""

    def __init__(self, address: str, queue: str) -> None:
        self._address = address
        self.queue = queue
        self.accepted: dict[str, str] = {}  # request id to task id
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> "Load":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        with Client(self._address, timeout_s=DEADLINE_S) as client:
            for number in itertools.count():
                if self._stop.wait(0.005):
                    return
                tasks = [NewTask(self.queue, "t", b"x" * 500, request_id=f"{number}-{at}") for at in range(5)]
                try:
                    accepted = client.enqueue_many(tasks)
                except HoldfastError:
                    continue  # unknown: it may be there or not
                self.accepted |= {
                    task.request_id or "": one.task_id
                    for task, one in zip(tasks, accepted, strict=True)
                    if isinstance(one, Accepted)
                }


def check_all_there(address: str, load: Load) -> None:
    """Whatever was accepted is known still: asked for again by its request id it is the same task."""
    assert len(load.accepted) > 20
    asked = list(load.accepted)
    with Client(address, timeout_s=DEADLINE_S) as client:
        for at in range(0, len(asked), 500):
            batch = [NewTask(load.queue, "t", b"x" * 500, request_id=request_id) for request_id in asked[at : at + 500]]
            again = [one for one in client.enqueue_many(batch) if isinstance(one, Accepted)]
            assert [one.task_id for one in again] == [load.accepted[request_id] for request_id in asked[at : at + 500]]


def died(operator: Client, plan_id: str, failpoint: Path) -> bool:
    is_done(operator, plan_id)
    return not failpoint.exists()


def is_done(operator: Client, plan_id: str) -> bool:
    try:
        return operator.advance_plan(plan_id).is_done
    except NotFound:
        return True  # and forgotten


@pytest.mark.parametrize("place", PLACES)
def test_a_move_comes_to_its_end_whoever_dies(cluster: MapCluster, place: str, tmp_path: Path) -> None:
    failpoint = cluster.directory / "failpoint"
    before = set(cluster.shard(0).replicas)
    leader = cluster.leader(0)
    [destination] = set(cluster.nodes) - before
    source = leader if place == "retire:dropped" else min(before - {leader})
    with Load(cluster.address, f"q-{place.replace(':', '-')}") as load:
        until(lambda: len(load.accepted) > 100, "some tasks")
        failpoint.write_text(place)
        with Client(cluster.address, timeout_s=DEADLINE_S) as operator:
            plan = operator.start_plan(operator.make_plan(move=MoveWish(0, source, destination)))
            until(lambda: died(operator, plan.id, failpoint), f"somebody to get to {place}")
            until(lambda: any(not node.is_up for node in cluster.nodes.values()), "the dead to be gone")
            for node in cluster.nodes.values():
                if not node.is_up:
                    node.launch()
            until(lambda: is_done(operator, plan.id), "the plan to be done")
        cluster.wait_settled()
    assert set(cluster.shard(0).replicas) == before - {source} | {destination}
    check_all_there(cluster.address, load)
    cluster.check_hashes()
