"""For all tests of the log."""

import random

import pytest

from tests.simulation.fake_disk import FakeDisk


@pytest.fixture
def disk() -> FakeDisk:
    return FakeDisk(random.Random(1))
