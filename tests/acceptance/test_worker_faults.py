"""What a worker does when things break: killed, paused, cut off, told to stop, or left alone by its server."""

import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast.client import Handle, Holdfast, QueueStats, TaskFailed, TaskState, WorkerReport
from tests.acceptance.apps import chores
from tests.acceptance.conftest import MakeWorker, results, stats
from tests.acceptance.worker_process import WorkerProcess
from tests.integration.proxy import Flow, Proxy
from tests.integration.server import ServerProcess, wait_until

TIMEOUT_S = 30.0
LEASE_S = 3.0  # short, where a lease has to run out, but not because the machine is busy for a moment
LONG_LEASE_S = 60.0  # where whatever waits for the end of a lease has failed
# What happens at once takes far less; on a busy machine a process takes its time to start and to end.
PROMPT_S = 16.0
KINDS = ("wait_at", "wait_at_async")


@pytest.fixture
def own_server(tmp_path: Path) -> Iterator[ServerProcess]:
    """A server that the test may end."""
    directory = tmp_path / "server"
    directory.mkdir()
    with ServerProcess(directory) as server:
        yield server.start()


@pytest.fixture
def proxy(shared_server: ServerProcess) -> Iterator[Proxy]:
    """A way to the shared server that can be broken."""
    with Proxy(shared_server.port) as proxy:
        yield proxy


def wait_at_gate(app: Holdfast, queue: str, gate: Path, times: int = 1) -> list[Handle[Any]]:
    """Enqueues tasks that wait at the gate, blocking and async ones in turn."""
    return app.enqueue_many([app.tasks[name].options(queue=queue).call(str(gate)) for name in KINDS] * times).handles()


def use(app: Holdfast, queue: str) -> None:
    """Statistics exist only for a queue that was used."""
    assert app.tasks["echo"].options(queue=queue).enqueue().cancel() is TaskState.CANCELLED


def wait_for_poll(app: Holdfast, queue: str) -> None:
    wait_until(lambda: stats(app, queue).waiting_reserves == 1, "a worker in its long poll")


def wait_for_state(handle: Handle[Any], state: TaskState) -> None:
    wait_until(lambda: handle.status() is state, f"the task to be {state}")


def wait_for_reports(app: Holdfast, queue: str, before: QueueStats) -> None:
    """Until the server has taken successes and failures."""

    def poll() -> bool:
        now = stats(app, queue)
        return now.succeeded_total > before.succeeded_total and now.failed_total > before.failed_total

    wait_until(poll, "reports that the server has taken")


def stale_reports(server: ServerProcess) -> float:
    """How often somebody claimed to have done a task that was no longer his."""
    return server.metric('holdfast_rejections_total{reason="STALE_TOKEN"}')


# --- workers that vanish ----------------------------------------------------------------------------------------------


def test_the_tasks_of_a_killed_worker_are_done_by_another(
    app: Holdfast, make_worker: MakeWorker, queue: str, gate: Path
) -> None:
    killed = make_worker([queue], lease=LEASE_S)
    handles = wait_at_gate(app, queue, gate, times=3)
    killed.wait_for("begin", 6)
    other = make_worker([queue], lease=LONG_LEASE_S)
    killed.signal(signal.SIGKILL)
    killed.wait_for_exit()
    gate.touch()
    assert results(handles) == [other.pid] * 6
    assert [handle.info().failures for handle in handles] == [0] * 6
    found = stats(app, queue)
    assert (found.succeeded_total, found.expired_total, found.claimed) == (6, 6, 0)


def test_a_paused_worker_does_not_report_what_another_has_done(
    app: Holdfast, shared_server: ServerProcess, make_worker: MakeWorker, queue: str, gate: Path
) -> None:
    """Nor does it begin what came to it while it was paused, and was too old when it woke up."""
    second = f"{queue}.second"
    use(app, second)
    paused = make_worker([queue], lease=LEASE_S, concurrency=2)
    idle = make_worker([second], lease=LEASE_S)
    handles = wait_at_gate(app, queue, gate)
    paused.wait_for("begin", 2)
    wait_for_poll(app, second)
    for worker in (paused, idle):
        worker.signal(signal.SIGSTOP)
    handles += wait_at_gate(app, second, gate)
    gate.touch()
    wait_until(lambda: stats(app, second).claimed > 0, "a claim for a worker that is stopped")
    other = make_worker([queue, second], lease=LONG_LEASE_S)
    assert results(handles) == [other.pid] * 4, "while the other workers are still stopped"
    stale_before = stale_reports(shared_server)
    for worker in (paused, idle):
        worker.signal(signal.SIGCONT)
    paused.wait_for("end", 2)
    reports = [worker.stop() for worker in (paused, idle)]
    assert [(report.succeeded, report.failed, report.released) for report in reports] == [(0, 0, 0)] * 2
    assert reports[0].lost == 2
    assert reports[1].lost >= 1
    for worker, report in zip((paused, idle), reports, strict=True):
        assert worker.log_text.count("Lost task") == report.lost
        lost = [line for line in worker.log_text.splitlines() if "Lost task" in line]
        assert all("this worker itself stood still for" in line and "server" not in line for line in lost), lost
        assert "This worker stood still for" in worker.log_text
    assert "At that time it ran" in paused.log_text
    assert "wait_at (" in paused.log_text, "which handlers it may have been"
    assert idle.journal() == []
    assert stale_reports(shared_server) == stale_before, "they knew by themselves that their leases had run out"
    assert other.stop().succeeded == 4
    assert stats(app, queue).succeeded_total + stats(app, second).succeeded_total == 4


def test_a_worker_whose_interpreter_was_held_says_who_may_have_held_it(
    app: Holdfast, make_worker: MakeWorker, queue: str, gate: Path
) -> None:
    """And does not blame the server for the leases that were lost by it."""
    worker = make_worker([queue], lease=1)
    slow = app.tasks["work"].options(queue=queue).enqueue(2.0)
    worker.wait_for("begin", 1)
    holder = app.tasks["hold_interpreter"].options(queue=queue).enqueue(3.0, str(gate))
    results([slow, holder])
    assert worker.stop().lost >= 1
    lines = worker.log_text.splitlines()
    [stood] = [line for line in lines if "stood still for 3." in line and "This worker" in line]
    assert f"hold_interpreter ({holder.id})" in stood
    lost = [line for line in lines if "Lost task" in line or "came too late" in line]
    assert lost
    assert all("itself stood still" in line for line in lost), lost
    assert "at the moment, and goes on trying" not in worker.log_text


# --- connections that break -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["silent", "refused"])
def test_a_worker_that_is_cut_off_stops_its_handlers(
    app: Holdfast, shared_server: ServerProcess, make_worker: MakeWorker, proxy: Proxy, queue: str, gate: Path, how: str
) -> None:
    worker = make_worker([queue], lease=LEASE_S, address=proxy.address, concurrency=3)
    handle = app.tasks["wait_at_async"].options(queue=queue).enqueue(str(gate))
    obedient = app.tasks["wait_at"].options(queue=queue).enqueue(str(gate), obeys=True)
    worker.wait_for("begin", 2)
    stale_before = stale_reports(shared_server)
    if how == "silent":
        proxy.set(requests=Flow.HOLD, answers=Flow.HOLD)
    else:
        proxy.set(refuses=True)
        proxy.reset()
    [interrupted] = worker.wait_for("interrupted", 1, handle.id)
    [reported] = worker.wait_for("reported", 1, obedient.id)
    assert [line["lease_lost"] for line in (interrupted, reported)] == [True, True]
    assert [line["cancel_requested"] for line in (interrupted, reported)] == [False, False]
    for item in (handle, obedient):
        wait_for_state(item, TaskState.READY)
    gate.touch()
    proxy.set()
    proxy.reset()
    assert results([handle, obedient]) == [worker.pid] * 2, "it has found its way back"
    report = worker.stop()
    assert (report.succeeded, report.failed, report.lost) == (2, 0, 2)
    assert stale_reports(shared_server) == stale_before
    assert [one.info().failures for one in (handle, obedient)] == [0, 0]


def test_a_cut_that_is_shorter_than_the_lease_does_no_harm(
    app: Holdfast, make_worker: MakeWorker, proxy: Proxy, queue: str, gate: Path
) -> None:
    worker = make_worker([queue], lease=LONG_LEASE_S, address=proxy.address, concurrency=6)
    handles = wait_at_gate(app, queue, gate, times=2)
    worker.wait_for("begin", 4)
    proxy.set(requests=Flow.HOLD, answers=Flow.HOLD)
    gate.touch()
    worker.wait_for("end", 4)  # done while there is no way to say so
    proxy.set(refuses=True)
    proxy.reset()
    wait_until(lambda: "Cannot report successes" in worker.log_text, "a word about it")
    assert stats(app, queue).claimed == 4
    proxy.set()
    assert results(handles) == [worker.pid] * 4
    assert [handle.info().claims for handle in handles] == [1] * 4
    report = worker.stop()
    assert (report.succeeded, report.released, report.lost) == (4, 0, 0)


def test_lost_answers_to_reports_do_no_harm(
    app: Holdfast, make_worker: MakeWorker, proxy: Proxy, queue: str, tmp_path: Path
) -> None:
    """The server has taken them, and the worker does not know: it reports again, and that changes nothing."""
    worker = make_worker([queue], lease=LONG_LEASE_S, address=proxy.address, concurrency=8)
    fail_at = app.tasks["fail_at"].options(queue=queue, max_attempts=2)
    for number in range(3):
        gate = tmp_path / f"gate{number}"
        handles = wait_at_gate(app, queue, gate, times=2)
        failing = app.enqueue_many([fail_at.call(str(gate))] * 2).handles()
        worker.wait_for("begin", 8 * number + 6)
        wait_for_poll(app, queue)
        before = stats(app, queue)
        proxy.set(answers=Flow.LOSE)
        gate.touch()
        wait_for_reports(app, queue, before)
        proxy.reset()
        assert results(handles) == [worker.pid] * 4
        for handle in failing:
            with pytest.raises(TaskFailed, match="on purpose"):
                handle.result(timeout=TIMEOUT_S)
            assert handle.info().failures == 2
    report = worker.stop()
    assert (report.succeeded, report.failed, report.released, report.lost) == (12, 12, 0, 0)
    found = stats(app, queue)
    assert (found.succeeded_total, found.failed_total, found.dead_total, found.expired_total) == (12, 12, 6, 0)
    assert (found.claimed_total, found.claimed) == (24, 0)


def test_lost_answers_to_claims_leave_no_task_waiting(
    app: Holdfast, make_worker: MakeWorker, proxy: Proxy, queue: str
) -> None:
    """What was claimed without the worker's knowledge comes with the next answer, not with the end of the lease."""
    use(app, queue)
    worker = make_worker([queue], lease=LONG_LEASE_S, address=proxy.address)
    for number in range(3):
        wait_for_poll(app, queue)
        proxy.set(answers=Flow.LOSE)
        handles = app.enqueue_many([app.tasks["work"].options(queue=queue).call(0) for _ in range(5)]).handles()
        wait_until(lambda: stats(app, queue).claimed > 0, "a claim whose answer is lost")
        proxy.reset()
        began_s = time.monotonic()
        assert results(handles) == [worker.pid] * 5
        assert time.monotonic() - began_s < PROMPT_S, f"round {number}: tasks waited for the end of a lease"
    assert len(worker.journal("begin")) == 15
    assert [stats(app, queue).claimed_total, worker.stop().succeeded] == [15, 15]


# --- servers that break -----------------------------------------------------------------------------------------------


def test_a_server_that_was_gone_comes_back_and_all_tasks_complete(
    own_server: ServerProcess, make_worker: MakeWorker, queue: str, tmp_path: Path
) -> None:
    """Killed first, then told to stop. Some tasks run meanwhile, some wait; workers find the server by themselves."""
    server = own_server
    # The server gets a new port when it comes back: the proxy makes it look as if it had not.
    with Proxy(server.port) as proxy, chores.make_app(proxy.address) as app:
        workers = [make_worker([queue], lease=LONG_LEASE_S, address=proxy.address, concurrency=40) for _ in range(2)]
        for end, number in ((server.kill, 50), (server.stop, 10)):
            gate = tmp_path / f"gate{number}"
            calls = [app.tasks[name].options(queue=queue).call(0.3) for name in ("work", "work_async")]
            calls += [app.tasks[name].options(queue=queue).call(str(gate)) for name in KINDS]
            begun = sum(len(worker.journal("begin")) for worker in workers)
            handles = app.enqueue_many(calls * number).handles()
            _wait_for_begins(workers, begun + 30)
            end()
            proxy.reset()
            gate.touch()  # many end while there is nobody to tell
            proxy.target_port = server.start().port
            assert set(results(handles)) <= {worker.pid for worker in workers}
            assert [handle.info().claims for handle in handles] == [1] * len(handles)
        reports = [worker.stop() for worker in workers]
        assert sum(report.succeeded for report in reports) == 240
        assert sum(report.lost + report.failed + report.released for report in reports) == 0
        assert all("again, after" in worker.log_text for worker in workers)


def _wait_for_begins(workers: list[WorkerProcess], number: int) -> None:
    wait_until(lambda: sum(len(worker.journal("begin")) for worker in workers) >= number, "handlers to run")


# --- the end ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", [False, True], ids=["library", "command"])
def test_a_warm_stop_finishes_what_runs_and_takes_no_more(
    app: Holdfast, make_worker: MakeWorker, queue: str, gate: Path, command: bool
) -> None:
    worker = make_worker([queue], lease=LONG_LEASE_S, concurrency=4, command=command)
    running = wait_at_gate(app, queue, gate)
    worker.wait_for("begin", 2)
    wait_for_poll(app, queue)
    worker.signal(signal.SIGTERM)
    wait_until(lambda: stats(app, queue).waiting_reserves == 0, "the long poll to end")
    late = app.tasks["echo"].options(queue=queue).enqueue()
    assert worker.exit_code is None, "it waits for its handlers"
    gate.touch()
    assert worker.wait_for_exit() == 0
    assert results(running) == [worker.pid] * 2
    assert late.status() is TaskState.READY
    report = worker.report
    assert (report.succeeded, report.failed, report.lost) == (2, 0, 0)
    # A last look for claims on their way may have found the late one, and then gave it back.
    assert stats(app, queue).claimed_total == 2 + report.released <= 3


def test_what_outlasts_the_grace_is_given_back(app: Holdfast, make_worker: MakeWorker, queue: str, gate: Path) -> None:
    """At once, and no attempt is spent: blocking handlers, async ones, and those that will not be cancelled."""
    worker = make_worker([queue], lease=LONG_LEASE_S, grace=1.0)
    handles = wait_at_gate(app, queue, gate)
    handles.append(app.tasks["ignore_cancel"].options(queue=queue).enqueue(str(gate)))
    worker.wait_for("begin", 3)
    other = make_worker([f"{queue}.other", queue], lease=LONG_LEASE_S)
    reported_s = time.monotonic()
    worker.signal(signal.SIGTERM)
    assert worker.wait_for_exit() == 0
    assert time.monotonic() - reported_s < 1.0 + PROMPT_S / 2
    report = worker.report
    assert (report.succeeded, report.failed, report.released, report.lost) == (0, 0, 3, 0)
    assert [line["type"] for line in worker.journal("interrupted")] == ["wait_at_async"]
    begun = other.wait_for("begin", 3)
    assert time.monotonic() - reported_s < PROMPT_S, "they waited for the end of their leases"
    assert [line["attempt"] for line in begun] == [1] * 3
    gate.touch()
    assert results(handles) == [other.pid] * 3
    assert [handle.info().failures for handle in handles] == [0] * 3


def test_the_second_signal_is_a_quick_one(app: Holdfast, make_worker: MakeWorker, queue: str, gate: Path) -> None:
    worker = make_worker([queue], lease=LONG_LEASE_S, grace=60, command=True)
    handles = wait_at_gate(app, queue, gate)
    worker.wait_for("begin", 2)
    worker.signal(signal.SIGTERM)
    wait_until(lambda: " stops:" in worker.log_text, "the first signal to be understood")
    reported_s = time.monotonic()
    worker.signal(signal.SIGINT)
    assert worker.wait_for_exit() == 0
    assert time.monotonic() - reported_s < PROMPT_S
    assert (worker.report.succeeded, worker.report.released) == (0, 2)
    assert [handle.status() for handle in handles] == [TaskState.READY] * 2


def test_a_stop_in_a_long_poll_leaves_no_claim_behind(
    app: Holdfast, make_worker: MakeWorker, proxy: Proxy, queue: str
) -> None:
    """Also where the server has claimed tasks for it and the answer is on its way."""
    use(app, queue)
    worker = make_worker([queue], lease=LONG_LEASE_S, address=proxy.address)
    wait_for_poll(app, queue)
    proxy.set(answers=Flow.HOLD)
    handles = app.enqueue_many([app.tasks["work"].options(queue=queue).call(0) for _ in range(5)]).handles()
    claimed = wait_until(lambda: stats(app, queue).claimed, "a claim whose answer is on its way")
    reported_s = time.monotonic()
    worker.signal(signal.SIGTERM)
    wait_until(lambda: " stops:" in worker.log_text, "the signal to be understood")
    proxy.set()
    assert worker.wait_for_exit() == 0
    assert time.monotonic() - reported_s < PROMPT_S
    assert [handle.status() for handle in handles] == [TaskState.READY] * 5
    report = worker.report
    assert (report.succeeded, report.released, report.lost) == (0, claimed, 0)
    assert worker.journal() == []


def test_a_stop_under_load_leaves_no_claim_behind(app: Holdfast, make_worker: MakeWorker, queue: str) -> None:
    worker = make_worker([queue], lease=LONG_LEASE_S, concurrency=20)
    task = app.tasks["echo_async"].options(queue=queue)
    stopped = threading.Event()
    made = 0

    def produce() -> None:
        nonlocal made
        while not stopped.is_set():
            made += len(app.enqueue_many([task.call(number) for number in range(10)]).handles())

    producer = threading.Thread(target=produce)
    producer.start()
    try:
        wait_until(lambda: made and stats(app, queue).succeeded_total > 200, "some work")
        report = worker.stop()
    finally:
        stopped.set()
        producer.join()
    found = stats(app, queue)
    assert (found.claimed, found.succeeded_total, found.ready) == (0, report.succeeded, made - report.succeeded)
    assert (report.failed, report.lost) == (0, 0)


@pytest.mark.parametrize("how", ["silent", "refused"])
def test_a_stop_while_the_server_is_gone_ends_within_the_grace(
    app: Holdfast, make_worker: MakeWorker, proxy: Proxy, queue: str, gate: Path, how: str
) -> None:
    worker = make_worker([queue], lease=LONG_LEASE_S, grace=3, address=proxy.address)
    wait_at_gate(app, queue, gate)
    worker.wait_for("begin", 2)
    proxy.set(requests=Flow.HOLD, answers=Flow.HOLD, refuses=how == "refused")
    if how == "refused":
        proxy.reset()
    reported_s = time.monotonic()
    worker.signal(signal.SIGTERM)
    gate.touch()
    exit_code = worker.wait_for_exit()
    assert exit_code == 0, worker.log_text
    assert time.monotonic() - reported_s < 3 + PROMPT_S / 2
    assert worker.report == WorkerReport()
    assert "could not be reported" in worker.log_text
