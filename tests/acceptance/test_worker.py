"""What a worker does while all goes well: slots, queues, heartbeats, and every way in which a handler can end."""

import asyncio
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from holdfast.client import (
    Handle,
    Holdfast,
    InvalidAddress,
    NewTask,
    TaskCancelled,
    TaskFailed,
    TaskInfo,
    TaskState,
    Worker,
    WorkerReport,
    current_task,
)
from tests.acceptance.apps import chores
from tests.acceptance.conftest import MakeWorker, results, stats
from tests.acceptance.worker_process import WorkerProcess
from tests.integration.server import wait_until

TIMEOUT_S = 20.0
# What is told at once arrives far below this, also on a busy machine; what waits for the end of a long poll needs up to
# 30 s.
PROMPT_S = 15.0


def enqueue_raw(app: Holdfast, name: str, payload: bytes, **options: Any) -> Handle[Any]:
    """A task as another program might enqueue it."""
    accepted = app.run(lambda client: client.enqueue(NewTask("default", name, payload, **options)))
    return app.handle(accepted.task_id)


def dead_letter(app: Holdfast, handle: Handle[Any]) -> TaskInfo:
    """Waits for the task's death. Its dead letter has the whole error."""
    with pytest.raises(TaskFailed):
        handle.result(timeout=TIMEOUT_S)
    return app.run(lambda client: client.get_dead_letter(handle.id))


def wait_for_failure(handle: Handle[Any]) -> None:
    wait_until(lambda: handle.info().failures > 0, "a failed attempt", deadline_s=PROMPT_S)


# --- slots ------------------------------------------------------------------------------------------------------------


def test_handlers_fill_the_slots_and_no_more(app: Holdfast, make_worker: MakeWorker, queue: str, gate: Path) -> None:
    """Blocking and async handlers together; what does not fit stays with the server for others to take."""
    worker = make_worker([queue], concurrency=4, lease=6)
    calls = [app.tasks[name].options(queue=queue).call(str(gate)) for name in ("wait_at", "wait_at_async")]
    handles = app.enqueue_many(calls * 10).handles()
    worker.wait_for("begin", 4)
    # Claimed are those that run, not a task more, also after some heartbeats.
    first_lease_ms = handles[0].info().lease_expires_at_ms
    wait_until(lambda: handles[0].info().lease_expires_at_ms != first_lease_ms, "a heartbeat")
    found = stats(app, queue)
    assert (found.claimed, found.ready) == (4, 16)
    gate.touch()
    assert results(handles) == [worker.pid] * 20
    begun = worker.journal("begin")
    assert len(begun) == 20
    assert max(line["running"] for line in begun) == 4, "as many as there are slots, and never more"
    report = worker.stop()
    assert (report.succeeded, report.failed, report.released, report.lost) == (20, 0, 0, 0)


def test_each_kind_of_handler_uses_all_slots(
    app: Holdfast, make_worker: MakeWorker, queue: str, tmp_path: Path
) -> None:
    worker = make_worker([queue], concurrency=6, command=True)  # of a queue that nobody has used
    for number, name in enumerate(("wait_at", "wait_at_async")):
        gate = tmp_path / name
        handles = app.enqueue_many([app.tasks[name].options(queue=queue).call(str(gate)) for _ in range(12)]).handles()
        worker.wait_for("begin", 12 * number + 6)
        gate.touch()
        results(handles)
        assert max(line["running"] for line in worker.journal("begin") if line["type"] == name) == 6
    assert worker.stop().succeeded == 24


def test_a_limited_queue_never_takes_more_and_goes_on_at_once(
    app: Holdfast, make_worker: MakeWorker, queue: str, tmp_path: Path
) -> None:
    """Its next task starts when one of its slots becomes free, although the worker is in a long poll."""
    few, many = f"{queue}.few", f"{queue}.many"
    worker = make_worker({few: 2, many: None}, concurrency=8, command=True)
    gates = [tmp_path / f"gate{number}" for number in range(6)]
    limited = app.tasks["wait_at"].options(queue=few)
    handles = app.enqueue_many([limited.call(str(gate)) for gate in gates]).handles()
    app.tasks["echo"].options(queue=many).enqueue().result(timeout=TIMEOUT_S)  # so that the queue exists
    for number, gate in enumerate(gates):
        worker.wait_for("begin", min(number + 2, len(gates)))
        # Slots are free, and so the worker waits for tasks of the other queue.
        wait_until(lambda: stats(app, many).waiting_reserves == 1, "a long poll")
        assert stats(app, few).claimed == min(2, len(gates) - number)
        opened_s = time.monotonic()
        gate.touch()
        handles[number].result(timeout=TIMEOUT_S)
        if number + 2 < len(gates):
            worker.wait_for("begin", number + 3)
            assert time.monotonic() - opened_s < PROMPT_S
    assert max(line["running_of_queue"] for line in worker.journal("begin")) == 2

    # The other queue has the rest of the slots, whatever is in the limited one.
    both = [limited.call(str(tmp_path / "gate")) for _ in range(5)]
    both += [app.tasks["wait_at_async"].options(queue=many).call(str(tmp_path / "gate")) for _ in range(10)]
    handles = app.enqueue_many(both).handles()
    worker.wait_for("begin", len(gates) + 8)
    # One of them at least: the long poll that was under way may have been meant for one.
    assert 1 <= stats(app, few).claimed <= 2
    assert stats(app, few).claimed + stats(app, many).claimed == 8
    (tmp_path / "gate").touch()
    results(handles)
    assert max(line["running_of_queue"] for line in worker.journal("begin") if line["queue"] == few) == 2


def test_no_queue_starves(app: Holdfast, make_worker: MakeWorker, queue: str) -> None:
    queues = [f"{queue}.{name}" for name in "abc"]
    work = app.tasks["work"]
    long = app.enqueue_many([work.options(queue=queues[0]).call(0.01) for _ in range(40)]).handles()
    short = app.enqueue_many([work.options(queue=name).call(0.01) for name in queues[1:] for _ in range(3)]).handles()
    worker = make_worker(queues, concurrency=2)
    results(short + long)
    order = [line["queue"] for line in worker.journal("begin")]
    assert max(order.index(name) for name in queues) < 10, "all queues have their turn soon"
    assert set(order[24:]) == {queues[0]}, "short queues do not wait for a long one"
    assert worker.stop().succeeded == 46


# --- heartbeats -------------------------------------------------------------------------------------------------------


def test_heartbeats_keep_a_short_lease_alive(app: Holdfast, make_worker: MakeWorker, queue: str) -> None:
    """Leases of four seconds, work of six: whatever handlers do, and whatever they do to each other's loop."""
    worker = make_worker([queue], lease=4)
    handles = [app.tasks[name].options(queue=queue).enqueue(6) for name in ("work", "work_async", "hog")]
    assert results(handles) == [worker.pid] * 3
    for handle in handles:
        info = handle.info()
        assert (info.state, info.claims, info.failures) == (TaskState.SUCCEEDED, 1, 0)
        [begin], [end] = worker.journal("begin", handle.id), worker.journal("end", handle.id)
        assert end["at_s"] - begin["at_s"] > 5.5
    assert stats(app, queue).expired_total == 0


# --- how a handler can end --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["fail", "fail_async"])
def test_failures_are_tried_again_with_back_off(app: Holdfast, everyday_worker: WorkerProcess, name: str) -> None:
    handle = app.tasks[name].enqueue(3)
    assert handle.result(timeout=TIMEOUT_S) == 4
    info = handle.info()
    assert (info.failures, info.claims) == (3, 4)
    at_s = [line["at_s"] for line in everyday_worker.journal("begin", handle.id)]
    pauses_s = [later - earlier for earlier, later in pairwise(at_s)]
    # 0.1, 0.2 and 0.4 s, each up to a fifth less or more.
    assert [pause_s >= least_s for pause_s, least_s in zip(pauses_s, (0.08, 0.16, 0.32), strict=True)] == [True] * 3


@pytest.mark.parametrize("name", ["fail", "fail_async"])
def test_a_dead_letter_tells_what_went_wrong(app: Holdfast, name: str) -> None:
    handle = app.tasks[name].options(max_attempts=2).enqueue(9, "the printer is on fire")
    letter = dead_letter(app, handle)
    assert (letter.state, letter.dead_reason, letter.failures) == (TaskState.DEAD, "ATTEMPTS_SPENT", 2)
    error = letter.last_error
    assert error is not None
    assert (error.type, error.message) == ("ValueError", "the printer is on fire")
    assert error.traceback.startswith("Traceback (most recent call last):")
    assert 'chores.py", line' in error.traceback
    assert error.traceback.endswith("ValueError: the printer is on fire\n")


def test_errors_of_any_length_are_reported(app: Holdfast) -> None:
    letter = dead_letter(app, app.tasks["fail"].options(max_attempts=1).enqueue(9, "ä" * 100_000))
    assert letter.last_error is not None
    assert letter.last_error.type == "ValueError"
    assert letter.last_error.message.startswith("ää")
    assert letter.last_error.message.endswith("ää")


def test_give_up_and_retry_after(app: Holdfast, everyday_worker: WorkerProcess) -> None:
    given_up = app.tasks["give_up"].enqueue()
    letter = dead_letter(app, given_up)
    assert (letter.dead_reason, letter.failures, letter.claims) == ("WORKER_GAVE_UP", 1, 1)

    later = app.tasks["retry_after"].enqueue(0.7)  # the server's own pause would be a tenth of a second
    assert later.result(timeout=TIMEOUT_S) == 2
    first, second = everyday_worker.journal("begin", later.id)
    assert 0.7 <= second["at_s"] - first["at_s"] < PROMPT_S
    at_once = app.tasks["retry_after"].enqueue(0)
    assert at_once.result(timeout=TIMEOUT_S) == 2
    assert at_once.info().failures == 1


@pytest.mark.parametrize("name", ["leave", "leave_async"])
@pytest.mark.parametrize("how", ["SystemExit", "KeyboardInterrupt", "GeneratorExit", "CancelledError"])
def test_a_handler_cannot_end_the_worker(app: Holdfast, everyday_worker: WorkerProcess, name: str, how: str) -> None:
    letter = dead_letter(app, app.tasks[name].options(max_attempts=1).enqueue(how))
    assert letter.last_error is not None
    assert letter.last_error.type.endswith(how)
    assert everyday_worker.exit_code is None
    both = [app.tasks[other].enqueue("still there") for other in ("echo", "echo_async")]
    assert results(both) == ["still there"] * 2


@pytest.mark.parametrize(
    ("name", "when"),
    [
        ("odd_result", None),
        ("retry_oddly", "never"),
        ("retry_oddly", "in the next century"),
    ],
)
def test_whatever_a_handler_does_its_attempt_ends(
    app: Holdfast, make_worker: MakeWorker, queue: str, name: str, when: str | None
) -> None:
    """The slot is free again, and the task does not stay with the worker for ever."""
    arguments = () if when is None else (when,)
    worker = make_worker([queue], concurrency=1)
    for item in (name, f"{name}_async"):
        handle = app.tasks[item].options(queue=queue).enqueue(*arguments)
        after = app.tasks["echo"].options(queue=queue).enqueue("next")
        assert after.result(timeout=PROMPT_S) == "next"
        wait_for_failure(handle)
    assert worker.stop().lost == 0


def test_an_unknown_task_may_be_known_to_another_worker(app: Holdfast) -> None:
    handle = enqueue_raw(app, "not_in_this_version", b"[]", max_attempts=2)
    letter = dead_letter(app, handle)
    assert (letter.dead_reason, letter.failures) == ("ATTEMPTS_SPENT", 2), "it is tried again: versions roll out"
    assert letter.last_error is not None
    assert "not_in_this_version" in letter.last_error.message


@pytest.mark.parametrize("payload", [b"not JSON", b"\xff\xfe", b"17", b'"text"', b"null", b"[" * 100_000])
def test_a_payload_that_is_no_arguments_is_a_dead_letter_at_once(app: Holdfast, payload: bytes) -> None:
    for name in ("echo", "echo_async"):
        letter = dead_letter(app, enqueue_raw(app, name, payload))
        assert letter.failures == 1
        assert letter.last_error is not None
        assert "the payload" in letter.last_error.message


def test_arguments_that_the_handler_does_not_take_fail_the_attempt(app: Holdfast) -> None:
    letter = dead_letter(app, enqueue_raw(app, "echo_async", b'{"colour": "red"}', max_attempts=1))
    assert letter.last_error is not None
    assert letter.last_error.type == "TypeError"
    assert "colour" in letter.last_error.message


def test_json_from_anywhere_reaches_the_handler(app: Holdfast) -> None:
    for payload, value in ((b'{"value": "x"}', "x"), (b' [ "x" ] ', "x"), (b"", None), (b"{}", None)):
        assert enqueue_raw(app, "echo", payload).result(timeout=TIMEOUT_S) == value


@pytest.mark.parametrize("name", ["who", "who_async"])
def test_a_handler_knows_its_task(app: Holdfast, everyday_worker: WorkerProcess, name: str) -> None:
    handle = app.tasks[name].options(tenant="acme", headers={"trace": "t-1"}).enqueue(failures=2)
    found = handle.result(timeout=TIMEOUT_S)
    assert (found["id"], found["queue"], found["type"], found["attempt"]) == (handle.id, "default", name, 3)
    assert (found["tenant"], found["headers"]["trace"]) == ("acme", "t-1")
    assert found["flags"] == [False, False, False]
    attempts = everyday_worker.journal("asked", handle.id)
    assert [line["attempt"] for line in attempts] == [1, 2, 3]
    assert {line["key"] for line in attempts} == {handle.id}, "the same in all attempts"


# --- cancellation -----------------------------------------------------------------------------------------------------


def test_an_async_handler_is_cancelled(app: Holdfast, everyday_worker: WorkerProcess, gate: Path) -> None:
    handle = app.tasks["wait_at_async"].enqueue(str(gate))
    everyday_worker.wait_for("begin", 1, handle.id)
    assert handle.cancel() is TaskState.CLAIMED
    with pytest.raises(TaskCancelled):
        handle.result(timeout=TIMEOUT_S)
    [interrupted] = everyday_worker.journal("interrupted", handle.id)
    assert (interrupted["cancel_requested"], interrupted["lease_lost"]) == (True, False)
    assert handle.info().claims == 1


def test_a_blocking_handler_sees_that_it_is_cancelled(
    app: Holdfast, everyday_worker: WorkerProcess, gate: Path
) -> None:
    handle = app.tasks["wait_at"].enqueue(str(gate), obeys=True)
    deaf = app.tasks["wait_at"].enqueue(str(gate))
    for item in (handle, deaf):
        everyday_worker.wait_for("begin", 1, item.id)
        assert item.cancel() is TaskState.CLAIMED
    with pytest.raises(TaskCancelled):
        handle.result(timeout=TIMEOUT_S)
    [reported] = everyday_worker.journal("reported", handle.id)
    assert (reported["cancel_requested"], reported["lease_lost"]) == (True, False)
    assert handle.info().claims == 1
    # One that takes no notice has done its work in the end, and that counts.
    wait_until(lambda: deaf.info().cancel_requested, "the cancellation to be known")
    assert deaf.status() is TaskState.CLAIMED
    gate.touch()
    assert deaf.result(timeout=TIMEOUT_S) == everyday_worker.pid


# --- mistakes in the set-up -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", [False, True], ids=["library", "command"])
def test_a_queue_with_a_bad_name_ends_the_worker(make_worker: MakeWorker, command: bool) -> None:
    worker = make_worker(["bad queue"], command=command)
    assert worker.wait_for_exit() not in (0, None)
    assert "queue" in worker.log_text


def test_a_server_that_is_not_there_is_waited_for(make_worker: MakeWorker, queue: str) -> None:
    worker = make_worker([queue], address="127.0.0.1:1")
    wait_until(lambda: "Cannot claim tasks" in worker.log_text, "a word about it")
    assert worker.exit_code is None
    assert worker.log_text.count("Cannot claim tasks") == 1, "one line for the whole outage"
    report = worker.stop()
    assert (report.succeeded, report.lost) == (0, 0)


async def test_a_worker_in_a_program_of_ones_own(app: Holdfast, queue: str) -> None:
    """On the program's own loop, or on a thread; told to stop from anywhere, also before it has begun."""
    own = Holdfast(app.address)

    @own.task(queue=queue, lease=5)
    async def double(number: int) -> int:
        assert current_task().queue == queue
        return 2 * number

    worker = Worker(own, name="one of our own")
    serving = asyncio.create_task(worker.serve())
    handle = await double.enqueue_async(21)
    assert await handle.result(timeout=TIMEOUT_S) == 42
    assert (await handle.info()).worker == "one of our own"
    worker.stop()
    assert (await asyncio.wait_for(serving, TIMEOUT_S)).succeeded == 1

    early = Worker(own)
    early.stop()
    assert await asyncio.wait_for(asyncio.to_thread(early.run), TIMEOUT_S) == WorkerReport()
    with pytest.raises(LookupError, match="no current task"):
        current_task()
    await asyncio.to_thread(own.close)


async def test_every_task_is_claimed_for_its_own_lease(app: Holdfast, queue: str) -> None:
    """Of one queue, in one claim: not for the shortest of all."""
    own = Holdfast(app.address)
    leases_ms: dict[str, int] = {}

    async def poll() -> None:
        info = await own.run_async(lambda client: client.get_task(current_task().id))
        assert info.lease_expires_at_ms is not None
        leases_ms[info.type] = info.lease_expires_at_ms - info.changed_at_ms

    for name, lease_s in (("short", 1), ("long", 20), ("other", 30), ("others", 30)):
        own.task(queue=queue, lease=lease_s, name=name)(poll)
    handles = [await own.tasks[name].enqueue_async() for name in ("short", "long", "other")]
    worker = Worker(own)
    serving = asyncio.create_task(worker.serve())
    for handle in handles:
        await handle.result(timeout=TIMEOUT_S)
    worker.stop()
    await asyncio.wait_for(serving, TIMEOUT_S)
    await asyncio.to_thread(own.close)
    assert leases_ms == {"short": 1_000, "long": 20_000, "other": 30_000}


def test_the_server_tells_workers_apart_by_their_names() -> None:
    app = chores.make_app("localhost:7400")
    with pytest.raises(InvalidAddress):
        Worker(app, address="nonsense")
    assert Worker(app).name != Worker(app).name
