"""What goes wrong in a simulated group while its callers call: several things at a time, each for a while."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Coroutine
from typing import Any

from tests.simulation.group_plan import Plan
from tests.simulation.group_world import Machine, Network, Node
from tests.simulation.world import ROOMY_BYTES


class Faults:
    """`run` makes trouble until it is cancelled. Whoever cancels it heals machines and network."""

    def __init__(self, rng: random.Random, plan: Plan, network: Network, machines: list[Machine]) -> None:
        self._rng = rng
        self._plan = plan
        self._network = network
        self._machines = machines
        self._kinds = [
            self._end_process, self._end_process, self._fail_everywhere, self._fill, self._refuse_rounds,
            self._refuse_rounds, self._slow_down, self._stop_process,
        ]  # fmt: skip
        if len(machines) > 1:
            self._kinds += [
                self._cut_off, self._cut_off, self._cut_off, self._cut_off, self._cut_one_way, self._hand_over,
                self._lose_messages,
            ]  # fmt: skip

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            while True:
                await asyncio.sleep(self._rng.expovariate(1 / self._plan.trouble_seconds))
                group.create_task(self._rng.choice(self._kinds)())

    def _machine(self) -> Machine:
        return self._rng.choice(self._machines)

    def _node(self) -> Node | None:
        return self._network.nodes.get(self._machine().identity)

    def _leader(self) -> Node | None:
        """Rather one that leads: that does more harm."""
        nodes = list(self._network.nodes.values())
        led = [node for node in nodes if any(replica.shard.serves for replica in node.replicas.values())]
        return self._rng.choice(led or nodes) if nodes else None

    def _a_while(self) -> Coroutine[Any, Any, None]:
        return asyncio.sleep(self._rng.choice((0.05, 0.3, 1.0, 2.5)) * self._rng.random())

    async def _end_process(self) -> None:
        node = self._node() if self._rng.random() < 0.5 else self._leader()
        if node is None:
            return
        choice = self._rng.random()
        if choice < 0.4:
            node.end(None)
        elif choice < 0.6:
            node.end(None, power_fails=True)
        elif choice < 0.9:
            node.machine.disk.crash_after(self._rng.randrange(10))
        else:
            node.machine.disk.fail_next_sync = True

    async def _fail_everywhere(self) -> None:
        """The power of the whole place."""
        if self._rng.random() < 0.5:
            for node in list(self._network.nodes.values()):
                node.end(None, power_fails=True)

    async def _cut(self, ways: frozenset[tuple[str, str]], restarted: Node | None = None) -> None:
        """Mostly for long enough that others are elected: what the old leader took meanwhile must go."""
        seconds = self._rng.choice((0.2, 1.2, 2.0))
        self._network.cuts.append(ways)
        await asyncio.sleep(seconds / 2)
        if restarted is not None:
            restarted.end(None)
        await asyncio.sleep(seconds / 2)
        self._network.cuts.remove(ways)

    async def _cut_off(self) -> None:
        """One node hears nobody and is heard by nobody. Sometimes it comes back as one that has everything to apply,
        and sometimes those who elect another leader have no room for every round."""
        node = self._leader()
        if node is None:
            return
        others = [machine for machine in self._machines if machine is not node.machine]
        is_tight = self._rng.random() < 0.4
        for machine in others:
            machine.no_room = 0.4 if is_tight else machine.no_room
        ways = frozenset(
            way for machine in others for way in ((node.me, machine.identity), (machine.identity, node.me))
        )
        await self._cut(ways, node if self._rng.random() < 0.5 else None)
        for machine in others:
            machine.no_room = 0.0

    async def _cut_one_way(self) -> None:
        one, other = self._rng.sample([machine.identity for machine in self._machines], 2)
        ways = {(one, other), (other, one)} if self._rng.random() < 0.3 else {(one, other)}
        await self._cut(frozenset(ways))

    async def _fill(self) -> None:
        """A disk is full until somebody makes room."""
        machine = self._machine()
        machine.fill(self._rng.randrange(2 * self._plan.segment_bytes))
        for state in machine.states.values():
            state.is_full = self._rng.random() < 0.2
            state.fail_next_flush = self._rng.random() < 0.5
        await self._a_while()
        machine.disk.capacity_bytes = ROOMY_BYTES
        for state in machine.states.values():
            state.is_full = False

    async def _refuse_rounds(self) -> None:
        """Some rounds find no room, others do: who makes room is quick."""
        machines = self._rng.sample(self._machines, self._rng.choice((1, 1, len(self._machines))))
        for machine in machines:
            machine.no_room = self._rng.choice((0.1, 0.4))
        await self._a_while()
        for machine in machines:
            machine.no_room = 0.0

    async def _slow_down(self) -> None:
        machine = self._machine()
        machine.sync_factor = self._rng.choice((5.0, 30.0))
        await self._a_while()
        machine.sync_factor = 1.0

    async def _stop_process(self) -> None:
        node = self._leader() if self._rng.random() < 0.6 else self._node()
        if node is not None:
            node.going.clear()
            await self._a_while()
            node.going.set()

    async def _hand_over(self) -> None:
        node = self._leader()
        for replica in node.replicas.values() if node is not None else ():
            to = self._rng.choice(self._machines).identity
            replica.request(lambda replica=replica, to=to: replica.raft.hand_over(to))  # type: ignore[misc]

    async def _lose_messages(self) -> None:
        before = self._network.loss
        self._network.loss = 0.4
        await self._a_while()
        self._network.loss = before
