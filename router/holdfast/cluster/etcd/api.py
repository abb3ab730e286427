"""What the cluster asks of etcd: reads at one revision, writes that compare first, leases, and watches without a gap.

`EtcdClient` (client.py) does it over the network, `FakeEtcd` (fake.py) in memory; one test holds both to the same
rules. Every change in etcd has a revision, which grows by one with each commit that changes something.
"""

from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from holdfast.serving.reloading import Reloaded

# What etcd takes in one commit unless it was told otherwise (its --max-txn-ops and --max-request-bytes).
COMMIT_OPERATIONS_MAX = 128  # of compares, and of changes
COMMIT_BYTES_MAX = 1536 * 1024


@dataclass(frozen=True, slots=True)
class Row:
    """A key as it was at some revision."""

    key: bytes
    value: bytes
    create_revision: int
    mod_revision: int  # of its last change
    lease: int  # 0: none; otherwise the key goes when the lease does


@dataclass(frozen=True, slots=True)
class Snapshot:
    """All rows of a prefix, by key, as they were at one revision. Watch after it to miss nothing."""

    revision: int
    rows: list[Row]


@dataclass(frozen=True, slots=True)
class Unchanged:
    """A condition of a commit: the key has not changed since."""

    key: bytes
    mod_revision: int  # 0: the key must not exist


@dataclass(frozen=True, slots=True)
class Put:
    key: bytes
    value: bytes
    lease: int = 0


@dataclass(frozen=True, slots=True)
class Delete:
    key: bytes


@dataclass(frozen=True, slots=True)
class Committed:
    is_done: bool  # False: a condition did not hold, and nothing was changed
    revision: int  # of etcd after the commit, and so of the rows that it put


@dataclass(frozen=True, slots=True)
class RowChange:
    row: Row  # of a delete: key and mod_revision only
    is_delete: bool


@dataclass(frozen=True, slots=True)
class Changes:
    """The next part of a watch; it may be empty, which says only how far etcd has come."""

    revision: int  # all changes up to and with this revision have been told
    changes: list[RowChange]
    # The connection is another one, and it had no changes to tell yet. If etcd was set back to a backup meanwhile, and
    # has passed this revision again, then what was told before it is not what etcd has: numbers alone do not show it.
    is_resumed: bool = False


class EtcdError(Exception):
    """Something about etcd went wrong; the message is a sentence for a person."""


class EtcdUnavailableError(EtcdError):
    """etcd did not answer in time. Nothing was changed."""


class CommitUnknownError(EtcdUnavailableError):
    """The answer to a commit was lost: it may have been carried out, or may still be. Read before writing again."""


class EtcdRefusedError(EtcdError):
    """etcd, or the way to it, says no, and asking again does not help: a password, a permission, a certificate."""


class LeaseLostError(EtcdError):
    """The lease is gone, or may be, because its time passed without a word from etcd. So are its keys."""

    def __init__(self, lease: int, why: str) -> None:
        super().__init__(f"The lease {lease:x} is lost: {why}.")
        self.lease = lease


class CompactedError(EtcdError):
    """The history that a watch needs is gone: read anew, and watch after that."""

    def __init__(self, revision: int) -> None:
        super().__init__(f"etcd has forgotten its history before revision {revision}.")
        self.revision = revision


class Etcd(Protocol):
    """Every method raises EtcdUnavailableError or EtcdRefusedError, unless it says otherwise."""

    @property
    def certificates(self) -> Reloaded[Any] | None:
        """With which it is asked; None without TLS."""
        ...

    async def get(self, key: bytes) -> Row | None:
        """The newest row of the key: whatever was committed before the call is seen."""
        ...

    async def read(self, prefix: bytes) -> Snapshot:
        """The newest rows of the prefix, all of one revision; an empty prefix means all there is."""
        ...

    async def commit(self, compares: Sequence[Unchanged], changes: Sequence[Put | Delete]) -> Committed:
        """All changes or none, at one revision. It is sent once; OutcomeUnknownError if the answer was lost.

        A put with a lease that is gone raises LeaseLostError. No key may be changed twice.
        """
        ...

    async def grant(self, seconds: int) -> int:
        """A new lease, which goes after so many seconds without keep_alive."""
        ...

    async def keep_alive(self, lease: int, seconds: int) -> None:
        """Renew a lease of so many seconds until cancelled; LeaseLostError when it is gone. Outages are waited out.

        The first renewal is sent at once. EtcdRefusedError is possible as well, with the lease still counting down.
        """
        ...

    async def revoke(self, lease: int) -> None:
        """End a lease and delete its keys; one that is gone already is no error."""
        ...

    def watch(self, prefix: bytes, after_revision: int) -> AsyncGenerator[Changes, None]:
        """All changes after the revision, in order, each once, for ever. Outages are waited out, and what comes first
        after one says so (`is_resumed`): there is no gap as long as it is the same etcd, with the same data.

        CompactedError if they are not known any more, EtcdRefusedError if they may not be seen.
        """
        ...

    async def close(self) -> None: ...
