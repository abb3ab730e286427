"""How many claims tenants and limit keys have: counted, never stored.

The CLAIM_EXPIRY row of a claim names both. So a start counts the claims that are there, and from then on every replica
counts along: no count can leak, none costs a row with each claim, and a fail-over has nothing to count.
"""

from holdfast.machine import keys
from holdfast.machine.kv import OrderedKV
from holdfast.machine.rows import Execution, split_claim_row

PAGE_ROWS = 1000

Counts = dict[tuple[bytes, bytes], int]  # by queue and name; only of names that have claims


class Running:
    __slots__ = ("limit_keys", "tenants")

    def __init__(self, kv: OrderedKV) -> None:
        self.tenants: Counts = {}
        self.limit_keys: Counts = {}
        start, stop = keys.family_start(keys.CLAIM_EXPIRY), keys.family_start(keys.CLAIM_EXPIRY + 1)
        while rows := kv.scan(start, stop, PAGE_ROWS):
            for _, row in rows:
                if row:
                    self._add(*split_claim_row(row), 1)
            start = rows[-1][0] + b"\0"

    def came(self, task: Execution) -> None:
        """The task was claimed."""
        self._add(task.queue, task.tenant, task.limit_key, 1)

    def went(self, task: Execution) -> None:
        """Its claim has ended."""
        self._add(task.queue, task.tenant, task.limit_key, -1)

    def _add(self, queue: bytes, tenant: bytes, limit_key: bytes, delta: int) -> None:
        for counts, name in ((self.tenants, tenant), (self.limit_keys, limit_key)):
            if name:
                count = counts.get((queue, name), 0) + delta
                if count:
                    counts[queue, name] = count
                else:
                    del counts[queue, name]
