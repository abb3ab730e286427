"""Runs on the wire: what a caller that knows of them sends and gets, and one that does not."""

from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

import pytest

from holdfast.broker.api import tasks as api_tasks
from holdfast.broker.api.claims import fill_claims, read_claims
from holdfast.broker.api.tasks import TaskService
from holdfast.machine import reader
from holdfast.machine.ids import format_task_id, later_task_id, parse_task_id
from holdfast.machine.rows import CANCELLED, CLAIMED, DEAD, DELAYED, READY, SUCCEEDED
from holdfast.machine.run_rows import RunPayloads
from holdfast.proto.v1 import tasks_pb2 as pb
from holdfast.proto.v1.cluster_pb2 import QueuePolicy
from holdfast.serving.refusals import RefusedError
from tests.unit.replica.small_shard import SmallShard, counted

LEASE_MS = 30_000
AUTOMATIC = "~0.call.0"

Result = TypeVar("Result")


class Broker:
    def __init__(self, **settings: Any) -> None:
        self.small = SmallShard(**settings)
        self.metrics = self.small.metrics
        self.service = TaskService(self.small.shard, self.small.config, self.metrics)

    async def call(self, work: Coroutine[Any, Any, Result]) -> Result:
        return await self.small.rounds_until(work)

    async def enqueue(self, *runs: pb.TaskRun, tasks: tuple[pb.TaskSpec, ...] = ()) -> pb.EnqueueResponse:
        return await self.call(self.service.enqueue(pb.EnqueueRequest(tasks=tasks, runs=runs)))

    async def reserve(self, tasks_max: int = 100, *, takes_runs: bool = True, request_id: str = "") -> Any:
        request = pb.ReserveRequest(
            queues=["mail"], max_tasks=tasks_max, lease_ms=LEASE_MS, worker="w", takes_runs=takes_runs,
            claim_request_id=request_id,
        )  # fmt: skip
        return await self.call(self.service.reserve(request))

    async def ack(self, *ranges: pb.AckRange, items: tuple[pb.AckItem, ...] = ()) -> pb.AckResponse:
        return await self.call(self.service.ack(pb.AckRequest(items=items, ranges=ranges)))

    def states(self, first: str, count: int) -> list[int]:
        tasks = self.small.shard.executions([parsed(task_id) for task_id in ids(first, count)])
        return [task.state for task in tasks if task is not None]

    def count(self, name: str) -> float:
        return counted(getattr(self.metrics, name))

    def rejected(self, reason: str) -> float:
        return counted(self.metrics.rejected(reason))


@pytest.fixture
async def broker() -> Broker:
    return Broker()


def parsed(task_id: str) -> bytes:
    found = parse_task_id(task_id)
    assert found is not None
    return found


def ids(first: str, count: int) -> list[str]:
    return [format_task_id(later_task_id(parsed(first), index)) for index in range(count)]


def run(*payloads: bytes, **fields: Any) -> pb.TaskRun:
    return pb.TaskRun(task=pb.TaskSpec(**({"queue": "mail", "type": "send"} | fields)), payloads=payloads)


def numbered(count: int) -> list[bytes]:
    return [b"%d" % number for number in range(count)]


def whole(claimed: pb.ClaimRun) -> pb.AckRange:
    return pb.AckRange(task_id=claimed.task_id, token=claimed.token, secret=claimed.secret, count=len(claimed.payloads))


def refused_items(items: Any) -> list[tuple[int, str, str]]:
    return [(item.at, item.rejection.reason, item.rejection.field) for item in items]


# --- enqueue ----------------------------------------------------------------------------------------------------------


async def test_a_run_is_accepted_beside_single_tasks(broker: Broker) -> None:
    answer = await broker.enqueue(
        run(*numbered(5), headers={"h": "v"}), run(b"x"), tasks=(pb.TaskSpec(queue="mail", type="t"),)
    )
    assert len(answer.outcomes) == 1
    first, second = answer.runs
    assert broker.states(first.first_task_id, 5) == [READY] * 5
    assert broker.states(second.first_task_id, 1) == [READY]
    task = await broker.call(broker.service.get_task(pb.GetTaskRequest(task_id=ids(first.first_task_id, 4)[3])))
    assert (task.task.task.payload, dict(task.task.task.headers)) == (b"3", {"h": "v"})
    assert (broker.count("tasks_enqueued"), broker.count("duplicates")) == (7, 0)


async def test_a_run_that_is_sent_again_is_the_same(broker: Broker) -> None:
    first = (await broker.enqueue(run(*numbered(5), request_id=AUTOMATIC))).runs[0]
    again = (await broker.enqueue(run(*numbered(5), request_id=AUTOMATIC))).runs[0]
    assert (again.first_task_id, again.duplicate, first.duplicate) == (first.first_task_id, True, False)
    assert (broker.count("tasks_enqueued"), broker.count("duplicates")) == (5, 5)


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"payload": b"p"}, "payload"), ({"tenant": "\n"}, "tenant"), ({"limit_key": "\n"}, "limit_key"),
        ({"unique_key": "k"}, "unique_key"), ({"ttl_ms": 60_000}, "ttl_ms"), ({"run_at_ms": 0}, "run_at_ms"),
        ({"delay_ms": 0}, "delay_ms"), ({"request_id": "own"}, "request_id"), ({"queue": ""}, "queue"),
        ({"type": "\n"}, "type"), ({"priority": 10}, "priority"), ({"request_id_ttl_ms": 1000}, "request_id_ttl_ms"),
        ({"retry": pb.RetryPolicy(jitter=2)}, "retry.jitter"), ({"headers": {"h": "v" * 20_000}}, "headers"),
    ],
)  # fmt: skip
async def test_what_must_not_be_in_a_run_is_refused_by_name(broker: Broker, fields: dict[str, Any], field: str) -> None:
    answer = await broker.enqueue(run(b"a"), run(b"b", b"c", **fields))
    good, bad = answer.runs
    assert broker.states(good.first_task_id, 1) == [READY]
    assert (bad.first_task_id, bad.rejection.field) == ("", f"runs[1].task.{field}")
    assert f"runs[1].task.{field}" in bad.rejection.message
    assert broker.rejected(bad.rejection.reason) == 2


async def test_a_payload_that_is_too_large_is_refused_by_itself() -> None:
    broker = Broker(payload_bytes_max=4)
    answer = await broker.enqueue(run(b"a"), run(b"12345", b"1234", b"123456", b"1"), run(b"12345"))
    good, mixed, bad = answer.runs
    assert refused_items(mixed.refused) == [
        (0, "TOO_LARGE", "runs[1].payloads[0]"),
        (2, "TOO_LARGE", "runs[1].payloads[2]"),
    ]
    assert refused_items(bad.refused) == [(0, "TOO_LARGE", "runs[2].payloads[0]")]
    assert bad.first_task_id == ""
    (claimed,) = [item for item in (await broker.reserve()).runs if item.task_id == mixed.first_task_id]
    assert list(claimed.payloads) == [b"1234", b"1"]
    assert broker.count("tasks_enqueued") == 3
    assert broker.rejected("TOO_LARGE") == 3
    assert good.first_task_id


async def test_a_run_without_payloads_is_refused(broker: Broker) -> None:
    answer = await broker.enqueue(run(), run(b"a"))
    assert (answer.runs[0].rejection.reason, answer.runs[0].rejection.field) == ("MISSING_FIELD", "runs[0].payloads")
    with pytest.raises(RefusedError, match="at least one"):
        await broker.enqueue(run())


async def test_tasks_and_runs_of_a_call_are_limited_together() -> None:
    broker = Broker(batch_tasks_max=4)
    task = pb.TaskSpec(queue="mail", type="t")
    assert (await broker.enqueue(run(b"a", b"b"), run(b"c"), tasks=(task,))).runs[1].first_task_id
    with pytest.raises(RefusedError) as refused:
        await broker.enqueue(run(b"a", b"b"), run(b"c", b"d"), tasks=(task,))
    assert (refused.value.reason, refused.value.field) == ("BATCH_TOO_LARGE", "runs.payloads")


async def test_where_tasks_have_a_time_to_live_those_of_a_run_go_one_by_one(broker: Broker) -> None:
    policy = QueuePolicy(ttl_ms=60_000).SerializeToString()
    await broker.call(broker.small.shard.set_queue(b"mail", 1, policy))
    both = run(*numbered(3), request_id=AUTOMATIC), run(b"x", queue="other")
    answer, again = await broker.enqueue(*both), await broker.enqueue(*both)
    (first, other), (repeated, _) = answer.runs, again.runs
    tasks = broker.small.shard.executions([parsed(task_id) for task_id in ids(first.first_task_id, 3)])
    assert [task is not None and task.start_by_ms for task in tasks] == [broker.small.time.now_ms + 60_000] * 3
    assert (repeated.first_task_id, repeated.duplicate) == (first.first_task_id, True)
    assert broker.states(other.first_task_id, 1) == [READY]
    claims = (await broker.reserve(takes_runs=False)).claims
    assert [claim.task.payload for claim in claims] == numbered(3)


@pytest.mark.parametrize("is_reversed", [False, True])
async def test_a_run_that_is_sent_again_is_the_same_under_another_policy(broker: Broker, is_reversed: bool) -> None:
    policies = [QueuePolicy(), QueuePolicy(ttl_ms=60_000)]
    answers: list[pb.RunOutcome] = []
    for version, policy in enumerate(reversed(policies) if is_reversed else policies, 1):
        await broker.call(broker.small.shard.set_queue(b"mail", version, policy.SerializeToString()))
        answers += (await broker.enqueue(run(*numbered(3), request_id=AUTOMATIC))).runs
    first, again = answers
    assert (again.first_task_id, again.duplicate, first.duplicate) == (first.first_task_id, True, False)
    assert [claim.task.payload for claim in (await broker.reserve(takes_runs=False)).claims] == numbered(3)


# --- what tasks of a run have of their own, and the lines that they wait in -------------------------------------------


def named(*ids: str, payloads: list[bytes] | None = None, **fields: Any) -> pb.TaskRun:
    """A run of tasks with request ids of their own."""
    made = run(*(payloads or [request_id.encode() for request_id in ids]), request_id=ids[0], **fields)
    made.request_ids.extend(ids)
    return made


async def get(broker: Broker, task_id: str) -> Any:
    return (await broker.call(broker.service.get_task(pb.GetTaskRequest(task_id=task_id)))).task


async def test_a_run_may_be_of_a_tenant_and_a_limit_key(broker: Broker) -> None:
    answer = await broker.enqueue(run(*numbered(3), tenant="acme", limit_key="disk", priority=7))
    first = answer.runs[0].first_task_id
    task = (await get(broker, ids(first, 3)[1])).task
    assert (task.tenant, task.limit_key, task.priority, task.payload) == ("acme", "disk", 7, b"1")
    (claimed,) = (await broker.reserve()).runs
    assert (claimed.task_id, list(claimed.payloads), claimed.task.tenant) == (first, numbered(3), "acme")
    await broker.ack(whole(claimed))
    assert broker.states(first, 3) == [SUCCEEDED] * 3


async def test_a_cap_with_room_for_two_hands_out_a_slice_of_two(broker: Broker) -> None:
    policy = QueuePolicy(tenant_concurrency_max=2).SerializeToString()
    await broker.call(broker.small.shard.set_queue(b"mail", 1, policy))
    await broker.enqueue(run(*numbered(5), tenant="acme"), run(b"x", tenant="other"))
    claims = (await broker.reserve()).runs
    assert [list(claim.payloads) for claim in claims] == [[b"0", b"1"], [b"x"]]
    await broker.ack(whole(claims[0]))
    (claimed,) = (await broker.reserve()).runs
    assert list(claimed.payloads) == [b"2", b"3"]


async def test_what_turns_take_of_a_run_is_claimed_together_and_handed_out_in_turns(broker: Broker) -> None:
    await broker.enqueue(*(run(*numbered(3), tenant=tenant) for tenant in "abc"))
    reply = await broker.reserve(8)
    tenants = [claim.task.tenant for claim in reply.runs for _ in claim.payloads]
    assert sorted(tenants) == ["a"] * 3 + ["b"] * 3 + ["c"] * 2
    assert len(reply.runs) == 3
    places = {place: claim.task.tenant for claim in reply.runs for place in claim.at}
    assert [places[place] for place in range(8)] == [*"abcabcab"]
    await broker.ack(*map(whole, reply.runs))
    assert broker.count("tasks_acked") == 8


async def test_who_does_not_take_runs_gets_the_turns_as_they_were(broker: Broker) -> None:
    await broker.enqueue(*(run(*numbered(3), tenant=tenant) for tenant in "ab"))
    claims = (await broker.reserve(takes_runs=False)).claims
    assert [(claim.task.tenant, claim.task.payload) for claim in claims] == [
        (tenant, payload) for payload in numbered(3) for tenant in "ab"
    ]


async def test_each_task_of_a_run_is_found_again_by_its_own_request_id(broker: Broker) -> None:
    first = (await broker.enqueue(named("a", "b", "c"))).runs[0].first_task_id
    a, b, c = ids(first, 3)
    assert (await get(broker, b)).task.request_id == "b"
    (again,) = (await broker.enqueue(named("c", "d", "a", "e"))).runs
    known = [pb.Accepted(task_id=task_id, duplicate=True, state=pb.TASK_STATE_READY) for task_id in (c, a)]
    assert [(item.at, item.accepted) for item in again.duplicates] == [*zip((0, 2), known, strict=True)]
    d, e = ids(again.first_task_id, 2)
    assert [(await get(broker, task_id)).task.request_id for task_id in (d, e)] == ["d", "e"]
    single = pb.TaskSpec(queue="mail", type="send", payload=b"e", request_id="e")
    assert (await broker.enqueue(tasks=(single,))).outcomes[0].accepted.task_id == e
    (all_known,) = (await broker.enqueue(named("a", "b"))).runs
    assert (all_known.first_task_id, len(all_known.duplicates)) == ("", 2)
    assert (broker.count("tasks_enqueued"), broker.count("duplicates")) == (5, 5)
    claims = (await broker.reserve()).runs
    assert [list(claim.request_ids) for claim in claims] == [["a", "b", "c"], ["d", "e"]]
    assert not any(claim.task.request_id for claim in claims)


async def test_claims_of_single_tasks_have_the_request_ids_of_a_run(broker: Broker) -> None:
    await broker.enqueue(named("a", "b"))
    claims = (await broker.reserve(takes_runs=False)).claims
    assert [(claim.task.request_id, claim.task.payload) for claim in claims] == [("a", b"a"), ("b", b"b")]


async def test_a_request_id_that_stands_for_another_task_is_refused_by_itself(broker: Broker) -> None:
    await broker.enqueue(named("a", "b"))
    (answer,) = (await broker.enqueue(named("c", "a", "d", payloads=[b"c", b"other", b"d"]))).runs
    assert refused_items(answer.refused) == [(1, "REQUEST_ID_CONFLICT", "runs[0].request_ids[1]")]
    assert broker.states(answer.first_task_id, 2) == [READY, READY]
    (twice,) = (await broker.enqueue(named("x", "y", "x", "x", payloads=[b"1", b"2", b"1", b"3"]))).runs
    assert [(item.at, item.accepted.task_id) for item in twice.duplicates] == [(2, twice.first_task_id)]
    assert refused_items(twice.refused) == [(3, "REQUEST_ID_CONFLICT", "runs[0].request_ids[3]")]


async def test_a_bad_id_and_a_large_payload_are_refused_beside_known_ones() -> None:
    broker = Broker(payload_bytes_max=4)
    await broker.enqueue(named("known"))  # its payload is too large
    await broker.enqueue(named("k", payloads=[b"k"]))
    (answer,) = (await broker.enqueue(named("\n", "k", "l", "m", payloads=[b"1", b"k", b"12345", b"4"]))).runs
    assert refused_items(answer.refused) == [
        (0, "INVALID_FIELD", "runs[0].request_ids[0]"), (2, "TOO_LARGE", "runs[0].payloads[2]"),
    ]  # fmt: skip
    assert [item.at for item in answer.duplicates] == [1]
    assert (await get(broker, answer.first_task_id)).task.request_id == "m"


@pytest.mark.parametrize(
    ("request_ids", "first", "field"),
    [
        (["a"], "a", "request_ids"),
        (["a", ""], "a", "request_ids"),
        (["a", "~0.call.1"], "a", "request_ids"),
        (["~0.call.0", "~0.other.1"], "~0.call.0", "request_ids"),
        (["~1.call.0", "~0.call.1"], "~1.call.0", "request_ids"),
        (["a", "b"], "b", "task.request_id"),
    ],
)
async def test_request_ids_that_do_not_go_to_one_shard_are_refused(
    broker: Broker, request_ids: list[str], first: str, field: str
) -> None:
    bad = run(b"1", b"2", request_id=first)
    bad.request_ids.extend(request_ids)
    (answer,) = (await broker.enqueue(bad)).runs
    assert (answer.first_task_id, answer.rejection.field) == ("", f"runs[0].{field}")


async def test_a_time_to_live_that_was_set_meanwhile_makes_no_second_task(broker: Broker) -> None:
    first = (await broker.enqueue(named("a", "b"))).runs[0].first_task_id
    policy = QueuePolicy(ttl_ms=60_000).SerializeToString()
    await broker.call(broker.small.shard.set_queue(b"mail", 1, policy))
    (again,) = (await broker.enqueue(named("a", "b", "c"))).runs
    assert [item.accepted.task_id for item in again.duplicates] == ids(first, 2)
    assert (await get(broker, again.first_task_id)).task.request_id == "c"


async def test_runs_stand_between_the_tasks_that_come_before_and_behind_them(broker: Broker) -> None:
    tasks = tuple(pb.TaskSpec(queue="mail", type="t", payload=b"%d" % number) for number in (0, 3, 6))
    first, second = run(b"1", b"2"), run(b"4", b"5")
    first.behind, second.behind = 1, 2
    await broker.enqueue(first, second, run(b"7"), tasks=tasks)
    claims = (await broker.reserve(takes_runs=False)).claims
    assert [claim.task.payload for claim in claims] == numbered(8)


async def test_a_place_is_counted_among_all_tasks_of_the_call(broker: Broker) -> None:
    """Also those that are refused; and one that nobody could have has no meaning."""
    tasks = (pb.TaskSpec(queue="", type="t"), pb.TaskSpec(queue="mail", type="t", payload=b"2"))
    first, second, last = run(b"0", b"1"), run(b"3"), run(b"4")
    first.behind, second.behind, last.behind = 1, 99, -5
    answer = await broker.enqueue(first, second, last, tasks=tasks)
    assert [outcome.WhichOneof("outcome") for outcome in answer.outcomes] == ["rejection", "accepted"]
    claims = (await broker.reserve(takes_runs=False)).claims
    assert [claim.task.payload for claim in claims] == numbered(5)


# --- reserve ----------------------------------------------------------------------------------------------------------


async def test_claims_come_in_runs_to_who_takes_them(broker: Broker) -> None:
    single = pb.TaskSpec(queue="mail", type="t", payload=b"one", priority=9)
    answer = await broker.enqueue(run(*numbered(5), headers={"h": "v"}), tasks=(single,))
    reply = await broker.reserve(4)
    assert not reply.claims
    one, some = reply.runs
    assert (one.task_id, list(one.payloads), one.task.payload) == (answer.outcomes[0].accepted.task_id, [b"one"], b"")
    assert (some.task_id, list(some.payloads)) == (answer.runs[0].first_task_id, numbered(3))
    assert (dict(some.task.headers), some.task.payload) == ({"h": "v"}, b"")
    assert [(item.lease_ms, item.attempt, item.claims, item.alone) for item in reply.runs] == [
        (LEASE_MS, 1, 1, False)
    ] * 2
    assert some.enqueued_at_ms == broker.small.time.now_ms
    assert broker.count("tasks_claimed") == 4


@pytest.mark.parametrize("request_id", ["", "r"])
async def test_who_does_not_take_runs_gets_claims_of_single_tasks(broker: Broker, request_id: str) -> None:
    first = (await broker.enqueue(run(*numbered(4), b"", headers={"h": "v"}))).runs[0].first_task_id
    reply = await broker.reserve(takes_runs=False, request_id=request_id)
    if request_id:
        again = await broker.reserve(takes_runs=False, request_id=request_id)
        assert again == reply
        (held,) = (await broker.reserve(request_id=request_id)).runs
        assert (held.task_id, list(held.payloads)) == (first, [*numbered(4), b""])
    assert not reply.runs
    assert [claim.task_id for claim in reply.claims] == ids(first, 5)
    assert [claim.task.payload for claim in reply.claims] == [*numbered(4), b""]
    assert {(claim.task.queue, claim.task.type, claim.task.headers["h"]) for claim in reply.claims} == {
        ("mail", "send", "v")
    }
    refs = [pb.ClaimRef(task_id=claim.task_id, token=claim.token, secret=claim.secret) for claim in reply.claims]
    acked = await broker.ack(items=tuple(pb.AckItem(claim=ref) for ref in refs))
    assert all(outcome.HasField("acked") for outcome in acked.outcomes)


async def test_what_departed_from_its_run_since_it_was_claimed_is_told_task_by_task(broker: Broker) -> None:
    first = (await broker.enqueue(run(*numbered(3)))).runs[0].first_task_id
    (claim,) = await broker.small.claim(b"mail", tasks_max=3)
    await broker.call(broker.service.cancel(pb.CancelRequest(task_ids=ids(first, 3))))
    details = read_claims(broker.small.shard.reader, [claim])
    assert [format_task_id(one.task_id) for one, *_ in details] == ids(first, 3)
    assert [pb.TaskSpec.FromString(envelope).payload for _, envelope, _ in details] == numbered(3)
    response = pb.ReserveResponse()
    fill_claims(response, details, broker.small.time.now_ms, takes_runs=True)
    assert [whole(item).token - claim.token // 2**64 for item in response.runs] == [0, 1, 2]


# --- fail -------------------------------------------------------------------------------------------------------------


async def test_what_a_run_says_of_retries_is_read_once_for_all_that_fail(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    await broker.enqueue(run(*numbered(5), retry=pb.RetryPolicy(jitter=0.5)))
    claims = (await broker.reserve(takes_runs=False)).claims
    await broker.enqueue(*[run(*numbered(2))] * reader.PAYLOADS_KEPT)
    await broker.reserve(takes_runs=False)  # theirs are at hand now, in the place of the first
    rows_read: list[bytes] = []

    def noting(row: bytes) -> RunPayloads:
        rows_read.append(row)
        return RunPayloads(row)

    monkeypatch.setattr(reader, "RunPayloads", noting)
    refs = [pb.ClaimRef(task_id=claim.task_id, token=claim.token, secret=claim.secret) for claim in claims]
    items = [pb.FailItem(claim=ref, error=pb.TaskError(type="E", message="m")) for ref in refs]
    answer = await broker.call(broker.service.fail(pb.FailRequest(items=items)))
    assert all(outcome.HasField("failed") for outcome in answer.outcomes)
    assert len(rows_read) == 1


# --- what makes tasks depart ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("what", "state"), [("fail", DEAD), ("release", READY), ("update", DELAYED), ("cancel", CLAIMED)]
)
async def test_a_call_takes_only_so_many_payloads_out_of_runs_with_each_entry(
    broker: Broker, monkeypatch: pytest.MonkeyPatch, what: str, state: int
) -> None:
    monkeypatch.setattr(api_tasks, "DEPARTING_BYTES_MAX", 3500)
    first = (await broker.enqueue(run(*[bytes(1000)] * 7))).runs[0].first_task_id
    claims = [] if what == "update" else (await broker.reserve(takes_runs=False)).claims
    refs = [pb.ClaimRef(task_id=claim.task_id, token=claim.token, secret=claim.secret) for claim in claims]
    before = broker.small.machine.meta.applied_index
    service, error = broker.service, pb.TaskError(type="E", message="m")
    calls: dict[str, Callable[[], Coroutine[Any, Any, Any]]] = {
        "fail": lambda: service.fail(
            pb.FailRequest(items=[pb.FailItem(claim=ref, error=error, dead=True) for ref in refs])
        ),
        "release": lambda: service.release(pb.ReleaseRequest(claims=refs)),
        "update": lambda: service.update_tasks(
            pb.UpdateTasksRequest(items=[pb.UpdateItem(task_id=task_id, delay_ms=9000) for task_id in ids(first, 7)])
        ),
        "cancel": lambda: service.cancel(pb.CancelRequest(task_ids=ids(first, 7))),
    }
    answer = await broker.call(calls[what]())
    assert not any(outcome.HasField("rejection") for outcome in answer.outcomes)
    assert len(answer.outcomes) == 7
    assert broker.small.machine.meta.applied_index == before + 3
    assert broker.states(first, 7) == [state] * 7


# --- ack --------------------------------------------------------------------------------------------------------------


async def test_a_range_is_acked_beside_single_claims_and_again(broker: Broker) -> None:
    first = (await broker.enqueue(run(*numbered(6)))).runs[0].first_task_id
    one = (await broker.reserve(1, takes_runs=False)).claims[0]
    (claimed,) = (await broker.reserve()).runs
    item = pb.AckItem(claim=pb.ClaimRef(task_id=one.task_id, token=one.token, secret=one.secret), result=b"r")
    for _ in range(2):
        answer = await broker.ack(whole(claimed), items=(item,))
        assert answer.outcomes[0].HasField("acked")
        assert answer.ranges == [pb.RangeOutcome()]
    assert broker.states(first, 6) == [SUCCEEDED] * 6
    assert broker.count("tasks_acked") == 12


async def test_tasks_of_a_range_that_are_no_longer_held_are_named(broker: Broker) -> None:
    first = (await broker.enqueue(run(*numbered(5)))).runs[0].first_task_id
    (claimed,) = (await broker.reserve()).runs
    ref = pb.ClaimRef(task_id=ids(first, 5)[2], token=claimed.token + 2, secret=claimed.secret)
    await broker.call(broker.service.release(pb.ReleaseRequest(claims=[ref])))
    await broker.call(broker.service.cancel(pb.CancelRequest(task_ids=[ref.task_id])))
    answer = await broker.ack(whole(claimed))
    assert refused_items(answer.ranges[0].refused) == [(2, "STALE_TOKEN", "")]
    assert broker.states(first, 5) == [SUCCEEDED, SUCCEEDED, CANCELLED, SUCCEEDED, SUCCEEDED]
    assert (broker.count("tasks_acked"), broker.rejected("STALE_TOKEN")) == (4, 1)


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"task_id": "x"}, "task_id"),
        ({"token": 0}, "token"),
        ({"token": 2**64 - 1}, "token"),
        ({"secret": 0}, "secret"),
        ({"count": 0}, "count"),
    ],
)
async def test_a_broken_range_is_refused_by_name(broker: Broker, changes: dict[str, Any], field: str) -> None:
    await broker.enqueue(run(*numbered(5)))
    (claimed,) = (await broker.reserve()).runs
    good, bad = whole(claimed), whole(claimed)
    for name, value in changes.items():
        setattr(bad, name, value)
    answer = await broker.ack(bad, good)
    assert (answer.ranges[0].rejection.field, answer.ranges[1]) == (f"ranges[0].{field}", pb.RangeOutcome())


async def test_acks_of_a_call_are_limited_together() -> None:
    broker = Broker(batch_tasks_max=4)
    await broker.enqueue(run(*numbered(4)))
    (claimed,) = (await broker.reserve(4)).runs
    with pytest.raises(RefusedError) as refused:
        await broker.ack(whole(claimed), items=(pb.AckItem(),))
    assert (refused.value.reason, refused.value.field) == ("BATCH_TOO_LARGE", "ranges")
    assert (await broker.ack(whole(claimed))).ranges == [pb.RangeOutcome()]


async def test_a_range_is_kept_as_its_queue_says(broker: Broker) -> None:
    policy = QueuePolicy(finished_retention_ms=3_600_000).SerializeToString()
    await broker.call(broker.small.shard.set_queue(b"mail", 1, policy))
    first = (await broker.enqueue(run(*numbered(3)))).runs[0].first_task_id
    (claimed,) = (await broker.reserve()).runs
    await broker.ack(whole(claimed))
    tasks = broker.small.shard.executions([parsed(task_id) for task_id in ids(first, 3)])
    assert {task is not None and task.timer_ms - broker.small.time.now_ms for task in tasks} == {3_600_000}
