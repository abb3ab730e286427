"""What a shard must not do, for simulations that have to find it out."""

from __future__ import annotations

import pytest

from holdfast.broker.replica.commit_loop import CommitLoop
from holdfast.broker.replica.replica import Replica
from holdfast.storage.checkpoints import Checkpointer, Kept
from holdfast.storage.rocksdb import StateError
from holdfast.wal.node_log import Flush


def answer_before_the_sync(monkeypatch: pytest.MonkeyPatch) -> None:
    sync = CommitLoop.sync

    async def answer_first(commit_loop: CommitLoop, flush: Flush, active: list[Replica]) -> None:
        commit_loop._finish(active)
        await commit_loop.apply(active, callers_first=False)
        await sync(commit_loop, flush, active)

    monkeypatch.setattr(CommitLoop, "sync", answer_first)


def cut_what_the_flush_did_not_reach(monkeypatch: pytest.MonkeyPatch) -> None:
    flush = Checkpointer.flush

    async def capture_late(checkpointer: Checkpointer, replica: Kept) -> None:
        try:
            await checkpointer._run_blocking(replica.state.flush)
        except StateError:
            return
        await flush(checkpointer, _FlushedTooEarly(replica))

    monkeypatch.setattr(Checkpointer, "flush", capture_late)


class _FlushedTooEarly:
    """A replica whose state was flushed before; what was applied since is not in it."""

    def __init__(self, replica: Kept) -> None:
        self.number = replica.number
        self.is_alone = replica.is_alone
        self.applied_index = replica.applied_index
        self.durable_base_index = replica.durable_base_index
        self.compact = replica.compact

    @property
    def state(self) -> _FlushedTooEarly:
        return self

    def flush(self) -> None:
        """Done before."""
