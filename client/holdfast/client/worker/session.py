"""One run of a worker: what happens to each task, and the warm shutdown."""

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from holdfast.client.aio import AsyncClient
from holdfast.client.errors import Conflict, NotFound, Rejected
from holdfast.client.models import Acked, ClaimedTask, Failed, Released, TaskState
from holdfast.client.queue_models import WorkerState
from holdfast.client.worker.claiming import Claimer
from holdfast.client.worker.deadlines import Deadlines
from holdfast.client.worker.handlers import Handler, Handlers, interrupt
from holdfast.client.worker.heartbeats import Heartbeats, end_if_over
from holdfast.client.worker.jobs import (
    TIMEOUT_TYPE,
    AttemptFailed,
    Interrupted,
    Job,
    Outcome,
    Phase,
    new_job,
    timeout_of,
)
from holdfast.client.worker.leases import leases_of
from holdfast.client.worker.mailboxes import Mailbox
from holdfast.client.worker.meters import Meter, TaskOutcome
from holdfast.client.worker.presence import Presence
from holdfast.client.worker.settling import Settler
from holdfast.client.worker.slots import Slots
from holdfast.client.worker.standstill import Standstill
from holdfast.client.worker.stopping import StopRequest
from holdfast.client.worker.task_logs import log_dead, log_failed, log_late, log_started, log_succeeded
from holdfast.common.service import Service
from holdfast_queue import version

log = logging.getLogger("holdfast.worker")

# The last parts of the grace period: async handlers are cancelled, and then whatever still runs is given back.
_INTERRUPT_SHARE = 0.2
_GIVE_BACK_SHARE = 0.1
_REPORT_S_MIN = 1.0


@dataclass(slots=True)
class WorkerReport:
    """What a worker has done."""

    succeeded: int = 0
    failed: int = 0  # attempts that failed or took too long; the tasks may have had others
    released: int = 0  # given back or snoozed, without spending an attempt
    lost: int = 0  # whose lease ended first: what their handlers did may have been done again elsewhere


class WorkerTask(Handler, Protocol):
    """What a run needs to know of a task."""

    @property
    def lease_ms(self) -> int: ...


@dataclass(frozen=True, slots=True)
class SessionSettings:
    """What a run needs to know of its worker."""

    name: str
    address: str
    queues: Mapping[str, int | None]  # each with how many slots it may take at once; None for all of them
    concurrency: int
    grace_s: float
    tasks: Mapping[str, WorkerTask]
    log_tracebacks: bool = True  # of failed attempts


class RunsHandlers(Protocol):
    """What runs the handlers: `Handlers`, or its twin in simulations."""

    def start(self, job: Job) -> None: ...
    def close(self) -> None: ...


MakeHandlers = Callable[[Mapping[str, WorkerTask], int, Callable[[Job, Outcome], None]], RunsHandlers]


class Session:
    """One run of a worker: what happens to each task from its claim to the server's last word on it."""

    def __init__(
        self,
        settings: SessionSettings,
        client: AsyncClient,
        stop: StopRequest,
        *,
        make_handlers: MakeHandlers = Handlers,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._settings = settings
        self._stop = stop
        self._now_s = now_s
        self._report = WorkerReport()
        self._jobs: dict[Job, None] = {}  # a set that keeps its order
        self._idle = asyncio.Event()  # set while no handler runs
        self._empty = asyncio.Event()  # set while no task is held
        self._idle.set()
        self._empty.set()
        self._is_stopping = False
        self._stop_was_asked_for = False  # by an operator from afar
        self._meter = meter = Meter(settings.tasks)
        self._leases = leases_of(settings.tasks)
        self._lease_ms: dict[str, tuple[int, int]] = {}  # by types that the app knows: see `_leases_ms_of`
        lease_ms_min = min(task.lease_ms for task in settings.tasks.values())
        self._slots = Slots(settings.concurrency, settings.queues)
        outcomes: Mailbox[tuple[Job, Outcome]] = Mailbox(asyncio.get_running_loop(), self._ended)
        self._handlers = make_handlers(
            settings.tasks, settings.concurrency, lambda job, outcome: outcomes.put((job, outcome))
        )
        self._standstill = standstill = Standstill(self._running, lease_ms_min, now_s)
        self._settler = Settler(client, self._answered, standstill, meter, self._late_changed)
        self._claimer = Claimer(
            client, self._slots, settings.name, self._leases, standstill, self._claimed, self.give_back_claim, meter
        )
        self._presence = Presence(
            client, settings.name, settings.concurrency, list(settings.queues), lambda: self.state, self._asked_for,
        )  # fmt: skip
        self.deadlines = Deadlines(now_s)
        self._heartbeats = Heartbeats(client, self._jobs.keys(), lease_ms_min, self.deadlines, standstill, meter, now_s)

    async def run(self) -> WorkerReport:
        settings = self._settings
        queues = ", ".join(name if limit is None else f"{name}:{limit}" for name, limit in settings.queues.items())
        log.info("Worker %s serves %s with %d slots.", settings.name, queues, settings.concurrency)
        upkeep = Service(self._heartbeats.run, self._standstill.run, self._presence.run, self._settler.run)
        self._claimer.start()
        upkeep.start()
        try:
            await upkeep.wait(self._stop.warm(), self._claimer.wait())
            await self._shut_down(upkeep)
        finally:
            upkeep.cancel()
            await self._claimer.stop()
            await upkeep.stop()
            self._handlers.close()
        await self._presence.leave()
        if (failure := self._claimer.failed() or upkeep.failed()) is not None:
            raise failure
        log.info("Worker %s has stopped: %s.", self._settings.name, self._summary())
        return self._report

    # --- what is shown ----------------------------------------------------------------------------------------

    def readiness(self) -> tuple[bool, str]:
        """Whether it claims tasks, and if not, why."""
        if self._is_stopping:
            return False, "it stops"
        if self._slots.is_quiet:
            return False, "it is quiet: it was asked to claim no tasks"
        if self._claimer.trouble:
            return False, f"it cannot claim tasks: {self._claimer.trouble}"
        if not self._presence.was_heard and not self._meter.has_polled:  # a poll may wait for long
            return False, "it has not reached a server yet"
        return True, "it claims tasks"

    @property
    def state(self) -> WorkerState:
        if self._is_stopping:
            return WorkerState.STOPPING
        if self._slots.is_quiet:
            return WorkerState.QUIET if self._slots.held else WorkerState.DRAINED
        return WorkerState.RUNNING

    # --- what operators want ----------------------------------------------------------------------------------

    def _asked_for(self, desired: WorkerState) -> None:
        """By somebody far away, perhaps again and again until they have heard that it is so."""
        if self._is_stopping or (desired is WorkerState.QUIET and self._slots.is_quiet) or desired is self.state:
            return
        if desired is WorkerState.STOPPING and not self._stop_was_asked_for:
            self._stop_was_asked_for = True
            log.info("Worker %s was asked to stop.", self._settings.name)
            self._stop.request_from_afar()
        elif desired in (WorkerState.QUIET, WorkerState.RUNNING):
            self._slots.is_quiet = desired is WorkerState.QUIET
            words = "claim no more tasks" if self._slots.is_quiet else "claim tasks again"
            log.info("Worker %s was asked to %s.", self._settings.name, words)
            self._claimer.slots_changed(reopened=True)  # a poll that is open ends
            self._presence.state_changed()

    def metrics_text(self) -> str:
        gauges = {
            "slots": self._settings.concurrency,
            "running": self._slots.running,
            "held": self._slots.held,
            "ready": int(self.readiness()[0]),
        }
        return self._meter.text(gauges, {"worker": self._settings.name, "version": version()})

    # --- the way of a task ------------------------------------------------------------------------------------

    def _claimed(self, claim: ClaimedTask) -> None:
        job = self._take(claim, is_alone=claim.alone)
        now_s = self._now_s()
        # The answer may have taken longer than the lease, e.g. because this process was stopped for a while.
        end_if_over(job, now_s, "its lease ran out before it arrived", self._standstill)
        if job.interrupted:
            self._ended((job, Interrupted()))
        else:
            if job.deadline_s is not None:
                self.deadlines.watch(job)
            self._heartbeats.added(job)
            job.began_s = now_s
            if log.isEnabledFor(logging.DEBUG):
                log_started(job)
            self._handlers.start(job)

    def _take(self, claim: ClaimedTask, *, is_alone: bool = False) -> Job:
        lease_ms, asked_ms = self._lease_ms.get(claim.type) or self._leases_ms_of(claim.type)
        job = new_job(claim, lease_ms, asked_ms)
        if not self._slots.running:
            self._idle.clear()
            self._empty.clear()
        self._slots.take(claim.queue, is_alone=is_alone)
        self._jobs[job] = None
        return job

    def _leases_ms_of(self, name: str) -> tuple[int, int]:
        """What heartbeats ask for, and what claims are asked with."""
        task = self._settings.tasks.get(name)
        asked_ms = self._leases.of(name)
        if task is None:
            return asked_ms, asked_ms
        self._lease_ms[name] = task.lease_ms, asked_ms
        return self._lease_ms[name]

    def _ended(self, ended: tuple[Job, Outcome]) -> None:
        job, outcome = ended
        if job.phase is not Phase.RUNNING:
            return  # given back already; the handler took no notice of it
        self._standstill.poll()  # while it counts as one that runs
        now_s = self._now_s()
        end_if_over(job, now_s, "its lease ran out while its handler ran", self._standstill)
        if job.deadline_s is not None:
            self.deadlines.forget(job)
        job.phase = Phase.REPORTING
        reopened = self._slots.ended(job.claim.queue)
        if not self._slots.running:
            self._idle.set()
        if job.timed_out and not _tells_timeout(outcome):
            outcome = timeout_of(job)  # what has come too late does not count
        if job.began_s is not None:
            job.ran_s = now_s - job.began_s
            self._meter.ran(job.claim.type, job.ran_s)
        if isinstance(outcome, AttemptFailed):
            log_failed(job, outcome, with_traceback=self._settings.log_tracebacks)
        if job.lease_lost:
            self._count(job, "lost")
            self._done(job)
        else:
            self._settler.put(job, outcome)
        self._claimer.slots_changed(reopened=reopened)

    def _answered(self, job: Job, answer: Acked | Failed | Released | Rejected) -> None:
        if isinstance(answer, Acked):
            self._count(job, "succeeded")
            if log.isEnabledFor(logging.DEBUG):
                log_succeeded(job)
        elif isinstance(answer, Failed):
            self._count(job, "failed")
            if answer.state is TaskState.DEAD:
                log_dead(job)
        elif isinstance(answer, Released):
            self._count(job, "released")
        elif job.timed_out and isinstance(answer, Conflict | NotFound):
            self._count(job, "failed")  # the server noticed it first, and has recorded the same
        else:
            self._count(job, "lost")
            log_late(job, self._standstill.why_lost(job, str(answer)))
        self._done(job)
        self._claimer.slots_changed(reopened=False)

    def _count(self, job: Job, outcome: TaskOutcome) -> None:
        setattr(self._report, outcome, getattr(self._report, outcome) + 1)
        self._meter.settled(job.claim.type, outcome)

    def _late_changed(self, late: int) -> None:
        self._slots.late = late
        self._claimer.slots_changed(reopened=False)

    def _done(self, job: Job) -> None:
        job.phase = Phase.DONE
        self._slots.reported()
        if self._slots.is_quiet and self.state is WorkerState.DRAINED:
            self._presence.state_changed()
        del self._jobs[job]
        if not self._jobs:
            self._empty.set()

    # --- the end ----------------------------------------------------------------------------------------------

    async def _shut_down(self, upkeep: Service) -> None:
        """Each step ends early if there is nothing left to wait for, if a second request comes, or if upkeep breaks."""
        self._is_stopping = True
        self._presence.state_changed()
        ends_s = self._now_s() + self._settings.grace_s
        log.info("Worker %s stops: %d handlers are running.", self._settings.name, self._slots.running)
        await self._claimer.stop()

        async def within(share: float, done: Coroutine[Any, Any, object]) -> None:
            timeout_s = ends_s - self._settings.grace_s * share - self._now_s()
            await upkeep.wait(done, self._stop.quick(), timeout_s=timeout_s)

        await within(_INTERRUPT_SHARE, self._give_back_the_last_claims())
        await within(_INTERRUPT_SHARE, self._idle.wait())
        for job in self._running():
            interrupt(job)
        await within(_GIVE_BACK_SHARE, self._idle.wait())
        for job in self._running():
            self._give_back(job)
        await within(0, self._empty.wait())
        await upkeep.wait(self._empty.wait(), timeout_s=_REPORT_S_MIN)
        if self._jobs:
            log.warning("%d tasks could not be reported: they come back when their leases end.", len(self._jobs))

    async def _give_back_the_last_claims(self) -> None:
        for claim in await self._claimer.collect():
            self.give_back_claim(claim)

    def give_back_claim(self, claim: ClaimedTask) -> None:
        self._give_back(self._take(claim))

    def _running(self) -> list[Job]:
        return [job for job in self._jobs if job.phase is Phase.RUNNING]

    def _give_back(self, job: Job) -> None:
        self._ended((job, Interrupted()))

    def _summary(self) -> str:
        done = self._report
        lost = f", {done.lost} leases lost (their tasks run again)" if done.lost else ""
        return f"{done.succeeded} succeeded, {done.failed} failed, {done.released} given back{lost}"


def _tells_timeout(outcome: Outcome) -> bool:
    return isinstance(outcome, AttemptFailed) and outcome.error.type == TIMEOUT_TYPE
