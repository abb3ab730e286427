"""Shards whose writes go nowhere are known after some seconds, and are forgotten when they go on."""

from holdfast.broker.replica.stalls import STALL_SECONDS, Stalls, Written


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
