"""What a person sees: a line per event with its time, and how many tasks are done by then."""

import sys
import time
from typing import TextIO

_PROGRESS_STEPS = 10


class Telling:
    """Remembers the events too, for the summary."""

    def __init__(self, tasks: int, stream: TextIO) -> None:
        self._tasks = tasks
        self._stream = stream
        self._began_s = time.monotonic()
        self._steps = 0
        self.events: list[dict[str, object]] = []

    def event(self, what: str, meaning: str = "") -> None:
        """What happened, and what it means."""
        at_s = time.monotonic() - self._began_s
        self.events.append({"at_s": round(at_s, 1), "what": what})
        self.line(f"{at_s:6.1f} s  {what}")
        if meaning:
            self.line(f"          {meaning}")

    def completed(self, count: int, enqueued: int) -> None:
        """A line each time another tenth is done."""
        step = count * _PROGRESS_STEPS // self._tasks
        if step > self._steps:
            self._steps = step
            at_s = time.monotonic() - self._began_s
            self.line(f"{at_s:6.1f} s  {count:,} of {self._tasks:,} tasks completed, {enqueued:,} enqueued")

    def line(self, text: str = "") -> None:
        print(text, file=self._stream, flush=True)


def standard_stream(*, as_json: bool) -> TextIO:
    """Standard output belongs to the summary if that is to be JSON."""
    return sys.stderr if as_json else sys.stdout
