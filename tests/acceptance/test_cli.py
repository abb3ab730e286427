"""The command line against a real server: what a new user does first, tasks, queues, dead letters, a worker, a
benchmark, and wrong use.

Commands run in this process unless it matters that they do not: a start of Python costs more than most of them.
"""

import json
import os
import pty
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast.cli.main import main
from tests.integration import preloaded
from tests.integration.server import DEADLINE_S, ServerProcess, wait_until

NO_TASK = "018f3a1c-0000-8000-8000-00000000ffff"

TASKS = """
import time
from pathlib import Path
from holdfast.client import Holdfast

app = Holdfast()  # the environment says where the server is

@app.task(queue="sums")
def add(a, b):
    return a + b

@app.task(queue="sums", max_attempts=1)
def broken(secret):
    raise ValueError("it does not work")

@app.task(queue="slow")
def slow(started, go_on):
    Path(started).touch()
    while not Path(go_on).exists():
        time.sleep(0.01)
    return "done"
"""


class Here:
    """Commands of a person whose HOLDFAST_ADDRESS is set, in a directory with tasks.py."""

    def __init__(self, directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.directory = directory
        self._capsys = capsys
        self.out = ""
        self.err = ""
        self._started: list[subprocess.Popen[str]] = []

    def run(self, *arguments: str) -> int:
        self._capsys.readouterr()
        code = main(arguments)
        self.out, self.err = self._capsys.readouterr()
        assert "Traceback" not in self.err
        return code

    def json(self, *arguments: str, code: int = 0) -> dict[str, Any]:
        assert self.run(*arguments, "--json") == code, self.err
        value: dict[str, Any] = json.loads(self.out)
        return value

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        """As the executable."""
        command = [sys.executable, "-m", "holdfast.cli", *arguments]
        pipe = subprocess.PIPE
        self._started.append(
            subprocess.Popen(command, cwd=self.directory, stdin=pipe, stdout=pipe, stderr=pipe, text=True)
        )
        return self._started[-1]

    def ended(self, *arguments: str) -> str:
        """What the executable prints until its good end."""
        done = preloaded.run(*arguments)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def close(self) -> None:
        """Leaves nothing running, whatever a test has come to."""
        for process in self._started:
            if process.poll() is None:
                process.kill()
            process.communicate()

    def enqueue(self, *arguments: str) -> str:
        task_id: str = self.json("enqueue", *arguments)["task_id"]
        return task_id

    def start_slow_task(self) -> str:
        """A task that a worker has begun, and that goes on until it is told to end."""
        started, go_on = self.directory / "started", self.directory / "go_on"
        task_id = self.enqueue("slow", "slow", json.dumps([str(started), str(go_on)]))
        wait_until(started.exists, "the slow task to start")
        return task_id

    def end_slow_task(self) -> None:
        (self.directory / "go_on").touch()


@pytest.fixture
def here(
    shared_server: ServerProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Iterator[Here]:
    monkeypatch.setenv("HOLDFAST_ADDRESS", shared_server.address)
    (tmp_path / "tasks.py").write_text(TASKS)
    here = Here(tmp_path, capsys)
    yield here
    here.close()


@pytest.fixture
def worker(here: Here) -> subprocess.Popen[str]:
    return here.start("worker", "tasks:app", "-q", "sums:2", "-q", "slow", "-c", "4", "--name", "cli-worker")


def stop(process: subprocess.Popen[str], number: int = signal.SIGTERM) -> tuple[int, str, str]:
    process.send_signal(number)
    out, err = process.communicate(timeout=DEADLINE_S)
    return process.returncode, out, err


def test_the_banner_says_where_things_are_and_how_to_go_on(shared_server: ServerProcess) -> None:
    first_task = f'holdfast enqueue default greet \'{{"name": "world"}}\' --address {shared_server.address}'
    wait_until(lambda: first_task in shared_server.log_text, "the whole banner, which comes after the server serves")
    banner = shared_server.log_text
    assert f"http://127.0.0.1:{shared_server.ops_port}/metrics" in banner
    assert str(shared_server.data_dir) in banner


def test_enqueue_look_and_get(here: Here) -> None:
    """As executables: these are what a new user tries first."""
    enqueued = json.loads(here.ended("enqueue", "orders", "ship", '{"order": 17}', "--priority", "7", "--json"))
    stats = json.loads(here.ended("queue", "stats", "orders", "--json"))["queues"][0]
    assert (stats["queue"], stats["ready"], stats["claimed"], stats["dead"]) == ("orders", 1, 0, 0)
    task = json.loads(here.ended("task", "get", enqueued["task_id"], "--json"))
    assert (task["state"], task["queue"], task["priority"]) == ("READY", "orders", 7)
    for people in (("queue", "stats", "orders"), ("task", "get", enqueued["task_id"])):
        assert "orders" in here.ended(*people)


def test_a_worker_from_its_start_to_its_warm_end(here: Here, worker: subprocess.Popen[str]) -> None:
    assert here.json("enqueue", "sums", "add", "[1, 2]", "--wait")["result_json"] == 3
    assert here.json("enqueue", "sums", "add", '{"a": 1, "b": 5}', "--wait")["result_json"] == 6
    dead = here.enqueue("sums", "broken", '["a secret of mine"]', "--max-attempts", "1")
    assert here.run("task", "wait", dead, "--timeout", "30s") == 6
    assert "ValueError: it does not work" in here.err
    slow = here.start_slow_task()
    worker.send_signal(signal.SIGTERM)
    here.end_slow_task()
    out, err = worker.communicate(timeout=DEADLINE_S)
    assert (worker.returncode, out) == (0, "")
    for words in ("sums (at most 2), slow", "cli-worker", "broken", "3 succeeded, 1 failed"):
        assert words in err
    assert "a secret of mine" not in err
    assert here.json("task", "get", slow)["result_json"] == "done", "the warm shutdown let it finish"
    assert here.run("dlq", "discard", dead, "--yes") == 0


def test_dead_letters_from_ls_to_discard(here: Here, worker: subprocess.Popen[str]) -> None:
    ids = [here.enqueue("sums", "broken", f"[{number}]", "--max-attempts", "1") for number in range(3)]
    for task_id in ids:
        assert here.run("task", "wait", task_id, "--timeout", "30s") == 6
    assert stop(worker)[0] == 0
    listed = here.json("dlq", "ls", "sums")
    assert sorted(dead_letter["task_id"] for dead_letter in listed["dead_letters"]) == sorted(ids)
    assert here.json("dlq", "ls", "sums", "--limit", "2")["more"] is True
    assert here.run("dlq", "ls", "sums") == 0
    assert "ATTEMPTS_SPENT" in here.out
    assert here.json("dlq", "show", ids[1])["payload_json"] == [1]
    assert here.json("dlq", "retry", ids[0])["retried"] == 1
    assert here.run("dlq", "retry", ids[0]) == 1, "it is not dead any more"
    refused = here.start("dlq", "retry", "--all", "--queue", "sums")
    assert "Expected --yes to retry all 2 dead letters of queue sums" in refused.communicate("y\n", DEADLINE_S)[1]
    assert refused.returncode == 2
    assert here.json("dlq", "retry", "--all", "--queue", "sums", "--yes")["retried"] == 2
    [stats] = here.json("queue", "stats", "sums")["queues"]
    assert (stats["ready"], stats["dead"]) == (3, 0)
    assert here.json("task", "cancel", *ids)["tasks"] == [
        {"task_id": task_id, "state": "CANCELLED", "cancelled": True} for task_id in ids
    ]


def test_all_of_a_queue_at_a_terminal(here: Here, worker: subprocess.Popen[str]) -> None:
    task_id = here.enqueue("sums", "broken", "[1]", "--max-attempts", "1")
    assert here.run("task", "wait", task_id, "--timeout", "30s") == 6
    command = [sys.executable, "-m", "holdfast.cli", "dlq", "discard", "--all", "--queue", "sums"]
    ours, theirs = pty.openpty()
    try:
        os.write(ours, b"y\n")
        done = subprocess.run(
            command, stdin=theirs, stdout=subprocess.PIPE, stderr=theirs, text=True, check=False, timeout=DEADLINE_S
        )
        shown = os.read(ours, 100_000).decode()
    finally:
        os.close(ours)
        os.close(theirs)
    assert (done.returncode, done.stdout) == (0, "1 dead letter of queue sums discarded.\n")
    assert "Discard the only dead letter of queue sums? There is no way back. [y/N]: " in shown
    assert "1/1" in shown, "the progress bar"


def test_cancel_of_a_running_task_and_ctrl_c_in_a_wait(here: Here, worker: subprocess.Popen[str]) -> None:
    task_id = here.start_slow_task()
    assert here.run("task", "cancel", task_id) == 0
    assert "its worker will be told to stop" in here.out
    here.end_slow_task()
    waiting = here.enqueue("nobody-serves-this", "t")
    assert here.run("task", "wait", waiting, "--timeout", "100ms") == 7
    process = here.start("enqueue", "nobody-serves-this", "t", "--wait")
    assert process.stdout is not None
    assert process.stdout.readline().startswith("Accepted task")
    code, _, err = stop(process, signal.SIGINT)
    assert code == 130
    assert "Traceback" not in err


def test_queue_ls(here: Here) -> None:
    here.enqueue("a-queue", "t")
    assert "a-queue" in [queue["queue"] for queue in here.json("queue", "ls")["queues"]]
    assert here.run("queue", "ls") == 0
    assert re.search(r"^a-queue +1 ", here.out, re.MULTILINE)


def test_a_server_without_queues(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with ServerProcess(tmp_path) as server:
        assert main(["queue", "ls", "--address", server.start().address]) == 0
        assert "There are no queues yet" in capsys.readouterr().out
        assert main(["queue", "ls", "--address", f"127.0.0.1:{server.ops_port}"]) == 4
        assert "Check the port" in capsys.readouterr().err, "that is its HTTP port"


def test_the_request_id_is_remembered_as_long_as_asked(here: Here) -> None:
    options = ["--request-id", "order-18", "--request-id-ttl", "1h"]
    first, second = (here.json("enqueue", "once", "t", *options) for _ in range(2))
    assert (first["task_id"], second["duplicate"]) == (second["task_id"], True)


def test_bench_leaves_nothing_behind(here: Here) -> None:
    report = here.json("bench", "--tasks", "500", "--batch", "50", "--payload-bytes", "20")
    assert (report["finished"], report["missing"], report["repeated"], report["left_behind"]) == (500, 0, 0, 0)
    [stats] = here.json("queue", "stats", report["queue"])["queues"]
    assert [stats[state] for state in ("ready", "claimed", "delayed", "retrying", "dead")] == [0] * 5
    assert stats["succeeded_total"] == 500


def test_an_interrupted_bench_leaves_nothing_behind(here: Here, shared_server: ServerProcess) -> None:
    written = shared_server.entries_written
    process = here.start("bench", "--tasks", "1000000", "--batch", "100", "--json")
    wait_until(lambda: shared_server.entries_written > written + 20, "the benchmark to be under way")
    code, out, err = stop(process, signal.SIGINT)
    assert code == 130, err
    report = json.loads(out)
    assert report["interrupted"]
    assert 0 < report["accepted"] == report["finished"] < 1_000_000
    [stats] = here.json("queue", "stats", report["queue"])["queues"]
    assert (stats["ready"], stats["claimed"]) == (0, 0)


@pytest.mark.parametrize(
    ("arguments", "exit_code", "says"),
    [
        (("task", "wait", NO_TASK), 5, "Check the id"),
        (("task", "wait", "nonsense"), 1, "An id looks like"),
        (("task", "cancel", NO_TASK), 5, NO_TASK),
        (("dlq", "ls", "never-used"), 5, "holdfast queue ls"),
        (("dlq", "ls", "bad queue"), 1, "queue"),
        (("dlq", "show", NO_TASK), 5, "Check the id"),
        (("dlq", "retry", NO_TASK), 5, NO_TASK),
        (("dlq", "discard", "--all", "--queue", "never-used", "--yes"), 5, "never-used"),
        (("queue", "ls", "--address", "localhost"), 2, "host:port"),
        (("queue", "ls", "--address", "localhost:1"), 4, "holdfast dev"),
        (("worker", "no_such_module:app"), 2, "There is no module 'no_such_module'"),
        (("task", "get", NO_TASK), 5, "task"),
        (("task", "get", "nonsense"), 1, "task_id"),
        (("queue", "stats", "never-used"), 5, "never-used"),
        (("enqueue", "bad queue", "t"), 1, "queue"),
        (("enqueue", "q", "t", "{not json"), 2, "JSON"),
        (("enqueue", "q", "t", "--run-at", "2099-01-01T00:00:00+00:00"), 1, "run_at_ms"),
    ],
)
def test_a_mistake_gets_one_clear_line(here: Here, arguments: tuple[str, ...], exit_code: int, says: str) -> None:
    assert here.run(*arguments) == exit_code
    assert says in here.err
    assert len(here.err.splitlines()) <= 2
    assert here.run(*arguments, "--json") == exit_code
    assert json.loads(here.err)["exit_code"] == exit_code


def test_a_reader_that_goes_early_is_no_error(here: Here) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    try:
        command = [sys.executable, "-m", "holdfast.cli", "queue", "ls"]
        done = subprocess.run(
            command, stdout=writer, stderr=subprocess.PIPE, text=True, check=False, timeout=DEADLINE_S
        )
    finally:
        os.close(writer)
    assert (done.returncode, done.stderr) == (141, "")
