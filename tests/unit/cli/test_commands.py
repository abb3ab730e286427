"""The commands that ask a server: what they send, print and return."""

import io

import grpc
import pytest

from holdfast.cli.main import main
from holdfast.client import Codec
from holdfast.client.codec import of_error, of_payload
from holdfast.proto.v1 import tasks_pb2 as pb
from tests.unit.cli.cli_runner import Cli
from tests.unit.client.scripted_server import Hang, Refusal

TASK_ID = "01984f6e-0000-8000-8000-000000000001"
ACCEPTED = pb.EnqueueResponse(outcomes=[pb.EnqueueOutcome(accepted=pb.Accepted(task_id=TASK_ID))])


def test_enqueue_sends_the_json_as_it_was_written(cli: Cli) -> None:
    cli.server.on("Enqueue", ACCEPTED)
    assert cli.run("enqueue", "mail", "welcome", ' {"n": 1.0, "long": 12345678901234567890, "ü": "ü"} ') == 0
    assert TASK_ID in cli.out
    assert "mail" in cli.out
    assert cli.err == ""
    [request] = cli.server.requests["Enqueue"]
    [spec] = request.tasks
    assert spec == pb.TaskSpec(
        queue="mail",
        type="welcome",
        payload='{"n": 1.0, "long": 12345678901234567890, "ü": "ü"}'.encode(),
        headers={"content-type": "application/json"},
    )


def test_enqueue_with_every_option(cli: Cli) -> None:
    cli.server.on("Enqueue", ACCEPTED)
    options = ["--priority=0", "--delay=1h30m", "--request-id=r-1", "--tenant=acme", "--max-attempts=1", "--json"]
    assert cli.run("enqueue", "mail", "welcome", "[1]", *options, "--request-id-ttl=1h") == 0
    assert cli.json_out() == {
        "task_id": TASK_ID, "duplicate": False, "state": None, "queue": "mail", "type": "welcome"
    }  # fmt: skip
    spec = cli.server.requests["Enqueue"][0].tasks[0]
    assert (spec.priority, spec.delay_ms, spec.request_id, spec.tenant, spec.max_attempts) == (
        0, 5_400_000, "r-1", "acme", 1,
    )  # fmt: skip
    assert spec.HasField("priority")
    assert spec.request_id_ttl_ms == 3_600_000


def test_enqueue_with_every_option_for_its_life(cli: Cli) -> None:
    cli.server.on("Enqueue", ACCEPTED)
    options = ["--limit-key=acme", "--unique-key=u", "--unique=while-waiting", "--max-claims=3", "--retry-shape=linear"]
    options += ["--retry-base=0", "--retry-factor=1.5", "--retry-cap=1h", "--retry-jitter=0.25"]
    options += ["--non-retryable=KeyError", "--non-retryable=app.Refused", "--task-timeout=15m", "--ttl=1d"]
    assert cli.run("enqueue", "mail", "welcome", *options, "--result-ttl=0") == 0
    assert cli.server.requests["Enqueue"][0].tasks[0] == pb.TaskSpec(
        queue="mail", type="welcome", payload=b"{}", headers={"content-type": "application/json"}, limit_key="acme",
        unique_key="u", unique_scope=pb.UNIQUE_SCOPE_WHILE_WAITING, max_claims=3,
        retry=pb.RetryPolicy(
            shape=pb.RETRY_SHAPE_LINEAR, base_ms=0, factor=1.5, cap_ms=3_600_000, jitter=0.25,
            non_retryable=["KeyError", "app.Refused"],
        ),
        timeout_ms=900_000, ttl_ms=86_400_000, result_ttl_ms=0,
    )  # fmt: skip


def test_enqueue_at_a_moment(cli: Cli) -> None:
    cli.server.on("Enqueue", ACCEPTED)
    assert cli.run("enqueue", "mail", "welcome", "--run-at", "2030-01-02T04:04:05+01:00") == 0
    spec = cli.server.requests["Enqueue"][0].tasks[0]
    assert spec.run_at_ms == 1_893_553_445_000
    assert spec.payload == b"{}", "no JSON given means no arguments"


def test_enqueue_reads_standard_input(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    cli.server.on("Enqueue", ACCEPTED)
    monkeypatch.setattr("sys.stdin", io.StringIO('{"from": "a pipe"}\n'))
    assert cli.run("enqueue", "mail", "welcome", "-") == 0
    assert cli.server.requests["Enqueue"][0].tasks[0].payload == b'{"from": "a pipe"}'


def test_enqueue_says_when_nothing_was_added(cli: Cli) -> None:
    accepted = pb.Accepted(task_id=TASK_ID, duplicate=True, state=pb.TASK_STATE_CLAIMED)
    duplicate = pb.EnqueueOutcome(accepted=accepted)
    cli.server.on("Enqueue", pb.EnqueueResponse(outcomes=[duplicate]))
    assert cli.run("enqueue", "mail", "welcome", "--request-id", "r-1") == 0
    assert cli.out == f"Already there: task {TASK_ID} (CLAIMED) has this request id. Nothing was added.\n"
    assert cli.run("enqueue", "mail", "welcome", "--unique-key", "u-1") == 0
    assert cli.out == f"Already there: task {TASK_ID} (CLAIMED) has this unique key. Nothing was added.\n"
    assert cli.run("enqueue", "mail", "welcome", "--request-id", "r-1", "--json") == 0
    assert (cli.json_out()["duplicate"], cli.json_out()["state"]) == (True, "CLAIMED")


def test_enqueue_says_when_the_task_that_was_there_is_forgotten(cli: Cli) -> None:
    forgotten = pb.EnqueueOutcome(accepted=pb.Accepted(task_id=TASK_ID, duplicate=True))
    cli.server.on("Enqueue", pb.EnqueueResponse(outcomes=[forgotten]))
    assert cli.run("enqueue", "mail", "welcome", "--request-id", "r-1") == 0
    assert cli.out.startswith(f"Already there: task {TASK_ID} (ended, and known no more) has this request id.")
    assert cli.run("enqueue", "mail", "welcome", "--request-id", "r-1", "--json") == 0
    assert (cli.json_out()["duplicate"], cli.json_out()["state"]) == (True, None)


def test_the_same_request_id_for_another_task_is_a_conflict(cli: Cli) -> None:
    refusal = pb.Rejection(reason="REQUEST_ID_CONFLICT", message="It has another type.", field="request_id")
    cli.server.on("Enqueue", pb.EnqueueResponse(outcomes=[pb.EnqueueOutcome(rejection=refusal)]))
    assert cli.run("enqueue", "mail", "welcome", "--request-id", "r-1") == 1
    assert "It has another type." in cli.err
    assert "another --request-id" in cli.err


def test_a_refusal_is_one_line_and_exit_code_1(cli: Cli) -> None:
    bad = pb.Rejection(reason="INVALID_FIELD", message="Expected letters.", field="tasks[0].queue")
    cli.server.on("Enqueue", pb.EnqueueResponse(outcomes=[pb.EnqueueOutcome(rejection=bad)]))
    assert cli.run("enqueue", "m@il", "welcome") == 1
    assert cli.out == ""
    assert cli.err.splitlines() == ["error: tasks[0].queue: Expected letters. (INVALID_FIELD)"]
    assert cli.run("enqueue", "m@il", "welcome", "--json") == 1
    assert cli.out == ""
    assert cli.json_err() == {
        "error": {
            "reason": "INVALID_FIELD",
            "message": "tasks[0].queue: Expected letters. (INVALID_FIELD)",
            "hint": "",
            "field": "tasks[0].queue",
            "retry_after_ms": 0,
        },
        "exit_code": 1,
    }


def test_an_overloaded_server_says_when_to_try_again(cli: Cli) -> None:
    refusal = Refusal(grpc.StatusCode.RESOURCE_EXHAUSTED, "OVERLOADED", "Full.", retry_after_ms=1_500)
    cli.server.on("Enqueue", refusal)
    assert cli.run("enqueue", "mail", "welcome") == 1
    assert "Try again in 1.5 s." in cli.err
    assert cli.json_error("enqueue", "mail", "welcome", code=1)["error"]["retry_after_ms"] == 1_500


NUMBERS = {
    "ready": 1_234_567, "claimed": 2, "delayed": 3, "retrying": 4, "dead": 5, "enqueued_total": 6, "claimed_total": 7,
    "succeeded_total": 8, "failed_total": 9, "expired_total": 10, "cancelled_total": 11, "dead_total": 12,
    "oldest_ready_age_ms": 90_000, "oldest_claim_age_ms": 14, "waiting_reserves": 13, "paused": True,
    "enqueued_per_second": 1_234.5, "claimed_per_second": 7.25, "succeeded_per_second": 0.0,
    "failed_per_second": 0.5, "dead_alert": True,
}  # fmt: skip


def busy_queue() -> pb.QueueStatsResponse:
    latencies = [
        pb.TypeLatency(type="welcome", ready_to_claim=[0, 0, 10], claim_to_ack=[0] * 10 + [2]),
        pb.TypeLatency(type="never-claimed"),
    ]
    counts = pb.QueueCounts(queue="mail", latencies=latencies, **NUMBERS)  # type: ignore[arg-type]  # each as it is
    return pb.QueueStatsResponse(outcomes=[pb.QueueStatsOutcome(counts=counts)])


def test_queue_stats_for_people(cli: Cli) -> None:
    cli.server.on("QueueStats", busy_queue())
    assert cli.run("queue", "stats", "mail") == 0
    for words in ("ready", "claimed", "delayed", "retrying", "dead", "1,234,567", "1m 30s", "succeeded"):
        assert words in cli.out
    lines = [line.split() for line in cli.out.splitlines()]
    assert ["mail", "1,234", "7.2", "-", "0.5"] in lines, "rates"
    assert ["mail", "welcome", "3.5ms", "4.8ms", "5.0ms", "1.5s", "1.9s", "2.0s"] in lines, "latencies"
    assert "never-claimed" not in cli.out
    assert "Queue mail is paused: `holdfast queue resume mail`" in cli.out
    assert "Queue mail has 5 dead letters, an alert: `holdfast dlq ls mail`." in cli.out
    assert max(map(len, cli.out.splitlines())) <= 80, "fits an ordinary terminal"


def test_queue_stats_for_programs(cli: Cli) -> None:
    cli.server.on("QueueStats", busy_queue())
    [queue] = cli.json("queue", "stats", "mail")["queues"]
    latencies = queue.pop("latencies")
    assert queue == {"queue": "mail", **NUMBERS}
    waits = latencies[0]["ready_to_claim"]
    assert waits == {"count": 10, "mean_ms": 0, "p50_ms": 3.5, "p95_ms": 4.85, "p99_ms": pytest.approx(4.97)}
    runs = latencies[0]["claim_to_ack"]
    assert runs == {"count": 2, "mean_ms": 0, "p50_ms": 1_500, "p95_ms": 1_950, "p99_ms": 1_990}
    nothing = {"count": 0, "mean_ms": None, "p50_ms": None, "p95_ms": None, "p99_ms": None}
    assert latencies[1] == {"type": "never-claimed", "ready_to_claim": nothing, "claim_to_ack": nothing}


def test_queue_stats_shows_what_it_found_and_names_what_it_did_not(cli: Cli) -> None:
    found = pb.QueueStatsOutcome(counts=pb.QueueCounts(queue="mail", ready=7))
    missing = pb.QueueStatsOutcome(rejection=pb.Rejection(reason="QUEUE_NOT_FOUND", message="There is no such queue."))
    cli.server.on("QueueStats", pb.QueueStatsResponse(outcomes=[found, missing]))
    assert cli.run("queue", "stats", "mail", "nope") == 5
    assert "mail" in cli.out
    assert cli.err.splitlines()[0] == "error: Queue 'nope': There is no such queue. (QUEUE_NOT_FOUND)"
    assert [queue["queue"] for queue in cli.json("queue", "stats", "mail", "nope", code=5)["queues"]] == ["mail"]
    assert cli.json_err()["error"]["reason"] == "QUEUE_NOT_FOUND"


def waiting_task() -> pb.TaskInfo:
    return pb.TaskInfo(
        task_id=TASK_ID, state=pb.TASK_STATE_RETRY_PENDING, queue="mail",
        task=pb.TaskSpec(
            queue="mail", type="welcome", payload=b'{"to": "ada"}', headers={"content-type": "application/json"},
            tenant="acme", request_id="r-1", unique_key="u-1", unique_scope=pb.UNIQUE_SCOPE_WHILE_WAITING,
            ttl_ms=60_000,
            retry=pb.RetryPolicy(shape=pb.RETRY_SHAPE_FIXED, base_ms=1_500, jitter=0, non_retryable=["KeyError"]),
        ),
        type="welcome", limit_key="l-1", unique_key="u-1", timeout_ms=90_000,
        attempts=[
            pb.Attempt(
                worker="worker-1", claimed_at_ms=1_893_553_445_700, ended_at_ms=1_893_553_445_950, how="FAILED",
                error_type="ValueError", error_message="\x1b[31mno",
            )
        ],
        priority=5, failures=1, max_attempts=10, claims=2, max_claims=20, enqueued_at_ms=1_893_553_445_678,
        changed_at_ms=1_893_553_446_000, due_at_ms=1_893_553_447_000, worker="worker-1",
        last_error=pb.TaskError(type="ValueError", message="no", traceback="Traceback …\n  line 1"),
    )  # fmt: skip


def test_task_get_for_people(cli: Cli) -> None:
    cli.server.on("GetTask", pb.GetTaskResponse(task=waiting_task()))
    assert cli.run("task", "get", TASK_ID) == 0
    for words in (
        TASK_ID,
        "RETRY_PENDING",
        "1 of 10 allowed",
        "2030-01-02 03:04:05.678 UTC",
        "ValueError: no",
        '{"to": "ada"}',
        "worker-1",
        "u-1 (while-waiting)",
        "l-1",
        "1m 30s",
        "fixed, base 1s, jitter 0, not after KeyError",
    ):
        assert words in cli.out
    attempt = cli.out.splitlines()[-1]
    words_of_it = ["worker-1", "2030-01-02", "03:04:05", "250ms", "failed", "ValueError:", "\\x1b[31mno"]
    assert attempt.split() == words_of_it, "who, when, how long, how and why, and no escape sequence"


def test_task_get_for_programs(cli: Cli) -> None:
    cli.server.on("GetTask", pb.GetTaskResponse(task=waiting_task()))
    assert cli.json("task", "get", TASK_ID) == {
        "task_id": TASK_ID, "state": "RETRY_PENDING", "queue": "mail", "type": "welcome", "priority": 5,
        "tenant": "acme", "request_id": "r-1", "headers": {"content-type": "application/json"}, "failures": 1,
        "max_attempts": 10, "claims": 2, "max_claims": 20, "enqueued_at_ms": 1_893_553_445_678,
        "changed_at_ms": 1_893_553_446_000, "due_at_ms": 1_893_553_447_000, "lease_expires_at_ms": None,
        "purge_at_ms": None, "worker": "worker-1", "cancel_requested": False, "suspect": False, "dead_reason": "",
        "last_error": {"type": "ValueError", "message": "no", "traceback": "Traceback …\n  line 1"},
        "attempts": [
            {
                "worker": "worker-1", "claimed_at_ms": 1_893_553_445_700, "ended_at_ms": 1_893_553_445_950,
                "how": "FAILED", "error_type": "ValueError", "error_message": "\x1b[31mno",
            }
        ],
        "limit_key": "l-1", "unique_key": "u-1", "unique_scope": "while-waiting", "timeout_ms": 90_000,
        "ttl_ms": 60_000, "start_by_ms": None,
        "retry": {
            "shape": "fixed", "base_ms": 1_500, "factor": None, "cap_ms": None, "jitter": 0.0,
            "non_retryable": ["KeyError"],
        },
        "payload_base64": "eyJ0byI6ICJhZGEifQ==", "payload_json": {"to": "ada"}, "result_base64": None,
        "result_json": None, "result_expired_at_ms": None,
    }  # fmt: skip


def test_task_get_of_a_finished_task_has_the_same_keys(cli: Cli) -> None:
    done = pb.TaskInfo(task_id=TASK_ID, state=pb.TASK_STATE_SUCCEEDED, queue="mail", result=b"\xff", purge_at_ms=1)
    cli.server.on("GetTask", pb.GetTaskResponse(task=waiting_task()), pb.GetTaskResponse(task=done))
    cli.run("task", "get", TASK_ID, "--json")
    keys = list(cli.json_out())
    cli.run("task", "get", TASK_ID, "--json")
    assert list(cli.json_out()) == keys
    assert cli.json_out()["result_base64"] == "/w=="
    assert cli.json_out()["result_json"] is None
    assert cli.run("task", "get", TASK_ID) == 0
    assert "1 bytes that are not text" in cli.out


def test_what_a_codec_has_encrypted_is_shown_as_such(cli: Cli) -> None:
    codec = Codec(keys={"2026": bytes(32)}, errors=True)
    sealed = pb.TaskError(type="LookupError", message=codec.seal_text("no ada", of_error("id")))
    spec = pb.TaskSpec(queue="mail", type="send", payload=codec.encode(b'"ada"', of_payload("send")))
    info = pb.TaskInfo(task_id="id", state=pb.TASK_STATE_DEAD, queue="mail", task=spec, last_error=sealed)
    cli.server.on("GetTask", pb.GetTaskResponse(task=info))
    assert cli.run("task", "get", TASK_ID) == 0
    assert f"{len(spec.payload)} bytes, encrypted with key 2026" in cli.out
    assert "LookupError: (encrypted;" in cli.out
    newer = pb.TaskInfo(task_id="id", state=pb.TASK_STATE_DEAD, task=pb.TaskSpec(payload=b"\xffHF9"))
    cli.server.instead("GetTask", pb.GetTaskResponse(task=newer))
    assert cli.run("task", "get", TASK_ID) == 0
    assert "changed by a codec; it has a form that only a newer version" in cli.out


def test_what_a_producer_wrote_does_not_steer_the_terminal(cli: Cli) -> None:
    info = waiting_task()
    info.task.payload = b"\x1b[2J[bold]evil[/bold]"
    info.worker = "\x1b]0;title\x07"
    cli.server.on("GetTask", pb.GetTaskResponse(task=info))
    assert cli.run("task", "get", TASK_ID) == 0
    assert "\x1b" not in cli.out
    assert "\x07" not in cli.out
    assert "\\x1b[2J[bold]evil[/bold]" in cli.out


def test_an_unknown_task_is_one_line_what_to_do_and_exit_code_5(cli: Cli) -> None:
    cli.server.on("GetTask", Refusal(grpc.StatusCode.NOT_FOUND, "TASK_NOT_FOUND", "There is no task with this id."))
    assert cli.run("task", "get", TASK_ID) == 5
    assert cli.out == ""
    line, hint = cli.err.splitlines()
    assert line == "error: There is no task with this id. (TASK_NOT_FOUND)"
    assert "Check the id" in hint
    assert cli.json_error("task", "get", TASK_ID, code=5)["exit_code"] == 5


@pytest.mark.parametrize(
    "command",
    [
        ["enqueue", "mail", "welcome"],
        ["enqueue", "mail", "welcome", "--wait"],
        ["queue", "ls"],
        ["queue", "stats", "mail"],
        ["task", "get", TASK_ID],
        ["task", "wait", TASK_ID],
        ["task", "cancel", TASK_ID],
        ["dlq", "ls", "mail"],
        ["dlq", "show", TASK_ID],
        ["dlq", "retry", TASK_ID],
        ["dlq", "discard", "--all", "--queue", "mail", "--yes"],
        ["bench"],
    ],
    ids=" ".join,
)
def test_no_server_there_is_one_line_what_to_do_and_exit_code_4(cli: Cli, command: list[str]) -> None:
    cli.server.stop()
    assert cli.run(*command) == 4
    assert cli.out == ""
    line, hint = cli.err.splitlines()
    assert line == f"error: No Holdfast server answers at {cli.server.address} (connection refused)."
    assert "holdfast dev" in hint
    assert cli.run(*command, "--json") == 4
    assert cli.out == ""
    assert cli.json_err()["error"]["reason"] == "CONNECTION_FAILED"


def test_an_unknown_host_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["task", "get", TASK_ID, "--address", "no-such-host.invalid:7400"]) == 4
    assert "No Holdfast server answers at no-such-host.invalid:7400" in capsys.readouterr().err


def test_another_service_at_the_address_is_exit_code_4(cli: Cli) -> None:
    assert cli.run("task", "get", TASK_ID) == 4
    assert "does not speak this version of the Holdfast API" in cli.err


def test_no_answer_in_time_is_exit_code_4(cli: Cli) -> None:
    cli.server.on("GetTask", Hang())
    assert cli.run("task", "get", TASK_ID, "--timeout", "0.2") == 4
    assert "did not answer within 0.2 s" in cli.err


def test_the_address_comes_from_the_environment(
    cli: Cli, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    cli.server.on("GetTask", pb.GetTaskResponse(task=waiting_task()))
    monkeypatch.setenv("HOLDFAST_ADDRESS", cli.server.address)
    assert main(["task", "get", TASK_ID]) == 0
    monkeypatch.setenv("HOLDFAST_ADDRESS", "localhost:1")
    assert main(["task", "get", TASK_ID, "-a", cli.server.address]) == 0, "the flag wins"
    capsys.readouterr()
