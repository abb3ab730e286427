"""Calls to a broker that name a shard in their metadata, and in the request itself."""

from collections.abc import AsyncIterator

import grpc
import grpc.aio
import pytest

from holdfast.broker.api.server import RpcServer
from holdfast.broker.api.tasks import TaskService
from holdfast.broker.metrics import Metrics
from holdfast.proto.v1 import backups_pb2, shards_pb2
from holdfast.serving.grpc_server import ServerLimits

LIMITS = ServerLimits(message_bytes_max=10_000, bytes_max=100_000, calls_max=100)
BEGIN = "/holdfast.proto.v1.Backups/BeginBackup"
PROBE = "/holdfast.proto.v1.Shards/ProbeShard"


class Admin:
    """Writes down the shards that it is asked about."""

    def __init__(self) -> None:
        self.asked: list[int] = []

    async def probe_shard(self, request: shards_pb2.ProbeShardRequest) -> shards_pb2.ProbeShardResponse:
        self.asked.append(int(request.shard))
        return shards_pb2.ProbeShardResponse()

    async def begin_backup(self, request: backups_pb2.BeginBackupRequest) -> backups_pb2.BeginBackupResponse:
        self.asked.append(int(request.shard))
        return backups_pb2.BeginBackupResponse()


class NoShards:
    def find(self, _number: int) -> TaskService:
        raise AssertionError("the call is for the node")

    def default_shard(self) -> int:
        raise AssertionError("the call is for the node")

    def note_damage(self, error: Exception) -> None:
        raise error


@pytest.fixture
def admin() -> Admin:
    return Admin()


@pytest.fixture
async def channel(admin: Admin) -> AsyncIterator[grpc.aio.Channel]:
    server = RpcServer(
        NoShards(), admin, None, admin, Metrics(), LIMITS, batch_bytes_max=1000, readiness=lambda: (True, "")
    )  # fmt: skip
    port = await server.start("127.0.0.1", 0)
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as opened:
        yield opened
    await server.stop(0)


@pytest.mark.parametrize(
    ("path", "data"),
    [
        (PROBE, shards_pb2.ProbeShardRequest(shard=1).SerializeToString()),
        (BEGIN, backups_pb2.BeginBackupRequest(shard=1).SerializeToString()),
    ],
)
async def test_metadata_that_names_another_shard_than_the_request_is_refused(
    admin: Admin, channel: grpc.aio.Channel, path: str, data: bytes
) -> None:
    call: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(path)
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await call(data, metadata=(("holdfast-shard", "0"),), timeout=10)
    assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert refused.value.details() == (
        "Expected the metadata holdfast-shard to name the shard of what is asked for, 1, but it names 0."
    )
    assert admin.asked == []
    await call(data, metadata=(("holdfast-shard", "1"),), timeout=10)
    await call(data, timeout=10)
    assert admin.asked == [1, 1]
