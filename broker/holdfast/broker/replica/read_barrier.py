"""Current reads: an answer out of the leader's state counts only if nobody else led when the call came.

A leader that was cut off believes in itself for a moment longer than the others do. So a read waits until a majority
has answered a heartbeat that was sent after the call came. All reads that wait at the same time share one.
"""

import asyncio

from holdfast.broker.replica.replication import Replicator
from holdfast.serving.refusals import overloaded


class ReadBarrier:
    """The reads of one shard that wait for the proof that they are current."""

    def __init__(self, reads_max: int) -> None:
        self._reads_max = reads_max
        self._coming: list[asyncio.Future[None]] = []  # wait for the next question
        self._asked: list[asyncio.Future[None]] = []  # wait for the answers to the last one
        self._number = 0
        self._index = 0  # everything up to here was committed when the question was asked

    def __len__(self) -> int:
        return len(self._coming) + len(self._asked)

    @property
    def want_a_question(self) -> bool:
        return bool(self._coming) and not self._asked

    async def wait(self) -> None:
        if len(self) >= self._reads_max:
            raise overloaded("reads waiting for the proof that they are current", self._reads_max)
        future = asyncio.get_running_loop().create_future()
        self._coming.append(future)
        await future

    def step(self, replicator: Replicator, applied_index: int) -> None:
        """Once in each round, and after entries were applied."""
        if self._asked and applied_index >= self._index and replicator.may_read(self._number):
            _end(self._asked, None)
        if self._coming and not self._asked:
            number = replicator.begin_read()
            if number is not None:
                self._asked, self._coming = self._coming, self._asked
                self._number, self._index = number, replicator.commit_index

    def end(self, error: Exception) -> None:
        """Leadership was lost."""
        _end(self._asked, error)
        _end(self._coming, error)


def _end(futures: list[asyncio.Future[None]], error: Exception | None) -> None:
    for future in futures:
        if not future.done():
            if error is None:
                future.set_result(None)
            else:
                future.set_exception(error)
                future.exception()  # the caller may be gone; that is no reason for a warning
    futures.clear()
