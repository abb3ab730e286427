"""What happens in the demo, in order."""

import time
from pathlib import Path

from examples.demo.display import Display
from examples.demo.processes import Clock, Server, Worker
from examples.demo.record import Record, Verdict, judge
from examples.demo.tasks import LEASE_S, QUEUE, work
from holdfast.client import Client, Holdfast, HoldfastError, QueueStats

_BATCH = 1_000
_CALL_S_MAX = 30.0


class Story:
    """The parts that `tell` puts in order. `end` leaves nothing running, however far it came."""

    def __init__(self, tasks: int, directory: Path, clock: Clock, display: Display) -> None:
        self._tasks = tasks
        self._directory = directory
        self._clock = clock
        self._display = display
        self._record_dir = directory / "record"
        self._record_dir.mkdir()
        self._record = Record(self._record_dir)
        self._server: Server | None = None
        self._workers: list[Worker] = []

    def tell(self) -> Verdict:
        server = self._start_server()
        first, second = self._start_worker(server, "worker-1"), self._start_worker(server, "worker-2")
        for worker in (first, second):
            self._clock.wait_until(worker.serves, f"the start of {worker.name}")
        self._display.event("Two workers run.", f"They wait for tasks; leases are {LEASE_S:g} s and extended by them.")
        self._enqueue(server)

        self._until_completed(self._tasks // 3, who=first)
        self._kill_worker(first)
        self._until_completed(self._tasks // 2, who=second)
        server = self._kill_and_restart(server)
        replacement = self._start_worker(server, "worker-3")
        self._clock.wait_until(replacement.serves, "the start of the third worker")
        self._display.event("A third worker runs in place of the first.", "Nobody had to tell the server.")

        self._until_completed(self._tasks)
        self._display.event("Every number is in the record.", "The last acks are awaited, then everything is stopped.")
        stats = self._settled(server)
        for worker in (second, replacement):
            worker.stop(self._clock)
        server.stop(self._clock)
        self._record.refresh()
        self._explain(stats)
        return judge(self._tasks, self._record, stats)

    def end(self) -> None:
        for process in (*self._workers, *([self._server] if self._server else [])):
            process.end()

    # --- steps ------------------------------------------------------------------------------------------------

    def _start_server(self, port: int = 0) -> Server:
        self._server = server = Server(self._directory / "data", self._directory / "server.log", port)
        self._clock.wait_until(server.serves, "the start of the server")
        if not port:
            self._display.event(f"The server runs at {server.address}.", "An empty data directory, made for this demo.")
        return server

    def _start_worker(self, server: Server, name: str) -> Worker:
        worker = Worker(name, server.address, self._record_dir, self._directory / f"{name}.log")
        self._workers.append(worker)
        return worker

    def _enqueue(self, server: Server) -> None:
        calls = [work.call(number) for number in range(self._tasks)]
        with Holdfast(server.address, timeout=_CALL_S_MAX) as producer:
            for start in range(0, self._tasks, _BATCH):
                self._clock.check("enqueueing all tasks")
                producer.enqueue_many(calls[start : start + _BATCH]).handles()
                self._display.enqueued(min(start + _BATCH, self._tasks))
                self._display.completed(self._record.refresh())
        self._display.event(
            f"{self._tasks:,} tasks are enqueued.", "Each was fsynced before the producer heard that it is accepted."
        )

    def _until_completed(self, count: int, who: Worker | None = None) -> None:
        """Until so many tasks have run, and some of them in that worker."""

        def done() -> bool:
            for worker in self._workers:
                worker.check()
            completed = self._record.refresh()
            self._display.completed(completed)
            return completed >= count and (who is None or self._record.runs_by_worker[who.record_name] > 0)

        self._clock.wait_until(done, f"completing {count:,} tasks")

    def _kill_worker(self, worker: Worker) -> None:
        self._workers.remove(worker)
        worker.kill()
        self._display.event(
            f"{worker.name} is killed with SIGKILL, in the middle of its tasks.",
            f"It cannot say goodbye. What it held comes back within {LEASE_S:g} s; the other one goes on alone.",
            "bold red",
        )

    def _kill_and_restart(self, server: Server) -> Server:
        server.kill()
        self._display.event(
            "The server is killed with SIGKILL.",
            "What it had acknowledged is in its log on disk. The worker keeps its results and tries again.",
            "bold red",
        )
        began_s = time.monotonic()
        server = self._start_server(server.port)
        self._display.event(
            f"The server is back on the same data, after {time.monotonic() - began_s:.1f} s.",
            "It has read its log to the end; the worker finds it by itself.",
            "bold green",
        )
        return server

    def _settled(self, server: Server) -> QueueStats:
        """The server's own counts, once nothing is on its way any more."""
        with Client(server.address, timeout_s=_CALL_S_MAX) as client:
            found: list[QueueStats] = []

            def settled() -> bool:
                server.check()
                try:
                    found.append(client.queue_stats(QUEUE))
                except HoldfastError:
                    return False
                stats = found[-1]
                return not (stats.ready or stats.claimed or stats.delayed or stats.retrying)

            self._clock.wait_until(settled, "the last ack")
            return found[-1]

    def _explain(self, stats: QueueStats) -> None:
        self._display.finish_bars()
        say = self._display.line
        runs, again = self._record.runs.total(), sum(1 for count in self._record.runs.values() if count > 1)
        say("")
        say(f"  record of the handlers   {len(self._record.runs):,} different tasks in {runs:,} runs")
        say(f"  the server's counts      {stats.succeeded_total:,} succeeded, {stats.dead_total:,} dead")
        say(f"  leases that ran out      {stats.expired_total:,}: tasks that a worker held and could not finish")
        say(f"  ran more than once       {again:,}")
        if again:
            say(
                "      That is allowed: they were done, but their ack had not arrived when worker or server was killed."
            )
            say("      At least once is the promise; docs/guarantees.md says how a handler deals with it.", "dim")
        say("")
