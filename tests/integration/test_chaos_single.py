"""The chaos harness on a single broker, in its short form: it holds its promises, and a broken one is caught."""

import asyncio
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest

from chaos import phases
from chaos.faults import FAULTS, Fault, Nemesis
from chaos.phases import Plan, Report, Run
from tests.integration.cluster import Cluster


async def run_one(
    directory: Path, fault: Fault, *, strikes: int, power: bool = False, env: Mapping[str, str] | None = None
) -> Report:
    with Cluster(directory, size=1, power=power, env=env) as cluster:
        await asyncio.to_thread(cluster.start)
        plan = Plan([fault], seed=1, seconds=60, strikes_max=strikes, between_s=0.8)
        return await Run(cluster, plan, directory).play()


async def test_a_broker_that_is_killed_keeps_every_promise(tmp_path: Path) -> None:
    report = await run_one(tmp_path, FAULTS["kill-leader"], strikes=2)
    assert report.violations == []
    assert len(report.failovers_s) == 2
    # Otherwise it proves nothing.
    assert report.counts["tasks"] > 50
    assert report.counts["claims"] > 50
    assert report.counts["enqueue_info"] > 0, "no kill hit an enqueue"


async def test_a_broker_that_loses_its_disk_is_caught(tmp_path: Path) -> None:
    """With one replica the tasks are gone. A harness that did not say so would say nothing."""

    async def lose_everything(nemesis: Nemesis) -> None:
        await asyncio.to_thread(nemesis.cluster.kill, "n1")
        await asyncio.to_thread(nemesis.cluster.lose_disk, "n1")
        nemesis.struck("disk of n1 lost")
        await nemesis.start("n1")

    report = await run_one(tmp_path, Fault(lose_everything), strikes=1)
    assert {"lost", "unexpected"} <= {violation.kind for violation in report.violations}


async def test_a_disk_that_lies_is_caught_by_a_power_cut(tmp_path: Path) -> None:
    """A kill cannot see it: what the process wrote is in the page cache."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("needs a C compiler (cc)")
    source, library = Path(phases.__file__).with_name("no_sync.c"), tmp_path / "no_sync.so"
    subprocess.run([compiler, "-shared", "-fPIC", "-o", str(library), str(source)], check=True)
    fault, env = FAULTS["power-cut-all"], {"LD_PRELOAD": str(library)}
    report = await run_one(tmp_path, fault, strikes=1, power=True, env=env)
    assert "lost" in {violation.kind for violation in report.violations}
