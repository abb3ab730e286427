"""The benchmarks of Holdfast: `make bench`, or `python benchmarks/run.py --help`.

Each scenario starts a real server on a data directory under the current one and loads it from separate processes, so
client and server share the machine as they do in the targets. A missed target is reported; the exit code tells only
whether a run broke.
"""

import argparse
import asyncio
import dataclasses
import json
import signal
import sys
from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

from harness.bench import FULL, QUICK, Bench, Sizes
from harness.commands import DATE_FORMAT, as_typed
from harness.display import Display
from harness.machine import Machine, look_at_machine
from harness.results import Aim, BrokenRunError, Measured, Outcome, reasons
from holdfast.client import HoldfastError
from scenarios import (
    backlog,
    batches,
    failover,
    idle,
    limits,
    many_shards,
    move,
    overload,
    replicated,
    router,
    router_failover,
    router_start,
    shapes,
    shard_away,
    singles,
    state_cost,
    storms,
    tenants,
    waiting,
    watching,
    workers,
)

EXIT_OK = 0
EXIT_BROKEN = 1
SYNCS = 200


class Scenario(NamedTuple):
    title: str
    aims: Sequence[Aim]
    measure: Callable[[Bench], Awaitable[Measured]]
    repeats: int  # of a full run


SCENARIOS = {
    "enqueue": Scenario(
        "100 × 1 KB per call, synced, four calls in flight", batches.ENQUEUE_AIMS, batches.measure_enqueue, 3
    ),
    "lifecycle": Scenario(
        "enqueue, claim and ack 100 at a time, two consumer processes",
        batches.LIFECYCLE_AIMS,
        batches.measure_lifecycle,
        3,
    ),
    "single": Scenario("single enqueues of 1 KB at 200/s", singles.SINGLE_AIMS, singles.measure_single, 3),
    "pickup": Scenario("enqueue until a waiting worker has the task", singles.PICKUP_AIMS, singles.measure_pickup, 3),
    "worker": Scenario(
        "calls of an app, one worker process with async handlers", workers.WORKER_AIMS, workers.measure_worker, 3
    ),
    "caller": Scenario("calls of an app, one after the other", workers.CALLER_AIMS, workers.measure_caller, 3),
    # Takes many samples by itself.
    "backlog": Scenario(
        "enqueue, claim and ack beside a large backlog in runs and with an empty queue in turns, start-up, memory",
        backlog.AIMS,
        backlog.measure,
        1,
    ),
    "single-backlog": Scenario(
        "the same where each task has a request id of its own, and so rows of its own",
        backlog.AIMS,
        backlog.measure_singles,
        1,
    ),
    "state": Scenario(
        "what RocksDB takes of whole lives, without a server: what an overlay in front of it could save at most",
        state_cost.AIMS,
        state_cost.measure,
        3,
    ),
    "batch-sizes": Scenario(
        "enqueue, claim and ack in calls of 1, 10, 100 and 1,000 tasks", shapes.BATCH_AIMS, shapes.measure_batches, 3
    ),
    "payloads": Scenario(
        "enqueue, claim and ack of tasks of 0, 1 and 64 KB, ten per call",
        shapes.PAYLOAD_AIMS,
        shapes.measure_payloads,
        3,
    ),
    "shards-replicas": Scenario(
        "whole lives on three nodes that have 1 or 4 shards with 1 or 3 replicas",
        shapes.SHARD_AIMS,
        shapes.measure_shards,
        3,
    ),
    "overload": Scenario(
        f"memory while {overload.CALLERS} connections send tasks of 1 MB without a pause (asked for: --seconds 20)",
        overload.AIMS,
        overload.measure,
        1,
    ),
    "replicated-enqueue": Scenario(
        "100 × 1 KB per call into three replicas, each synced", replicated.ENQUEUE_AIMS, replicated.measure_enqueue, 3
    ),
    "replicated-lifecycle": Scenario(
        "enqueue, claim and ack 100 at a time, three replicas",
        replicated.LIFECYCLE_AIMS,
        replicated.measure_lifecycle,
        3,
    ),
    "replicated-single": Scenario(
        "single enqueues of 1 KB at 100/s, three replicas and one in turns",
        replicated.SINGLE_AIMS,
        replicated.measure_single,
        1,
    ),
    "failover": Scenario("until a write is acknowledged after the leader is gone", failover.AIMS, failover.measure, 1),
    "router-failover": Scenario(
        "until a worker behind a router has a task of a shard whose leader is gone",
        router_failover.AIMS,
        router_failover.measure,
        1,
    ),
    "idle-shards": Scenario(f"three nodes, {idle.SHARDS} shards, nothing to do", idle.AIMS, idle.measure, 1),
    "many-shards": Scenario(
        "three nodes, many shards, all of them saturated: --seconds 180 for the figures that are asked for",
        many_shards.AIMS,
        many_shards.measure,
        1,
    ),
    "router-enqueue": Scenario(
        "100 × 1 KB per call, through the router and straight to the leader in turns",
        router.ENQUEUE_AIMS,
        router.measure_enqueue,
        1,
    ),
    "router-single": Scenario(
        f"single enqueues of 1 KB at {router.SINGLE_RATE_PER_S:g}/s, through the router and straight in turns",
        router.SINGLE_AIMS,
        router.measure_single,
        1,
    ),
    "shard-away": Scenario(
        "enqueue, claim and ack of other queues before and while the shards of one node are away",
        shard_away.AIMS,
        shard_away.measure,
        1,
    ),
    "waiting": Scenario(
        "very many idle workers at one broker (asked for: 10,000)", waiting.BROKER_AIMS, waiting.measure_broker, 1
    ),
    "waiting-workers": Scenario(
        f"very many idle workers behind one router, their queue on {waiting.SHARDS} shards",
        waiting.AIMS,
        waiting.measure,
        1,
    ),
    "watching": Scenario(
        "heartbeats of workers, and lists of tasks with a small and a large backlog, through a router",
        watching.AIMS,
        watching.measure,
        1,
    ),
    "move": Scenario("a replica moves to a new node while tasks are enqueued", move.AIMS, move.measure, 1),
    "router-start": Scenario("a router starts with a large map", router_start.AIMS, router_start.measure, 1),
    "limits": Scenario(
        "lifecycle with tenants, priorities, caps and rates, and without, in turns", limits.AIMS, limits.measure, 1
    ),
    "replicated-limits": Scenario(
        "lifecycle with tenants, priorities and caps, and without, in turns, three replicas",
        limits.REPLICATED_AIMS,
        limits.measure_replicated,
        1,
    ),
    "many-tenants": Scenario(
        "single enqueues while workers take turns through very many tenants", tenants.AIMS, tenants.measure, 1
    ),
    "due-storm": Scenario(
        "single enqueues while very many delayed tasks are due at once", storms.DUE_AIMS, storms.measure_due, 1
    ),
    "expiry-storm": Scenario(
        "single enqueues while very many leases end at once", storms.EXPIRY_AIMS, storms.measure_expiry, 1
    ),
}


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError("must be at least 1")
    return number


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Measures Holdfast on this machine.")
    parser.add_argument("scenario", nargs="*", help=f"which to run: {', '.join(SCENARIOS)} (all)")
    parser.add_argument("--quick", action="store_true", help="small sizes, once each: shows that everything works")
    parser.add_argument("--repeat", type=_positive, metavar="N", help="how often to run each scenario")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write everything that was measured to this file")
    parser.add_argument(
        "--dir", type=Path, default=Path(), metavar="DIR", help="where data is put meanwhile (the current directory)"
    )
    parser.add_argument(
        "--tasks",
        type=_positive,
        metavar="N",
        help="tasks of enqueue, lifecycle, state, worker and caller, replicated or not, of a run of router-enqueue and "
        "limits, of each size of calls and payloads, and of a storm",
    )
    parser.add_argument(
        "--seconds",
        type=_positive,
        metavar="N",
        help="length of single, overload, a turn of replicated-single, router-single, shards-replicas and "
        "many-tenants, of idle-shards and many-shards, and before a move or a storm",
    )
    parser.add_argument("--samples", type=_positive, metavar="N", help="tasks of pickup")
    parser.add_argument("--backlog", type=_positive, metavar="N", help="tasks of the large backlog, in runs or not")
    parser.add_argument("--tenants", type=_positive, metavar="N", help="tenants of many-tenants")
    parser.add_argument("--turns", type=_positive, metavar="N", help="turns of limits and many-tenants")
    parser.add_argument("--trials", type=_positive, metavar="N", help="fail-overs of each kind, starts of a router")
    parser.add_argument("--workers", type=_positive, metavar="N", help="of waiting and waiting-workers")
    parser.add_argument("--mb", type=_positive, metavar="N", help="how much a replica has that moves")
    arguments = parser.parse_args(argv)
    unknown = [name for name in arguments.scenario if name not in SCENARIOS]
    if unknown:
        parser.error(f"no such scenario: {', '.join(unknown)} (choose from {', '.join(SCENARIOS)})")
    if not arguments.dir.is_dir():
        parser.error(f"--dir: {arguments.dir} is not a directory")
    return arguments


def _sizes(arguments: argparse.Namespace) -> Sizes:
    sizes = QUICK if arguments.quick else FULL
    if arguments.tasks:
        number = arguments.tasks
        sizes = dataclasses.replace(
            sizes,
            enqueue_tasks=number,
            lifecycle_tasks=number,
            worker_tasks=number,
            caller_tasks=number,
            router_tasks=number,
            limit_tasks=number,
            storm_tasks=number,
            shape_tasks=number,
        )
    if arguments.seconds:
        seconds = float(arguments.seconds)
        sizes = dataclasses.replace(
            sizes,
            single_seconds=seconds,
            turn_seconds=seconds,
            idle_seconds=seconds,
            move_seconds=seconds,
            steady_seconds=seconds,
            saturated_seconds=seconds,
        )
    if arguments.samples:
        sizes = dataclasses.replace(sizes, pickup_tasks=arguments.samples)
    if arguments.trials:
        sizes = dataclasses.replace(sizes, trials=arguments.trials, starts=arguments.trials)
    if arguments.tenants:
        sizes = dataclasses.replace(sizes, tenants=arguments.tenants)
    if arguments.turns:
        sizes = dataclasses.replace(sizes, limit_turns=arguments.turns, tenant_turns=arguments.turns)
    if arguments.workers:
        sizes = dataclasses.replace(sizes, waiting_workers=arguments.workers)
    if arguments.mb:
        sizes = dataclasses.replace(sizes, move_mb=arguments.mb)
    if arguments.backlog:
        sizes = dataclasses.replace(sizes, backlog_tasks=arguments.backlog, single_backlog_tasks=arguments.backlog)
    return sizes


async def _run_scenario(name: str, bench: Bench, repeats: int) -> Outcome:
    scenario = SCENARIOS[name]
    measured = Measured()
    broken = ""
    for turn in range(1, repeats + 1):
        bench.display.say(f"{name} {turn}/{repeats}: {scenario.title}")
        try:
            measured.add(await scenario.measure(bench))
        except* (BrokenRunError, HoldfastError, TimeoutError) as group:
            broken = reasons(group)
        if broken:
            break
    outcome = Outcome.of(name, scenario.title, scenario.aims, measured)
    outcome.broken = broken
    return outcome


def _write_json(path: Path, machine: Machine, sizes: Sizes, outcomes: Sequence[Outcome], *, quick: bool) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    content = {
        "date": datetime.now(UTC).strftime(DATE_FORMAT),
        "command": as_typed("bench", sys.argv[1:]),
        "quick": quick,
        "machine": dataclasses.asdict(machine),
        "sizes": dataclasses.asdict(sizes),
        "scenarios": [dataclasses.asdict(outcome) for outcome in outcomes],
    }
    path.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n")


async def _main(arguments: argparse.Namespace) -> int:
    # A polite end also ends the processes and removes the data.
    task = asyncio.current_task()
    assert task is not None
    for signum in (signal.SIGTERM, signal.SIGHUP):
        asyncio.get_running_loop().add_signal_handler(signum, task.cancel)
    display = Display()
    directory = arguments.dir.resolve()
    sizes = _sizes(arguments)
    machine = look_at_machine(directory, syncs=SYNCS)
    bench = Bench(sizes, directory, display)
    outcomes = []
    for name in arguments.scenario or SCENARIOS:
        repeats = arguments.repeat or (1 if arguments.quick else SCENARIOS[name].repeats)
        outcomes.append(await _run_scenario(name, bench, repeats))
    display.report(machine, outcomes, quick=arguments.quick)
    if arguments.json:
        _write_json(arguments.json, machine, sizes, outcomes, quick=arguments.quick)
    return EXIT_BROKEN if any(outcome.broken for outcome in outcomes) else EXIT_OK


def main(argv: Sequence[str] | None = None) -> int:
    try:
        return asyncio.run(_main(_arguments(argv)))
    except (KeyboardInterrupt, asyncio.CancelledError):
        return EXIT_BROKEN


if __name__ == "__main__":
    sys.exit(main())
