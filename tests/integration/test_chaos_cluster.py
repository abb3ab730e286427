"""The chaos harness on three brokers, in its short form: each fault strikes once, and every promise holds.

`python -m chaos.run` (jepsen-style/README.md) does the same again and again for as long as one likes.
"""

import asyncio
from pathlib import Path
from typing import Any

from chaos.faults import FAULTS
from chaos.phases import Plan, Report, Run
from tests.integration.cluster import Cluster
from tests.long import long_only


async def strike_in_turn(directory: Path, *faults: str, power: bool = False, **settings: Any) -> Report:
    with Cluster(directory, size=3, power=power, **settings) as cluster:
        await asyncio.to_thread(cluster.start)
        plan = Plan(
            [FAULTS[name] for name in faults], seed=1, seconds=90, strikes_max=len(faults), in_turn=True, between_s=0.8
        )
        report = await Run(cluster, plan, directory).play()
    assert [str(violation) for violation in report.violations] == []
    assert len(report.failovers_s) == len(faults)
    assert set(report.final.hashes) == {"n1", "n2", "n3"}
    return report


async def test_leaders_that_are_killed_or_stopped(tmp_path: Path) -> None:
    report = await strike_in_turn(tmp_path, "kill-leader", "pause-leader", "restart-all")
    assert len({term for _, term, _ in report.final.leaders}) >= 3, "no leader was replaced"
    # All promises are easily held if nothing happens.
    assert report.counts["tasks"] > 100
    assert report.counts["enqueue_info"] > 0, "no fault hit an enqueue"
    assert report.counts["ack_fail"] + report.counts["extend_fail"] > 0, "no stale token was tried"
    happened = ("ticks", "unique_taken", "cancelled", "read_ok", "dead_attempts_spent", "dead_ttl_passed")
    assert [what for what in happened if not report.counts.get(what)] == []


async def test_a_follower_that_is_killed_is_not_noticed(tmp_path: Path) -> None:
    """The other two are a majority, so nobody has to wait for an election. Nor is there one because the machine stalls
    for a moment: that is not what is looked at here."""
    report = await strike_in_turn(tmp_path, "kill-follower", election_ms=3000)
    assert len({term for _, term, _ in report.final.leaders}) == 1, "there was another election"


async def test_power_cuts(tmp_path: Path) -> None:
    await strike_in_turn(tmp_path, "power-cut-one", "power-cut-all", power=True)


async def test_a_lost_disk(tmp_path: Path) -> None:
    """The replica is rebuilt from the others, which the harness waits for."""
    await strike_in_turn(tmp_path, "disk-loss")


@long_only
async def test_damaged_files(tmp_path: Path) -> None:
    await strike_in_turn(tmp_path, "bit-flip-log", "bit-flip-state")
