"""When a node says that a shard has no leader."""

from holdfast.broker.replica.leaderless import AGAIN_SECONDS, FIRST_SECONDS, Leaderless


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
