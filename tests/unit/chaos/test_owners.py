"""A harness that crashed leaves no process behind for longer than until the next one starts."""

import os
import subprocess
import sys

import pytest

from chaos.system.owners import INSIDE, VARIABLE, end_what_was_left, owner


def sleeper(whose: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-c", "print('up', flush=True); import time; time.sleep(60)"]
    process = subprocess.Popen(command, env={**os.environ, VARIABLE: whose}, stdout=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.readline()
    return process


def test_only_processes_of_dead_owners_are_ended() -> None:
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    with sleeper(f"{dead.pid}-17") as left, sleeper(owner()) as mine:
        try:
            ended = end_what_was_left()
            assert left.pid in ended
            assert left.wait(10) < 0
            assert mine.pid not in ended
            assert mine.poll() is None
        finally:
            mine.kill()
            left.kill()


def test_a_number_that_was_given_again_is_another_owner() -> None:
    with sleeper(f"{os.getpid()}-0") as left:
        assert left.pid in end_what_was_left()


def test_a_harness_in_namespaces_of_its_own_owns_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its own number means another process outside, which is none of its owners."""
    monkeypatch.setenv(INSIDE, "root")
    assert owner() == ""
    with sleeper(owner()) as theirs:
        try:
            assert theirs.pid not in end_what_was_left()
        finally:
            theirs.kill()
