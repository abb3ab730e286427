"""An etcd in memory, for tests of what is built on it: the same rules as the real one, without a process or a network.

Tests can stop and resume it, lose the answer of a commit, compact its history, and let leases expire by a clock of
their own. What it does not have: users, a database that fills up, and members that fail one by one.
"""

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass, field

from holdfast.cluster.etcd.api import (
    COMMIT_BYTES_MAX,
    COMMIT_OPERATIONS_MAX,
    Changes,
    Committed,
    CommitUnknownError,
    CompactedError,
    Delete,
    EtcdRefusedError,
    EtcdUnavailableError,
    LeaseLostError,
    Put,
    Row,
    RowChange,
    Snapshot,
    Unchanged,
)

_POLL_AGAIN_S = 0.01  # at the soonest: the clock of a test may stand still


@dataclass
class _Lease:
    seconds: int
    ends_s: float
    keys: set[bytes] = field(default_factory=set)


class FakeEtcd:
    """`Etcd` in memory. Several users may share one, as they would share a server."""

    certificates = None

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.revision = 1  # as that of a new etcd
        self._clock = clock
        self._rows: dict[bytes, Row] = {}
        self._leases: dict[int, _Lease] = {}
        self._leases_granted = 0
        self._history: dict[int, list[RowChange]] = {}  # by revision; compaction only closes it to watches that begin
        self._compacted = 0
        self._is_up = True
        self._outages = 0  # by which a watch knows that it has lost its connection
        self._progress_reports = 0
        self._next_commit_is_done: bool | None = None  # not None: its answer gets lost
        self._sleepers: set[asyncio.Future[None]] = set()
        self._timer: asyncio.TimerHandle | None = None

    # --- as Etcd ----------------------------------------------------------------------------------------------

    async def get(self, key: bytes) -> Row | None:
        await self._arrive()
        return self._rows.get(key)

    async def read(self, prefix: bytes) -> Snapshot:
        await self._arrive()
        rows = [self._rows[key] for key in sorted(self._rows) if key.startswith(prefix)]
        return Snapshot(self.revision, rows)

    async def commit(self, compares: Sequence[Unchanged], changes: Sequence[Put | Delete]) -> Committed:
        await self._arrive()
        check_commit(compares, changes)
        is_done, self._next_commit_is_done = self._next_commit_is_done, None
        if is_done is None:
            return self._carry_out(compares, changes)
        if is_done:
            self._carry_out(compares, changes)
        raise CommitUnknownError("The answer of etcd to a commit was lost.")

    async def grant(self, seconds: int) -> int:
        await self._arrive()
        self._leases_granted += 1
        lease = 0x1000 + self._leases_granted
        self._leases[lease] = _Lease(seconds, self._clock() + seconds)
        self._arm()
        return lease

    async def keep_alive(self, lease: int, seconds: int) -> None:
        renew_s = self._clock()
        ends_s = renew_s + seconds
        while True:
            now_s = self._clock()
            if self._is_up and (now_s >= renew_s or lease not in self._leases):
                self.expire_leases()
                if lease not in self._leases:
                    raise LeaseLostError(lease, "etcd does not know it any more")
                renew_s, ends_s = now_s + seconds / 3, now_s + seconds
                self._leases[lease].ends_s = ends_s
            elif now_s >= ends_s:
                raise LeaseLostError(lease, f"etcd has not answered for {seconds} s")
            await self._sleep((renew_s if self._is_up else ends_s) - now_s)

    async def revoke(self, lease: int) -> None:
        await self._arrive()
        self._end_lease(lease)

    async def watch(self, prefix: bytes, after_revision: int) -> AsyncGenerator[Changes, None]:
        reported = after_revision
        connection: int | None = None
        is_resumed = False
        progress_reports = self._progress_reports
        while True:
            if not self._is_up:
                is_resumed = True
                await self._sleep()
                continue
            if connection != self._outages:
                is_resumed = is_resumed or connection is not None
                connection = self._outages
                self._check_history(reported)
            if is_resumed:
                is_resumed = False
                yield Changes(reported, [], is_resumed=True)
                continue
            if reported < self.revision:
                reported += 1
                changes = [change for change in self._history.get(reported, ()) if change.row.key.startswith(prefix)]
                if changes:
                    yield Changes(reported, changes)
            elif progress_reports != self._progress_reports:
                progress_reports = self._progress_reports
                yield Changes(reported, [])
            else:
                await self._sleep()

    async def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    # --- for tests --------------------------------------------------------------------------------------------

    def stop(self) -> None:
        """From now on nobody is there. Leases stand still, and nothing is forgotten."""
        self._is_up = False
        self._outages += 1
        self._wake()

    def resume(self) -> None:
        """Leases get their whole time anew, as with every new leader of a real etcd."""
        self._is_up = True
        for lease in self._leases.values():
            lease.ends_s = self._clock() + lease.seconds
        self._arm()
        self._wake()

    def break_watches(self) -> None:
        """Their connections are lost; they come back by themselves."""
        self._outages += 1
        self._wake()

    def lose_next_answer(self, *, is_done: bool) -> None:
        """The next commit ends with OutcomeUnknownError, carried out or not."""
        self._next_commit_is_done = is_done

    def compact(self, revision: int | None = None) -> None:
        """Forget the history before a revision, or all of it; watches that are under way do not notice."""
        self._compacted = self.revision if revision is None else revision

    def save(self) -> tuple[int, dict[bytes, Row], dict[int, list[RowChange]]]:
        """A backup."""
        return self.revision, dict(self._rows), dict(self._history)

    def restore(self, backup: tuple[int, dict[bytes, Row], dict[int, list[RowChange]]]) -> None:
        """All is as it was then, revisions too. Connections are lost; leases live on."""
        self.revision, rows, history = backup
        self._rows, self._history = dict(rows), dict(history)
        self.break_watches()

    def report_progress(self) -> None:
        """Tell watches that have no news how far etcd has come."""
        self._progress_reports += 1
        self._wake()

    def expire_leases(self) -> None:
        """End those whose time is over. It happens by itself as well, but a test that moved the clock need not wait."""
        if self._is_up:
            for lease in [lease for lease, held in self._leases.items() if held.ends_s <= self._clock()]:
                self._end_lease(lease)
            self._arm()
        self._wake()

    @property
    def leases(self) -> list[int]:
        return list(self._leases)

    # --- inside -----------------------------------------------------------------------------------------------

    async def _arrive(self) -> None:
        await asyncio.sleep(0)  # a network is never faster: whoever waits for its turn gets it
        if not self._is_up:
            raise EtcdUnavailableError("etcd did not answer: it was stopped by the test.")
        self.expire_leases()

    def _check_history(self, reported: int) -> None:
        if reported + 1 < self._compacted:
            raise CompactedError(self._compacted)
        if reported > self.revision:  # not the etcd that told it: history begins anew
            raise CompactedError(self.revision)

    def _carry_out(self, compares: Sequence[Unchanged], changes: Sequence[Put | Delete]) -> Committed:
        for compare in compares:
            row = self._rows.get(compare.key)
            if (row.mod_revision if row else 0) != compare.mod_revision:
                return Committed(False, self.revision)
        for change in changes:
            if isinstance(change, Put) and change.lease and change.lease not in self._leases:
                raise LeaseLostError(change.lease, "etcd does not know it any more")
        self._apply(changes)
        return Committed(True, self.revision)

    def _apply(self, changes: Sequence[Put | Delete]) -> None:
        revision = self.revision + 1
        happened = []
        for change in changes:
            before = self._rows.pop(change.key, None)
            if before is not None and before.lease:
                self._leases[before.lease].keys.discard(change.key)
            if isinstance(change, Put):
                created = before.create_revision if before else revision
                row = Row(change.key, change.value, created, revision, change.lease)
                self._rows[change.key] = row
                if change.lease:
                    self._leases[change.lease].keys.add(change.key)
                happened.append(RowChange(row, is_delete=False))
            elif before is not None:
                happened.append(RowChange(Row(change.key, b"", 0, revision, 0), is_delete=True))
        if happened:
            self.revision = revision
            self._history[revision] = happened
            self._wake()

    def _end_lease(self, lease: int) -> None:
        held = self._leases.get(lease)
        if held is not None:
            self._apply([Delete(key) for key in sorted(held.keys)])
            del self._leases[lease]
            self._wake()

    def _arm(self) -> None:
        """Look again when the next lease ends."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._leases and self._is_up:
            wait_s = min(held.ends_s for held in self._leases.values()) - self._clock()
            self._timer = asyncio.get_running_loop().call_later(max(_POLL_AGAIN_S, wait_s), self.expire_leases)

    async def _sleep(self, seconds: float | None = None) -> None:
        """Until something happens, at most so long."""
        sleeper: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._sleepers.add(sleeper)
        try:
            await asyncio.wait([sleeper], timeout=None if seconds is None else max(_POLL_AGAIN_S, seconds))
        finally:
            self._sleepers.discard(sleeper)

    def _wake(self) -> None:
        for sleeper in self._sleepers:
            if not sleeper.done():
                sleeper.set_result(None)


def check_commit(compares: Sequence[Unchanged], changes: Sequence[Put | Delete]) -> None:
    """What etcd refuses, whatever it holds."""
    if max(len(compares), len(changes)) > COMMIT_OPERATIONS_MAX:
        raise EtcdRefusedError(f"etcd takes at most {COMMIT_OPERATIONS_MAX} compares and changes in one commit.")
    keys = [change.key for change in changes]
    if len(set(keys)) != len(keys):
        raise EtcdRefusedError("etcd takes no commit that changes a key twice.")
    if not all(keys) or not all(compare.key for compare in compares):
        raise EtcdRefusedError("etcd has no empty keys.")
    size_bytes = sum(len(change.key) + len(change.value if isinstance(change, Put) else b"") for change in changes)
    if size_bytes > COMMIT_BYTES_MAX:
        raise EtcdRefusedError(f"etcd takes at most {COMMIT_BYTES_MAX} bytes in one commit, but it has {size_bytes}.")
