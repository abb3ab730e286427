"""Deliberate bugs in real servers and workers: the chaos harness catches each, or it would prove nothing."""

from pathlib import Path

import pytest

from bugs.sitecustomize import BUGS
from chaos.proof import trial
from tests.integration.chaos_runs import first_port
from tests.long import IS_LONG

# Of different judges. The long tests have all.
SOME = ("lease-too-short", "task-dropped")


@pytest.mark.timeout(300)
@pytest.mark.parametrize("bug", list(BUGS) if IS_LONG else SOME)
def test_a_bug_is_caught(tmp_path: Path, bug: str) -> None:
    found = trial(bug, 1, tmp_path / "run", "--first-port", first_port())
    assert found.is_caught, found.kinds
