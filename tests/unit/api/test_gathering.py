"""Small calls of one moment, and tasks that are alike: accepted together, answered one by one."""

import asyncio
from collections.abc import Awaitable, Sequence
from typing import Any

import pytest

from holdfast.broker.api import gathering
from holdfast.broker.api.tasks import TaskService
from holdfast.machine import keys
from holdfast.proto.v1 import tasks_pb2 as pb
from holdfast.proto.v1.cluster_pb2 import QueuePolicy
from holdfast.serving.refusals import RefusedError
from tests.unit.replica.small_shard import SmallShard, counted, settle


def spec(payload: bytes, **fields: Any) -> pb.TaskSpec:
    return pb.TaskSpec(**({"queue": "mail", "type": "send", "payload": payload} | fields))


class Broker:
    def __init__(self, **settings: Any) -> None:
        self.small = SmallShard(**settings)
        self.service = TaskService(self.small.shard, self.small.config, self.small.metrics)

    async def together(self, *calls: list[pb.TaskSpec]) -> list[Any]:
        """Calls that come in one moment: their answers, or how they were refused."""
        return await self.answers([self.service.enqueue(pb.EnqueueRequest(tasks=call)) for call in calls])

    async def answers(self, calls: Sequence[Awaitable[pb.EnqueueResponse]]) -> list[Any]:
        async def all_of_them() -> list[Any]:
            return [*await asyncio.gather(*calls, return_exceptions=True)]

        return await self.small.rounds_until(all_of_them())

    async def payloads(self) -> list[bytes]:
        request = pb.ReserveRequest(queues=["mail"], max_tasks=100, lease_ms=30_000, worker="w")
        claims = (await self.small.rounds_until(self.service.reserve(request))).claims
        return [claim.task.payload for claim in claims]

    @property
    def applied(self) -> int:
        """How many entries."""
        return self.small.machine.meta.applied_index

    def rows(self, family: int) -> int:
        return len(self.small.kv.scan(keys.family_start(family), keys.family_start(family + 1), 1000))


@pytest.fixture
async def broker() -> Broker:
    return Broker()


def ids_in(answers: list[Any]) -> list[str]:
    return [outcome.accepted.task_id for answer in answers for outcome in answer.outcomes]


async def test_calls_of_one_moment_are_one_entry_and_their_tasks_a_run(broker: Broker) -> None:
    before = broker.applied
    answers = await broker.together([spec(b"0")], [spec(b"1"), spec(b"2")], [spec(b"3", priority=9)], [spec(b"4")])
    assert broker.applied == before + 1
    assert (broker.rows(keys.RUN), broker.rows(keys.EXECUTION)) == (1, 1)
    assert len(set(ids_in(answers))) == 5
    assert [len(answer.outcomes) for answer in answers] == [1, 2, 1, 1]
    assert await broker.payloads() == [b"3", b"0", b"1", b"2", b"4"]
    assert counted(broker.small.metrics.tasks_enqueued) == 5


async def test_a_repeated_call_finds_its_own_task_and_no_other(broker: Broker) -> None:
    calls = [[spec(b"%d" % number, request_id=f"~0.call{number}.0")] for number in range(4)]
    first = ids_in(await broker.together(*calls))
    again = await broker.together(calls[2], [spec(b"new", request_id="~0.new.0")], calls[0], calls[2])
    assert [answer.outcomes[0].accepted.duplicate for answer in again] == [True, False, True, True]
    found = ids_in(again)
    assert (found[0], found[2], found[3]) == (first[2], first[0], first[2])
    assert found[1] not in first
    task = await broker.small.rounds_until(broker.service.get_task(pb.GetTaskRequest(task_id=first[1])))
    assert (task.task.task.request_id, task.task.task.payload) == ("~0.call1.0", b"1")


async def test_each_call_has_its_own_refusal(broker: Broker) -> None:
    await broker.together([spec(b"a", request_id="order-1")])
    good, conflict, bad, known = await broker.together(
        [spec(b"b", request_id="order-2")],
        [spec(b"other", request_id="order-1")],
        [spec(b"c", queue="")],
        [spec(b"a", request_id="order-1")],
    )
    assert good.outcomes[0].accepted.task_id
    assert (conflict.outcomes[0].rejection.reason, conflict.outcomes[0].rejection.field) == (
        "REQUEST_ID_CONFLICT", "tasks[0].request_id",
    )  # fmt: skip
    assert bad.outcomes[0].rejection.field == "tasks[0].queue"
    assert known.outcomes[0].accepted.duplicate


async def test_of_calls_with_one_request_id_the_first_makes_the_task(broker: Broker) -> None:
    answers = await broker.together(
        [spec(b"1", request_id="same")], [spec(b"2", request_id="x")], [spec(b"1", request_id="same")],
        [spec(b"3", request_id="same")],
    )  # fmt: skip
    assert ids_in(answers)[0] == ids_in(answers)[2]
    assert [answer.outcomes[0].accepted.duplicate for answer in answers[:3]] == [False, False, True]
    assert answers[3].outcomes[0].rejection.reason == "REQUEST_ID_CONFLICT"


@pytest.mark.parametrize("fields", [{"unique_key": "u"}, {"delay_ms": 60_000}, {"ttl_ms": 60_000}])
async def test_what_has_something_of_its_own_stays_by_itself(broker: Broker, fields: dict[str, Any]) -> None:
    answers = await broker.together(*([spec(b"1", **fields)] for _ in range(3)))
    assert broker.rows(keys.RUN) == 0
    assert len(set(ids_in(answers))) == (1 if "unique_key" in fields else 3)


async def test_nothing_is_overtaken_in_its_line(broker: Broker) -> None:
    """Tasks of another type, or with a key of their own, end a run; those of other lines do not."""
    tasks = [
        spec(b"0"), spec(b"1"), spec(b"2", type="other"), spec(b"9", tenant="t"), spec(b"3"),
        spec(b"4", unique_key="u"), spec(b"5"), spec(b"6"),
    ]  # fmt: skip
    await broker.together(tasks)
    assert [payload for payload in await broker.payloads() if payload != b"9"] == [
        b"%d" % number for number in range(7)
    ]


async def test_where_tasks_have_a_time_to_live_by_their_queue_they_are_single(broker: Broker) -> None:
    policy = QueuePolicy(ttl_ms=60_000).SerializeToString()
    await broker.small.rounds_until(broker.small.shard.set_queue(b"mail", 1, policy))
    await broker.together([spec(b"0")], [spec(b"1")])
    assert (broker.rows(keys.RUN), broker.rows(keys.START_BY)) == (0, 2)


async def test_a_caller_that_has_gone_takes_nothing_from_the_others(broker: Broker) -> None:
    calls = [
        asyncio.ensure_future(broker.service.enqueue(pb.EnqueueRequest(tasks=[spec(b"%d" % number)])))
        for number in range(3)
    ]
    await settle()
    calls[1].cancel()
    first, _, third = await broker.answers(calls)
    assert len(set(ids_in([first, third]))) == 2
    assert await broker.payloads() == [b"0", b"1", b"2"], "what was proposed counts"


async def test_if_the_entry_comes_to_nothing_every_call_hears_of_it(broker: Broker) -> None:
    calls = [
        asyncio.ensure_future(broker.service.enqueue(pb.EnqueueRequest(tasks=[spec(b"%d" % number)])))
        for number in range(3)
    ]
    await settle()
    for proposal in broker.small.shard.proposals.drop_waiting():
        proposal.reject(RefusedError("NOT_LEADER", "Expected another node."))
    answers = await asyncio.gather(*calls, return_exceptions=True)
    assert [isinstance(answer, RefusedError) and answer.reason for answer in answers] == ["NOT_LEADER"] * 3


async def test_so_many_calls_take_so_much_room(monkeypatch: pytest.MonkeyPatch) -> None:
    broker = Broker(proposals_max=3)
    monkeypatch.setattr(gathering, "GATHERED_TASKS", 2)
    answers = await broker.together(*([spec(b"x")] for _ in range(9)))
    refused = [answer.reason for answer in answers if isinstance(answer, RefusedError)]
    assert refused == ["OVERLOADED"] * 6
    assert len(ids_in([answer for answer in answers if not isinstance(answer, RefusedError)])) == 3
    answers = await broker.together(*([spec(b"x")] for _ in range(2)))
    assert len(ids_in(answers)) == 2, "and give it back"


@pytest.mark.parametrize("method", ["entry", "outcomes"])
async def test_a_bug_leaves_no_caller_waiting(broker: Broker, monkeypatch: pytest.MonkeyPatch, method: str) -> None:
    def broken(*_: Any) -> Any:
        raise ZeroDivisionError

    monkeypatch.setattr(gathering.Batch, method, broken)
    answers = await broker.together([spec(b"a")], [spec(b"b")])
    assert [type(answer) for answer in answers] == [ZeroDivisionError, ZeroDivisionError]
