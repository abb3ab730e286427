"""Producers and workers of real programs, while something happens to the cluster, and what must hold afterwards."""

import itertools
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from holdfast.client import Client, NewTask, TaskState
from holdfast.routing.homes import home_shard
from tests.integration.server import wait_until
from tests.stalls import Stalled, stalls

PAUSE_S = 0.02
FINISHED_S_MAX = 120.0
PASSED = 5  # producer, Service, router and two brokers have a part in a write: each may be stalled as this process is

_APP = """
from holdfast.client import Holdfast

app = Holdfast()

@app.task(name="note")
async def note() -> None:
    pass
"""


@dataclass
class Load:
    """What was accepted, and how long each call took, its repetitions included."""

    address: str
    queues: Sequence[str]
    accepted: list[str] = field(default_factory=list)  # ids of tasks
    calls: list[tuple[float, float]] = field(default_factory=list)  # when each began and ended
    failed: list[str] = field(default_factory=list)  # calls that gave up
    stalled: Stalled = field(default_factory=Stalled)  # when the machine had no time for anybody

    def longest_s(self) -> float:
        """What is left of the longest call without the time in which the machine stood still."""
        return max(
            ended_s - began_s - PASSED * self.stalled.within(began_s, ended_s) for began_s, ended_s in self.calls
        )

    def wait_more(self, calls: int) -> None:
        wanted = len(self.calls) + calls
        wait_until(lambda: len(self.calls) >= wanted, f"{calls} more calls")

    def check(self, gap_s_max: float) -> None:
        """Nothing acknowledged is lost, no call failed, and none waited for too long."""
        assert self.failed == []
        assert self.accepted
        with Client(self.address, timeout_s=30) as client:
            deadline_s = time.monotonic() + FINISHED_S_MAX
            missing = list(self.accepted)
            while missing := [task for task in missing if client.get_task(task).state is not TaskState.SUCCEEDED]:
                assert time.monotonic() < deadline_s, (
                    f"{len(missing)} of {len(self.accepted)} are not done: {missing[:3]}"
                )
                time.sleep(0.2)
        longest_s = self.longest_s()
        print(f"longest write {longest_s:.2f} s of {len(self.calls):,}; machine stalled {self.stalled.seconds:.2f} s")
        assert longest_s <= gap_s_max, f"a write took {longest_s:.1f} s"


@contextmanager
def under_load(address: str, shards: int, directory: Path, workers: int = 2) -> Iterator[Load]:
    """One producer on a queue of each shard, one task after the other, and workers of the command line; from when each
    queue has had a task."""
    homes = {home_shard(f"q{number}", shards): f"q{number}" for number in range(50 * shards)}
    load = Load(address, [homes[shard] for shard in range(shards)])
    (directory / "noting.py").write_text(_APP)
    running = [_worker(load, directory, f"w{number}") for number in range(workers)]
    stopped = threading.Event()
    producer = threading.Thread(target=_produce, args=(load, stopped))
    producer.start()
    try:
        wait_until(lambda: len(load.calls) > shards, "a task of each queue")
        with stalls() as load.stalled:
            yield load
    finally:
        stopped.set()
        producer.join()
        try:
            _let_finish(load)
        finally:
            for worker in running:
                worker.terminate()
            for worker in running:
                worker.wait(60)


def _let_finish(load: Load) -> None:
    """Workers go on until nothing is left, so that the check finds the end of it."""
    with Client(load.address, timeout_s=30) as client:
        deadline_s = time.monotonic() + FINISHED_S_MAX
        while any(_unfinished(client, queue) for queue in load.queues) and time.monotonic() < deadline_s:
            time.sleep(0.2)


def _unfinished(client: Client, queue: str) -> int:
    stats = client.queue_stats(queue)
    return stats.ready + stats.claimed + stats.retrying


def _worker(load: Load, directory: Path, name: str) -> "subprocess.Popen[bytes]":
    queues = [word for queue in load.queues for word in ("-q", queue)]
    environment = {key: value for key, value in os.environ.items() if not key.startswith("HOLDFAST_")}
    command = [str(Path(sys.executable).parent / "holdfast"), "worker", "noting:app", "--name", name, *queues]
    with (directory / f"{name}.log").open("wb") as log:
        return subprocess.Popen(
            command, cwd=directory, env=environment | {"HOLDFAST_ADDRESS": load.address}, stdout=log, stderr=log
        )


def _produce(load: Load, stopped: threading.Event) -> None:
    with Client(load.address, timeout_s=30) as client:
        for number, queue in enumerate(itertools.cycle(load.queues)):
            if stopped.wait(PAUSE_S):
                return
            began_s = time.monotonic()
            try:
                accepted = client.enqueue(NewTask(queue, "note", request_id=f"{number}"))
            except Exception as error:  # noqa: BLE001 - whatever a caller sees is what is judged
                load.failed.append(repr(error))
            else:
                load.accepted.append(accepted.task_id)
            load.calls.append((began_s, time.monotonic()))
