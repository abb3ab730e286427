"""What follows from an applied entry outside the state. Run on the leader only; may repeat or be lost."""

from typing import NamedTuple


class ReadyTask(NamedTuple):
    """A task's place in the ready line."""

    queue: bytes
    priority: int
    sequence: int
    task_id: bytes
    size_bytes: int  # of the envelope, so that a reply can be bounded before it is read


class Effects:
    """Collected while entries are applied."""

    __slots__ = ("due_ms", "expiry_ms", "finished", "forget_ms", "outbox", "purge_ms", "ready", "settings", "withdrawn")

    def __init__(self) -> None:
        self.ready: list[ReadyTask] = []  # entered the ready line
        self.withdrawn: list[ReadyTask] = []  # left the ready line without being claimed
        self.finished: list[bytes] = []  # reached an end
        self.settings: list[bytes] = []  # queues whose settings were changed
        self.outbox: set[int] = set()  # shards to which a task is on its way
        # The earliest time that was newly entered into each index ordered by time; 0 means none.
        self.due_ms = 0
        self.expiry_ms = 0
        self.purge_ms = 0
        self.forget_ms = 0
