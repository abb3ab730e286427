"""`make demo`: shows that no task is lost when a worker and the server are killed. Exit code 0 only if that is so."""

import argparse
import shutil
import signal
import sys
import tempfile
from pathlib import Path
from types import FrameType

from examples.demo.display import Display
from examples.demo.processes import Clock, DemoError
from examples.demo.story import Story
from holdfast.client import HoldfastError

EXIT_OK = 0
EXIT_FAILED = 1
EXIT_INTERRUPTED = 130
TASKS_MIN = 300  # fewer are done before anything can be killed
TASKS_MAX = 1_000_000


def main(argv: list[str] | None = None) -> int:
    options = _options(argv)
    before = {number: signal.signal(number, _interrupt) for number in (signal.SIGTERM, signal.SIGHUP)}
    directory = Path(tempfile.mkdtemp(prefix="holdfast-demo-"))
    try:
        return _run(options.tasks, directory, Clock(options.time_limit))
    except KeyboardInterrupt:
        print("Interrupted: everything was stopped.", file=sys.stderr)
        return EXIT_INTERRUPTED
    finally:
        shutil.rmtree(directory, ignore_errors=True)
        for number, handler in before.items():
            signal.signal(number, handler)


def _run(tasks: int, directory: Path, clock: Clock) -> int:
    with Display(tasks) as display:
        story = Story(tasks, directory, clock, display)
        try:
            verdict = story.tell()
        except (DemoError, HoldfastError) as error:
            display.line(f"FAILED: {error}", "bold red")
            return EXIT_FAILED
        finally:
            story.end()
        for problem in verdict.problems:
            display.line(f"FAILED: {problem}", "bold red")
        if verdict.good:
            display.line(f"All {tasks:,} tasks were completed, none was lost ({clock.elapsed_s:.0f} s).", "bold green")
    return EXIT_OK if verdict.good else EXIT_FAILED


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def _options(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make demo", description=__doc__)
    parser.add_argument("--tasks", type=int, default=10_000, metavar="N", help="how many tasks (10000)")
    parser.add_argument("--time-limit", type=float, default=180.0, metavar="SECONDS", help="for all of it (180)")
    options = parser.parse_args(argv)
    if not TASKS_MIN <= options.tasks <= TASKS_MAX:
        parser.error(f"Expected --tasks from {TASKS_MIN} to {TASKS_MAX}, but got {options.tasks}.")
    return options


if __name__ == "__main__":
    sys.exit(main())
