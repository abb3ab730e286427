"""`holdfast task ls` and `holdfast claims`: which tasks are asked for, and how they are shown."""

import time
from typing import Any

import pytest

from holdfast.proto.v1 import queues_pb2
from holdfast.proto.v1 import tasks_pb2 as pb
from tests.unit.cli.cli_runner import Cli


def task(number: int, **fields: Any) -> pb.TaskInfo:
    now_ms = time.time_ns() // 1_000_000
    values: dict[str, Any] = {
        "state": pb.TASK_STATE_READY, "queue": "mail", "type": "send", "enqueued_at_ms": now_ms - 90_000,
        "changed_at_ms": now_ms - 61_000, "max_attempts": 3,
    }  # fmt: skip
    return pb.TaskInfo(task_id=f"01984f6e-0000-8000-8000-{number:012d}", **(values | fields))


def has_pages(cli: Cli, *pages: list[pb.TaskInfo]) -> None:
    def answer(request: Any) -> queues_pb2.ListTasksResponse:
        index = int(request.page_token or 0)
        token = str(index + 1) if index + 1 < len(pages) else ""
        return queues_pb2.ListTasksResponse(tasks=pages[index][: request.page_size], next_page_token=token)

    cli.server.on("ListTasks", answer)


def test_the_filter_is_what_was_given(cli: Cli) -> None:
    has_pages(cli, [])
    options = ["--state", "ready", "-s", "retry-pending", "--type", "send", "--tenant", "acme", "--worker", "w"]
    assert cli.run("task", "ls", *options, "--min-age", "10m", "--limit", "7") == 0
    wanted = queues_pb2.TaskFilter(
        states=[pb.TASK_STATE_READY, pb.TASK_STATE_RETRY_PENDING], type="send", tenant="acme", worker="w",
        min_age_ms=600_000,
    )  # fmt: skip
    assert cli.server.requests["ListTasks"] == [queues_pb2.ListTasksRequest(filter=wanted, page_size=7, partial=True)]
    assert cli.out == "There is no task that fits.\n"


@pytest.mark.parametrize("command", [("task", "ls"), ("claims",)])
def test_shards_that_do_not_answer_are_named(cli: Cli, command: tuple[str, ...]) -> None:
    def has(tasks: list[pb.TaskInfo]) -> None:
        first = queues_pb2.ListTasksResponse(tasks=tasks, next_page_token="4.", missing_shards=[3])
        last = queues_pb2.ListTasksResponse(missing_shards=[9])
        cli.server.instead("ListTasks", lambda request: last if request.page_token else first)

    has([task(1, state=pb.TASK_STATE_CLAIMED, worker="w")])
    value = cli.json(*command, code=4)
    assert (len(value.get("tasks") or value["claims"]), value["missing_shards"]) == (1, [3, 9])
    assert cli.run(*command) == 4
    assert "Shards 3, 9 did not answer: what is there is not in the list." in cli.err
    assert all(request.partial for request in cli.server.requests["ListTasks"])
    has([])
    assert cli.run(*command) == 4
    assert cli.out == "", "whether there is a task nobody knows"


def test_pages_are_read_until_there_are_enough(cli: Cli) -> None:
    has_pages(cli, [task(1)], [], [task(2, worker="w\x1b1", tenant="acme")], [task(3)])
    assert cli.run("task", "ls", "mail", "--limit", "2") == 0
    header, _, *rows = cli.out.splitlines()
    assert header.split() == ["task", "queue", "type", "state", "age", "in", "state", "failed", "worker", "tenant"]
    assert len(rows) == 2
    assert "READY" in rows[0]
    assert "1m 30s" in rows[0]
    assert "0/3" in rows[0]
    assert "w\\x1b1" in rows[1], "names are made harmless"
    assert "There may be more; the next page:  --after 3" in cli.err
    printed = cli.json("task", "ls", "mail")
    assert (printed["queue"], printed["more"], len(printed["tasks"])) == ("mail", False, 3)
    assert printed["next_page_token"] is None
    assert printed["tasks"][1]["worker"] == "w\x1b1"
    assert not {"payload", "result", "last_error"} & printed["tasks"][0].keys()


def test_a_list_goes_on_after_the_token_that_it_ended_with(cli: Cli) -> None:
    has_pages(cli, [task(1)], [], [task(2)], [task(3)])
    seen: list[str] = []
    token: list[str] = []
    for more in (True, True, False):
        page = cli.json("task", "ls", "mail", "--limit", "1", *token)
        assert page["more"] is more
        seen += [item["task_id"] for item in page["tasks"]]
        token = ["--after", page["next_page_token"]]
    assert seen == [task(number).task_id for number in (1, 2, 3)]
    assert [request.page_token for request in cli.server.requests["ListTasks"]] == ["", "1", "2", "3"]


def test_nothing_follows_the_last_task(cli: Cli) -> None:
    has_pages(cli, [task(1)], [])
    counts = pb.QueueStatsOutcome(counts=pb.QueueCounts(queue="mail"))
    cli.server.on("QueueStats", pb.QueueStatsResponse(outcomes=[counts]))
    assert cli.run("task", "ls", "mail", "--after", "1") == 0
    assert cli.out == "There is no further task in queue mail.\n"


def test_a_queue_that_never_was(cli: Cli) -> None:
    has_pages(cli, [])
    unknown = pb.Rejection(reason="QUEUE_NOT_FOUND", message="Expected a queue.")
    cli.server.on("QueueStats", pb.QueueStatsResponse(outcomes=[pb.QueueStatsOutcome(rejection=unknown)]))
    assert cli.run("task", "ls", "nope") == 5


@pytest.mark.parametrize(
    "arguments",
    [["--state", "asleep"], ["--min-age", "soon"], ["--worker", ""], [""], ["--limit", "0"], ["--after", ""]],
)
def test_wrong_usage(cli: Cli, arguments: list[str]) -> None:
    assert cli.run("task", "ls", *arguments) == 2


def test_claims_are_shown_by_how_long_they_are_held(cli: Cli) -> None:
    now_ms = time.time_ns() // 1_000_000
    claimed = {"state": pb.TASK_STATE_CLAIMED, "lease_expires_at_ms": now_ms + 30_500}
    young = task(1, changed_at_ms=now_ms - 5_000, worker="w1", **claimed)
    old = task(2, changed_at_ms=now_ms - 7_200_000, worker="w2", queue="reports", cancel_requested=True, **claimed)
    middle = task(3, changed_at_ms=now_ms - 60_000, worker="w3", suspect=True, **claimed)
    has_pages(cli, [young, middle], [old, young])
    assert cli.run("claims") == 0
    _, _, first, second, third = cli.out.splitlines()
    assert first.split()[:4] == ["2h", "w2", "reports", "send"]
    assert "cancelled" in first
    assert second.split()[:3] == ["1m", "w3", "mail"]
    assert "alone" in second
    assert "w1" in third
    (request, *_) = cli.server.requests["ListTasks"]
    assert list(request.filter.states) == [pb.TASK_STATE_CLAIMED]

    printed = cli.json("claims", "mail", "other", "--limit", "1")
    assert [claim["worker"] for claim in printed["claims"]] == ["w3"]
    assert (printed["total"], printed["more"]) == (2, True)
    assert printed["claims"][0]["held_for_ms"] >= 60_000

    assert cli.run("claims", "mail") == 0
    assert cli.server.requests["ListTasks"][-1].queue == "mail"


def test_no_claims(cli: Cli) -> None:
    has_pages(cli, [])
    assert cli.run("claims") == 0
    assert cli.out == "No worker holds a task.\n"
