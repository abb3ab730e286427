"""What can go wrong, told to people in a line and what to do, to programs by a reason and an exit code."""

from dataclasses import dataclass
from enum import IntEnum

from holdfast.client import (
    ConnectionFailed,
    DeadlineExceeded,
    HoldfastError,
    InvalidAddress,
    NotFound,
    Rejected,
    UnexpectedAnswer,
)


class ExitCode(IntEnum):
    """How a command ended. Scripts rely on these numbers: never change one."""

    OK = 0
    REFUSED = 1  # the server said no
    USAGE = 2  # the command line is wrong
    MISSING_EXTRA = 3  # a server command without holdfast[server]
    UNREACHABLE = 4  # no server there, or no answer in time
    NOT_FOUND = 5  # no such task or queue


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that went wrong."""

    exit_code: ExitCode
    reason: str  # for programs, e.g. TASK_NOT_FOUND
    message: str  # one line
    hint: str = ""  # what to do about it, if there is something
    field: str = ""  # the offending field of a refused request
    retry_after_ms: int = 0  # 0 if trying again cannot help


class CommandFailed(Exception):  # noqa: N818 - it carries a problem, and is one only in passing
    """Ends the command with this problem."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem.message)
        self.problem = problem


def usage(message: str, hint: str = "") -> CommandFailed:
    return CommandFailed(Problem(ExitCode.USAGE, "USAGE", message, hint))


_NOT_FOUND_HINTS = {
    "TASK_NOT_FOUND": "Check the id: `holdfast enqueue` prints it. A finished task is forgotten after a while.",
    "QUEUE_NOT_FOUND": "Check the name: a queue exists from its first task on.",
}


def problem_of(error: HoldfastError, subject: str = "") -> Problem:
    """How an error of the client is told at the command line; `subject` says which of several things it is about."""
    if isinstance(error, Rejected):
        missing = isinstance(error, NotFound)
        hint = _NOT_FOUND_HINTS.get(error.reason, "")
        if not hint and error.retry_after_ms:
            hint = f"Try again in {error.retry_after_ms / 1000:g} s."
        return Problem(
            ExitCode.NOT_FOUND if missing else ExitCode.REFUSED,
            error.reason,
            f"{subject}: {error}" if subject else str(error),
            hint,
            error.field,
            error.retry_after_ms,
        )
    if isinstance(error, InvalidAddress):
        return Problem(ExitCode.USAGE, "INVALID_ADDRESS", str(error), "Set it with --address or HOLDFAST_ADDRESS.")
    if isinstance(error, ConnectionFailed):
        cause = f" ({error.cause})" if error.cause else ""
        return Problem(
            ExitCode.UNREACHABLE,
            "CONNECTION_FAILED",
            f"No Holdfast server answers at {error.address}{cause}.",
            "Start one with `holdfast dev`, or set the right address with --address or HOLDFAST_ADDRESS.",
        )
    if isinstance(error, DeadlineExceeded):
        message = f"The server at {error.address} did not answer within {error.timeout_s:g} s."
        return Problem(ExitCode.UNREACHABLE, "DEADLINE_EXCEEDED", message, "Try again, or allow more with --timeout.")
    if isinstance(error, UnexpectedAnswer):
        where = f" at {error.address}" if error.address else ""
        return Problem(
            ExitCode.UNREACHABLE,
            "UNEXPECTED_ANSWER",
            f"What answers{where} does not speak this version of the Holdfast API ({error.problem}).",
            "Check the address, and that this command and the server have versions that fit.",
        )
    return Problem(ExitCode.REFUSED, "FAILED", str(error))
