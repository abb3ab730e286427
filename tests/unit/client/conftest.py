"""What clients are tried with: a scripted server, or a router with two leaders. Files with clients of another kind make
their own."""

from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
import pytest_asyncio

from holdfast.client import AsyncClient, _rpc
from holdfast.transport.negotiated import NegotiatedChannels
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


@pytest_asyncio.fixture
async def direct(cluster: Cluster) -> AsyncIterator[AsyncClient]:
    """A client that goes straight to the leaders."""
    async with AsyncClient(cluster.router.address, direct=True) as client:
        yield client


@pytest.fixture
def channels(monkeypatch: pytest.MonkeyPatch) -> list[NegotiatedChannels]:
    """Those of all clients that are made from now on."""
    made: list[NegotiatedChannels] = []

    def make(*settings: Any, **named: Any) -> NegotiatedChannels:
        made.append(NegotiatedChannels(*settings, **named))
        return made[-1]

    monkeypatch.setattr(_rpc, "NegotiatedChannels", make)
    return made


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    with two_shards() as cluster:
        yield cluster
