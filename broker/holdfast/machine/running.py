"""How many claims tenants and limit keys have: counted, never stored.

The CLAIM_EXPIRY row of a claim names both. So a start counts the claims that are there, and from then on every replica
counts along: no count can leak, none costs a row with each claim, and a fail-over has nothing to count.
"""

from holdfast.machine import keys
from holdfast.machine.kv import OrderedKV

PAGE_ROWS = 1000

Counts = dict[tuple[bytes, bytes], int]  # by queue and name; only of names that have claims


def claim_row(queue: bytes, tenant: bytes, limit_key: bytes) -> bytes:
    """The value of a CLAIM_EXPIRY row: whose caps the claim counts for."""
    return b"%b\0%b\0%b" % (queue, tenant, limit_key) if tenant or limit_key else b""


def split_claim_row(row: bytes) -> tuple[bytes, bytes, bytes]:
    """Queue, tenant and limit key of a row that names them."""
    queue, tenant, limit_key = row.split(b"\0")
    return queue, tenant, limit_key


class Running:
    __slots__ = ("limit_keys", "tenants")

    def __init__(self, kv: OrderedKV) -> None:
        self.tenants: Counts = {}
        self.limit_keys: Counts = {}
        start, stop = keys.family_start(keys.CLAIM_EXPIRY), keys.family_start(keys.CLAIM_EXPIRY + 1)
        while rows := kv.scan(start, stop, PAGE_ROWS):
            for _, row in rows:
                if b"\0" in row:
                    self.came(*split_claim_row(row))
            start = rows[-1][0] + b"\0"

    def came(self, queue: bytes, tenant: bytes, limit_key: bytes) -> None:
        """A task of these was claimed."""
        if tenant:
            name = queue, tenant
            self.tenants[name] = self.tenants.get(name, 0) + 1
        if limit_key:
            name = queue, limit_key
            self.limit_keys[name] = self.limit_keys.get(name, 0) + 1

    def went(self, queue: bytes, tenant: bytes, limit_key: bytes) -> None:
        """Its claim has ended."""
        if tenant:
            _take_one(self.tenants, (queue, tenant))
        if limit_key:
            _take_one(self.limit_keys, (queue, limit_key))


def _take_one(counts: Counts, name: tuple[bytes, bytes]) -> None:
    count = counts.pop(name) - 1
    if count:
        counts[name] = count
