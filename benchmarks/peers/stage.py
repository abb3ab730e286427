"""A row with an empty queue: its clients at work, and what they and the servers spend meanwhile."""

import asyncio
import dataclasses
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Protocol, Self

from harness.fleet import Fleet
from harness.numbers import percentile
from harness.probes import NoiseMeter
from harness.protocol import LoadResult
from harness.results import BrokenRunError
from peers.libraries.workers import LibraryPeer
from peers.peer import Peer
from peers.protocol import CONSUME, PRODUCE, ClientSpec
from peers.results import Sample
from peers.rows import Row
from peers.spent import spent_by
from peers.tally import DONE, SENT, Tally

CLIENT_SCRIPT = Path(__file__).resolve().parent.parent / "peer_load.py"
BATCH_TASKS = 100  # per call, and how many a consumer claims
CONSUMERS = 2
POLL_SECONDS = 0.005
BEGIN_SECONDS_MAX = 60.0  # until all consumers have done something
STOP_SECONDS_MAX = 60.0


class Meter:
    """Of the time from when it is made until `sample`."""

    def __init__(self, servers: Sequence[int], clients: Sequence[int], tasks: int) -> None:
        self._servers, self._clients = servers, clients
        self._servers_before, self._clients_before = spent_by(servers), spent_by(clients)
        self._noise = NoiseMeter()
        self._tasks_before = tasks
        self.began_s = time.monotonic()

    def sample(self, tasks: int) -> Sample:
        """Without its calls: `with_calls` adds them, when the clients have told them."""
        seconds = time.monotonic() - self.began_s
        servers = spent_by(self._servers) - self._servers_before
        clients = spent_by(self._clients) - self._clients_before
        done = tasks - self._tasks_before
        if done <= 0:
            raise BrokenRunError(f"nothing was done within {seconds:.1f} s")
        return Sample(
            tasks=done,
            seconds=seconds,
            servers_us=servers.cpu_s / done * 1e6,
            clients_us=clients.cpu_s / done * 1e6,
            written_bytes=servers.written_bytes / done,
            others_percent=self._noise.others_percent(servers.cpu_s + clients.cpu_s),
        )


class Clients:
    """Load processes that work until told to stop."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._running = asyncio.create_task(fleet.run(on_progress=_ignore, counted=(), tasks=1))

    @property
    def pids(self) -> Sequence[int]:
        return self._fleet.pids

    async def sleep(self, seconds: float) -> None:
        """Less if one of them breaks: then it raises."""
        await asyncio.wait([self._running], timeout=seconds)
        if self._running.done():
            self._running.result()
            raise BrokenRunError("a client ended before it was told to")

    async def stop(self) -> dict[str, LoadResult]:
        self._fleet.stop()
        async with asyncio.timeout(STOP_SECONDS_MAX):
            return await self._running

    async def close(self) -> None:
        self._running.cancel()
        await asyncio.wait([self._running])
        if not self._running.cancelled():
            self._running.exception()  # it is known, or nobody is interested any more


def _ignore(_done: int) -> None:
    """The tally says more than what they tell."""


class Workers:
    """Processes of a library, which end when the row tells them to."""

    def __init__(self, peer: LibraryPeer) -> None:
        self._peer = peer

    @property
    def pids(self) -> Sequence[int]:
        return self._peer.worker_pids

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


class Working(Protocol):
    """Whoever does tasks."""

    @property
    def pids(self) -> Sequence[int]: ...

    async def sleep(self, seconds: float) -> None:
        """Raises if it cannot go on."""


class Stage:
    """One row with an empty queue, for one measurement."""

    def __init__(self, row: Row, peer: Peer, queue: str, tally: Path) -> None:
        self.row = row
        self.peer = peer
        self.queue = queue
        self.tally_path = tally
        self.tally = Tally.create(tally)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.tally.__exit__()

    def _spec(self, role: str, **more: object) -> ClientSpec:
        row, peer = self.row, self.peer
        return ClientSpec(
            role=role, client=row.client, target=peer.target, queue=self.queue, tally=str(self.tally_path),
            **more,  # type: ignore[arg-type]
        )  # fmt: skip

    def producers(self, count: int, batch_tasks: int, **more: object) -> dict[str, ClientSpec]:
        numbers = range(1, count + 1)
        return {
            f"producer {number}": self._spec(PRODUCE, number=number, batch_tasks=batch_tasks, **more)
            for number in numbers
        }

    def consumers(self, count: int, batch_tasks: int, **more: object) -> dict[str, ClientSpec]:
        numbers = range(1, count + 1)
        return {f"consumer {number}": self._spec(CONSUME, batch_tasks=batch_tasks, **more) for number in numbers}

    @asynccontextmanager
    async def clients(self, specs: Mapping[str, ClientSpec]) -> AsyncIterator[Clients]:
        async with Fleet(specs, CLIENT_SCRIPT) as fleet:
            clients = Clients(fleet)
            try:
                yield clients
            finally:
                await clients.close()

    @asynccontextmanager
    async def consuming(self) -> AsyncIterator["Working"]:
        """Its two consumers, or the library's own workers, with an eye on them."""
        if not isinstance(self.peer, LibraryPeer):
            async with self.clients(self.consumers(CONSUMERS, BATCH_TASKS)) as clients:
                yield clients
            return
        try:
            await self.peer.start_workers(self.queue, self.tally_path)
            yield Workers(self.peer)
        finally:
            await self.peer.stop_workers()

    async def all_begun(self, consumers: "Working") -> None:
        """Returns once each consumer has done something, or all is done."""
        ends_s = time.monotonic() + BEGIN_SECONDS_MAX
        while (done := self.tally.read(DONE)).active < CONSUMERS and time.monotonic() < ends_s:
            if 0 < self.tally.read(SENT).tasks <= done.tasks:
                return
            await consumers.sleep(POLL_SECONDS)
        if not done.tasks:
            raise BrokenRunError(f"no task was done within {BEGIN_SECONDS_MAX:g} s: {self.peer.processes.log_end}")


def with_calls(sample: Sample, meter: Meter, results: Sequence[LoadResult]) -> Sample:
    """With how long the calls took that began in the time that counts."""
    ends_s = meter.began_s + sample.seconds
    call_ms = [
        took_ms
        for result in results
        for sent_s, took_ms in zip(result.sent_s, result.call_ms, strict=True)
        if meter.began_s <= sent_s < ends_s
    ]
    if not call_ms:
        raise BrokenRunError("no task that was sent in the time that counts was confirmed or picked up")
    return dataclasses.replace(sample, p50_ms=percentile(call_ms, 50), p99_ms=percentile(call_ms, 99))
