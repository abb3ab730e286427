"""What faults work on: the system, the history, and whom a target means at the moment."""

import asyncio
import random
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TypeVar

from chaos.history import HEAL, History
from chaos.plan import Step
from chaos.system.process import Process, ProcessError
from chaos.system.system import System

_LATELY_S = 30.0
MOVE_ROLES = ("source", "destination")  # of a replica that moves

T = TypeVar("T")


@dataclass
class Arena:
    """One for a run."""

    system: System
    history: History
    draw: random.Random
    queues: Sequence[str] = ()  # whose spread may be changed
    unnoticed: list[str] = field(default_factory=list)  # damage that a broker did not notice, a sentence each
    broken: list[str] = field(default_factory=list)  # what a broker did not do, a sentence each
    skipped: list[str] = field(default_factory=list)  # steps that had nobody to strike
    done: Counter[str] = field(default_factory=Counter)  # by operation: how often it came to its end
    moving: tuple[str, str] = ("", "")  # the move under way: source, destination
    struck: set[str] = field(default_factory=set)  # who is being struck: nobody is by two faults at once
    ended_s: dict[str, float] = field(default_factory=dict)  # by name: when the last fault that struck it had ended
    _steps: int = 0
    _began_ns: dict[str, int] = field(default_factory=dict)  # by number of a step

    @asynccontextmanager
    async def striking(self, step: Step, names: Sequence[str]) -> AsyncIterator[str]:
        """For the time of a fault these are nobody else's."""
        self._steps += 1
        number = str(self._steps)
        self._began_ns[number] = self.history.now_ns()
        self.struck.update(names)
        try:
            yield number
        finally:
            self.struck.difference_update(names)
            self.ended_s |= dict.fromkeys(names, time.monotonic())
            self.history.fault(step.what, f=HEAL, node=",".join(names), step=number)

    def was_struck_lately(self, name: str) -> bool:
        """Whether its end may be the late end of a fault: a broker whose disk failed ends when it notices."""
        return time.monotonic() - self.ended_s.get(name, -_LATELY_S) < _LATELY_S

    def has_struck(self, step: Step, names: Sequence[str], number: str, queue: str = "") -> None:
        """`queue`: whose shards are changed."""
        self.history.fault(
            step.what, node=",".join(names), step=number, queue=queue, began_ns=self._began_ns.get(number, 0)
        )
        for role, name in zip(MOVE_ROLES, self.moving, strict=True):
            self.done[f"strike at a {role}"] += bool(name) and name in names

    # --- whom -------------------------------------------------------------------------------------------------

    def aim(self, target: str) -> list[str]:
        """Names of processes; none if there is nobody to be struck."""
        kind, _, text = target.partition(":")
        found = self._aim(kind, int(text) if text else 0)
        return [name for name in found if name not in self.struck and self.system.processes[name].is_up]

    def _aim(self, kind: str, shard: int) -> list[str]:
        system = self.system
        leader = system.leaders().get(shard, "")
        others = [name for name in system.brokers if name != leader] or list(system.brokers)
        one_of: dict[str, Callable[[], list[str]]] = {
            "leader": lambda: [leader] if leader else self._one(others),
            "follower": lambda: self._one(others),
            "majority": lambda: self._some(list(system.brokers), len(system.brokers) // 2 + 1),
            "any": lambda: self._one(list(system.brokers)),
            "all": lambda: list(system.brokers),
            "router": lambda: self._one(list(system.routers)),
            "worker": lambda: self._one(list(system.workers)),
            "etcd": lambda: self._one(list(system.etcds)),
            "etcd-majority": lambda: self._some(list(system.etcds), len(system.etcds) // 2 + 1),
            "source": lambda: [self.moving[0]] if self.moving[0] else self._one(others),
            "destination": lambda: [self.moving[1]] if self.moving[1] else self._one(others),
        }
        return one_of[kind]()

    def _one(self, names: list[str]) -> list[str]:
        free = [name for name in names if name not in self.struck]
        return [self.draw.choice(free)] if free else []

    def _some(self, names: list[str], count: int) -> list[str]:
        return sorted(self.draw.sample(names, count))

    def process(self, name: str) -> Process:
        return self.system.processes[name]

    # --- life -------------------------------------------------------------------------------------------------

    async def start(self, *names: str) -> None:
        """Those that are down, and waits until brokers and routers serve."""
        down = [name for name in names if not self.process(name).is_up]
        for name in down:
            self.launch(name)
        for name in down:
            if name in self.system.brokers or name in self.system.routers:
                await in_thread(self.process(name).wait_serving)

    def launch(self, name: str) -> None:
        if name in self.system.workers:
            self.system.launch_worker(name)
        else:
            self.process(name).launch()

    async def whole(self) -> None:
        """Returns once every replica is there again: a fault that destroys data must not meet a second one."""
        await in_thread(self.system.wait_whole)

    async def heal(self) -> None:
        """Everything runs."""
        for name, process in self.system.processes.items():
            try:
                if process.is_up and process.paused:
                    process.resume()
                await self.start(name)
            except ProcessError as error:
                self.broken.append(str(error))
        self.history.fault("all", f=HEAL)


async def in_thread(work: Callable[..., T], *arguments: object) -> T:
    return await asyncio.to_thread(work, *arguments)
