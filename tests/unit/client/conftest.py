"""What clients are tried with: a scripted server, or a router with two leaders. Files with clients of another kind make
their own."""

from collections.abc import AsyncIterator, Iterator

import pytest
import pytest_asyncio

from holdfast.client import AsyncClient
from tests.unit.client.scripted_server import ScriptedServer
from tests.unit.client.scripted_shards import Cluster, two_shards


@pytest.fixture
def server() -> Iterator[ScriptedServer]:
    with ScriptedServer() as server:
        yield server


@pytest_asyncio.fixture
async def client(server: ScriptedServer) -> AsyncIterator[AsyncClient]:
    async with AsyncClient(server.address) as client:
        yield client


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    with two_shards() as cluster:
        yield cluster
