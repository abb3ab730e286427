"""What an applied item answers when it was not refused."""

from typing import NamedTuple

from holdfast.machine.rejections import Rejection


class Accepted(NamedTuple):
    task_id: bytes
    duplicate: bool  # the request id was seen before and made this task


class Claimed(NamedTuple):
    """A claim as it was granted; the task itself goes on changing."""

    task_id: bytes
    token: int
    expiry_ms: int
    failures: int
    claims: int
    enqueued_ms: int


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


Outcome = Accepted | Claimed | Acked | Failed | Extended | Moved | Rejection
