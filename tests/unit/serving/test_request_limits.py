"""What one request of each method may be."""

from collections.abc import Iterator
from typing import Any

import pytest
from google.protobuf.message import Message

from holdfast.proto.v1 import backups_pb2, broker_calls_pb2, cluster_pb2, queues_pb2, schedules_pb2, shards_pb2
from holdfast.proto.v1 import tasks_pb2 as pb
from holdfast.serving.refusals import RefusedError
from holdfast.serving.request_limits import (
    FOLLOW_UPS_MAX,
    HEADERS_MAX,
    ITEMS_MAX,
    RequestLimit,
    parse,
    request_limit,
)

MIB = 1024 * 1024
SHALLOW_BYTES = 256 * 1024  # of bodies that may not be looked into, because they are small
MODULES = (pb, queues_pb2, schedules_pb2, shards_pb2, cluster_pb2, backups_pb2)
METHODS = {
    method.name: getattr(module, method.input_type.name)
    for module in MODULES
    for service in module.DESCRIPTOR.services_by_name.values()
    for method in service.methods
} | {"ReceiveTasks": broker_calls_pb2.ReceiveTasksRequest, "Allocate": broker_calls_pb2.AllocateRequest}
ID = "0198f3c2-7a1b-8000-8000-0123456789ab"
REF = pb.ClaimRef(task_id=ID, token=2**60, secret=2**60)


def limit_of(method: str) -> RequestLimit:
    return request_limit(method, METHODS[method], large_bytes_max=4 * MIB)


def refusal(method: str, data: bytes) -> tuple[str, str, str]:
    with pytest.raises(RefusedError) as refused:
        limit_of(method).check(data)
    assert refused.value.message.startswith("Expected ")
    return refused.value.reason, refused.value.field, refused.value.limit


def length_of(size: int) -> bytes:
    return bytes([size & 0x7F | 0x80, size >> 7 & 0x7F | 0x80, size >> 14 & 0x7F | 0x80, size >> 21])


def wrapped(number: int, body: bytes) -> bytes:
    return bytes([number << 3 & 0x7F | 2 | 0x80, number >> 4]) + length_of(len(body)) + body


def repeated_fields(message: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Every field that is repeated, at any depth, with the fields that lead to it."""
    for field in message.fields:
        if field.is_repeated:
            yield (*path, field)
        if field.message_type is not None:
            yield from repeated_fields(field.message_type, (*path, field))


REPEATED = [(method, path) for method, request in METHODS.items() for path in repeated_fields(request.DESCRIPTOR)]


def name_of(path: tuple[Any, ...]) -> str:
    return ".".join(field.name for field in path)


def body_of(path: tuple[Any, ...], count: int) -> bytes:
    """A request with so many of the last field, empty or 0, in the first of all others."""
    *outer, last = path
    body = wrapped(last.number, bytes(count)) if last.is_packed else wrapped(last.number, b"") * count
    for field in reversed(outer):
        body = wrapped(field.number, body)
    return body


def names(count: int) -> list[str]:
    return [f"{number:0128}" for number in range(count)]


def largest_task() -> pb.TaskSpec:
    return pb.TaskSpec(
        queue="q" * 128, type="t" * 256, payload=bytes(500), headers=dict.fromkeys(names(HEADERS_MAX), "v"),
        priority=1, tenant="t", request_id="r", delay_ms=1, max_attempts=1, max_claims=1, result_ttl_ms=1,
        request_id_ttl_ms=1000, retry=pb.RetryPolicy(non_retryable=names(64)), unique_key="u", limit_key="l",
        timeout_ms=1, ttl_ms=1,
    )  # fmt: skip


LARGEST: list[tuple[str, Message]] = [
    ("Enqueue", pb.EnqueueRequest(tasks=[largest_task()] * 200)),
    ("Enqueue", pb.EnqueueRequest(tasks=[pb.TaskSpec(queue="q", payload=bytes(2000))] * ITEMS_MAX)),
    ("Enqueue", pb.EnqueueRequest(runs=[pb.TaskRun(task=largest_task(), payloads=[b"p"] * 5)] * 200)),
    ("Enqueue", pb.EnqueueRequest(runs=[pb.TaskRun(payloads=[bytes(2000)] * ITEMS_MAX)])),
    ("Ack", pb.AckRequest(items=[pb.AckItem(claim=REF)] * ITEMS_MAX)),
    ("Ack", pb.AckRequest(ranges=[pb.AckRange(task_id=ID, token=2**60, secret=2**60, count=2**60)] * ITEMS_MAX)),
    ("Ack", pb.AckRequest(items=[pb.AckItem(follow_ups=[pb.TaskSpec(queue="q" * 2000)] * FOLLOW_UPS_MAX)] * 10)),
    ("Fail", pb.FailRequest(items=[pb.FailItem(error=pb.TaskError(message="m" * 4000))] * ITEMS_MAX)),
    ("Extend", pb.ExtendRequest(items=[pb.ExtendItem(claim=REF)] * ITEMS_MAX)),
    ("Cancel", pb.CancelRequest(task_ids=[ID] * ITEMS_MAX)),
    ("WaitTasks", pb.WaitTasksRequest(task_ids=[ID] * ITEMS_MAX)),
    (
        "Reserve",
        pb.ReserveRequest(
            queues=names(64), queue_tasks_max=[1] * 64, claim_request_id="c" * 256, worker="w" * 256,
            type_lease_ms={f"{number:0256}": 1000 for number in range(100)},
        ),
    ),
    ("QueueStats", pb.QueueStatsRequest(queues=names(100))),
    ("GetTopology", cluster_pb2.GetTopologyRequest(queues=names(1000))),
    (
        "SetQueue",
        cluster_pb2.SetQueueRequest(
            queue="q",
            policy=cluster_pb2.QueuePolicy(
                non_retryable=names(64), tenants=[cluster_pb2.TenantPolicy(tenant="t" * 256)] * 256
            ),
            clear=names(256),
        ),
    ),
    ("StartPlan", cluster_pb2.StartPlanRequest(plan=cluster_pb2.Plan(steps=[cluster_pb2.PlanStep(shard=1)] * 3000))),
    ("PutSchedule", schedules_pb2.PutScheduleRequest(spec=schedules_pb2.ScheduleSpec(task=largest_task()))),
]  # fmt: skip


@pytest.mark.parametrize(("method", "request_"), LARGEST, ids=[name for name, _ in LARGEST])
def test_the_largest_good_requests_pass(method: str, request_: Message) -> None:
    data = request_.SerializeToString()
    limit_of(method).check(data)
    assert parse(METHODS[method], data) == request_


@pytest.mark.parametrize("method", METHODS)
def test_bombs_are_refused_for_every_method(method: str) -> None:
    """The first field of a length again and again, empty, in as many bytes as the method takes."""
    limit = limit_of(method)
    reason, _, _ = refusal(method, b"\x0a\x00" * (limit.bytes_max // 2))
    assert reason in {"BATCH_TOO_LARGE", "TOO_LARGE"}
    assert refusal(method, bytes(limit.bytes_max + 1)) == ("BATCH_TOO_LARGE", "request", str(limit.bytes_max))


@pytest.mark.parametrize(("method", "path"), REPEATED, ids=[f"{method}-{name_of(path)}" for method, path in REPEATED])
def test_whatever_is_repeated_is_counted_before_it_is_parsed(method: str, path: tuple[Any, ...]) -> None:
    """In every request, at any depth: what is allowed passes, and what the method would have bytes for does not."""
    limit = limit_of(method)
    allowed = int(_refused_limit(method, path)) if limit.bytes_max > SHALLOW_BYTES else 1
    limit.check(body_of(path, allowed))


def _refused_limit(method: str, path: tuple[Any, ...]) -> str:
    item_bytes = 1 if path[-1].is_packed else len(wrapped(1, b""))
    count = (limit_of(method).bytes_max - 100) // item_bytes
    reason, field, limit = refusal(method, body_of(path, count))
    assert (reason in {"BATCH_TOO_LARGE", "TOO_LARGE"}, field) == (True, name_of(path))
    return limit


SINGLE = [(method, path) for method, path in REPEATED if any(not field.is_repeated for field in path)]


@pytest.mark.parametrize(("method", "path"), SINGLE, ids=[f"{method}-{name_of(path)}" for method, path in SINGLE])
def test_what_is_there_once_is_not_merged_of_many(method: str, path: tuple[Any, ...]) -> None:
    """Each part has no more than allowed, and together they have as much as anybody likes."""
    repeated = next(index for index, field in enumerate(path) if not field.is_repeated)
    unknown = wrapped(200, bytes(8000))  # so that somebody looks
    many = wrapped(path[repeated].number, body_of(path[repeated + 1 :], 60) + unknown) * 50
    for field in reversed(path[:repeated]):
        many = wrapped(field.number, many)
    if limit_of(method).bytes_max > len(many):
        assert refusal(method, many) == ("TOO_LARGE", name_of(path[: repeated + 1]), "1")


def test_follow_ups_are_counted_over_all_acks() -> None:
    """Each ack has as many as it may, and all together a hundred times as many as a call may."""
    many = pb.AckRequest(items=[pb.AckItem(follow_ups=[pb.TaskSpec()] * FOLLOW_UPS_MAX)] * ITEMS_MAX)
    assert refusal("Ack", many.SerializeToString()) == ("BATCH_TOO_LARGE", "items.follow_ups", "1000")


def test_tasks_of_runs_are_counted_over_all_runs() -> None:
    many = pb.EnqueueRequest(runs=[pb.TaskRun(task=pb.TaskSpec(), payloads=[b""] * 900)] * ITEMS_MAX)
    assert refusal("Enqueue", many.SerializeToString()) == ("BATCH_TOO_LARGE", "runs.payloads", "1000")


def test_runs_and_tasks_of_a_call_are_counted_together() -> None:
    both = pb.EnqueueRequest(tasks=[pb.TaskSpec()] * 550, runs=[pb.TaskRun()] * 520)
    assert refusal("Enqueue", both.SerializeToString())[:2] == ("TOO_LARGE", "tasks")


def test_short_messages_are_not_merged_to_a_long_one() -> None:
    """Each is too short to be looked into, and the parser makes one list of all."""
    retry = pb.RetryPolicy(non_retryable=[""] * 60).SerializeToString()
    task = wrapped(pb.TaskSpec.DESCRIPTOR.fields_by_name["retry"].number, retry) * 100
    assert refusal("Enqueue", wrapped(1, task) * 200) == ("TOO_LARGE", "tasks.retry", "1")


def test_a_repeated_field_without_a_bound_is_an_error_at_the_start() -> None:
    with pytest.raises(LookupError, match="QueueStatsResponse.outcomes"):
        request_limit("New", pb.QueueStatsResponse, large_bytes_max=MIB)


def test_a_schedule_is_as_large_as_one_task() -> None:
    limit = request_limit(
        "PutSchedule", METHODS["PutSchedule"], large_bytes_max=8 * MIB, payload_bytes_max=MIB
    ).bytes_max
    spec = schedules_pb2.ScheduleSpec(task=largest_task(), expression="@daily")
    spec.task.payload = bytes(MIB)
    assert spec.ByteSize() < limit < 2 * MIB


def test_only_what_brings_payloads_may_be_large() -> None:
    large = {method for method in METHODS if limit_of(method).bytes_max > MIB}
    assert large == {"Enqueue", "Ack", "Fail", "PutSchedule", "ReceiveTasks", "RestoreShard", "RestoreQueues"}
    assert limit_of("GetTask").bytes_max <= 64 * 1024


def test_a_small_limit_of_the_whole_counts_for_all() -> None:
    assert request_limit("Cancel", pb.CancelRequest, large_bytes_max=2000).bytes_max == 2000


def test_refusals_say_where() -> None:
    many = pb.EnqueueRequest(tasks=[pb.TaskSpec()] * 1100).SerializeToString()
    assert refusal("Enqueue", many) == ("BATCH_TOO_LARGE", "tasks", "1000")
    headers = {f"{number:09}": "x" for number in range(30_000)}
    deep = pb.EnqueueRequest(tasks=[pb.TaskSpec(queue="q"), pb.TaskSpec(headers=headers)]).SerializeToString()
    assert refusal("Enqueue", deep)[:2] == ("TOO_LARGE", "tasks.headers")
    follow_ups = pb.AckRequest(items=[pb.AckItem(follow_ups=[pb.TaskSpec()] * 60_000)]).SerializeToString()
    assert refusal("Ack", follow_ups)[:2] == ("TOO_LARGE", "items.follow_ups")
    assert refusal("Enqueue", b"\x78\x01" * 2000)[:2] == ("TOO_LARGE", "field 15")


@pytest.mark.parametrize("data", [b"\x0a\x05abc", b"\x1f\x8b\x08\x00"])
def test_what_cannot_be_parsed_is_malformed(data: bytes) -> None:
    assert refusal("Enqueue", data)[0] == "MALFORMED_REQUEST"


def test_what_passes_may_still_be_malformed() -> None:
    data = pb.EnqueueRequest(tasks=[pb.TaskSpec(queue="abc")]).SerializeToString().replace(b"abc", b"a\xffc")
    limit_of("Enqueue").check(data)
    with pytest.raises(RefusedError, match="UTF-8"):
        parse(pb.EnqueueRequest, data)
