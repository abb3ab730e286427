"""Deliberate bugs in real brokers: the chaos harness catches each, without any fault or with the one that it takes."""

import asyncio
from pathlib import Path

import pytest

from bugs.sitecustomize import BUGS
from chaos import phases
from chaos.faults import Fault, Nemesis
from chaos.options import TICK_EVERY_MS
from chaos.phases import Plan, Report, Run
from chaos.run import BUGS_DIR
from tests.integration.cluster import Cluster
from tests.long import IS_LONG, long_only

ALONE = sorted(set(BUGS) - {"replicas-differ", "ticks-not-made-up"})
SECONDS = {"ttl-ignored": 5}  # of load; 2 are enough for all others


async def run_with(bug: str, directory: Path, *faults: Fault, size: int = 1) -> Report:
    env = {"PYTHONPATH": str(BUGS_DIR), "CHAOS_BUG": bug}
    with Cluster(directory, size=size, env=env) as cluster:
        await asyncio.to_thread(cluster.start)
        plan = Plan(list(faults), seed=1, seconds=SECONDS.get(bug, 2), strikes_max=len(faults))
        return await Run(cluster, plan, directory).play()


@pytest.mark.parametrize("bug", ALONE if IS_LONG else ALONE[::3])
async def test_a_bug_is_caught(tmp_path: Path, bug: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(phases, "DRAIN_S_MAX", 5.0)  # some bugs leave nothing to be drained
    report = await run_with(bug, tmp_path)
    _, kind = BUGS[bug]
    assert kind in {violation.kind for violation in report.violations}, report.counts


async def test_replicas_that_differ_are_caught(tmp_path: Path) -> None:
    report = await run_with("replicas-differ", tmp_path, size=3)
    assert "hash" in {violation.kind for violation in report.violations}


@long_only
async def test_ticks_that_nobody_makes_up_for_are_caught(tmp_path: Path) -> None:
    async def be_away_for_a_tick(nemesis: Nemesis) -> None:
        await asyncio.to_thread(nemesis.cluster.kill, "n1")
        nemesis.struck("kill n1")
        await asyncio.sleep(TICK_EVERY_MS / 1000)
        await nemesis.start("n1")

    report = await run_with("ticks-not-made-up", tmp_path, Fault(be_away_for_a_tick))
    assert {violation.kind for violation in report.violations} == {"tick"}
