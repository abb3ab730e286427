"""What the parts of a leader need of others: the shard that writes for them, other shards, and the node they are on."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from holdfast.broker.cluster_view.view import ClusterView
from holdfast.broker.config import BrokerConfig
from holdfast.broker.leader.proposals import Proposal
from holdfast.broker.leader.webhooks import Notifier, NoWebhooks
from holdfast.broker.metrics import Metrics
from holdfast.broker.policy.settings_guard import Homes
from holdfast.machine.entries import Entry
from holdfast.machine.outcomes import Outcome
from holdfast.machine.rows import OutboxMessage
from holdfast.serving.refusals import RefusedError


class Time(Protocol):
    """Shard time. `ShardClock` is the real one."""

    def now_ms(self) -> int: ...


class Housekeeping(Protocol):
    """Takes entries that no caller waits for into the log of a shard, or refuses."""

    async def submit_housekeeping(self, entry: Entry) -> list[Outcome]:
        """Checks, proposes behind what callers wait for, and waits for the outcomes."""
        ...


class Proposer(Housekeeping, Protocol):
    """Takes entries into the log of a shard, or refuses."""

    def propose(self, proposal: Proposal) -> None:
        """Of a caller's. Whether it may be taken was checked before; the proposal hears what becomes of it."""
        ...

    async def submit(self, entry: Entry) -> list[Outcome]:
        """Of a caller's: checks, proposes and waits for the outcomes."""
        ...

    async def read_barrier(self) -> None:
        """Returns once the state is known to have everything that was acknowledged before the call."""
        ...

    def check_open(self, entry: Entry | None = None) -> None:
        """Refuses if no write of a caller can be taken now: whatever it is, or this one."""
        ...

    def check_room(self, entry: Entry) -> None:
        """Refuses what the disk has no room for."""
        ...

    def check_written(self) -> None:
        """Refuses while the machine is ahead of the state."""
        ...


class OtherShards(Homes, Protocol):
    """The leaders of other shards, wherever they are. Raises what it likes: it is called again."""

    async def deliver(
        self, destination: int, source: int, incarnation: int, first_sequence: int, messages: Sequence[OutboxMessage]
    ) -> int:
        """Up to which message the destination has them now."""
        ...


class WriteGuard(Protocol):
    """What may be written. `storage.disk_guard.DiskGuard` is the real one."""

    def check(self, entry: Entry) -> None:
        """Refuses an entry that there is no room for."""
        ...

    def found_full(self) -> RefusedError:
        """A write found no room."""
        ...

    def has_room_for(self, size_bytes: int) -> bool:
        """Whether so much can be written and everything else goes on."""
        ...


@dataclass(frozen=True, slots=True)
class NodeContext:
    """What all shards of a node share."""

    config: BrokerConfig
    metrics: Metrics
    disk: WriteGuard
    cluster_view: ClusterView
    others: OtherShards | None = None  # None: there are no other shards
    notifier: Notifier = NoWebhooks()  # noqa: RUF009 - it has no state
