"""Which shard a queue calls home."""

from collections import Counter
from hashlib import blake2b
from time import process_time

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from holdfast.routing.homes import home_shard

NAMES = [f"queue-{index}" for index in range(2000)]


def test_a_home_never_changes() -> None:
    """Stored data depends on these: a change here strands every existing queue."""
    assert [home_shard(name, 16) for name in ("mail", "mail.slow", "Reports_1", "a")] == [13, 6, 3, 5]


def test_queues_spread_evenly() -> None:
    counts = Counter(home_shard(name, 8) for name in NAMES)
    assert set(counts) == set(range(8))
    assert all(200 <= count <= 300 for count in counts.values())


@given(st.text(max_size=20), st.integers(1, 64))
def test_the_highest_score_wins_also_when_asked_again(name: str, shard_count: int) -> None:
    scores = [blake2b(f"{shard}/{name}".encode(), digest_size=8).digest() for shard in range(shard_count)]
    assert scores[home_shard(name, shard_count)] == scores[home_shard(name, shard_count)] == max(scores)


def test_a_home_among_many_shards_is_worked_out_once() -> None:
    """A first look takes a thousand hashes; a router asks for every batch."""
    home_shard("mail", 1000)
    began = process_time()  # that of a busy machine does not count
    for _ in range(1000):
        home_shard("mail", 1000)
    assert process_time() - began < 0.3, "about 1 s if each is worked out"


@settings(max_examples=20, deadline=None)
@given(st.integers(1, 40))
def test_a_new_shard_takes_its_share_and_moves_nothing_else(shard_count: int) -> None:
    names = NAMES[:300]
    moved = [name for name in names if home_shard(name, shard_count) != home_shard(name, shard_count + 1)]
    assert all(home_shard(name, shard_count + 1) == shard_count for name in moved)
    assert 0 < len(moved) < 3 * len(names) / (shard_count + 1)


@given(st.text(max_size=20), st.integers(1, 64))
def test_every_name_has_a_home(name: str, shard_count: int) -> None:
    assert home_shard(name, shard_count) in range(shard_count)


@pytest.mark.parametrize("shard_count", [0, -1])
def test_there_must_be_a_shard(shard_count: int) -> None:
    with pytest.raises(ValueError, match=f"at least one shard, but got {shard_count}"):
        home_shard("mail", shard_count)
