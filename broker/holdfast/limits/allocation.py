"""How a cap or a rate of a queue that is spread over shards is allocated to them, and anew as demand moves.

The leader of the queue's home shard is the coordinator. It keeps a ledger: one `Allocation` for each shard that
reports. The leader of every shard of the queue is a holder: it sends an `AllocationReport` now and then and gets a
`Grant`, an amount that it may use for the time of a lease. Amounts are slots for a cap and thousandths of a token per
second for a rate.

**What the ledger promises.** `granted` is never less than what that shard may be using, now or by a message that is
still on its way. So a grant can be raised at once, out of what nobody has been granted, but lowering it frees nothing
until the holder has confirmed it (its next report says that it holds less) or its lease has run out.

**The bound.** What all holders together believe they may use is at no time more than the total that was in force when
the newest of their grants was made; so it is never more than the largest total of the last `lease_ms`. Two things can
use more than they believe: slots that were in use when a grant was lowered, which stay in the ledger until they end;
and slots that were in use when a lease ran out, because a shard was out of touch. These are over the total until they
end or until the shard reports again, and then others get less until the sum fits.

**What it rests on.** The ledger is stored before a grant is sent. A report's number grows with every report of a shard,
over all its leaders; a holder heeds the answer to its latest report only, and counts the lease from when it sent that.
A new leader of a shard holds nothing, and counts what is in use only when it has applied all that its predecessor could
commit. The clocks of coordinator and holders run at most 10 % apart from true time; where the coordinator's clock
steps, its leases end early, and nothing is granted anew until those of the holders have ended.
"""

from collections.abc import Mapping
from typing import NamedTuple

HELD_PERCENT = 80  # of a lease counts for its holder: its clock may run 10 % slow, the coordinator's 10 % fast
RENEW_PERCENT = 30  # of a lease may pass before a report is due: two can be lost before the holder has to stop
_COUNTER_BITS = 32


class Allocation(NamedTuple):
    """What the ledger has for one shard."""

    granted: int  # what it may be using
    offered: int  # the amount of its latest grant; below `granted` while a lowering is not confirmed
    demand: int  # what it could use, as it said
    number: int  # of its latest report
    since_ms: int  # since when it has been offered something, or has been waiting for that
    expires_ms: int


class AllocationReport(NamedTuple):
    """What a holder says. For a cap, `demand` is what is in use and what waits; for a rate, what it could use of it."""

    shard: int
    number: int
    holds: int
    uses: int
    demand: int


class Grant(NamedTuple):
    shard: int
    number: int  # of the report that it answers
    amount: int
    lease_ms: int


class AllocationTarget(NamedTuple):
    """What a shard should have, of which `sure` is not to be given to others meanwhile."""

    amount: int
    sure: int


class Allocated(NamedTuple):
    ledger: dict[int, Allocation]
    grant: Grant | None  # None: the report was overtaken by a later one, and nobody waits for an answer


NO_TARGET = AllocationTarget(0, 0)


def allocate(
    total: int,
    ledger: Mapping[int, Allocation],
    report: AllocationReport,
    now_ms: int,
    lease_ms: int,
    *,
    least: int = 1,
) -> Allocated:
    """Answers one report. `least` is what every shard with demand gets before the rest goes by demand."""
    live = {shard: allocation for shard, allocation in ledger.items() if allocation.expires_ms > now_ms}
    before = live.get(report.shard)
    if before is not None and report.number <= before.number:
        if report.number < before.number:
            return Allocated(live, None)
        # The same report once more: the same answer, for no longer than the ledger says.
        left_ms = min(lease_ms, before.expires_ms - now_ms)
        return Allocated(live, Grant(report.shard, report.number, before.offered, left_ms))

    demand = max(report.demand, report.uses, 0)
    # A holder cannot hold more than the ledger says, but a report can be so late that what it says is over.
    held = min(report.holds, before.granted) if before is not None else 0
    live[report.shard] = _heard(before, report.number, demand, now_ms)
    targets = aim(total, live, now_ms, lease_ms, least)
    offered = _offer(total, live, report.shard, targets)

    allocation = live[report.shard]
    if (offered > 0) != (allocation.offered > 0):
        allocation = allocation._replace(since_ms=now_ms)
    live[report.shard] = allocation._replace(
        granted=max(held, report.uses, offered), offered=offered, expires_ms=now_ms + lease_ms
    )
    return Allocated(live, Grant(report.shard, report.number, offered, lease_ms))


def aim(
    total: int, ledger: Mapping[int, Allocation], now_ms: int, turn_ms: int, least: int = 1
) -> dict[int, AllocationTarget]:
    """What each shard should have, given what all of them said: never more than it could use, nor all than the total.

    Shards without demand are left out: what they leave stays free, and whoever needs it next gets it at once.
    """
    demands = {shard: allocation.demand for shard, allocation in sorted(ledger.items()) if allocation.demand > 0}
    if sum(demands.values()) <= total:
        return {shard: AllocationTarget(demand, demand) for shard, demand in demands.items()}
    if total < len(demands):
        return {shard: AllocationTarget(1, 1) for shard in _whose_turn(total, ledger, list(demands), now_ms, turn_ms)}

    base = max(1, min(least, total // len(demands)))
    sure = {shard: min(base, demand) for shard, demand in demands.items()}
    rest = total - sum(sure.values())
    wanting = sum(demands.values()) - sum(sure.values())
    amounts: dict[int, int] = {}
    remainders: list[tuple[int, int]] = []
    for shard, demand in demands.items():
        more, remainder = divmod(rest * (demand - sure[shard]), wanting)
        amounts[shard] = sure[shard] + more
        remainders.append((-remainder, shard))
    # Less is left than there are remainders above 0, so nobody gets more than he could use.
    for _, shard in sorted(remainders)[: total - sum(amounts.values())]:
        amounts[shard] += 1
    return {shard: AllocationTarget(amount, sure[shard]) for shard, amount in amounts.items()}


def _heard(before: Allocation | None, number: int, demand: int, now_ms: int) -> Allocation:
    """The allocation with what its report says of demand; what is granted comes later."""
    if before is None:
        return Allocation(0, 0, demand, number, now_ms, 0)
    started = demand > 0 and before.demand == 0
    return before._replace(demand=demand, number=number, since_ms=now_ms if started else before.since_ms)


def _offer(total: int, ledger: Mapping[int, Allocation], shard: int, targets: Mapping[int, AllocationTarget]) -> int:
    """As much of the target as nobody else has been granted, and beyond the sure part only what no other is sure of.

    If more is granted than the total (it was lowered, or a shard came back with slots in use), this cuts every shard
    that reports by the whole excess: once each of them has confirmed, the sum fits, whatever the demand did meanwhile.
    """
    room = open_room = total
    for other, allocation in ledger.items():
        if other != shard:
            room -= allocation.granted
            open_room -= max(allocation.granted, targets.get(other, NO_TARGET).sure)
    target = targets.get(shard, NO_TARGET)
    return max(0, min(target.amount, max(open_room, min(target.sure, room))))


def _whose_turn(
    total: int, ledger: Mapping[int, Allocation], shards: list[int], now_ms: int, turn_ms: int
) -> list[int]:
    """There is not one for everybody: who has had it for a turn yields to who has waited longest."""

    def place(shard: int) -> tuple[int, int, int]:
        allocation = ledger[shard]
        if allocation.offered == 0:
            return 1, allocation.since_ms, shard
        if now_ms - allocation.since_ms < turn_ms:
            return 0, allocation.since_ms, shard
        return 2, -allocation.since_ms, shard

    return sorted(shards, key=place)[: max(0, total)]


class Holding:
    """The holder's side: what one leader of a shard may use. All times are of one clock of its own that never steps."""

    __slots__ = ("_amount", "_awaits", "_number", "_renew_ms", "_sent_ms", "_shard", "_until_ms")

    def __init__(self, shard: int, term: int) -> None:
        """`term` grows from each leader of the shard to the next."""
        self._shard = shard
        self._number = term << _COUNTER_BITS
        self._awaits = False
        self._amount = 0
        self._sent_ms = 0
        self._until_ms = 0
        self._renew_ms = 0

    def report(self, uses: int, demand: int, now_ms: int) -> AllocationReport:
        """The next report, to be sent at once. An answer to an earlier one counts no more."""
        self._number += 1
        self._awaits = True
        self._sent_ms = now_ms
        return AllocationReport(self._shard, self._number, self.allowance(now_ms), uses, demand)

    def accept(self, grant: Grant) -> bool:
        """Whether the grant counts: the first answer to the latest report does. A lower amount counts at once too."""
        if not self._awaits or grant.shard != self._shard or grant.number != self._number:
            return False
        self._awaits = False
        self._amount = grant.amount
        self._until_ms = self._sent_ms + grant.lease_ms * HELD_PERCENT // 100
        self._renew_ms = self._sent_ms + grant.lease_ms * RENEW_PERCENT // 100
        return True

    def allowance(self, now_ms: int) -> int:
        """How much may be in use; nothing once the lease has run out."""
        return self._amount if now_ms < self._until_ms else 0

    @property
    def renew_ms(self) -> int:
        """When the next report is due at the latest. It may be sooner, as when the allowance is used up."""
        return self._renew_ms
