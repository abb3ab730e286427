"""`make demo-cluster`: shows that a cluster loses no task while a leader is killed, a node emptied and another added.

Exit code 0 only if every accepted task was acked and the replicas of each shard are equal.
"""

import argparse
import json
import shutil
import signal
import sys
import tempfile
from pathlib import Path
from types import FrameType

from examples.demo.processes import Clock, DemoError
from examples.demo_cluster.story import Account, Story
from examples.demo_cluster.telling import Telling, standard_stream
from holdfast.client import HoldfastError

EXIT_OK = 0
EXIT_FAILED = 1
EXIT_INTERRUPTED = 130
TASKS_MIN = 1_000  # fewer are done before anything has happened
TASKS_MAX = 1_000_000


def main(argv: list[str] | None = None) -> int:
    options = _options(argv)
    before = {number: signal.signal(number, _interrupt) for number in (signal.SIGTERM, signal.SIGHUP)}
    directory = Path(tempfile.mkdtemp(prefix="holdfast-demo-cluster-"))
    try:
        return _run(options, directory)
    except KeyboardInterrupt:
        print("Interrupted: everything was stopped.", file=sys.stderr)
        return EXIT_INTERRUPTED
    finally:
        shutil.rmtree(directory, ignore_errors=True)
        for number, handler in before.items():
            signal.signal(number, handler)


def _run(options: argparse.Namespace, directory: Path) -> int:
    clock = Clock(options.time_limit)
    telling = Telling(options.tasks, standard_stream(as_json=options.json))
    story = Story(options.tasks, directory, clock, telling)
    account: Account | None = None
    problems: list[str] = []
    try:
        account = story.tell()
        problems += account.verdict.problems
    except (DemoError, HoldfastError) as error:
        problems.append(str(error))
    finally:
        story.end()
    _tell(account, problems, options.tasks, clock, telling)
    if options.json:
        print(json.dumps(_summary(account, problems, options.tasks, clock, telling), separators=(",", ":")))
    return EXIT_FAILED if problems else EXIT_OK


def _tell(account: Account | None, problems: list[str], tasks: int, clock: Clock, telling: Telling) -> None:
    if account is not None:
        verdict = account.verdict
        telling.line()
        telling.line(f"  record of the handlers   {verdict.completed:,} different tasks in {verdict.runs:,} runs")
        telling.line(f"  ran more than once       {verdict.repeated:,} (at least once is the promise)")
        telling.line(f"  longest enqueue          {account.longest_call_s:.1f} s, through all that happened")
        equal = sum(account.hashes.values())
        telling.line(f"  shards compared          {equal} of {len(account.hashes)} have equal replicas")
        telling.line()
    for problem in problems:
        telling.line(f"FAILED: {problem}")
    if not problems:
        telling.line(f"All {tasks:,} tasks were completed, none was lost ({clock.elapsed_s:.0f} s).")


def _summary(
    account: Account | None, problems: list[str], tasks: int, clock: Clock, telling: Telling
) -> dict[str, object]:
    found: dict[str, object] = {}
    if account is not None:
        found = {
            "completed": account.verdict.completed,
            "runs": account.verdict.runs,
            "repeated": account.verdict.repeated,
            "shards_equal": sum(account.hashes.values()),
            "shards": len(account.hashes),
            "longest_enqueue_s": round(account.longest_call_s, 3),
        }
    return {
        "good": not problems,
        "tasks": tasks,
        "seconds": round(clock.elapsed_s, 1),
        **found,
        "events": telling.events,
        "problems": problems,
    }


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def _options(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make demo-cluster", description=__doc__)
    parser.add_argument("--tasks", type=int, default=20_000, metavar="N", help="how many tasks (20000)")
    parser.add_argument("--time-limit", type=float, default=300.0, metavar="SECONDS", help="for all of it (300)")
    parser.add_argument("--json", action="store_true", help="a summary as one line of JSON on standard output")
    options = parser.parse_args(argv)
    if not TASKS_MIN <= options.tasks <= TASKS_MAX:
        parser.error(f"Expected --tasks from {TASKS_MIN} to {TASKS_MAX}, but got {options.tasks}.")
    return options


if __name__ == "__main__":
    sys.exit(main())
