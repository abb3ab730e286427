"""How many claims tenants and limit keys have: counted, never stored.

The CLAIM_EXPIRY row of a claim names both. So a start counts the claims that are there, and from then on every replica
counts along: no count can leak, none costs a row with each claim, and a fail-over has nothing to count.
"""

from holdfast.machine import keys
from holdfast.machine.kv import OrderedKV

PAGE_ROWS = 1000

Counts = dict[tuple[bytes, bytes], int]  # by queue and name; only of names that have claims


def claim_row(queue: bytes, tenant: bytes, limit_key: bytes, tasks: int = 1) -> bytes:
    """The value of a CLAIM_EXPIRY row: for how many tasks it stands, if these are several, and whose caps their claims
    count for. The key names the last of them."""
    count = b"%d" % tasks if tasks > 1 else b""
    return b"%b\0%b\0%b\0%b" % (count, queue, tenant, limit_key) if tenant or limit_key else count


def split_claim_row(row: bytes) -> tuple[bytes, bytes, bytes, int]:
    """Queue, tenant and limit key of a row that names them, and how many tasks it stands for."""
    count, queue, tenant, limit_key = row.split(b"\0")
    return queue, tenant, limit_key, int(count or b"1")


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

    def came(self, queue: bytes, tenant: bytes, limit_key: bytes, tasks: int = 1) -> None:
        """So many tasks of these were claimed."""
        if tenant:
            name = queue, tenant
            self.tenants[name] = self.tenants.get(name, 0) + tasks
        if limit_key:
            name = queue, limit_key
            self.limit_keys[name] = self.limit_keys.get(name, 0) + tasks

    def went(self, queue: bytes, tenant: bytes, limit_key: bytes, tasks: int = 1) -> None:
        """Their claims have ended."""
        if tenant:
            _take(self.tenants, (queue, tenant), tasks)
        if limit_key:
            _take(self.limit_keys, (queue, limit_key), tasks)


def _take(counts: Counts, name: tuple[bytes, bytes], tasks: int) -> None:
    count = counts.pop(name) - tasks
    if count:
        counts[name] = count
