"""`task wait`, `task cancel`, `enqueue --wait`, `queue ls` and the completion of queue names."""

import os
import re
import signal
import sys
import threading

import grpc
import pytest

from holdfast.cli.main import main
from holdfast.proto.v1 import tasks_pb2 as pb
from tests.unit.cli.cli_runner import Cli
from tests.unit.client.scripted_server import Hang, Refusal

TASK_ID = "01984f6e-0000-8000-8000-000000000001"
OTHER_ID = "01984f6e-0000-8000-8000-000000000002"


def task(state: pb.TaskState, **fields: object) -> pb.TaskInfo:
    return pb.TaskInfo(task_id=TASK_ID, state=state, queue="mail", **fields)  # type: ignore[arg-type]  # passed through


def waits_for(cli: Cli, finished: pb.TaskInfo) -> None:
    """The task is running when it is first looked at, and finished at the end of the second long poll."""
    running = task(pb.TASK_STATE_CLAIMED)
    cli.server.on("GetTask", pb.GetTaskResponse(task=running))
    polls = [pb.WaitTasksResponse(outcomes=[pb.WaitOutcome(task=item)]) for item in (running, finished)]
    cli.server.on("WaitTasks", *polls)


def test_wait_shows_the_result(cli: Cli) -> None:
    waits_for(cli, task(pb.TASK_STATE_SUCCEEDED, result=b'{"sent": 3}'))
    assert cli.run("task", "wait", TASK_ID) == 0
    assert "SUCCEEDED" in cli.out
    assert '{"sent": 3}' in cli.out
    assert cli.err == ""
    assert cli.run("task", "wait", TASK_ID, "--json") == 0
    assert (cli.json_out()["state"], cli.json_out()["result_json"]) == ("SUCCEEDED", {"sent": 3})


@pytest.mark.parametrize("command", ["wait", "get"])
@pytest.mark.parametrize("expired_at_ms", [1_893_553_445_678, None])
def test_a_result_that_is_gone_is_told_from_none(cli: Cli, command: str, expired_at_ms: int | None) -> None:
    info = task(pb.TASK_STATE_SUCCEEDED, result_expired_at_ms=expired_at_ms)
    cli.server.on("GetTask", pb.GetTaskResponse(task=info))
    cli.server.on("WaitTasks", pb.WaitTasksResponse(outcomes=[pb.WaitOutcome(task=info)]))
    assert cli.run("task", command, TASK_ID) == 0, "it has succeeded all the same"
    shown = "(expired at 2030-01-02 03:04:05.678 UTC; --result-ttl keeps results for longer)"
    assert (shown in cli.out) == ("expired" in cli.out) == (expired_at_ms is not None)
    assert cli.run("task", command, TASK_ID, "--json") == 0
    assert (cli.json_out()["result_json"], cli.json_out()["result_expired_at_ms"]) == (None, expired_at_ms)


def test_wait_for_a_task_that_dies(cli: Cli) -> None:
    error = pb.TaskError(type="ValueError", message="no\nsecond line \x1b[2J")
    dead = task(pb.TASK_STATE_DEAD, dead_reason="ATTEMPTS_SPENT", last_error=error)
    dead.task.payload = b"secret"
    waits_for(cli, dead)
    assert cli.run("task", "wait", TASK_ID) == 6
    line, hint = cli.err.splitlines()
    assert line.startswith(f"error: Task {TASK_ID} is dead (ATTEMPTS_SPENT; ValueError: no second line ")
    assert f"holdfast dlq retry {TASK_ID}" in hint
    assert "\x1b" not in cli.out + cli.err
    assert cli.run("task", "wait", TASK_ID, "--json") == 6
    assert cli.json_err()["error"]["reason"] == "TASK_DEAD"
    assert cli.json_out()["payload_base64"] is None


def test_wait_for_a_task_that_is_cancelled_already(cli: Cli) -> None:
    cli.server.on("GetTask", pb.GetTaskResponse(task=task(pb.TASK_STATE_CANCELLED)))
    assert cli.run("task", "wait", TASK_ID) == 6
    assert "was cancelled" in cli.err
    assert "WaitTasks" not in cli.server.requests, "there is nothing to wait for"


def test_wait_ends_in_time(cli: Cli) -> None:
    running = task(pb.TASK_STATE_CLAIMED)
    cli.server.on("GetTask", pb.GetTaskResponse(task=running))
    cli.server.on("WaitTasks", pb.WaitTasksResponse(outcomes=[pb.WaitOutcome(task=running)]))
    assert cli.run("task", "wait", TASK_ID, "--timeout", "50ms") == 7
    assert f"Task {TASK_ID} did not finish within 0.05 s." in cli.err
    assert cli.out == ""
    assert cli.run("task", "wait", TASK_ID, "--timeout", "50ms", "--json") == 7
    assert cli.json_err()["error"]["reason"] == "UNFINISHED"


def test_ctrl_c_ends_the_wait(cli: Cli) -> None:
    hang = Hang()
    cli.server.on("GetTask", pb.GetTaskResponse(task=task(pb.TASK_STATE_READY)))
    cli.server.on("WaitTasks", hang)

    def interrupt() -> None:
        assert hang.arrived.wait(30)
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    assert cli.run("task", "wait", TASK_ID) == 130
    thread.join()
    assert "The wait was interrupted." in cli.err
    assert "The task goes on" in cli.err


def test_enqueue_waits_no_longer_than_told(cli: Cli) -> None:
    cli.server.on("Enqueue", pb.EnqueueResponse(outcomes=[pb.EnqueueOutcome(accepted=pb.Accepted(task_id=TASK_ID))]))
    running = task(pb.TASK_STATE_READY)
    cli.server.on("GetTask", pb.GetTaskResponse(task=running))
    cli.server.on("WaitTasks", pb.WaitTasksResponse(outcomes=[pb.WaitOutcome(task=running)]))
    assert cli.run("enqueue", "mail", "add", "[1, 2]", "--wait", "--timeout", "50ms") == 7
    assert cli.out.startswith(f"Accepted task {TASK_ID}")
    assert "did not finish within 0.05 s" in cli.err


def test_enqueue_and_wait(cli: Cli) -> None:
    cli.server.on("Enqueue", pb.EnqueueResponse(outcomes=[pb.EnqueueOutcome(accepted=pb.Accepted(task_id=TASK_ID))]))
    waits_for(cli, task(pb.TASK_STATE_SUCCEEDED, result=b"3"))
    assert cli.run("enqueue", "mail", "add", "[1, 2]", "--wait") == 0
    assert cli.out.startswith(f"Accepted task {TASK_ID}")
    assert "SUCCEEDED" in cli.out
    assert cli.run("enqueue", "mail", "add", "[1, 2]", "--wait", "--json") == 0
    printed = cli.json_out()
    assert (printed["type"], printed["duplicate"], printed["result_json"]) == ("add", False, 3)
    assert printed["state"] == "SUCCEEDED"


def test_cancel_says_what_happens_to_each(cli: Cli) -> None:
    outcomes = [
        pb.CancelOutcome(cancelled=pb.Cancelled(state=pb.TASK_STATE_CANCELLED)),
        pb.CancelOutcome(cancelled=pb.Cancelled(state=pb.TASK_STATE_CLAIMED)),
    ]
    cli.server.on("Cancel", pb.CancelResponse(outcomes=outcomes))
    assert cli.run("task", "cancel", TASK_ID, OTHER_ID) == 0
    now, later = cli.out.splitlines()
    assert now == f"Task {TASK_ID} is cancelled."
    assert later == f"Task {OTHER_ID} is running: its worker will be told to stop."
    assert cli.run("task", "cancel", TASK_ID, OTHER_ID, "--json") == 0
    assert [item["cancelled"] for item in cli.json_out()["tasks"]] == [True, False]


def test_cancel_names_what_it_could_not(cli: Cli) -> None:
    done = pb.CancelOutcome(cancelled=pb.Cancelled(state=pb.TASK_STATE_CANCELLED))
    finished = pb.CancelOutcome(rejection=pb.Rejection(reason="TASK_FINISHED", message="It is SUCCEEDED."))
    cli.server.on("Cancel", pb.CancelResponse(outcomes=[done, finished]))
    assert cli.run("task", "cancel", TASK_ID, OTHER_ID) == 1
    assert f"Task {TASK_ID} is cancelled." in cli.out
    assert cli.err.startswith(f"error: Task {OTHER_ID}: It is SUCCEEDED. (TASK_FINISHED)")


def test_update_changes_waiting_tasks_and_names_those_that_do_not_wait(cli: Cli) -> None:
    changed = pb.UpdateOutcome(updated=pb.Updated(state=pb.TASK_STATE_READY))
    running = pb.UpdateOutcome(rejection=pb.Rejection(reason="TASK_NOT_WAITING", message="It is CLAIMED."))
    cli.server.on("UpdateTasks", pb.UpdateTasksResponse(outcomes=[changed, running]))
    assert cli.run("task", "update", TASK_ID, OTHER_ID, TASK_ID, "--priority", "0", "--delay", "0") == 1
    assert cli.out == f"Task {TASK_ID} is changed: it is READY.\n"
    assert cli.err.startswith(f"error: Task {OTHER_ID}: It is CLAIMED. (TASK_NOT_WAITING)")
    assert "holdfast task cancel" in cli.err
    items = [pb.UpdateItem(task_id=task_id, priority=0, delay_ms=0) for task_id in (TASK_ID, OTHER_ID)]
    assert list(cli.server.requests["UpdateTasks"][0].items) == items, "each once"
    cli.server.instead("UpdateTasks", pb.UpdateTasksResponse(outcomes=[changed]))
    assert cli.run("task", "update", TASK_ID, "--run-at", "2030-01-02T03:04:05Z", "--json") == 0
    assert cli.json_out() == {"tasks": [{"task_id": TASK_ID, "state": "READY"}]}
    [item] = cli.server.requests["UpdateTasks"][1].items
    assert item == pb.UpdateItem(task_id=TASK_ID, run_at_ms=1_893_553_445_000)


def queue_pages(cli: Cli) -> None:
    first = [pb.QueueCounts(queue="mail", ready=1_234), pb.QueueCounts(queue="math")]
    cli.server.on(
        "ListQueues",
        lambda request: (
            pb.ListQueuesResponse(queues=[pb.QueueCounts(queue="reports", dead=7)])
            if request.page_token
            else pb.ListQueuesResponse(queues=first, next_page_token="more")
        ),
    )


def test_queue_ls_goes_through_all_pages(cli: Cli) -> None:
    queue_pages(cli)
    assert cli.run("queue", "ls") == 0
    header, _, *rows = cli.out.splitlines()
    assert header.split() == ["queue", "ready", "claimed", "delayed", "retrying", "dead", "oldest"]
    assert [row.split()[0] for row in rows] == ["mail", "math", "reports"]
    assert "1,234" in rows[0]
    assert cli.run("queue", "ls", "--json") == 0
    assert [(queue["queue"], queue["dead"]) for queue in cli.json_out()["queues"]] == [
        ("mail", 0),
        ("math", 0),
        ("reports", 7),
    ]


def test_queue_ls_marks_what_is_paused_and_what_raises_an_alert(cli: Cli) -> None:
    queues = [pb.QueueCounts(queue="mail", paused=True, dead_alert=True), pb.QueueCounts(queue="math", paused=True)]
    cli.server.on("ListQueues", pb.ListQueuesResponse(queues=queues))
    assert cli.run("queue", "ls") == 0
    _, _, first, second = cli.out.splitlines()
    assert first.startswith("mail (paused, ALERT)  ")
    assert second.startswith("math (paused)  ")


def test_a_narrow_terminal_gets_lines_instead_of_a_table(
    cli: Cli, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    queue_pages(cli)
    monkeypatch.setenv("COLUMNS", "50")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    assert cli.run("queue", "ls") == 0
    shown = re.sub(r"\x1b\[[0-9;]*m", "", cli.out)
    assert max(map(len, shown.splitlines())) <= 50
    assert shown.startswith("mail: ready 1,234, claimed 0, delayed 0,\n  retrying 0, ")


def test_queue_ls_without_queues_says_how_to_make_one(cli: Cli) -> None:
    cli.server.on("ListQueues", pb.ListQueuesResponse())
    assert cli.run("queue", "ls") == 0
    assert "There are no queues yet" in cli.out
    assert "holdfast enqueue" in cli.out
    assert cli.run("queue", "ls", "--json") == 0
    assert cli.json_out() == {"queues": [], "missing_shards": []}


def complete(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], line: str) -> list[str]:
    """What bash is offered for the last word of the line."""
    words = line.split(" ")
    monkeypatch.setenv("_HOLDFAST_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", line)
    monkeypatch.setenv("COMP_CWORD", str(len(words) - 1))
    assert main([]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    return out.split()


@pytest.mark.parametrize(
    "command",
    [
        "queue stats",
        "dlq ls",
        "enqueue",
        "dlq retry --all --queue",
        "worker a:b -q",
        "queue purge",
        "schedule show x -q",
    ],
)
def test_names_of_queues_are_completed(
    cli: Cli, command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    queue_pages(cli)
    monkeypatch.setenv("HOLDFAST_ADDRESS", cli.server.address)
    assert complete(monkeypatch, capsys, f"holdfast {command} ma") == ["mail", "math"]


def test_completion_is_silent_where_there_is_no_server(
    cli: Cli, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    cli.server.on("ListQueues", Refusal(grpc.StatusCode.UNAVAILABLE))
    line = f"holdfast queue stats --address {cli.server.address} m"
    assert complete(monkeypatch, capsys, line) == []
    cli.server.stop()
    assert complete(monkeypatch, capsys, line) == []
    assert complete(monkeypatch, capsys, "holdfast queue stats --address nonsense m") == []


@pytest.mark.parametrize("option", ["--request-id", "--tenant", "--unique-key", "--limit-key"])
def test_an_empty_text_is_not_the_same_as_no_option(cli: Cli, option: str) -> None:
    """It is what a shell makes of a variable that is not set."""
    assert cli.run("enqueue", "mail", "welcome", option, "") == 2
    assert f"{option}: Expected a text, but it is empty" in cli.err
    assert not cli.server.requests


@pytest.mark.parametrize("payload", ['"str"', "17", "null", "true"])
def test_arguments_have_to_be_an_array_or_an_object(cli: Cli, payload: str) -> None:
    assert cli.run("enqueue", "mail", "welcome", payload) == 2
    assert "Expected a JSON array or object" in cli.err
    assert not cli.server.requests


def test_a_task_that_is_not_there_may_have_been_discarded(cli: Cli) -> None:
    cli.server.on("GetTask", Refusal(grpc.StatusCode.NOT_FOUND, "TASK_NOT_FOUND", "There is none."))
    assert cli.run("task", "get", TASK_ID) == 5
    assert "`holdfast dlq discarded`" in cli.err
