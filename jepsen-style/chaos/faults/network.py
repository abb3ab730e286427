"""Cables that are cut, that lose packets, and that are slow."""

import asyncio
from collections.abc import Callable

from chaos.faults.arena import Arena
from chaos.plan import Step
from chaos.system.network import Network, both_ways, ring_cuts

Cuts = list[tuple[str, str]]  # sender, receiver


async def cut_one_way(arena: Arena, step: Step, names: list[str]) -> None:
    """What others send does not reach it, or what it sends does not reach them; the other way is open."""
    others = [name for name in arena.system.brokers if name not in names]
    is_deaf = arena.draw.random() < 0.5
    cuts = [(other, name) if is_deaf else (name, other) for name in names for other in others]
    await _cut(arena, step, names, cuts)


async def cut_two_way(arena: Arena, step: Step, names: list[str]) -> None:
    """It is alone among brokers; clients, routers and etcd reach it still."""
    await _cut(arena, step, names, both_ways(names, [name for name in arena.system.brokers if name not in names]))


async def cut_ring(arena: Arena, step: Step, names: list[str]) -> None:
    """Each broker sees its neighbours in a ring only: each sees a majority of them, and no two the same one."""
    await _cut(arena, step, names, ring_cuts(names))


async def cut_majority(arena: Arena, step: Step, names: list[str]) -> None:
    """These on one side, all other brokers on the other; clients, routers and etcd reach both."""
    await _cut(arena, step, names, both_ways(names, [name for name in arena.system.brokers if name not in names]))


async def cut_from_etcd(arena: Arena, step: Step, names: list[str]) -> None:
    await _cut(arena, step, names, both_ways(names, list(arena.system.etcds)))


async def unplug(arena: Arena, step: Step, names: list[str]) -> None:
    """Nobody reaches it, and it reaches nobody."""
    await _during(arena, step, names, Network.unplug, Network.plug_in)


async def loss(arena: Arena, step: Step, names: list[str]) -> None:
    """`amount`: percent of packets."""
    await _during(arena, step, names, lambda net, name: net.lose(name, int(step.amount)), Network.lose_nothing)


async def slow_link(arena: Arena, step: Step, names: list[str]) -> None:
    """`amount`: kbit/s of what it sends."""
    await _during(arena, step, names, lambda net, name: net.slow_down(name, int(step.amount)), Network.speed_up)


async def _cut(arena: Arena, step: Step, names: list[str], cuts: Cuts) -> None:
    network = arena.system.network
    assert network is not None
    async with arena.striking(step, names) as number:
        done: Cuts = []
        try:
            for sender, receiver in cuts:
                network.cut(sender, receiver)
                done.append((sender, receiver))
            arena.has_struck(step, names, number)
            await asyncio.sleep(step.lasts_s)
        finally:
            for sender, receiver in done:
                network.mend(sender, receiver)


async def _during(
    arena: Arena, step: Step, names: list[str], begin: Callable[[Network, str], None],
    end: Callable[[Network, str], None],
) -> None:  # fmt: skip
    network = arena.system.network
    assert network is not None
    async with arena.striking(step, names) as number:
        done: list[str] = []
        try:
            for name in names:
                begin(network, name)
                done.append(name)
            arena.has_struck(step, names, number)
            await asyncio.sleep(step.lasts_s)
        finally:
            for name in done:
                end(network, name)
