"""SIGKILL in a loop under load: nothing that was acknowledged is lost, and nothing comes back after its ack.

A kill keeps the page cache, so this proves nothing about syncing: test_power_cut.py and the simulation do that.
"""

import asyncio
import random
from dataclasses import dataclass, field

from holdfast.client import (
    Accepted,
    Acked,
    AsyncClient,
    ClaimedTask,
    Failed,
    HoldfastError,
    NewTask,
    Rejected,
    Released,
    TaskState,
)
from tests.integration.conftest import MakeServer
from tests.integration.history import Claimed, Enqueued, History, Settled, now_s, violations
from tests.integration.server import ServerProcess

QUEUE = "work"
KILLS = 4
ENQUEUED_EACH = 40  # before each kill, at least
PRODUCERS = 3
WORKERS = 3
DRAIN_S = 30.0
KINDS = ("ack", "fail", "release", "late", "never")  # how a worker ends its claim
WEIGHTS = (80, 5, 5, 5, 5)


@dataclass
class Load:
    """Producers and workers that go on through every kill and write down what they see."""

    server: ServerProcess
    seed: int
    history: History = field(default_factory=History)
    producing: bool = True
    working: bool = True
    up: asyncio.Event = field(default_factory=asyncio.Event)

    def client(self) -> AsyncClient:
        # It repeats nothing by itself: each answer that did not arrive must be in the history.
        return AsyncClient(self.server.address, retry=False, timeout_s=5)

    # --- producers --------------------------------------------------------------------------------------------

    async def produce(self, name: str) -> None:
        draw = random.Random(f"{self.seed}-{name}")
        again: list[NewTask] = []  # to be sent once more: what was not answered, and some that was
        batch: list[NewTask] = []
        sent = 0
        while self.producing:
            await self.up.wait()
            async with self.client() as client:
                try:
                    while self.producing:
                        batch = again[:5] + [self._task(draw, f"{name}-{sent + n}") for n in range(draw.randint(1, 6))]
                        sent += len(batch)
                        again = again[5:] + [task for task in batch if draw.random() < 0.1]
                        await self._enqueue(client, batch)
                except HoldfastError:
                    again += batch
                    await asyncio.sleep(0.01)

    def _task(self, draw: random.Random, request_id: str) -> NewTask:
        return NewTask(
            QUEUE, "t", draw.randbytes(draw.choice((16, 16, 200, 3000))), request_id=request_id,
            priority=draw.randint(0, 9), delay_ms=draw.choice((None, None, None, 20)),
            max_attempts=1000, max_claims=10_000,
        )  # fmt: skip

    async def _enqueue(self, client: AsyncClient, batch: list[NewTask]) -> None:
        try:
            outcomes = await client.enqueue_many(batch)
        except HoldfastError:
            self.history.enqueued += [Enqueued(task.request_id or "", task.payload, None) for task in batch]
            raise
        for task, outcome in zip(batch, outcomes, strict=True):
            assert isinstance(outcome, Accepted), outcome
            self.history.enqueued.append(Enqueued(task.request_id or "", task.payload, outcome.task_id))

    # --- workers ----------------------------------------------------------------------------------------------

    async def work(self, name: str) -> None:
        draw = random.Random(f"{self.seed}-{name}")
        late: list[tuple[float, ClaimedTask]] = []  # claims whose lease ends before they are acked
        while self.working:
            await self.up.wait()
            async with self.client() as client:
                try:
                    while self.working:
                        claims = await self._claim(client, draw, name)
                        kinds = draw.choices(KINDS, weights=WEIGHTS, k=len(claims))
                        if not self.producing:
                            kinds = ["ack"] * len(claims)
                        late += [(now_s(), claim) for kind, claim in zip(kinds, claims, strict=True) if kind == "late"]
                        overdue = [(ago_s, claim) for ago_s, claim in late if now_s() - ago_s > 1.3]
                        late = [item for item in late if item not in overdue]
                        await asyncio.gather(
                            *(self._settle(client, kind, claim) for kind, claim in zip(kinds, claims, strict=True)),
                            *(self._settle(client, "ack", claim) for _, claim in overdue),
                        )
                except HoldfastError:
                    await asyncio.sleep(0.01)

    async def _claim(self, client: AsyncClient, draw: random.Random, name: str) -> list[ClaimedTask]:
        asked_s = now_s()
        claims = await client.reserve([QUEUE], max_tasks=draw.randint(1, 30), lease_ms=1000, wait_ms=200, worker=name)
        answered_s = now_s()
        self.history.claimed += [
            Claimed(asked_s, answered_s, claim.task_id, claim.token, claim.request_id, claim.payload)
            for claim in claims
        ]  # fmt: skip
        return claims

    async def _settle(self, client: AsyncClient, kind: str, claim: ClaimedTask) -> None:
        if kind in ("late", "never"):
            return
        asked_s = now_s()
        accepted: bool | None = None
        try:
            if kind == "ack":
                accepted = isinstance(await client.ack(claim), Acked)
            elif kind == "fail":
                accepted = isinstance(await client.fail(claim, retry_delay_ms=10), Failed)
            elif kind == "release":
                accepted = isinstance(await client.release(claim), Released)
        except Rejected as refused:
            assert refused.reason in ("STALE_TOKEN", "TASK_NOT_FOUND", "OUTCOME_UNKNOWN"), refused
            accepted = None if refused.reason == "OUTCOME_UNKNOWN" else False
        finally:
            self.history.settled.append(Settled(kind, asked_s, now_s(), claim.task_id, claim.token, accepted))


async def kill_again_and_again(load: Load) -> None:
    draw = random.Random(load.seed)
    for _ in range(KILLS):
        # The moment of the kill is what this test draws: a fixed one would always hit the same place. But on a machine
        # that is slow, producers have to get through first: a kill that hits nobody proves nothing.
        goal = len(load.history.enqueued) + ENQUEUED_EACH
        async with asyncio.timeout(DRAIN_S):
            while len(load.history.enqueued) < goal:
                await asyncio.sleep(0.01)
        await asyncio.sleep(draw.uniform(0.0, 0.6))
        load.up.clear()
        load.history.kills_s.append(now_s())
        load.server.kill()
        await asyncio.to_thread(load.server.start)
        load.up.set()


async def drain(load: Load) -> None:
    """Workers go on until nothing is left. A drain that does not end is a failure."""
    async with load.client() as client, asyncio.timeout(DRAIN_S):
        while True:
            stats = await client.queue_stats(QUEUE)
            if not (stats.ready or stats.claimed or stats.delayed or stats.retrying):
                break
            await asyncio.sleep(0.05)
    load.working = False


async def test_nothing_is_lost_and_nothing_comes_back(make_server: MakeServer) -> None:
    seed = random.randrange(1_000_000)
    print(f"seed {seed}")  # shown if the test fails: it repeats what is sent, though not where the kills hit
    # Small files and early flushes, so that kills also hit the cutting of the log.
    server = make_server(segment_bytes=4 * 1024 * 1024, state_flush_log_bytes=256 * 1024, state_flush_age_seconds=0.3)
    await asyncio.to_thread(server.start)
    load = Load(server, seed)
    load.up.set()
    async with asyncio.TaskGroup() as group:
        for number in range(PRODUCERS):
            group.create_task(load.produce(f"producer-{number}"))
        for number in range(WORKERS):
            group.create_task(load.work(f"worker-{number}"))
        await kill_again_and_again(load)
        load.producing = False
        await drain(load)

    history = load.history
    assert violations(history) == []
    assert len(history.accepted_ids()) > 100, "the load was too small to mean anything"
    assert any(sent.task_id is None for sent in history.enqueued), "no kill hit an enqueue"
    await compare_with_server(load)


async def compare_with_server(load: Load) -> None:
    """The server's own account agrees with the callers'."""
    known = load.history.known_ids()
    async with load.client() as client:
        stats = await client.queue_stats(QUEUE)
        assert stats.enqueued_total == stats.succeeded_total == len(known)
        assert stats.dead == 0
        for task_id in random.sample(sorted(known), 50):
            assert (await client.get_task(task_id)).state is TaskState.SUCCEEDED
