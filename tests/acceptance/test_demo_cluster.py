"""`make demo-cluster`: it ends by itself, tells what it does in order, and leaves nothing behind."""

import json
import sys
from pathlib import Path

import pytest

from examples.demo.record import Verdict
from examples.demo_cluster import __main__ as demo
from examples.demo_cluster.story import SHARDS, Account, Story
from tests.acceptance.running import interrupt_demo, run_demo
from tests.long import long_only

COMMAND = [sys.executable, "-m", "examples.demo_cluster"]
TASKS = 1500
TIME_LIMIT_S = 240


@long_only
@pytest.mark.timeout(TIME_LIMIT_S + 90)
def test_no_task_is_lost(tmp_path: Path) -> None:
    command = [*COMMAND, "--tasks", str(TASKS), "--time-limit", str(TIME_LIMIT_S), "--json"]
    done = run_demo(command, tmp_path, TIME_LIMIT_S + 60)
    assert done.returncode == 0, done.stdout + done.stderr
    summary = json.loads(done.stdout)
    assert summary["good"], summary
    assert (summary["tasks"], summary["completed"], summary["problems"]) == (TASKS, TASKS, [])
    assert summary["runs"] >= TASKS
    assert (summary["shards_equal"], summary["shards"]) == (SHARDS, SHARDS)
    events = (
        "A cluster runs",
        f"A producer enqueues {TASKS:,} tasks",
        "is killed with SIGKILL",
        "All shards have a leader again",
        "is started again on its data",
        "n2 is drained",
        "n2 is empty",
        "is a new node of the cluster",
        "The cluster is balanced again",
        "Every task is completed and acked.",
        f"All {TASKS:,} tasks were completed, none was lost",
    )
    places = [done.stderr.index(event) for event in events]
    assert places == sorted(places)
    assert "\x1b" not in done.stderr
    assert list(tmp_path.iterdir()) == []


@long_only
@pytest.mark.timeout(180)
def test_an_interrupted_demo_leaves_nothing_behind(tmp_path: Path) -> None:
    assert interrupt_demo(COMMAND, tmp_path, "A producer enqueues", deadline_s=90)[0] == demo.EXIT_INTERRUPTED


def test_a_bad_verdict_is_an_exit_code(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    lost = Account(Verdict(999, 999, 0, ("1 tasks never ran: 7",)), dict.fromkeys(range(SHARDS), True), 0.5)
    monkeypatch.setattr(Story, "tell", lambda story: lost)
    monkeypatch.setattr(Story, "end", lambda story: None)
    assert demo.main(["--tasks", str(TASKS)]) == demo.EXIT_FAILED
    said = capsys.readouterr().out
    assert "FAILED: 1 tasks never ran: 7" in said
    assert "none was lost" not in said


@pytest.mark.parametrize("tasks", ["0", "999", "1000001", "many"])
def test_a_number_of_tasks_that_makes_no_sense_is_refused(tasks: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as refused:
        demo.main(["--tasks", tasks])
    assert refused.value.code == 2
    assert "--tasks" in capsys.readouterr().err
