"""Runs a command line: every expected failure is a line and an exit code, never a traceback."""

import os
import sys
from collections.abc import Sequence

from holdfast.cli.commands import root
from holdfast.cli.commands.shared import print_problem
from holdfast.cli.problems import CommandFailed, ExitCode, problem_of
from holdfast.client import HoldfastError


def run(arguments: Sequence[str]) -> int:
    try:
        code = _run(arguments, as_json="--json" in arguments)
        sys.stdout.flush()  # here, where a reader that has gone can still be told from a fault
    except BrokenPipeError:
        _forget_output()
        return ExitCode.PIPE_CLOSED
    return code


def _run(arguments: Sequence[str], *, as_json: bool) -> int:
    try:
        return root.run(arguments)
    except HoldfastError as error:
        problem = problem_of(error)
    except CommandFailed as failed:
        problem = failed.problem
    except SystemExit as end:
        # Completion leaves in this way, and so does typer when the reader of a pipe has gone.
        if isinstance(end.__context__, BrokenPipeError):
            raise end.__context__ from None
        return end.code if isinstance(end.code, int) else ExitCode.OK
    print_problem(problem, as_json=as_json)
    return problem.exit_code


def _forget_output() -> None:
    """Lets the interpreter's last flush succeed: it would print a traceback."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in (sys.__stdout__, sys.__stderr__):
        if stream is not None:
            os.dup2(nowhere, stream.fileno())
    os.close(nowhere)
