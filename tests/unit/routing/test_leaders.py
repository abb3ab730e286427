"""Who is believed about who leads."""

from collections.abc import Collection

import pytest

from holdfast.routing.leaders import SUSPECT_S, KnownLeader

A, B, C = "a:1", "b:1", "c:1"


class Leader(KnownLeader):
    """Of a shard with three replicas."""

    def candidates(self) -> tuple[str, ...]:
        return A, B, C

    def pick(self, now_s: float, avoid: Collection[str] = ()) -> str | None:
        line = ([self.named] if self.named else []) + [A, B, C]
        return next((item for item in line if item not in avoid), None)


@pytest.fixture
def leader() -> Leader:
    return Leader()


def test_the_newest_epoch_counts(leader: Leader) -> None:
    assert leader.name(C, 5, now_s=0)
    assert leader.named == C
    assert not leader.name(B, 4, now_s=0), "older than the newest"
    assert leader.named == C
    assert leader.name(B, 5, now_s=0), "an epoch has one leader: another address of the same one"
    assert leader.name(A, 6, now_s=0)
    leader.forget_epoch()
    assert leader.name(C, 1, now_s=0), "all were asked, and nobody leads: the shard may have been made anew"


def test_who_has_just_failed_is_not_believed_to_lead_until_the_others_can_have_noticed(leader: Leader) -> None:
    leader.name(A, 5, now_s=0)
    leader.left(A, 10.0, suspect=True)
    assert leader.named is None
    assert not leader.name(A, 5, now_s=10.0 + SUSPECT_S / 2)
    assert leader.name(A, 6, now_s=10.0 + SUSPECT_S / 2), "it was elected again"
    leader.left(A, 20.0, suspect=True)
    assert leader.name(A, 6, now_s=20.0 + SUSPECT_S), "it still leads: it was only slow, or unreachable for a moment"
    leader.left(A, 30.0, suspect=True)
    leader.answered(A)
    assert leader.name(A, 6, now_s=30.0), "it has answered"


def test_a_leader_that_merely_stepped_down_may_be_named_again_at_once(leader: Leader) -> None:
    leader.name(A, 5, now_s=0)
    leader.left(A, 0, suspect=False)
    assert leader.named is None
    assert leader.name(A, 5, now_s=0)
    leader.left(B, 0, suspect=True)
    assert leader.named == A, "another one has failed"


def test_an_answer_settles_a_guess_but_not_what_is_known(leader: Leader) -> None:
    leader.answered(B)
    assert leader.named == B
    leader.name(C, 1, now_s=0)
    leader.answered(B)  # late, from when it led
    assert leader.named == C
