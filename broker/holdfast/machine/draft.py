"""The working copy on which entries are applied: reads see earlier writes, nothing reaches the state before commit."""

from functools import partial

from holdfast.machine import keys
from holdfast.machine.effects import Effects
from holdfast.machine.kv import OrderedKV
from holdfast.machine.ready_rows import AGE_PAGE_PLACES, AgePage, SubqueueRow, aged_tasks
from holdfast.machine.rows import CLAIMED, READY, Bucket, Execution, Meta, Queue
from holdfast.machine.run_rows import DEPARTED, Stretch
from holdfast.machine.running import Running
from holdfast.machine.runs import Runs

QUEUES_CACHED_MAX = 10_000
TASKS_CACHED_MAX = 8_000  # dropped all at once, so few enough for that to take no time
COUNTS_CACHED_MAX = 10_000
SUBQUEUES_CACHED_MAX = 10_000
AGE_PAGES_CACHED_MAX = 16_384  # a page that is dropped is counted again with its next change
LEVELS_CACHED_MAX = 10_000

SubqueueName = tuple[bytes, int, bytes, bytes]  # queue, priority, tenant, limit key


class Draft:
    """Changes on top of a state, and the shard's counters."""

    __slots__ = (
        "_ages",
        "_counts",
        "_dirty_ages",
        "_dirty_counts",
        "_dirty_queues",
        "_dirty_subqueues",
        "_fetched",
        "_kv",
        "_level_ends",
        "_queues",
        "_subqueues",
        "_tasks",
        "effects",
        "meta",
        "now_ms",
        "running",
        "runs",
        "writes",
    )  # fmt: skip

    def __init__(self, kv: OrderedKV) -> None:
        self._kv = kv
        row = kv.get(keys.META_KEY)
        self.meta = Meta.decode(row) if row is not None else Meta()
        self.now_ms = self.meta.now_ms  # the time of the entry being applied
        self.writes: dict[bytes, bytes | None] = {}
        self.effects = Effects()
        self.running = Running(kv)
        self.runs = Runs(kv)
        self._fetched: dict[bytes, bytes | None] = {}  # rows as the state has them, until it changes
        self._queues: dict[bytes, Queue] = {}
        self._dirty_queues: dict[bytes, Queue] = {}
        self._subqueues: dict[SubqueueName, SubqueueRow] = {}
        self._dirty_subqueues: list[SubqueueRow] = []
        self._ages: dict[tuple[bytes, int], AgePage] = {}  # by queue and number
        self._dirty_ages: list[tuple[bytes, int]] = []
        self._counts: dict[bytes, int] = {}  # by key
        self._dirty_counts: set[bytes] = set()
        self._level_ends: dict[bytes, int] = {}  # when the BUCKET rows that were written lately are forgotten, by key
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
        if len(task_ids) == 1:
            return  # it is read when it is asked for
        tasks = self._tasks
        run_of = self.runs.at_hand
        unknown = [task_id for task_id in task_ids if task_id not in tasks and run_of(task_id) is None]
        if unknown:
            wanted = [keys.execution(task_id) for task_id in unknown]
            for task_id, key, row in zip(unknown, wanted, self._kv.get_many(wanted), strict=True):
                if row is not None and key not in self.writes:
                    tasks[task_id] = Execution.decode(row)

    def execution(self, task_id: bytes) -> Execution | None:
        """The task's execution, to be changed only together with `save`; of one that is in a run, after `depart`."""
        # A task is in a run or has rows, never both: where its run is at hand it need not be looked for elsewhere.
        task = self._tasks.get(task_id) or self.runs.execution_at_hand(task_id)
        return task or self.own_execution(task_id) or self.runs.execution(task_id)

    def own_execution(self, task_id: bytes) -> Execution | None:
        """That of a task with rows of its own: it is in no run."""
        task = self._tasks.get(task_id)
        if task is None:
            row = self.get(keys.execution(task_id))
            if row is not None:
                task = self._tasks[task_id] = Execution.decode(row)
        return task

    def depart(self, task_id: bytes, task: Execution, *, is_finishing: bool = False) -> None:
        """A task that is in a run is to have rows of its own: from now on it has an envelope, unless it is about to
        finish. The caller saves it, and writes its row in the index of the state that it is in then."""
        found = self.runs.find(task_id)
        assert found is not None, "who is in a run departs from there"
        run, place = found
        if task.state in (READY, CLAIMED) and not is_finishing:
            self.writes[keys.envelope(task_id)] = self.runs.envelope(run, place, self.writes)
        self.runs.change(run, place, Stretch(place + 1, DEPARTED), self.writes)
        task.is_in_run = False
        self._tasks[task_id] = task

    def peek_executions(self, task_ids: list[bytes]) -> list[Execution | None]:
        """Executions for reading only, and only until something else is applied."""
        tasks, at_hand = self._tasks, self.runs.execution_at_hand
        found = [tasks.get(task_id) or at_hand(task_id) for task_id in task_ids]
        unknown = [index for index, task in enumerate(found) if task is None]
        if unknown:
            rows = self._kv.get_many([keys.execution(task_ids[index]) for index in unknown])
            for position, row in zip(unknown, rows, strict=True):
                found[position] = self.runs.execution(task_ids[position]) if row is None else Execution.decode(row)
        return found

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

    def subqueue(self, queue: bytes, priority: int, tenant: bytes, limit_key: bytes) -> SubqueueRow:
        """A sub-queue, for reading and changing; its row is there only while it has ready tasks."""
        name = queue, priority, tenant, limit_key
        subqueue = self._subqueues.get(name)
        if subqueue is None:
            key = keys.subqueue(queue, priority, tenant, limit_key)
            row = self._kv.get(key)
            subqueue = self._subqueues[name] = SubqueueRow() if row is None else SubqueueRow.decode(row)
            subqueue.key = key
        if not subqueue.is_dirty:
            subqueue.is_dirty = True
            self._dirty_subqueues.append(subqueue)
        return subqueue

    def age_page(self, queue: bytes, sequence: int) -> AgePage:
        """The page with that place, for changing; its row is there only while it has ready tasks."""
        name = queue, sequence // AGE_PAGE_PLACES
        page = self._ages.get(name) or self._count_age_page(*name)
        if not page.is_dirty:
            page.is_dirty = True
            self._dirty_ages.append(name)
        return page

    def ready_in_age_page(self, queue: bytes, number: int) -> int:
        """A bit for each place of a page with a ready task."""
        page = self._ages.get((queue, number)) or self._count_age_page(queue, number)
        return page.ready

    def _count_age_page(self, queue: bytes, number: int) -> AgePage:
        """Which of the tasks that its row lists are ready. None of them has changed since the last commit: whoever
        leaves or returns changes the page, and pages are dropped by a commit only."""
        row = self._kv.get(keys.ready_age(queue, number))
        listed = ready = 0
        if row is not None:
            aged = aged_tasks(row, number)
            executions = self._kv.get_many([keys.execution(task_id) for _, task_id in aged])
            for (sequence, task_id), execution in zip(aged, executions, strict=True):
                bit = 1 << sequence % AGE_PAGE_PLACES
                listed |= bit
                if self._is_in_line(task_id, execution, sequence):
                    ready |= bit
        page = self._ages[queue, number] = AgePage(listed, ready)
        return page

    def _is_in_line(self, task_id: bytes, row: bytes | None, sequence: int) -> bool:
        """Whether a task is ready in that place. `row`: its execution, unless it is in a run or gone."""
        if row is not None:
            return Execution.is_in_line_at(row, sequence)
        task = self.runs.execution(task_id)
        return task is not None and task.state == READY

    def count(self, key: bytes) -> int:
        """What a row counts that is there only while that is not zero."""
        count = self._counts.get(key)
        if count is not None:
            return count
        row = self._kv.get(key)
        return int.from_bytes(row, "big") if row is not None else 0

    def add_count(self, key: bytes, delta: int) -> None:
        counts = self._counts
        known = counts.get(key)
        counts[key] = (self.count(key) if known is None else known) + delta
        self._dirty_counts.add(key)

    def put_level(self, key: bytes, row: bytes, key_expiry_ms: int) -> int | None:
        """Writes a BUCKET row; returns when the one before it was to be forgotten, if there is one."""
        before_ms = self._level_ends.get(key)
        if before_ms is None:
            before = self.get(key)
            before_ms = None if before is None else Bucket.key_expiry_ms_in(before)
        self.writes[key] = row
        self._level_ends[key] = key_expiry_ms
        return before_ms

    def expire_key(self, key: bytes) -> None:
        """Deletes a row that was kept for a while, a BUCKET row or another one."""
        self._level_ends.pop(key, None)
        self.writes[key] = None

    def commit(self) -> None:
        """Writes everything since the last commit as one atomic batch."""
        writes = self.writes
        for name, queue in self._dirty_queues.items():
            writes[keys.queue(name)] = queue.encode()
        for subqueue in self._dirty_subqueues:
            subqueue.is_dirty = False
            writes[subqueue.key] = subqueue.encode() if subqueue.ready else None
        if self._dirty_ages:
            self._write_ages()
        for key in self._dirty_counts:
            count = self._counts[key]
            writes[key] = count.to_bytes(4, "big") if count else None
        self.runs.write(writes)
        writes[keys.META_KEY] = self.meta.encode()
        self._kv.write(writes)
        self.writes = {}
        self._fetched = {}
        self._dirty_queues = {}
        self._dirty_subqueues = []
        if self._dirty_ages:
            self._ages_were_written()
        self._dirty_counts = set()
        self.runs.were_written()
        self._shrink()

    def _write_ages(self) -> None:
        for name in self._dirty_ages:
            key = keys.ready_age(*name)
            is_changed, row = self._ages[name].row(partial(self._kv.get, key))
            if is_changed:
                self.writes[key] = row

    def _ages_were_written(self) -> None:
        for name in self._dirty_ages:
            if self._ages[name].ready:
                self._ages[name].was_written()
            else:
                del self._ages[name]
        self._dirty_ages = []

    def _shrink(self) -> None:
        """Drops what is kept at hand, where it has become too much."""
        if len(self._subqueues) > SUBQUEUES_CACHED_MAX:
            self._subqueues = {}
        if len(self._ages) > AGE_PAGES_CACHED_MAX:
            self._ages = {}
        if len(self._level_ends) > LEVELS_CACHED_MAX:
            self._level_ends = {}
        if len(self._counts) > COUNTS_CACHED_MAX:
            self._counts = {}
        if len(self._queues) > QUEUES_CACHED_MAX:
            self._queues = {}
        if len(self._tasks) > TASKS_CACHED_MAX:
            self._tasks = {}

    def take_effects(self) -> Effects:
        effects, self.effects = self.effects, Effects()
        return effects
