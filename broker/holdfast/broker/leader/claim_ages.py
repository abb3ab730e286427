"""For how long the oldest claim of each queue has been held: a handler that does not end shows in it.

Claims are indexed by the end of their leases, which tells nothing of their age, and an index by age would cost every
claim and every ack a row. So the leader of a shard looks at a bounded number of claims every few seconds and remembers
the oldest. Up to 1,000 claims are all seen at every look. Of more, each look sees some, and what it finds is remembered
until it ends: a claim that is held for long is met sooner or later, for its lease is extended again and again. Tasks of
a run that were claimed together are equally old: only the last of them is looked at, which their row names.
"""

import asyncio
from bisect import insort
from collections.abc import Callable

from holdfast.common.service import Service
from holdfast.machine import keys
from holdfast.machine.machine import Machine
from holdfast.machine.rows import CLAIMED

POLL_SECONDS = 5.0
POLL_CLAIMS_MAX = 1024
SLICE_CLAIMS = 64  # before other work of the loop gets a turn
REMEMBERED_MAX = 16  # of a queue: the next oldest is known when the oldest ends
QUEUES_MAX = 10_000

_Oldest = list[tuple[int, bytes]]  # since when it is held, and the task; the oldest first


class ClaimAges(Service):
    """Of one shard, while this node leads it."""

    def __init__(self, machine: Machine, *, now_ms: Callable[[], int], first_claim: Callable[[], bytes]) -> None:
        """`first_claim`: where the rows of claims begin."""
        super().__init__(self._run)
        self._reader = machine.reader
        self._machine = machine
        self._now_ms = now_ms
        self._first_claim = first_claim
        self.oldest: dict[bytes, _Oldest] = {}  # by queue
        self._after = b""  # the last row of the look before; empty if that was the last of all

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(POLL_SECONDS)
            await self.poll()

    async def poll(self) -> None:
        found: dict[bytes, _Oldest] = {}
        began_at_first = not self._after
        for _ in range(0, POLL_CLAIMS_MAX, SLICE_CLAIMS):
            if not self._poll_slice(found):
                break
            await asyncio.sleep(0)
        is_whole = began_at_first and not self._after
        if not is_whole:
            for queue, remembered in self.oldest.items():
                for claim in self._still_held(remembered):
                    _remember(found, queue, claim)
        self.oldest = {queue: claims for queue, claims in found.items() if self._has_claims(queue)}

    def _poll_slice(self, found: dict[bytes, _Oldest]) -> bool:
        """Whether there are more."""
        start = self._after + b"\0" if self._after else self._first_claim()
        rows = self._reader.scan(start, keys.family_start(keys.CLAIM_EXPIRY + 1), SLICE_CLAIMS)
        task_ids = [keys.timed(key)[1] for key, _ in rows]
        for task_id, task in zip(task_ids, self._reader.executions(task_ids), strict=True):
            if task is not None and task.state == CLAIMED:
                _remember(found, task.queue, (task.changed_ms, task_id))
        self._after = rows[-1][0] if len(rows) == SLICE_CLAIMS else b""
        return bool(self._after)

    def _has_claims(self, name: bytes) -> bool:
        queue = self._machine.queue(name)
        return queue is not None and queue.claimed > 0

    def age_ms(self, name: bytes) -> int:
        """How long the oldest claim of a queue has been held; 0 if there is none, or none was seen yet. Once all that
        are remembered have ended, it is what it would be if the last of them had not: the others are younger."""
        claims = self.oldest.get(name)
        if not claims or not self._has_claims(name):
            return 0
        return max(0, self._now_ms() - self._still_held(claims)[0][0])

    def _still_held(self, claims: _Oldest) -> _Oldest:
        """Without those at its begin that have ended; at least one is left."""
        while len(claims) > 1 and not self._is_held(*claims[0]):
            del claims[0]
        return claims

    def _is_held(self, since_ms: int, task_id: bytes) -> bool:
        (task,) = self._reader.executions([task_id])
        return task is not None and task.state == CLAIMED and task.changed_ms == since_ms


def _remember(found: dict[bytes, _Oldest], queue: bytes, claim: tuple[int, bytes]) -> None:
    if queue not in found and len(found) >= QUEUES_MAX:
        return
    claims = found.setdefault(queue, [])
    if claim not in claims:
        insort(claims, claim)
        del claims[REMEMBERED_MAX:]
