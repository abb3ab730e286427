"""The app through its public API, against a real server and a real worker process."""

import asyncio
import threading
import time
import uuid
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from holdfast.client import (
    AsyncHandle,
    ClientClosed,
    Handle,
    Holdfast,
    InvalidArgument,
    NotAllAccepted,
    NotFound,
    NotJson,
    ResultExpired,
    ResultTimeout,
    TaskCancelled,
    TaskFailed,
    TaskState,
)
from tests.acceptance.apps import chores
from tests.acceptance.conftest import stats
from tests.acceptance.worker_process import WorkerProcess
from tests.integration.server import ServerProcess, wait_until

TIMEOUT_S = 20.0  # generous; nothing takes that long unless it is broken
NEVER_MADE = "018f3a1c-0000-8000-8000-00000000ffff"
SECRET = "a password nobody may read"

pytestmark = pytest.mark.usefixtures("everyday_worker")


def claim_order(app: Holdfast, queue: str, number: int) -> list[str]:
    claims = app.run(lambda client: client.reserve([queue], max_tasks=number, lease_ms=60_000))
    return [claim.task_id for claim in claims]


# --- handles ----------------------------------------------------------------------------------------------------------


def test_a_task_from_enqueue_to_result(app: Holdfast, queue: str) -> None:
    echo = app.tasks["echo"]
    handle = echo.enqueue("hello")
    assert isinstance(handle, Handle)
    assert str(uuid.UUID(handle.id)) == handle.id
    assert handle.result(timeout=TIMEOUT_S) == "hello"
    assert handle.result(timeout=0) == "hello", "a result can be read again, and needs no time"
    assert handle.status() is TaskState.SUCCEEDED
    assert (handle.info().failures, handle.info().claims) == (0, 1)
    assert app.handle(handle.id).result(timeout=timedelta(seconds=TIMEOUT_S)) == "hello"

    waiting = echo.options(queue=queue).enqueue("nobody serves this queue")
    assert waiting.status() is TaskState.READY
    info = waiting.info()
    assert info.task is not None
    assert (info.task.type, info.task.payload) == ("echo", b'["nobody serves this queue"]')
    assert info.task.headers == {"content-type": "application/json"}
    assert waiting.cancel() is TaskState.CANCELLED
    assert waiting.status() is TaskState.CANCELLED


async def test_the_same_for_programs_with_an_event_loop(app: Holdfast, queue: str) -> None:
    echo = app.tasks["echo_async"]
    handle = await echo.enqueue_async("hello")
    assert isinstance(handle, AsyncHandle)
    assert await handle.result(timeout=TIMEOUT_S) == "hello"
    assert await handle.status() is TaskState.SUCCEEDED
    assert (await handle.info()).claims == 1
    assert await app.handle_async(handle.id).result(timeout=0) == "hello"

    waiting = await echo.options(queue=queue).enqueue_async("nobody serves this queue")
    with pytest.raises(ResultTimeout):
        await waiting.result(timeout=0.05)
    assert await waiting.cancel() is TaskState.CANCELLED
    with pytest.raises(TaskCancelled):
        await waiting.result(timeout=TIMEOUT_S)

    many = (await app.enqueue_many_async(echo.call(number) for number in range(3))).handles()
    assert [await handle.result(timeout=TIMEOUT_S) for handle in many] == [0, 1, 2]


async def test_a_wait_leaves_the_callers_loop_alone_and_ends_with_the_task(app: Holdfast, queue: str) -> None:
    handle = await app.tasks["echo"].options(queue=queue).enqueue_async()
    waiting = asyncio.create_task(handle.result())
    await handle.info()  # the loop goes on
    assert not waiting.done()
    await handle.cancel()
    with pytest.raises(TaskCancelled):
        await asyncio.wait_for(waiting, 20)  # a server that is only asked again after a long poll would need 30 s


def test_results_that_are_not_there(app: Holdfast, queue: str) -> None:
    unfinished = app.tasks["echo"].options(queue=queue).enqueue()
    began_s = time.monotonic()
    with pytest.raises(ResultTimeout, match=unfinished.id) as late:
        unfinished.result(timeout=0.2)
    assert 0.2 <= time.monotonic() - began_s < 5
    assert isinstance(late.value, TimeoutError)
    unfinished.cancel()
    with pytest.raises(TaskCancelled, match=unfinished.id):
        unfinished.result(timeout=TIMEOUT_S)

    with pytest.raises(NotFound):
        app.handle(NEVER_MADE).result(timeout=TIMEOUT_S)
    with pytest.raises(NotFound):
        app.handle(NEVER_MADE).status()
    with pytest.raises(InvalidArgument):
        app.handle("nonsense").status()

    dead = app.tasks["give_up"].enqueue()
    with pytest.raises(TaskFailed, match="no such address") as failed:
        dead.result(timeout=TIMEOUT_S)
    assert (failed.value.dead_reason, failed.value.error_message) == ("WORKER_GAVE_UP", "no such address")
    assert failed.value.error_type.endswith("GiveUp")
    assert dead.status() is TaskState.DEAD


def test_a_result_whose_time_is_over(app: Holdfast) -> None:
    """It is told from a result that never was, or was not to be kept; the task itself is known for longer."""
    echo = app.tasks["echo"]
    short, none, kept_not = (
        echo.options(result_ttl=ttl_s).enqueue(value) for ttl_s, value in ((0.001, 42), (0.001, None), (0, 42))
    )
    app.run(lambda client: client.wait_tasks([short.id, none.id, kept_not.id], timeout_s=TIMEOUT_S))
    expired_at_ms = wait_until(lambda: short.info().result_expired_at_ms, "the result to expire")
    assert expired_at_ms == short.info().changed_at_ms + 1
    with pytest.raises(ResultExpired, match=short.id) as expired:
        short.result(timeout=TIMEOUT_S)
    assert expired.value.expired_at_ms == expired_at_ms
    assert short.status() is TaskState.SUCCEEDED
    assert (none.result(timeout=TIMEOUT_S), kept_not.result(timeout=TIMEOUT_S)) == (None, None)


# --- arguments and results --------------------------------------------------------------------------------------------

NESTED: dict[str, Any] = {
    "list": [1, 2.5, None, True, [], {}],
    "text": "Grüße, 世界 \U0001f680 \"'\\\n\0",
    "deep": [[[["x"]]]],
}


def test_arguments_arrive_as_they_were_given(app: Holdfast) -> None:
    """Every kind of arguments and values there is: tests/unit/client/test_arguments.py."""
    calls: list[tuple[tuple[Any, ...], dict[str, Any], list[Any]]] = [
        (("a",), {}, ["a", "two", [], "k", {}]),
        (("a", "b", "c", "d"), {}, ["a", "b", ["c", "d"], "k", {}]),
        ((), {"first": "a"}, ["a", "two", [], "k", {}]),
        (("a",), {"key": "x", "more": 1}, ["a", "two", [], "x", {"more": 1}]),
        ((NESTED,), {"second": None, "more": NESTED}, [NESTED, None, [], "k", {"more": NESTED}]),
        ((({"first": 1},),), {}, [[{"first": 1}], "two", [], "k", {}]),
        ((2**80, -1.5e300), {}, [2**80, -1.5e300, [], "k", {}]),
    ]
    handles = [app.tasks["show"].enqueue(*args, **kwargs) for args, kwargs, _ in calls]
    assert [handle.result(timeout=TIMEOUT_S) for handle in handles] == [shown for _, _, shown in calls]
    positional = app.tasks["show_positional"]
    handles = [positional.enqueue("a"), positional.enqueue("a", "b")]
    assert [handle.result(timeout=TIMEOUT_S) for handle in handles] == [["a", "two"], ["a", "b"]]


class Thing:
    def __repr__(self) -> str:
        return SECRET


def test_calls_that_cannot_be_sent_are_refused_at_once_and_not_shown(app: Holdfast, queue: str) -> None:
    for value in (Thing(), {"thing": Thing()}, {(1, 2): SECRET}, SECRET + "\ud800", datetime(2026, 1, 1, tzinfo=UTC)):
        for args, kwargs in (((value,), {}), ((), {"value": value})):
            with pytest.raises(NotJson, match="the arguments of echo") as refused:
                app.tasks["echo"].enqueue(*args, **kwargs)
            assert isinstance(refused.value, TypeError)
            assert SECRET not in str(refused.value)
    positional = app.tasks["show_positional"]
    with pytest.raises(NotJson, match="show_positional"):
        positional.enqueue("a", second="b")  # JSON has no way to say it
    with pytest.raises(TypeError, match="show_positional"):
        positional.enqueue(first="a")
    show = app.tasks["show"].options(queue=queue)
    with pytest.raises(NotJson, match="show"):
        show.enqueue("a", "b", "c", key="x")  # rest arguments and keywords do not fit together
    with pytest.raises(TypeError, match=r"show\(\)"):
        show.enqueue()
    with pytest.raises(NotFound):
        stats(app, queue)


def test_results_of_all_sizes(app: Holdfast) -> None:
    assert app.tasks["echo"].enqueue(None).result(timeout=TIMEOUT_S) is None
    assert app.tasks["echo"].enqueue(NESTED).result(timeout=TIMEOUT_S) == NESTED
    largest = 1024 * 1024 - 2  # two for the quotes
    results = [app.tasks["text_of"].enqueue(largest) for _ in range(6)]  # together more than one call may carry
    assert [len(handle.result(timeout=TIMEOUT_S)) for handle in results] == [largest] * 6


@pytest.mark.parametrize(
    ("name", "args", "kind", "says"),
    [
        ("no_json", (), "NotJson", "the result of no_json"),
        ("no_number", (), "NotJson", "not finite"),
        ("text_of", (1024 * 1024 - 1,), "holdfast.ResultRefused", "result"),
        ("text_of", (6 * 1024 * 1024,), "holdfast.ResultRefused", "result"),
        ("text_of", (20 * 1024 * 1024,), "holdfast.ResultRefused", "result"),
    ],
)
def test_a_result_that_cannot_be_kept_is_a_dead_letter_at_once(
    app: Holdfast, everyday_worker: WorkerProcess, name: str, args: tuple[Any, ...], kind: str, says: str
) -> None:
    handle = app.tasks[name].enqueue(*args)
    with pytest.raises(TaskFailed, match=says) as failed:
        handle.result(timeout=TIMEOUT_S)
    assert failed.value.error_type.endswith(kind)
    assert handle.info().claims == 1, "the next attempt would do the work for nothing"
    assert everyday_worker.exit_code is None
    assert app.tasks["echo"].enqueue("still there").result(timeout=TIMEOUT_S) == "still there"


# --- options ----------------------------------------------------------------------------------------------------------


def test_options_reach_the_server_and_change_only_the_copy(app: Holdfast, queue: str) -> None:
    echo = app.tasks["echo"]
    special = echo.options(queue=queue, priority=9, tenant="acme", max_attempts=3, headers={"trace": "t-1"})
    info = special.enqueue().info()
    assert info.task is not None
    assert (info.queue, info.priority, info.task.tenant, info.max_attempts) == (queue, 9, "acme", 3)
    assert info.task.headers == {"content-type": "application/json", "trace": "t-1"}
    assert special.options(priority=1).enqueue().info().priority == 1
    plain = echo.options(queue=queue).enqueue().info()
    assert plain.task is not None
    assert (plain.priority, plain.task.tenant, plain.max_attempts) == (5, "", 10)
    assert echo.queue == "default"


def test_higher_priorities_come_first(app: Holdfast, queue: str) -> None:
    handles = {
        priority: app.tasks["echo"].options(queue=queue, priority=priority).enqueue() for priority in (3, 9, 0, 5)
    }
    assert claim_order(app, queue, 4) == [handles[priority].id for priority in (9, 5, 3, 0)]


def test_delays_and_moments(app: Holdfast, queue: str) -> None:
    who = app.tasks["who"]
    soon = who.options(delay=0.8).enqueue()
    moment = datetime.now(UTC) + timedelta(seconds=0.8)
    later = who.options(run_at=moment).enqueue()
    for handle in (soon, later):
        assert handle.result(timeout=TIMEOUT_S)["attempt"] == 1
    assert soon.info().changed_at_ms >= soon.info().enqueued_at_ms + 800
    assert later.info().changed_at_ms >= int(moment.timestamp() * 1000)

    moment = datetime.now(UTC) + timedelta(hours=1)
    far = who.options(queue=queue, delay=timedelta(hours=1)).enqueue()
    far_at = who.options(queue=queue, run_at=moment).enqueue()
    assert far.info().due_at_ms == far.info().enqueued_at_ms + 3_600_000
    assert far_at.info().due_at_ms == int(moment.timestamp() * 1000)
    for handle in (far, far_at):
        assert handle.status() is TaskState.DELAYED
        assert handle.cancel() is TaskState.CANCELLED
    assert who.options(run_at=datetime(2020, 1, 1, tzinfo=UTC)).enqueue().result(timeout=TIMEOUT_S)
    with pytest.raises(ValueError, match="time zone"):
        who.options(run_at=datetime(2030, 1, 1))
    with pytest.raises(ValueError, match="delay and run_at"):
        who.options(delay=1, run_at=datetime.now(UTC))


def test_one_request_id_makes_one_task(app: Holdfast, queue: str) -> None:
    once = app.tasks["echo"].options(queue=queue, request_id="order-17")
    first, second = once.enqueue(1), once.enqueue(1)
    assert first.id == second.id
    assert (first.duplicate, second.duplicate) == (False, True)
    assert stats(app, queue).enqueued_total == 1
    others = [app.tasks["echo"].options(queue=queue).enqueue(1) for _ in range(2)]
    assert len({first.id, *(other.id for other in others)}) == 3
    assert not any(other.duplicate for other in others)


def test_bad_options_are_refused_with_the_name_of_the_field(app: Holdfast) -> None:
    echo = app.tasks["echo"]
    with pytest.raises(InvalidArgument, match="queue"):
        echo.options(queue="bad queue").enqueue()
    with pytest.raises(ValueError, match="priority"):
        echo.options(priority=10)


# --- many -------------------------------------------------------------------------------------------------------------


def test_more_than_a_thousand_at_once(app: Holdfast, queue: str) -> None:
    echo = app.tasks["echo"].options(queue=queue)
    handles = app.enqueue_many(echo.call(number) for number in range(2_345)).handles()
    assert len({handle.id for handle in handles}) == 2_345
    assert stats(app, queue).ready == 2_345
    for number in (0, 999, 1_000, 2_344):
        info = handles[number].info()
        assert info.task is not None
        assert info.task.payload == b"[%d]" % number, "handles come in the order of their calls"
    assert app.enqueue_many([]).handles() == []


def test_more_than_one_call_may_carry(app: Holdfast, queue: str) -> None:
    echo = app.tasks["echo"].options(queue=queue)
    handles = app.enqueue_many([echo.call("x" * 900_000) for _ in range(11)]).handles()
    assert len({handle.id for handle in handles}) == 11
    assert stats(app, queue).ready == 11
    with pytest.raises(InvalidArgument, match="payload"):
        echo.enqueue("x" * 1024 * 1024)


def test_large_headers_count_as_well(app: Holdfast, queue: str) -> None:
    """Many small payloads with large headers are more than one call may carry, too."""
    echo = app.tasks["echo"].options(queue=queue, headers={"trace": "x" * 7_000})
    assert len(app.enqueue_many([echo.call(number) for number in range(1_000)]).handles()) == 1_000


def test_what_is_wrong_with_one_of_many_is_its_own_matter(app: Holdfast, queue: str) -> None:
    echo = app.tasks["echo"]
    once = echo.options(request_id=queue)
    first = once.enqueue("once")
    outcomes = app.enqueue_many([
        echo.call(0), echo.options(queue="bad queue").call(), echo.call("x" * 1024 * 1024), once.call("once"),
        once.call("another"), echo.call(5),
    ])  # fmt: skip
    assert [(place, refusal.reason, refusal.field) for place, refusal in outcomes.refused.items()] == [
        (1, "INVALID_FIELD", "tasks[1].queue"),
        (2, "TOO_LARGE", "tasks[2].payload"),
        (4, "REQUEST_ID_CONFLICT", "tasks[4].request_id"),
    ]
    with pytest.raises(NotAllAccepted, match=r"3 of 6 calls were refused.*tasks\[1\]") as refused:
        outcomes.handles()
    assert [handle.result(timeout=TIMEOUT_S) for handle in refused.value.accepted] == [0, "once", 5]
    assert [(handle.id == first.id, handle.duplicate) for handle in outcomes.accepted] == [
        (False, False),
        (True, True),
        (False, False),
    ]


async def test_many_calls_of_one_task_have_an_answer_each(app: Holdfast, queue: str) -> None:
    """More than one call to the server, with a wrong one in the second."""
    echo = app.tasks["echo"].options(queue=queue, request_id=lambda number: f"n-{number}")
    numbers: list[object] = [*range(1_500)]
    numbers[1_200] = object()
    outcomes = await echo.enqueue_many_async(numbers)
    [(place, refusal)] = outcomes.refused.items()
    assert (place, refusal.field) == (1_200, "tasks[1200].arguments")
    assert "pass text, numbers, lists and dictionaries" in refusal.message
    last = outcomes[-1]
    assert isinstance(last, AsyncHandle)
    task = (await last.info()).task
    assert task is not None
    assert task.payload == b"[1499]"

    again = echo.enqueue_many(range(1_500)).handles()
    assert [place for place, handle in enumerate(again) if not handle.duplicate] == [1_200]
    assert stats(app, queue).enqueued_total == 1_500


# --- threads, loops, handlers -----------------------------------------------------------------------------------------


def test_one_app_serves_many_threads_and_event_loops(app: Holdfast) -> None:
    wrong: list[object] = []

    def check(body: Callable[[int], None], number: int) -> None:
        try:
            body(number)
        except BaseException as error:  # noqa: BLE001 - the test itself fails with it
            wrong.append(error)

    def block(number: int) -> None:
        for step in range(5):
            value = [number, step]
            assert app.tasks["echo"].enqueue(value).result(timeout=TIMEOUT_S) == value

    async def one(number: int, step: int) -> None:
        handle = await app.tasks["echo_async"].enqueue_async([number, step])
        assert await handle.result(timeout=TIMEOUT_S) == [number, step]

    async def all_at_once(number: int) -> None:
        await asyncio.gather(*(one(number, step) for step in range(10)))

    bodies: list[Callable[[int], None]] = [block, lambda number: asyncio.run(all_at_once(number))]
    threads = [threading.Thread(target=check, args=(bodies[number % 2], number)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


@pytest.mark.parametrize("name", ["parent", "parent_async", "parent_blocking"])
def test_handlers_enqueue_tasks(app: Holdfast, name: str) -> None:
    children = app.tasks[name].enqueue(3).result(timeout=TIMEOUT_S)
    assert [app.handle(child).result(timeout=TIMEOUT_S) for child in children] == [0, 1, 2]


def test_an_app_of_ones_own(shared_server: ServerProcess) -> None:
    with Holdfast(shared_server.address) as app:

        @app.task
        def echo(value: str, times: int = 1) -> str:
            return value * times

        @app.task(name="echo_async", queue="default")
        async def other(value: str) -> str:
            return value

        assert echo("here and now", times=2) == "here and now" * 2
        assert asyncio.run(other("as well")) == "as well"
        assert set(app.tasks) == {"echo", "echo_async"}
        assert other.enqueue("there").result(timeout=TIMEOUT_S) == "there"
        with pytest.raises(ValueError, match="echo"):
            app.task(name="echo")(lambda: None)
        handle = echo.enqueue("x")
    for use in (lambda: echo.enqueue("closed"), handle.status):
        with pytest.raises(ClientClosed):
            use()


def test_closing_ends_a_wait(shared_server: ServerProcess, queue: str) -> None:
    app = chores.make_app(shared_server.address)
    handle = app.tasks["echo"].options(queue=queue).enqueue()
    ended: list[BaseException] = []
    begun = threading.Event()

    def wait() -> None:
        begun.set()
        try:
            handle.result()
        except ClientClosed as error:
            ended.append(error)

    thread = threading.Thread(target=wait)
    thread.start()
    begun.wait()
    app.close()
    thread.join(TIMEOUT_S)
    assert not thread.is_alive()
    assert len(ended) == 1
