"""What happens in the demo, in order."""

import os
import signal
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from examples.demo.processes import Clock, DemoError, Worker
from examples.demo.record import Record, Verdict, judge
from examples.demo.tasks import QUEUE
from examples.demo_cluster.commands import Commands
from examples.demo_cluster.load import Producer
from examples.demo_cluster.telling import Telling
from holdfast.client import Client, HoldfastError, QueueStats

NODES = 4
SHARDS = 4
_TASKS_PER_S = 400.0
_WORKERS = 2
_CALL_S_MAX = 30.0


@dataclass(frozen=True, slots=True)
class Account:
    """What was found at the end."""

    verdict: Verdict
    hashes: dict[int, bool]  # by shard: whether all its replicas are equal
    longest_call_s: float


class Story:
    """The parts that `tell` puts in order. `end` leaves nothing running, however far it came."""

    def __init__(self, tasks: int, directory: Path, clock: Clock, telling: Telling) -> None:
        self._tasks = tasks
        self._directory = directory
        self._clock = clock
        self._telling = telling
        self._record_dir = directory / "record"
        self._record_dir.mkdir()
        self._record = Record(self._record_dir)
        self._commands = Commands(directory / "cluster", clock)
        self._workers: list[Worker] = []
        self._producer: Producer | None = None

    def tell(self) -> Account:
        self._start_cluster()
        self._start_load()
        self._until_completed(self._tasks // 10)
        self._kill_a_leader()
        self._until_completed(self._tasks // 4)
        self._drain("n2")
        self._until_completed(self._tasks // 2)
        self._add_a_node()
        self._until_completed(self._tasks)
        return self._settle()

    def end(self) -> None:
        if self._producer is not None:
            self._producer.stop()
        for worker in self._workers:
            worker.end()
        self._commands.down()

    # --- steps ------------------------------------------------------------------------------------------------

    def _start_cluster(self) -> None:
        flags = ("--nodes", str(NODES), "--shards", str(SHARDS), "--router-port", "0")
        self._commands.up(*flags)
        self._commands.run("queue", "set", QUEUE, "--spread", str(SHARDS))
        self._telling.event(
            f"A cluster runs: etcd, {NODES} brokers, {SHARDS} shards with 3 replicas each, a router.",
            f"Everybody talks to the router at {self._commands.address}. The queue is spread over all shards.",
        )

    def _start_load(self) -> None:
        for number in range(1, _WORKERS + 1):
            name = f"worker-{number}"
            log_path = self._directory / f"{name}.log"
            self._workers.append(Worker(name, self._commands.address, self._record_dir, log_path))
        for worker in self._workers:
            self._clock.wait_until(worker.serves, f"the start of {worker.name}")
        self._producer = Producer(self._commands.address, self._tasks, _TASKS_PER_S)
        self._producer.start()
        self._telling.event(
            f"A producer enqueues {self._tasks:,} tasks, {_WORKERS} workers run them.", "That goes on from now on."
        )

    def _kill_a_leader(self) -> None:
        victim, led = self._busiest_leader()
        servers = self._commands.up()["servers"]  # everything runs, so that this only looks
        [pid] = [server["pid"] for server in servers if server["name"] == victim]
        os.kill(pid, signal.SIGKILL)
        self._telling.event(
            f"{victim}, which leads shard{'s' * (len(led) > 1)} {', '.join(map(str, led))}, is killed with SIGKILL.",
            "Two of three replicas of each shard are left: they elect a leader and go on.",
        )
        began_s = time.monotonic()
        self._until(lambda: self._are_led_by_others(victim, led), f"new leaders in place of {victim}")
        self._telling.event(f"All shards have a leader again, {time.monotonic() - began_s:.1f} s later.")
        self._commands.up()
        self._telling.event(f"{victim} is started again on its data, and catches up.")

    def _busiest_leader(self) -> tuple[str, list[int]]:
        led: dict[str, list[int]] = {}
        for shard in self._commands.run("cluster", "status")["shards"]:
            led.setdefault(str(shard["leader"]), []).append(int(shard["shard"]))
        return max(led.items(), key=lambda row: (len(row[1]), row[0]))

    def _are_led_by_others(self, victim: str, shards: list[int]) -> bool:
        status = self._commands.look("cluster", "status", "--timeout", "3s")
        found = {row["shard"]: row["leader"] for row in (status or {}).get("shards", ())}
        return all(found.get(shard) not in (None, victim) for shard in shards)

    def _drain(self, node: str) -> None:
        self._telling.event(
            f"{node} is drained: it should hold nothing.", "Each replica is copied before it is given up."
        )
        plan = self._commands.run("node", "drain", node, "--yes")
        held = {row["name"]: row["replicas"] for row in self._commands.run("node", "ls")["nodes"]}
        if held[node]:
            raise DemoError(f"{node} still holds {held[node]} replicas after it was drained")
        self._telling.event(f"{node} is empty: {_steps(plan)}.")

    def _add_a_node(self) -> None:
        name = f"n{NODES + 1}"
        self._commands.up("--nodes", str(NODES + 1))
        self._telling.event(f"{name} is a new node of the cluster.", "It holds nothing yet.")
        plan = self._commands.run("shard", "apply", "--yes")
        held = {row["name"]: row["replicas"] for row in self._commands.run("node", "ls")["nodes"]}
        if not held[name]:
            raise DemoError(f"{name} holds nothing after the cluster was rebalanced")
        self._telling.event(f"The cluster is balanced again: {_steps(plan)}; {name} holds {held[name]} replicas.")

    def _settle(self) -> Account:
        stats = self._settled()
        self._telling.event("Every task is completed and acked.", "The replicas of each shard are compared.")
        for worker in self._workers:
            worker.stop(self._clock)
        self._record.refresh()
        compared = self._commands.run("shard", "hash", "--timeout", "60s")["shards"]
        hashes = {int(row["shard"]): bool(row["equal"]) for row in compared}
        verdict = judge(self._tasks, self._record, stats)
        problems = [f"the replicas of shard {shard} are not equal" for shard, equal in hashes.items() if not equal]
        if len(hashes) != SHARDS:
            problems.append(f"{len(hashes)} shards were compared instead of {SHARDS}")
        longest_s = self._producer.longest_call_s if self._producer is not None else 0.0
        return Account(replace(verdict, problems=(*verdict.problems, *problems)), hashes, longest_s)

    # --- waiting ----------------------------------------------------------------------------------------------

    def _until_completed(self, count: int) -> None:
        self._until(lambda: self._record.refresh() >= count, f"completing {count:,} tasks")

    def _until(self, done: Any, what: str) -> None:
        """With a look at everybody who should be working."""

        def is_done() -> bool:
            for worker in self._workers:
                worker.check()
            if self._producer is not None:
                if self._producer.error is not None:
                    raise DemoError(f"the producer failed: {self._producer.error}")
                self._telling.completed(self._record.refresh(), self._producer.accepted)
            return bool(done())

        self._clock.wait_until(is_done, what)

    def _settled(self) -> QueueStats:
        """The servers' own counts, once nothing is on its way any more."""
        found: list[QueueStats] = []
        with Client(self._commands.address, timeout_s=_CALL_S_MAX) as client:

            def settled() -> bool:
                try:
                    found.append(client.queue_stats(QUEUE))
                except HoldfastError:
                    return False
                stats = found[-1]
                return not (stats.ready or stats.claimed or stats.delayed or stats.retrying)

            self._until(settled, "the last ack")
        return found[-1]


def _steps(plan: dict[str, Any]) -> str:
    """What a plan did, in words."""
    moved = sum(not step["is_transfer"] and step["state"] == "DONE" for step in plan["steps"])
    led = sum(step["is_transfer"] and step["state"] == "DONE" for step in plan["steps"])
    return f"{_counted(moved, 'replica')} moved, {_counted(led, 'leader')} changed"


def _counted(number: int, what: str) -> str:
    return f"{number} {what}{'s' * (number != 1)}"
