"""The producer of the demo: enqueues at an even pace in a thread of its own, whatever happens to the cluster."""

import threading
import time

from examples.demo.tasks import work
from holdfast.client import Holdfast, HoldfastError

_BATCH = 100
_CALL_S_MAX = 60.0  # a shard without a leader is waited for


class Producer:
    """Every number below `tasks` once. What it has got an answer for counts as accepted."""

    def __init__(self, address: str, tasks: int, tasks_per_s: float) -> None:
        self._address = address
        self._tasks = tasks
        self._pause_s = _BATCH / tasks_per_s
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="producer", daemon=True)
        self.accepted = 0
        self.longest_call_s = 0.0
        self.error: HoldfastError | None = None

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopped.set()
        if self._thread.ident is not None:
            self._thread.join(_CALL_S_MAX)

    @property
    def is_done(self) -> bool:
        return self.accepted == self._tasks

    def _run(self) -> None:
        try:
            with Holdfast(self._address, timeout=_CALL_S_MAX) as producer:
                next_s = time.monotonic()
                for start in range(0, self._tasks, _BATCH):
                    numbers = range(start, min(start + _BATCH, self._tasks))
                    began_s = time.monotonic()
                    producer.enqueue_many([work.call(number) for number in numbers]).handles()
                    self.longest_call_s = max(self.longest_call_s, time.monotonic() - began_s)
                    self.accepted += len(numbers)
                    next_s = max(next_s + self._pause_s, time.monotonic() - 1.0)  # it catches up, but not without end
                    if self._stopped.wait(max(0.0, next_s - time.monotonic())):
                        return
        except HoldfastError as error:
            self.error = error
