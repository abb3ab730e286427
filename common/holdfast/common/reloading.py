"""What is made of files, and made anew when they change: certificates that others replace while a program runs.

Files are looked at by what the system knows of them, also behind links, because a mounted secret is one that is turned
to another directory. What cannot be made of them leaves the last good one in use: a certificate that does not fit its
key is what anybody sees who looks between two writes.
"""

import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, Generic, TypeVar

POLL_SECONDS: Final = 2.0

log = logging.getLogger("holdfast.certificates")

T = TypeVar("T")
_Sight = tuple[tuple[int, int, int] | None, ...]


class Reloaded(Generic[T]):
    """`current` is the newest that could be made. All methods block."""

    def __init__(
        self, what: str, paths: Sequence[Path | None], make: Callable[[], T], *, errors: type[Exception]
    ) -> None:
        """`what`: how the log calls it. `make` raises `errors` if the files are of no use; here, too."""
        self.what = what
        self._paths = [path for path in paths if path is not None]
        self._make = make
        self._errors = errors
        self._seen = self._poll()  # before they are read: what changes meanwhile is seen the next time
        self.current = make()
        self.reloads = 0
        self.problem = ""  # why the newest files are not in use, in a sentence

    def poll(self) -> bool:
        """Whether there is a new one."""
        seen = self._poll()
        if seen == self._seen:
            return False
        self._seen = seen
        try:
            made = self._make()
        except self._errors as error:
            self.problem = str(error)
            self.report()
            return False
        self.current = made
        self.reloads += 1
        self.problem = ""
        self.report()
        return True

    def report(self) -> None:
        """Says what became of files that have changed."""
        if self.problem:
            log.error("New certificates for %s are not used: %s", self.what, self.problem)
        else:
            log.info("New certificates for %s are in use.", self.what)

    def _poll(self) -> _Sight:
        return tuple(map(_sight_of, self._paths))


def _sight_of(path: Path) -> tuple[int, int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_ino, found.st_size
