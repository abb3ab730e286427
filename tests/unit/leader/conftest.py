"""What leaders are tried with."""

import pytest

from tests.unit.replica.small_shard import SmallShard


@pytest.fixture
async def small() -> SmallShard:
    return SmallShard()
