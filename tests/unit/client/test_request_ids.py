"""Ids that clients make up: no two are alike, whichever process made them."""

import subprocess
import sys

import pytest

from holdfast.client._request_ids import new_key

FORKED = """
import ctypes, os, sys
from holdfast.client._request_ids import new_key
new_key()
reads, writes = os.pipe()
fork = os.fork if sys.argv[1] == "os" else ctypes.PyDLL(None).fork
if not fork():
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


@pytest.mark.parametrize("fork", ["os", "libc"])
def test_a_child_has_none_of_its_parents_keys(fork: str) -> None:
    """Servers of applications fork without telling Python: no hook runs then."""
    subprocess.run([sys.executable, "-c", FORKED, fork], check=True, timeout=60)
