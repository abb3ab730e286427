"""Calls over several shards, straight to the leaders, of which one does not answer."""

from collections.abc import AsyncIterator, Iterator

import pytest
import pytest_asyncio

from holdfast.client import Accepted, AsyncClient, NewTask, OutcomeUnknown, Unavailable
from holdfast.common.backoff import Backoff
from holdfast.routing import retries
from holdfast.transport import parts
from tests.unit.client.scripted_server import Hang, not_leader
from tests.unit.client.scripted_shards import Cluster, accept, queue_at, two_shards

AT_0, AT_1 = queue_at(0), queue_at(1)
LONG_S = 90.0  # the call has time, and no test has as much
TASKS = [NewTask(AT_0, "t0"), NewTask(AT_1, "t1"), NewTask(AT_0, "t2")]

pytestmark = pytest.mark.timeout(40)


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    monkeypatch.setattr(parts, "PART_S", 0.3)
    monkeypatch.setattr(parts, "UNHEALTHY_PART_S", LONG_S)
    with two_shards() as cluster:
        cluster.leaders[0].on("Enqueue", accept(0))
        for server in (cluster.router, *cluster.leaders):
            server.on("FindLeader", not_leader(None, 0))
        yield cluster


@pytest_asyncio.fixture
async def client(cluster: Cluster) -> AsyncIterator[AsyncClient]:
    async with AsyncClient(cluster.router.address, direct=True, timeout_s=LONG_S) as client:
        yield client


async def test_a_silent_part_is_given_up_when_the_others_have_their_answers(
    cluster: Cluster, client: AsyncClient
) -> None:
    cluster.leaders[1].on("Enqueue", Hang())
    first, silent, last = await client.enqueue_many(TASKS)
    assert (first, last) == (Accepted("0:t0"), Accepted("0:t2"))
    assert isinstance(silent, OutcomeUnknown), "it may have taken effect"
    assert silent.retry_after_ms > 0


async def test_of_a_part_that_nobody_leads_it_is_known_that_nothing_was_done(
    cluster: Cluster, client: AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    # It is given up in a pause: of an attempt that is cut off nobody knows what became of it.
    monkeypatch.setattr(retries, "BACKOFF", Backoff(first_s=LONG_S, max_s=LONG_S))
    for server in (cluster.router, *cluster.leaders):
        server.on("Enqueue", not_leader(None, 0))
    first, refused, _ = await client.enqueue_many(TASKS)
    assert first == Accepted("0:t0")
    assert isinstance(refused, Unavailable)
    assert refused.reason == "NOT_LEADER"


async def test_a_shard_that_was_given_up_has_less_time_until_it_answers(
    cluster: Cluster, client: AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster.leaders[1].on("Enqueue", Hang(), Hang(), accept(1))
    await client.enqueue_many(TASKS)
    monkeypatch.setattr(parts, "PART_S", LONG_S)
    monkeypatch.setattr(parts, "UNHEALTHY_PART_S", 0.3)
    assert isinstance((await client.enqueue_many(TASKS))[1], OutcomeUnknown)
    assert (await client.enqueue_many(TASKS))[1] == Accepted("1:t1")
