"""What a person sees: bars at a terminal, plain lines elsewhere, and a line per event."""

import os
import time
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.text import Text

_PLAIN_STEPS = 10  # lines of progress where there is no terminal


class Display:
    """Used as a context manager, so that the terminal is left in order."""

    def __init__(self, tasks: int) -> None:
        self._console = Console(highlight=False, soft_wrap=True)
        self._tasks = tasks
        self._began_s = time.monotonic()
        self._steps = 0
        columns = (TextColumn("{task.description:<10}"), BarColumn(60), MofNCompleteColumn(), TimeElapsedColumn())
        self._live = self._console.is_terminal and os.environ.get("TERM") != "dumb"
        self._bars = Progress(*columns, console=self._console, disable=not self._live)
        self._enqueued = self._bars.add_task("enqueued", total=tasks)
        self._completed = self._bars.add_task("completed", total=tasks)

    def __enter__(self) -> Self:
        self._bars.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.finish_bars()

    def finish_bars(self) -> None:
        """Leaves them as they are; whatever is said from now on comes below."""
        self._bars.stop()

    def event(self, what: str, meaning: str = "", style: str = "bold") -> None:
        """What happened, and what it means."""
        line = Text.assemble((f"{time.monotonic() - self._began_s:5.1f} s  ", "dim"), (what, style))
        if meaning:
            line.append(f"\n         {meaning}", "dim")
        self._console.print(line)

    def line(self, text: str, style: str = "") -> None:
        self._console.print(Text(text, style))

    def enqueued(self, count: int) -> None:
        self._bars.update(self._enqueued, completed=count)

    def completed(self, count: int) -> None:
        self._bars.update(self._completed, completed=count)
        step = count * _PLAIN_STEPS // self._tasks
        if not self._live and step > self._steps:
            self._steps = step
            self.event(f"{count:,} of {self._tasks:,} completed", style="")
