"""What a producer of single tasks feels while something else goes on."""

import asyncio
import sys
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import NamedTuple

from harness.fleet import Fleet
from harness.numbers import percentile
from harness.protocol import PROBE, LoadResult, LoadSpec

RATE_PER_S = 100.0
PAYLOAD_BYTES = 1024
SETTLE_IN_SECONDS = 1.0  # until a probe has found its way

_PROBE = "probe"


class Window(NamedTuple):
    """A stretch of time, on the clock that all processes share."""

    began_s: float
    ended_s: float


@dataclass(slots=True)
class Probing:
    """What the loads did: there once they have ended."""

    results: dict[str, LoadResult] = field(default_factory=dict)

    @property
    def enqueued(self) -> int:
        return self.results[_PROBE].done

    @property
    def cpu_s(self) -> float:
        """Of all load processes."""
        return sum(result.cpu_s for result in self.results.values())

    def took_ms(self, window: Window) -> list[float]:
        """How long each enqueue took that was sent in this window."""
        result = self.results[_PROBE]
        sent = zip(result.sent_s, result.send_ms, strict=True)
        return [took_ms for sent_s, took_ms in sent if window.began_s <= sent_s < window.ended_s]


def probe(address: str, queue: str) -> LoadSpec:
    return LoadSpec(role=PROBE, address=address, queue=queue, payload_bytes=PAYLOAD_BYTES, rate_per_s=RATE_PER_S)


@asynccontextmanager
async def probing(spec: LoadSpec, others: Mapping[str, LoadSpec] | None = None) -> AsyncIterator[Probing]:
    """Runs a probe, and other loads beside it, until the block is left."""
    probed = Probing()
    async with Fleet({_PROBE: spec, **(others or {})}) as fleet:
        async with asyncio.TaskGroup() as group:
            running = group.create_task(fleet.run(on_progress=lambda _: None, counted=[_PROBE], tasks=sys.maxsize))
            await asyncio.sleep(SETTLE_IN_SECONDS)
            yield probed
            fleet.stop()
        probed.results = running.result()


async def window_of(seconds: float) -> Window:
    """The next few seconds, once they have passed."""
    began_s = time.monotonic()
    await asyncio.sleep(seconds)
    return Window(began_s, time.monotonic())


def latencies(took_ms: Sequence[float], when: str) -> dict[str, list[float]]:
    figures = {f"p{percent}, {when}": [percentile(took_ms, percent)] for percent in (50, 99)}
    return figures | {f"slowest, {when}": [max(took_ms, default=0.0)]}
