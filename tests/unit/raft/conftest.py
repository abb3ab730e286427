"""What replicas are tried with."""

import pytest

from tests.unit.raft.raft_stage import Stage


@pytest.fixture
def stage() -> Stage:
    """Three of them, of which nobody leads yet."""
    return Stage()
