"""`holdfast worker`: loading an app, its settings, its log lines; and `holdfast bench` where the server misbehaves."""

import contextvars
import json
import logging
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from holdfast.cli import bench
from holdfast.cli.main import main
from holdfast.cli.worker_logs import logging_to_stderr
from holdfast.cli.workers import load_app
from holdfast.client import ClaimedTask, Holdfast, RunningTask, Worker, WorkerReport
from holdfast.client.context import Signals, set_current_task
from holdfast.proto.v1 import tasks_pb2 as pb
from tests.unit.cli.cli_runner import Cli
from tests.unit.client.scripted_server import ScriptedServer, ack_all

APP = """
from holdfast.client import Holdfast

app = Holdfast("localhost:7400")
number = 3

class Settings:
    inner = app

@app.task(queue="mail")
def send(to): ...

@app.task(queue="reports")
def report(): ...
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A current directory with modules of its own, forgotten afterwards."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delenv("HOLDFAST_ADDRESS", raising=False)
    before = set(sys.modules)
    (tmp_path / "shop_tasks.py").write_text(APP)
    package = tmp_path / "shop_package"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "tasks.py").write_text(APP)
    yield tmp_path
    for name in set(sys.modules) - before:
        if name.startswith(("shop_", "broken_")):
            del sys.modules[name]


@pytest.fixture
def worker(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """Workers that end at once; the list has their settings."""
    made: list[dict[str, Any]] = []

    def run(self: Worker) -> WorkerReport:
        made.append(
            {
                "queues": dict(self.queues), "concurrency": self.concurrency, "address": self.address,
                "transport": self.transport,
            }
        )  # fmt: skip
        log = logging.getLogger("holdfast.worker")
        log.info("It starts.")
        log.warning("Task \x1b[2J failed.", extra={"task_id": "t-1", "task_payload": "secret"})
        return WorkerReport(succeeded=1, failed=2, released=3, lost=4)

    monkeypatch.setattr(Worker, "run", run)
    return made


@pytest.mark.parametrize("name", ["shop_tasks:app", "shop_package.tasks:app", "shop_tasks:Settings.inner"])
def test_an_app_is_found(name: str, here: Path) -> None:
    app = load_app(name)
    assert isinstance(app, Holdfast)
    assert sorted(app.tasks) == ["report", "send"]


@pytest.mark.parametrize(
    ("name", "line", "hint"),
    [
        ("shop_tasks", "Expected MODULE:APP, but got 'shop_tasks'.", "tasks:app"),
        (":app", "Expected MODULE:APP", "tasks:app"),
        ("shop_nope:app", "There is no module 'shop_nope'", "PYTHONPATH"),
        ("shop_package.nope:app", "There is no module 'shop_package.nope'", "PYTHONPATH"),
        ("shop_tasks.py:app", "'shop_tasks.py' is a file", "shop_tasks:app"),
        ("shop_package/tasks.py:app", "is a file", "shop_package.tasks:app"),
        ("shop_tasks:nope", "Module 'shop_tasks' has no 'nope'.", "It has shop_tasks:app."),
        ("shop_tasks:Settings.nope", "has no 'Settings.nope' (no 'nope')", "It has shop_tasks:app."),
        ("shop_tasks:number", "to be a Holdfast app, but it is of type int", "It has shop_tasks:app."),
    ],
)
def test_an_app_that_is_not_there(
    name: str, line: str, hint: str, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["worker", name]) == 2
    out, err = capsys.readouterr()
    shown = err.splitlines()
    assert (out, len(shown)) == ("", 2)
    assert line in shown[0]
    assert hint in shown[1]


@pytest.mark.parametrize(
    ("code", "last"),
    [
        ("import shop_missing_library", "ModuleNotFoundError: No module named 'shop_missing_library'"),
        ("1 / 0", "ZeroDivisionError: division by zero"),
        ("def f(:", "SyntaxError: invalid syntax"),
        ("raise SystemExit('bye')", "SystemExit: bye"),
        ("from shop_tasks import nope", "ImportError: cannot import name 'nope'"),
    ],
)
def test_an_app_whose_code_fails(code: str, last: str, here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (here / "broken_tasks.py").write_text(f"\n{code}\n")
    assert main(["worker", "broken_tasks:app"]) == 2
    line, hint = capsys.readouterr().err.splitlines()
    assert f"Importing 'broken_tasks' failed: {last}" in line
    assert "broken_tasks.py:2" in line
    assert "python -c 'import broken_tasks'" in hint


def test_an_app_without_tasks(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (here / "shop_empty.py").write_text("from holdfast.client import Holdfast\napp = Holdfast()\n")
    assert main(["worker", "shop_empty:app"]) == 2
    assert "Expected an app with tasks" in capsys.readouterr().err


def test_a_wrong_address(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["worker", "shop_tasks:app", "--address", "nonsense"]) == 2
    line, hint = capsys.readouterr().err.splitlines()[-2:]
    assert "host:port" in line
    assert "--address" in hint


def test_the_settings_reach_the_worker(
    here: Path, worker: list[dict[str, Any]], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["worker", "shop_tasks:app"]) == 0
    assert main(["worker", "shop_tasks:app", "-q", "mail:5", "-q", "other", "-c", "20", "-a", "localhost:1"]) == 0
    assert worker == [
        {
            "queues": {"mail": None, "reports": None},
            "concurrency": 10,
            "address": "localhost:7400",
            "transport": "auto",
        },
        {"queues": {"mail": 5, "other": None}, "concurrency": 20, "address": "localhost:1", "transport": "auto"},
    ]
    out, err = capsys.readouterr()
    assert out == "", "standard output belongs to the handlers"
    assert "mail (at most 5), other" in err
    assert "No task of this app is enqueued into other by default" in err
    assert "localhost:7400" in err


def test_log_lines_for_people(here: Path, worker: object, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["worker", "shop_tasks:app"]) == 0
    err = capsys.readouterr().err
    assert "info     It starts." in err
    assert "warning  Task \\x1b[2J failed." in err
    assert "secret" not in err
    assert main(["worker", "shop_tasks:app", "--log-level", "warning"]) == 0
    err = capsys.readouterr().err
    assert "It starts." not in err
    assert err.splitlines()[-1] == "Stopped: 1 succeeded, 2 failed attempts, 3 given back, 4 leases lost."


def test_log_lines_for_programs(here: Path, worker: object, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["worker", "shop_tasks:app", "--json"]) == 0
    out, err = capsys.readouterr()
    assert json.loads(out) == {"succeeded": 1, "failed": 2, "released": 3, "lost": 4}
    starts, failed = map(json.loads, err.splitlines())
    assert (starts["level"], starts["logger"], starts["event"]) == ("info", "holdfast.worker", "It starts.")
    assert failed["task_id"] == "t-1"
    assert starts["timestamp"].endswith("Z")
    assert "secret" not in err


def test_what_the_application_logs_is_shown_and_the_set_up_is_undone(capsys: pytest.CaptureFixture[str]) -> None:
    theirs = logging.getLogger("shop.mail")
    handlers, level = list(logging.getLogger().handlers), logging.getLogger().level
    with logging_to_stderr("debug", as_json=False):
        theirs.info("sent")
        theirs.debug("noise")
        try:
            raise ValueError("why")
        except ValueError:
            theirs.exception("failed")
    err = capsys.readouterr().err
    assert "shop.mail: sent" in err
    assert "noise" not in err
    assert "ValueError: why" in err
    assert (logging.getLogger().handlers, logging.getLogger().level) == (handlers, level)


def test_the_logs_can_be_json_while_the_report_is_for_people(
    here: Path, worker: object, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["worker", "shop_tasks:app", "--log-format", "json"]) == 0
    out, err = capsys.readouterr()
    assert out == ""
    assert [json.loads(line)["level"] for line in err.splitlines()] == ["info", "warning"]
    assert main(["worker", "shop_tasks:app", "--log-format", "xml"]) == 2
    assert "Expected one of console, json, but got 'xml'" in capsys.readouterr().err


def test_the_transport_is_the_apps_unless_given(
    here: Path, worker: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("HOLDFAST_TRANSPORT", raising=False)
    assert main(["worker", "shop_tasks:app"]) == 0
    assert main(["worker", "shop_tasks:app", "--transport", "grpc"]) == 0
    assert [sent["transport"] for sent in worker] == ["auto", "grpc"]
    assert main(["worker", "shop_tasks:app", "--transport", "udp"]) == 2
    assert "Expected transport to be one of auto, grpc, but got 'udp'." in capsys.readouterr().err


@pytest.mark.parametrize("as_json", [False, True])
def test_what_is_logged_in_a_handler_says_which_task_it_is_about(
    as_json: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    claim = ClaimedTask(
        task_id="t-1", token=1, queue="mail", type="send", payload=b"", lease_ms=1, attempt=2, claims=1,
        enqueued_at_ms=0, lease_ends_s=0.0,
    )  # fmt: skip

    def handle() -> None:
        set_current_task(RunningTask(claim, cast(Signals, None)))
        logging.getLogger("shop.mail").info("sent", extra={"attempt": "of mine"})

    with logging_to_stderr("info", as_json=as_json):
        contextvars.copy_context().run(handle)
        logging.getLogger("shop.mail").info("elsewhere")
    inside, outside = capsys.readouterr().err.splitlines()
    if as_json:
        reported = json.loads(inside)
        assert (reported["task_id"], reported["task_type"], reported["queue"]) == ("t-1", "send", "mail")
        assert reported["attempt"] == "of mine", "fields that are there stay as they are"
        assert "task_id" not in json.loads(outside)
    else:
        assert inside.endswith("shop.mail: sent [send t-1]")
        assert outside.endswith("shop.mail: elsewhere")


def bench_server(server: ScriptedServer, deliveries: int) -> None:
    """Hands out each task so many times; 0 loses them."""
    waiting: list[pb.TaskSpec] = []
    numbers = iter(range(1, 10_000))

    def enqueue(request: Any) -> pb.EnqueueResponse:
        [run] = request.runs
        for payload in run.payloads:
            spec = pb.TaskSpec(payload=payload)
            spec.MergeFrom(run.task)
            waiting.extend([spec] * deliveries)
        ids = [f"01984f6e-0000-8000-8000-{next(numbers):012x}" for _ in run.payloads]
        return pb.EnqueueResponse(runs=[pb.RunOutcome(first_task_id=ids[0])])

    def reserve(request: Any) -> pb.ReserveResponse:
        taken, waiting[: request.max_tasks] = waiting[: request.max_tasks], []
        claims = [
            pb.Claim(task_id=f"01984f6e-0000-8000-9000-{next(numbers):012d}", token=1, task=task) for task in taken
        ]
        return pb.ReserveResponse(claims=claims)

    server.on("Enqueue", enqueue)
    server.on("Reserve", reserve)
    server.on("Ack", ack_all)
    counts = pb.QueueStatsOutcome(counts=pb.QueueCounts(queue="q"))
    server.on("QueueStats", pb.QueueStatsResponse(outcomes=[counts]))


@pytest.mark.parametrize(("deliveries", "code"), [(1, 0), (2, 1), (0, 1)], ids=["once", "twice", "never"])
def test_bench_checks_that_each_task_comes_back_once(
    deliveries: int, code: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bench, "STALL_S", 0.3)
    monkeypatch.setattr(bench, "POLL_MS", 1)
    with ScriptedServer() as server:
        bench_server(server, deliveries)
        cli = Cli(server, capsys)
        options = ["--tasks", "40", "--batch", "10", "--payload-bytes", "8", "--producers", "1", "--consumers", "1"]
        printed = cli.json("bench", *options, code=code)
        assert (printed["tasks"], printed["accepted"]) == (40, 40)
        if code:
            assert cli.json_err()["error"]["reason"] == "NOT_EXACTLY_ONCE"
            assert printed["missing"] == 40 if not deliveries else printed["repeated"] > 0
        else:
            assert (printed["finished"], printed["missing"], printed["repeated"]) == (40, 0, 0)
            assert printed["enqueue_tasks_per_s"] > 0
            assert printed["cpu_us_per_task"] > 0
