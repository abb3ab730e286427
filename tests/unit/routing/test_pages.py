"""Lists over several shards: nothing twice, nothing missing, and no call that never ends."""

from collections import Counter

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from holdfast.routing.pages import PAGE_BYTES_MAX, PageTokenError, Walk, merge_by_name, order_of, place_of
from holdfast.routing.sets import QueueRoute

quick = settings(max_examples=60, deadline=None)

items_of_shards = st.dictionaries(st.integers(0, 9), st.lists(st.booleans(), max_size=7), min_size=1, max_size=5)


@quick
@given(items_of_shards, st.integers(1, 5), st.integers(1, 4), st.integers(1, 3))
def test_a_walk_meets_every_item_once(
    shards: dict[int, list[bool]], wanted: int, looked_at_max: int, shards_max: int
) -> None:
    """Only items that are True are wanted; a shard looks at no more than so many in one call."""
    order = sorted(shards)
    found: list[tuple[int, int]] = []
    token, calls = "", 0
    while True:
        walk = Walk(order, token, wanted, shards_max=shards_max)
        page: list[tuple[int, int]] = []
        asked = 0
        while not walk.is_done:
            asked += 1
            start = int(walk.token or 0)
            end = min(start + min(walk.wanted, looked_at_max), len(shards[walk.shard]))
            matching = [(walk.shard, index) for index in range(start, end) if shards[walk.shard][index]]
            page += matching
            walk.came(len(matching), 1, str(end) if end < len(shards[walk.shard]) else "")
        assert len(page) <= wanted
        assert asked <= shards_max
        found += page
        token, calls = walk.next_token, calls + 1
        if not token:
            break
        assert calls < 200
    assert found == [(shard, index) for shard in order for index, is_wanted in enumerate(shards[shard]) if is_wanted]


def test_a_page_ends_when_it_is_large_or_a_shard_has_more() -> None:
    walk = Walk([4, 2], "", 100)
    walk.came(1, PAGE_BYTES_MAX, "")
    assert (walk.is_done, walk.next_token) == (True, "2.")
    walk = Walk([4, 2], "", 100)
    walk.came(0, 0, "t.1")
    assert (walk.is_done, walk.next_token) == (True, "4.t.1")
    walk = Walk([4, 2], "4.t.1", 100)
    assert (walk.shard, walk.token) == (4, "t.1")


def test_a_page_ends_at_a_shard_that_is_missed_and_the_next_begins_behind_it() -> None:
    walk = Walk([4, 2], "4.t.1", 100)
    walk.missed()
    assert (walk.is_done, walk.next_token) == (True, "2.")
    walk = Walk([4, 2], walk.next_token, 100)
    walk.missed()
    assert (walk.is_done, walk.next_token) == (True, "")


def test_a_walk_that_begins_behind_the_last_shard_is_over() -> None:
    walk = Walk([1, 3], "7.x", 10)
    assert (walk.is_done, walk.next_token) == (True, "")


def test_places() -> None:
    order = order_of(QueueRoute("q", 5, 1, ((1, (9, 5)),), (2,)))
    assert order == [5, 2, 9]
    assert place_of("", order) == (0, "")
    assert place_of("abc", order) == (0, "abc")
    assert place_of("9.a.b", order) == (2, "a.b")
    assert place_of("3.x", order) == (2, ""), "it has drained"
    for bad in ("x.1", ".1", "-1.x", "123456.x", "²."):
        with pytest.raises(PageTokenError):
            place_of(bad, order)


@quick
@given(st.lists(st.sets(st.sampled_from("abcdefgh"), max_size=8), min_size=1, max_size=4), st.integers(1, 5))
def test_names_of_all_shards_come_once_and_in_order(shards: list[set[str]], limit: int) -> None:
    found: list[tuple[str, int]] = []
    token = ""
    for _ in range(20):
        pages = []
        for names in shards:
            left = sorted(name for name in names if name > token)
            pages.append(([Counter({name: 1}) for name in left[:limit]], len(left) > limit))
        items, token = merge_by_name(pages, lambda item: next(iter(item)), Counter.update, limit)
        assert len(items) <= limit
        found += [pair for item in items for pair in item.items()]
        if not token:
            break
    expected = sorted(set().union(*shards))
    assert found == [(name, sum(name in names for names in shards)) for name in expected]
