"""Which ready task is handed out next: a bounded window onto the ready line of each queue.

Soft state of the leader: it can be thrown away at any moment and is rebuilt lazily from the ready index, starting at
the replicated low-water marks, so neither start-up nor fail-over gets slower with the backlog.
"""

import heapq
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from holdfast.machine import keys
from holdfast.machine.effects import ReadyTask
from holdfast.machine.entries import Mark
from holdfast.machine.kv import OrderedKV
from holdfast.machine.rows import BANDS, Queue, split_ready_row

REFILL_TASKS = 256
WINDOWS_MAX = 10_000

_Place = tuple[int, bytes, int]  # sequence, task id, size of the envelope


class _Band:
    """The ready tasks of one priority, in order.

    Every ready task whose sequence is below `cursor` is in `line`, in `returned` or on its way to a claim; those at or
    above it are only in the index. `complete` says that the index holds none there.
    """

    __slots__ = ("complete", "cursor", "line", "prefix", "priority", "returned")

    def __init__(self, queue: bytes, priority: int, cursor: int, complete: bool) -> None:
        self.prefix = keys.ready_band(queue, priority)
        self.priority = priority
        self.cursor = cursor
        self.complete = complete
        self.line: deque[_Place] = deque()
        self.returned: list[_Place] = []  # a heap of tasks that came back behind the cursor

    def head(self) -> _Place | None:
        if self.returned and (not self.line or self.returned[0] < self.line[0]):
            return self.returned[0]
        return self.line[0] if self.line else None

    def pop(self) -> _Place:
        if self.returned and (not self.line or self.returned[0] < self.line[0]):
            return heapq.heappop(self.returned)
        return self.line.popleft()

    def mark(self) -> int:
        """No ready task that is not on its way to a claim has a smaller sequence."""
        head = self.head()
        return min(head[0], self.cursor) if head is not None else self.cursor

    def rewind(self, sequence: int) -> None:
        """Forgets what is held, to read it again from the index."""
        self.cursor = min(self.mark(), sequence)
        self.line.clear()
        self.returned.clear()
        self.complete = False


@dataclass(slots=True)
class _Window:
    queue: bytes
    bands: list[_Band]  # from the highest priority down
    picks: int = 0
    size: int = 0  # tasks held in the bands
    claiming: set[int] = field(default_factory=set)  # sequences on their way to a claim
    withdrawn: set[int] = field(default_factory=set)  # sequences held or claiming that are no longer ready


@dataclass(slots=True)
class Picked:
    """Tasks of one queue that were taken out of the window for a claim.

    The claim must be proposed before anything else is picked: its marks hold only if the log has claims in the order
    of the picks.
    """

    window: _Window
    places: list[tuple[int, _Place]]  # priority and place
    marks: list[Mark]
    size_bytes: int  # of all envelopes

    @property
    def queue(self) -> bytes:
        return self.window.queue

    @property
    def task_ids(self) -> list[bytes]:
        return [task_id for _, (_, task_id, _) in self.places]


class Scheduler:
    """Picks by priority, first in first out within one, and keeps a share of the picks for the oldest task of any."""

    def __init__(
        self,
        kv: OrderedKV,
        queue_row: Callable[[bytes], Queue | None],
        next_sequence: Callable[[], int],
        *,
        window_tasks_max: int,
        oldest_share_percent: int,
    ) -> None:
        self._kv = kv
        self._queue_row = queue_row
        self._next_sequence = next_sequence
        self._window_tasks_max = window_tasks_max
        self._oldest_share_percent = oldest_share_percent
        self._windows: dict[bytes, _Window] = {}

    def became_ready(self, tasks: Iterable[ReadyTask]) -> None:
        """Takes note of tasks that entered the ready line. Call it for a whole batch before anything is picked."""
        for queue, priority, sequence, task_id, size_bytes in tasks:
            window = self._windows.get(queue)
            if window is None:
                continue  # the index has it, and a window made later reads the index
            band = window.bands[BANDS - 1 - priority]
            if sequence < band.cursor:
                self._take_back(window, band, (sequence, task_id, size_bytes))
            elif band.complete and window.size < self._window_tasks_max:
                band.line.append((sequence, task_id, size_bytes))
                band.cursor = sequence + 1
                window.size += 1
            else:
                band.complete = False

    def was_withdrawn(self, tasks: Iterable[ReadyTask]) -> None:
        """Takes note of tasks that left the ready line without a claim."""
        for queue, priority, sequence, _, _ in tasks:
            window = self._windows.get(queue)
            if window is None:
                continue
            if sequence in window.claiming or sequence < window.bands[BANDS - 1 - priority].cursor:
                window.withdrawn.add(sequence)

    def pick(self, queue: bytes, tasks_max: int, bytes_max: int) -> Picked | None:
        """Takes tasks out of the window, or None if nothing is ready; the first one also if it is larger."""
        window = self._windows.get(queue) or self._open(queue)
        if window is None:
            return None
        places: list[tuple[int, _Place]] = []
        touched: set[int] = set()
        room = bytes_max
        top: _Band | None = None  # stays the highest band while it holds a task: nothing becomes ready meanwhile
        while len(places) < tasks_max and (room > 0 or not places):
            if top is None or not self._has_head(window, top):
                top = self._top_band(window)
                if top is None:
                    break
            band = self._oldest_band(window) if self._is_oldest_turn(window) else top
            place = band.pop()
            window.size -= 1
            window.claiming.add(place[0])
            touched.add(band.priority)
            places.append((band.priority, place))
            room -= place[2]
        if not places:
            return None
        row = self._queue_row(queue)
        version = row.mark_version if row is not None else 0
        marks = [Mark(queue, version, priority, window.bands[BANDS - 1 - priority].mark()) for priority in touched]
        return Picked(window, places, marks, bytes_max - room)

    def available(self, queue: bytes) -> int:
        """How many tasks could be picked now, by the queue's counters; what is on its way to a claim is not among them.
        Too few while a claim is applied and not yet settled: whoever waits for more must look again then."""
        row = self._queue_row(queue)
        if row is None or not row.ready:
            return 0
        window = self._windows.get(queue)
        coming = len(window.claiming - window.withdrawn) if window is not None and window.claiming else 0
        return max(0, row.ready - coming)

    def give_back(self, picked: Picked) -> None:
        """The tasks were not claimed after all and are still ready."""
        window = picked.window
        if self._is_open(window):
            for priority, place in picked.places:
                window.claiming.discard(place[0])
                band = window.bands[BANDS - 1 - priority]
                if place[0] in window.withdrawn:
                    window.withdrawn.discard(place[0])
                elif place[0] < band.cursor:
                    self._take_back(window, band, place)
                else:
                    band.complete = False  # the band was rewound meanwhile and reads it from the index again

    def settle(self, picked: Picked) -> None:
        """The claim was applied: the tasks are claimed, or were not ready any more."""
        window = picked.window
        if self._is_open(window):
            settled = {place[0] for _, place in picked.places}
            window.claiming -= settled
            window.withdrawn -= settled

    def reset(self) -> None:
        """Throws everything away, claims on their way included: their entries will never be applied."""
        self._windows.clear()

    def _is_open(self, window: _Window) -> bool:
        """Whether the window was not thrown away since."""
        return self._windows.get(window.queue) is window

    def _take_back(self, window: _Window, band: _Band, place: _Place) -> None:
        if window.size < self._window_tasks_max:
            heapq.heappush(band.returned, place)
            window.size += 1
        else:
            window.size -= len(band.line) + len(band.returned)
            window.withdrawn.difference_update(held[0] for held in (*band.line, *band.returned))
            band.rewind(place[0])

    def _open(self, queue: bytes) -> _Window | None:
        row = self._queue_row(queue)
        if row is None:
            return None
        if len(self._windows) >= WINDOWS_MAX:
            self._windows = {name: window for name, window in self._windows.items() if window.claiming}
        priorities = range(BANDS - 1, -1, -1)
        if row.ready:
            bands = [_Band(queue, priority, row.marks[priority], complete=False) for priority in priorities]
        else:
            bands = [_Band(queue, priority, self._next_sequence(), complete=True) for priority in priorities]
        window = self._windows[queue] = _Window(queue, bands)
        return window

    def _is_oldest_turn(self, window: _Window) -> bool:
        """Spreads the share evenly: with 10 percent, every tenth pick takes the oldest."""
        window.picks += 1
        return window.picks * self._oldest_share_percent % 100 < self._oldest_share_percent

    def _top_band(self, window: _Window) -> _Band | None:
        return next((band for band in window.bands if self._has_head(window, band)), None)

    def _oldest_band(self, window: _Window) -> _Band:
        """The band with the oldest task; only for a window that holds one."""
        heads = [(head, band.priority) for band in window.bands if (head := self._head(window, band)) is not None]
        return window.bands[BANDS - 1 - min(heads)[1]]

    def _has_head(self, window: _Window, band: _Band) -> bool:
        return self._head(window, band) is not None

    def _head(self, window: _Window, band: _Band) -> _Place | None:
        """The first task of a band that is still ready."""
        while True:
            head = band.head()
            if head is None:
                if band.complete:
                    return None
                self._refill(window, band)
            elif head[0] in window.withdrawn:
                band.pop()
                window.size -= 1
                window.withdrawn.discard(head[0])
            else:
                return head

    def _refill(self, window: _Window, band: _Band) -> None:
        start = band.prefix + band.cursor.to_bytes(8, "big")
        rows = self._kv.scan(start, keys.after_prefix(band.prefix), REFILL_TASKS)
        for key, row in rows:
            sequence = keys.ready_sequence(key)
            band.cursor = sequence + 1
            if sequence not in window.claiming:
                band.line.append((sequence, *split_ready_row(row)))
                window.size += 1
        band.complete = len(rows) < REFILL_TASKS
