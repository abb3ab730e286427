"""What is read from files that somebody replaces while the server runs: certificates, which are renewed now and then.

Files that belong together need not be replaced in one step. What cannot be read, or does not fit, is told, and what was
read before stays in use; as soon as the files change again they are read again.
"""

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Generic, TypeVar

from holdfast.serving.logs import get_logger

_log = get_logger(__name__)

T = TypeVar("T")
_Marks = tuple[tuple[int, int, int] | None, ...]


class Reloading(Generic[T]):
    """`value` is what the files had when they could last be read. Made outside the event loop: it reads them."""

    def __init__(self, files: Sequence[Path], read: Callable[[], T], *, refusals: type[Exception]) -> None:
        """`refusals`: what `read` raises if the files cannot be used; here that goes to the caller."""
        self._files = tuple(files)
        self._read = read
        self._refusals = refusals
        self._marks = self._look()
        self.value = read()

    async def refresh(self) -> bool:
        """Whether the files have changed and were read."""
        # Before they are read: a change in between is then seen the next time.
        marks = await asyncio.to_thread(self._look)
        if marks == self._marks:
            return False
        self._marks = marks
        names = [str(file) for file in self._files]
        try:
            self.value = await asyncio.to_thread(self._read)
        except self._refusals as error:
            _log.warning("certificates_not_reloaded", files=names, error=str(error), goes_on_with="the former ones")
            return False
        _log.info("certificates_reloaded", files=names)
        return True

    def _look(self) -> _Marks:
        return tuple(map(_mark, self._files))


def _mark(file: Path) -> tuple[int, int, int] | None:
    """Differs when a file was replaced, also by another link; None if there is none."""
    try:
        found = file.stat()
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns, found.st_size
