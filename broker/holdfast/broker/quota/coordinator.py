"""Deals the queue-wide limits of spread queues whose home is this shard (see limits/dealing.py for the rules).

The books are in the log before a grant is told, so a new leader of the home goes on with them.
"""

import asyncio
import struct
from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple, Protocol

from holdfast.broker.policy.policies import Policies
from holdfast.broker.policy.settings_guard import SETTINGS
from holdfast.limits.dealing import Report, Share, deal
from holdfast.machine import keys
from holdfast.machine.entries import Entry
from holdfast.machine.machine import Machine
from holdfast.machine.operator_entries import DealShares
from holdfast.machine.outcomes import Outcome
from holdfast.proto.v1 import broker_calls_pb2 as pb

LEASE_MS = 10_000
SHARDS_MAX = 4096  # of one queue; a cluster has at most 1,024

CONCURRENCY = "concurrency"
RATE = "rate"
LIMITS = {CONCURRENCY: 0x63, RATE: 0x72}  # a part of SHARE keys

_SHARE = struct.Struct(">QQQQQQ")


class AtHome(Protocol):
    """The home shard as one of those that use the queue."""

    def takes_part(self, queue: bytes) -> bool:
        """Whether the queue is spread and at home here. If so, the home itself keeps to a share from this moment."""
        ...

    def in_use(self, queue: bytes) -> int:
        """Claims of the queue here."""
        ...


class Settings(Protocol):
    """Which version of the settings of queues is known here, and whether somebody knows a newer one."""

    def is_behind(self, queue: bytes) -> bool: ...

    def reported(self, queue: bytes, version: int) -> int:
        """Another shard knows this version. Returns the newest that was heard of."""
        ...


class _Ledger(NamedTuple):
    """The books of one limit: as they are in the state, and as they are to be."""

    stored: dict[int, Share]
    books: dict[int, Share]


class QuotaCoordinator:
    """The books of one home shard. `submit` writes an entry."""

    def __init__(
        self,
        machine: Machine,
        policies: Policies,
        *,
        now_ms: Callable[[], int],
        submit: Callable[[Entry], Awaitable[list[Outcome]]],
        settings: Settings | None = None,
    ) -> None:
        self._reader = machine.reader
        self._settings = settings  # None: this node has no map
        self._machine = machine
        self._policies = policies
        self._now_ms = now_ms
        self._submit = submit
        self._one_at_a_time = asyncio.Lock()  # the next report must be answered from the books of the one before
        self._at_home: AtHome | None = None  # None: this node has no map, and nobody asks

    def joined_by(self, at_home: AtHome) -> None:
        """The home shard itself uses queues that are dealt here."""
        self._at_home = at_home

    async def deal(self, shard: int, reports: Sequence[pb.ShareReport]) -> list[pb.ShareGrant]:
        """Answers reports of a shard. Raises if what was decided may not be in the log: then nothing was granted."""
        await self._one_at_a_time.acquire()
        # A caller that goes away must not let the next one in before the books are written.
        return await asyncio.shield(self._deal_and_let_in(shard, reports))

    async def _deal_and_let_in(self, shard: int, reports: Sequence[pb.ShareReport]) -> list[pb.ShareGrant]:
        try:
            ledgers: dict[tuple[bytes, str], _Ledger] = {}
            grants = [self._answer(shard, report, ledgers) for report in reports]
            writes = [self._write(*name, ledger) for name, ledger in ledgers.items()]
            for ended in await asyncio.gather(*writes, return_exceptions=True):
                if isinstance(ended, BaseException):
                    raise ended
            return grants
        finally:
            self._one_at_a_time.release()

    def _answer(self, shard: int, reported: pb.ShareReport, ledgers: dict[tuple[bytes, str], _Ledger]) -> pb.ShareGrant:
        queue, what = reported.queue.encode(), reported.what
        grant = pb.ShareGrant(queue=reported.queue, what=what, number=reported.number, lease_ms=LEASE_MS)
        if what == SETTINGS:
            if self._settings is not None:
                grant.version = self._settings.reported(queue, reported.version)
            return grant
        total = self._total(queue, what)
        if total is None:
            grant.unlimited = True
            return grant
        if self._at_home is not None and not self._at_home.takes_part(queue):
            return grant  # of nothing: who asks has heard of a spread that this node has not heard of, or is behind
        now_ms = self._now_ms()
        ledger = ledgers.get((queue, what))
        if ledger is None:
            stored = self._stored(queue, what)
            ledger = ledgers[queue, what] = _Ledger(stored, dict(stored))
        if what == CONCURRENCY and shard != self._shard and self._at_home is not None:
            self._note_own_use(self._at_home.in_use(queue), ledger.books, now_ms)
        report = Report(shard, reported.number, reported.holds, reported.uses, reported.demand)
        # With an equal part for everybody first: who can use little gets it, whatever the others could use.
        is_unsure = self._is_unsettled(now_ms) or (self._settings is not None and self._settings.is_behind(queue))
        dealt = deal(0 if is_unsure else total, ledger.books, report, now_ms, LEASE_MS, least=total)
        ledger.books.clear()
        ledger.books.update(dealt.books)
        if dealt.grant is None:
            grant.number = 0
        else:
            grant.amount, grant.lease_ms = dealt.grant.amount, dealt.grant.lease_ms
        return grant

    def _total(self, queue: bytes, what: str) -> int | None:
        limits = self._policies.of(queue).limits
        if what == CONCURRENCY:
            return limits.concurrency_max or None
        return None if limits.rate is None else limits.rate.per_second_milli

    def _is_unsettled(self, now_ms: int) -> bool:
        """Leases end by this clock, and it has just been moved: until all that were granted have ended by the holders'
        own clocks nothing is promised anew."""
        stepped_ms = self._machine.meta.stepped_ms
        return bool(stepped_ms) and now_ms - stepped_ms < LEASE_MS

    @property
    def _shard(self) -> int:
        return self._machine.meta.shard

    def _note_own_use(self, uses: int, books: dict[int, Share], now_ms: int) -> None:
        """What is in use here is known without a report: of a queue that was spread a moment ago all of it is."""
        own = books.get(self._shard)
        if own is None or own.expires_ms <= now_ms:
            own = Share(0, 0, uses, 0, now_ms, now_ms + LEASE_MS)
        if uses > own.granted:
            books[self._shard] = own._replace(granted=uses)

    def _stored(self, queue: bytes, what: str) -> dict[int, Share]:
        prefix = keys.shares_of(queue, LIMITS[what])
        rows = self._reader.scan(prefix, keys.after_prefix(prefix), SHARDS_MAX)
        return {int.from_bytes(key[-2:], "big"): Share(*_SHARE.unpack(row)) for key, row in rows}

    async def _write(self, queue: bytes, what: str, ledger: _Ledger) -> None:
        stored, books = ledger
        changed = [(shard, _SHARE.pack(*share)) for shard, share in books.items() if stored.get(shard) != share]
        changed += [(shard, b"") for shard in stored if shard not in books]
        if changed:
            await self._submit(DealShares(self._now_ms(), queue, LIMITS[what], changed))
