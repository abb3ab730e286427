"""How a shard's replicas agree on the order of its entries, as the shard sees it.

A node works in rounds (commit_loop.py): what arrived is delivered, proposals are taken, all of it is made durable with
one sync, and then each replicator tells what is committed. Nothing enters a replicator while a sync runs, so nothing
that was staged after the sync began can count as durable. Who leads, the replica tells its shard.
"""

from collections.abc import Sequence
from typing import Protocol

from holdfast.raft.messages import Configuration, LogEntry


class Replicator(Protocol):
    """One shard's agreement. `raft.engine.ShardRaft` is the real one."""

    @property
    def accepts(self) -> bool:
        """Whether proposals are taken: it leads, and is not handing over."""
        ...

    @property
    def is_alone(self) -> bool:
        """Whether this replica is the only voter."""
        ...

    @property
    def configuration(self) -> Configuration:
        """Who belongs to the group."""
        ...

    @property
    def commit_index(self) -> int:
        """The newest entry that is durable on a majority."""
        ...

    @property
    def ready_index(self) -> int:
        """The newest entry that may be applied: it is committed, and durable here."""
        ...

    def propose(self, command: bytes) -> int | None:
        """Appends to the log, in memory only; the index, or None if proposals are not taken."""
        ...

    def committed(self, entries_max: int) -> Sequence[LogEntry]:
        """The next committed entries to apply, in order."""
        ...

    def applied(self, index: int) -> None:
        """The state has everything up to here."""
        ...

    def begin_read(self) -> int | None:
        """A number to ask `may_read` about; None if this replica does not serve."""
        ...

    def may_read(self, number: int) -> bool:
        """Whether nobody else can have led when that read began."""
        ...
