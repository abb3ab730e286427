"""What the machine's example tests are tried with."""

import pytest

from tests.unit.machine.machine_shard import Shard


@pytest.fixture
def shard() -> Shard:
    return Shard()
