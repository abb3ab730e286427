"""Calls that wait for tasks hear when their queues are on other shards: spread, pinned, or drained from one."""

import asyncio
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager


class News:
    """For one call that waits."""

    def __init__(self) -> None:
        self.changed: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def tell(self) -> None:
        if not self.changed.done():
            self.changed.set_result(None)

    def take(self) -> bool:
        """Whether there was something new; from now on only what is newer counts."""
        if not self.changed.done():
            return False
        self.changed = asyncio.get_running_loop().create_future()
        return True


class RouteNews:
    """For all of them, by queue."""

    def __init__(self) -> None:
        self._waiting: dict[str, set[News]] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    @contextmanager
    def about(self, queues: Sequence[str]) -> Iterator[News]:
        news = News()
        for queue in queues:
            self._waiting.setdefault(queue, set()).add(news)
        try:
            yield news
        finally:
            for queue in dict.fromkeys(queues):
                waiting = self._waiting[queue]
                waiting.discard(news)
                if not waiting:
                    del self._waiting[queue]

    def tell(self, queues: Iterable[str]) -> None:
        """These queues are on other shards than before."""
        for queue in queues:
            for news in self._waiting.get(queue, ()):
                news.tell()
