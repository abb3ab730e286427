"""What is noted of calls: what operators did however it ended, refusals of anybody, and nothing of what tasks hold."""

import asyncio
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from holdfast.audit.chain import Entry, read_line
from holdfast.proto.v1 import queues_pb2, schedules_pb2, tasks_pb2
from holdfast.serving.audit_log import AuditLog, audit_files
from holdfast.serving.audited import OpenAudit, audited, subject
from holdfast.serving.metrics import CallMetrics
from holdfast.serving.refusals import RefusedError
from holdfast.serving.request_limits import request_limit
from holdfast.serving.served import Answer, CallContext, Served

DENIED = RefusedError("PERMISSION_DENIED", "No.")
SECRET = b"ada@example.org"


class Context:
    def invocation_metadata(self) -> Any:
        return ()

    def time_remaining(self) -> float | None:
        return None

    def done(self) -> bool:
        return False

    def peer(self) -> str:
        return "ipv4:10.0.0.1:5"


class Knowing(OpenAudit):
    """As of a server that asks who calls."""

    can_refuse = True

    def who(self, _context: CallContext) -> str:
        return "token:ada"


class Stage:
    """Methods that answer as they are told to, and what was noted of them."""

    def __init__(self, directory: Path, kind: type[OpenAudit] = Knowing) -> None:
        self.directory = directory
        self.audit = kind(AuditLog(directory, "n1"))
        self.begin_error: Exception | None = None
        self.answer_error: BaseException | None = None

    def method(self, service: str, name: str, request: Any) -> Served:
        return audited(self.served(name, request), f"holdfast.proto.v1.{service}", self.audit)

    def served(self, name: str, request: Any) -> Served:
        observed = CallMetrics("holdfast", CollectorRegistry()).of(name)
        limit = request_limit(name, request, large_bytes_max=1 << 20)
        return Served(name, limit, observed, self._begin)

    def _begin(self, _context: CallContext) -> Answer:
        if self.begin_error is not None:
            raise self.begin_error
        return self._answer

    def _answer(self, _data: bytes) -> Coroutine[Any, Any, Any]:
        async def answer() -> str:
            if self.answer_error is not None:
                raise self.answer_error
            return "answered"

        return answer()

    def noted(self) -> list[Entry]:
        self.audit.log.close()
        lines = [line for path in audit_files(self.directory) for line in path.read_text("ascii").splitlines()]
        assert SECRET.decode() not in "".join(lines)
        return [read_line(line)[0] for line in lines]


async def test_what_operators_do_is_noted_however_it_ends(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    purge = stage.method("Queues", "PurgeQueue", queues_pb2.PurgeQueueRequest)
    data = queues_pb2.PurgeQueueRequest(queue="mail").SerializeToString()
    assert await purge.begin(Context())(data) == "answered"
    for error in (DENIED, ValueError("bug"), asyncio.CancelledError()):
        stage.answer_error = error
        with pytest.raises(type(error)):
            await purge.begin(Context())(data)
    stage.begin_error = RefusedError("OVERLOADED", "Busy.")
    with pytest.raises(RefusedError):
        purge.begin(Context())
    noted = stage.noted()
    assert [entry.result for entry in noted] == [
        "OK",
        "PERMISSION_DENIED",
        "ValueError",
        "CancelledError",
        "OVERLOADED",
    ]
    assert {(entry.who, entry.where, entry.what) for entry in noted} == {
        ("token:ada", "10.0.0.1:5", "Queues/PurgeQueue")
    }
    assert [entry.on for entry in noted] == ["queue=mail"] * 4 + [""]


async def test_of_other_calls_only_who_was_refused_is_noted(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    enqueue = stage.method("Tasks", "Enqueue", tasks_pb2.EnqueueRequest)
    assert await enqueue.begin(Context())(b"") == "answered"
    for error in (RefusedError("OVERLOADED", "Busy."), DENIED, RefusedError("UNAUTHENTICATED", "Who?")):
        stage.begin_error = error
        with pytest.raises(RefusedError):
            enqueue.begin(Context())
    assert [(entry.what, entry.result) for entry in stage.noted()] == [
        ("Tasks/Enqueue", "PERMISSION_DENIED"),
        ("Tasks/Enqueue", "UNAUTHENTICATED"),
    ]


async def test_what_is_served_may_change_meanwhile(tmp_path: Path) -> None:
    """As it does when access rules come and go."""
    stage = Stage(tmp_path)
    inner = stage.served("PurgeQueue", queues_pb2.PurgeQueueRequest)
    outer = audited(inner, "holdfast.proto.v1.Queues", stage.audit)
    inner.begin = lambda _context: lambda _data: asyncio.sleep(0, "another")
    assert await outer.begin(Context())(b"") == "another"
    assert len(stage.noted()) == 1


def test_a_server_that_asks_nobody_leaves_other_calls_alone(tmp_path: Path) -> None:
    stage = Stage(tmp_path, OpenAudit)
    assert type(stage.method("Tasks", "Enqueue", tasks_pb2.EnqueueRequest)) is Served
    assert type(stage.method("Queues", "PurgeQueue", queues_pb2.PurgeQueueRequest)) is not Served
    assert stage.noted() == []


async def test_who_cannot_be_told_is_noted_as_such(tmp_path: Path) -> None:
    class Failing(Knowing):
        def who(self, context: CallContext) -> str:
            raise DENIED

    stage = Stage(tmp_path, Failing)
    stage.begin_error = RefusedError("UNAUTHENTICATED", "Who?")
    with pytest.raises(RefusedError):
        stage.method("Tasks", "Enqueue", tasks_pb2.EnqueueRequest).begin(Context())
    assert [entry.who for entry in stage.noted()] == ["unknown"]


def test_names_and_ids_of_a_request_are_noted_and_nothing_else() -> None:
    cancel = tasks_pb2.CancelRequest(task_ids=[f"t{number}" for number in range(1000)])
    assert subject(tasks_pb2.CancelRequest, cancel.SerializeToString()) == "task_ids=t0,t1,t2 and 997 more"
    update = tasks_pb2.UpdateTasksRequest(items=[tasks_pb2.UpdateItem(task_id="t1", priority=3)])
    assert subject(tasks_pb2.UpdateTasksRequest, update.SerializeToString()) == "items=t1"
    put = schedules_pb2.PutScheduleRequest(queue="mail", name="nightly")
    put.spec.task.payload = SECRET
    assert subject(schedules_pb2.PutScheduleRequest, put.SerializeToString()) == "queue=mail name=nightly"
    assert subject(tasks_pb2.CancelRequest, b"\xff") == "a request that cannot be read"
