"""Looking again and again: what commands that are watched have in common."""

import time
from collections.abc import Callable, Sequence
from typing import TypeVar

from holdfast.cli import output
from holdfast.cli.commands.shared import print_problem
from holdfast.cli.problems import ExitCode, problem_of
from holdfast.client import HoldfastError

T = TypeVar("T")


def watch(
    read: Callable[[], T],
    screen: Callable[[T], Sequence[output.Shown]],
    print_one: Callable[[T], object],
    every_s: float,
    *,
    as_json: bool,
) -> int:
    """Until Ctrl-C, which is its usual end. A server that is away for a moment is said, and asked again.

    screen: what a terminal shows. print_one: what is printed at each look elsewhere, and with --json."""
    shows_screen = output.is_watched() and not as_json
    try:
        with output.redrawn() as redraw:
            while True:
                try:
                    seen = read()
                except HoldfastError as error:
                    problem = problem_of(error)
                    if problem.exit_code is not ExitCode.UNREACHABLE:
                        raise
                    if shows_screen:
                        redraw([output.text(problem.message, "bold red")])
                    else:
                        print_problem(problem, as_json=as_json)
                else:
                    if shows_screen:
                        redraw(screen(seen))
                    else:
                        print_one(seen)
                time.sleep(every_s)
    except KeyboardInterrupt:
        return ExitCode.OK
