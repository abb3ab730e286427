"""One run: warm up, faults, heal, liveness, drain, compare, judge."""

import asyncio
import json
import random
import time
from collections import Counter
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median

from chaos.checkers import check
from chaos.faults import Fault, Nemesis
from chaos.history import CANCEL, ENQUEUE, OK, Event, History, Story, next_writes_s, put_together
from chaos.load import CAPS, QUEUES, Load, Size
from chaos.options import KEY_CAPS, POLICIES, SCHEDULES, TENANT_CAPS, TICK_EVERY_MS, TICKS, schedules
from chaos.verdicts import Final, Ticks, Violation
from holdfast.client import AsyncClient, HoldfastError, NotFound, QueuePolicy, QueueStats, TaskInfo, TaskState
from tests.integration.cluster import Cluster

LIVE_S_MAX = 30.0  # from the last healing to an acknowledged write
DRAIN_S_MAX = 60.0
WARM_UP_WRITES = 30
LOOK_EVERY_S = 0.02


@dataclass(frozen=True)
class Plan:
    """What a run is to do."""

    faults: list[Fault]
    seed: int
    seconds: float = 30.0  # of faults
    strikes_max: int | None = None  # so many faults at most
    in_turn: bool = False  # one fault after the other, or else drawn each time
    between_s: float = 1.5  # at most, between one fault and the next
    size: Size = field(default_factory=Size)


@dataclass
class Report:
    """What a run found."""

    story: Story
    final: Final
    violations: list[Violation]
    failovers_s: list[tuple[str, float]]  # for each fault, until a write sent after it was acknowledged
    counts: dict[str, int]

    def summary(self) -> dict[str, object]:
        times = [waited_s for _, waited_s in self.failovers_s]
        return {
            "ok": not self.violations,
            "violations": [str(violation) for violation in self.violations],
            "counts": self.counts,
            "failover_s": {
                "trials": len(times),
                "median": round(median(times), 3) if times else None,
                "max": round(max(times), 3) if times else None,
                "each": [{"fault": what, "s": round(waited_s, 3)} for what, waited_s in self.failovers_s],
            },
            "hashes": {node: list(told) for node, told in self.final.hashes.items()},
        }


class Run:
    """A cluster that serves, a history, and a load on it."""

    def __init__(self, cluster: Cluster, plan: Plan, directory: Path) -> None:
        self.cluster = cluster
        self.plan = plan
        self.directory = directory
        self.history = History(directory / "history.jsonl")
        self.load = Load(self.history, cluster.addresses, plan.seed, plan.size)
        self.nemesis = Nemesis(cluster, self.history, random.Random(plan.seed))
        self.first_ticks_ms: dict[str, int] = {}  # by schedule
        self.ticks: dict[str, Ticks] = {}

    async def play(self) -> Report:
        try:
            await self._prepare()
            async with asyncio.TaskGroup() as group:
                group.create_task(self.load.run())
                try:
                    live = await self._acknowledged(WARM_UP_WRITES) and await self._strike()
                    await self.nemesis.heal()
                    live = live and await self._acknowledged()
                    await self._end_schedules()
                    self.load.producing = False
                    drained = live and await self._drain()
                finally:
                    self.load.producing = self.load.working = False
            final = await self._look(live=live, drained=drained)
        finally:
            self.history.close()
        return self._judge(final)

    async def _prepare(self) -> None:
        """Limits and schedules."""
        policies = {queue: QueuePolicy(concurrency_max=most) for queue, most in CAPS.items()} | POLICIES
        async with AsyncClient(self.cluster.address, timeout_s=LIVE_S_MAX) as client:
            for queue, policy in policies.items():
                await client.set_queue(queue, policy=policy)
            for schedule in schedules():
                info = await client.put_schedule(schedule)
                self.first_ticks_ms[schedule.name] = info.last_at_ms or info.next_at_ms or 0

    # --- phases -----------------------------------------------------------------------------------------------

    async def _strike(self) -> bool:
        """Faults, one after the other; each must be followed by an acknowledged write."""
        ends_s = time.monotonic() + self.plan.seconds
        struck = 0
        while self.plan.faults and time.monotonic() < ends_s and struck != self.plan.strikes_max:
            await asyncio.sleep(self.nemesis.draw.uniform(0.2, self.plan.between_s))
            faults, drawn = self.plan.faults, self.nemesis.draw.randrange(len(self.plan.faults))
            await self.nemesis.strike(faults[struck % len(faults) if self.plan.in_turn else drawn])
            struck += 1
            if not await self._acknowledged():
                return False
        if not self.plan.faults:
            await asyncio.sleep(self.plan.seconds)
        return True

    async def _acknowledged(self, count: int = 1) -> bool:
        """Whether so many enqueues that are sent from now on are acknowledged in time."""
        begins_ns, place, found = time.monotonic_ns(), len(self.history.events), 0
        sent: set[tuple[int, str]] = set()
        while time.monotonic_ns() < begins_ns + LIVE_S_MAX * 1e9:
            while place < len(self.history.events):
                event = self.history.events[place]
                place += 1
                found += _is_answer(event, sent)
                if found >= count:
                    return True
            await asyncio.sleep(LOOK_EVERY_S)
        return False

    async def _end_schedules(self) -> None:
        """Lets each schedule come up to this moment, and pauses it."""
        give_up_s = time.monotonic() + LIVE_S_MAX
        try:
            async with AsyncClient(self.cluster.address, timeout_s=5) as client:
                wanted_ms = {name: (await client.get_schedule(TICKS, name)).next_at_ms for name in SCHEDULES}
                for name, at_ms in wanted_ms.items():
                    while ((await client.get_schedule(TICKS, name)).last_at_ms or 0) < (at_ms or 0):
                        if time.monotonic() > give_up_s:
                            self.nemesis.broken.append(f"schedule {name} did not come to its next tick in time")
                            break
                        await asyncio.sleep(LOOK_EVERY_S)
                    info = await client.pause_schedule(TICKS, name)
                    self.ticks[name] = Ticks(
                        first_ms=self.first_ticks_ms[name], every_ms=TICK_EVERY_MS, last_ms=info.last_at_ms or 0,
                        fired_total=info.fired_total,
                    )  # fmt: skip
        except HoldfastError as error:
            self.nemesis.broken.append(f"the schedules could not be looked at: {error}")

    async def _drain(self) -> bool:
        """Workers go on until nothing is left."""
        give_up_s = time.monotonic() + DRAIN_S_MAX
        async with AsyncClient(self.cluster.address, timeout_s=5) as client:
            while time.monotonic() < give_up_s:
                try:
                    queues = await _stats(client)
                except HoldfastError:
                    continue  # each attempt takes its time
                if not any(each.ready or each.claimed or each.delayed or each.retrying for each in queues):
                    return True
                await asyncio.sleep(0.1)
        return False

    async def _look(self, *, live: bool, drained: bool) -> Final:
        """What is there now. Servers that do not answer have not become live again."""
        tasks: list[TaskInfo] | None = None
        total: int | None = None
        hashes: dict[str, tuple[int, str]] = {}
        try:
            tasks, total = await self._ask_for_tasks() if live else (None, None)
            hashes = await asyncio.to_thread(self.cluster.hashes) if live else {}
        except HoldfastError as error:
            self.nemesis.broken.append(f"the brokers did not answer in the end: {error}")
            live = False
        return Final(
            drained=drained, live=live, enqueued_total=total, hashes=hashes, caps=CAPS, key_caps=KEY_CAPS,
            tenant_caps=TENANT_CAPS, ticks=self.ticks,
            states=None if tasks is None else {task.task_id: task.state.value for task in tasks},
            reasons={task.task_id: task.dead_reason for task in tasks or () if task.dead_reason},
            errors={task.task_id: task.last_error.type for task in tasks or () if task.dead_reason and task.last_error},
            results={
                task.task_id: (task.result or b"").decode() for task in tasks or () if task.state == TaskState.SUCCEEDED
            },
            replicas=len(self.cluster.names) if live and len(self.cluster.names) > 1 else 0,
            leaders=self.cluster.leaderships(), unnoticed=tuple(self.nemesis.unnoticed),
            broken=tuple(self.nemesis.broken),
        )  # fmt: skip

    async def _ask_for_tasks(self) -> tuple[list[TaskInfo], int]:
        """Every task that callers know of, and how many there ever were."""
        tasks = sorted(put_together(self.history.events).known_tasks())
        async with AsyncClient(self.cluster.address, timeout_s=LIVE_S_MAX) as client:
            found = await client.wait_tasks(tasks, timeout_s=10.0)
            total = sum(queue.enqueued_total for queue in await _stats(client))
        return [task for task in found if isinstance(task, TaskInfo)], total

    # --- the verdict ------------------------------------------------------------------------------------------

    def _judge(self, final: Final) -> Report:
        story = put_together(self.history.events)
        write_final(self.directory / "final.json", final)
        waits_s = [(fault.value, waited_s) for fault, waited_s in next_writes_s(story) if waited_s is not None]
        counts = counts_of(story, final) | {"snapshots_installed": self.cluster.count_in_logs("snapshot_installed")}
        return Report(story, final, check(story, final), waits_s, counts)


async def _stats(client: AsyncClient) -> list[QueueStats]:
    """Of each queue that was ever used."""
    found = []
    for queue in QUEUES:
        with suppress(NotFound):
            found.append(await client.queue_stats(queue))
    return found


def counts_of(story: Story, final: Final) -> dict[str, int]:
    """How much happened: a run in which little did proves little."""
    found = Counter(f"{call.f}_{call.outcome}" for call in story.calls)
    found.update(f"dead_{reason.lower()}" for reason in final.reasons.values())
    found["cancelled"] = sum(call.f == CANCEL and call.state == TaskState.CANCELLED for call in story.calls)
    found["unique_taken"] = sum(call.f == ENQUEUE and bool(call.unique) and call.duplicate for call in story.calls)
    found["ticks"] = sum(ticks.fired_total for ticks in final.ticks.values())
    found["claims"] = len(story.claims)
    found["claims_sent_again"] = sum(claim.asked_ns < claim.sent_ns for claim in story.claims)
    found["tasks"] = len(story.known_tasks())
    found["faults"] = sum(event.f == "fault" for event in story.faults)
    return dict(sorted(found.items()))


def write_final(path: Path, final: Final) -> None:
    path.write_text(json.dumps(asdict(final)), encoding="utf-8")


def read_final(path: Path) -> Final:
    """As it was written."""
    told = json.loads(path.read_text(encoding="utf-8"))
    told["hashes"] = {node: (index, digest) for node, (index, digest) in told["hashes"].items()}
    told["ticks"] = {schedule: Ticks(**ticks) for schedule, ticks in told.get("ticks", {}).items()}
    told["leaders"] = tuple(tuple(each) for each in told["leaders"])
    return Final(**told | {name: tuple(told[name]) for name in ("unnoticed", "broken")})


def _is_answer(event: Event, sent: set[tuple[int, str]]) -> bool:
    """Whether this line acknowledges an enqueue whose invoke is among those seen since we look."""
    if event.f != ENQUEUE:
        return False
    if event.type == OK:
        return (event.proc, event.value) in sent
    sent.add((event.proc, event.value))
    return False
