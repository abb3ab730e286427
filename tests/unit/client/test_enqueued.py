"""Many calls handed over by an app: each has its own answer, whatever is wrong with others or happens on the way."""

import json
import pickle
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import grpc
import pytest

from holdfast.client import (
    AsyncHandle,
    ClientClosed,
    Enqueued,
    Handle,
    Holdfast,
    InvalidArgument,
    NotAllAccepted,
    OutcomeUnknown,
    Rejected,
    RequestIdConflict,
    ServerError,
    Task,
    TaskState,
    Unavailable,
)
from holdfast.client.errors import rejected
from holdfast.proto.v1 import tasks_pb2 as pb
from tests.unit.client.scripted_server import LOST, Hang, Refusal, ScriptedServer

Code = grpc.StatusCode
UNKNOWN = Refusal(Code.UNAVAILABLE, "OUTCOME_UNKNOWN", "Nobody knows.", 1)
FULL = Refusal(Code.RESOURCE_EXHAUSTED, "DISK_LOW", "The disk is nearly full.", 60_000)  # not repeated
CALL_TASKS = 1_000


@pytest.fixture
def app(server: ScriptedServer) -> Iterator[Holdfast]:
    # What has no answer is repeated for so long; a call of 1,000 tasks on a busy machine must not take longer.
    with Holdfast(server.address, timeout=2) as app:
        yield app


@pytest.fixture
def count(app: Holdfast) -> Task[[int], int]:
    @app.task(queue="numbers", ttl=3600)  # tasks with a time to live do not travel in runs
    def count(number: int) -> int:
        return number

    return count


def number_of(spec: pb.TaskSpec) -> int:
    return int(json.loads(spec.payload)[0])


def accept(request: pb.EnqueueRequest) -> pb.EnqueueResponse:
    """Each with an id that has its number in it."""
    return pb.EnqueueResponse(outcomes=[{"accepted": {"task_id": f"id-{number_of(spec)}"}} for spec in request.tasks])


def unless_it_begins_with(first: int, answer: Any) -> Callable[[pb.EnqueueRequest], Any]:
    """Accepts all calls but the one whose first task has this number."""
    return lambda request: answer if number_of(request.tasks[0]) == first else accept(request)


def answered(*outcomes: pb.EnqueueOutcome | pb.Rejection) -> pb.EnqueueResponse:
    return pb.EnqueueResponse(
        outcomes=[
            outcome if isinstance(outcome, pb.EnqueueOutcome) else pb.EnqueueOutcome(rejection=outcome)
            for outcome in outcomes
        ]
    )


def taken(task_id: str, **more: Any) -> pb.EnqueueOutcome:
    return pb.EnqueueOutcome(accepted=pb.Accepted(task_id=task_id, **more))


def kinds(outcomes: "Enqueued[Any]") -> list[type]:
    return [type(outcome) for outcome in outcomes]


def ids(handles: Sequence[Handle[Any] | AsyncHandle[Any]]) -> list[str]:
    return [handle.id for handle in handles]


# ------------------------------------------------------------------------------------------------- one wrong item


def test_one_that_is_refused_leaves_the_others_accepted(
    server: ScriptedServer, app: Holdfast, count: Task[[int], int]
) -> None:
    refused = pb.Rejection(reason="TOO_LARGE", message="Expected less in tasks[1].payload.", field="tasks[1].payload")
    server.on("Enqueue", answered(taken("a"), refused, taken("c")))
    outcomes = app.enqueue_many(count.call(number) for number in range(3))
    assert kinds(outcomes) == [Handle, InvalidArgument, Handle]
    assert ids(outcomes.accepted) == ["a", "c"]
    assert list(outcomes.refused) == [1]
    with pytest.raises(NotAllAccepted) as raised:
        outcomes.handles()
    assert ids(raised.value.accepted) == ["a", "c"], "what is accepted is not lost"
    assert raised.value.refused == outcomes.refused
    assert raised.value.repeatable == []
    assert raised.value.__cause__ is outcomes[1]
    assert str(raised.value).startswith("1 of 3 calls were refused; ")
    assert str(raised.value).endswith("The first, tasks[1]: Expected less in tasks[1].payload. (TOO_LARGE)")


def test_if_none_is_refused_all_handles_are_there(
    server: ScriptedServer, app: Holdfast, count: Task[[int], int]
) -> None:
    server.on("Enqueue", accept)
    assert ids(app.enqueue_many([count.call(7), count.call(8)]).handles()) == ["id-7", "id-8"]
    assert app.enqueue_many([]).handles() == count.enqueue_many([]).handles() == []


def test_arguments_that_cannot_be_sent_are_refused_in_their_place(server: ScriptedServer, app: Holdfast) -> None:
    server.on("Enqueue", lambda request: answered(*(taken(str(n)) for n in range(len(request.tasks)))))

    @app.task(ttl=3600)
    def greet(name: str, mark: str = "!") -> None: ...

    arguments: list[object] = [
        "Ada", object(), ("Grace", "?"), ("a", "b", "c"), {"name": "Eve"}, {"name": "X", "nom": "X"},
        {"name": float("nan")},
    ]  # fmt: skip
    outcomes = greet.enqueue_many(arguments)
    assert list(outcomes.refused) == [1, 3, 5, 6]
    assert {refusal.field for refusal in outcomes.refused.values()} == {f"tasks[{n}].arguments" for n in (1, 3, 5, 6)}
    assert all(type(refusal) is InvalidArgument for refusal in outcomes.refused.values())
    messages = [refusal.message for refusal in outcomes.refused.values()]
    assert "pass text, numbers, lists and dictionaries" in messages[0]
    assert "greet() cannot be called like this: too many positional arguments" in messages[1]
    assert (
        "unexpected keyword argument 'nom'; a dictionary that is the argument itself goes into a tuple" in messages[2]
    )
    assert messages[3].endswith(
        "but it holds a number that is not finite, or refers to itself: pass text, numbers, lists and dictionaries."
    )
    [request] = server.requests["Enqueue"]
    assert [json.loads(spec.payload) for spec in request.tasks] == [["Ada"], ["Grace", "?"], {"name": "Eve"}]


def test_one_argument_may_be_anything(server: ScriptedServer, app: Holdfast) -> None:
    server.on("Enqueue", lambda request: answered(*(taken("a") for _ in request.tasks)))

    @app.task(ttl=3600)
    def store(record: object) -> None: ...

    store.enqueue_many(iter([[1, 2], None, ({"name": "Ada"},), ([],), {"record": 5}])).handles()
    [request] = server.requests["Enqueue"]
    payloads = [json.loads(spec.payload) for spec in request.tasks]
    assert payloads == [[[1, 2]], [None], [{"name": "Ada"}], [[]], {"record": 5}]


@pytest.mark.parametrize("lone", ["Ada", b"Ada", {"name": "Ada"}])
def test_the_arguments_of_a_single_call_are_not_taken_apart(app: Holdfast, lone: Any) -> None:
    @app.task(ttl=3600)
    def greet(name: str) -> None: ...

    with pytest.raises(InvalidArgument, match="put it into a list") as refused:
        greet.enqueue_many(lone)
    assert refused.value.field == "arguments"


def test_an_option_made_of_arguments_is_refused_by_its_name_in_its_place(server: ScriptedServer, app: Holdfast) -> None:
    server.on("Enqueue", lambda request: answered(*(taken("a") for _ in request.tasks)))

    @app.task(unique_key=lambda order: order["id"])
    def ship(order: dict[str, Any]) -> None: ...

    outcomes = ship.enqueue_many([({"id": "7"},), ({},), ({"id": 8},), ({"id": "9"},)])
    assert {place: refusal.field for place, refusal in outcomes.refused.items()} == {
        1: "tasks[1].unique_key",
        2: "tasks[2].unique_key",
    }
    assert "its function raised KeyError" in outcomes.refused[1].message
    assert [spec.unique_key for spec in server.requests["Enqueue"][0].tasks] == ["7", "9"]


def test_each_call_may_have_a_request_id_made_of_its_arguments(server: ScriptedServer, app: Holdfast) -> None:
    server.on("Enqueue", lambda request: answered(*(taken("a") for _ in request.tasks)))

    @app.task(ttl=3600)
    def greet(name: str, mark: str = "!") -> None: ...

    once = greet.options(request_id=lambda name, mark: name and name + mark)
    outcomes = once.enqueue_many(["Ada", ("Grace", "?"), ""])
    assert [spec.request_id for spec in server.requests["Enqueue"][0].tasks] == ["Ada!", "Grace?"]
    assert outcomes.refused[2].field == "tasks[2].request_id"


def test_what_no_request_can_hold_is_refused_by_its_field(
    server: ScriptedServer, app: Holdfast, count: Task[[Any], int]
) -> None:
    server.on("Enqueue", accept)
    wrong: Any = 5
    misplaced = count.options(queue=wrong).call(1)
    outcomes = app.enqueue_many([count.call(0), misplaced, count.call("x" * 17 * 1024 * 1024), count.call(3)])
    assert ids(outcomes.accepted) == ["id-0", "id-3"]
    assert {place: refusal.field for place, refusal in outcomes.refused.items()} == {1: "tasks[1].queue", 2: "tasks[2]"}
    assert "at most 16777216 bytes" in outcomes.refused[2].message


# ------------------------------------------------------------------------------------------------ more than one call


def test_a_refusal_in_a_later_call_is_named_by_its_place_among_all(
    server: ScriptedServer, count: Task[[int], int]
) -> None:
    refused = pb.Rejection(
        reason="OUT_OF_RANGE", message="Expected tasks[2].priority to fit.", field="tasks[2].priority"
    )
    server.on("Enqueue", accept, answered(taken("x"), taken("y"), refused))
    outcomes = count.enqueue_many(range(CALL_TASKS + 3))
    assert ids(outcomes.accepted[-3:]) == ["id-999", "x", "y"]
    [(place, refusal)] = outcomes.refused.items()
    assert (place, refusal.field) == (1002, "tasks[1002].priority")
    assert refusal.message == "Expected tasks[1002].priority to fit."


@pytest.mark.parametrize("answer", [LOST, UNKNOWN, Hang()], ids=["lost", "unknown", "silent"])
def test_one_call_without_an_outcome_is_the_matter_of_its_own_tasks(
    server: ScriptedServer, app: Holdfast, count: Task[[int], int], answer: Any
) -> None:
    """The second of three."""
    server.on("Enqueue", unless_it_begins_with(CALL_TASKS, answer))
    calls = [count.call(number) for number in range(3 * CALL_TASKS)]
    calls[1007] = count.options(request_id="mine").call(1007)
    outcomes = app.enqueue_many(calls)
    assert ids(outcomes.accepted) == [f"id-{number}" for number in (*range(1_000), *range(2_000, 3_000))]
    assert list(outcomes.refused) == list(range(1_000, 2_000))
    assert all(type(refusal) is OutcomeUnknown for refusal in outcomes.refused.values())
    assert "its request_id makes one task of both" in outcomes.refused[1007].message
    assert "a second task may come of it" in outcomes.refused[1008].message
    assert outcomes.repeatable == [1007]


def test_a_call_that_was_refused_as_a_whole_may_be_made_again(server: ScriptedServer, count: Task[[int], int]) -> None:
    server.on("Enqueue", unless_it_begins_with(CALL_TASKS, FULL))
    outcomes = count.enqueue_many(range(CALL_TASKS + 2))
    assert len(outcomes.accepted) == CALL_TASKS
    assert outcomes.repeatable == list(outcomes.refused) == [1_000, 1_001]
    assert {(type(refusal), refusal.reason, refusal.retry_after_ms) for refusal in outcomes.refused.values()} == {
        (Unavailable, "DISK_LOW", 60_000)
    }
    assert outcomes.refused[1_000] is not outcomes.refused[1_001], "each may be raised by itself"


def test_after_two_calls_that_failed_the_rest_is_not_sent(server: ScriptedServer, count: Task[[int], int]) -> None:
    """So that a server that is away is waited for twice, and not a hundred times."""
    server.on("Enqueue", lambda request: accept(request) if number_of(request.tasks[0]) == 0 else UNKNOWN)
    outcomes = count.enqueue_many(range(5 * CALL_TASKS))
    assert {number_of(request.tasks[0]) for request in server.requests["Enqueue"]} == {0, 1_000, 2_000}
    assert len(outcomes.accepted) == CALL_TASKS
    assert {type(outcomes[place]) for place in range(1_000, 3_000)} == {OutcomeUnknown}
    assert {type(outcomes[place]) for place in range(3_000, 5_000)} == {Unavailable}
    assert outcomes.repeatable == list(range(3_000, 5_000)), "nothing was done"
    refusal = outcomes.refused[3_000]
    assert "Not sent, because the 2 calls before it failed, the last one so: Nobody knows." in refusal.message
    assert refusal.retry_after_ms > 0


def test_calls_that_fail_one_by_one_hold_nothing_up(server: ScriptedServer, count: Task[[int], int]) -> None:
    bad = (0, 2 * CALL_TASKS)
    server.on("Enqueue", lambda request: FULL if number_of(request.tasks[0]) in bad else accept(request))
    outcomes = count.enqueue_many(range(4 * CALL_TASKS))
    assert ids(outcomes.accepted) == [f"id-{number}" for number in (*range(1_000, 2_000), *range(3_000, 4_000))]


def test_without_a_server_nothing_was_done(server: ScriptedServer, count: Task[[int], int]) -> None:
    server.stop()
    outcomes = count.enqueue_many([1, 2])
    assert kinds(outcomes) == [Unavailable] * 2
    assert outcomes.repeatable == [0, 1]
    with pytest.raises(NotAllAccepted, match=r"2 of 2 calls were refused.*connection refused"):
        outcomes.handles()


def test_a_server_that_takes_less_in_one_call_gets_less(server: ScriptedServer, count: Task[[int], int]) -> None:
    def at_most_100(request: pb.EnqueueRequest) -> Any:
        if len(request.tasks) > 100:
            return Refusal(Code.INVALID_ARGUMENT, "BATCH_TOO_LARGE", "Too many.", metadata={"field": "tasks"})
        return accept(request)

    server.on("Enqueue", at_most_100)
    assert ids(count.enqueue_many(range(250)).handles()) == [f"id-{number}" for number in range(250)]
    taken_numbers = [
        number_of(spec) for request in server.requests["Enqueue"] if len(request.tasks) <= 100 for spec in request.tasks
    ]
    assert taken_numbers == list(range(250)), "in order"


def test_one_task_for_which_a_whole_call_is_refused_is_found(server: ScriptedServer, count: Task[[int], int]) -> None:
    """Of some fields a server counts before it looks at tasks one by one."""

    def check(request: pb.EnqueueRequest) -> Any:
        if 13 in map(number_of, request.tasks):
            sentence = "Expected at most 64 items in tasks.headers, but there are more."
            return Refusal(Code.INVALID_ARGUMENT, "TOO_LARGE", sentence, metadata={"field": "tasks.headers"})
        return accept(request)

    server.on("Enqueue", check)
    outcomes = count.enqueue_many(range(40))
    [(place, refusal)] = outcomes.refused.items()
    assert (place, refusal.field) == (13, "tasks[13].headers")
    assert refusal.message == "Expected at most 64 items in tasks[13].headers, but there are more."
    assert len(outcomes.accepted) == 39


def test_shards_of_one_call_are_answered_one_by_one(server: ScriptedServer, count: Task[[int], int]) -> None:
    """As a router does it when it has no word of one of them."""
    away = pb.Rejection(reason="NOT_LEADER", message="Nobody leads shard 1.", retry_after_ms=200)
    lost = pb.Rejection(reason="OUTCOME_UNKNOWN", message="No answer of shard 2.", retry_after_ms=1)
    fault = pb.Rejection(reason="INTERNAL", message="A fault.")
    server.on("Enqueue", answered(taken("a"), away, lost, fault))
    outcomes = count.enqueue_many(range(4))
    assert kinds(outcomes) == [Handle, Unavailable, OutcomeUnknown, ServerError]
    assert outcomes.repeatable == [1]
    again = count.options(request_id=str).enqueue_many(range(4))
    assert again.repeatable == [1, 2, 3], "an own request id makes it safe"


def test_duplicates_are_handles_that_say_so(server: ScriptedServer, count: Task[[int], int]) -> None:
    conflict = pb.Rejection(reason="REQUEST_ID_CONFLICT", message="Another one.", field="tasks[2].request_id")
    first = taken("a", duplicate=True, state=pb.TASK_STATE_SUCCEEDED)
    server.on("Enqueue", answered(first, taken("b"), conflict))
    outcomes = count.options(request_id=str).enqueue_many(range(3))
    assert [(outcome.duplicate, outcome.duplicate_state) for outcome in outcomes.accepted] == [
        (True, TaskState.SUCCEEDED),
        (False, None),
    ]
    assert isinstance(outcomes[2], RequestIdConflict)
    assert outcomes.repeatable == []


# ------------------------------------------------------------------------------------------------ loops, ends, errors


async def test_the_same_for_programs_with_an_event_loop(
    server: ScriptedServer, app: Holdfast, count: Task[[Any], int]
) -> None:
    server.on("Enqueue", accept)
    outcomes = await count.enqueue_many_async([1, object(), 3])
    assert kinds(outcomes) == [AsyncHandle, InvalidArgument, AsyncHandle]
    with pytest.raises(NotAllAccepted) as raised:
        outcomes.handles()
    assert ids(raised.value.accepted) == ["id-1", "id-3"]
    assert ids((await app.enqueue_many_async([count.call(5)])).handles()) == ["id-5"]


async def test_an_app_that_is_closed_raises(app: Holdfast, count: Task[[int], int]) -> None:
    app.close()
    with pytest.raises(ClientClosed):
        await count.enqueue_many_async([1])


def test_the_error_survives_the_way_to_another_process(app: Holdfast) -> None:
    refused: dict[int, Rejected] = {1: rejected("TOO_LARGE", "Too much.", field="tasks[1].payload")}
    error = NotAllAccepted([app.handle("id-1")], refused, [])
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is NotAllAccepted
    assert str(copy) == str(error)
    assert copy.accepted == ["id-1"], "a handle stays in its process"
    assert copy.refused[1].field == "tasks[1].payload"
    assert str(pickle.loads(pickle.dumps(NotAllAccepted())))
