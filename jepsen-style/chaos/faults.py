"""What is done to the brokers. Each fault strikes, lasts for a while, and is undone by the same function.

A fault is written into the history once it has struck, so that whatever was sent later was sent to a broken cluster.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from chaos.history import HEAL, History
from tests.integration.cluster import Cluster
from tests.integration.server import wait_until


@dataclass
class Nemesis:
    """Whoever breaks the brokers: what it works on, and what it noticed."""

    cluster: Cluster
    history: History
    draw: random.Random
    unnoticed: list[str] = field(default_factory=list)  # damage that a broker did not notice, a sentence each
    broken: list[str] = field(default_factory=list)  # what a broker did not do, a sentence each

    async def strike(self, fault: "Fault") -> None:
        """One fault from its beginning to its end. A broker that does not play along is a finding, not a mistake."""
        try:
            await fault.strike(self)
        except AssertionError as error:
            self.broken.append(str(error))
            await self.heal()

    async def heal(self) -> None:
        """Whatever was done is undone: all brokers run."""
        for node in self.cluster.nodes.values():
            if node.is_up and node.paused:
                node.resume()
            elif not node.is_up:
                node.launch()
        for node in self.cluster.nodes.values():
            try:
                await asyncio.to_thread(node.wait_serving)
            except AssertionError as error:
                self.broken.append(str(error))
        self.healed("all")

    async def leader(self) -> str:
        return await asyncio.to_thread(self.cluster.wait_for_leader)

    async def follower(self) -> str:
        return self.draw.choice(await asyncio.to_thread(self.cluster.followers))

    def anyone(self) -> str:
        return self.draw.choice(self.cluster.names)

    async def last(self, at_least_s: float, at_most_s: float) -> None:
        """How long a fault lasts is drawn: a fixed time would always end it in the same place."""
        await asyncio.sleep(self.draw.uniform(at_least_s, at_most_s))

    def struck(self, what: str) -> None:
        self.history.fault(what)

    def healed(self, what: str) -> None:
        self.history.fault(what, f=HEAL)

    async def start(self, *names: str) -> None:
        nodes = [self.cluster.nodes[name] for name in names]
        for node in nodes:
            node.launch()
        for node in nodes:
            await asyncio.to_thread(node.wait_serving)
        self.healed(f"start {' '.join(names)}")

    async def whole(self) -> None:
        """Returns once every replica is there again: a fault that destroys data must not meet a second one."""
        await asyncio.to_thread(self.cluster.wait_whole)


async def kill_leader(nemesis: Nemesis) -> None:
    await _kill(nemesis, await nemesis.leader())


async def kill_follower(nemesis: Nemesis) -> None:
    await _kill(nemesis, await nemesis.follower())


async def _kill(nemesis: Nemesis, name: str) -> None:
    await asyncio.to_thread(nemesis.cluster.kill, name)
    nemesis.struck(f"kill {name}")
    await nemesis.last(0.0, 2.0)
    await nemesis.start(name)


async def pause_leader(nemesis: Nemesis) -> None:
    """Long enough to be replaced: when it goes on, it does not know of that yet."""
    name = await nemesis.leader()
    nemesis.cluster.nodes[name].pause()
    nemesis.struck(f"pause {name}")
    await nemesis.last(0.3, 4.0)
    nemesis.cluster.nodes[name].resume()
    nemesis.healed(f"resume {name}")


async def restart_all(nemesis: Nemesis) -> None:
    names = nemesis.cluster.names
    if nemesis.draw.random() < 0.5:
        await asyncio.to_thread(nemesis.cluster.kill, *names)
        nemesis.struck("kill all")
    else:
        nodes = [nemesis.cluster.nodes[name] for name in names]
        for node in nodes:
            node.ask_to_stop()
        for node in nodes:
            await asyncio.to_thread(node.wait_for_exit)
        nemesis.struck("stop all")
    await nemesis.start(*nemesis.draw.sample(names, len(names)))


async def power_cut_one(nemesis: Nemesis) -> None:
    await _cut_power(nemesis, nemesis.anyone())


async def power_cut_all(nemesis: Nemesis) -> None:
    await _cut_power(nemesis, *nemesis.cluster.names)


async def _cut_power(nemesis: Nemesis, *names: str) -> None:
    await asyncio.to_thread(nemesis.cluster.cut_power, *names)
    nemesis.struck(f"power cut {' '.join(names)}")
    await nemesis.last(0.0, 1.5)
    await asyncio.to_thread(nemesis.cluster.power_on, *names)
    await nemesis.start(*names)


async def lose_disk(nemesis: Nemesis) -> None:
    await nemesis.whole()
    name = nemesis.anyone()
    await asyncio.to_thread(nemesis.cluster.kill, name)
    await asyncio.to_thread(nemesis.cluster.lose_disk, name)
    nemesis.struck(f"disk of {name} lost")
    await nemesis.last(0.0, 1.5)
    await nemesis.start(name)
    while nemesis.draw.random() < 0.5:  # it is killed again while it is being rebuilt
        await nemesis.last(0.0, 0.7)
        await asyncio.to_thread(nemesis.cluster.kill, name)
        await nemesis.start(name)
    await nemesis.whole()


async def flip_bit_in_log(nemesis: Nemesis) -> None:
    await _flip_bit(nemesis, "log")


async def flip_bit_in_state(nemesis: Nemesis) -> None:
    await _flip_bit(nemesis, "state")


async def _flip_bit(nemesis: Nemesis, kind: str) -> None:
    """Stopped in order, so that even the newest round of its log is known to be complete."""
    await nemesis.whole()
    cluster, name = nemesis.cluster, nemesis.anyone()
    node = cluster.nodes[name]
    await asyncio.to_thread(node.stop)
    where = await asyncio.to_thread(cluster.flip_bit, name, kind, nemesis.draw)
    nemesis.struck(f"bit flipped in {where} of {name}")
    node.launch()
    await asyncio.to_thread(wait_until, lambda: node.events("serving") or not node.is_up, f"{name} to serve or to end")
    if node.is_up:
        if kind == "log":  # all of it is read at a start; the state is read as it is needed
            nemesis.unnoticed.append(f"{name} served although a bit of {where} was flipped")
        await asyncio.to_thread(cluster.kill, name)
    await asyncio.to_thread(cluster.start_node, name, rebuild=True)
    nemesis.healed(f"rebuild {name}")
    await nemesis.whole()


@dataclass(frozen=True)
class Fault:
    """A fault and what it needs."""

    strike: Callable[[Nemesis], Awaitable[None]]
    nodes_min: int = 1
    needs_power_disk: bool = False


FAULTS: dict[str, Fault] = {
    "kill-leader": Fault(kill_leader),
    "kill-follower": Fault(kill_follower, nodes_min=3),
    "pause-leader": Fault(pause_leader),
    "restart-all": Fault(restart_all),
    "power-cut-one": Fault(power_cut_one, needs_power_disk=True),
    "power-cut-all": Fault(power_cut_all, needs_power_disk=True),
    "disk-loss": Fault(lose_disk, nodes_min=3),
    "bit-flip-log": Fault(flip_bit_in_log, nodes_min=3),
    "bit-flip-state": Fault(flip_bit_in_state, nodes_min=3),
}
MIX = "mix"  # any of those that the cluster allows, drawn anew each time
NONE = "none"


def faults_of(name: str, *, nodes: int, power: bool) -> list[Fault]:
    """The faults that a name stands for on such a cluster."""
    if name == NONE:
        return []
    possible = {
        each: fault
        for each, fault in FAULTS.items()
        if nodes >= fault.nodes_min and (power or not fault.needs_power_disk)
    }
    return list(possible.values()) if name == MIX else [FAULTS[name]]
