"""A replica moves from one node to another while somebody dies at every step of it."""

import itertools
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from holdfast.broker import failpoints
from holdfast.client import Accepted, Client, HoldfastError, MoveWish, NewTask, NotFound
from tests.integration.cluster_tools import NOTHING_KEPT
from tests.integration.etcd_server import leader_of
from tests.integration.map_cluster import MapCluster, until
from tests.integration.server import DEADLINE_S

# Places that a move gets to: the leader at the reconciler's, the destination where it joins and takes a snapshot, the
# source where it retires. Whoever gets there first dies; `make moves` tries all places, and at each of them lets that
# process halt as well while somebody else is killed.
EVERYWHERE = [
    "reconciler:add", "reconciler:add_done", "reconciler:telling", "host:joined", "snapshot:offered", "snapshot:taken",
    "reconciler:promote", "reconciler:promote_done", "reconciler:reported", "reconciler:remove",
    "reconciler:remove_done", "retire:dropping", "retire:dropped", "retire:forgotten",
]  # fmt: skip
SOMEWHERE = ["snapshot:taken", "reconciler:add_done", "reconciler:remove_done", "retire:dropped"]
OTHERS = ["router", "leader of etcd", "operator", "destination", "source"]
IS_ALL = os.environ.get("PLACES") == "all"
PLACES = EVERYWHERE if IS_ALL else SOMEWHERE
all_only = pytest.mark.skipif(not IS_ALL, reason="`make moves` and `make test-long` run it")

UNHEARD_S = 3.0  # so long nobody counts as caught up who says nothing
WATCH_S = 3.0


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MapCluster]:
    directory = tmp_path_factory.mktemp("moves")
    env = {"HOLDFAST_FAILPOINT_FILE": str(directory / "failpoint")}
    members = 3 if IS_ALL else 1
    with MapCluster(directory, size=4, shards=1, env=env, etcd_members=members, **NOTHING_KEPT) as running:
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
                tasks = [NewTask(self.queue, "t", b"x" * 500, request_id=f"{number}-{index}") for index in range(5)]
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
        for index in range(0, len(asked), 500):
            batch = [
                NewTask(load.queue, "t", b"x" * 500, request_id=request_id) for request_id in asked[index : index + 500]
            ]
            again = [one for one in client.enqueue_many(batch) if isinstance(one, Accepted)]
            assert [one.task_id for one in again] == [
                load.accepted[request_id] for request_id in asked[index : index + 500]
            ]


def cut_the_log(cluster: MapCluster) -> None:
    """Waits for the leader's log to have lost its beginning: before, whoever joins needs no snapshot to catch up."""
    leader = cluster.wait_for_leader(0)
    seen: list[int] = []

    def has_shrunk() -> bool:
        replica = cluster.replicas().get((0, leader))
        seen.append(replica.log_bytes if replica else 0)
        return 0 < seen[-1] < max(seen)

    until(has_shrunk, "a log that is cut")


def died(operator: Client, plan_id: str, failpoint: Path) -> bool:
    is_done(operator, plan_id)
    return not failpoint.exists()


def is_done(operator: Client, plan_id: str) -> bool:
    try:
        return operator.advance_plan(plan_id).is_done
    except NotFound:
        return True  # and forgotten
    except HoldfastError:
        return False  # the router, or etcd, has just been killed


@pytest.mark.parametrize("place", PLACES)
def test_a_move_comes_to_its_end_whoever_dies(cluster: MapCluster, place: str, tmp_path: Path) -> None:
    failpoint = cluster.directory / "failpoint"
    before = set(cluster.shard(0).replicas)
    leader = cluster.wait_for_leader(0)
    [destination] = set(cluster.nodes) - before
    source = leader if place == "retire:dropped" else min(before - {leader})
    with Load(cluster.address, f"q-{place.replace(':', '-')}") as load:
        until(lambda: len(load.accepted) > 100, "some tasks")
        if place.startswith("snapshot:"):
            cut_the_log(cluster)
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


# --- somebody else dies -----------------------------------------------------------------------------------------------


class Move:
    """A replica moves; `halt_at` returns when a process has come to the place, and stands still there."""

    def __init__(self, cluster: MapCluster) -> None:
        self.cluster = cluster
        self.failpoint = cluster.directory / "failpoint"
        self.before = set(cluster.shard(0).replicas)
        leader = cluster.wait_for_leader(0)
        [self.destination] = set(cluster.nodes) - self.before
        self.source = min(self.before - {leader})
        self.halted = 0
        self.plan_id = ""

    def halt_at(self, place: str, begin: Callable[[], object]) -> None:
        self.failpoint.write_text(failpoints.HALT + place)
        begin()
        mark = self.failpoint.with_name(self.failpoint.name + failpoints.HALTED)
        until(lambda: mark.exists(), f"somebody to get to {place}")
        self.halted = int(mark.read_text())
        mark.unlink()

    def go_on(self) -> None:
        with suppress(ProcessLookupError):  # it is the one who was killed
            os.kill(self.halted, signal.SIGCONT)

    def launch_the_dead(self) -> None:
        for process in (*self.cluster.nodes.values(), *self.cluster.routers):
            if process.exit_code is not None:
                process.launch()
        for member in self.cluster.etcds:
            if not member.is_running:
                member.launch()

    def check(self, load: Load) -> None:
        assert set(self.cluster.shard(0).replicas) == self.before - {self.source} | {self.destination}
        check_all_there(self.cluster.address, load)
        self.cluster.check_hashes()

    def start(self, operator: Client) -> None:
        move = MoveWish(0, self.source, self.destination)
        self.plan_id = operator.start_plan(operator.make_plan(move=move)).id
        is_done(operator, self.plan_id)

    def kill(self, victim: str) -> None:
        if victim == "router":
            self.cluster.routers[0].kill()
        elif victim == "leader of etcd":
            leader_of(self.cluster.etcds).kill()
        else:
            self.cluster.nodes[self.destination if victim == "destination" else self.source].kill()


@all_only
@pytest.mark.parametrize("victim", OTHERS)
@pytest.mark.parametrize("place", EVERYWHERE)
def test_a_move_comes_to_its_end_whoever_else_dies(cluster: MapCluster, place: str, victim: str) -> None:
    move = Move(cluster)
    with Load(cluster.address, f"q-{place}-{victim}".replace(":", "-").replace(" ", "-")) as load:
        until(lambda: len(load.accepted) > 100, "some tasks")
        if place.startswith("snapshot:"):
            cut_the_log(cluster)
        if victim == "operator":
            move_from_terminals(move, place)
        else:
            with Client(cluster.address, timeout_s=DEADLINE_S) as operator:
                move.halt_at(place, lambda: move.start(operator))
                move.kill(victim)
                move.go_on()
                if victim != "leader of etcd":  # two members are enough for all that is left to do
                    move.launch_the_dead()
                until(lambda: is_done(operator, move.plan_id), "the plan to be done")
        move.launch_the_dead()
        cluster.wait_settled()
    move.check(load)


def move_from_terminals(move: Move, place: str) -> None:
    """From one that is killed, and then from another one."""
    command = [sys.executable, "-m", "holdfast.cli", "shard"]
    to = ["--address", move.cluster.address, "--timeout", "30s", "--json"]
    first: list[subprocess.Popen[bytes]] = []

    def begin() -> None:
        arguments = ["move", "0", "--from", move.source, "--to", move.destination]
        first.append(subprocess.Popen([*command, *arguments, *to], stdout=subprocess.DEVNULL))

    move.halt_at(place, begin)
    [terminal] = first
    terminal.kill()
    terminal.wait()
    move.go_on()
    subprocess.run([*command, "apply", "--yes", *to], check=True, timeout=3 * DEADLINE_S, stdout=subprocess.DEVNULL)


@all_only
def test_the_source_stays_until_the_destination_that_died_is_back(cluster: MapCluster) -> None:
    """It has just begun to vote, so all that should do; but a copy that nobody has is none."""
    move = Move(cluster)
    with Load(cluster.address, "q-stays") as load:
        until(lambda: len(load.accepted) > 100, "some tasks")
        with Client(cluster.address, timeout_s=DEADLINE_S) as operator:
            move.halt_at("reconciler:promote_done", lambda: move.start(operator))
            move.kill("destination")
            time.sleep(UNHEARD_S)
            move.go_on()
            cluster.wait_for_leader(0)
            accepted = len(load.accepted)
            until(lambda: len(load.accepted) > accepted + 50, "the shard to go on")
            ends_s = time.monotonic() + WATCH_S
            while time.monotonic() < ends_s:
                is_done(operator, move.plan_id)
                voters = {voter.partition("/")[0] for voter in cluster.shard(0).voters}
                assert voters == move.before | {move.destination}, "a live copy was given up for a dead one"
                time.sleep(0.2)
            assert (0, move.source) in cluster.replicas()
            move.launch_the_dead()
            until(lambda: is_done(operator, move.plan_id), "the plan to be done")
        cluster.wait_settled()
    move.check(load)
