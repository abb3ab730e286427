"""Wall clocks that are wrong. A library that is loaded before all others adds to the clock what a file says."""

import asyncio
import struct
import subprocess
from pathlib import Path

from chaos.faults.arena import Arena
from chaos.plan import Step

SOURCE = Path(__file__).parents[1] / "clock.c"
_STROBE_EVERY_S = 0.2


def build_clock(directory: Path) -> None:
    """The library that brokers load."""
    command = ["cc", "-O2", "-shared", "-fPIC", "-o", str(directory / "clock.so"), str(SOURCE)]
    subprocess.run(command, check=True, capture_output=True)


async def jump(arena: Arena, step: Step, names: list[str]) -> None:
    """`amount`: seconds, also less than nothing. It jumps back in the end."""
    async with arena.striking(step, names) as number:
        try:
            _set(arena, names, step.amount)
            arena.has_struck(step, names, number)
            await asyncio.sleep(step.lasts_s)
        finally:
            _set(arena, names, 0.0)


async def strobe(arena: Arena, step: Step, names: list[str]) -> None:
    """To and fro by `amount` seconds, several times a second."""
    async with arena.striking(step, names) as number:
        try:
            arena.has_struck(step, names, number)
            for turn in range(int(step.lasts_s / _STROBE_EVERY_S)):
                _set(arena, names, step.amount * (turn % 2))
                await asyncio.sleep(_STROBE_EVERY_S)
        finally:
            _set(arena, names, 0.0)


def _set(arena: Arena, names: list[str], seconds: float) -> None:
    for name in names:
        with arena.system.clock_file(name).open("r+b") as file:
            file.write(struct.pack("=q", int(seconds * 1e9)))
