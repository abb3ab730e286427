"""What can go wrong, told to people in a line and what to do, to programs by a reason and an exit code."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import IntEnum

from holdfast.cli.times import shown_duration
from holdfast.client import (
    ClusterInfo,
    ConnectionFailed,
    DeadlineExceeded,
    HoldfastError,
    InvalidAddress,
    NotFound,
    NoToken,
    OpsPortFailed,
    OutcomeUnknown,
    Overloaded,
    Rejected,
    ResultTimeout,
    ServerError,
    TaskInfo,
    TaskState,
    Unavailable,
    UnexpectedAnswer,
)
from holdfast.client.errors import NO_LEADER

# What passes: a server, a leader or etcd that is away for a moment.
PASSING = (ConnectionFailed, DeadlineExceeded, Unavailable, Overloaded, OutcomeUnknown, ServerError)


class ExitCode(IntEnum):
    """How a command ended. Scripts rely on these numbers: never change one."""

    OK = 0
    REFUSED = 1  # the server said no, or not all of it could be done
    USAGE = 2  # the command line is wrong
    MISSING_EXTRA = 3  # a server command without the extra `server`, or `holdfast` is another program's name here
    UNREACHABLE = 4  # no server there, no answer in time, nobody leads, or a change that needs etcd, which is away
    NOT_FOUND = 5  # no such task, queue or shard
    NO_RESULT = 6  # the task waited for is dead or was cancelled
    UNFINISHED = 7  # the task waited for did not finish in time
    LAST_KNOWN = 8  # etcd does not answer: what is shown is the last that was known
    INTERRUPTED = 130  # Ctrl-C
    PIPE_CLOSED = 141  # whoever read the output has gone, e.g. `| head -1`


# The table that every help text shows. The pipe is left out: nobody looks at it.
EXIT_CODE_MEANINGS = {
    ExitCode.OK: "done",
    ExitCode.REFUSED: "refused by the server, or not all done",
    ExitCode.USAGE: "wrong usage",
    ExitCode.MISSING_EXTRA: "the server extra is missing, or another `holdfast` is installed",
    ExitCode.UNREACHABLE: "the server, or etcd where it is needed, cannot be reached, or no node leads",
    ExitCode.NOT_FOUND: "no such task, queue or shard",
    ExitCode.NO_RESULT: "the task is dead or was cancelled",
    ExitCode.UNFINISHED: "not finished in time",
    ExitCode.LAST_KNOWN: "etcd does not answer: the last known map is shown",
    ExitCode.INTERRUPTED: "interrupted",
}


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


def not_current(info: ClusterInfo) -> list[Problem]:
    """What every command that shows the map has to say of it while etcd does not answer; nothing otherwise."""
    if info.etcd_answers:
        return []
    message = f"etcd does not answer the server that was asked: this is the last map that it knew, {_map_age(info)}."
    hint = "Tasks go on without etcd, changes of the cluster do not. Check that etcd runs."
    return [Problem(ExitCode.LAST_KNOWN, "ETCD_UNAVAILABLE", message, hint)]


def last_known(info: ClusterInfo) -> str:
    """The same as a line above what is shown; empty while the map is current."""
    return "" if info.etcd_answers else f"etcd does not answer: this is the last known map, {_map_age(info)}."


def _map_age(info: ClusterInfo) -> str:
    if info.age_ms is None:
        return "from before the server was started"
    return f"as of {shown_duration(max(1, info.age_ms))} ago"


def shards_missing(shards: Sequence[int], where: str = "the numbers") -> Problem:
    """Of numbers that were added up over those that answered, or of a list."""
    message = f"{named_shards(shards).capitalize()} did not answer: what is there is not in {where}."
    return Problem(ExitCode.UNREACHABLE, "SHARDS_MISSING", message, _NO_LEADER_HINT)


def named_shards(shards: Sequence[int]) -> str:
    return f"shard{'s' * (len(shards) > 1)} " + ", ".join(map(str, shards[:10])) + ", …" * (len(shards) > 10)


def usage(message: str, hint: str = "") -> CommandFailed:
    return CommandFailed(Problem(ExitCode.USAGE, "USAGE", message, hint))


_NO_LEADER_HINT = (
    "A leader is elected within seconds if a majority of the nodes runs with its data: `holdfast shard ls` shows them."
)
_HINTS = {
    "TASK_NOT_FOUND": "Check the id: `holdfast enqueue` prints it. A finished task is forgotten after a while; "
    "`holdfast dlq discarded` shows dead letters that were thrown away.",
    "QUEUE_NOT_FOUND": "Check the name with `holdfast queue ls`: a queue exists from its first task on.",
    "WORKER_NOT_FOUND": "`holdfast workers` shows who works here. It may have ended, or be cut off for a minute now.",
    "SHARD_NOT_FOUND": "`holdfast shard ls` shows which shards there are, and where their replicas are.",
    "NOT_LEADER": _NO_LEADER_HINT,
    "NOT_DEAD": "Only dead letters can be shown, retried or discarded here; `holdfast task get` shows any task.",
    "TASK_FINISHED": "There is nothing left to do; `holdfast task get` shows how it ended.",
    "TASK_NOT_WAITING": "Only waiting tasks can be changed; `holdfast task cancel` has a worker stop a running one.",
    "REQUEST_ID_CONFLICT": "Use another --request-id for another task, or give this one the content it had before.",
    "SCHEDULE_NOT_FOUND": "`holdfast schedule ls` shows which schedules there are, and of which queues.",
    "SCHEDULE_EXISTS": "`holdfast schedule show` shows it. Without --must-be-new it is changed.",
    "NO_CLUSTER": "Make one with `holdfast cluster init --shards 64`. Its brokers need `etcd_endpoints` in their "
    "configuration; `holdfast cluster up` starts a whole cluster on this machine.",
    "CLUSTER_EXISTS": "`holdfast cluster status` shows it. The number of its shards never changes.",
    "NOT_ENOUGH_NODES": "`holdfast node ls` shows who is there. Start more brokers with the same `etcd_endpoints`; "
    "`holdfast cluster init --wait 60s` waits for them.",
    "NODE_NOT_FOUND": "`holdfast node ls` shows which nodes there are.",
    "PLAN_NOT_FOUND": "It is done or was given up. `holdfast cluster status` shows how things are.",
    "PLAN_REFUSED": "`holdfast cluster status` shows how things are, `holdfast shard plan` makes a plan that fits.",
    "PLAN_UNDER_WAY": "`holdfast shard watch` follows it, `holdfast shard apply` goes on with it, "
    "`holdfast shard cancel` gives it up.",
    "ETCD_UNAVAILABLE": "Check that etcd runs and that `etcd_endpoints` of the servers is right, then run this again.",
    "UNAUTHENTICATED": "Give this command a token with --token-file, HOLDFAST_TOKEN_FILE or HOLDFAST_TOKEN; an "
    "administrator makes one with `holdfast access token create`.",
    "PERMISSION_DENIED": "`holdfast access show` shows roles and who has them; an administrator can grant one.",
    "RULES_REFUSED": "docs/security.md says what access rules look like.",
    "CONFLICT": "Somebody else changed the same at the same time: look again, and repeat it if it is still wanted.",
}
# What helps with a field that is wrong, by how its name ends.
_FIELD_HINTS = {
    "task_id": "An id looks like 01984f6e-0000-8000-8000-000000000001: `holdfast enqueue` prints it.",
    "expression": "minute hour day-of-month month day-of-week, with seconds first if there are six; or @daily, @every "
    "90s. Try it with `holdfast schedule next '30 2 * * mon-fri'`.",
    "time_zone": "Zones are called as in the tz database: UTC, Europe/Berlin, America/New_York.",
}
# Nobody can be reached who could do it: the same as if there were no answer in time.
_UNREACHABLE = ("NOT_LEADER", "ETCD_UNAVAILABLE")


def problem_of(error: HoldfastError, subject: str = "") -> Problem:
    """How an error of the client is told at the command line; `subject` says which of several things it is about."""
    problem = _refusal(error) if isinstance(error, Rejected) else _failure(error)
    return replace(problem, message=f"{subject}: {problem.message}") if subject else problem


def _refusal(error: Rejected) -> Problem:
    code = ExitCode.UNREACHABLE if error.reason in _UNREACHABLE else ExitCode.REFUSED
    code = ExitCode.NOT_FOUND if isinstance(error, NotFound) else code
    hint = _HINTS.get(error.reason, "")
    if error.reason == "INVALID_FIELD":
        # The last part of spec.expression, task_ids[3] or items[0].task_id.
        name = error.field.rpartition(".")[2].partition("[")[0].removesuffix("s")
        hint = _FIELD_HINTS.get(name, hint)
    if not hint and error.retry_after_ms:
        hint = f"Try again in {error.retry_after_ms / 1000:g} s."
    return Problem(
        code,
        error.reason,
        str(error),
        hint,
        error.field,
        error.retry_after_ms,
    )


def _failure(error: HoldfastError) -> Problem:
    if isinstance(error, InvalidAddress):
        return Problem(ExitCode.USAGE, "INVALID_ADDRESS", str(error), "Set it with --address or HOLDFAST_ADDRESS.")
    if isinstance(error, NoToken):
        hint = "Set the file with --token-file or HOLDFAST_TOKEN_FILE."
        return Problem(ExitCode.USAGE, "NO_TOKEN", str(error), hint)
    if isinstance(error, OpsPortFailed):
        message = f"Cannot listen for HTTP on {error.host} port {error.port}: {error.cause}."
        return Problem(ExitCode.USAGE, "PORT_TAKEN", message, "Choose another --ops-port; 0 takes a free one.")
    if isinstance(error, ResultTimeout):
        message = f"Task {error.task_id} did not finish within {error.timeout_s:g} s."
        hint = f"It goes on: wait again, or look at it with `holdfast task get {error.task_id}`."
        return Problem(ExitCode.UNFINISHED, "UNFINISHED", message, hint)
    if isinstance(error, ConnectionFailed):
        cause = f" ({error.cause})" if error.cause else ""
        hint = "Start one with `holdfast dev`, or set the right address with --address or HOLDFAST_ADDRESS."
        if "," in error.address:
            hint = "Check that the nodes of the cluster run, and the addresses in --address or HOLDFAST_ADDRESS."
        if "something else" in error.cause:
            hint = "Check the port: a server has one for gRPC (7400 unless set) and another for HTTP (7403 unless set)."
        message = f"No Holdfast server answers at {error.address}{cause}."
        if NO_LEADER in error.cause:
            message, hint = f"No leader answers at {error.address}{cause}.", _NO_LEADER_HINT
        return Problem(ExitCode.UNREACHABLE, "CONNECTION_FAILED", message, hint)
    if isinstance(error, DeadlineExceeded):
        cause = f" ({error.cause})" if error.cause else ""
        message = f"The server at {error.address} did not answer within {error.timeout_s:g} s{cause}."
        hint = _NO_LEADER_HINT if NO_LEADER in error.cause else "Try again, or allow more with --timeout."
        return Problem(ExitCode.UNREACHABLE, "DEADLINE_EXCEEDED", message, hint)
    if isinstance(error, UnexpectedAnswer):
        where = f" at {error.address}" if error.address else ""
        return Problem(
            ExitCode.UNREACHABLE,
            "UNEXPECTED_ANSWER",
            f"What answers{where} does not speak this version of the Holdfast API ({error.problem}).",
            "Check the address, and that the server is not older than this command.",
        )
    return Problem(ExitCode.REFUSED, "FAILED", str(error))


def no_result(info: TaskInfo) -> Problem | None:
    """Why a finished task has no result; None if it succeeded."""
    if info.state is TaskState.SUCCEEDED:
        return None
    if info.state is TaskState.DEAD:
        error = info.last_error
        cause = f"; {error.type}: {error.message}" if error is not None and error.type else ""
        message = f"Task {info.task_id} is dead ({info.dead_reason or 'no reason given'}{cause})."
        hint = f"`holdfast dlq show {info.task_id}` says more, `holdfast dlq retry {info.task_id}` tries again."
        return Problem(ExitCode.NO_RESULT, "TASK_DEAD", message, hint)
    if info.state is TaskState.CANCELLED:
        return Problem(ExitCode.NO_RESULT, "TASK_CANCELLED", f"Task {info.task_id} was cancelled.")
    message = f"Task {info.task_id} is in a state that this command does not know."
    return Problem(ExitCode.NO_RESULT, "UNKNOWN_STATE", message, "A newer version of this command may know it.")
