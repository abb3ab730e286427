"""The working copy on which entries are applied: reads see earlier writes, nothing reaches the state before commit."""

from holdfast.machine import keys
from holdfast.machine.effects import Effects
from holdfast.machine.kv import OrderedKV
from holdfast.machine.rows import Execution, Meta, Queue

QUEUES_CACHED_MAX = 10_000
TASKS_CACHED_MAX = 8_000  # dropped all at once, so few enough for that to take no time
WORKERS_CACHED_MAX = 10_000


class Draft:
    """Changes on top of a state, and the shard's counters."""

    __slots__ = (
        "_dirty_queues", "_dirty_workers", "_fetched", "_kv", "_queues", "_tasks", "_workers", "effects", "meta",
        "now_ms", "writes",
    )  # fmt: skip

    def __init__(self, kv: OrderedKV) -> None:
        self._kv = kv
        row = kv.get(keys.META_KEY)
        self.meta = Meta.decode(row) if row is not None else Meta()
        self.now_ms = self.meta.now_ms  # the time of the entry being applied
        self.writes: dict[bytes, bytes | None] = {}
        self.effects = Effects()
        self._fetched: dict[bytes, bytes | None] = {}  # rows as the state has them, until it changes
        self._queues: dict[bytes, Queue] = {}
        self._dirty_queues: dict[bytes, Queue] = {}
        self._workers: dict[bytes, int] = {}
        self._dirty_workers: set[bytes] = set()
        # Executions of live tasks that were touched lately: a task is often claimed and acked soon after it came. They
        # always equal their rows, because every change is saved at once.
        self._tasks: dict[bytes, Execution] = {}

    def get(self, key: bytes) -> bytes | None:
        if key in self.writes:
            return self.writes[key]
        if key in self._fetched:
            return self._fetched[key]
        return self._kv.get(key)

    def fetch(self, wanted: list[bytes]) -> None:
        """Reads rows in one go, which is cheaper than a `get` for each; `get` finds them."""
        self._fetched.update(zip(wanted, self._kv.get_many(wanted), strict=True))

    def put(self, key: bytes, value: bytes) -> None:
        self.writes[key] = value

    def delete(self, key: bytes) -> None:
        self.writes[key] = None

    def read_ahead(self, task_ids: list[bytes]) -> None:
        """Fetches the executions of an entry's tasks in one go."""
        tasks = self._tasks
        unknown = [task_id for task_id in task_ids if task_id not in tasks]
        if unknown:
            wanted = [keys.execution(task_id) for task_id in unknown]
            for task_id, key, row in zip(unknown, wanted, self._kv.get_many(wanted), strict=True):
                if row is not None and key not in self.writes:
                    tasks[task_id] = Execution.decode(row)

    def execution(self, task_id: bytes) -> Execution | None:
        """The task's execution, to be changed only together with `save`."""
        task = self._tasks.get(task_id)
        if task is None:
            row = self.get(keys.execution(task_id))
            if row is not None:
                task = self._tasks[task_id] = Execution.decode(row)
        return task

    def save(self, task_id: bytes, task: Execution) -> None:
        self._tasks[task_id] = task
        self.writes[keys.execution(task_id)] = task.encode()

    def drop(self, task_id: bytes) -> None:
        """Deletes the task's execution."""
        self._tasks.pop(task_id, None)
        self.writes[keys.execution(task_id)] = None

    def retire(self, task_id: bytes) -> None:
        """The task has ended: its row stays, but is not worth keeping at hand."""
        self._tasks.pop(task_id, None)

    def queue(self, name: bytes) -> Queue:
        """The queue's counters, for reading and changing; a queue is made by its first use."""
        dirty = self._dirty_queues.get(name)
        if dirty is not None:
            return dirty
        queue = self.peek_queue(name) or Queue()
        self._dirty_queues[name] = self._queues[name] = queue
        return queue

    def peek_queue(self, name: bytes) -> Queue | None:
        """The queue's counters, for reading only; None if nothing was ever enqueued to it."""
        queue = self._queues.get(name)
        if queue is None:
            row = self._kv.get(keys.queue(name))
            if row is None:
                return None
            queue = self._queues[name] = Queue.decode(row)
        return queue

    def worker_claims(self, name: bytes) -> int:
        """How many claims a worker holds."""
        claims = self._workers.get(name)
        if claims is not None:
            return claims
        row = self._kv.get(keys.worker(name))
        return int.from_bytes(row, "big") if row is not None else 0

    def add_worker_claims(self, name: bytes, delta: int) -> None:
        """Callers that claim without a name are not counted."""
        if name:
            self._workers[name] = self.worker_claims(name) + delta
            self._dirty_workers.add(name)

    def commit(self) -> None:
        """Writes everything since the last commit as one atomic batch."""
        writes = self.writes
        for name, queue in self._dirty_queues.items():
            writes[keys.queue(name)] = queue.encode()
        for name in self._dirty_workers:
            claims = self._workers[name]
            writes[keys.worker(name)] = claims.to_bytes(4, "big") if claims else None
        writes[keys.META_KEY] = self.meta.encode()
        self._kv.write(writes)
        self.writes = {}
        self._fetched = {}
        self._dirty_queues = {}
        self._dirty_workers = set()
        if len(self._workers) > WORKERS_CACHED_MAX:
            self._workers = {}
        if len(self._queues) > QUEUES_CACHED_MAX:
            self._queues = {}
        if len(self._tasks) > TASKS_CACHED_MAX:
            self._tasks = {}

    def take_effects(self) -> Effects:
        effects, self.effects = self.effects, Effects()
        return effects
