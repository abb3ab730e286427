"""A task that ends or stops its workers takes nobody with it: in the end it alone is dead, and its letter says why."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from holdfast.client import Handle, Holdfast, TaskFailed, TaskState
from tests.acceptance.conftest import MakeWorker
from tests.acceptance.worker_process import WorkerProcess

TIMEOUT_S = 60.0
NEIGHBOURS = 8


@contextmanager
def supervised(start: Callable[[], WorkerProcess]) -> Iterator[list[WorkerProcess]]:
    """Starts a worker, and the next one whenever one has died."""
    workers: list[WorkerProcess] = []
    stopping = threading.Event()

    def supervise() -> None:
        while not stopping.is_set():
            workers.append(start())
            while workers[-1].exit_code is None and not stopping.wait(0.02):
                pass

    thread = threading.Thread(target=supervise)
    thread.start()
    try:
        yield workers
    finally:
        stopping.set()
        thread.join()


def begins(workers: list[WorkerProcess], handle: Handle[Any]) -> list[dict[str, Any]]:
    lines = [line for worker in workers for line in worker.journal()]
    return [line for line in lines if line["what"] == "begin" and line["id"] == handle.id]


@pytest.mark.parametrize(("guilty", "arguments"), [("kill_worker", ()), ("freeze", (2.5,))])
def test_only_the_guilty_one_is_dead(
    app: Holdfast, make_worker: MakeWorker, queue: str, guilty: str, arguments: tuple[float, ...]
) -> None:
    """The neighbours may spend one claim only, so that a single one that is counted against them would kill them."""
    calls = [app.tasks["work"].options(queue=queue, max_claims=1).call(0.2) for _ in range(NEIGHBOURS)]
    culprit = app.tasks[guilty].options(queue=queue, max_claims=2).call(*arguments)
    handles = app.enqueue_many([*calls[:3], culprit, *calls[3:]]).handles()
    bad = handles.pop(3)
    with supervised(lambda: make_worker([queue], lease=1, concurrency=4, command=True)) as workers:
        with pytest.raises(TaskFailed):
            bad.result(timeout=TIMEOUT_S)
        for handle in handles:
            handle.result(timeout=TIMEOUT_S)
    letter = app.run(lambda client: client.get_dead_letter(bad.id))
    assert (letter.state, letter.dead_reason, letter.claims) == (TaskState.DEAD, "CLAIMS_SPENT", 2)
    assert letter.last_error is not None
    assert "died or stood still 2 times while this task ran alone" in letter.last_error.message
    began = begins(workers, bad)
    assert [line["running"] for line in began[1:]] == [1, 1], "once in company, then alone, and no more than it may"
    assert [(info.state, info.failures) for info in (handle.info() for handle in handles)] == [
        (TaskState.SUCCEEDED, 0)
    ] * NEIGHBOURS


def test_a_suspect_is_not_kept_waiting_by_workers_that_are_always_busy(
    app: Holdfast, make_worker: MakeWorker, queue: str
) -> None:
    """One worker, and always more to do than it has slots: it runs dry for the suspect, and goes on."""
    suspect = app.tasks["work"].options(queue=queue).enqueue(0.1)
    [claim] = app.run(lambda client: client.reserve([queue], lease_ms=60_000, worker="dies"))
    others = app.enqueue_many(
        [app.tasks["work"].options(queue=queue).call(0.3 + n % 3 / 10) for n in range(40)]
    ).handles()
    worker = make_worker([queue], lease=20, concurrency=4)
    worker.wait_for("begin", 4)
    app.run(lambda client: client.extend(claim, 1000))  # the last that is heard of its worker
    suspect.result(timeout=TIMEOUT_S)
    assert app.run(lambda client: client.queue_stats(queue)).ready > 0, "it did not wait for all the others"
    [began] = begins([worker], suspect)
    assert began["running"] == 1
    for handle in others:
        handle.result(timeout=TIMEOUT_S)
    worker.stop()
