"""The in-memory ordered store against a naive one: a dict that is sorted for every scan."""

import hypothesis.strategies as st
from hypothesis import given, settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from holdfast.machine.kv import MemoryKV

# Few and nested keys, so that changes meet and ranges begin and end on rows.
some_keys = st.binary(max_size=2) | st.sampled_from((b"\0", b"a", b"a\0", b"a\0\0", b"ab", b"b", b"\xff", b"\xff\xff"))
values = st.binary(max_size=2)
changes = st.dictionaries(some_keys, st.none() | values, max_size=6)


class MemoryAgainstDict(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.kv = MemoryKV()
        self.naive: dict[bytes, bytes] = {}

    @rule(batch=changes)
    def write(self, batch: dict[bytes, bytes | None]) -> None:
        given = dict(batch)
        self.kv.write(batch)
        assert batch == given
        for key, value in batch.items():
            if value is None:
                self.naive.pop(key, None)
            else:
                self.naive[key] = value

    @rule(key=some_keys)
    def get(self, key: bytes) -> None:
        assert self.kv.get(key) == self.naive.get(key)

    @rule(wanted=st.lists(some_keys, max_size=4))
    def get_many(self, wanted: list[bytes]) -> None:
        assert self.kv.get_many(wanted) == [self.naive.get(key) for key in wanted]

    @rule(start=some_keys, stop=some_keys, limit=st.integers(0, 5))
    def scan(self, start: bytes, stop: bytes, limit: int) -> None:
        inside = sorted((key, row) for key, row in self.naive.items() if start <= key < stop)
        assert self.kv.scan(start, stop, limit) == inside[:limit]

    @rule()
    def reopen(self) -> None:
        self.kv = MemoryKV(self.kv.rows())

    @invariant()
    def same_rows(self) -> None:
        assert self.kv.rows() == self.naive
        assert self.kv.scan(b"", b"\xff" * 8, 10**6) == sorted(self.naive.items())


TestMemoryAgainstDict = MemoryAgainstDict.TestCase
TestMemoryAgainstDict.settings = settings(max_examples=60, stateful_step_count=30, deadline=None, print_blob=True)


@settings(max_examples=30, deadline=None, print_blob=True)
@given(st.dictionaries(some_keys, values), changes)
def test_copies_share_nothing(start: dict[bytes, bytes], batch: dict[bytes, bytes | None]) -> None:
    kv = MemoryKV(start)
    before, taken = dict(start), kv.rows()
    kv.write(batch)
    assert start == taken == before
    taken[b"stray"] = b""
    assert kv.get(b"stray") is None
