"""The blocking client: the same calls as the asynchronous one, on a thread that never outstays its welcome."""

import asyncio
import concurrent.futures
import doctest
import gc
import inspect
import queue
import signal
import threading
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import pytest

from holdfast.client import (
    AsyncClient,
    Client,
    ClientClosed,
    DeadLetterFilter,
    InvalidAddress,
    NewTask,
    NotFound,
    TaskFilter,
    TaskInfo,
    UnexpectedAnswer,
    sync,
)
from holdfast.client._loop_thread import LoopThread
from holdfast.proto.v1 import queues_pb2
from holdfast.proto.v1 import tasks_pb2 as pb
from tests.unit.client.scripted_server import Hang, Refusal, ScriptedServer, hand_out_what_is_enqueued

DEADLINE_S = 10.0
# These are loops of their own: see test_dead_letters_one_by_one, test_tasks_one_by_one.
ITERATORS = ("iter_dead_letters", "iter_tasks")
STATS = pb.QueueStatsResponse(outcomes=[pb.QueueStatsOutcome(counts=pb.QueueCounts(queue="mail", ready=3))])


@pytest.fixture
def client(server: ScriptedServer) -> Iterator[Client]:
    with Client(server.address, timeout_s=DEADLINE_S) as client:
        yield client


def own_threads() -> list[threading.Thread]:
    """The thread of a client, and the one that gRPC keeps while there is a channel."""
    return [thread for thread in threading.enumerate() if "holdfast" in thread.name or "_poll_wrapper" in thread.name]


def end_of(threads: list[threading.Thread]) -> None:
    gc.collect()  # errors and the frames they came from hold each other, and the frames hold the channel
    for thread in threads:
        thread.join(DEADLINE_S)
        assert not thread.is_alive(), thread


# ------------------------------------------------------------------------------------------------------- twins


def calls_of(kind: type) -> dict[str, Callable[..., Any]]:
    return {name: call for name, call in inspect.getmembers(kind, inspect.isfunction) if not name.startswith("_")}


def test_both_clients_have_the_same_calls_with_the_same_signatures() -> None:
    blocking = {name: inspect.signature(call, eval_str=True) for name, call in calls_of(Client).items()}
    asynchronous = {name: inspect.signature(call, eval_str=True) for name, call in calls_of(AsyncClient).items()}
    for name in ITERATORS:
        asynchronous[name] = asynchronous[name].replace(return_annotation=Iterator[TaskInfo])
    assert blocking == asynchronous
    assert not any(inspect.iscoroutinefunction(call) for call in calls_of(Client).values())
    assert [name for name, call in calls_of(Client).items() if not call.__doc__] == []
    assert inspect.signature(Client) == inspect.signature(AsyncClient)
    assert {name for name, value in vars(Client).items() if isinstance(value, property)} == {"address"}


def test_every_argument_reaches_the_asynchronous_client(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each call with a value of its own for each parameter: what arrives at the other end must be the same."""
    for name, call in calls_of(AsyncClient).items():
        if name == "close" or name in ITERATORS:
            continue
        parameters = [
            parameter for parameter in inspect.signature(call).parameters.values() if parameter.name != "self"
        ]
        given = {parameter.name: object() for parameter in parameters}
        answer = object()

        async def stand_in(self: object, answer: object = answer, **arguments: object) -> tuple[object, object]:
            return answer, arguments

        positional = [p.name for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD]

        def bound(
            self: object, *args: object, positional: list[str] = positional, to: Any = stand_in, **rest: object
        ) -> object:
            return to(self, **dict(zip(positional, args, strict=False)), **rest)

        with monkeypatch.context() as patched, Client() as client:
            patched.setattr(AsyncClient, name, bound)
            returned, arrived = getattr(client, name)(**given)
        assert returned is answer, name
        assert arrived == given, name


def test_the_example_runs(server: ScriptedServer) -> None:
    hand_out_what_is_enqueued(server)
    names = {**vars(sync), "Client": lambda address="": Client(server.address)}
    runner = doctest.DocTestRunner()
    for test in doctest.DocTestFinder().find(Client, "Client", module=sync, globs=names):
        runner.run(test)
    assert runner.tries > 0
    assert runner.failures == 0


# -------------------------------------------------------------------------------------------------------- calls


def test_dead_letters_one_by_one(server: ScriptedServer, client: Client) -> None:
    server.on(
        "ListDeadLetters",
        pb.ListDeadLettersResponse(tasks=[pb.TaskInfo(task_id="a")], next_page_token="1"),
        pb.ListDeadLettersResponse(next_page_token="2"),  # looked at many, and none of them fits
        pb.ListDeadLettersResponse(tasks=[pb.TaskInfo(task_id="b"), pb.TaskInfo(task_id="c")]),
    )
    letters = client.iter_dead_letters("mail", where=DeadLetterFilter(type="t"), page_size=7, timeout_s=3)
    assert server.requests["ListDeadLetters"] == []
    assert [letter.task_id for letter in letters] == ["a", "b", "c"]
    assert server.requests["ListDeadLetters"] == [
        pb.ListDeadLettersRequest(queue="mail", page_size=7, page_token=token, filter=pb.DeadLetterFilter(type="t"))
        for token in ("", "1", "2")
    ]
    assert all(left_s is not None and left_s < DEADLINE_S / 2 for left_s in server.deadlines_s["ListDeadLetters"])


def test_tasks_one_by_one(server: ScriptedServer, client: Client) -> None:
    server.on(
        "ListTasks",
        queues_pb2.ListTasksResponse(tasks=[pb.TaskInfo(task_id="a")], next_page_token="1"),
        queues_pb2.ListTasksResponse(next_page_token="2"),
        queues_pb2.ListTasksResponse(tasks=[pb.TaskInfo(task_id="b")]),
    )
    tasks = client.iter_tasks("mail", where=TaskFilter(type="t"), page_size=7, timeout_s=3)
    assert server.requests["ListTasks"] == []
    assert [task.task_id for task in tasks] == ["a", "b"]
    assert server.requests["ListTasks"] == [
        queues_pb2.ListTasksRequest(
            queue="mail", page_size=7, page_token=token, filter=queues_pb2.TaskFilter(type="t")
        )
        for token in ("", "1", "2")
    ]  # fmt: skip


def test_pages_that_lead_nowhere_end(server: ScriptedServer, client: Client) -> None:
    server.on("ListDeadLetters", pb.ListDeadLettersResponse(next_page_token="1"))
    with pytest.raises(UnexpectedAnswer):
        list(client.iter_dead_letters("mail"))


def test_progress_is_called_back(server: ScriptedServer, client: Client) -> None:
    server.on(
        "PurgeQueue",
        queues_pb2.PurgeQueueResponse(purged=5, next_page_token="x"),
        queues_pb2.PurgeQueueResponse(purged=2),
    )
    seen: list[int] = []
    assert client.purge_queue("mail", progress=seen.append) == 7
    assert seen == [5, 7]


def test_results_and_errors_come_through(server: ScriptedServer, client: Client) -> None:
    server.on("QueueStats", STATS)
    assert client.queue_stats("mail").ready == 3
    server.on("GetTask", Refusal(grpc.StatusCode.NOT_FOUND, "TASK_NOT_FOUND", "No such task."))
    with pytest.raises(NotFound, match="No such task"):
        client.get_task("x")
    assert client.address == server.address
    with pytest.raises(InvalidAddress):
        Client("nowhere")


def test_many_threads_share_one_client(server: ScriptedServer, client: Client) -> None:
    server.on("QueueStats", lambda request: STATS)
    with ThreadPoolExecutor(16) as pool:
        answers = list(pool.map(lambda _: client.queue_stats("mail").ready, range(200)))
    assert answers == [3] * 200


def test_a_mistaken_call_is_an_error_and_does_not_hang() -> None:
    thread = LoopThread("holdfast-test", AsyncClient)
    with pytest.raises(AttributeError):
        thread.run(lambda calls: calls.no_such_call())  # type: ignore[attr-defined]
    thread.close()


def test_an_interrupt_ends_a_waiting_call(server: ScriptedServer, client: Client) -> None:
    hang = Hang()
    server.on("Reserve", hang)

    def interrupt() -> None:
        hang.arrived.wait(DEADLINE_S)
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    helper = threading.Thread(target=interrupt)
    helper.start()
    with pytest.raises(KeyboardInterrupt):
        client.reserve(["mail"], wait_ms=30_000)
    helper.join()
    server.on("QueueStats", STATS)
    assert client.queue_stats("mail").ready == 3


def test_a_signal_that_does_not_end_the_wait_is_noticed_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """As one that comes just before the wait begins, or that the system gives to another thread: it says that there is
    something to do, and wakes nobody. Without another look the call would hold up a Ctrl-C until it is answered."""
    calls, waits = threading.Event(), threading.Event()
    ends: queue.SimpleQueue[str] = queue.SimpleQueue()

    async def hang(_client: AsyncClient) -> None:
        calls.set()
        try:
            await asyncio.sleep(3 * DEADLINE_S)
            ends.put("by itself")
        except asyncio.CancelledError:
            ends.put("cancelled")
            raise

    result = concurrent.futures.Future.result

    def wait(*args: Any) -> Any:
        waits.set()
        return result(*args)

    def interrupt() -> None:
        assert calls.wait(DEADLINE_S)
        assert waits.wait(DEADLINE_S)
        signal.raise_signal(signal.SIGINT)  # on this thread, which has no say in what is done about it

    monkeypatch.setattr(concurrent.futures.Future, "result", wait)
    thread = LoopThread("holdfast-test", AsyncClient)
    helper = threading.Thread(target=interrupt)
    helper.start()
    with pytest.raises(KeyboardInterrupt):
        thread.run(hang)
    helper.join()
    assert ends.get(timeout=DEADLINE_S) == "cancelled"
    thread.close()


async def test_another_loop_goes_on_meanwhile_and_its_cancellation_is_passed_on(server: ScriptedServer) -> None:
    hang = Hang()
    server.on("Reserve", hang)
    server.on("QueueStats", STATS)
    thread = LoopThread("holdfast-test", lambda: AsyncClient(server.address, timeout_s=DEADLINE_S))
    waiting = asyncio.create_task(thread.run_async(lambda calls: calls.reserve(["mail"], wait_ms=30_000)))
    assert (await thread.run_async(lambda calls: calls.queue_stats("mail"))).ready == 3
    assert await asyncio.to_thread(hang.arrived.wait, DEADLINE_S)
    cancelled = thread.run(_tasks_that_wait)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    async with asyncio.timeout(DEADLINE_S):
        await thread.run_async(lambda calls: _all_ended(cancelled))
    await asyncio.to_thread(thread.close)


async def _tasks_that_wait(calls: AsyncClient) -> "list[asyncio.Task[Any]]":
    return [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]


async def _all_ended(tasks: "list[asyncio.Task[Any]]") -> None:
    await asyncio.wait(tasks)
    assert all(task.cancelled() for task in tasks)


def test_its_own_thread_is_refused() -> None:
    """Waiting there would be waiting for itself."""
    thread = LoopThread("holdfast-test", AsyncClient)

    async def nested(calls: AsyncClient) -> None:
        thread.run(lambda calls: calls.queue_stats("mail"))

    async def closing(calls: AsyncClient) -> None:
        thread.close()

    with pytest.raises(RuntimeError, match="from another thread"):
        thread.run(nested)
    with pytest.raises(RuntimeError, match="from another thread"):
        thread.run(closing)
    thread.close()


# ------------------------------------------------------------------------------------------------------- ends


def test_nothing_is_started_before_the_first_call() -> None:
    before = own_threads()
    with Client():
        assert own_threads() == before


def test_close_ends_running_calls_and_leaves_no_thread(server: ScriptedServer) -> None:
    hang = Hang()
    server.on("Reserve", hang)
    before = own_threads()
    client = Client(server.address)
    with ThreadPoolExecutor(3) as pool:
        calls = [pool.submit(client.reserve, ["mail"], wait_ms=30_000) for _ in range(3)]
        assert hang.arrived.wait(DEADLINE_S)
        closing = [pool.submit(client.close) for _ in range(2)]
        client.close()
        for call in calls:
            assert isinstance(call.exception(DEADLINE_S), ClientClosed)
        for close in closing:
            close.result(DEADLINE_S)
    with pytest.raises(ClientClosed):
        client.enqueue(NewTask("mail", "welcome"))
    client.close()
    end_of([thread for thread in own_threads() if thread not in before])


def test_close_ends_a_call_that_pauses_before_it_tries_again(server: ScriptedServer) -> None:
    asked = threading.Event()

    def refuse(request: pb.QueueStatsRequest) -> Refusal:
        asked.set()
        return Refusal(grpc.StatusCode.RESOURCE_EXHAUSTED, "OVERLOADED", retry_after_ms=60_000)

    server.on("QueueStats", refuse)
    client = Client(server.address, timeout_s=600)
    with ThreadPoolExecutor(1) as pool:
        call = pool.submit(client.queue_stats, "mail")
        assert asked.wait(DEADLINE_S)
        client.close()
        assert isinstance(call.exception(DEADLINE_S), ClientClosed)


def test_a_dropped_client_is_collected_with_its_thread(server: ScriptedServer) -> None:
    server.on("QueueStats", STATS)
    server.on("GetTask", Refusal(grpc.StatusCode.NOT_FOUND, "TASK_NOT_FOUND"))
    before = own_threads()
    client = Client(server.address)
    client.queue_stats("mail")
    with pytest.raises(NotFound):
        client.get_task("x")
    gone = weakref.ref(client)
    threads = [thread for thread in own_threads() if thread not in before]
    assert threads
    del client
    gc.collect()
    assert gone() is None
    [own] = [thread for thread in threads if "holdfast" in thread.name]
    end_of([own])
    gc.collect()
    end_of(threads)
