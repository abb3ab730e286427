"""When a node says that a shard has no leader, or that its writes go nowhere, and that this is over."""

from holdfast.broker.replica.stuck_shards import (
    AGAIN_SECONDS,
    FIRST_SECONDS,
    STALL_SECONDS,
    Leaderless,
    Stalls,
    Written,
)


def test_an_election_is_not_worth_a_line() -> None:
    watch = Leaderless()
    assert watch.poll([0], 100.0) == []
    assert watch.poll([0], 100.0 + FIRST_SECONDS - 0.1) == []
    assert watch.poll([], 100.0 + FIRST_SECONDS) == []
    assert watch.poll([0], 101.0 + FIRST_SECONDS) == [], "it had one in between: that counts from the beginning"


def test_it_is_said_again_but_not_all_the_time() -> None:
    watch = Leaderless()
    watch.poll([0, 3], 0.0)
    assert watch.poll([0, 3], FIRST_SECONDS) == [(0, FIRST_SECONDS), (3, FIRST_SECONDS)]
    assert watch.poll([0, 3], FIRST_SECONDS + 1) == []
    assert watch.poll([3], FIRST_SECONDS + AGAIN_SECONDS) == [(3, FIRST_SECONDS + AGAIN_SECONDS)]


def test_a_shard_that_commits_nothing_of_what_it_has_stalls() -> None:
    stalls = Stalls()
    stalls.poll({1: Written(5, 6), 2: Written(5, 5)}, 100.0)
    assert stalls.stalled(100.0 + STALL_SECONDS - 0.1) == []
    stalls.poll({1: Written(5, 9), 2: Written(5, 5)}, 102.0)
    assert stalls.stalled(100.0 + STALL_SECONDS) == [1]


def test_whoever_commits_a_little_does_not() -> None:
    stalls = Stalls()
    for second in range(10):
        stalls.poll({1: Written(second, 100)}, 100.0 + second)
        assert stalls.stalled(100.0 + second) == []


def test_it_is_over_when_all_is_committed_or_another_leads() -> None:
    stalls = Stalls()
    for after in ({1: Written(6, 6)}, {}):
        stalls.poll({1: Written(5, 6)}, 100.0)
        stalls.poll({1: Written(5, 6)}, 110.0)
        assert stalls.stalled(110.0) == [1]
        stalls.poll(after, 111.0)
        assert stalls.stalled(120.0) == []
