"""One run: warm up, faults, heal, liveness, drain, compare, judge."""

import asyncio
import random
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from chaos.checkers import judge
from chaos.faults.arena import Arena, in_thread
from chaos.faults.catalogue import ALL
from chaos.history import ENQUEUE, OK, History, Story, put_together, read_histories
from chaos.monitor import keep_running, watch_leaders, watch_machine, watch_readiness
from chaos.outcome import Report, make_report, write_final
from chaos.plan import Step
from chaos.system.process import ProcessError
from chaos.system.system import System
from chaos.verdicts import Final
from chaos.workloads.base import Setting, Workload
from chaos.workloads.kinds import probed_shard
from holdfast.client import AsyncClient, HoldfastError, NotFound, QueueStats, TaskInfo, TaskState

LIVE_S_MAX = 30.0  # from the last healing to an acknowledged write of each shard
WARM_UP_S_MAX = 60.0
DRAIN_S_MAX = 90.0
WORKERS_END_S_MAX = 20.0
TIME_OVER = "the time was over"  # why a step was skipped
_POLL_EVERY_S = 0.1
_ASK_S = 5.0
_BATCH = 500
_JUDGE_EVERY_S = 2.0
_LAST_SENDS_S = 2.0  # how long producers may still send after they were told to stop

T = TypeVar("T")


@dataclass
class Run:
    """A system, workloads on it, and what is done to it: lanes of steps, which go on at the same time."""

    system: System
    workloads: Sequence[Workload]
    setting: Setting
    lanes: Mapping[str, Sequence[Step]]
    seconds: float
    directory: Path
    drain_s_max: float = DRAIN_S_MAX
    until: str = ""  # ends as soon as the judges find a promise of this kind broken
    operations: Sequence[str] = ()  # that were asked for, also if they are not possible: each must have been done
    detected_s: float | None = None  # when that was, since the load began
    arena: Arena = field(init=False)

    def __post_init__(self) -> None:
        spreadable = [queue for workload in self.workloads for queue in workload.spreadable]
        draw = random.Random(self.setting.seed)
        self.arena = Arena(self.system, self.setting.history, draw, spreadable)

    @property
    def history(self) -> History:
        return self.setting.history

    async def play(self) -> Report:
        began_ns = time.monotonic_ns()
        try:
            await self._prepare()
            async with asyncio.TaskGroup() as group:
                upkeep = [group.create_task(item) for item in (
                    watch_leaders(self.system, self.history), watch_readiness(self.system, self.history),
                    watch_machine(self.history), keep_running(self.arena),
                )]  # fmt: skip
                load = [group.create_task(workload.run()) for workload in self.workloads]
                try:
                    live, drained = await self._phases_until(time.monotonic())
                finally:
                    self._switch_off()
                    for task in upkeep:
                        task.cancel()
                await asyncio.wait(load)
            await self._stop_workers()
            final = await self._look(live=live, drained=drained)
        finally:
            self.history.close()
        return self._judge(final, began_ns)

    async def _phases_until(self, began_s: float) -> tuple[bool, bool]:
        """All phases, or as many as it takes to find what is looked for."""
        phases = asyncio.create_task(self._phases())
        while self.until and not phases.done():
            await asyncio.wait([phases], timeout=_JUDGE_EVERY_S)
            if not phases.done() and await in_thread(self._is_found):
                self.detected_s = time.monotonic() - began_s
                phases.cancel()
                await asyncio.wait([phases])
                await self.arena.heal()
                return False, False
        return await phases

    def _is_found(self) -> bool:
        """Judges what there is so far. What only the end can tell is left open."""
        expected = [workload.expected() for workload in self.workloads]
        so_far = Final(
            drained=False, states=None, caps=merged([one.caps for one in expected]),
            key_caps=merged([one.key_caps for one in expected]),
            tenant_caps=merged([one.tenant_caps for one in expected]), rates=merged([one.rates for one in expected]),
            ranked=[queue for one in expected for queue in one.ranked], leaders=self.system.leaderships(),
        )  # fmt: skip
        return any(violation.kind == self.until for violation in judge(self._story(), so_far).violations)

    async def _phases(self) -> tuple[bool, bool]:
        """Whether it was live after all faults, and drained."""
        live = await self._acknowledged(WARM_UP_S_MAX)
        if not live:
            self.arena.broken.append("not every shard acknowledged a write before the first fault")
        if live:
            await self._strike()
        await self.arena.heal()
        live = await self._acknowledged(LIVE_S_MAX) and live
        if live:
            await self._finish()
        for workload in self.workloads:
            workload.producing = False
        return live, live and await self._drain()

    async def _prepare(self) -> None:
        idle, busy = ([queue for workload in self.workloads if workload.has_gaps == has_gaps
                       for queue in workload.worker_queues] for has_gaps in (True, False))  # fmt: skip
        async with AsyncClient(self.system.router_address, timeout_s=LIVE_S_MAX) as client:
            for workload in self.workloads:
                await workload.prepare(client)
        self.system.make_workers(idle, busy)
        for name in self.system.workers:
            self.system.launch_worker(name)

    # --- phases -----------------------------------------------------------------------------------------------

    async def _strike(self) -> None:
        begins_s = time.monotonic()
        await asyncio.gather(*(self._lane(steps, begins_s) for steps in self.lanes.values()))
        await asyncio.sleep(max(0.0, begins_s + self.seconds - time.monotonic()))

    async def _lane(self, steps: Sequence[Step], begins_s: float) -> None:
        """One after the other. A server that does not play along is a finding, not a mistake."""
        for step in steps:
            await asyncio.sleep(max(0.0, begins_s + step.at_s - time.monotonic()))
            if time.monotonic() > begins_s + self.seconds:
                self.arena.skipped.append(f"{step.what} {step.target}: {TIME_OVER}")
                continue
            names = await in_thread(self.arena.aim, step.target)
            if not names:
                self.arena.skipped.append(f"{step.what} {step.target}: nobody to be struck")
                continue
            try:
                await ALL[step.what].strike(self.arena, step, names)
            except HoldfastError as error:  # an operator whom nobody answered during a fault tries again later
                self.arena.skipped.append(f"{step.what} {step.target}: {error}")
            except AssertionError as error:
                self.arena.broken.append(f"{step.what}: {error}")

    async def _acknowledged(self, seconds_max: float) -> bool:
        """Whether each shard that is probed acknowledges in time a write that is sent from now on."""
        place = len(self.history.events)
        missing = {shard for workload in self.workloads for queue in workload.queues
                   if (shard := probed_shard(queue)) is not None}  # fmt: skip
        sent: set[str] = set()
        give_up_s = time.monotonic() + seconds_max
        while missing and time.monotonic() < give_up_s:
            for event in self.history.events[place:]:
                shard = probed_shard(event.queue) if event.f == ENQUEUE else None
                if shard is not None and event.type == OK and event.value in sent:
                    missing.discard(shard)
                elif shard is not None:
                    sent.add(event.value)
            place = len(self.history.events)
            await asyncio.sleep(_POLL_EVERY_S)
        if missing:
            self.arena.broken.append(f"shards {sorted(missing)} acknowledged no write in {seconds_max:g} s")
        return not missing

    async def _finish(self) -> None:
        async with AsyncClient(self.system.router_address, timeout_s=_ASK_S) as client:
            for workload in self.workloads:
                self.arena.broken += await workload.finish(client)

    async def _drain(self) -> bool:
        """Workers go on until nothing is left, and nothing is a moment later either: a producer may have been about to
        send when it was told to stop."""
        give_up_s = time.monotonic() + self.drain_s_max
        left: list[str] = []
        was_empty_s = 0.0  # since when
        await asyncio.sleep(_LAST_SENDS_S)
        async with AsyncClient(self.system.router_address, timeout_s=_ASK_S) as client:
            while time.monotonic() < give_up_s:
                with suppress(HoldfastError):
                    left = [_left(one) for one in await self._stats(client) if _left(one)]
                    was_empty_s = 0.0 if left else was_empty_s or time.monotonic()
                    if was_empty_s and time.monotonic() - was_empty_s > _LAST_SENDS_S / 2:
                        return True
                await asyncio.sleep(3 * _POLL_EVERY_S)
        self.arena.broken.append(f"left in the end: {'; '.join(left)}")
        return False

    def _switch_off(self) -> None:
        for workload in self.workloads:
            workload.producing = workload.working = False

    async def _stop_workers(self) -> None:
        """As operators do. One that does not end is a finding."""
        for process in self.system.workers.values():
            process.ask_to_stop()
        for process in self.system.workers.values():
            try:
                if process.is_up:
                    await in_thread(process.wait_for_end, WORKERS_END_S_MAX)
            except ProcessError as error:
                self.arena.broken.append(str(error))

    # --- the end ----------------------------------------------------------------------------------------------

    async def _look(self, *, live: bool, drained: bool) -> Final:
        """What is there now. Servers that do not answer have not become live again."""
        tasks: list[TaskInfo] | None = None
        total: int | None = None
        hashes: dict[int, dict[str, tuple[int, str]]] = {}
        leaderships, compared, unsound = self.system.leaderships(), 0, list[str]()
        try:
            if live:
                await self.arena.whole()
                tasks, total = await self._ask_for_tasks()
                hashes = await in_thread(self.system.hashes)
                leaderships = self.system.leaderships()  # before they hand over to end
                compared, unsound = await in_thread(self.system.unsound_states)
        except (HoldfastError, ProcessError) as error:
            self.arena.broken.append(f"the brokers did not answer in the end: {error}")
            live = False
        expected = [workload.expected() for workload in self.workloads]
        return Final(
            drained=drained, live=live, enqueued_total=total,
            hashes={str(shard): nodes for shard, nodes in hashes.items()},
            caps=merged([one.caps for one in expected]), key_caps=merged([one.key_caps for one in expected]),
            tenant_caps=merged([one.tenant_caps for one in expected]), rates=merged([one.rates for one in expected]),
            ticks=merged([one.ticks for one in expected]), spread=[queue for one in expected for queue in one.spread],
            ranked=[queue for one in expected for queue in one.ranked],
            operations={name: self.arena.done[name] for name in self.operations},
            states=None if tasks is None else {task.task_id: task.state.value for task in tasks},
            reasons={task.task_id: task.dead_reason for task in tasks or () if task.dead_reason},
            errors={task.task_id: task.last_error.type for task in tasks or () if task.dead_reason and task.last_error},
            results={
                task.task_id: (task.result or b"").decode() for task in tasks or () if task.state == TaskState.SUCCEEDED
            },
            replicas=min(self.system.spec.replication, len(self.system.brokers)) if live else 0,
            leaders=leaderships, unnoticed=tuple(self.arena.unnoticed), broken=tuple(self.arena.broken),
            states_compared=compared, unsound=tuple(unsound),
        )  # fmt: skip

    async def _ask_for_tasks(self) -> tuple[list[TaskInfo], int]:
        """Every task that callers know of, and how many there ever were."""
        tasks = sorted((await in_thread(self._story)).known_tasks())
        found: list[TaskInfo] = []
        async with AsyncClient(self.system.router_address, timeout_s=LIVE_S_MAX) as client:
            for index in range(0, len(tasks), _BATCH):
                answers = await client.wait_tasks(tasks[index : index + _BATCH], timeout_s=10.0)
                found += [task for task in answers if isinstance(task, TaskInfo)]
            total = sum(queue.enqueued_total for queue in await self._stats(client))
        return found, total

    async def _stats(self, client: AsyncClient) -> list[QueueStats]:
        """Of each queue that was ever used."""
        found = []
        for queue in (queue for workload in self.workloads for queue in workload.queues):
            with suppress(NotFound):
                found.append(await client.queue_stats(queue))
        return found

    def _story(self) -> Story:
        self.history.flush()
        return put_together(read_histories(self.directory))

    def _judge(self, final: Final, began_ns: int) -> Report:
        story = self._story()
        write_final(self.directory / "final.json", final)
        verdict = judge(story, final)
        if self.detected_s is None and any(violation.kind == self.until for violation in verdict.violations):
            self.detected_s = (time.monotonic_ns() - began_ns) / 1e9
        report = make_report(story, final, verdict, began_ns, self.arena.skipped, self.detected_s)
        report.done = {what: times for what, times in sorted(self.arena.done.items()) if times}
        return report


def merged(parts: Sequence[Mapping[str, T]]) -> dict[str, T]:
    return {name: value for part in parts for name, value in part.items()}


def _left(stats: QueueStats) -> str:
    """What is unfinished in a queue; empty if nothing."""
    counts = {name: getattr(stats, name) for name in ("ready", "claimed", "delayed", "retrying")}
    answers = ", ".join(f"{count} {name}" for name, count in counts.items() if count)
    return f"{stats.queue}: {answers}" if answers else ""
