"""Runs many seeded histories of replicas under faults: `make sim SEEDS=1000 START=0`.

SEEDS is how many histories must count (enough happened in them to prove something), for each number of replicas;
further seeds are taken until that many did. Every seed that fails is printed. Exits with 1 if one did, or if too few
counted.

`--ablations` looks for seeds that find out each ablation instead, for tests/simulation/raft_seeds.py.
"""

import argparse
import multiprocessing
import os
import sys
import time
import traceback
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tests.simulation.raft_histories import counts, history
from tests.simulation.raft_seeds import ALL_ABLATIONS

REPLICAS = (3, 5)
REPORT_S = 10.0
FAILURES_MAX = 20
SEEDS_PER_WANTED = 2  # when so many more seeds than wanted were tried, something is wrong with the histories
ABLATION_SEEDS = 300

Task = tuple[int, int]  # seed, replicas


@dataclass(frozen=True)
class Result:
    seed: int
    replicas: int
    counted: bool
    failure: str


def run_one(task: Task) -> Result:
    seed, replicas = task
    try:
        return Result(seed, replicas, counts(history(seed, replicas)), "")
    except Exception as error:  # noqa: BLE001 - whatever it is, its seed must be told
        place = traceback.extract_tb(error.__traceback__)[-1]
        failure = f"{type(error).__name__}: {error} ({Path(place.filename).name}:{place.lineno})"
        return Result(seed, replicas, False, failure)


@dataclass
class Tally:
    wanted: int  # for each number of replicas
    counted: dict[int, int] = field(default_factory=lambda: dict.fromkeys(REPLICAS, 0))
    done: int = 0
    failed: int = 0

    def take(self, result: Result) -> None:
        self.done += 1
        self.counted[result.replicas] += result.counted
        if result.failure:
            self.failed += 1
            print(f"seed {result.seed} with {result.replicas} replicas: {result.failure}", flush=True)

    @property
    def is_enough(self) -> bool:
        return all(counted >= self.wanted for counted in self.counted.values())

    def sentence(self) -> str:
        counted = " and ".join(f"{self.counted[replica]:,} with {replica} replicas" for replica in REPLICAS)
        return f"{self.done:,} histories, counted: {counted}, {self.failed} failed"


def tasks(tally: Tally, start: int) -> Iterator[Task]:
    """Seed by seed, until enough of them counted."""
    for number in count():
        if tally.is_enough or tally.failed >= FAILURES_MAX or number >= SEEDS_PER_WANTED * tally.wanted + 10:
            return
        for replicas in REPLICAS:
            if tally.counted[replicas] < tally.wanted:
                yield start + number, replicas


def run_all(tally: Tally, start: int, workers: int, minutes_max: float) -> None:
    """Results come in the order of the seeds, whoever finds them; a few tasks per worker are under way at a time."""
    said_s = began_s = time.monotonic()
    with multiprocessing.get_context("spawn").Pool(workers) as pool:
        waiting: list[multiprocessing.pool.AsyncResult[Result]] = []
        more = tasks(tally, start)
        is_over = False
        while waiting or not is_over:
            while not is_over and len(waiting) < 4 * workers:
                task = next(more, None)
                is_over = task is None or time.monotonic() - began_s > 60 * minutes_max
                if task is not None:
                    waiting.append(pool.apply_async(run_one, (task,)))
            if waiting:
                tally.take(waiting.pop(0).get())
            if time.monotonic() - said_s > REPORT_S:
                said_s = time.monotonic()
                print(tally.sentence(), flush=True)


def look_for_ablations(start: int) -> int:
    missing = 0
    for name, ablation in ALL_ABLATIONS.items():
        found = ablation.find_out(range(start, start + ABLATION_SEEDS))
        missing += found is None
        print(f'    "{name}": {found},', flush=True)
    return 1 if missing else 0


def main() -> int:
    parser = argparse.ArgumentParser(description="Runs seeded histories of replicas under faults.")
    parser.add_argument("--seeds", type=int, default=1_000, help="how many must count, for each number of replicas")
    parser.add_argument("--start", type=int, default=0, help="the first one")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1, help="processes, one per core by default")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="begin no more after this time")
    parser.add_argument("--ablations", action="store_true", help="look for a seed that finds out each ablation")
    arguments = parser.parse_args()
    if arguments.ablations:
        return look_for_ablations(arguments.start)
    tally = Tally(arguments.seeds)
    run_all(tally, arguments.start, arguments.workers, arguments.minutes)
    print(tally.sentence())
    if not tally.is_enough:
        print(f"fewer than {tally.wanted:,} counted")
    return 0 if tally.is_enough and not tally.failed else 1


if __name__ == "__main__":
    sys.exit(main())
