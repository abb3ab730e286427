"""What is noted of calls: what operators did however it ended, refusals of anybody, and nothing of what tasks hold."""

import asyncio
import secrets
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from holdfast.access.documents import to_json
from holdfast.access.editing import add_token
from holdfast.access.policies import AccessPolicy
from holdfast.access.tokens import make_token
from holdfast.audit.chain import Entry, read_line
from holdfast.common.metadata import AUTHORIZATION_KEY, CALLER_KEY
from holdfast.proto.v1 import queues_pb2, schedules_pb2, tasks_pb2
from holdfast.serving.access_rules import AccessFile, AccessRules
from holdfast.serving.audit_log import AuditLog, audit_files
from holdfast.serving.audited import REFUSALS_MAX, REFUSALS_SECONDS, GuardedAudit, OpenAudit, audited, subject
from holdfast.serving.metrics import CallMetrics
from holdfast.serving.refusals import RefusedError
from holdfast.serving.request_limits import request_limit
from holdfast.serving.router_word import RouterSecret, RouterWords
from holdfast.serving.served import Answer, CallContext, Served

DENIED = RefusedError("PERMISSION_DENIED", "No.")
SECRET = b"ada@example.org"


class Context:
    def __init__(self, *metadata: tuple[str, str]) -> None:
        self._metadata = metadata

    def invocation_metadata(self) -> Any:
        return self._metadata

    def time_remaining(self) -> float | None:
        return None

    def done(self) -> bool:
        return False

    def peer(self) -> str:
        return "ipv4:10.0.0.1:5"


class Knowing(OpenAudit):
    """As of a server that asks who calls."""

    def who(self, _context: CallContext) -> str:
        return "token:ada"


class Stage:
    """Methods that answer as they are told to, and what was noted of them."""

    def __init__(self, directory: Path, kind: type[OpenAudit] = Knowing) -> None:
        self.directory = directory
        self.log = AuditLog(directory, "n1")
        self.audit = kind(self.log)
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
        self.log.close()
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


async def test_what_is_served_may_change_meanwhile(tmp_path: Path) -> None:
    """As it does when access rules come and go."""
    stage = Stage(tmp_path)
    inner = stage.served("PurgeQueue", queues_pb2.PurgeQueueRequest)
    outer = audited(inner, "holdfast.proto.v1.Queues", stage.audit)
    inner.begin = lambda _context: lambda _data: asyncio.sleep(0, "another")
    assert await outer.begin(Context())(b"") == "another"
    assert len(stage.noted()) == 1


def test_calls_that_are_no_operators_pay_nothing(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
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
        stage.method("Queues", "PurgeQueue", queues_pb2.PurgeQueueRequest).begin(Context())
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


# --- of a server that asks who calls

RULES = {
    "roles": {
        "all": {"rights": ["administer", "enqueue", "operate", "work"], "queues": ["*"]},
        "shop": {"rights": ["enqueue"], "queues": ["shop"]},
    }
}
ADMIN, SHOP = make_token(secrets.token_bytes), make_token(secrets.token_bytes)
POLICY = add_token(add_token(AccessPolicy.read(RULES), ADMIN, "ada", ["all"]), SHOP, "shop", ["shop"])
ROUTERS = RouterSecret(b"a secret of routers, which has to be long")
ENQUEUE, PURGE = "/holdfast.proto.v1.Tasks/Enqueue", "/holdfast.proto.v1.Queues/PurgeQueue"


def bearer(text: str) -> Context:
    return Context((AUTHORIZATION_KEY, f"Bearer {text}"))


class GuardedStage:
    """A guard, and what was noted of what it refused."""

    def __init__(self, directory: Path, *, has_rules: bool = True) -> None:
        self.stage = Stage(directory / "audit")
        file = directory / "access.json"
        file.write_bytes(to_json(POLICY))
        self.access = AccessRules(
            file=AccessFile(file) if has_rules else None, secret=ROUTERS, cluster_id=lambda: "the-cluster"
        )
        self.now_s = 0.0
        self.stage.audit = GuardedAudit(self.stage.log, self.access, lambda: self.now_s)

    async def refused(self, path: str, context: Context, request: Any = None) -> None:
        async def handle(_request: Any) -> Any:
            raise AssertionError("it is refused")

        guard = self.access.guard
        with pytest.raises(RefusedError):
            await guard.answer(guard.admit(path, context), context, request, handle)

    def noted(self) -> list[tuple[str, str, str, str]]:
        entries = self.stage.noted()
        assert not [token for token in (ADMIN, SHOP) if token.text in str(entries)]
        return [(entry.who, entry.what, entry.on, entry.result) for entry in entries]


async def test_whatever_is_refused_is_noted_with_who_asked(tmp_path: Path) -> None:
    guarded = GuardedStage(tmp_path)
    await guarded.refused(ENQUEUE, Context())
    await guarded.refused("/holdfast.proto.v1.Tasks/Reserve", bearer(SHOP.text))
    await guarded.refused("/holdfast.proto.v1.Tasks/ListQueues", bearer(SHOP.text[:-1] + "x"))
    tasks = [tasks_pb2.TaskSpec(queue=queue, type="t", payload=SECRET) for queue in ("shop", "other", "mail")]
    await guarded.refused(ENQUEUE, bearer(SHOP.text), tasks_pb2.EnqueueRequest(tasks=tasks[1:]))
    assert guarded.noted() == [
        ("unknown", "Tasks/Enqueue", "", "UNAUTHENTICATED"),
        ("token:shop", "Tasks/Reserve", "", "PERMISSION_DENIED"),
        ("unknown", "Tasks/ListQueues", "", "UNAUTHENTICATED"),
        ("token:shop", "Tasks/Enqueue", "queue=other items=2", "PERMISSION_DENIED"),
    ]


async def test_items_that_are_refused_are_noted_although_others_are_taken(tmp_path: Path) -> None:
    guarded, context = GuardedStage(tmp_path), bearer(SHOP.text)
    guard = guarded.access.guard

    async def handle(request: Any) -> Any:
        return tasks_pb2.EnqueueResponse(outcomes=[tasks_pb2.EnqueueOutcome() for _ in request.tasks])

    for queues in (["shop"], ["shop", "other", "shop"]):
        request = tasks_pb2.EnqueueRequest(tasks=[tasks_pb2.TaskSpec(queue=queue, type="t") for queue in queues])
        response = await guard.answer(guard.admit(ENQUEUE, context), context, request, handle)
        assert len(response.outcomes) == len(queues)
    assert guarded.noted() == [("token:shop", "Tasks/Enqueue", "queue=other items=1", "PERMISSION_DENIED")]


async def test_an_operators_call_is_noted_once_with_who_made_it(tmp_path: Path) -> None:
    """Also if a router said who it is, if the guard refuses it, and if the context says no more when it ends."""
    guarded = GuardedStage(tmp_path)
    guard, stage = guarded.access.guard, guarded.stage
    inner = stage.served("PurgeQueue", queues_pb2.PurgeQueueRequest)
    plain = inner.begin

    def asking(context: CallContext) -> Answer:
        guard.admit(PURGE, context)
        return plain(context)

    guarded.access.switch(inner, asking)
    purge = audited(inner, "holdfast.proto.v1.Queues", stage.audit)
    words = RouterWords(ROUTERS, lambda: "the-cluster")
    word = words.word(guard.admit(PURGE, bearer(ADMIN.text)).identity)
    data = queues_pb2.PurgeQueueRequest(queue="mail").SerializeToString()
    for context in (bearer(ADMIN.text), Context((CALLER_KEY, word))):
        answer = purge.begin(context)
        context._metadata = ()
        await answer(data)
    for context in (bearer(SHOP.text), Context()):
        with pytest.raises(RefusedError):
            purge.begin(context)
    assert guarded.noted() == [
        ("token:ada", "Queues/PurgeQueue", "queue=mail", "OK"),
        ("token:ada", "Queues/PurgeQueue", "queue=mail", "OK"),
        ("token:shop", "Queues/PurgeQueue", "", "PERMISSION_DENIED"),
        ("unknown", "Queues/PurgeQueue", "", "UNAUTHENTICATED"),
    ]


async def test_without_rules_everybody_is_nobody(tmp_path: Path) -> None:
    guarded = GuardedStage(tmp_path, has_rules=False)
    purge = guarded.stage.method("Queues", "PurgeQueue", queues_pb2.PurgeQueueRequest)
    await purge.begin(bearer(ADMIN.text))(b"")
    assert guarded.noted() == [("anonymous", "Queues/PurgeQueue", "", "OK")]


async def test_what_is_refused_over_and_over_does_not_fill_the_files(tmp_path: Path) -> None:
    guarded = GuardedStage(tmp_path)
    for _ in range(REFUSALS_MAX + 7):
        await guarded.refused(ENQUEUE, Context())
    request = tasks_pb2.EnqueueRequest(tasks=[tasks_pb2.TaskSpec(queue="a")])
    await guarded.refused(ENQUEUE, bearer(SHOP.text), request)
    for _ in range(2):
        guarded.now_s += REFUSALS_SECONDS
        await guarded.refused(ENQUEUE, Context())
    assert [(who, on) for who, _, on, _ in guarded.noted()] == [
        *[("unknown", "")] * REFUSALS_MAX,
        ("token:shop", "queue=a items=1"),
        ("unknown", "(and 7 calls before)"),
        ("unknown", ""),
    ]


async def test_a_wait_whose_caller_was_shut_out_is_noted(tmp_path: Path) -> None:
    guarded, context = GuardedStage(tmp_path), bearer(ADMIN.text)
    guard = guarded.access.guard
    has_begun = asyncio.Event()

    async def handle(_request: Any) -> Any:
        has_begun.set()
        await asyncio.Event().wait()

    path = "/holdfast.proto.v1.Tasks/Reserve"
    request = tasks_pb2.ReserveRequest(queues=["mail"], wait_ms=60_000)
    waiting = asyncio.ensure_future(guard.answer(guard.admit(path, context), context, request, handle))
    await has_begun.wait()
    guarded.access.take(AccessPolicy.read(RULES))
    with pytest.raises(RefusedError):
        await waiting
    assert guarded.noted() == [("token:ada", "Tasks/Reserve", "", "UNAUTHENTICATED")]
