"""How much memory a server takes when it is sent far more than it can write, and refuses most of it."""

import asyncio

from harness.bench import Bench
from harness.fleet import Fleet
from harness.probes import NoiseMeter, calibration_ms, process_cpu_s
from harness.protocol import FLOOD, LoadSpec
from harness.results import Aim, Measured, expect
from harness.server import ServerProcess

QUEUE = "flood"
CALLERS = 300
PAYLOAD_BYTES = 1_000_000

_BEFORE, _PEAK, _AFTER = "RSS before", "peak RSS", "RSS after"
AIMS = (
    Aim(_BEFORE, "MB"),
    Aim(_PEAK, "MB"),
    Aim(_AFTER, "MB"),
    Aim("accepted", "calls/s", more_is_better=True),
    Aim("refused", "calls/s"),
)


async def measure(bench: Bench) -> Measured:
    seconds = bench.sizes.steady_seconds
    measured = Measured()
    async with bench.server() as server:
        measured.figures[_BEFORE] = [server.memory().rss_mb]
        accepted, refused = await _flood(bench, server, seconds, measured)
        measured.figures[_PEAK] = [server.memory().peak_rss_mb]
        await bench.settle(server)
        measured.figures[_AFTER] = [server.memory().rss_mb]
        expect("tasks enqueued", (await bench.stats(server.address, QUEUE)).enqueued_total, accepted)
        await server.stop()
    measured.figures |= {"accepted": [accepted / seconds], "refused": [refused / seconds]}
    measured.counts = {"accepted": accepted, "refused": refused}
    return measured


async def _flood(bench: Bench, server: ServerProcess, seconds: float, measured: Measured) -> tuple[int, int]:
    """How many calls were accepted and how many refused."""
    spec = LoadSpec(
        role=FLOOD, address=server.address, queue=QUEUE, payload_bytes=PAYLOAD_BYTES, calls_in_flight=CALLERS
    )
    async with Fleet({"callers": spec}) as fleet:
        before_ms, noise, spent_s = calibration_ms(), NoiseMeter(), process_cpu_s(server.pid)
        stop = asyncio.get_running_loop().call_later(seconds, fleet.stop)
        try:
            results = await fleet.run(on_progress=lambda _done: None, counted=["callers"], tasks=0)
        finally:
            stop.cancel()
        callers = results["callers"]
        spent_s = process_cpu_s(server.pid) - spent_s
        measured.others_percent.append(noise.others_percent(spent_s + callers.cpu_s))
        measured.calibration_ms += [before_ms, calibration_ms()]
    return callers.done, callers.refused
