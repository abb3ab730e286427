"""What follows from an applied entry outside the state. Run on the leader only; may repeat or be lost."""

from typing import NamedTuple


class ReadyTask(NamedTuple):
    """A task's place in the ready line, or that of the first of several tasks of a run."""

    queue: bytes
    priority: int
    sequence: int
    task_id: bytes
    size_bytes: int  # of the envelope, so that a reply can be bounded before it is read; in a slice of the largest
    tenant: bytes = b""
    limit_key: bytes = b""
    is_suspect: bool = False  # it waits in no line, and is handed out alone
    tasks: int = 1  # a slice of a run: so many tasks, with consecutive sequences and ids


# By queue: tenant and limit key of tasks that are held no more, so that a cap may have room; in the order in which it
# happened.
FreedNames = dict[bytes, dict[tuple[bytes, bytes], None]]

READY_TO_CLAIM = 0
CLAIM_TO_ACK = 1


class StateDuration(NamedTuple):
    """How long a task was in a state."""

    queue: bytes
    type: bytes
    span: int  # READY_TO_CLAIM or CLAIM_TO_ACK
    took_ms: int
    tasks: int = 1  # that took as long, together


class Effects:
    """Collected while entries are applied."""

    __slots__ = (
        "died",
        "due_ms",
        "enqueued",
        "expiry_ms",
        "finished",
        "finished_ranges",
        "freed",
        "key_expiry_ms",
        "outbox",
        "purge_ms",
        "ready",
        "schedule_ms",
        "settings",
        "start_by_ms",
        "timings",
        "withdrawn",
    )  # fmt: skip

    def __init__(self) -> None:
        self.enqueued: dict[bytes, int] = {}  # by queue: tasks that are new, also those that are to start later
        self.ready: list[ReadyTask] = []  # entered the ready line
        self.withdrawn: list[ReadyTask] = []  # left the ready line without being claimed
        self.finished: list[bytes] = []  # reached an end
        self.finished_ranges: list[tuple[bytes, int]] = []  # the same: the first of a run's, and how many
        self.freed: FreedNames = {}
        self.died: set[bytes] = set()  # queues that have more dead letters
        self.timings: list[StateDuration] = []
        self.settings: list[bytes] = []  # queues whose settings were changed
        self.outbox: set[int] = set()  # shards to which a task is on its way
        # The earliest time that was newly entered into each index ordered by time; 0 means none.
        self.due_ms = 0
        self.expiry_ms = 0
        self.purge_ms = 0
        self.key_expiry_ms = 0
        self.start_by_ms = 0
        self.schedule_ms = 0
