"""Bad input over the wire: each gets a typed refusal that names the field, and changes nothing.

Sent as bytes, because the client library would refuse some of it before it leaves. Every limit at its edge is in
tests/unit/api/test_validation.py; here is what shows that each call has its checks, and what these leave out.
"""

import math
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
from google.protobuf.message import Message

from holdfast.client import Accepted, AsyncClient, NewTask
from holdfast.proto.v1 import queues_pb2 as queues_pb
from holdfast.proto.v1 import tasks_pb2 as pb
from tests.integration.server import ServerProcess
from tests.integration.wire import Refusal, Wire

INT64_MAX = 2**63 - 1
SECRET_MAX = 2**64 - 1
INT64_MIN = -(2**63)
YEAR_MS = 366 * 24 * 3600 * 1000
MIB = 1024 * 1024
QUEUE = "input"
OTHER_TASK_ID = "01984f6e-0000-8000-8000-000000000001"  # well formed, but nobody has it


@dataclass
class Scene:
    """A server with a claimed and a ready task, and what can be seen of its state from outside."""

    server: ServerProcess
    claimed: pb.ClaimRef = field(default_factory=pb.ClaimRef)
    ready_id: str = ""

    async def prepare(self) -> None:
        async with AsyncClient(self.server.address) as client:
            # With ids of their own: one that the client makes up is renewed by an entry when the task is 70 s old.
            claimed, ready = (
                NewTask(QUEUE, name, request_id=name, request_id_ttl_ms=YEAR_MS) for name in ("claimed", "ready")
            )
            await client.enqueue(claimed)
            [claim] = await client.reserve([QUEUE], lease_ms=3_600_000)
            self.claimed = pb.ClaimRef(task_id=claim.task_id, token=claim.token >> 64, secret=claim.token & SECRET_MAX)
            self.ready_id = (await client.enqueue(ready)).task_id

    async def poll(self, wire: Wire) -> tuple[object, ...]:
        """Everything a change would show in: counters, both tasks, and the number of entries in the log."""
        queues = await wire.call("QueueStats", pb.QueueStatsRequest(queues=[QUEUE, "a", "new"]))
        assert isinstance(queues, bytes)
        counts = pb.QueueStatsResponse.FromString(queues)
        for outcome in counts.outcomes:
            ages = ("oldest_ready_age_ms", "oldest_claim_age_ms")
            for by_the_clock in (*ages, "enqueued_per_second", "claimed_per_second"):
                outcome.counts.ClearField(by_the_clock)
        tasks = [
            await wire.call("GetTask", pb.GetTaskRequest(task_id=task_id))
            for task_id in (self.claimed.task_id, self.ready_id)
        ]
        return counts.SerializeToString(deterministic=True), *tasks, self.server.entries_written


@pytest.fixture(scope="module")
def scene(server: ServerProcess) -> Scene:
    return Scene(server)


@pytest.fixture(params=["grpc", "frames"])
async def wire(request: pytest.FixtureRequest, server: ServerProcess, scene: Scene) -> AsyncIterator[Wire]:
    if not scene.ready_id:
        await scene.prepare()
    async with Wire(server.address, request.param) as wire:
        yield wire


# --- whole calls that are refused ---------------------------------------------------------------------------------


def spec(**fields: Any) -> pb.TaskSpec:
    return pb.TaskSpec(**({"queue": "new", "type": "t"} | fields))


def reserve(**fields: Any) -> pb.ReserveRequest:
    usual: dict[str, Any] = {"queues": [QUEUE], "max_tasks": 1, "lease_ms": 1000}
    return pb.ReserveRequest(**usual | fields)


def heartbeat(**fields: Any) -> queues_pb.HeartbeatRequest:
    usual: dict[str, Any] = {"worker": "w", "state": queues_pb.WORKER_STATE_RUNNING}
    return queues_pb.HeartbeatRequest(**usual | fields)


def letters(**fields: Any) -> pb.ListDeadLettersRequest:
    return pb.ListDeadLettersRequest(queue="a", **fields)


def text_field(number: int, value: bytes) -> bytes:
    """A protobuf field of this number with any bytes in it."""
    assert number < 16
    assert len(value) < 128
    return bytes([number << 3 | 2, len(value)]) + value


NOT_UTF8 = b"caf\xe9"
IN_TASKS = 1  # EnqueueRequest.tasks
GOOD_SPEC = text_field(1, b"new") + text_field(2, b"t")

# name, method, request, reason, field
CALLS: list[tuple[str, str, Message | bytes, str, str]] = [
    # Bytes that are no message
    ("garbage", "Enqueue", b"\xff\xff\xff\xff", "MALFORMED_REQUEST", ""),
    ("cut short", "Enqueue", pb.EnqueueRequest(tasks=[spec()]).SerializeToString()[:-1], "MALFORMED_REQUEST", ""),
    ("end-group tag", "Ack", b"\x0c", "MALFORMED_REQUEST", ""),
    ("field zero", "Reserve", b"\x00\x01", "MALFORMED_REQUEST", ""),
    ("length beyond the end", "Fail", b"\x0a\x7f\x01", "MALFORMED_REQUEST", ""),
    ("overlong varint", "Reserve", b"\x10" + b"\xff" * 11 + b"\x01", "MALFORMED_REQUEST", ""),
    ("nested garbage", "Ack", text_field(1, b"\xff\xff"), "MALFORMED_REQUEST", ""),
    # Text that is not UTF-8
    ("queue not UTF-8", "Enqueue", text_field(IN_TASKS, text_field(1, NOT_UTF8)), "MALFORMED_REQUEST", ""),
    ("type not UTF-8", "Enqueue", text_field(IN_TASKS, GOOD_SPEC + text_field(2, NOT_UTF8)), "MALFORMED_REQUEST", ""),
    ("tenant not UTF-8", "Enqueue", text_field(IN_TASKS, GOOD_SPEC + text_field(6, NOT_UTF8)), "MALFORMED_REQUEST", ""),
    ("id not UTF-8", "Enqueue", text_field(IN_TASKS, GOOD_SPEC + text_field(7, NOT_UTF8)), "MALFORMED_REQUEST", ""),
    ("header not UTF-8", "Enqueue",
     text_field(IN_TASKS, GOOD_SPEC + text_field(4, text_field(1, b"h") + text_field(2, NOT_UTF8))),
     "MALFORMED_REQUEST", ""),
    ("worker not UTF-8", "Reserve", reserve().SerializeToString() + text_field(6, NOT_UTF8), "MALFORMED_REQUEST", ""),
    ("surrogate", "Cancel", text_field(1, b"\xed\xa0\x80"), "MALFORMED_REQUEST", ""),
    # Too much
    ("batch of 5 MiB", "Enqueue", pb.EnqueueRequest(tasks=[spec(payload=bytes(MIB))] * 5), "BATCH_TOO_LARGE",
     "request"),
    ("too many queues", "Reserve", reserve(queues=[f"q{n}" for n in range(65)]), "BATCH_TOO_LARGE", "queues"),
    # Reserve
    ("no queues", "Reserve", reserve(queues=[]), "MISSING_FIELD", "queues"),
    ("bad queue", "Reserve", reserve(queues=[QUEUE, "a b"]), "INVALID_FIELD", "queues[1]"),
    ("fewer than none", "Reserve", reserve(max_tasks=-1), "OUT_OF_RANGE", "max_tasks"),
    ("far too many tasks", "Reserve", reserve(max_tasks=INT64_MAX), "OUT_OF_RANGE", "max_tasks"),
    ("negative lease", "Reserve", reserve(lease_ms=INT64_MIN), "OUT_OF_RANGE", "lease_ms"),
    ("endless lease", "Reserve", reserve(lease_ms=INT64_MAX), "OUT_OF_RANGE", "lease_ms"),
    ("long lease", "Reserve", reserve(lease_ms=24 * 3600 * 1000 + 1), "OUT_OF_RANGE", "lease_ms"),
    ("long wait", "Reserve", reserve(wait_ms=60_001), "OUT_OF_RANGE", "wait_ms"),
    ("endless wait", "Reserve", reserve(wait_ms=INT64_MAX), "OUT_OF_RANGE", "wait_ms"),
    ("limit without a queue", "Reserve", reserve(queue_tasks_max=[1, 1]), "INVALID_FIELD", "queue_tasks_max"),
    ("huge limit", "Reserve", reserve(queue_tasks_max=[INT64_MAX]), "OUT_OF_RANGE", "queue_tasks_max[0]"),
    ("endless lease of a type", "Reserve", reserve(type_lease_ms={"t": INT64_MAX}), "OUT_OF_RANGE", "type_lease_ms"),
    ("long claim id", "Reserve", reserve(claim_request_id="é" * 129), "TOO_LARGE", "claim_request_id"),
    ("control in claim id", "Reserve", reserve(claim_request_id="a\x00b"), "INVALID_FIELD", "claim_request_id"),
    # Looking
    ("no id", "GetTask", b"", "MISSING_FIELD", "task_id"),
    ("bad id", "GetTask", pb.GetTaskRequest(task_id="nonsense"), "INVALID_FIELD", "task_id"),
    ("unknown id", "GetTask", pb.GetTaskRequest(task_id=OTHER_TASK_ID), "TASK_NOT_FOUND", "task_id"),
    ("unknown letter", "GetDeadLetter", pb.GetDeadLetterRequest(task_id=OTHER_TASK_ID), "TASK_NOT_FOUND", "task_id"),
    ("bad letter id", "GetDeadLetter", pb.GetDeadLetterRequest(task_id="x" * 10_000), "INVALID_FIELD", "task_id"),
    *(("wait for tasks", "WaitTasks", pb.WaitTasksRequest(task_ids=[OTHER_TASK_ID], wait_ms=wait_ms), "OUT_OF_RANGE",
       "wait_ms") for wait_ms in (-1, 60_001, INT64_MAX)),
    *((f"page of {method}", method, make(page_size=size), "OUT_OF_RANGE", "page_size")
      for method, make in (("ListQueues", pb.ListQueuesRequest), ("ListDeadLetters", letters))
      for size in (-1, 1001, INT64_MAX)),
    ("bad token of queues", "ListQueues", pb.ListQueuesRequest(page_token="a b"), "INVALID_FIELD", "page_token"),
    ("long token of queues", "ListQueues", pb.ListQueuesRequest(page_token="q" * 129), "INVALID_FIELD", "page_token"),
    ("list without a queue", "ListDeadLetters", b"", "MISSING_FIELD", "queue"),
    ("list a bad queue", "ListDeadLetters", pb.ListDeadLettersRequest(queue="a/b"), "INVALID_FIELD", "queue"),
    ("bad page token", "ListDeadLetters", letters(page_token="zz"), "INVALID_FIELD", "page_token"),
    ("long page token", "ListDeadLetters", letters(page_token="ab" * 25), "INVALID_FIELD", "page_token"),
    ("unknown reason", "ListDeadLetters", letters(filter=pb.DeadLetterFilter(reason="AGE")), "INVALID_FIELD",
     "filter.reason"),
    ("long error text", "ListDeadLetters", letters(filter=pb.DeadLetterFilter(error="e" * 257)), "TOO_LARGE",
     "filter.error"),
    ("negative time", "ListDeadLetters", letters(filter=pb.DeadLetterFilter(died_from_ms=-1)), "OUT_OF_RANGE",
     "filter.died_from_ms"),
    ("long signature", "DiscardDeadLetters", pb.DiscardDeadLettersRequest(task_ids=[OTHER_TASK_ID], by="b" * 257),
     "TOO_LARGE", "by"),
    ("bad token of discards", "ListDiscards", pb.ListDiscardsRequest(page_token="zz"), "INVALID_FIELD", "page_token"),
    ("negative snooze", "Release",
     pb.ReleaseRequest(claims=[pb.ClaimRef(task_id=OTHER_TASK_ID, token=1, secret=1)], delay_ms=-1),
     "OUT_OF_RANGE", "delay_ms"),
    ("no updates", "UpdateTasks", b"", "MISSING_FIELD", "items"),
    ("purge of no queue", "PurgeQueue", b"", "MISSING_FIELD", "queue"),
    ("bad token of a purge", "PurgeQueue", queues_pb.PurgeQueueRequest(queue="a", page_token="all-1-"), "INVALID_FIELD",
     "page_token"),
    ("bad token of tasks", "ListTasks", queues_pb.ListTasksRequest(page_token="0"), "INVALID_FIELD", "page_token"),
    ("no place of tasks", "ListTasks", queues_pb.ListTasksRequest(page_token="02aa"), "INVALID_FIELD", "page_token"),
    ("bad queue of tasks", "ListTasks", queues_pb.ListTasksRequest(queue="a b"), "INVALID_FIELD", "queue"),
    ("unknown state", "ListTasks",
     queues_pb.ListTasksRequest(filter=queues_pb.TaskFilter(states=[pb.TASK_STATE_UNSPECIFIED])), "INVALID_FIELD",
     "filter.states"),
    ("long worker", "ListTasks", queues_pb.ListTasksRequest(filter=queues_pb.TaskFilter(worker="w" * 257)), "TOO_LARGE",
     "filter.worker"),
    ("heartbeat of nobody", "Heartbeat", heartbeat(worker=""), "MISSING_FIELD", "worker"),
    ("heartbeat without a state", "Heartbeat", queues_pb.HeartbeatRequest(worker="w"), "INVALID_FIELD", "state"),
    ("heartbeat with a bad queue", "Heartbeat", heartbeat(queues=["a", "b c"]), "INVALID_FIELD", "queues[1]"),
    ("heartbeat with many queues", "Heartbeat", heartbeat(queues=["a"] * 65), "BATCH_TOO_LARGE", "queues"),
    ("negative slots", "Heartbeat", heartbeat(slots=-1), "OUT_OF_RANGE", "slots"),
    ("control characters in a version", "Heartbeat", heartbeat(version="1\n"), "INVALID_FIELD", "version"),
    ("a worker is to be gone", "SignalWorker",
     queues_pb.SignalWorkerRequest(worker="w", desired=queues_pb.WORKER_STATE_GONE), "INVALID_FIELD", "desired"),
    ("bad token of workers", "ListWorkers", queues_pb.ListWorkersRequest(page_token="w"), "INVALID_FIELD",
     "page_token"),
]  # fmt: skip


# By method: the field of its batch, and one item.
BATCHES: dict[str, tuple[str, object]] = {
    "Enqueue": ("tasks", spec()), "Ack": ("items", pb.AckItem()), "Fail": ("items", pb.FailItem()),
    "Extend": ("items", pb.ExtendItem()), "Release": ("claims", pb.ClaimRef()), "Cancel": ("task_ids", "x"),
    "RetryDeadLetters": ("task_ids", "x"), "DiscardDeadLetters": ("task_ids", "x"), "WaitTasks": ("task_ids", "x"),
    "QueueStats": ("queues", "a"),
}  # fmt: skip
for method, (name, item) in BATCHES.items():
    many = getattr(pb, f"{method}Request")(**{name: [item] * 1001})
    CALLS += [
        (f"{method} of 1001", method, many, "BATCH_TOO_LARGE", name),
        (f"nothing in {method}", method, b"", "MISSING_FIELD", name),
    ]


@pytest.mark.parametrize(("method", "request_", "reason", "field"), [c[1:] for c in CALLS], ids=[c[0] for c in CALLS])
async def test_a_bad_call_is_refused(
    scene: Scene, wire: Wire, method: str, request_: Message | bytes, reason: str, field: str
) -> None:
    before = await scene.poll(wire)
    refused = await wire.call(method, request_)
    assert isinstance(refused, Refusal)
    assert (refused.reason, refused.field, refused.domain) == (reason, field, "holdfast")
    assert refused.code == ("NOT_FOUND" if reason == "TASK_NOT_FOUND" else "INVALID_ARGUMENT")
    assert refused.violations == ((field,) if field else ())
    assert refused.message.startswith("Expected ")
    assert refused.retry_after_ms == 0, "trying again cannot help"
    assert await scene.poll(wire) == before


async def test_a_call_beyond_all_limits_is_refused_by_the_transport(scene: Scene, wire: Wire) -> None:
    before = await scene.poll(wire)
    refused = await wire.call("Enqueue", pb.EnqueueRequest(tasks=[spec(payload=bytes(MIB))] * 17))
    assert isinstance(refused, Refusal)
    # Of a message that it did not receive gRPC itself can say no more.
    said = ("RESOURCE_EXHAUSTED", "") if wire.transport == "grpc" else ("INVALID_ARGUMENT", "BATCH_TOO_LARGE")
    assert (refused.code, refused.reason) == said
    assert await scene.poll(wire) == before


# --- single items that are refused in their place -----------------------------------------------------------------


def far_future(**ahead: int) -> Callable[[], pb.TaskSpec]:
    return lambda: spec(run_at_ms=time.time_ns() // 1_000_000 + ahead["ms"])


# name, spec or how to make it, reason, field of the task
SPECS: list[tuple[str, pb.TaskSpec | Callable[[], pb.TaskSpec], str, str]] = [
    ("slash in queue", spec(queue="a/b"), "INVALID_FIELD", "queue"),
    ("digits beyond ASCII in queue", spec(queue="q٣"), "INVALID_FIELD", "queue"),
    ("no type", spec(type=""), "MISSING_FIELD", "type"),
    ("control in tenant", spec(tenant="a\tb"), "INVALID_FIELD", "tenant"),
    ("request id long in bytes", spec(request_id="é" * 129), "TOO_LARGE", "request_id"),
    ("large payload", spec(payload=bytes(MIB + 1)), "TOO_LARGE", "payload"),
    ("large headers", spec(headers={"h": "v" * 16_384}), "TOO_LARGE", "headers"),
    ("huge priority", spec(priority=INT64_MAX), "OUT_OF_RANGE", "priority"),
    ("least delay", spec(delay_ms=INT64_MIN), "OUT_OF_RANGE", "delay_ms"),
    ("delay beyond a year", spec(delay_ms=YEAR_MS + 1), "OUT_OF_RANGE", "delay_ms"),
    ("run-at beyond a year", far_future(ms=YEAR_MS + 60_000), "OUT_OF_RANGE", "run_at_ms"),
    ("run-at in microseconds", lambda: spec(run_at_ms=time.time_ns() // 1000), "OUT_OF_RANGE", "run_at_ms"),
    ("huge attempts", spec(max_attempts=INT64_MAX), "OUT_OF_RANGE", "max_attempts"),
    ("negative claims", spec(max_claims=INT64_MIN), "OUT_OF_RANGE", "max_claims"),
    ("ttl without a request id", spec(request_id_ttl_ms=1000), "INVALID_FIELD", "request_id_ttl_ms"),
    ("huge request id ttl", spec(request_id="r", request_id_ttl_ms=INT64_MAX), "OUT_OF_RANGE", "request_id_ttl_ms"),
    ("huge result ttl", spec(result_ttl_ms=INT64_MAX), "OUT_OF_RANGE", "result_ttl_ms"),
    ("no timeout", spec(timeout_ms=0), "OUT_OF_RANGE", "timeout_ms"),
    ("negative timeout", spec(timeout_ms=-1), "OUT_OF_RANGE", "timeout_ms"),
    ("huge timeout", spec(timeout_ms=INT64_MAX), "OUT_OF_RANGE", "timeout_ms"),
    ("no ttl", spec(ttl_ms=0), "OUT_OF_RANGE", "ttl_ms"),
    ("ttl beyond a year", spec(ttl_ms=YEAR_MS + 1), "OUT_OF_RANGE", "ttl_ms"),
    ("long limit key", spec(limit_key="k" * 257), "TOO_LARGE", "limit_key"),
    ("control in limit key", spec(limit_key="a\0b"), "INVALID_FIELD", "limit_key"),
    ("long unique key", spec(unique_key="k" * 257), "TOO_LARGE", "unique_key"),
    ("control in unique key", spec(unique_key="a\0b"), "INVALID_FIELD", "unique_key"),
    ("scope without a key", spec(unique_scope=pb.UNIQUE_SCOPE_WHILE_WAITING), "INVALID_FIELD", "unique_scope"),
    ("unknown scope", spec(unique_key="k", unique_scope=77), "INVALID_FIELD", "unique_scope"),
    ("unknown shape", spec(retry=pb.RetryPolicy.FromString(b"\x08\x4d")), "INVALID_FIELD", "retry.shape"),
    ("negative base", spec(retry=pb.RetryPolicy(base_ms=-1)), "OUT_OF_RANGE", "retry.base_ms"),
    ("factor below one", spec(retry=pb.RetryPolicy(factor=0.5)), "OUT_OF_RANGE", "retry.factor"),
    ("factor that is no number", spec(retry=pb.RetryPolicy(factor=math.nan)), "OUT_OF_RANGE", "retry.factor"),
    ("endless factor", spec(retry=pb.RetryPolicy(factor=math.inf)), "OUT_OF_RANGE", "retry.factor"),
    ("huge cap", spec(retry=pb.RetryPolicy(cap_ms=INT64_MAX)), "OUT_OF_RANGE", "retry.cap_ms"),
    ("jitter that is no number", spec(retry=pb.RetryPolicy(jitter=math.nan)), "OUT_OF_RANGE", "retry.jitter"),
    ("jitter above one", spec(retry=pb.RetryPolicy(jitter=1.01)), "OUT_OF_RANGE", "retry.jitter"),
    ("empty error type", spec(retry=pb.RetryPolicy(non_retryable=["A", ""])), "MISSING_FIELD",
     "retry.non_retryable[1]"),
    ("many error types", spec(retry=pb.RetryPolicy(non_retryable=["A"] * 65)), "TOO_LARGE", "retry.non_retryable"),
]  # fmt: skip


@pytest.mark.parametrize(("made", "reason", "field"), [s[1:] for s in SPECS], ids=[s[0] for s in SPECS])
async def test_a_bad_task_is_refused(
    scene: Scene, wire: Wire, made: pb.TaskSpec | Callable[[], pb.TaskSpec], reason: str, field: str
) -> None:
    bad = made if isinstance(made, pb.TaskSpec) else made()
    before = await scene.poll(wire)
    answer = await wire.call("Enqueue", pb.EnqueueRequest(tasks=[bad]))
    assert isinstance(answer, bytes)
    [outcome] = pb.EnqueueResponse.FromString(answer).outcomes
    check(outcome.rejection, reason, f"tasks[0].{field}")

    # As a follow-up it refuses the ack as well: both or neither.
    ack = pb.AckRequest(items=[pb.AckItem(claim=scene.claimed, follow_ups=[spec(), bad])])
    answer = await wire.call("Ack", ack)
    assert isinstance(answer, bytes)
    [acked] = pb.AckResponse.FromString(answer).outcomes
    check(acked.rejection, reason, f"items[0].follow_ups[1].{field}")
    assert await scene.poll(wire) == before


def check(rejection: pb.Rejection, reason: str, field: str) -> None:
    assert (rejection.reason, rejection.field) == (reason, field)
    assert rejection.message.startswith("Expected ")
    assert rejection.retry_after_ms == 0


def bad_ref(**fields: Any) -> Callable[[pb.ClaimRef], pb.ClaimRef]:
    def make(claimed: pb.ClaimRef) -> pb.ClaimRef:
        ref = pb.ClaimRef()
        ref.CopyFrom(claimed)
        for name, value in fields.items():
            setattr(ref, name, value)
        return ref

    return make


REFS: list[tuple[str, Callable[[pb.ClaimRef], pb.ClaimRef], str, str]] = [
    ("no id", bad_ref(task_id=""), "MISSING_FIELD", "task_id"),
    ("nonsense", bad_ref(task_id="nonsense"), "INVALID_FIELD", "task_id"),
    ("another kind of UUID", bad_ref(task_id="123e4567-e89b-42d3-a456-426614174000"), "INVALID_FIELD", "task_id"),
    ("id without dashes", bad_ref(task_id="01984f6e00008000800000000000000100"), "INVALID_FIELD", "task_id"),
    ("id in braces", bad_ref(task_id="{" + OTHER_TASK_ID[:-2] + "}"), "INVALID_FIELD", "task_id"),
    ("id with digits beyond ASCII", bad_ref(task_id=OTHER_TASK_ID[:-1] + "١"), "INVALID_FIELD", "task_id"),
    ("no token", bad_ref(token=0), "MISSING_FIELD", "token"),
    ("no secret", bad_ref(secret=0), "MISSING_FIELD", "secret"),
    ("wrong secret", bad_ref(secret=1), "STALE_TOKEN", ""),
    ("unknown task", bad_ref(task_id=OTHER_TASK_ID), "TASK_NOT_FOUND", ""),
    ("wrong token", bad_ref(token=1), "STALE_TOKEN", ""),
    ("largest token", bad_ref(token=2**64 - 1), "STALE_TOKEN", ""),
]


@pytest.mark.parametrize(("make", "reason", "field"), [r[1:] for r in REFS], ids=[r[0] for r in REFS])
async def test_a_bad_claim_is_refused(
    scene: Scene, wire: Wire, make: Callable[[pb.ClaimRef], pb.ClaimRef], reason: str, field: str
) -> None:
    ref = make(scene.claimed)
    before = (await scene.poll(wire))[:-1]  # a well-formed refusal may pass through the log
    entries_before = scene.server.entries_written
    for method, request, place in (
        ("Ack", pb.AckRequest(items=[pb.AckItem(claim=ref)]), "items[0].claim"),
        ("Fail", pb.FailRequest(items=[pb.FailItem(claim=ref)]), "items[0].claim"),
        ("Extend", pb.ExtendRequest(items=[pb.ExtendItem(claim=ref, lease_ms=5000)]), "items[0].claim"),
        ("Release", pb.ReleaseRequest(claims=[ref]), "claims[0]"),
    ):
        answer = await wire.call(method, request)
        assert isinstance(answer, bytes)
        response: Any = getattr(pb, f"{method}Response").FromString(answer)
        check(response.outcomes[0].rejection, reason, f"{place}.{field}" if field else "")
    assert (await scene.poll(wire))[:-1] == before
    if field:
        assert scene.server.entries_written == entries_before


# name, method, request with the claim put in, reason, field
SETTLEMENTS: list[tuple[str, str, Callable[[pb.ClaimRef], Message], str, str]] = [
    ("large result", "Ack", lambda ref: pb.AckRequest(items=[pb.AckItem(claim=ref, result=bytes(MIB + 1))]),
     "TOO_LARGE", "items[0].result"),
    ("many follow-ups", "Ack", lambda ref: pb.AckRequest(items=[pb.AckItem(claim=ref, follow_ups=[spec()] * 101)]),
     "BATCH_TOO_LARGE", "items[0].follow_ups"),
    ("long error type", "Fail",
     lambda ref: pb.FailRequest(items=[pb.FailItem(claim=ref, error=pb.TaskError(type="e" * 257))]),
     "TOO_LARGE", "items[0].error.type"),
    ("long error message", "Fail",
     lambda ref: pb.FailRequest(items=[pb.FailItem(claim=ref, error=pb.TaskError(message="m" * 16_385))]),
     "TOO_LARGE", "items[0].error.message"),
    ("long traceback", "Fail",
     lambda ref: pb.FailRequest(items=[pb.FailItem(claim=ref, error=pb.TaskError(traceback="é" * 8193))]),
     "TOO_LARGE", "items[0].error.traceback"),
    ("negative retry delay", "Fail", lambda ref: pb.FailRequest(items=[pb.FailItem(claim=ref, retry_delay_ms=-1)]),
     "OUT_OF_RANGE", "items[0].retry_delay_ms"),
    ("huge retry delay", "Fail", lambda ref: pb.FailRequest(items=[pb.FailItem(claim=ref, retry_delay_ms=INT64_MAX)]),
     "OUT_OF_RANGE", "items[0].retry_delay_ms"),
    ("no extension", "Extend", lambda ref: pb.ExtendRequest(items=[pb.ExtendItem(claim=ref)]),
     "OUT_OF_RANGE", "items[0].lease_ms"),
    ("negative extension", "Extend", lambda ref: pb.ExtendRequest(items=[pb.ExtendItem(claim=ref, lease_ms=-5)]),
     "OUT_OF_RANGE", "items[0].lease_ms"),
    ("huge extension", "Extend", lambda ref: pb.ExtendRequest(items=[pb.ExtendItem(claim=ref, lease_ms=INT64_MAX)]),
     "OUT_OF_RANGE", "items[0].lease_ms"),
    ("bad id to cancel", "Cancel", lambda _: pb.CancelRequest(task_ids=["nonsense"]), "INVALID_FIELD", "task_ids[0]"),
    ("no id to cancel", "Cancel", lambda _: pb.CancelRequest(task_ids=[""]), "MISSING_FIELD", "task_ids[0]"),
    ("bad id to retry", "RetryDeadLetters", lambda _: pb.RetryDeadLettersRequest(task_ids=["x"]), "INVALID_FIELD",
     "task_ids[0]"),
    ("bad id to discard", "DiscardDeadLetters", lambda _: pb.DiscardDeadLettersRequest(task_ids=["x"]),
     "INVALID_FIELD", "task_ids[0]"),
    ("bad id to wait for", "WaitTasks", lambda _: pb.WaitTasksRequest(task_ids=["x"], wait_ms=60_000),
     "INVALID_FIELD", "task_ids[0]"),
    ("no id to wait for", "WaitTasks", lambda _: pb.WaitTasksRequest(task_ids=[""]), "MISSING_FIELD", "task_ids[0]"),
    ("unknown id to wait for", "WaitTasks",
     lambda _: pb.WaitTasksRequest(task_ids=[OTHER_TASK_ID], wait_ms=60_000), "TASK_NOT_FOUND", ""),
    ("bad queue to look at", "QueueStats", lambda _: pb.QueueStatsRequest(queues=["a b"]), "INVALID_FIELD",
     "queues[0]"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("method", "make", "reason", "field"), [s[1:] for s in SETTLEMENTS], ids=[s[0] for s in SETTLEMENTS]
)
async def test_a_bad_item_is_refused(
    scene: Scene, wire: Wire, method: str, make: Callable[[pb.ClaimRef], Message], reason: str, field: str
) -> None:
    before = await scene.poll(wire)
    answer = await wire.call(method, make(scene.claimed))
    assert isinstance(answer, bytes)
    names = {
        "RetryDeadLetters": pb.RetryDeadLettersResponse,
        "DiscardDeadLetters": pb.DiscardDeadLettersResponse,
    }
    response: Any = names.get(method, getattr(pb, f"{method}Response")).FromString(answer)
    [outcome] = response.outcomes
    check(outcome.rejection, reason, field)
    assert await scene.poll(wire) == before


# --- good and bad together ----------------------------------------------------------------------------------------


async def test_bad_items_of_a_batch_are_refused_in_place(server: ServerProcess, wire: Wire, queue: str) -> None:
    batch = pb.EnqueueRequest(
        tasks=[
            spec(queue=queue, type="0"),
            spec(queue="not a name"),
            spec(queue=queue, type="2", priority=10),
            spec(queue=queue, type="3", request_id="same"),
            spec(queue=queue, type="", payload=b"x"),
            spec(queue=queue, type="3", request_id="same"),
            spec(queue=queue, type="6", delay_ms=-1),
            spec(queue=queue, type="7"),
        ]
    )
    answer = await wire.call("Enqueue", batch)
    assert isinstance(answer, bytes)
    outcomes = pb.EnqueueResponse.FromString(answer).outcomes
    assert [outcome.WhichOneof("outcome") for outcome in outcomes] == [
        "accepted", "rejection", "rejection", "accepted", "rejection", "accepted", "rejection", "accepted"
    ]  # fmt: skip
    assert [outcome.rejection.field for outcome in outcomes if outcome.HasField("rejection")] == [
        "tasks[1].queue", "tasks[2].priority", "tasks[4].type", "tasks[6].delay_ms"
    ]  # fmt: skip
    assert [outcome.accepted.duplicate for outcome in outcomes if outcome.HasField("accepted")] == [0, 0, 1, 0]
    assert outcomes[5].accepted.task_id == outcomes[3].accepted.task_id
    async with AsyncClient(server.address) as client:
        claims = await client.reserve([queue], max_tasks=10)
    assert [claim.type for claim in claims] == ["0", "3", "7"]
    assert [claim.task_id for claim in claims] == [outcomes[index].accepted.task_id for index in (0, 3, 7)]


async def test_the_limits_themselves_are_allowed(server: ServerProcess, queue: str) -> None:
    async with AsyncClient(server.address) as client:
        largest = NewTask(
            "q" * 128, "t" * 256, bytes(MIB), priority=9, tenant="t" * 256, request_id="r" * 256, delay_ms=YEAR_MS,
            max_attempts=1000, max_claims=10_000, result_ttl_ms=YEAR_MS, headers={"h": "v" * 16_383},
            request_id_ttl_ms=YEAR_MS,
        )  # fmt: skip
        smallest = NewTask("q", "t", priority=0, delay_ms=0, max_attempts=1, max_claims=1, result_ttl_ms=0)
        many = [NewTask(queue, "t")] * 1000
        for outcome in (*await client.enqueue_many([largest, smallest]), *await client.enqueue_many(many)):
            assert isinstance(outcome, Accepted)
        claims = await client.reserve([queue], max_tasks=1000, lease_ms=24 * 3600 * 1000)
        assert len(claims) == 1000
        assert len(await client.ack_many(claims)) == 1000


async def test_payloads_are_opaque(server: ServerProcess, queue: str) -> None:
    """Every byte, also those that look like messages, markers or control characters, comes back as it was."""
    payloads = [b"", bytes(range(256)), b"\x00" * 5000, spec().SerializeToString(), "ünï".encode(), b"HFRD" * 64]
    headers = {"": "", "k\n": "v\x00", "ü": "\u2028"}
    async with AsyncClient(server.address) as client:
        await client.enqueue_many([NewTask(queue, "t", payload, headers=headers) for payload in payloads])
        claims = await client.reserve([queue], max_tasks=10)
    assert [claim.payload for claim in claims] == payloads
    assert all(claim.headers == headers for claim in claims)
