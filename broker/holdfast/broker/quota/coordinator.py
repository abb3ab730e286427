"""Allocates the queue-wide limits of spread queues whose home is this shard (see limits/allocation.py for the rules).

The ledger is in the log before a grant is sent, so a new leader of the home goes on with it.
"""

import asyncio
import struct
from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple, Protocol

from holdfast.broker.policy.policies import Policies
from holdfast.broker.policy.settings_guard import SETTINGS
from holdfast.limits.allocation import Allocation, AllocationReport, allocate
from holdfast.limits.reports import LimitGrant, LimitReport
from holdfast.machine import keys
from holdfast.machine.entries import Entry
from holdfast.machine.machine import Machine
from holdfast.machine.operator_entries import SetAllocations
from holdfast.machine.outcomes import Outcome

LEASE_MS = 10_000
SHARDS_MAX = 4096  # of one queue; a cluster has at most 1,024

CONCURRENCY = "concurrency"
RATE = "rate"
LIMITS = {CONCURRENCY: 0x63, RATE: 0x72}  # a part of ALLOCATION keys

_ALLOCATION = struct.Struct(">QQQQQQ")


class AtHome(Protocol):
    """The home shard as one of those that use the queue."""

    def takes_part(self, queue: bytes) -> bool:
        """Whether the queue is spread and at home here. If so, the home keeps to an allocation from this moment."""
        ...

    def in_use(self, queue: bytes) -> int:
        """Claims of the queue here."""
        ...


class SettingsVersions(Protocol):
    """Which version of the settings of queues is known here, and whether somebody knows a newer one."""

    def is_behind(self, queue: bytes) -> bool: ...

    def reported(self, queue: bytes, version: int) -> int:
        """Another shard knows this version. Returns the newest that was heard of."""
        ...


class _Ledger(NamedTuple):
    """Of one limit: as it is in the state, and as it is to be."""

    stored: dict[int, Allocation]
    current: dict[int, Allocation]


class QuotaCoordinator:
    """The ledgers of one home shard. `submit` writes an entry."""

    def __init__(
        self,
        machine: Machine,
        policies: Policies,
        *,
        now_ms: Callable[[], int],
        submit: Callable[[Entry], Awaitable[list[Outcome]]],
        settings: SettingsVersions | None = None,
    ) -> None:
        self._reader = machine.reader
        self._settings = settings  # None: this node has no map
        self._machine = machine
        self._policies = policies
        self._now_ms = now_ms
        self._submit = submit
        self._one_at_a_time = asyncio.Lock()  # the next report must be answered from the ledger of the one before

    async def allocate(
        self, shard: int, reports: Sequence[LimitReport], at_home: AtHome | None = None
    ) -> list[LimitGrant]:
        """Answers reports of a shard. Raises if what was decided may not be in the log: then nothing was granted.
        `at_home`: None if the home shard itself hands out nothing of queues that are spread."""
        await self._one_at_a_time.acquire()
        # A caller that goes away must not let the next one in before the ledger is written.
        return await asyncio.shield(self._allocate_and_let_in(shard, reports, at_home))

    async def _allocate_and_let_in(
        self, shard: int, reports: Sequence[LimitReport], at_home: AtHome | None
    ) -> list[LimitGrant]:
        try:
            ledgers: dict[tuple[bytes, str], _Ledger] = {}
            grants = [self._answer(shard, report, ledgers, at_home) for report in reports]
            writes = [self._write(*name, ledger) for name, ledger in ledgers.items()]
            for ended in await asyncio.gather(*writes, return_exceptions=True):
                if isinstance(ended, BaseException):
                    raise ended
            return grants
        finally:
            self._one_at_a_time.release()

    def _answer(
        self,
        shard: int,
        reported: LimitReport,
        ledgers: dict[tuple[bytes, str], _Ledger],
        at_home: AtHome | None,
    ) -> LimitGrant:
        queue, what = reported.queue, reported.what
        grant = LimitGrant(queue, what, number=reported.number, lease_ms=LEASE_MS)
        if what == SETTINGS:
            if self._settings is None:
                return grant
            return grant._replace(version=self._settings.reported(queue, reported.version))
        total = self._total(queue, what)
        if total is None:
            return grant._replace(unlimited=True)
        if at_home is not None and not at_home.takes_part(queue):
            return grant  # of nothing: who asks has heard of a spread that this node has not heard of, or is behind
        now_ms = self._now_ms()
        ledger = ledgers.get((queue, what))
        if ledger is None:
            stored = self._stored(queue, what)
            ledger = ledgers[queue, what] = _Ledger(stored, dict(stored))
        if what == CONCURRENCY and shard != self._shard and at_home is not None:
            self._note_own_use(at_home.in_use(queue), ledger.current, now_ms)
        report = AllocationReport(shard, reported.number, reported.holds, reported.uses, reported.demand)
        # With an equal part for everybody first: who can use little gets it, whatever the others could use.
        is_unsure = self._is_unsettled(now_ms) or (self._settings is not None and self._settings.is_behind(queue))
        allocated = allocate(0 if is_unsure else total, ledger.current, report, now_ms, LEASE_MS, least=total)
        ledger.current.clear()
        ledger.current.update(allocated.ledger)
        if allocated.grant is None:
            return grant._replace(number=0)
        return grant._replace(amount=allocated.grant.amount, lease_ms=allocated.grant.lease_ms)

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

    def _note_own_use(self, uses: int, current: dict[int, Allocation], now_ms: int) -> None:
        """What is in use here is known without a report: of a queue that was spread a moment ago all of it is."""
        own = current.get(self._shard)
        if own is None or own.expires_ms <= now_ms:
            own = Allocation(0, 0, uses, 0, now_ms, now_ms + LEASE_MS)
        if uses > own.granted:
            current[self._shard] = own._replace(granted=uses)

    def _stored(self, queue: bytes, what: str) -> dict[int, Allocation]:
        prefix = keys.allocations_of(queue, LIMITS[what])
        rows = self._reader.scan(prefix, keys.after_prefix(prefix), SHARDS_MAX)
        return {int.from_bytes(key[-2:], "big"): Allocation(*_ALLOCATION.unpack(row)) for key, row in rows}

    async def _write(self, queue: bytes, what: str, ledger: _Ledger) -> None:
        stored, current = ledger
        changed = [
            (shard, _ALLOCATION.pack(*allocation))
            for shard, allocation in current.items()
            if stored.get(shard) != allocation
        ]
        changed += [(shard, b"") for shard in stored if shard not in current]
        if changed:
            await self._submit(SetAllocations(self._now_ms(), queue, LIMITS[what], changed))
