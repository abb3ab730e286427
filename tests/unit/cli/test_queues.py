"""`queue stats` of all queues and with --watch, `queue purge`, `queue pause|resume` and `workers`."""

import io
import json
import sys
import time
from typing import Any

import grpc
import pytest

from holdfast.cli import calls
from holdfast.proto.v1 import cluster_pb2, queues_pb2
from holdfast.proto.v1 import tasks_pb2 as pb
from tests.unit.cli.cli_runner import Cli
from tests.unit.cli.scripted_map import cluster, shard
from tests.unit.client.scripted_server import Refusal


def counts(name: str, **numbers: Any) -> pb.QueueStatsOutcome:
    return pb.QueueStatsOutcome(counts=pb.QueueCounts(queue=name, **numbers))


def has_queues(cli: Cli, names: list[str]) -> None:
    cli.server.on("ListQueues", pb.ListQueuesResponse(queues=[pb.QueueCounts(queue=name) for name in names]))
    cli.server.on(
        "QueueStats", lambda request: pb.QueueStatsResponse(outcomes=[counts(name, ready=7) for name in request.queues])
    )


# ------------------------------------------------------------------------------------------------------------ stats


def test_stats_without_names_are_those_of_all_queues(cli: Cli) -> None:
    has_queues(cli, ["mail", "math"])
    assert cli.run("queue", "stats", "--json") == 0
    assert [(queue["queue"], queue["ready"]) for queue in cli.json_out()["queues"]] == [("mail", 7), ("math", 7)]


def test_stats_of_very_many_queues_are_the_list_of_them(cli: Cli) -> None:
    has_queues(cli, [f"q{number}" for number in range(101)])
    assert len(cli.json("queue", "stats")["queues"]) == 101
    assert "QueueStats" not in cli.server.requests, "a call for latencies of them all would be a large one"


def test_a_list_names_the_shards_that_are_missing(cli: Cli) -> None:
    cli.server.on("ListQueues", pb.ListQueuesResponse(queues=[pb.QueueCounts(queue="a")], missing_shards=[7]))
    found = [queues_pb2.WorkerInfo(worker="w")]
    cli.server.on("ListWorkers", queues_pb2.ListWorkersResponse(workers=found, missing_shards=[7, 9]))
    for command, named in ((("queue", "ls"), [7]), (("workers",), [7, 9])):
        assert cli.json(*command, code=4)["missing_shards"] == named
        assert cli.run(*command) == 4
        assert f"Shard{'s' * (len(named) > 1)} {', '.join(map(str, named))} did not answer" in cli.err
    for method in ("ListQueues", "ListWorkers"):
        assert all(request.partial for request in cli.server.requests[method]), "or the whole list would be refused"


def test_tasks_of_a_shard_that_does_not_answer_are_missing_in_the_numbers(cli: Cli) -> None:
    cli.server.on("DescribeCluster", cluster(shard(), shard(1), shard(2)))
    first = pb.ListQueuesResponse(
        queues=[pb.QueueCounts(queue="a", ready=2)], next_page_token="a", missing_shards=[2]
    )  # fmt: skip
    last = pb.ListQueuesResponse(queues=[pb.QueueCounts(queue="b", dead=1)], missing_shards=[1, 2])
    cli.server.on("ListQueues", lambda request: last if request.page_token else first)
    assert cli.run("cluster", "status") == 4
    assert "2 unfinished in 2 queues" in cli.out
    assert "1 dead (without shards 1, 2)" in cli.out
    assert "Shards 1, 2 did not answer: what is there is not in the numbers." in cli.err
    assert all(request.partial for request in cli.server.requests["ListQueues"])
    assert cli.json("cluster", "status", code=4)["tasks"]["missing_shards"] == [1, 2]
    assert cli.json_out()["healthy"] is False


def test_stats_where_there_is_no_queue(cli: Cli) -> None:
    has_queues(cli, [])
    assert cli.run("queue", "stats") == 0
    assert cli.out.startswith("There are no queues yet")


def test_only_the_types_that_are_claimed_most_often_fit_on_the_screen(cli: Cli) -> None:
    latencies = [pb.TypeLatency(type=f"type-{number}", ready_to_claim=[number]) for number in range(1, 31)]
    cli.server.on("QueueStats", pb.QueueStatsResponse(outcomes=[counts("mail", latencies=latencies)]))
    assert cli.run("queue", "stats", "mail") == 0
    shown = [line.split()[1] for line in cli.out.splitlines() if " type-" in line]
    assert shown == [f"type-{number}" for number in range(11, 31)]
    assert "… and 10 types that are claimed less often." in cli.out


def test_watch_goes_on_when_the_server_is_away_for_a_moment(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    away = Refusal(grpc.StatusCode.UNAVAILABLE)
    polls = [pb.QueueStatsResponse(outcomes=[counts("mail", ready=number)]) for number in (1, 2)]
    cli.server.on("QueueStats", polls[0], away, polls[1])
    pauses = 0

    def pause(seconds: float) -> None:
        nonlocal pauses
        pauses += 1
        if pauses == 3:
            raise KeyboardInterrupt

    monkeypatch.setattr("holdfast.cli.commands.repeating.time.sleep", pause)
    assert cli.run("queue", "stats", "mail", "--watch", "--json") == 0, "Ctrl-C is its usual end"
    assert [json.loads(line)["queues"][0]["ready"] for line in cli.out.splitlines()] == [1, 2]
    assert cli.json_err()["error"]["reason"] == "CONNECTION_FAILED"


def test_watch_at_a_terminal_says_what_is_not_there(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    missing = pb.QueueStatsOutcome(rejection=pb.Rejection(reason="QUEUE_NOT_FOUND", message="There is none."))
    cli.server.on("QueueStats", pb.QueueStatsResponse(outcomes=[counts("mail", ready=1_234), missing]))
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")

    def interrupted(seconds: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("holdfast.cli.commands.repeating.time.sleep", interrupted)
    assert cli.run("queue", "stats", "mail", "nope", "-w") == 0
    assert "1,234" in cli.out
    assert "Not there: nope." in cli.out


# ------------------------------------------------------------------------------------------------------------ purge


def to_purge(cli: Cli, *pages: int, then: Refusal | None = None) -> None:
    cli.server.on(
        "QueueStats", pb.QueueStatsResponse(outcomes=[counts("mail", ready=5, delayed=3, retrying=2, dead=9)])
    )
    last = -1 if then else len(pages) - 1
    found: list[queues_pb2.PurgeQueueResponse | Refusal] = [
        queues_pb2.PurgeQueueResponse(purged=purged, next_page_token="" if index == last else f"p{index}")
        for index, purged in enumerate(pages)
    ]
    cli.server.on("PurgeQueue", *found, *([then] if then else []))


def test_purge_asks_first_and_goes_through_all_pages(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    to_purge(cli, 4, 0, 6)
    for answer, code in (("n", 1), ("y", 0)):
        monkeypatch.setattr("sys.stdin", io.StringIO(f"{answer}\n"))
        monkeypatch.setattr("sys.stdin.isatty", lambda: True)
        assert cli.run("queue", "purge", "mail") == code
        assert "Cancel all 10 waiting tasks of queue mail? There is no way back." in cli.err
        assert len(cli.server.requests["PurgeQueue"]) == (0 if code else 3)
    assert cli.out == "10 waiting tasks of queue mail cancelled.\n"
    assert [request.page_token for request in cli.server.requests["PurgeQueue"]] == ["", "p0", "p1"]


def test_purge_where_nobody_can_be_asked_needs_a_yes(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    to_purge(cli, 10)
    monkeypatch.setattr("sys.stdin", io.StringIO("y\n"))
    assert cli.run("queue", "purge", "mail") == 2
    assert "Expected --yes to cancel all 10 waiting tasks of queue mail" in cli.err
    assert not cli.server.requests["PurgeQueue"]
    assert cli.run("queue", "purge", "mail", "--yes", "--json") == 0
    assert cli.json_out() == {"queue": "mail", "purged": 10, "found": 10, "dry_run": False}


def test_a_dry_run_of_a_purge_only_counts(cli: Cli) -> None:
    to_purge(cli, 10)
    assert cli.run("queue", "purge", "mail", "--dry-run") == 0
    assert cli.out == "10 waiting tasks of queue mail would be cancelled.\n"
    assert cli.run("queue", "purge", "mail", "--dry-run", "--json") == 0
    assert cli.json_out() == {"queue": "mail", "purged": 0, "found": 10, "dry_run": True}
    assert all(request.dry_run for request in cli.server.requests["PurgeQueue"])


def test_purge_says_how_far_it_got(cli: Cli) -> None:
    to_purge(cli, 4, then=Refusal(grpc.StatusCode.INTERNAL, "INTERNAL", "It broke."))
    assert cli.json("queue", "purge", "mail", "--yes", code=1)["purged"] == 4
    assert cli.json_err()["error"]["reason"] == "INTERNAL"


def test_purge_of_an_unknown_queue(cli: Cli) -> None:
    missing = pb.QueueStatsOutcome(rejection=pb.Rejection(reason="QUEUE_NOT_FOUND", message="There is none."))
    cli.server.on("QueueStats", pb.QueueStatsResponse(outcomes=[missing]))
    assert cli.run("queue", "purge", "mial", "--yes") == 5
    assert "holdfast queue ls" in cli.err


# ----------------------------------------------------------------------------------------------------------- pause


def test_pause_and_resume(cli: Cli) -> None:
    def answer(request: cluster_pb2.SetQueueRequest) -> cluster_pb2.SetQueueResponse:
        settings = cluster_pb2.QueueSettings(route=cluster_pb2.QueueRoute(queue=request.queue), policy=request.policy)
        return cluster_pb2.SetQueueResponse(settings=settings)

    cli.server.on("SetQueue", answer)
    missing = pb.QueueStatsOutcome(rejection=pb.Rejection(reason="QUEUE_NOT_FOUND", message="There is none."))
    away = Refusal(grpc.StatusCode.UNAVAILABLE)
    known = pb.QueueStatsResponse(outcomes=[counts("mail")])
    cli.server.on("QueueStats", known, pb.QueueStatsResponse(outcomes=[missing]), away)
    assert cli.run("queue", "pause", "mail") == 0
    assert cli.out == "Queue mail is paused: nothing is handed out until `holdfast queue resume mail`.\n"
    assert cli.err == ""
    assert cli.run("queue", "resume", "mial") == 0
    assert "check the name with `holdfast queue ls`" in cli.err, "a slip of the pen is told"
    assert cli.run("queue", "pause", "mail", "--json") == 0, "whatever becomes of the second question"
    assert cli.json_out()["policy"] == {"paused": True}
    assert [request.policy.paused for request in cli.server.requests["SetQueue"]] == [True, False, True]


# --------------------------------------------------------------------------------------------------------- workers


def test_workers_shows_who_is_there(cli: Cli) -> None:
    now_ms = time.time_ns() // 1_000_000
    first = [
        queues_pb2.WorkerInfo(worker="w\x1b1", claims=1_234, last_seen_ms=now_ms - 5_410_000, queues=["mail", "math"]),
        queues_pb2.WorkerInfo(worker="w2", last_seen_ms=now_ms + 5_000, is_waiting=True),
    ]
    quiet, stopping = queues_pb2.WORKER_STATE_QUIET, queues_pb2.WORKER_STATE_STOPPING
    second = [
        queues_pb2.WorkerInfo(worker="w3", claims=1, state=quiet, slots=8, version="1.2", desired=stopping)
    ]  # fmt: skip
    cli.server.on(
        "ListWorkers",
        lambda request: (
            queues_pb2.ListWorkersResponse(workers=second)
            if request.page_token
            else queues_pb2.ListWorkersResponse(workers=first, next_page_token="more")
        ),
    )
    assert cli.run("workers") == 0
    header, _, *rows = cli.out.splitlines()
    assert header.split() == ["worker", "state", "claims", "slots", "seen", "version", "queues"]
    assert rows[0].split() == ["w\\x1b1", "works", "1,234", "-", "1h", "30m", "ago", "-", "mail,", "math"]
    assert rows[1].split() == ["w2", "waits", "0", "-", "now", "-", "-"], "the clock of the server may be ahead"
    assert rows[2].split() == ["w3", "quiet", "(asked:", "stopping)", "1", "8", "not", "yet", "1.2", "-"]
    printed = cli.json("workers", "-n", "2")
    assert printed["more"] is True
    assert printed["workers"][1] == {
        "worker": "w2", "claims": 0, "last_seen_ms": now_ms + 5_000, "queues": [], "is_waiting": True,
        "state": "UNKNOWN", "slots": 0, "version": "", "desired": None,
    }  # fmt: skip
    assert cli.json("workers", "ls", "-n", "2") == printed


def test_a_worker_is_asked_until_it_has_heard_of_it(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calls, "SIGNAL_AGAIN_S", 0.01)
    running, quiet = queues_pb2.WORKER_STATE_RUNNING, queues_pb2.WORKER_STATE_QUIET
    answers = [queues_pb2.SignalWorkerResponse(state=state) for state in (running, running, quiet)]
    cli.server.on("SignalWorker", *answers)
    assert cli.run("workers", "quiet", "w1") == 0
    assert cli.out == "Worker w1 is quiet: it claims no more tasks.\n"
    wanted = queues_pb2.SignalWorkerRequest(worker="w1", desired=quiet)
    assert cli.server.requests["SignalWorker"] == [wanted] * 3
    cli.server.on("SignalWorker", queues_pb2.SignalWorkerResponse(state=running))
    assert cli.json("workers", "resume", "w1", "w2", "w1") == {"workers": ["w1", "w2"], "state": "RUNNING"}
    assert cli.json_error("workers", "stop", "w1", "--wait", "50ms", code=7)["error"]["reason"] == "UNFINISHED"


def test_a_worker_is_asked_until_it_has_nothing_left(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calls, "SIGNAL_AGAIN_S", 0.01)
    quiet, drained = queues_pb2.WORKER_STATE_QUIET, queues_pb2.WORKER_STATE_DRAINED
    cli.server.on("SignalWorker", queues_pb2.SignalWorkerResponse(state=quiet))
    assert cli.run("workers", "quiet", "w1", "--drain", "--wait", "50ms") == 7
    assert "Worker w1 is not drained within 0.05 s." in cli.err
    cli.server.on("SignalWorker", queues_pb2.SignalWorkerResponse(state=drained))
    assert cli.run("workers", "quiet", "w1", "--drain") == 0
    assert cli.out == "Worker w1 is drained: it claims no more tasks, and has none left.\n"
    asked = cli.server.requests["SignalWorker"]
    assert all(item == queues_pb2.SignalWorkerRequest(worker="w1", desired=quiet) for item in asked)
    assert cli.run("workers", "quiet", "w1", "--json") == 0, "one with nothing left is quiet, too"
    assert cli.json_out() == {"workers": ["w1"], "state": "QUIET"}


def test_a_worker_that_is_to_stop_may_be_gone_soon(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calls, "SIGNAL_AGAIN_S", 0.01)
    gone = Refusal(grpc.StatusCode.NOT_FOUND, "WORKER_NOT_FOUND")
    cli.server.on("SignalWorker", queues_pb2.SignalWorkerResponse(state=queues_pb2.WORKER_STATE_RUNNING), gone)
    assert cli.run("workers", "stop", "w1") == 0
    assert cli.run("workers", "stop", "nobody") == 5
    assert "`holdfast workers` shows who works here" in cli.err


def test_options_of_the_list_are_not_lost_on_its_commands(cli: Cli) -> None:
    """They would look as if they counted."""
    assert cli.run("workers", "--json", "quiet", "w1") == 2
    assert "SignalWorker" not in cli.server.requests


def test_workers_where_nobody_is(cli: Cli) -> None:
    cli.server.on("ListWorkers", queues_pb2.ListWorkersResponse())
    assert cli.run("workers") == 0
    assert "holdfast worker tasks:app" in cli.out


@pytest.mark.parametrize(("dead", "words"), [(1, "has 1 dead letter, an alert"), (2, "has 2 dead letters, an alert")])
def test_an_alert_counts_in_words_that_fit(cli: Cli, dead: int, words: str) -> None:
    cli.server.on("QueueStats", pb.QueueStatsResponse(outcomes=[counts("mail", dead=dead, dead_alert=True)]))
    assert cli.run("queue", "stats", "mail") == 0
    assert f"Queue mail {words}" in " ".join(cli.out.split())
