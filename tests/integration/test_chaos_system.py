"""The chaos harness on a whole system, in its short form: etcd, three brokers with eight shards, two routers, real
workers; faults and operations one after the other, and every promise holds.

`make chaos` (jepsen-style/README.md) does the same for as long as one likes.
"""

from pathlib import Path

import pytest

from tests.integration.chaos_runs import run_chaos
from tests.long import IS_LONG, long_only

PACE = "2" if IS_LONG else "4"  # faults are to meet calls, not a machine that has no time for them
SYSTEM = ("--brokers", "3", "--shards", "8", "--routers", "2", "--workers", "3", "--pace", PACE, "--seed", "1")


@pytest.mark.timeout(300)
def test_every_promise_holds_in_a_whole_system(tmp_path: Path) -> None:
    faults = "kill,pause,cut-two-way,kill-router,power-cut,disk-slow"
    arguments = ("--fault", faults, "--in-turn", "--operation", "spread", "--seconds", "40")
    ended = run_chaos(tmp_path / "run", *SYSTEM, *arguments)
    assert ended.violations == []
    assert ended.exit_code == 0
    # All promises are easily held if nothing happens.
    assert ended.counts["tasks"] > 200
    assert ended.counts["handlers"] > 100, "the workers of the library did nothing"
    assert ended.counts["faults"] >= 4, ended.summary["skipped"]
    happened = ("ticks", "unique_taken", "cancelled", "read_ok", "dead_attempts_spent", "extend_ok", "ack_fail")
    assert [what for what in happened if not ended.counts.get(what)] == []
    page = (tmp_path / "run" / "report.html").read_text()
    assert "every promise held" in page
    assert page.count("<svg") == 3


@pytest.mark.timeout(300)
def test_a_broker_that_is_alone_keeps_its_promises_however_often_it_is_killed(tmp_path: Path) -> None:
    """SIGKILL: nothing that was acknowledged is lost, nothing comes back after its ack. No other replica helps."""
    alone = ("--brokers", "1", "--shards", "1", "--routers", "1", "--workers", "1", "--pace", "4", "--seed", "1")
    ended = run_chaos(tmp_path / "run", *alone, "--workload", "calls", "--fault", "kill", "--seconds", "12")
    assert ended.violations == []
    assert ended.counts["faults"] >= 2
    assert ended.counts["ack_ok"] > 100, "the load was too small to mean anything"
    assert ended.counts["enqueue_info"] > 0, "no kill hit an enqueue"


@long_only
@pytest.mark.timeout(300)
@pytest.mark.parametrize("faults", ["disk-lost", "bit-flip-log,bit-flip-state", "kill-all,power-cut"])
def test_disks_that_are_lost_or_damaged(tmp_path: Path, faults: str) -> None:
    ended = run_chaos(tmp_path / "run", *SYSTEM, "--fault", faults, "--in-turn", "--seconds", "40")
    assert ended.violations == []
