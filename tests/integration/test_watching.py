"""What can be watched of a cluster with a router, several shards and real workers."""

import json
import re
import signal
import subprocess
import sys
import urllib.error
import urllib.request
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from holdfast.client import ClaimedTask, Client, Holdfast, NewTask, TaskFilter, TaskState, WorkerInfo, WorkerState
from holdfast.routing.homes import home_shard
from holdfast.routing.task_ids import shard_of_task as shard_of
from tests.acceptance.apps import chores
from tests.acceptance.worker_process import WorkerProcess
from tests.integration.cluster_tools import holdfast
from tests.integration.map_cluster import MapCluster, map_cluster
from tests.integration.map_load import queues_of_all_shards
from tests.integration.server import wait_until
from tests.long import IS_LONG
from tools.manifests.objects import load
from tools.manifests.rendering import RENDERED

SHARDS = 4
LEASE_S = 20.0

MakeWorker = Callable[..., WorkerProcess]


cluster = map_cluster(size=2, shards=SHARDS, replication=1, worker_heartbeat_ms=300)


@pytest.fixture(scope="module")
def app(cluster: MapCluster) -> Iterator[Holdfast]:
    with chores.make_app(cluster.address) as app:
        yield app


@pytest.fixture
def make_worker(cluster: MapCluster, tmp_path: Path) -> Iterator[MakeWorker]:
    with ExitStack() as made:

        def make(queues: list[str], *options: str, **settings: Any) -> WorkerProcess:
            directory = tmp_path / f"worker-{uuid.uuid4().hex}"
            settings |= {"options": ("--json", *options), "lease": LEASE_S}
            return made.enter_context(WorkerProcess(directory, cluster.address, queues, **settings)).start()

        yield make


def get(url: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(url, timeout=20) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with closing(error):
            return error.code, error.read().decode()


def ops_url(worker: WorkerProcess) -> str:
    found = wait_until(lambda: re.findall(r"http://127\.0\.0\.1:\d+", worker.log_text), "the worker's HTTP port")
    return str(found[0])


def metric(url: str, name: str, **labels: str) -> float:
    _, text = get(f"{url}/metrics")
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if sample.name == name and labels.items() <= sample.labels.items():
                return float(sample.value)
    raise AssertionError(f"no {name} with {labels} in:\n{text}")


def lines(worker: WorkerProcess, **wanted: object) -> list[dict[str, Any]]:
    """Of its log, those with these fields."""
    logged = [json.loads(line) for line in worker.log_text.splitlines() if line.startswith("{")]
    return [line for line in logged if wanted.items() <= line.items()]


def holdfast_json(cluster: MapCluster, *arguments: str, exit_code: int = 0) -> Any:
    return holdfast(*arguments, "--address", cluster.address, exit_code=exit_code)


def test_a_worker_shows_its_health_and_what_it_has_done(app: Holdfast, make_worker: MakeWorker, tmp_path: Path) -> None:
    queues = queues_of_all_shards("ops", SHARDS)
    worker = make_worker(queues, "--ops-port", "0", concurrency=8)
    url = ops_url(worker)
    assert get(f"{url}/livez")[0] == 200
    wait_until(lambda: get(f"{url}/readyz")[0] == 200, "the worker to be ready")

    limiter = tmp_path / "limiter"
    held = [app.tasks["wait_at"].options(queue=queue).enqueue(str(limiter)) for queue in queues]
    for queue in queues:
        app.tasks["work"].options(queue=queue).enqueue(0.06).result(timeout=20)
    app.tasks["fail"].options(queue=queues[1]).enqueue(1).result(timeout=20)
    wait_until(lambda: metric(url, "holdfast_worker_running") == SHARDS, "all to run")
    assert metric(url, "holdfast_worker_slots") == 8
    wait_until(
        lambda: metric(url, "holdfast_worker_tasks_total", type="fail", outcome="succeeded") == 1, "the last one"
    )
    assert metric(url, "holdfast_worker_tasks_total", type="work", outcome="succeeded") == SHARDS
    assert metric(url, "holdfast_worker_tasks_total", type="fail", outcome="failed") == 1
    assert metric(url, "holdfast_worker_tasks_claimed_total") == 2 * SHARDS + 2
    assert metric(url, "holdfast_worker_polls_total", result="tasks") > 0
    assert metric(url, "holdfast_worker_task_duration_seconds_count", type="work") == SHARDS
    assert metric(url, "holdfast_worker_task_duration_seconds_bucket", type="work", le="0.05") == 0
    assert metric(url, "holdfast_worker_leases_lost_total") == 0

    worker.signal(signal.SIGTERM)
    wait_until(lambda: get(f"{url}/readyz") == (503, '{"ready": false, "reason": "it stops"}'), "not to be ready")
    assert get(f"{url}/livez")[0] == 200, "it lives until it has ended"
    limiter.touch()
    for handle in held:
        handle.result(timeout=20)
    assert worker.wait_for_exit() == 0
    assert (worker.report.succeeded, worker.report.failed) == (2 * SHARDS + 1, 1)


def test_a_worker_without_a_server_lives_and_is_not_ready(tmp_path: Path, cluster: MapCluster) -> None:
    with WorkerProcess(tmp_path / "w", "127.0.0.1:1", ["default"], options=("--ops-port", "0")) as worker:
        url = ops_url(worker.start())
        assert get(f"{url}/readyz")[0] == 503
        wait_until(lambda: "cannot claim tasks" in get(f"{url}/readyz")[1], "the reason")
        assert get(f"{url}/livez")[0] == 200
        assert metric(url, "holdfast_worker_outages_total", call="claim tasks") == 1


@pytest.mark.parametrize("option", ["--tracebacks", "--no-tracebacks"])
def test_log_lines_of_a_worker_say_which_task_they_are_about(
    app: Holdfast, make_worker: MakeWorker, option: str
) -> None:
    queue = queues_of_all_shards(f"logs{option}", SHARDS)[3]
    worker = make_worker([queue], option, "--log-level", "debug" if option == "--tracebacks" else "info")
    blocking = app.tasks["log_line"].options(queue=queue).enqueue("from a thread")
    asynchronous = app.tasks["log_line_async"].options(queue=queue).enqueue("from a loop")
    failing = app.tasks["fail"].options(queue=queue).enqueue(1, "the printer is on fire")
    for handle in (blocking, asynchronous, failing):
        handle.result(timeout=20)
    worker.stop()
    about = {"queue": queue, "attempt": 1}
    (line,) = lines(worker, event="from a thread", task_id=blocking.id, task_type="log_line", **about)
    assert (line["logger"], line["level"]) == ("chores.log", "info")
    assert len(lines(worker, event="from a loop", task_id=asynchronous.id, task_type="log_line_async")) == 2
    (line,) = lines(worker, level="warning", task_id=failing.id, task_type="fail", **about)
    assert line["error_type"] == "ValueError"
    assert line["duration_ms"] >= 0
    if option == "--tracebacks":
        assert line["exception"].startswith("Traceback (most recent call last):")
        assert line["exception"].endswith("ValueError: the printer is on fire")
        ended = lines(worker, level="debug", task_id=blocking.id)
        assert [("duration_ms" in item) for item in ended] == [False, True], "its begin and its end"
    else:
        assert "printer" not in worker.log_text


# --- lists of tasks ---------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def parked(cluster: MapCluster) -> dict[str, list[str]]:
    """Tasks in all states, of a queue that is spread over all shards and of one at home on each; by state."""
    ids: dict[str, list[str]] = {}
    with Client(cluster.address, timeout_s=20) as client:
        client.set_queue("listed", spread=SHARDS)
        wait_until(lambda: len(_shards_of_probes(client)) == SHARDS, "the queue to be spread")
        client.purge_queue("listed")

        def put(state: str, count: int, **options: Any) -> None:
            for _ in range(count):
                ids.setdefault(state, []).append(client.enqueue(NewTask("listed", "send", **options)).task_id)

        put("SUCCEEDED", 12)
        for claim in _claim(client, 12):
            client.ack(claim)
        put("DEAD", 8)
        for claim in _claim(client, 8):
            client.fail(claim, dead=True)
        put("CLAIMED", 20, tenant="acme")
        _claim(client, 20)
        put("DELAYED", 9, delay_ms=3_600_000)
        put("READY", 30, tenant="acme")
        put("READY", 30, priority=8)
    return ids


def _claim(client: Client, count: int) -> list[ClaimedTask]:
    """For longer than the tests take."""
    claims: list[ClaimedTask] = []
    while len(claims) < count:
        claims += client.reserve(["listed"], max_tasks=count, worker="w", lease_ms=600_000, wait_ms=1000)
    return claims


def _shards_of_probes(client: Client) -> set[int | None]:
    """Shards take turns, call by call."""
    return {shard_of(client.enqueue(NewTask("listed", "probe")).task_id) for _ in range(2 * SHARDS)}


@pytest.mark.parametrize("direct", [False, True], ids=["router", "direct"])
@pytest.mark.parametrize("page_size", [3, 1000])
def test_every_task_is_listed_once(
    cluster: MapCluster, parked: dict[str, list[str]], direct: bool, page_size: int
) -> None:
    with Client(cluster.address, timeout_s=20, direct=direct) as client:
        for state, ids in parked.items():
            where = TaskFilter(states=[TaskState(state)], type="send")
            found = list(client.iter_tasks("listed", where=where, page_size=page_size))
            assert sorted(item.task_id for item in found) == sorted(ids)
            assert {item.state for item in found} == {TaskState(state)}
        assert all(item.task is None and item.result is None for item in found)
        everywhere = [task.task_id for task in client.iter_tasks(where=TaskFilter(type="send"), page_size=page_size)]
        assert sorted(everywhere) == sorted(chain.from_iterable(parked.values())), "without the name of the queue"
        where = TaskFilter(states=[TaskState.READY, TaskState.CLAIMED], tenant="acme")
        assert sum(1 for _ in client.iter_tasks("listed", where=where)) == 50
        assert list(client.iter_tasks("listed", where=TaskFilter(min_age_ms=3_600_000))) == []


def test_the_commands_list_tasks_and_claims(cluster: MapCluster, parked: dict[str, list[str]]) -> None:
    listed = holdfast_json(cluster, "task", "ls", "listed", "--state", "ready", "--tenant", "acme")
    assert (len(listed["tasks"]), listed["more"]) == (30, False)
    ids: list[str] = []
    page = ["--limit", "7"]
    while True:
        part = holdfast_json(cluster, "task", "ls", "listed", "--state", "ready", "--tenant", "acme", *page)
        assert len(part["tasks"]) <= 7
        ids += [task["task_id"] for task in part["tasks"]]
        if not part["more"]:
            break
        page = ["--limit", "7", "--after", part["next_page_token"]]
    assert ids == [task["task_id"] for task in listed["tasks"]], "page by page, over shards"
    claims = holdfast_json(cluster, "claims", "listed", "--limit", "5")
    assert (len(claims["claims"]), claims["total"], claims["more"]) == (5, 20, True)
    ages = [claim["held_for_ms"] for claim in claims["claims"]]
    assert ages == sorted(ages, reverse=True)
    assert {claim["worker"] for claim in claims["claims"]} == {"w"}


def test_the_age_of_the_oldest_claim_is_told(cluster: MapCluster, parked: dict[str, list[str]]) -> None:
    with Client(cluster.address, timeout_s=20) as client:
        (oldest, *_) = holdfast_json(cluster, "claims", "listed", "--limit", "1")["claims"]
        wait_until(lambda: client.queue_stats("listed").oldest_claim_age_ms >= oldest["held_for_ms"], "its age")
        scraped = [
            metric(f"http://127.0.0.1:{node.ops_port}", "holdfast_queue_oldest_claim_seconds", queue="listed")
            for node in cluster.nodes.values()
        ]
        assert max(scraped) * 1000 >= oldest["held_for_ms"]


# --- workers ----------------------------------------------------------------------------------------------------------


def workers_of(cluster: MapCluster, *, direct: bool = False) -> dict[str, WorkerInfo]:
    with Client(cluster.address, timeout_s=20, direct=direct) as client:
        return {worker.worker: worker for worker in client.list_workers(page_size=1000).workers}


def test_workers_are_listed_with_state_slots_and_version(cluster: MapCluster, make_worker: MakeWorker) -> None:
    queues = queues_of_all_shards("state", SHARDS)
    homes = {home_shard(f"state-{number}", SHARDS): f"state-{number}" for number in range(50)}
    names = [homes[shard] for shard in (0, 1, SHARDS - 1)]  # at home on several shards, of both nodes
    workers = [make_worker(queues, "--name", name, concurrency=3) for name in names]
    for direct in (False, True):
        wait_until(lambda: workers_of(cluster).keys() >= set(names), "the workers in the list")
        listed = workers_of(cluster, direct=direct)
        for name in names:
            found = listed[name]
            assert (found.state, found.slots, found.desired) == (WorkerState.RUNNING, 3, None)
            assert found.version
            assert set(found.queues) == set(queues)
    workers[0].stop()
    for direct in (False, True):
        listed = workers_of(cluster, direct=direct)
        assert names[0] not in listed, "it leaves the list at once"
        assert names[1] in listed


@pytest.mark.skipif(not IS_LONG, reason="takes longer than a minute")
def test_a_killed_worker_leaves_the_list_although_who_had_its_heartbeats_is_lost_too(
    cluster: MapCluster, make_worker: MakeWorker
) -> None:
    """The leader that comes next has heard of no worker; those of the other shards have, but not of its state."""
    lost = {shard.shard for shard in cluster.info().shards if shard.replicas == ("n2",)}
    name = next(name for name in (f"left-{number}" for number in range(50)) if home_shard(name, SHARDS) in lost)
    worker = make_worker(queues_of_all_shards("left", SHARDS), "--name", name)
    wait_until(lambda: name in workers_of(cluster), "the worker in the list")
    worker.signal(signal.SIGKILL)
    worker.wait_for_exit()
    cluster.nodes["n2"].kill()
    cluster.nodes["n2"].start()
    cluster.wait_settled()
    assert workers_of(cluster)[name].state is WorkerState.UNKNOWN
    wait_until(lambda: name not in workers_of(cluster), "the worker to leave the list", deadline_s=90)
    wait_until(lambda: name not in workers_of(cluster, direct=True), "the same for who asks the brokers")


def test_a_worker_is_quiet_goes_on_and_stops_as_it_is_told(
    app: Holdfast, cluster: MapCluster, make_worker: MakeWorker, tmp_path: Path
) -> None:
    queues = queues_of_all_shards("signals", SHARDS)
    worker = make_worker(queues, "--name", "signalled", "--ops-port", "0", concurrency=4)
    url = ops_url(worker)
    limiter = tmp_path / "limiter"
    held = app.tasks["wait_at"].options(queue=queues[0]).enqueue(str(limiter))
    wait_until(lambda: held.status() == "CLAIMED", "a task to run")
    done = holdfast_json(cluster, "workers", "quiet", "signalled")
    assert done == {"workers": ["signalled"], "state": "QUIET"}
    assert "it is quiet" in get(f"{url}/readyz")[1]
    waiting = [app.tasks["echo"].options(queue=queue).enqueue(1) for queue in queues]
    limiter.touch()
    held.result(timeout=20)  # what it has goes on
    done = holdfast_json(cluster, "workers", "quiet", "signalled", "--drain")
    assert done == {"workers": ["signalled"], "state": "DRAINED"}
    with Client(cluster.address, timeout_s=20) as client:
        (found,) = (worker for worker in client.list_workers().workers if worker.worker == "signalled")
        assert (found.state, found.claims) == (WorkerState.DRAINED, 0)
        assert all(client.get_task(handle.id).state is TaskState.READY for handle in waiting)
    holdfast_json(cluster, "workers", "resume", "signalled")
    for handle in waiting:
        handle.result(timeout=20)
    holdfast_json(cluster, "workers", "stop", "signalled")
    assert worker.wait_for_exit() == 0
    assert worker.report.succeeded == 1 + SHARDS
    assert "signalled" not in workers_of(cluster)


def test_the_hook_of_the_example_lets_a_worker_finish_what_it_has(
    app: Holdfast, cluster: MapCluster, make_worker: MakeWorker, tmp_path: Path
) -> None:
    """As the kubelet stops its pod: preStop, to its end, and then SIGTERM."""
    example = load((RENDERED / "example.yaml").read_text()).find("Deployment", "shop-worker")
    assert example is not None
    hook = example.containers[-1].pre_stop["exec"]["command"]
    queues = queues_of_all_shards("hooked", SHARDS)
    worker = make_worker(queues, "--name", "shop-worker-x1", "--ops-port", "0", concurrency=4, grace=1.0)
    limiter = tmp_path / "limiter"
    held = [app.tasks["wait_at"].options(queue=queue).enqueue(str(limiter)) for queue in queues[:2]]
    wait_until(lambda: all(item.status() == "CLAIMED" for item in held), "both tasks to run")
    path = f"{Path(sys.executable).parent}:/usr/bin:/bin"
    environment = {"PATH": path, "POD_NAME": "shop-worker-x1", "HOLDFAST_ADDRESS": cluster.address}
    with subprocess.Popen(hook, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as running:
        wait_until(lambda: "it is quiet" in get(f"{ops_url(worker)}/readyz")[1], "the worker to be quiet")
        later = app.tasks["echo"].options(queue=queues[2]).enqueue(1)
        assert running.poll() is None, "it waits for what the worker has"
        limiter.touch()
        said, _ = running.communicate(timeout=30)
        assert running.returncode == 0, said
    assert [item.status() for item in held] == ["SUCCEEDED", "SUCCEEDED"]
    worker.signal(signal.SIGTERM)
    assert worker.wait_for_exit() == 0
    assert (worker.report.succeeded, worker.report.released) == (2, 0)
    assert later.status() == "READY", "it is for another worker"


def test_a_dead_worker_holds_its_tasks_until_their_leases_end(
    app: Holdfast, cluster: MapCluster, make_worker: MakeWorker
) -> None:
    """And leaves the list a minute later."""
    queue = queues_of_all_shards("killed", SHARDS)[2]
    worker = make_worker([queue], "--name", "killed")
    held = app.tasks["wait_at"].options(queue=queue).enqueue("/nowhere")
    wait_until(lambda: held.status() == "CLAIMED", "a task to run")
    worker.signal(signal.SIGKILL)
    worker.wait_for_exit()
    assert workers_of(cluster)["killed"].claims == 1
    if IS_LONG:
        idle = make_worker([queue], "--name", "idle")
        idle.signal(signal.SIGKILL)
        wait_until(lambda: not {"killed", "idle"} & workers_of(cluster).keys(), "both to leave", deadline_s=70)


# --- everything at one look -------------------------------------------------------------------------------------------


def test_top_tells_of_queues_workers_and_shards(
    cluster: MapCluster, make_worker: MakeWorker, parked: dict[str, list[str]]
) -> None:
    make_worker(["top"], "--name", "topped", concurrency=7)
    wait_until(lambda: "topped" in workers_of(cluster), "the worker in the list")
    seen = holdfast_json(cluster, "top", "--once", "--sort", "dead", "--limit", "1")
    (queue,) = seen["queues"]
    assert (queue["queue"], queue["dead"], queue["claimed"]) == ("listed", len(parked["DEAD"]), len(parked["CLAIMED"]))
    assert seen["totals"]["dead"] >= queue["dead"]
    assert seen["totals"]["queues"] > 1
    assert seen["workers"]["states"]["RUNNING"] >= 1
    assert seen["workers"]["slots"] >= 7
    about_the_map = {"is_last_known": False, "age_ms": seen["cluster"]["age_ms"]}
    assert seen["cluster"] == {"nodes": 2, "nodes_alive": 2, "shards": SHARDS, "problems": [], **about_the_map}
    assert seen["missing_shards"] == []


def test_lists_without_the_tasks_of_a_node_that_stands_still(cluster: MapCluster, app: Holdfast) -> None:
    queues = queues_of_all_shards("listed-in-part", SHARDS)
    with Client(cluster.address) as client:
        there = {shard_of(client.enqueue(NewTask(queue, "t")).task_id) for queue in queues}
    assert there == set(range(SHARDS))
    lost = {shard.shard for shard in cluster.info().shards if shard.replicas == ("n2",)}
    assert 0 < len(lost) < SHARDS
    cluster.nodes["n2"].pause()
    try:
        options = ("--type", "t", "--timeout", "1s")
        seen = holdfast_json(cluster, "task", "ls", "--state", "ready", *options, exit_code=4)
        claims = holdfast_json(cluster, "claims", *options[2:], exit_code=4)
    finally:
        cluster.nodes["n2"].resume()
    assert set(seen["missing_shards"]) == set(claims["missing_shards"]) == lost
    assert {shard_of(task["task_id"]) for task in seen["tasks"]} == there - lost
    again = holdfast_json(cluster, "task", "ls", "--state", "ready", "--type", "t")
    assert {shard_of(task["task_id"]) for task in again["tasks"]} == there
