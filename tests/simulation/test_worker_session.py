"""The worker on virtual time, against a broker behind a faulty network: seeds are histories, and some are ablated."""

import asyncio
import itertools
import logging
import random
from collections.abc import Callable, Coroutine, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, cast

import pytest

from holdfast.client import AsyncClient, ClaimedTask, Extended, InvalidArgument, Rejected, TaskState, WorkerState
from holdfast.client.worker import claiming, deadlines, heartbeats, session, settling
from holdfast.client.worker.jobs import Job, Outcome, Succeeded
from holdfast.client.worker.session import Session, SessionSettings, WorkerReport, WorkerTask
from holdfast.client.worker.stopping import StopRequest
from holdfast.routing.task_ids import shard_of_task
from tests.long import IS_LONG
from tests.simulation import virtual_time
from tests.simulation.worker_world import Network, Run, SimBroker, SimHandlers

LEASE_S = 2.0
QUEUES: dict[str, int | None] = {"mail": None, "reports": 2}
CONCURRENCY = 5
SHARE = 1 if IS_LONG else 3  # of the seeds, one in so many


@dataclass(frozen=True)
class SimKind:
    name: str
    is_async: bool
    lease_ms: int = int(LEASE_S * 1000)

    def function(self) -> None: ...


KINDS: dict[str, WorkerTask] = {"async": SimKind("async", True), "blocking": SimKind("blocking", False)}


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """Thousands of lost answers are thousands of log lines, which cost more than the runs."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


class World:
    def __init__(
        self,
        seed: int,
        network: Network,
        *,
        takes_s_max: float = 3.0,
        grace_s: float = 30.0,
        lease_s: float = LEASE_S,
    ) -> None:
        self.draw = random.Random(seed)
        random.seed(seed)  # the worker's own pauses
        self.network = network
        self.broker = SimBroker(self.draw, network)
        self.stop = StopRequest()
        self.stop.attach(asyncio.get_running_loop())
        self._takes_s_max = takes_s_max
        self.handlers: SimHandlers | None = None
        kinds: dict[str, WorkerTask] = {
            name: SimKind(name, kind.is_async, int(lease_s * 1000)) for name, kind in KINDS.items()
        }
        settings = SessionSettings("sim", "sim:1", QUEUES, CONCURRENCY, grace_s, kinds)
        client = cast(AsyncClient, self.broker)
        self.session = Session(settings, client, self.stop, make_handlers=self._make, now_s=SimBroker.now_s)

    def _make(self, _: object, __: int, ended: Callable[[Job, Outcome], None]) -> SimHandlers:
        self.handlers = SimHandlers(self.broker, self.draw, self._takes_s_max, ended)
        return self.handlers

    async def sweep_for_ever(self) -> None:
        while True:
            await asyncio.sleep(0.1)
            self.broker.sweep()
            assert self.handlers is not None
            running = [run.job.claim.queue for run in self.handlers.running() if not run.job.lease_lost]
            assert len(running) <= CONCURRENCY
            assert running.count("reports") <= 2

    async def until_done(self) -> None:
        while not all(task.state.is_final for task in self.broker.tasks.values()):
            await asyncio.sleep(0.2)


async def work(
    world: World, story: Callable[[], Coroutine[Any, Any, None]], tasks: int = 60, **options: Any
) -> tuple[WorkerReport, World]:
    """Runs the worker while the story is told; the story's end is the request to stop."""
    world.broker.add(tasks, list(QUEUES), list(KINDS), **options)
    sweeps = asyncio.create_task(world.sweep_for_ever())
    running = asyncio.create_task(world.session.run())
    await story()
    world.stop.request()
    report = await running
    if sweeps.done():
        sweeps.result()
    sweeps.cancel()
    return report, world


def faulty(draw: random.Random) -> Network:
    lost, answers_lost, overloaded, unsettled = (draw.uniform(0, most) for most in (0.3, 0.3, 0.2, 0.3))
    return Network(lost, answers_lost, overloaded, unsettled, draw.uniform(0.01, 0.3))


async def through_faults(seed: int) -> tuple[WorkerReport, World]:
    """Requests, answers and whole minutes of the network are lost; in the end all is well."""
    world = World(seed, faulty(random.Random(seed)))

    async def story() -> None:
        for _ in range(world.draw.randint(0, 3)):
            await asyncio.sleep(world.draw.uniform(0, 5))
            world.network.down = True
            await asyncio.sleep(world.draw.choice([0.2, 1, 2 * LEASE_S, 10 * LEASE_S]))
            world.network.down = False
        world.network.request_lost = world.network.answer_lost = world.network.overloaded = 0
        await world.until_done()

    draw = random.Random(seed)
    return await work(world, story, timeout_s=draw.choice([None, 2.5]), timeout_is_told=draw.random() < 0.5)


@pytest.mark.parametrize("block", range(10 // SHARE))
def test_every_task_is_done_through_any_faults_and_none_is_reported_without_the_right_to(block: int) -> None:
    for seed in range(block * 20, block * 20 + 20):
        report, world = virtual_time.run(lambda seed=seed: through_faults(seed), seed)  # type: ignore[misc]
        states = {task.state for task in world.broker.tasks.values()}
        assert states == {TaskState.SUCCEEDED}, f"seed {seed}"
        assert report.succeeded <= len(world.broker.tasks), f"seed {seed}"
        assert world.handlers is not None
        assert world.handlers.reported_too_late() == [], f"seed {seed}"
        assert world.handlers.running_max <= CONCURRENCY, f"seed {seed}"


async def with_lost_answers(seed: int) -> tuple[WorkerReport, World]:
    """Answers are lost, but never for long: no lease need ever run out."""
    world = World(seed, Network(0.02, 0.05, 0.02, 0.1, latency_s_max=0.02))
    return await work(world, world.until_done)


def expire_with_lost_answers(seeds: range) -> bool:
    return any(
        virtual_time.run(lambda seed=seed: with_lost_answers(seed), seed)[1].broker.expired  # type: ignore[misc]
        for seed in seeds
    )


def test_lost_answers_cost_no_lease() -> None:
    """What a lost answer had claimed comes with the next one, and heartbeats are repeated in time."""
    assert not expire_with_lost_answers(range(0, 40, SHARE))


async def quiet_for_a_while(seed: int) -> World:
    """Asked to be quiet amid its work, and later to go on, through answers that are lost."""
    world = World(seed, Network(answer_lost=0.1, latency_s_max=0.02), takes_s_max=0.5)

    async def story() -> None:
        await asyncio.sleep(world.draw.uniform(0, 3))
        world.broker.desired = WorkerState.QUIET
        while world.session.state not in (WorkerState.QUIET, WorkerState.DRAINED):
            await asyncio.sleep(0.05)
        assert world.session.readiness() == (False, "it is quiet: it was asked to claim no tasks")
        await asyncio.sleep(5)  # what runs ends, and what a lost answer had claimed is given back
        assert world.broker.claimed() == []
        world.broker.add(20, list(QUEUES), list(KINDS))
        await asyncio.sleep(40)  # more than a poll lasts
        assert world.broker.claimed() == [], "nothing is claimed"
        assert world.broker.worker_states[-1] is WorkerState.DRAINED
        world.broker.desired = WorkerState.RUNNING
        await world.until_done()
        assert world.session.readiness()[0]

    _, _ = await work(world, story)
    return world


def test_a_worker_that_is_asked_to_be_quiet_claims_nothing_until_it_may_again() -> None:
    for seed in range(0, 30, SHARE):
        world = virtual_time.run(lambda seed=seed: quiet_for_a_while(seed), seed)  # type: ignore[misc]
        assert {task.state for task in world.broker.tasks.values()} == {TaskState.SUCCEEDED}, f"seed {seed}"
        assert world.broker.expired == 0, f"seed {seed}: nothing waits for the end of its lease"
        assert world.broker.worker_states[-2:] == [WorkerState.STOPPING, WorkerState.GONE], f"seed {seed}"


async def stopped_from_afar(seed: int) -> World:
    world = World(seed, Network(latency_s_max=0.02), takes_s_max=0.5)
    world.broker.add(60, list(QUEUES), list(KINDS))
    running = asyncio.create_task(world.session.run())
    await asyncio.sleep(world.draw.uniform(0, 3))
    world.broker.desired = WorkerState.STOPPING
    await asyncio.wait_for(running, 30)
    return world


def test_a_worker_that_is_asked_to_stop_ends_warmly() -> None:
    for seed in range(10):
        world = virtual_time.run(lambda seed=seed: stopped_from_afar(seed), seed)  # type: ignore[misc]
        assert world.broker.claimed() == [], f"seed {seed}"
        assert world.broker.worker_states[-1] is WorkerState.GONE, f"seed {seed}"


async def stopped(seed: int, grace_s: float = 10.0) -> tuple[WorkerReport, World]:
    """Told to stop in the middle: of handlers, some longer than the grace period, and of claims."""
    takes_s_max = random.Random(seed).choice([0.1, 2 * grace_s])
    network = Network(latency_s_max=0.02, answer_lost=0.05, unsettled=0.1)
    world = World(seed, network, takes_s_max=takes_s_max, grace_s=grace_s)

    async def story() -> None:
        await asyncio.sleep(world.draw.uniform(0, 2 * grace_s))
        world.broker.add(2, list(QUEUES), list(KINDS))
        await asyncio.sleep(world.draw.uniform(0, 0.05))

    began_s = world.broker.now_s()
    report, _ = await work(world, story)
    assert world.broker.now_s() - began_s <= 3 * grace_s + 1, "it ends within its grace period"
    return report, world


def check_nothing_is_left_behind(seeds: range) -> None:
    for seed in seeds:
        report, world = virtual_time.run(lambda seed=seed: stopped(seed), seed)  # type: ignore[misc]
        assert world.broker.claimed() == [], f"seed {seed}"
        assert world.broker.expired == 0, f"seed {seed}"
        tasks = world.broker.tasks.values()
        assert sum(task.attempt - 1 for task in tasks) == report.failed, f"seed {seed}: only failures spend attempts"


def test_a_warm_shutdown_leaves_no_claim_behind_and_spends_no_attempt() -> None:
    check_nothing_is_left_behind(range(0, 50, SHARE))


async def beside_a_silent_shard(seed: int) -> World:
    """One of two shards does not answer for a minute, in the middle of it all; returns when it answers again."""
    world = World(seed, Network(latency_s_max=0.02))

    async def story() -> None:
        await asyncio.sleep(world.draw.uniform(0.5, 3))
        world.network.silent = frozenset({1})
        await asyncio.sleep(60)
        of_the_other = [task for task in world.broker.tasks.values() if shard_of_task(task.task_id) == 0]
        assert {task.state for task in of_the_other} == {TaskState.SUCCEEDED}, "done while the other one is silent"
        world.network.silent = frozenset()
        await world.until_done()

    await work(world, story, tasks=120, shards=(0, 1))
    return world


def check_a_silent_shard(seeds: range) -> None:
    silent_expired = 0
    for seed in seeds:
        world = virtual_time.run(lambda seed=seed: beside_a_silent_shard(seed), seed)  # type: ignore[misc]
        assert 0 not in world.broker.expired_of, f"seed {seed}: a lease of the shard that answers"
        silent_expired += len(world.broker.expired_of)
    assert silent_expired, "the worker held tasks of the silent one"


def test_a_silent_shard_costs_no_lease_of_another_one_and_holds_up_none_of_its_reports() -> None:
    check_a_silent_shard(range(0, 20, SHARE))


async def told_twice(seed: int) -> float:
    """Told to stop twice while the server is gone; returns how long that took."""
    world = World(seed, Network(latency_s_max=0.02), takes_s_max=60.0)

    async def story() -> None:
        await asyncio.sleep(1)
        world.network.down = True
        world.stop.request()

    reported_s = 1.0
    await work(world, story)
    return world.broker.now_s() - reported_s


def test_who_is_told_twice_stops_at_once_also_without_a_server() -> None:
    for seed in range(10):
        assert virtual_time.run(lambda seed=seed: told_twice(seed), seed) < 2.0, f"seed {seed}"  # type: ignore[misc]


async def with_a_lease_that_is_refused(seed: int) -> None:
    world = World(seed, Network(latency_s_max=0.02), takes_s_max=60.0)

    async def refuse(items: Sequence[object], *, timeout_s: float) -> list[Rejected]:
        return [InvalidArgument("at most 24 h", reason="OUT_OF_RANGE", field="items[0].lease_ms") for _ in items]

    world.broker.extend_many = refuse  # type: ignore[assignment]

    async def until_it_ends() -> None:
        await asyncio.sleep(120)

    await work(world, until_it_ends)


def test_a_lease_that_the_server_does_not_allow_ends_the_worker() -> None:
    with pytest.raises(InvalidArgument, match="at most 24 h"):
        virtual_time.run(lambda: with_a_lease_that_is_refused(0), 0)


async def cancelled(seed: int) -> tuple[WorkerReport, World]:
    world = World(seed, Network(latency_s_max=0.02), takes_s_max=60.0)

    async def story() -> None:
        await asyncio.sleep(1)
        for task in world.broker.claimed():
            task.cancel_requested = True
        await asyncio.sleep(LEASE_S)

    return await work(world, story, tasks=CONCURRENCY)


def test_a_cancelled_task_is_interrupted_within_a_lease_if_that_is_possible() -> None:
    interrupted = 0
    for seed in range(20):
        _, world = virtual_time.run(lambda seed=seed: cancelled(seed), seed)  # type: ignore[misc]
        assert world.handlers is not None
        for run in world.handlers.runs:
            if run.job.claim.type == "async" and run.job.cancel_requested:
                assert run.ended_s is not None
                assert run.ended_s - run.began_s < 1 + LEASE_S
                interrupted += 1
    assert interrupted


LATENCY_S = 0.02


async def with_timeouts(
    seed: int, timeout_s: float, *, is_reported: bool, lease_s: float = LEASE_S
) -> tuple[WorkerReport, World]:
    """Handlers often take longer than they may. The last tasks come when the worker has waited for a while."""
    world = World(seed, Network(latency_s_max=LATENCY_S), takes_s_max=2 * timeout_s, lease_s=lease_s)
    options: dict[str, Any] = {"timeout_s": timeout_s, "timeout_is_told": is_reported}

    async def story() -> None:
        await world.until_done()
        await asyncio.sleep(3 * timeout_s)
        world.broker.add(CONCURRENCY, list(QUEUES), list(KINDS), **options)
        await world.until_done()

    return await work(world, story, tasks=20, **options)


def check_timeouts(seeds: range, timeout_s: float, *, is_reported: bool, lease_s: float = LEASE_S) -> None:
    for seed in seeds:
        _check_timeouts(seed, timeout_s, is_reported, lease_s)


def _check_timeouts(seed: int, timeout_s: float, is_reported: bool, lease_s: float) -> None:
    report, world = virtual_time.run(
        lambda: with_timeouts(seed, timeout_s, is_reported=is_reported, lease_s=lease_s), seed
    )
    assert world.handlers is not None
    timed_out = [run for run in world.handlers.runs if run.job.timed_out]
    assert timed_out
    for run in timed_out:
        # Never after the server's own deadline, and not much before it: by the delays of the calls at most.
        late_s = (run.reported_s or float("inf")) - world.broker.deadline_s_of(run.job.claim)
        assert -3 * LATENCY_S <= late_s <= 0.001, f"seed {seed}: {late_s}"
        assert _name(run) not in world.broker.succeeded_s, f"seed {seed}: what came too late has counted"
    for run in world.handlers.runs:
        if run.job.claim.type == "async":
            assert run.ended_s is not None
            assert run.ended_s <= world.broker.deadline_s_of(run.job.claim) + 0.001, f"seed {seed}"
    # Ended in time, but by less than its report needed: the claim was lost on the way.
    overtaken = [run for run in world.handlers.runs if not run.job.timed_out and _name(run) in world.broker.came_late]
    for run in overtaken:
        left_s = world.broker.deadline_s_of(run.job.claim) - (run.ended_s or 0.0)
        assert 0 <= left_s <= 3 * LATENCY_S, f"seed {seed}: {left_s}"
    recorded = world.broker.error_types
    assert set(recorded) <= {"Sim", "TaskTimeout"}
    over = recorded.count("TaskTimeout") + world.broker.timed_out
    assert over == len(timed_out) + len(overtaken), f"seed {seed}"
    failed = len(recorded) + world.broker.timed_out - len(overtaken)
    assert report.failed == failed, f"seed {seed}: who was faster makes no difference"
    assert report.lost == len(overtaken), f"seed {seed}: a timeout is no lost lease"
    assert world.broker.expired == 0, f"seed {seed}: a timeout is no lost lease"
    assert not world.session.deadlines.pending, f"seed {seed}: a timer outlives its task"


def _name(run: Run) -> tuple[str, int]:
    return run.job.claim.task_id, run.job.claim.token


TIMEOUTS_S = [1.0, 1.5, 5.0]  # shorter and longer than a lease


@pytest.mark.parametrize("is_reported", [True, False])
def test_an_attempt_that_takes_too_long_is_stopped_in_time_and_has_failed(is_reported: bool) -> None:
    """Its timeout is in the claim, or it is the queue's and shows only in leases that are not extended any more."""
    for timeout_s in TIMEOUTS_S:
        check_timeouts(range(6), timeout_s, is_reported=is_reported)


@pytest.mark.parametrize("is_reported", [True, False])
def test_a_timeout_is_noticed_in_time_also_if_it_is_much_shorter_than_the_lease(is_reported: bool) -> None:
    check_timeouts(range(6), 1.0, is_reported=is_reported, lease_s=30.0)


def test_a_snoozed_task_comes_again_and_no_attempt_is_spent() -> None:
    _, world = virtual_time.run(lambda: with_lost_answers(1), 1)
    snoozed = [task for task in world.broker.tasks.values() if task.due_s]
    assert snoozed
    assert {task.state for task in snoozed} == {TaskState.SUCCEEDED}
    failures = world.broker.error_types.count("Sim")
    assert sum(task.attempt - 1 for task in world.broker.tasks.values()) == failures


# --- ablations: without each of these the checks above must fail ---------------------------------------------


def test_the_checks_notice_a_request_id_that_is_not_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    numbers = itertools.count()

    class Forgetful(claiming.Claimer):
        async def _reserve(self, *args: Any, **kwargs: Any) -> Any:
            self._request_id = f"request-{next(numbers)}"
            return await super()._reserve(*args, **kwargs)

    monkeypatch.setattr(session, "Claimer", Forgetful)
    assert expire_with_lost_answers(range(40))


def test_the_checks_notice_missing_heartbeats(monkeypatch: pytest.MonkeyPatch) -> None:
    class Silent(heartbeats.Heartbeats):
        async def _extend(self, shard: int | None, due: list[Job]) -> None:
            pass

    monkeypatch.setattr(session, "Heartbeats", Silent)
    assert expire_with_lost_answers(range(5))


def test_the_checks_notice_reports_without_the_right_to(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heartbeats, "lose", lambda job, why: None)
    worlds = (virtual_time.run(lambda seed=seed: through_faults(seed), seed)[1] for seed in range(20))  # type: ignore[misc]
    assert any(world.handlers is not None and world.handlers.reported_too_late() for world in worlds)


def test_the_checks_notice_a_shutdown_that_forgets_the_last_poll(monkeypatch: pytest.MonkeyPatch) -> None:
    async def collect(self: claiming.Claimer) -> list[Any]:
        return []

    monkeypatch.setattr(claiming.Claimer, "collect", collect)
    with pytest.raises(AssertionError):
        check_nothing_is_left_behind(range(50))


@pytest.mark.parametrize("part", [settling, heartbeats])
def test_the_checks_notice_calls_that_are_not_made_for_each_shard(monkeypatch: pytest.MonkeyPatch, part: Any) -> None:
    monkeypatch.setattr(part, "shard_of_task", lambda task_id: None)
    with pytest.raises(AssertionError):
        check_a_silent_shard(range(20))


def _ends_nothing(job: Job) -> None:
    pass


def _knows_no_timeouts(job: Job, extended: Extended) -> None:
    job.lease_ends_s, job.extend_at_s = extended.lease_ends_s, extended.lease_ends_s - extended.lease_ms / 1000 * 2 / 3


def _is_patient(self: heartbeats.Heartbeats, job: Job) -> None:
    pass


def _tells_no_wait(self: SimBroker, arrived_s: float) -> float:
    return 0.0


@pytest.mark.parametrize(
    ("where", "name", "without", "is_reported", "lease_s"),
    [
        (deadlines, "time_out", _ends_nothing, True, LEASE_S),
        (heartbeats, "note_extended", _knows_no_timeouts, False, LEASE_S),
        (heartbeats.Heartbeats, "added", _is_patient, False, 30.0),
        (SimBroker, "waited_s", _tells_no_wait, True, LEASE_S),
        (session, "timeout_of", lambda job: Succeeded(), True, LEASE_S),
    ],
)
def test_the_checks_notice_timeouts_that_are_not_kept(
    monkeypatch: pytest.MonkeyPatch, where: Any, name: str, without: Any, is_reported: bool, lease_s: float
) -> None:
    monkeypatch.setattr(where, name, without)
    with pytest.raises(AssertionError):
        check_timeouts(range(8), 1.0, is_reported=is_reported, lease_s=lease_s)


async def with_a_late_suspect(seed: int) -> None:
    """It comes when its worker holds something else, and is given back."""
    world = World(seed, Network(latency_s_max=0.02), takes_s_max=60.0)

    async def story() -> None:
        while not world.broker.claimed():
            await asyncio.sleep(0.1)
        suspect = ClaimedTask(task_id=next(iter(world.broker.tasks)), token=0, queue="mail", type="async", alone=True)
        world.session.give_back_claim(suspect)
        world.broker.add(CONCURRENCY, ["mail"], ["async"])
        while len(world.broker.claimed()) < CONCURRENCY:
            await asyncio.sleep(0.1)

    await work(world, story, tasks=1)


def test_a_late_suspect_that_is_given_back_does_not_keep_a_worker_from_claiming() -> None:
    virtual_time.run(lambda: with_a_late_suspect(0), 0)
