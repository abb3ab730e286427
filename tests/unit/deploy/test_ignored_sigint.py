"""A shell that runs the tests in the background has them ignore SIGINT, and so would all that they start."""

import subprocess
import sys
from pathlib import Path

REPO = Path(__file__).resolve().parents[3]
SHOW = "import signal; print(signal.getsignal(signal.SIGINT).__name__)"  # an ignored one has no name


def python(code: str) -> str:
    return f"{sys.executable} -c '{code}'"


def test_tests_and_what_they_start_can_be_interrupted_whoever_started_them() -> None:
    starts = f'import tests.conftest, subprocess, sys; {SHOW}; subprocess.run([sys.executable, "-c", "{SHOW}"])'
    shown = subprocess.run(
        ["bash", "-c", f"trap '' INT; exec {python(starts)}"], cwd=REPO, capture_output=True, text=True, check=False
    )
    assert shown.stdout.split() == ["default_int_handler"] * 2, shown.stderr
