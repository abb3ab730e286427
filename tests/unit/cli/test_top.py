"""`holdfast top`: what is added up, how it is sorted, and what it looks like."""

import time
from typing import Any

import grpc
import pytest

from holdfast.proto.v1 import queues_pb2
from holdfast.proto.v1 import tasks_pb2 as pb
from tests.unit.cli.cli_runner import Cli
from tests.unit.cli.scripted_map import cluster, shard
from tests.unit.client.scripted_server import Refusal

NO_CLUSTER = Refusal(grpc.StatusCode.FAILED_PRECONDITION, "NO_CLUSTER")


def has(cli: Cli, queues: list[pb.QueueCounts], workers: list[queues_pb2.WorkerInfo], **more: Any) -> None:
    cli.server.on("ListQueues", pb.ListQueuesResponse(queues=queues, **more))
    cli.server.on("ListWorkers", queues_pb2.ListWorkersResponse(workers=workers))
    cli.server.on("DescribeCluster", NO_CLUSTER)


QUEUES = [
    pb.QueueCounts(queue="bills", ready=5, claimed=2, dead=9, oldest_ready_age_ms=61_000, succeeded_per_second=1.5),
    pb.QueueCounts(
        queue="mail", ready=70, claimed=3, oldest_claim_age_ms=7_200_000, succeeded_per_second=250.0, paused=True
    ),
    pb.QueueCounts(queue="quiet", enqueued_per_second=0.25),
]  # fmt: skip


@pytest.mark.parametrize(
    ("sort", "order"),
    [
        ("busy", ["mail", "bills", "quiet"]),
        ("oldest", ["mail", "bills", "quiet"]),
        ("rate", ["mail", "bills", "quiet"]),
        ("dead", ["bills", "mail", "quiet"]),
        ("name", ["bills", "mail", "quiet"]),
    ],
)
def test_queues_are_sorted_and_added_up(cli: Cli, sort: str, order: list[str]) -> None:
    has(cli, QUEUES, [])
    seen = cli.json("top", "--once", "--sort", sort)
    assert [queue["queue"] for queue in seen["queues"]] == order
    assert (seen["totals"]["ready"], seen["totals"]["claimed"], seen["totals"]["dead"]) == (75, 5, 9)
    assert seen["totals"]["succeeded_per_second"] == 251.5
    assert (seen["oldest_ready_age_ms"], seen["oldest_claim_age_ms"]) == (61_000, 7_200_000)
    assert seen["cluster"] is None
    assert cli.run("top", "--once", "--limit", "1", "--sort", sort, "--json") == 0
    assert [queue["queue"] for queue in cli.json_out()["queues"]] == order[:1]


def test_one_screen(cli: Cli) -> None:
    now_ms = time.time_ns() // 1_000_000
    busy = [
        queues_pb2.WorkerInfo(
            worker=f"w{number:02d}", state=queues_pb2.WORKER_STATE_RUNNING, slots=4, claims=number, last_seen_ms=now_ms
        )
        for number in range(10)
    ]
    gone = queues_pb2.WorkerInfo(worker="dead\x1b", state=queues_pb2.WORKER_STATE_GONE, claims=1, last_seen_ms=now_ms)
    has(cli, QUEUES, [*busy, gone])
    assert cli.run("top", "--once", "--limit", "2") == 0
    lines = cli.out.splitlines()
    assert "3 queues: 75 ready, 5 claimed, 0 delayed, 0 retrying, 9 dead" in lines[0]
    assert lines[1] == "per second: 0.2 enqueued, 252 succeeded, - failed; oldest ready 1m 1s, oldest claim 2h"
    rows = [line.split() for line in lines]
    assert ["mail", "(paused)", "70", "3", "0", "0", "0", "-", "2h", "-", "250", "-"] in rows
    assert "… and 1 queue more; --limit shows more." in lines
    assert "11 workers with 40 slots, 46 claims" in lines
    first, second = (line for line in lines if line.startswith(("dead", "w09")))
    assert first.startswith("dead\\x1b"), "who wants to be looked at comes first"
    assert second.split()[:4] == ["w09", "running", "9", "4"]
    assert "… and 3 more: `holdfast workers`." in lines


def test_a_cluster_with_a_problem(cli: Cli) -> None:
    has(cli, QUEUES, [], missing_shards=[1])
    cli.server.instead("DescribeCluster", cluster(shard(0), shard(1, leader="")))
    seen = cli.json("top", "--once", code=4)
    assert seen["missing_shards"] == [1]
    assert [problem["shard"] for problem in seen["cluster"]["problems"]] == [1]
    assert cli.run("top", "--once") == 4
    assert "shard 1: no leader" in cli.out
    assert "Shards that did not answer, and are not in the numbers: 1" in cli.out


def test_nothing_at_all(cli: Cli) -> None:
    has(cli, [], [])
    assert cli.run("top", "--once") == 0
    assert "No queue has had a task yet." in cli.out
    assert "No worker has asked for tasks lately." in cli.out


def test_it_looks_again_and_again_and_ends_with_ctrl_c(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    has(cli, QUEUES, [])
    answers = iter([None, None])

    def sleep(seconds: float) -> None:
        assert seconds == 7.0
        if next(answers, "end") == "end":
            raise KeyboardInterrupt

    monkeypatch.setattr("holdfast.cli.commands.repeating.time.sleep", sleep)
    assert cli.run("top", "--json", "--interval", "7s") == 0
    assert len(cli.out.splitlines()) == 3
