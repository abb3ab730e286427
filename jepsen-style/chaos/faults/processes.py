"""Processes that are killed, paused or stopped."""

import asyncio

from chaos.faults.arena import Arena, in_thread
from chaos.plan import Step
from chaos.system.process import Process


async def kill(arena: Arena, step: Step, names: list[str]) -> None:
    """SIGKILL. The page cache survives: it says nothing about syncing."""
    async with arena.striking(step, names) as number:
        await asyncio.gather(*(in_thread(arena.process(name).kill) for name in names))
        arena.has_struck(step, names, number)
        await asyncio.sleep(step.lasts_s)
        await arena.start(*arena.draw.sample(names, len(names)))


async def pause(arena: Arena, step: Step, names: list[str]) -> None:
    """SIGSTOP: when it goes on, it does not know what has happened meanwhile."""
    async with arena.striking(step, names) as number:
        for name in names:
            arena.process(name).pause()
        arena.has_struck(step, names, number)
        await asyncio.sleep(step.lasts_s)
        for name in names:
            arena.process(name).resume()


async def stop(arena: Arena, step: Step, names: list[str]) -> None:
    """SIGTERM, and a new start."""
    async with arena.striking(step, names) as number:
        processes: list[Process] = [arena.process(name) for name in names]
        for process in processes:
            process.ask_to_stop()
        arena.has_struck(step, names, number)
        for process in processes:
            await in_thread(process.wait_for_end)
        await asyncio.sleep(step.lasts_s)
        await arena.start(*names)


async def host_dies(arena: Arena, step: Step, names: list[str]) -> None:
    """The whole host: its process is gone, and nobody is told, because its cable is dead too."""
    network = arena.system.network
    async with arena.striking(step, names) as number:
        for name in names:
            if network is not None:
                network.unplug(name)
            await in_thread(arena.process(name).kill)
        arena.has_struck(step, names, number)
        try:
            await asyncio.sleep(step.lasts_s)
        finally:
            for name in names:
                if network is not None:
                    network.plug_in(name)
        await arena.start(*names)
