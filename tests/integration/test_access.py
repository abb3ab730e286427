"""A node with access rules: who is let in, what each may do and see, over gRPC and in frames."""

import asyncio
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path

import pytest

from holdfast.access.editing import revoke_token
from holdfast.client import (
    AsyncClient,
    ClaimRef,
    Client,
    Extension,
    Failure,
    NewTask,
    NotFound,
    PermissionDenied,
    Rejected,
    Unauthenticated,
)
from tests.integration.access import Access
from tests.integration.server import DEADLINE_S, ServerProcess, wait_until

REVOKED_S = 5.0


@pytest.fixture(scope="module")
def access(tmp_path_factory: pytest.TempPathFactory) -> Access:
    return Access.make(tmp_path_factory.mktemp("access"))


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory, access: Access) -> Iterator[ServerProcess]:
    with ServerProcess(tmp_path_factory.mktemp("guarded"), access_file=access.path) as server:
        yield server.start()


@pytest.fixture(params=["grpc", "auto"])
def transport(request: pytest.FixtureRequest) -> str:
    return str(request.param)


class Clients:
    """One for each caller, over one transport."""

    def __init__(self, address: str, transport: str, access: Access) -> None:
        self._address = address
        self._transport = transport
        self._access = access
        self._open: dict[str, AsyncClient] = {}

    async def of(self, name: str) -> AsyncClient:
        if name not in self._open:
            token = self._access.tokens[name]
            client = AsyncClient(self._address, transport=self._transport, token=token, timeout_s=DEADLINE_S)
            self._open[name] = client
            await client.topology()  # then its frames are there soon
        return self._open[name]

    async def close(self) -> None:
        for client in self._open.values():
            await client.close()


@pytest.fixture
async def clients(broker: ServerProcess, transport: str, access: Access) -> AsyncIterator[Clients]:
    made = Clients(broker.address, transport, access)
    yield made
    await made.close()


async def test_who_has_no_valid_token_is_not_let_in(broker: ServerProcess, transport: str, access: Access) -> None:
    for token, says in ((None, "came without"), ("expired", "has expired"), ("unknown", "not valid")):
        text = None if token is None else access.tokens[token]
        async with AsyncClient(broker.address, transport=transport, token=text) as client:
            for _ in range(2):
                with pytest.raises(Unauthenticated, match=says):
                    await client.list_queues()


async def test_a_role_allows_what_it_says(clients: Clients) -> None:
    producer = await clients.of("all-of-q")
    accepted = await producer.enqueue(NewTask("q", "t", b"x"))
    assert (await producer.get_task(accepted.task_id)).queue == "q"
    for queue in ("other", "qq"):
        with pytest.raises(PermissionDenied, match=f"right to enqueue .* queue {queue}") as refused:
            await producer.enqueue(NewTask(queue, "t"))
        assert refused.value.metadata == {"right": "enqueue", "queue": queue}
    worker = await clients.of("worker")
    with pytest.raises(PermissionDenied):
        await worker.enqueue(NewTask("q", "t"))
    with pytest.raises(PermissionDenied):
        await worker.cancel(accepted.task_id)
    operator = await clients.of("operator")
    with pytest.raises(PermissionDenied):
        await operator.reserve(["q"])
    with pytest.raises(PermissionDenied, match="administer"):
        await operator.drain_node("n1")
    await operator.cancel(accepted.task_id)


async def test_items_of_a_batch_are_refused_one_by_one(clients: Clients) -> None:
    producer = await clients.of("all-of-q")
    tasks = [NewTask("q", "t"), NewTask("other", "t"), NewTask("q.x", "t"), NewTask("other", "t")]
    outcomes = await producer.enqueue_many(tasks)
    assert [isinstance(outcome, PermissionDenied) for outcome in outcomes] == [False, True, False, True]
    refused = outcomes[3]
    assert isinstance(refused, Rejected)
    assert refused.field == "tasks[3].queue"


async def test_tasks_of_another_tenant_are_not_there(clients: Clients) -> None:
    """Not by a list, not by their id, not by an error that differs from that of an id that does not exist."""
    acme, globex = await clients.of("acme"), await clients.of("globex")
    mine = (await acme.enqueue(NewTask("q", "t", b"x", tenant="acme"))).task_id
    for tenant in ("globex", ""):
        with pytest.raises(PermissionDenied):
            await acme.enqueue(NewTask("q", "t", tenant=tenant))
    nobodys = mine[:-4] + "ffff"
    for task_id in (mine, nobodys):
        with pytest.raises(NotFound) as refused:
            await globex.get_task(task_id)
        said = (refused.value.reason, refused.value.message, refused.value.field)
        assert said == ("TASK_NOT_FOUND", said[1], "task_id")
        assert mine not in said[1]
    for task_id in (mine, nobodys):
        results: list[Sequence[object]] = [
            await globex.cancel_many([task_id]),
            await globex.wait_tasks([task_id], timeout_s=5),
            await globex.retry_dead_letters([task_id]),
            await globex.discard_dead_letters([task_id]),
            await globex.ack_many([ClaimRef(task_id, 1 << 64 | 1)]),
        ]
        for [outcome] in results:
            assert isinstance(outcome, NotFound), outcome
            assert task_id not in outcome.message
    listed = [task.task_id for task in (await globex.list_tasks("q")).tasks]
    assert mine not in listed
    assert mine in [task.task_id for task in (await acme.list_tasks("q")).tasks]
    assert {task.tenant for task in (await acme.list_tasks()).tasks} == {"acme"}


async def test_a_claim_of_ones_own_opens_no_other_task(clients: Clients, transport: str) -> None:
    """Neither beside it in a call, nor in a range that begins with it, nor with what others hold."""
    own, other = await clients.of("all-of-q"), await clients.of("all-of-other")
    queue = f"q.{transport}"
    await own.enqueue(NewTask(queue, "t"))
    theirs = (await other.enqueue(NewTask("other", "t"))).task_id
    [mine] = await own.reserve([queue])
    refused: list[object] = [*await own.extend_many([Extension(ClaimRef(theirs, mine.token), 5_000)])]
    acked, hidden = await own.ack_many([mine, ClaimRef(theirs, mine.token)])
    assert not isinstance(acked, Rejected)
    [held] = [claim for claim in await other.reserve(["other"], max_tasks=100) if claim.task_id == theirs]
    refused += [hidden, *await own.ack_many([held]), *await own.release_many([held])]
    refused += await own.fail_many([Failure(held)])
    await other.ack(held)
    refused += await own.ack_many([held])  # also once it has finished
    assert [type(outcome) for outcome in refused] == [NotFound] * 6, refused


async def test_a_caller_of_a_tenant_sees_nothing_of_whole_queues(clients: Clients) -> None:
    acme = await clients.of("acme")
    await acme.enqueue(NewTask("q", "t", tenant="acme"))
    for call in (acme.queue_stats("q"), acme.reserve(["q"]), acme.purge_queue("q")):
        with pytest.raises(PermissionDenied, match="whosever tasks"):
            await call
    assert not (await acme.list_queues()).queues


async def test_keys_of_another_tenant_say_nothing_of_its_tasks(clients: Clients, transport: str) -> None:
    acme, globex = await clients.of("acme"), await clients.of("globex")
    theirs = await acme.enqueue(NewTask("q", "t", tenant="acme", unique_key=transport, request_id=transport))
    for task in (
        NewTask("q", "t", tenant="globex", unique_key=transport),
        NewTask("q", "t", tenant="globex", request_id=transport),
    ):
        with pytest.raises(Rejected) as refused:
            await globex.enqueue(task)
        assert theirs.task_id not in str(refused.value)
    await acme.cancel(theirs.task_id)


async def test_lists_have_what_may_be_seen(clients: Clients) -> None:
    root, other = await clients.of("admin"), await clients.of("all-of-other")
    await root.enqueue_many([NewTask("q", "t"), NewTask("other", "t")])
    assert [queue.queue for queue in (await other.list_queues()).queues] == ["other"]
    assert {task.queue for task in (await other.list_tasks()).tasks} == {"other"}
    assert {"q", "other"} <= {queue.queue for queue in (await root.list_queues()).queues}


async def test_a_revoked_token_ends_also_on_open_connections_and_in_waits(
    broker: ServerProcess, transport: str, access: Access
) -> None:
    name = f"short-{transport}"
    access.add(name, "worker")
    access.write()
    async with AsyncClient(broker.address, transport=transport, token=access.tokens[name], retry=False) as client:
        ends_s = time.monotonic() + REVOKED_S
        while True:
            try:
                await client.reserve(["q.none"])
                break
            except Unauthenticated:
                assert time.monotonic() < ends_s, "the file is read again"
                await asyncio.sleep(0.05)
        await client.reserve(["q.none"], wait_ms=1)
        waiting = asyncio.create_task(client.reserve(["q.none"], wait_ms=50_000))
        await asyncio.sleep(0)
        access.policy = revoke_token(access.policy, access.ids[name])
        access.write()
        with pytest.raises(Unauthenticated):
            async with asyncio.timeout(REVOKED_S):
                await waiting
        with pytest.raises(Unauthenticated):
            await client.reserve(["q.none"])


async def test_a_token_that_is_replaced_makes_no_call_fail(
    broker: ServerProcess, transport: str, access: Access, tmp_path: Path
) -> None:
    file = tmp_path / "token"
    file.write_text(access.add("rotated", "all-of-q"))
    access.write()
    async with AsyncClient(broker.address, transport=transport, token_file=file) as client:
        ends_s = time.monotonic() + REVOKED_S
        while True:
            try:
                await client.enqueue(NewTask("q", "t"))
                break
            except Unauthenticated:
                assert time.monotonic() < ends_s
        stop = asyncio.Event()

        async def produce() -> int:
            count = 0
            while not stop.is_set():
                await client.enqueue(NewTask("q", "t"))
                count += 1
            return count

        producing = [asyncio.create_task(produce()) for _ in range(4)]
        old = access.ids["rotated"]
        new = access.add("rotated", "all-of-q")
        access.write()
        await asyncio.sleep(1.5)
        file.write_text(new)
        access.policy = revoke_token(access.policy, old)
        access.write()
        await asyncio.sleep(2.5)
        stop.set()
        assert all(await asyncio.gather(*producing))


def test_a_thread_that_makes_calls_by_itself_takes_the_new_token(
    broker: ServerProcess, access: Access, tmp_path: Path
) -> None:
    """The blocking client has a connection of its own for short calls."""
    file = tmp_path / "token"
    file.write_text(access.add("blocking", "all-of-q"))
    access.write()
    wait_until(lambda: is_let_in(broker.address, file), "the server to know the token")
    with Client(broker.address, token_file=file) as client:
        old = access.ids["blocking"]
        for _ in range(3):  # over gRPC, then in frames
            client.enqueue(NewTask("q", "t"))
            time.sleep(0.2)
        fresh = tmp_path / "fresh"
        fresh.write_text(access.add("blocking", "all-of-q"))
        access.write()
        wait_until(lambda: is_let_in(broker.address, fresh), "the server to know the new token before the client does")
        fresh.replace(file)
        access.policy = revoke_token(access.policy, old)
        access.write()
        ends_s = time.monotonic() + 3
        while time.monotonic() < ends_s:
            client.enqueue(NewTask("q", "t"))
        file.write_text(access.tokens["unknown"])
        with pytest.raises(Unauthenticated):
            wait_until(lambda: client.enqueue(NewTask("q", "t")).duplicate, "the client to read its file again")


def is_let_in(address: str, file: Path) -> bool:
    with Client(address, token_file=file) as client:
        try:
            client.topology()
        except Unauthenticated:
            return False
        return True


def test_rules_that_are_of_no_use_leave_the_last_good_ones_in_force(broker: ServerProcess, access: Access) -> None:
    before = access.path.read_bytes()
    try:
        access.path.write_text("{")
        wait_until(lambda: broker.events("access_file_not_read"), "the server to say so")
        with Client(broker.address, token=access.tokens["admin"]) as client:
            client.list_queues()
        with Client(broker.address) as nobody, pytest.raises(Unauthenticated):
            nobody.list_queues()
    finally:
        access.path.write_bytes(before)


def test_no_log_has_a_token(broker: ServerProcess, access: Access) -> None:
    log = broker.whole_log_text
    for token in access.tokens.values():
        assert token not in log
        assert token.rpartition("_")[2] not in log


def test_a_server_does_not_start_with_rules_that_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "access.toml").write_text('[roles.a]\nrights = ["fly"]\nqueues = []\n')
    with ServerProcess(tmp_path, access_file=tmp_path / "access.toml") as server:
        server.launch()
        assert server.wait_for_exit() != 0
        assert "roles.a.rights" in server.log_text


def test_a_server_that_was_told_to_asks_even_without_rules(tmp_path: Path) -> None:
    with (
        ServerProcess(tmp_path, access="required") as server, Client(server.start().address) as client,
        pytest.raises(Unauthenticated, match="access_file"),
    ):  # fmt: skip
        client.list_queues()
