"""Deliberate bugs in real servers and workers: the chaos harness catches each, or it would prove nothing."""

from pathlib import Path

import pytest

from bugs.sitecustomize import BUGS
from chaos.proof import TRIALS, trial
from tests.integration.chaos_runs import first_port, run_chaos
from tests.long import IS_LONG, long_only

# One that only a whole system shows, and one that only the end of a run tells. The long tests have all.
SOME = ("waits-share-the-budget", "task-dropped")
# How long spared shards take is for a sharp judge: it must find the bug each time, and nothing without it.
SHARP = "acks-wait-for-the-slowest"
SEEDS = (1, 2, 3)
ALL_TRIALS = [*((bug, SEEDS[0]) for bug in BUGS), *((SHARP, seed) for seed in SEEDS[1:])]


@pytest.mark.timeout(300)
@pytest.mark.parametrize(("bug", "seed"), ALL_TRIALS if IS_LONG else [(bug, SEEDS[0]) for bug in SOME])
def test_a_bug_is_caught(tmp_path: Path, bug: str, seed: int) -> None:
    found = trial(bug, seed, tmp_path / "run", "--first-port", first_port())
    assert found.is_caught, found.kinds


@pytest.mark.timeout(300)
@long_only
@pytest.mark.parametrize("seed", SEEDS)
def test_a_good_build_passes_the_sharp_trial(tmp_path: Path, seed: int) -> None:
    ended = run_chaos(tmp_path / "run", *TRIALS[SHARP], "--drain", "90", "--seed", str(seed))
    assert ended.violations == []
    assert ended.counts["faults"] > 2
