"""What can be seen of the servers from outside during a run: who leads, and who says that it is ready; and how busy the
machine is that they all share."""

import asyncio
import time
from contextlib import suppress

from chaos.faults.arena import Arena, in_thread
from chaos.history import LAG, LAG_NS_MIN, LEADER, READY, History
from chaos.system.system import System

LEADERS_EVERY_S = 0.3
READY_EVERY_S = 0.5
_ANSWER_S_MAX = 0.8
_ANSWER_BYTES_MAX = 4096
_RESTART_EVERY_S = 0.5
_LAG_EVERY_S = 0.05


async def watch_leaders(system: System, history: History) -> None:
    """Writes down each change, until it is cancelled."""
    known: dict[int, str] = {}
    while True:
        leaders = await in_thread(system.leaders)
        for shard in range(system.spec.shards):
            node = leaders.get(shard, "")
            if known.get(shard, "") != node:
                known[shard] = node
                history.saw(LEADER, node, shard=str(shard))
        await asyncio.sleep(LEADERS_EVERY_S)


async def watch_machine(history: History) -> None:
    """How much too late a process gets a processor: nobody can answer sooner than that."""
    while True:
        due_s = time.monotonic() + _LAG_EVERY_S
        await asyncio.sleep(_LAG_EVERY_S)
        late_s = time.monotonic() - due_s
        if late_s > LAG_NS_MIN / 1e9:
            history.saw(LAG, "", state=str(round(late_s * 1000)))


async def watch_readiness(system: System, history: History) -> None:
    """The same of /readyz of each broker and router: 200 if all is well, 0 for no answer."""
    known: dict[str, int] = {}
    while True:
        names = list(system.ops)
        answers = await asyncio.gather(*(_status(*system.ops[name]) for name in names))
        for name, status in zip(names, answers, strict=True):
            if known.get(name) != status:
                known[name] = status
                history.saw(READY, name, state=str(status))
        await asyncio.sleep(READY_EVERY_S)


async def _status(host: str, port: int) -> int:
    """Of /readyz; 503 also for a broker that is ready and says what it lacks."""
    writer: asyncio.StreamWriter | None = None
    try:
        async with asyncio.timeout(_ANSWER_S_MAX):
            reader, writer = await asyncio.open_connection(host, port)
            writer.write(b"GET /readyz HTTP/1.1\r\nHost: chaos\r\nConnection: close\r\n\r\n")
            answer = await reader.read(_ANSWER_BYTES_MAX)
            status = int(answer.split(None, 2)[1])
            while b"}" not in answer and (more := await reader.read(_ANSWER_BYTES_MAX)):
                answer += more
        return 503 if b"serving, but " in answer else status
    except (OSError, TimeoutError, IndexError, ValueError):
        return 0
    finally:
        if writer is not None:
            writer.close()
            with suppress(OSError, TimeoutError):
                async with asyncio.timeout(_ANSWER_S_MAX):
                    await writer.wait_closed()


async def keep_running(arena: Arena) -> None:
    """As whoever runs servers and workers does: one that has ended is started again. A server that ends although
    nothing was done to it lately is a finding."""
    while True:
        for name, process in arena.system.processes.items():
            if name in arena.struck or process.is_up or not process.lives:
                continue
            if name not in arena.system.workers and not arena.was_struck_lately(name):
                arena.broken.append(f"{name} ended by itself with {process.exit_code}: {process.last_words[-300:]}")
            await in_thread(arena.launch, name)
        await asyncio.sleep(_RESTART_EVERY_S)
