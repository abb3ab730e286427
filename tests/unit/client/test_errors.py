"""How a call can fail, and which error of the tree that becomes."""

import asyncio
import pickle
import socket

import grpc
import pytest

from holdfast.client import (
    AsyncClient,
    ClientClosed,
    Conflict,
    ConnectionFailed,
    DeadlineExceeded,
    HoldfastError,
    InvalidAddress,
    InvalidArgument,
    NotDead,
    NotFound,
    NotWaiting,
    OutcomeUnknown,
    Overloaded,
    PermissionDenied,
    Rejected,
    RequestIdConflict,
    ResultExpired,
    ServerError,
    StaleToken,
    TaskFinished,
    Unauthenticated,
    Unavailable,
    UnexpectedAnswer,
    WorkerAtLimit,
)
from holdfast.proto.v1 import tasks_pb2 as pb
from tests.unit.client.scripted_server import Hang, Refusal, ScriptedServer, error_of

Code = grpc.StatusCode


async def failure_of(server: ScriptedServer, *, timeout_s: float = 5.0) -> HoldfastError:
    async with AsyncClient(server.address, timeout_s=timeout_s, retry=False) as client:
        return await error_of(client.get_task("id-1"), HoldfastError)


@pytest.mark.parametrize(
    ("code", "reason", "kind"),
    [
        (Code.INVALID_ARGUMENT, "MALFORMED_REQUEST", InvalidArgument),
        (Code.INVALID_ARGUMENT, "MISSING_FIELD", InvalidArgument),
        (Code.INVALID_ARGUMENT, "INVALID_FIELD", InvalidArgument),
        (Code.INVALID_ARGUMENT, "OUT_OF_RANGE", InvalidArgument),
        (Code.INVALID_ARGUMENT, "TOO_LARGE", InvalidArgument),
        (Code.INVALID_ARGUMENT, "BATCH_TOO_LARGE", InvalidArgument),
        (Code.NOT_FOUND, "TASK_NOT_FOUND", NotFound),
        (Code.NOT_FOUND, "QUEUE_NOT_FOUND", NotFound),
        (Code.NOT_FOUND, "SHARD_NOT_FOUND", NotFound),
        (Code.NOT_FOUND, "PROBE_NOT_FOUND", NotFound),
        (Code.NOT_FOUND, "SCHEDULE_NOT_FOUND", NotFound),
        (Code.ALREADY_EXISTS, "SCHEDULE_EXISTS", Conflict),
        (Code.FAILED_PRECONDITION, "TASK_NOT_WAITING", NotWaiting),
        (Code.FAILED_PRECONDITION, "REQUEST_ID_CONFLICT", RequestIdConflict),
        (Code.FAILED_PRECONDITION, "CHANGE_REFUSED", Conflict),
        (Code.FAILED_PRECONDITION, "STALE_TOKEN", StaleToken),
        (Code.FAILED_PRECONDITION, "TASK_FINISHED", TaskFinished),
        (Code.FAILED_PRECONDITION, "NOT_DEAD", NotDead),
        (Code.RESOURCE_EXHAUSTED, "OVERLOADED", Overloaded),
        (Code.RESOURCE_EXHAUSTED, "WORKER_AT_LIMIT", WorkerAtLimit),
        (Code.RESOURCE_EXHAUSTED, "DISK_LOW", Unavailable),
        (Code.UNAVAILABLE, "SHUTTING_DOWN", Unavailable),
        (Code.UNAVAILABLE, "NOT_LEADER", Unavailable),
        (Code.UNAVAILABLE, "STALE_MAP", Unavailable),
        (Code.UNAVAILABLE, "WRONG_SHARD", Unavailable),
        (Code.UNAVAILABLE, "OUTCOME_UNKNOWN", OutcomeUnknown),
        (Code.INTERNAL, "INTERNAL", ServerError),
        # Reasons of a newer server: the code still says what kind of refusal it is.
        (Code.FAILED_PRECONDITION, "QUEUE_PAUSED", Conflict),
        (Code.RESOURCE_EXHAUSTED, "QUOTA_SPENT", Overloaded),
        (Code.PERMISSION_DENIED, "PERMISSION_DENIED", PermissionDenied),
        (Code.UNAUTHENTICATED, "UNAUTHENTICATED", Unauthenticated),
        (Code.PERMISSION_DENIED, "NOT_YOURS", PermissionDenied),
        (Code.OUT_OF_RANGE, "TOO_FAR", Rejected),
    ],
)
async def test_a_refusal_becomes_the_error_of_its_reason(
    server: ScriptedServer, code: grpc.StatusCode, reason: str, kind: type[Rejected]
) -> None:
    server.on("GetTask", Refusal(code, reason, "A sentence."))
    error = await failure_of(server)
    assert type(error) is kind
    assert (error.reason, error.message, error.field, error.retry_after_ms) == (reason, "A sentence.", "", 0)


async def test_a_refusal_carries_all_that_the_server_said(server: ScriptedServer) -> None:
    metadata = {"field": "task_id", "shard": "3"}
    server.on("GetTask", Refusal(Code.RESOURCE_EXHAUSTED, "OVERLOADED", "Full.", 1_500, metadata))
    error = await failure_of(server)
    assert isinstance(error, Overloaded)
    assert error.retry_after_ms == 1_500
    assert error.field == "task_id"
    assert error.metadata == {"shard": "3"}
    assert str(error) == "task_id: Full. (OVERLOADED)"


async def test_details_of_another_domain_are_not_ours(server: ScriptedServer) -> None:
    server.on("GetTask", Refusal(Code.INVALID_ARGUMENT, "API_KEY_INVALID", domain="googleapis.com"))
    error = await failure_of(server)
    assert isinstance(error, UnexpectedAnswer)
    assert "INVALID_ARGUMENT" in str(error)


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (Code.UNAVAILABLE, ConnectionFailed),
        (Code.CANCELLED, ConnectionFailed),
        (Code.UNIMPLEMENTED, UnexpectedAnswer),
        (Code.OUT_OF_RANGE, UnexpectedAnswer),
    ],
)
async def test_a_status_without_a_reason(
    server: ScriptedServer, code: grpc.StatusCode, kind: type[HoldfastError]
) -> None:
    server.on("GetTask", Refusal(code))
    error = await failure_of(server)
    assert type(error) is kind
    assert server.address in str(error)


@pytest.mark.parametrize(
    ("code", "kind"),
    [(Code.RESOURCE_EXHAUSTED, Overloaded), (Code.UNKNOWN, ServerError), (Code.INTERNAL, ServerError)],
)
async def test_what_a_busy_or_faulty_server_says_without_a_reason_may_pass(
    server: ScriptedServer, code: grpc.StatusCode, kind: type[HoldfastError]
) -> None:
    server.on("GetTask", Refusal(code))
    assert type(await failure_of(server)) is kind


async def test_a_server_that_does_not_know_the_call_is_named(server: ScriptedServer) -> None:
    error = await failure_of(server)
    assert isinstance(error, UnexpectedAnswer)
    assert "does not know the call" in str(error)


async def test_no_server_there(server: ScriptedServer) -> None:
    server.stop()
    error = await failure_of(server)
    assert isinstance(error, ConnectionFailed)
    assert error.address == server.address
    assert error.cause == "connection refused"
    assert "holdfast dev" in str(error)


async def test_something_else_answers_there() -> None:
    def greet() -> None:
        connection, _ = listener.accept()
        with connection:
            connection.sendall(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n")
            while connection.recv(1024):
                pass

    with socket.create_server(("127.0.0.1", 0)) as listener:
        greeting = asyncio.create_task(asyncio.to_thread(greet))
        async with AsyncClient(f"127.0.0.1:{listener.getsockname()[1]}", retry=False) as client:
            with pytest.raises(ConnectionFailed, match="not gRPC"):
                await client.get_task("id-1")
        await greeting


async def test_a_server_that_accepts_but_never_speaks_is_no_connection() -> None:
    # The kernel completes the connection; nobody ever takes it.
    with socket.create_server(("127.0.0.1", 0)) as listener:
        async with AsyncClient(f"127.0.0.1:{listener.getsockname()[1]}", timeout_s=0.2) as client:
            with pytest.raises(ConnectionFailed, match=r"no connection within 0\.2 s"):
                await client.get_task("id-1")


async def test_no_answer_in_time(server: ScriptedServer) -> None:
    server.on("GetTask", pb.GetTaskResponse(task=pb.TaskInfo(task_id="id-1")), Hang())
    async with AsyncClient(server.address, retry=False) as client:
        await client.get_task("id-1")  # so that there is a connection, however slow the machine is
        with pytest.raises(DeadlineExceeded) as caught:
            await client.get_task("id-1", timeout_s=0.2)
    error = caught.value
    assert error.timeout_s == 0.2
    assert "did not answer within 0.2 s" in str(error)


async def test_closing_ends_calls_under_way_and_forbids_new_ones(server: ScriptedServer) -> None:
    hang = Hang()
    server.on("GetTask", hang)
    client = AsyncClient(server.address)
    call = asyncio.create_task(client.get_task("id-1"))
    await asyncio.to_thread(hang.arrived.wait)
    await client.close()
    with pytest.raises(ClientClosed):
        await call
    with pytest.raises(ClientClosed):
        await client.get_task("id-1")
    await client.close()


async def test_cancelling_the_caller_is_a_cancellation(server: ScriptedServer, client: AsyncClient) -> None:
    hang = Hang()
    server.on("GetTask", hang)
    call = asyncio.create_task(client.get_task("id-1"))
    await asyncio.to_thread(hang.arrived.wait)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call


@pytest.mark.parametrize(
    "address",
    [
        "", "localhost", "localhost:", ":7400", "localhost:0", "localhost:70000", "http://localhost:7400", "a b:1",
        "::1:1",
    ],
)  # fmt: skip
def test_an_address_that_cannot_be_meant_is_refused_at_once(address: str) -> None:
    with pytest.raises(InvalidAddress, match="host:port"):
        AsyncClient(address)


@pytest.mark.parametrize(
    "address", ["localhost:7400", "10.0.0.1:1", "[::1]:7400", "dns:///broker.default.svc:7400", "unix:/run/h.sock"]
)
def test_addresses_that_are_fine(address: str) -> None:
    assert AsyncClient(address).address == address


@pytest.mark.parametrize(
    "error",
    [
        StaleToken("Expected the token.", reason="STALE_TOKEN", field="items[0]", metadata={"shard": "1"}),
        ConnectionFailed("localhost:7400", "connection refused"),
        ConnectionFailed("h1:7401, h2:7401", "h1:7401: connection refused; h2:7401: not the leader", sent=False),
        DeadlineExceeded("localhost:7400", 1.5),
        DeadlineExceeded("h1:7401, h2:7401", 1.5, "h1:7401: connection refused; h2:7401: no answer within 1 s"),
        UnexpectedAnswer("a problem", "localhost:7400"),
        InvalidAddress("nope"),
        InvalidAddress("h1:7401,nope", "nope"),
        ClientClosed(),
        ResultExpired("id-1", 1_893_553_445_678),
    ],
)
def test_errors_survive_the_way_to_another_process(error: HoldfastError) -> None:
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is type(error)
    assert vars(copy) == vars(error)
    assert str(copy) == str(error)


@pytest.mark.parametrize(
    ("expired_at_ms", "shown"),
    [(1_893_553_445_678, "at 2030-01-02 03:04:05 UTC"), (2**63 - 1, "9223372036854775807 ms after the epoch")],
)
def test_an_expired_result_says_when_it_went_and_what_to_do(expired_at_ms: int, shown: str) -> None:
    message = str(ResultExpired("id-1", expired_at_ms))
    assert f"id-1 has succeeded, but its result expired {shown}" in message
    assert "`result_ttl`" in message


def test_a_bad_request_is_a_value_error_too() -> None:
    assert issubclass(InvalidArgument, ValueError)
    assert issubclass(InvalidAddress, ValueError)
