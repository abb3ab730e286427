"""How much memory a server takes when it is sent far more than it can write, and refuses most of it."""

import asyncio

from harness.bench import Bench
from harness.fleet import Fleet
from harness.probes import NoiseMeter, calibration_ms, process_cpu_s
from harness.protocol import FLOOD, LoadSpec
from harness.results import Aim, Measured, Target, expect
from harness.server import ServerProcess

QUEUE = "flood"
CALLERS = 500  # each with a connection of its own
PAYLOAD_BYTES = 1_000_000

_BEFORE, _PEAK, _AFTER, _RATIO = "RSS before", "peak RSS", "RSS after", "RSS after, to before"
AIMS = (
    Aim(_BEFORE, "MB"),
    Aim(_PEAK, "MB", Target(600.0)),
    Aim(_AFTER, "MB"),
    Aim(_RATIO, "×", Target(1.3)),
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
        await asyncio.sleep(bench.sizes.rest_seconds)
        measured.figures[_AFTER] = [server.memory().rss_mb]
        measured.figures[_RATIO] = [measured.figures[_AFTER][0] / measured.figures[_BEFORE][0]]
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
