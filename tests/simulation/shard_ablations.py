"""What a shard must not do, for simulations that have to find it out."""

from __future__ import annotations

from holdfast.broker.replica.commit_loop import CommitLoop
from holdfast.broker.replica.replica import Replica
from holdfast.storage.checkpoints import Checkpointer, CheckpointSource
from holdfast.storage.rocksdb import StateError
from holdfast.wal.node_log import Flush


class AnswersBeforeTheSync(CommitLoop):
    async def sync(self, flush: Flush, active: list[Replica], applying: list[Replica]) -> None:
        self._finish(active)
        await self.apply(active, callers_first=False)
        await super().sync(flush, active, applying)


class CutsWhatTheFlushDidNotReach(Checkpointer):
    async def flush(self, replica: CheckpointSource) -> None:
        try:
            await self._run_blocking(replica.state.flush)
        except StateError:
            return
        await super().flush(_FlushedTooEarly(replica))


class _FlushedTooEarly:
    """A replica whose state was flushed before; what was applied since is not in it."""

    def __init__(self, replica: CheckpointSource) -> None:
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
