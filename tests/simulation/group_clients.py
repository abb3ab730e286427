"""Callers of a simulated group: they find out who serves, repeat what they do not know the end of, and note every
answer (ledger.py)."""

from __future__ import annotations

import asyncio
import random
from typing import Protocol

from holdfast.broker.leader.reserver import ReserveWanted
from holdfast.machine.entries import Ack, AckItem, Enqueue
from holdfast.machine.new_tasks import NewTask
from holdfast.machine.outcomes import Accepted, Acked, Claimed
from holdfast.machine.rejections import Rejection
from holdfast.serving.refusals import OutcomeUnknownError, RefusedError
from tests.simulation.group_plan import Plan
from tests.simulation.group_world import Node
from tests.simulation.ledger import Ledger, Order
from tests.simulation.world import BrokenPromiseError, NodeDiedError

QUEUES = [b"alpha", b"beta"]
DEDUP_WINDOW_MS = 3600 * 1000
BACK_OFF_SECONDS = 0.1


class Place(Protocol):
    """Where callers live."""

    @property
    def plan(self) -> Plan: ...

    async def serving(self, shard: int) -> Node:
        """A node that believes that it leads; there may be two of them."""
        ...


class CallerLedger:
    """What the callers of one shard were told."""

    def __init__(self, shard: int) -> None:
        self.shard = shard
        self.ledger = Ledger(claims_per_worker_max=1000)
        self.tokens: dict[int, bytes] = {}  # to which task each was given
        self._labels = 0

    def new_order(self, rng: random.Random) -> Order:
        self._labels += 1
        label = b"order-%d-%d" % (self.shard, self._labels)
        new = NewTask(
            queue=rng.choice(QUEUES),
            priority=rng.choice((0, 5)),
            tenant=b"",
            request_id=b"request of " + label if rng.random() < 0.7 else b"",
            dedup_window_ms=DEDUP_WINDOW_MS,
            run_at_ms=0,
            max_attempts=10,
            max_claims=1000,
            result_ttl_ms=0,
            envelope=label + b" " * rng.choice((1, 50, 300, 900)),
        )
        return self.ledger.order(new)

    def claimed(self, claim: Claimed, envelope: bytes | None, now_ms: int) -> None:
        if self.tokens.setdefault(claim.token, claim.task_id) != claim.task_id:
            raise BrokenPromiseError(f"token {claim.token} was handed out for two tasks")
        self.ledger.claimed(claim, envelope, now_ms)


class Caller:
    def __init__(self, place: Place, ledgers: CallerLedger, rng: random.Random, name: bytes) -> None:
        self._place = place
        self._ledgers = ledgers
        self._ledger = ledgers.ledger
        self._shard = ledgers.shard
        self._rng = rng
        self._name = name
        self._requests = 0

    async def run(self) -> None:
        while True:
            await asyncio.sleep(self._rng.expovariate(1 / self._place.plan.pause_seconds))
            await self.act()

    async def act(self) -> None:
        raise NotImplementedError

    def _applied_ms(self, node: Node) -> int:
        """Shard time as of what is applied: known also to a node that has ceased to lead meanwhile."""
        return node.replicas[self._shard].shard.machine.meta.now_ms


class Producer(Caller):
    async def act(self) -> None:
        """A burst, so that whoever is cut off has something that nobody else has."""
        await asyncio.gather(*(self.order() for _ in range(self._rng.choice((1, 1, 2, 12)))))

    async def order(self) -> None:
        """With a request id it is sent until it is certain, and sometimes once more; without one it is sent once."""
        order = self._ledgers.new_order(self._rng)
        while not await self._send(order) or self._rng.random() < 0.1:
            if not order.new.request_id:
                return
            await asyncio.sleep(self._rng.expovariate(1 / BACK_OFF_SECONDS))

    async def _send(self, order: Order) -> bool:
        node = await self._place.serving(self._shard)
        shard = node.replicas[self._shard].shard
        now_ms = shard.now_ms()
        if not order.unknown and not order.accepted and self._rng.random() < 0.2:
            order.new = order.new._replace(run_at_ms=now_ms + self._rng.choice((5, 300, 2000)))
        self._ledger.sent([order])
        try:
            (outcome,) = await node.call(shard.submit(Enqueue(now_ms, [order.new])))
        except RefusedError:
            self._ledger.refused([order])
            return False
        except (OutcomeUnknownError, NodeDiedError):
            return False
        assert isinstance(outcome, Accepted)
        self._ledger.accepted(order, outcome)
        return True


class Worker(Caller):
    async def act(self) -> None:
        self._requests += 1
        wanted = ReserveWanted(
            queues=QUEUES,
            tasks_max=self._rng.randint(1, 4),
            lease_ms=self._rng.choice((100, 1000)),
            wait_ms=self._rng.choice((0, 300)),
            worker=self._name,
            request_id=b"%b-%d" % (self._name, self._requests) if self._rng.random() < 0.6 else b"",
        )
        for claim in await self.reserve(wanted):
            if self._rng.random() < 0.8:  # or it forgets about it, and the lease must end
                await self.ack(claim)

    async def reserve(self, wanted: ReserveWanted) -> list[Claimed]:
        while True:
            node = await self._place.serving(self._shard)
            try:
                return await node.call(self._reserve_once(node, wanted))
            except (RefusedError, OutcomeUnknownError, NodeDiedError):
                if not wanted.request_id or self._rng.random() < 0.2:
                    return []
            await asyncio.sleep(self._rng.expovariate(1 / BACK_OFF_SECONDS))

    async def _reserve_once(self, node: Node, wanted: ReserveWanted) -> list[Claimed]:
        shard = node.replicas[self._shard].shard
        claims = await shard.reserve(wanted)
        assert isinstance(claims, list)
        envelopes = shard.reader.envelopes([claim.task_id for claim in claims])
        for claim, envelope in zip(claims, envelopes, strict=True):
            self._ledgers.claimed(claim, envelope, self._applied_ms(node))
        return [claim for claim in claims if claim.task_id in self._ledger.known]

    async def ack(self, claim: Claimed) -> None:
        item = AckItem(claim.task_id, claim.token, None, ())
        while True:
            node = await self._place.serving(self._shard)
            shard = node.replicas[self._shard].shard
            self._ledger.sends_ack(item, [])
            try:
                entry = Ack(shard.now_ms(), node.config.finished_retention_ms, [item])
                (outcome,) = await node.call(shard.submit(entry))
            except (RefusedError, OutcomeUnknownError, NodeDiedError):
                await asyncio.sleep(self._rng.expovariate(1 / BACK_OFF_SECONDS))
                continue
            if isinstance(outcome, Rejection):
                self._ledger.ack_rejected(item, outcome, [], self._applied_ms(node))
            else:
                assert isinstance(outcome, Acked)
                self._ledger.acked(item, outcome, [], self._applied_ms(node))
            return


class Finisher(Worker):
    """Acks everything that it gets."""

    async def act(self) -> None:
        self._requests += 1
        request_id = b"%b-%d" % (self._name, self._requests)
        for claim in await self.reserve(ReserveWanted(QUEUES, 20, 5000, 300, self._name, request_id)):
            await self.ack(claim)
