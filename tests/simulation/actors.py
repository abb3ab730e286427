"""Simulated producers, workers and operators: they call the shard as the wire API does, and note every answer."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import Protocol

from holdfast.broker.leader.decisions import fail_verdict
from holdfast.broker.leader.reserver import ReserveWanted
from holdfast.broker.policy.retry_delays import RetryDelays
from holdfast.machine import keys
from holdfast.machine.entries import (
    Ack,
    AckItem,
    Cancel,
    ClaimRef,
    Enqueue,
    Entry,
    Extend,
    ExtendItem,
    Fail,
    FailItem,
    Release,
    RetryDead,
)
from holdfast.machine.new_tasks import NewTask
from holdfast.machine.operator_entries import DiscardDead
from holdfast.machine.outcomes import Accepted, Acked, Claimed, Extended, Failed, Moved, Outcome
from holdfast.machine.rejections import Rejection
from holdfast.machine.rows import NOT_DEAD
from holdfast.serving.refusals import OutcomeUnknownError, RefusedError
from tests.simulation.ledger import Ledger, Order
from tests.simulation.world import Node, NodeDiedError, Plan

QUEUES = [b"alpha", b"beta", b"gamma"]
DEDUP_WINDOW_MS = 20 * 60 * 1000
ATTEMPTS_TO_ASK = 4  # how often a caller repeats what got no answer


class Place(Protocol):
    """Where actors live."""

    @property
    def ledger(self) -> Ledger: ...

    @property
    def plan(self) -> Plan: ...

    async def serving(self) -> Node:
        """The node, once there is one that serves and work is wanted."""
        ...

    def new_label(self) -> bytes: ...


class Actor:
    def __init__(self, place: Place, rng: random.Random, name: bytes) -> None:
        self._place = place
        self._ledger = place.ledger
        self._rng = rng
        self._name = name
        self._requests = 0

    async def run(self) -> None:
        while True:
            await asyncio.sleep(self._rng.expovariate(1 / self._place.plan.pause_seconds))
            await self.act()

    async def act(self) -> None:
        raise NotImplementedError

    def new_request_id(self) -> bytes:
        self._requests += 1
        return b"%b-%d" % (self._name, self._requests)

    def new_order(self) -> Order:
        rng = self._rng
        label = self._place.new_label()
        new = NewTask(
            queue=rng.choice(QUEUES),
            priority=rng.choice((0, 5, 5, 9)),
            tenant=rng.choice((b"", b"", b"blue", b"red")),
            request_id=b"request of " + label if rng.random() < 0.6 else b"",
            dedup_window_ms=DEDUP_WINDOW_MS,
            run_at_ms=0,
            max_attempts=rng.choice((1, 2, 10)),
            max_claims=rng.choice((1, 2, 4, 20)),
            result_ttl_ms=rng.choice((0, 15 * 60 * 1000)),
            envelope=label + b" " * rng.choice((1, 50, 900)),
            limit_key=rng.choice((b"", b"", b"disk")),
        )
        return self._ledger.order(new)

    async def submit(self, decide: Callable[[Node, int], Entry]) -> tuple[list[Outcome], Node] | None:
        """The outcomes, or None if there is no answer. Raises RefusedError."""
        node = await self._place.serving()
        try:
            return await node.call(node.shard.submit(decide(node, node.shard.now_ms()))), node
        except (NodeDiedError, OutcomeUnknownError):
            return None


class Producer(Actor):
    async def act(self) -> None:
        orders = [self.new_order() for _ in range(self._rng.randint(1, 3))]
        for _ in range(ATTEMPTS_TO_ASK):
            answered = await self._send(orders)
            # Once more although the answer is known, or because it is not.
            orders = [order for order in orders if order.new.request_id]
            if not orders or self._rng.random() < (0.8 if answered else 0.1):
                return
            await asyncio.sleep(self._rng.expovariate(1 / 0.1))

    async def _send(self, orders: list[Order]) -> bool:
        def decide(node: Node, now_ms: int) -> Entry:
            for order in orders:
                if not order.unknown and not order.accepted and self._rng.random() < 0.3:
                    order.new = order.new._replace(run_at_ms=now_ms + self._rng.choice((1, 2, 5, 30, 500, 3000)))
            self._ledger.sent(orders)
            return Enqueue(now_ms, [order.new for order in orders])

        try:
            answer = await self.submit(decide)
        except RefusedError:
            self._ledger.refused(orders)
            return False
        if answer is None:
            return False
        for order, outcome in zip(orders, answer[0], strict=True):
            assert isinstance(outcome, Accepted)
            self._ledger.accepted(order, outcome)
        return True


class Worker(Actor):
    """Claims, and does with its claims whatever comes to its mind."""

    async def act(self) -> None:
        for claim in await self.reserve():
            await asyncio.sleep(self._rng.choice((0, 0, 0.01, 0.3)) * self._rng.random())
            if claim.task_id in self._ledger.known:
                await self._work(claim)

    async def reserve(self) -> list[Claimed]:
        rng = self._rng
        wanted = ReserveWanted(
            queues=rng.sample(QUEUES, rng.randint(1, len(QUEUES))),
            tasks_max=rng.randint(1, 4),
            lease_ms=rng.choice((30, 400, 3000)),
            wait_ms=rng.choice((0, 50, 1000, 6000)),
            worker=self._name,
            request_id=self.new_request_id() if rng.random() < 0.6 else b"",
        )
        for _ in range(ATTEMPTS_TO_ASK):
            patience_seconds = rng.choice((0.0, 0.002, 0.02, 0.5)) if rng.random() < 0.3 else None
            try:
                async with asyncio.timeout(patience_seconds):
                    node = await self._place.serving()
                    return await node.call(self.reserve_once(node, wanted))
            except RefusedError:
                return []
            except (TimeoutError, NodeDiedError, OutcomeUnknownError):
                if not wanted.request_id or rng.random() < 0.2:
                    return []
        return []

    async def reserve_once(self, node: Node, wanted: ReserveWanted) -> list[Claimed]:
        claims = await node.shard.reserve(wanted)
        assert isinstance(claims, list)
        assert len(claims) <= wanted.tasks_max
        envelopes = node.shard.reader.envelopes([claim.task_id for claim in claims])
        for claim, envelope in zip(claims, envelopes, strict=True):
            self._ledger.claimed(claim, envelope, node.shard.now_ms())
        return claims

    async def _work(self, claim: Claimed) -> None:
        choice = self._rng.random()
        if choice < 0.6:
            await self.ack(claim, [self.new_order() for _ in range(self._rng.choice((0, 0, 0, 1, 2)))])
        elif choice < 0.75:
            await self._fail(claim)
        elif choice < 0.85:
            await self._release(claim)
        elif choice < 0.93:
            await self._extend(claim)
        # Else the worker forgets about it and the lease must end.

    async def ack(self, claim: Claimed, follow_ups: list[Order]) -> None:
        result = b"done" if self._rng.random() < 0.3 else None
        item = AckItem(claim.task_id, claim.token, result, tuple(order.new for order in follow_ups))

        def decide(node: Node, now_ms: int) -> Entry:
            self._ledger.sends_ack(item, follow_ups)
            return Ack(now_ms, node.config.finished_retention_ms, [item])

        for _ in range(ATTEMPTS_TO_ASK):
            try:
                answer = await self.submit(decide)
            except RefusedError:
                self._ledger.refused(follow_ups)
                await asyncio.sleep(self._rng.random())
                continue
            if answer is not None:
                (outcome,), node = answer
                if isinstance(outcome, Rejection):
                    self._ledger.ack_rejected(item, outcome, follow_ups, node.shard.now_ms())
                else:
                    assert isinstance(outcome, Acked)
                    self._ledger.acked(item, outcome, follow_ups, node.shard.now_ms())
                if self._rng.random() < 0.9:
                    return
            elif self._rng.random() < 0.2:
                return

    async def _fail(self, claim: Claimed) -> None:
        delays = RetryDelays(self._rng.choice((1, 20)), 2.0, 800, 0.2)
        gives_up = self._rng.random() < 0.1
        sent: list[FailItem] = []

        def decide(node: Node, now_ms: int) -> Entry:
            (task,) = node.shard.executions([claim.task_id])
            verdict = fail_verdict(task, gave_up=gives_up) if task is not None else NOT_DEAD
            retry_at_ms = now_ms + delays.delay_ms(claim.failures + 1, self._rng.random)
            item = FailItem(claim.task_id, claim.token, 0 if verdict else retry_at_ms, verdict, b"error")
            if not sent:
                self._ledger.sends_fail(item)
            sent.append(item)
            return Fail(now_ms, node.config.finished_retention_ms, node.config.dead_retention_ms, [item])

        answers = 0
        for _ in range(ATTEMPTS_TO_ASK):
            try:
                answer = await self.submit(decide)
            except RefusedError:
                continue
            if answer is None:
                continue
            outcome = answer[0][0]
            if isinstance(outcome, Failed):
                self._ledger.failed(claim, sent[-1], outcome, is_first=not answers, gave_up=gives_up)
                answers += 1
            if self._rng.random() < 0.9:
                return

    async def _release(self, claim: Claimed) -> None:
        def decide(node: Node, now_ms: int) -> Entry:
            self._ledger.gives_back(claim.task_id, claim.token)
            self._ledger.sends_cancel(claim.task_id)  # a cancellation may have been asked for
            return Release(now_ms, node.config.finished_retention_ms, [ClaimRef(claim.task_id, claim.token)])

        try:
            await self.submit(decide)
        except RefusedError:
            pass

    async def _extend(self, claim: Claimed) -> None:
        def decide(_node: Node, now_ms: int) -> Entry:
            item = ExtendItem(claim.task_id, claim.token, now_ms + self._rng.choice((10, 2000)))
            self._ledger.sends_extension(*item)
            return Extend(now_ms, [item])

        try:
            answer = await self.submit(decide)
        except RefusedError:
            return
        if answer is not None:
            outcome = answer[0][0]
            if isinstance(outcome, Extended):
                self._ledger.extended(claim.task_id, claim.token, outcome.expiry_ms)
        if self._rng.random() < 0.7:
            await self.ack(claim, [])


class Operator(Actor):
    """Cancels tasks, and looks after the dead letters."""

    async def act(self) -> None:
        await asyncio.sleep(self._rng.random() * 0.3)
        known = self._ledger.task_ids()
        if known and self._rng.random() < 0.6:
            await self._cancel(self._rng.sample(known, min(len(known), self._rng.randint(1, 3))))
        else:
            node = await self._place.serving()
            await self.revive(self.dead(node)[:3]) if self._rng.random() < 0.7 else await self.discard(
                self.dead(node)[:1]
            )

    def dead(self, node: Node) -> list[bytes]:
        return [place[8:] for queue in QUEUES for place in node.shard.reader.dead(queue, b"", 1000)[0]]

    async def _cancel(self, task_ids: list[bytes]) -> None:
        def decide(node: Node, now_ms: int) -> Entry:
            for task_id in task_ids:
                self._ledger.sends_cancel(task_id)
            return Cancel(now_ms, node.config.finished_retention_ms, task_ids)

        for task_id, outcome in zip(task_ids, await self._ask(decide), strict=False):
            if isinstance(outcome, Moved):
                self._ledger.cancelled(task_id, outcome.state)

    async def revive(self, task_ids: list[bytes]) -> None:
        def decide(_node: Node, now_ms: int) -> Entry:
            for task_id in task_ids:
                self._ledger.sends_revival(task_id)
            return RetryDead(now_ms, task_ids)

        await self._ask(decide)

    async def discard(self, task_ids: list[bytes]) -> None:
        def decide(_node: Node, now_ms: int) -> Entry:
            for task_id in task_ids:
                self._ledger.sends_discard(task_id)
            return DiscardDead(now_ms, task_ids)

        for task_id, outcome in zip(task_ids, await self._ask(decide), strict=False):
            if isinstance(outcome, Moved):
                self._ledger.discarded(task_id)
            else:
                self._ledger.discard_refused()

    async def _ask(self, decide: Callable[[Node, int], Entry]) -> list[Outcome]:
        """The outcomes; none if there is no answer."""
        try:
            answer = await self.submit(decide)
        except RefusedError:
            return []
        return answer[0] if answer is not None else []


class Finisher(Worker):
    """Acks everything it gets, and waits for longer than the work may take: nothing but a wake-up brings it a task."""

    def __init__(self, place: Place, rng: random.Random, name: bytes, queues: list[bytes], wait_ms: int) -> None:
        super().__init__(place, rng, name)
        self._queues = queues
        self._wait_ms = wait_ms

    async def run(self) -> None:
        while True:
            node = await self._place.serving()
            wanted = ReserveWanted(self._queues, 3, 5000, self._wait_ms, self._name, self.new_request_id())
            for claim in await self.reserve_once(node, wanted):
                await self.ack(claim, [])


def live_tasks(node: Node) -> int:
    """Tasks that are not finished."""
    rows = [node.shard.queue(queue) for queue in QUEUES]
    return sum(row.ready + row.claimed + row.delayed + row.retrying for row in rows if row is not None)


def unforgotten_rows(node: Node) -> list[tuple[bytes, bytes]]:
    """Everything in the state but what is kept for ever."""
    rows = node.kv.scan(b"\x00", b"\xff", 1 << 30)
    return [(key, row) for key, row in rows if key[0] not in (keys.META, keys.QUEUE)]
