"""The hash of a whole state: equal on every replica that has applied the same entries."""

import hashlib

from holdfast.machine.invariants import rows_of
from holdfast.machine.kv import Rows


def state_hash(kv: Rows) -> str:
    digest = hashlib.blake2b(digest_size=16)
    for key, row in rows_of(kv, b"\x00", b"\xff"):
        digest.update(len(key).to_bytes(4, "big") + key + len(row).to_bytes(4, "big") + row)
    return digest.hexdigest()
