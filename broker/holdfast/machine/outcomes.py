"""What an applied item answers when it was not refused."""

from collections.abc import Sequence
from typing import NamedTuple

from holdfast.machine.rejections import Rejection

# The id of a follow-up that was accepted for another shard: it gets one when it arrives there.
ELSEWHERE = bytes(16)


class Accepted(NamedTuple):
    task_id: bytes
    duplicate: bool  # the request id was seen before, or the unique key is taken: by this task
    # Of a duplicate: what that task is now; 0 if it is known no more. DEAD of a new one: it is a dead letter at once.
    state: int = 0


class Claimed(NamedTuple):
    """A claim as it was granted; the task itself goes on changing."""

    task_id: bytes
    token: int
    expiry_ms: int
    failures: int
    claims: int
    enqueued_ms: int
    is_alone: bool = False  # a suspect: its worker must not hold anything else meanwhile
    tasks: int = 1  # of a run, with consecutive ids and tokens
    # Where in the answer each of them belongs, as they were picked; empty: one behind the other. Known to the leader.
    at: Sequence[int] = ()


class AcceptedRun(NamedTuple):
    """The tasks of a run, which have consecutive ids."""

    task_id: bytes  # of the first; empty if none is new
    duplicate: bool  # the request id was seen before, and made these tasks
    others: "tuple[tuple[int, Accepted | Rejection], ...]" = ()  # that are not among them by their own ids: places


class AckedRange(NamedTuple):
    """All were acked, but for those that are named."""

    refused: tuple[tuple[int, Rejection], ...]  # place in the range, and why


class Acked(NamedTuple):
    follow_ups: tuple[Accepted, ...]


class Failed(NamedTuple):
    state: int
    retry_at_ms: int


class Extended(NamedTuple):
    expiry_ms: int
    cancel_requested: bool


class Moved(NamedTuple):
    """The state a task is in now."""

    state: int


class Changed(NamedTuple):
    """The version or level that holds now."""

    number: int


class Fired(NamedTuple):
    """What became of one tick of a schedule."""

    task_id: bytes  # rows.NO_TASK: none, because the task before has not finished
    duplicate: bool
    state: int = 0  # of a duplicate: what that task is now; 0 if it is known no more


class Received(NamedTuple):
    """How far the messages of a source have come."""

    last: int
    accepted: tuple[Accepted, ...]  # those that had not come before


Outcome = (
    Accepted | AcceptedRun | Claimed | Acked | AckedRange | Failed | Extended | Moved | Changed | Fired | Received
    | Rejection
)  # fmt: skip
