"""Disks that are full, fail, are slow, stall, lose their power, or damage what is on them."""

import asyncio
import os
import random
import shutil
import signal
import subprocess
from pathlib import Path

from chaos.faults.arena import Arena, in_thread
from chaos.plan import Step
from chaos.system.process import ProcessError, wait_until

_SYNCS = "fsync,fdatasync"
_ATTACH_S = 0.3


async def full(arena: Arena, step: Step, names: list[str]) -> None:
    disks = [arena.system.disks[name] for name in names]
    async with arena.striking(step, names) as number:
        try:
            for disk in disks:
                await in_thread(disk.fill)
            arena.has_struck(step, names, number)
            await asyncio.sleep(step.lasts_s)
        finally:
            for disk in disks:
                disk.make_room()
        await arena.start(*names)  # a broker may have ended over it


async def stall(arena: Arena, step: Step, names: list[str]) -> None:
    """Whoever writes waits."""
    disks = [arena.system.disks[name] for name in names]
    async with arena.striking(step, names) as number:
        try:
            for disk in disks:
                await in_thread(disk.freeze)
            arena.has_struck(step, names, number)
            await asyncio.sleep(step.lasts_s)
        finally:
            for disk in disks:
                disk.thaw()
        await arena.start(*names)  # who ends over it later is started by whoever keeps servers running


async def power_cut(arena: Arena, step: Step, names: list[str]) -> None:
    """The process is gone at once, and so is what it had not synced. The process first: without power it could not
    answer anybody either."""
    async with arena.striking(step, names) as number:
        for name in names:
            await in_thread(arena.process(name).kill)
        for name in names:
            arena.system.disks[name].cut_power()
        arena.has_struck(step, names, number)
        await asyncio.sleep(step.lasts_s)
        for name in names:
            await in_thread(arena.system.disks[name].power_on)
        await arena.start(*names)


async def io_error(arena: Arena, step: Step, names: list[str]) -> None:
    """Each sync fails. A broker must end over it; it is started again afterwards."""
    await _with_syscalls(arena, step, names, f"{_SYNCS}:error=EIO")


async def slow_sync(arena: Arena, step: Step, names: list[str]) -> None:
    """Each sync takes so many milliseconds more (`amount`)."""
    await _with_syscalls(arena, step, names, f"{_SYNCS}:delay_enter={int(step.amount * 1000)}")


async def _with_syscalls(arena: Arena, step: Step, names: list[str], injection: str) -> None:
    async with arena.striking(step, names) as number:
        tracers = [_trace(arena.process(name).pid, injection) for name in names]
        try:
            await asyncio.sleep(_ATTACH_S)
            arena.has_struck(step, names, number)
            await asyncio.sleep(step.lasts_s)
        finally:
            for tracer in tracers:
                tracer.send_signal(signal.SIGTERM)
                await in_thread(tracer.wait)
        await arena.start(*names)  # who ends over it later is started by whoever keeps servers running


def _trace(pid: int, injection: str) -> subprocess.Popen[bytes]:
    command = ["strace", "-f", "-qq", "-o", os.devnull, "-e", f"trace={_SYNCS}", "-e", f"inject={injection}"]
    return subprocess.Popen([*command, "-p", str(pid)], stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


# --- data that is gone or damaged -------------------------------------------------------------------------------


async def lost(arena: Arena, step: Step, names: list[str]) -> None:
    """The data directory is empty, and the broker often killed again while it is rebuilt."""
    await arena.whole()
    [name] = names
    process = arena.process(name)
    async with arena.striking(step, names) as number:
        await in_thread(process.kill)
        await in_thread(shutil.rmtree, arena.system.data_dirs[name])
        arena.has_struck(step, names, number)
        await asyncio.sleep(step.lasts_s)
        await arena.start(name)
        while arena.draw.random() < 0.5:
            await asyncio.sleep(arena.draw.uniform(0.0, 0.7))
            await in_thread(process.kill)
            await arena.start(name)
        await arena.whole()


async def flip_log_bit(arena: Arena, step: Step, names: list[str]) -> None:
    await _flip(arena, step, names, "log/*.log", must_notice=True)


async def flip_state_bit(arena: Arena, step: Step, names: list[str]) -> None:
    """The state is read as it is needed, so a broker need not notice at its start."""
    await _flip(arena, step, names, "state*/**/*.sst", must_notice=False)


async def _flip(arena: Arena, step: Step, names: list[str], pattern: str, *, must_notice: bool) -> None:
    """Stopped in order, so that even the newest round of its log is known to be complete. `--rebuild` mends it."""
    await arena.whole()
    [name] = names
    process = arena.process(name)
    async with arena.striking(step, names) as number:
        process.ask_to_stop()
        await in_thread(process.wait_for_end)
        try:
            where = await in_thread(flip_bit, arena.system.data_dirs[name], pattern, arena.draw)
        except ProcessError as error:
            arena.skipped.append(f"{step.what}: {error}")
            await arena.start(name)
            return
        arena.has_struck(step, names, number)
        process.launch()
        await in_thread(
            wait_until, lambda: process.has_said("serving") or not process.is_up, f"{name} to serve or to end"
        )
        if process.is_up:
            if must_notice:
                arena.unnoticed.append(f"{name} served although a bit of {where} was flipped")
            await in_thread(process.kill)
        process.launch("--rebuild")
        await in_thread(process.wait_serving)
        await arena.whole()


def flip_bit(data_dir: Path, pattern: str, draw: random.Random) -> str:
    """One bit in the older half of a file of a stopped broker. Says where.

    Not in the newer half: the end of a log that was not closed may be torn, and is cut off rightly.
    """
    files = sorted(data_dir.glob(pattern))
    for path in draw.sample(files, len(files)):
        data = path.read_bytes()
        written = [offset for offset in range(64, len(data.rstrip(b"\0")) // 2) if data[offset]]
        if written:  # a new segment is reserved, and empty
            break
    else:
        raise ProcessError(f"Expected a file like {pattern} with anything to damage, but there is none.")
    offset, bit = draw.choice(written), draw.randrange(8)
    with path.open("r+b") as file:
        file.seek(offset)
        file.write(bytes([data[offset] ^ (1 << bit)]))
        file.flush()
        os.fsync(file.fileno())
    return f"{path.relative_to(data_dir)} at {offset}"
