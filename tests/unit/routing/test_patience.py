"""Shards that did not answer: how long they are avoided, who tries them again, and how patient a hasty caller is."""

from holdfast.routing.patience import HASTY_S_MIN, TRY_S_MAX, UNHEALTHY_S, UNHEALTHY_S_MAX, UnhealthyShards, UsualTimes


def test_an_unhealthy_shard_is_forgotten_in_time_and_with_its_leader() -> None:
    unhealthy = UnhealthyShards()
    unhealthy.failed(3, 100.0, ("a", 1))
    assert unhealthy.has(3, 100.0, ("a", 1))
    assert not unhealthy.has(4, 100.0, ("a", 1))
    assert not unhealthy.has(3, 100.0, ("b", 2))
    assert not unhealthy.has(3, 100.0 + UNHEALTHY_S, ("a", 1))
    unhealthy.failed(4, 200.0)
    assert list(unhealthy.until) == [4], "what is over takes no room"
    unhealthy.answered(4)
    assert not unhealthy.has(4, 200.0)


def test_one_caller_tries_an_unhealthy_shard_again_and_ever_later() -> None:
    unhealthy = UnhealthyShards(UNHEALTHY_S, UNHEALTHY_S_MAX)
    leader, now_s = ("a", 1), 100.0
    unhealthy.failed(3, now_s, leader)
    unhealthy.failed(3, now_s + 0.1, leader)  # by another one that had tried it meanwhile
    for unhealthy_s in (UNHEALTHY_S, 2 * UNHEALTHY_S, 4 * UNHEALTHY_S, UNHEALTHY_S_MAX, UNHEALTHY_S_MAX):
        assert not unhealthy.begin_try(3, now_s + unhealthy_s - 0.01, leader)
        now_s += unhealthy_s + 0.2
        assert unhealthy.begin_try(3, now_s, leader)
        assert not unhealthy.begin_try(3, now_s, leader), "one is enough to find out"
        now_s += 0.3
        unhealthy.failed(3, now_s, leader)
    unhealthy.answered(3, leader)
    assert unhealthy.begin_try(3, now_s, leader)
    assert unhealthy.begin_try(3, now_s, leader)
    unhealthy.failed(3, now_s, leader)
    assert not unhealthy.has(3, now_s + UNHEALTHY_S, leader), "and it begins anew"


def test_a_silent_leader_is_avoided_by_all_its_shards_until_one_answers() -> None:
    unhealthy = UnhealthyShards()
    silent, also, other = ("a", 1), ("a", 7), ("b", 1)
    leaders = {1: silent, 2: also, 3: other, 4: None}
    unhealthy.silent(1, 100.0, leaders)
    assert [shard for shard, leader in leaders.items() if unhealthy.has(shard, 100.0, leader)] == [1, 2]
    assert unhealthy.begin_try(2, 100.0 + UNHEALTHY_S, also)
    assert not unhealthy.begin_try(1, 100.0 + UNHEALTHY_S, silent), (
        "that one caller tries it at another shard is enough"
    )
    unhealthy.answered(2, also)
    assert unhealthy.begin_try(1, 100.0 + UNHEALTHY_S, silent)


def test_a_node_that_was_silent_and_is_elected_again_is_not_avoided() -> None:
    unhealthy = UnhealthyShards(UNHEALTHY_S, UNHEALTHY_S_MAX)
    unhealthy.silent(1, 100.0, {1: ("a", 1), 2: ("a", 7)})
    assert unhealthy.begin_try(2, 100.1, ("a", 9)), "it stood still, another one led, and now it leads again"
    assert unhealthy.has(1, 100.1, ("a", 1)), "what it has led all the time waits for an answer"
    unhealthy.silent(2, 100.2, {2: ("a", 9)})
    assert not unhealthy.has(2, 100.2 + UNHEALTHY_S, ("a", 9)), "and what it did before does not count"


def test_hasty_callers_wait_for_many_times_what_answers_usually_take() -> None:
    usual = UsualTimes()
    assert usual.hasty_s(1) == HASTY_S_MIN
    for _ in range(100):
        usual.took(1, 0.05)
    assert 0.7 < usual.hasty_s(1) < 0.8
    usual.took(1, 0.75)
    assert 1.5 < usual.hasty_s(1) <= TRY_S_MAX, "one that was given up in vain makes the next ones more patient"
    for _ in range(3):  # a shard that needs half a second, beside many that are quick
        usual.took(2, usual.hasty_s(2))
    assert usual.hasty_s(2) > 0.5
    assert usual.hasty_s(3) == HASTY_S_MIN
