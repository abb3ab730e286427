"""`make demo`: it ends by itself, its verdict can fail, and it leaves nothing behind, however it ends."""

import re
import socket
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from examples.demo import __main__ as demo
from examples.demo.record import Record, Verdict, judge
from examples.demo.story import Story
from holdfast.client import QueueStats
from tests.acceptance.running import interrupt_demo, run_demo

COMMAND = [sys.executable, "-m", "examples.demo"]
TASKS = 10


def counts(**changes: int) -> QueueStats:
    return replace(QueueStats(queue="demo", succeeded_total=TASKS), **changes)  # type: ignore[arg-type]  # all are int


def write(directory: Path, worker: str, lines: list[object]) -> None:
    (directory / f"worker-{worker}").write_text("".join(f"{line}\n" for line in lines))


@pytest.fixture
def complete(tmp_path: Path) -> Path:
    """The record of two workers that did everything, and one task twice."""
    write(tmp_path, "1", [0, 1, 2, 3, 4, 5])
    write(tmp_path, "2", [5, 6, 7, 8, 9])
    return tmp_path


def verdict_on(directory: Path, stats: QueueStats) -> Verdict:
    record = Record(directory)
    record.refresh()
    return judge(TASKS, record, stats)


def test_everything_done_is_good_also_if_something_was_done_twice(complete: Path) -> None:
    assert verdict_on(complete, counts()) == Verdict(completed=10, runs=11, repeated=1, problems=())


def test_a_line_that_is_missing_from_the_record_is_found(complete: Path) -> None:
    write(complete, "2", [5, 6, 8, 9])
    assert verdict_on(complete, counts()).problems == ("1 tasks never ran: 7",)


@pytest.mark.parametrize(
    ("line", "says"), [(10, "1 tasks ran that nobody enqueued: 10"), ("4x", "1 lines of the record are no numbers")]
)
def test_a_line_that_should_not_be_there_is_found(complete: Path, line: object, says: str) -> None:
    write(complete, "3", [line])
    assert verdict_on(complete, counts()).problems == (says,)


@pytest.mark.parametrize("state", ["ready", "claimed", "delayed", "retrying", "dead"])
def test_a_task_that_the_server_still_has_is_a_problem(complete: Path, state: str) -> None:
    assert verdict_on(complete, counts(**{state: 1})).problems == (f"the server still has 1 tasks that are {state}",)


def test_the_servers_own_count_must_agree(complete: Path) -> None:
    assert verdict_on(complete, counts(succeeded_total=9)).problems == (
        "the server counts 9 tasks as succeeded instead of 10",
    )


def test_a_record_is_read_as_it_grows_and_only_in_whole_lines(tmp_path: Path) -> None:
    record = Record(tmp_path)
    assert record.refresh() == 0
    (tmp_path / "worker-1").write_text("0\n1\n2")
    assert record.refresh() == 2
    (tmp_path / "worker-1").write_text("0\n1\n23\n")
    assert record.refresh() == 3
    assert sorted(record.runs) == [0, 1, 23]


def test_a_bad_verdict_is_an_exit_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(Story, "tell", lambda story: Verdict(999, 999, 0, ("1 tasks never ran: 7",)))
    assert demo.main(["--tasks", "1000"]) == 1
    said = capsys.readouterr().out
    assert "FAILED: 1 tasks never ran: 7" in said
    assert "none was lost" not in said


def test_no_task_is_lost(tmp_path: Path) -> None:
    done = run_demo([*COMMAND, "--tasks", "1000"], tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    events = (
        "Two workers run.",
        "1,000 tasks are enqueued.",
        "worker-1 is killed with SIGKILL",
        "The server is killed with SIGKILL",
        "The server is back on the same data",
        "A third worker runs",
        "Every number is in the record.",
        "1,000 different tasks in ",
        "1,000 succeeded, 0 dead",
        "All 1,000 tasks were completed, none was lost",
    )
    places = [done.stdout.index(event) for event in events]
    assert places == sorted(places)
    assert "\x1b" not in done.stdout  # plain lines where there is no terminal
    assert list(tmp_path.iterdir()) == []


def test_a_demo_that_takes_too_long_fails_and_cleans_up(tmp_path: Path) -> None:
    done = run_demo([*COMMAND, "--tasks", "1000000", "--time-limit", "1"], tmp_path)
    assert done.returncode == 1
    assert "FAILED: " in done.stdout
    assert "time limit of 1 s" in done.stdout
    assert list(tmp_path.iterdir()) == []


def test_an_interrupted_demo_leaves_nothing_behind(tmp_path: Path) -> None:
    exit_code, said = interrupt_demo(COMMAND, tmp_path, "Two workers run.")
    assert exit_code == 130
    found = re.search(r"The server runs at 127\.0\.0\.1:(\d+)\.", said)
    assert found is not None
    with pytest.raises(ConnectionRefusedError), socket.create_connection(("127.0.0.1", int(found[1])), timeout=5):
        pass


@pytest.mark.parametrize("tasks", ["0", "299", "1000001", "many"])
def test_a_number_of_tasks_that_makes_no_sense_is_refused(tmp_path: Path, tasks: str) -> None:
    refused = run_demo([*COMMAND, "--tasks", tasks], tmp_path)
    assert refused.returncode == 2
    assert "--tasks" in refused.stderr
