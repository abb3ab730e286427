"""How a shard's replicas agree on the order of its entries.

A node works in rounds (rounds.py): it stages what its shards want to append, makes all of it durable with one sync,
and then asks each replicator what is committed. Nothing that was staged after the sync began counts as durable.
"""

from collections.abc import Sequence
from typing import Protocol

from holdfast.broker.log.node_log import Entry as LogEntry
from holdfast.broker.log.node_log import NodeLog


class Replicator(Protocol):
    """One shard's agreement."""

    @property
    def shard(self) -> int: ...

    @property
    def term(self) -> int:
        """The epoch in which this node leads or follows."""
        ...

    def stage(self, payloads: Sequence[bytes]) -> int:
        """Appends to the log, in memory only, and returns the index of the first."""
        ...

    def flushed(self) -> None:
        """All that was staged before the sync that just ended is durable on this node."""
        ...

    def aborted(self) -> None:
        """The sync could not begin for lack of space: all that was staged for it is gone."""
        ...

    def take_committed(self) -> list[LogEntry]:
        """The entries that are newly durable on a majority, in order, each exactly once."""
        ...


class SoloReplicator:
    """A group of one: durable here is durable on the majority. Each start is a new term."""

    def __init__(self, log: NodeLog, shard: int, applied_index: int) -> None:
        self._log = log
        self._shard = shard
        self._next_index = max(applied_index, log.last_index(shard)) + 1
        known = log.hard_states.get(shard)
        self._term = (int.from_bytes(known, "big") if known else 0) + 1
        self._staged: list[LogEntry] = []
        self._durable: list[LogEntry] = []
        self._hard_state = self._term.to_bytes(8, "big")
        log.stage_hard_state(shard, self._hard_state)

    @property
    def shard(self) -> int:
        return self._shard

    @property
    def term(self) -> int:
        return self._term

    def stage(self, payloads: Sequence[bytes]) -> int:
        first_index = self._next_index
        for payload in payloads:
            self._log.stage_entry(self._shard, self._next_index, self._term, payload)
            self._staged.append(LogEntry(self._shard, self._next_index, self._term, payload))
            self._next_index += 1
        return first_index

    def flushed(self) -> None:
        self._durable += self._staged
        self._staged = []

    def aborted(self) -> None:
        self._next_index -= len(self._staged)
        self._staged = []
        if self._log.hard_states.get(self._shard) != self._hard_state:
            self._log.stage_hard_state(self._shard, self._hard_state)

    def take_committed(self) -> list[LogEntry]:
        committed, self._durable = self._durable, []
        return committed
