"""Ids that clients make up: no two are alike, whichever process made them."""

import subprocess
import sys

from holdfast.client._request_ids import new_key

FORKED = """
import os
from holdfast.client._request_ids import new_key
new_key()  # many were drawn, and most are left
reads, writes = os.pipe()
if not os.fork():
    os.write(writes, " ".join(new_key() for _ in range(200)).encode())
    os._exit(0)
os.close(writes)
own = {new_key() for _ in range(200)}
of_child = set()
with open(reads) as pipe:
    of_child = set(pipe.read().split())
assert len(own) == len(of_child) == 200, (len(own), len(of_child))
assert not own & of_child
"""


def test_keys_are_all_different_and_fit_into_ids() -> None:
    keys = [new_key() for _ in range(1_000)]
    assert len(set(keys)) == 1_000
    assert all(len(key) == 32 and set(key) <= set("0123456789abcdef") for key in keys)


def test_a_child_has_none_of_its_parents_keys() -> None:
    subprocess.run([sys.executable, "-c", FORKED], check=True, timeout=60)
