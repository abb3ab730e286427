"""What operators and their tools see: health, reflection, metrics, logs."""

import asyncio
import json
from typing import Any, cast

import grpc
import grpc.aio
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from holdfast.client import AsyncClient, NewTask, StaleToken, TaskError
from holdfast.proto.v1 import tasks_pb2 as pb
from tests.integration.conftest import MakeServer
from tests.integration.server import ServerProcess
from tests.integration.wire import Wire

SERVING = health_pb2.HealthCheckResponse.SERVING


async def test_health_checks_are_answered(shared_server: ServerProcess) -> None:
    async with grpc.aio.insecure_channel(shared_server.address) as channel:
        stub: Any = health_pb2_grpc.HealthStub(channel)
        for service in ("", "holdfast.proto.v1.Tasks", "holdfast.proto.v1.DeadLetters"):
            answer = await stub.Check(health_pb2.HealthCheckRequest(service=service))
            assert answer.status == SERVING
        try:
            await stub.Check(health_pb2.HealthCheckRequest(service="nothing"))
        except grpc.aio.AioRpcError as error:
            assert error.code() is grpc.StatusCode.NOT_FOUND
        else:
            raise AssertionError("Expected an unknown service to be unknown.")


async def test_the_api_can_be_reflected(shared_server: ServerProcess) -> None:
    async with grpc.aio.insecure_channel(shared_server.address) as channel:
        stub: Any = reflection_pb2_grpc.ServerReflectionStub(cast(Any, channel))  # its types know only blocking ones
        requests = [
            reflection_pb2.ServerReflectionRequest(list_services=""),
            reflection_pb2.ServerReflectionRequest(file_containing_symbol="holdfast.proto.v1.Tasks"),
        ]
        listed, described = [answer async for answer in stub.ServerReflectionInfo(iter(requests))]
    names = {service.name for service in listed.list_services_response.service}
    assert {"holdfast.proto.v1.Tasks", "holdfast.proto.v1.DeadLetters", "grpc.health.v1.Health"} <= names
    assert any(b"ReserveRequest" in proto for proto in described.file_descriptor_response.file_descriptor_proto)


async def test_reflection_and_metrics_can_be_closed(make_server: MakeServer) -> None:
    server = make_server(reflection="off", metrics="off").start()
    async with grpc.aio.insecure_channel(server.address) as channel:
        reflect: Any = channel.unary_unary("/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo")
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await reflect(reflection_pb2.ServerReflectionRequest(list_services="").SerializeToString())
        assert refused.value.code() is grpc.StatusCode.UNIMPLEMENTED
        health: Any = health_pb2_grpc.HealthStub(channel)
        assert (await health.Check(health_pb2.HealthCheckRequest())).status == SERVING
    assert server.get("/metrics")[0] == 404
    assert server.get("/readyz")[0] == 200


async def test_metrics_and_probes_over_http(shared_server: ServerProcess, client: AsyncClient, queue: str) -> None:
    enqueued = shared_server.metric("holdfast_tasks_enqueued_total")
    await client.enqueue_many([NewTask(queue, "t") for _ in range(3)])
    await client.enqueue(NewTask(queue, "t", delay_ms=600_000))
    [claim] = await client.reserve([queue])
    assert shared_server.metric("holdfast_tasks_enqueued_total") == enqueued + 4
    for state, number in (("ready", 2), ("claimed", 1), ("delayed", 1), ("dead", 0)):
        assert shared_server.metric(f'holdfast_queue_tasks{{queue="{queue}",state="{state}"}}') == number
    assert shared_server.metric('holdfast_rpc_calls_total{code="OK",method="Enqueue"}') >= 2
    await client.ack(claim)
    assert shared_server.get("/livez") == (200, '{"live":true}')
    status, body = shared_server.get("/readyz")
    assert (status, json.loads(body)) == (200, {"ready": True, "reason": "serving"})
    assert shared_server.get("/nothing")[0] == 404


async def test_logs_hold_neither_payloads_nor_tokens(make_server: MakeServer) -> None:
    """At the most talkative level, through every kind of call, a refusal, bad bytes, a kill and a restart."""
    secret = "s3cr3t-marker"
    server = make_server(log_level="debug", state_flush_age_seconds=0.1)
    await asyncio.to_thread(server.start)
    tokens: list[int] = []
    async with AsyncClient(server.address) as client:
        headers = {secret: secret}
        await client.enqueue_many([NewTask("work", "t", secret.encode(), headers=headers) for _ in range(4)])
        claims = await client.reserve(["work"], max_tasks=4, lease_ms=3_600_000)
        tokens = [claim.token for claim in claims]
        await client.ack(claims[0], result=secret.encode())
        await client.fail(claims[1], TaskError("E", secret, secret))
        await client.release(claims[2])
        try:
            await client.fail(claims[0])
        except StaleToken as refused:
            assert secret not in str(refused)
            assert str(claims[0].token) not in str(refused)
    async with Wire(server.address) as wire:
        await wire.call("Enqueue", secret.encode())
        await wire.call("Enqueue", pb.EnqueueRequest(tasks=[pb.TaskSpec(queue=secret + " !", payload=secret.encode())]))
    server.kill()
    await asyncio.to_thread(server.start)
    assert await asyncio.to_thread(server.stop) == 0
    text = server.whole_log_text
    assert len(server.events("recovered")) == 1
    assert secret not in text
    parts = [str(part) for token in tokens for part in (token, token >> 64, token % 2**64)]
    assert not [part for part in parts if part in text]
