"""Which shards the calls about a queue go to, while its set of shards changes."""

from collections import Counter
from itertools import pairwise
from random import Random

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from holdfast.routing.homes import home_shard, shard_of_key, spread_shards
from holdfast.routing.sets import (
    HOME_BEGINNING,
    AutomaticKey,
    QueueRoute,
    UnknownGenerationError,
    automatic_key,
    is_of_home,
    newest,
    owner_of_task,
    parse_automatic_key,
    shard_for_task,
    visible,
)

quick = settings(max_examples=100, deadline=None, print_blob=True)
brief = settings(max_examples=30, deadline=None, print_blob=True)

shard_numbers = st.integers(0, 40)
shard_sets = st.lists(shard_numbers, min_size=1, max_size=6, unique=True).map(tuple)
call_keys = st.from_regex(r"[A-Za-z0-9_-]{1,64}", fullmatch=True)
generations = st.integers(0, 10**18 - 1)
task_numbers = st.integers(0, 10**9 - 1)
keys = st.text(min_size=1, max_size=12)


@st.composite
def routes(draw: st.DrawFn) -> QueueRoute:
    sets = draw(st.dictionaries(st.integers(1, 30), shard_sets, max_size=5))
    draining = draw(st.lists(shard_numbers, max_size=3, unique=True))
    return QueueRoute("mail", draw(shard_numbers), max(sets, default=0), tuple(sorted(sets.items())), tuple(draining))


PLAIN = QueueRoute("mail", home=7)
SPREAD = QueueRoute("mail", home=7, generation=4, sets=((1, (2, 3)), (3, (1, 2, 3, 4)), (4, (5, 6))), draining=(3, 1))


def test_a_queue_that_nobody_configured_lives_at_home() -> None:
    assert newest(PLAIN) == visible(PLAIN) == (7,)
    assert {shard_for_task(PLAIN, request_id, "", "", 5) for request_id in ("", "mine", "~0.key.0", "~x.key.3")} == {7}


def test_readers_see_the_home_the_newest_set_and_what_drains_each_once() -> None:
    assert newest(SPREAD) == (5, 6)
    assert visible(SPREAD) == (7, 5, 6, 3, 1)
    assert visible(QueueRoute("mail", 5, 1, ((1, (6, 5)),), (6, 8))) == (5, 6, 8)


@quick
@given(routes(), st.text(max_size=40).filter(lambda text: text and not text.startswith("~")), st.integers())
def test_an_id_of_the_producers_own_goes_home_whatever_the_sets(route: QueueRoute, own: str, pick: int) -> None:
    assert shard_for_task(route, own, "", "", pick) == route.home


@quick
@given(routes(), call_keys, st.lists(task_numbers, min_size=1, max_size=8), st.lists(st.integers()))
def test_all_automatic_keys_of_a_call_land_on_one_shard_of_their_set(
    route: QueueRoute, call_key: str, numbers: list[int], picks: list[int]
) -> None:
    for generation, shards in ((0, (route.home,)), *route.sets):
        landed = {
            shard_for_task(route, automatic_key(generation, call_key, n), "", "", pick)
            for n in numbers
            for pick in [0, *picks]
        }
        assert len(landed) == 1
        assert landed <= set(shards)


@quick
@given(routes(), call_keys, shard_sets)
def test_a_retry_meets_its_first_attempt_after_the_set_has_changed(
    route: QueueRoute, call_key: str, shards: tuple[int, ...]
) -> None:
    """For every generation that was known then."""
    later = QueueRoute(
        "mail", route.home, route.generation + 1, (*route.sets, (route.generation + 1, shards)), newest(route)
    )
    for generation in (0, *(generation for generation, _ in route.sets)):
        request_id = automatic_key(generation, call_key, 3)
        assert shard_for_task(later, request_id, "", "", 0) == shard_for_task(route, request_id, "", "", 0)


@quick
@given(routes(), st.integers())
def test_a_task_without_an_id_goes_to_the_shard_of_the_newest_set_that_the_caller_picks(
    route: QueueRoute, pick: int
) -> None:
    shards = newest(route)
    assert [shard_for_task(route, "", "", "", pick + index) for index in range(len(shards))] == [
        shards[(pick + index) % len(shards)] for index in range(len(shards))
    ]


@quick
@given(routes(), call_keys, st.integers(0, 40), st.integers())
def test_new_tasks_are_only_sent_to_where_readers_look(route: QueueRoute, call_key: str, n: int, pick: int) -> None:
    for request_id in ("", "mine", automatic_key(route.generation, call_key, n)):
        assert shard_for_task(route, request_id, "", "", pick) in visible(route)


@brief
@given(routes(), call_keys, keys, st.lists(st.tuples(call_keys, task_numbers, st.integers()), min_size=1, max_size=5))
def test_tasks_with_one_limit_key_land_on_one_shard_whatever_the_sets(
    route: QueueRoute, call_key: str, limit_key: str, calls: list[tuple[str, int, int]]
) -> None:
    """Whichever call they come with, and whoever knows which sets: the claims of the key are counted there."""
    for generation in (0, *(generation for generation, _ in route.sets), route.generation + 1):
        for key, n, pick in [(call_key, 0, 0), *calls]:
            for request_id in ("", "mine", automatic_key(generation, key, n)):
                assert shard_for_task(route, request_id, "", limit_key, pick) == route.home
                assert owner_of_task(route, request_id, "", limit_key, pick) == route.home


@brief
@given(routes(), keys, st.one_of(st.just(""), keys), st.integers())
def test_a_unique_key_goes_home_whatever_else_the_task_has(
    route: QueueRoute, unique_key: str, limit_key: str, pick: int
) -> None:
    """Also with an id of a set that the map does not know: the home is known to every map."""
    for request_id in ("", "mine", "~0.key.0", automatic_key(route.generation, "key", 0), automatic_key(99, "key", 0)):
        assert shard_for_task(route, request_id, unique_key, limit_key, pick) == route.home


def test_a_task_that_a_shard_makes_stays_there_if_nothing_speaks_against_it() -> None:
    assert [owner_of_task(SPREAD, "", "", "", here) for here in (5, 6)] == [5, 6]
    assert owner_of_task(SPREAD, "", "", "", 1) in (5, 6), "an old set gets no new tasks"
    assert owner_of_task(SPREAD, "", "unique", "", 5) == owner_of_task(SPREAD, "own", "", "", 5) == 7
    assert owner_of_task(SPREAD, "", "", "customer-7", 5) == 7
    assert owner_of_task(SPREAD, "~1.call.0", "", "", 5) == shard_of_key("call", (2, 3))
    assert owner_of_task(SPREAD, "~9.call.0", "", "", 5) == shard_of_key("call", (5, 6))


@pytest.mark.parametrize(
    ("route", "generation", "expected"),
    [
        (PLAIN, 1, "newer"),
        (SPREAD, 5, "newer"),
        (SPREAD, 10**17, "newer"),
        (SPREAD, 2, "forgotten"),
    ],
)
def test_a_generation_that_the_map_does_not_know_is_no_guess(route: QueueRoute, generation: int, expected: str) -> None:
    """Where another map knows it, a first attempt may be on any shard."""
    with pytest.raises(UnknownGenerationError) as unknown:
        shard_for_task(route, automatic_key(generation, "key", 0), "", "", 0)
    assert unknown.value.metadata == {"queue": "mail", "generation": str(route.generation), "why": expected}
    assert f"set {generation}:" in str(unknown.value)


def test_where_any_shard_will_do_it_means_the_newest_set() -> None:
    keys = [f"call-{index}" for index in range(50)]
    for unknown in (2, 5, 10**17):
        assert {owner_of_task(SPREAD, automatic_key(unknown, key, 0), "", "", 0) for key in keys} == {5, 6}
        assert owner_of_task(PLAIN, automatic_key(unknown, "key", 0), "", "", 0) == 7
    assert {owner_of_task(SPREAD, automatic_key(1, key, 0), "", "", 0) for key in keys} == {2, 3}


@quick
@given(
    st.integers(0, 40),
    st.one_of(
        st.text(alphabet="~019.kK-_é", max_size=8), st.builds(automatic_key, generations, call_keys, task_numbers)
    ),
)
def test_ids_that_need_no_look_go_home(home: int, request_id: str) -> None:
    assert is_of_home(request_id[:HOME_BEGINNING]) == is_of_home(request_id)
    if is_of_home(request_id):
        route = QueueRoute("mail", home)
        for unique_key, limit_key in (("", ""), ("u", ""), ("", "l")):
            assert shard_for_task(route, request_id, unique_key, limit_key, 3) == home


def test_calls_are_spread_evenly_over_the_set() -> None:
    counts = Counter(shard_for_task(SPREAD, automatic_key(3, f"call-{index}", 0), "", "", 0) for index in range(4000))
    assert set(counts) == {1, 2, 3, 4}
    assert all(850 <= count <= 1150 for count in counts.values())


@quick
@given(generations, call_keys, task_numbers)
def test_an_automatic_key_says_what_it_was_made_of(generation: int, call_key: str, n: int) -> None:
    assert parse_automatic_key(automatic_key(generation, call_key, n)) == AutomaticKey(generation, call_key, n)


@pytest.mark.parametrize(
    "request_id",
    [
        "", "~", "~x", "~1", "~1.", "~1.key", "~1.key.", "~.key.1", "~1..1", "1.key.1", " ~1.key.1", "~1.key.1 ",
        "~1.key.1\n", "~-1.key.1", "~+1.key.1", "~1.key.-1", "~01.key.1", "~1.key.01", "~1.k y.1", "~1.ké.1",
        "~1.key.1.1", "~١.key.1", "~1.key.²", "~1_0.key.1", "~~1.key.1",
        "~1." + "k" * 65 + ".1", "~" + "9" * 19 + ".key.1", "~1.key." + "1" * 10, "~" * 100_000, "~1." + "9" * 100_000,
    ],
)  # fmt: skip
def test_what_only_looks_automatic_is_an_id_of_the_producers_own(request_id: str) -> None:
    assert parse_automatic_key(request_id) is None
    if request_id:
        assert shard_for_task(SPREAD, request_id, "", "", 0) == SPREAD.home


@quick
@given(routes(), st.text(alphabet="~0129.kK-_é\n", max_size=12).map("~".__add__), st.integers(0, 9))
def test_both_readers_of_ids_agree_on_what_is_automatic(route: QueueRoute, request_id: str, pick: int) -> None:
    automatic = parse_automatic_key(request_id)
    if automatic is None:
        assert shard_for_task(route, request_id, "", "", pick) == route.home
    else:
        assert automatic_key(*automatic) == request_id
        shards = {0: (route.home,), **dict(route.sets)}.get(automatic.generation)
        if shards is None:
            with pytest.raises(UnknownGenerationError):
                shard_for_task(route, request_id, "", "", pick)
        else:
            assert shard_for_task(route, request_id, "", "", pick) == shard_of_key(automatic.call_key, shards)


@quick
@given(call_keys, shard_sets, st.randoms())
def test_the_order_in_which_a_set_is_written_does_not_matter(key: str, shards: tuple[int, ...], random: Random) -> None:
    shuffled = list(shards)
    random.shuffle(shuffled)
    assert shard_of_key(key, tuple(shuffled)) == shard_of_key(key, shards)


def test_where_a_call_lands_never_changes() -> None:
    """A retry may go through a router of another version."""
    assert [shard_of_key(f"key{index}", (3, 5, 8, 13)) for index in range(8)] == [3, 13, 8, 3, 13, 8, 5, 13]


@settings(max_examples=30, deadline=None)
@given(st.text(max_size=12), st.integers(1, 40))
def test_a_wider_spread_keeps_the_home_and_the_shards_of_a_narrower_one(queue: str, shard_count: int) -> None:
    spreads = [spread_shards(queue, shard_count, spread) for spread in range(1, shard_count + 1)]
    assert spreads[0] == (home_shard(queue, shard_count),)
    assert all(wider[:-1] == narrower for narrower, wider in pairwise(spreads))
    assert sorted(spreads[-1]) == list(range(shard_count))


@pytest.mark.parametrize("spread", [0, -1, 5])
def test_a_spread_fits_the_shards(spread: int) -> None:
    with pytest.raises(ValueError, match=f"1 to 4 shards, but got {spread}"):
        spread_shards("mail", 4, spread)
