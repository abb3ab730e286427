"""What the server did per task, from the difference of two readings of its metrics and its threads."""

from collections.abc import Mapping

from harness import probes
from harness.server import ServerProcess


class StageMeter:
    """Made before a measurement by `begin`; `end` tells what happened since."""

    def __init__(self, name: str, server: ServerProcess, series: dict[str, float], threads_s: dict[str, float]) -> None:
        self.name = name  # of the server in what is told
        self._server = server
        self._series = series
        self._threads_s = threads_s
        self._cpu_s = probes.process_cpu_s(server.pid)
        self.cpu_s = 0.0  # of the server, in all, once ended

    @classmethod
    async def begin(cls, name: str, server: ServerProcess) -> "StageMeter":
        series = await server.scrape()
        return cls(name, server, series, probes.thread_cpu_s(server.pid))

    async def end(self, tasks: int) -> tuple[dict[str, float], dict[str, float]]:
        """CPU µs per task by group of threads, and stages."""
        pid = self._server.pid
        self.cpu_s = probes.process_cpu_s(pid) - self._cpu_s
        now_s = probes.thread_cpu_s(pid)
        cpu_us = {self.name: self.cpu_s / tasks * 1e6}
        for kind, spent_s in now_s.items():
            cpu_us[f"{self.name}: {kind}"] = (spent_s - self._threads_s[kind]) / tasks * 1e6
        return cpu_us, _stages(self._series, await self._server.scrape(), tasks)


def _stages(before: Mapping[str, float], after: Mapping[str, float], tasks: int) -> dict[str, float]:
    def grown(name: str) -> float:
        return after.get(name, 0.0) - before.get(name, 0.0)

    stages: dict[str, float] = {}
    syncs = grown("holdfast_fsync_seconds_count")
    if syncs:
        stages["log sync, µs per task"] = grown("holdfast_fsync_seconds_sum") / tasks * 1e6
        stages["log sync, ms each"] = grown("holdfast_fsync_seconds_sum") / syncs * 1e3
        if entries := grown("holdfast_round_entries_sum"):  # only of a leader: they are its own
            stages["log entries per sync"] = entries / syncs
    if applied_s := grown("holdfast_apply_seconds_sum"):  # a router applies nothing
        stages["apply, µs per task"] = applied_s / tasks * 1e6
    for method in ("Enqueue", "Reserve", "Ack"):
        label = f'{{method="{method}"}}'
        calls = grown(f"holdfast_rpc_seconds_count{label}")
        if calls:
            stages[f"{method}, tasks per call"] = tasks / calls
            stages[f"{method} call, ms each, waits included"] = grown(f"holdfast_rpc_seconds_sum{label}") / calls * 1e3
    return stages
