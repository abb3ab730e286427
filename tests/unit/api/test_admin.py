"""What operators are told: never that something was done which another leader may have replaced."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, cast

import pytest

from holdfast.broker.api import admin
from holdfast.broker.replica import host as hosting
from holdfast.raft.library import FOLLOWER, LEADER
from holdfast.serving.refusals import OutcomeUnknownError, RefusedError

INDEX, TERM = 10, 2


@dataclass
class Raft:
    term: int = TERM
    role: int = LEADER


class Replica:
    """One that changes from round to round as the test says."""

    def __init__(self, *rounds: tuple[int, int, int]) -> None:
        self.raft = Raft()
        self.applied_index = INDEX - 1
        self._rounds = list(rounds)

    async def next_round(self) -> None:
        self.applied_index, self.raft.term, self.raft.role = self._rounds.pop(0)


async def committed(replica: Replica) -> None:
    await hosting.committed(cast(Any, replica), INDEX, TERM)


async def test_what_this_leader_has_applied_is_done() -> None:
    replica = Replica((INDEX - 1, TERM, LEADER), (INDEX, TERM, LEADER))
    await committed(replica)
    assert replica.applied_index == INDEX, "it came back before that"


@pytest.mark.parametrize(
    "then", [(INDEX + 2, TERM + 1, FOLLOWER), (INDEX, TERM + 2, LEADER), (INDEX - 1, TERM, FOLLOWER)]
)
async def test_what_is_applied_after_leadership_was_lost_may_be_anothers(then: tuple[int, int, int]) -> None:
    with pytest.raises(OutcomeUnknownError):
        await committed(Replica(then))


class HandingOver:
    """A leader that is handing over, as its rounds go by: who leads, and whether it serves."""

    replica = "n1/a"

    def __init__(self, *rounds: tuple[str | None, bool]) -> None:
        self.raft = self
        self._rounds: Iterator[tuple[str | None, bool]] = iter(rounds)
        self.leader: str | None = self.replica
        self.accepts = False

    async def next_round(self) -> None:
        self.leader, self.accepts = next(self._rounds)


async def test_a_hand_over_is_done_when_the_other_leads() -> None:
    handing_over = HandingOver(("n1/a", False), (None, False), ("n2/b", False))
    await admin.taken_over(cast(Any, handing_over), "n2/b")
    assert handing_over.leader == "n2/b"


@pytest.mark.parametrize(
    ("then", "why"), [(("n3/c", False), "n3 was faster"), (("n1/a", True), "it did not in time")], ids=["third", "back"]
)
async def test_a_hand_over_that_came_to_nothing_is_said_at_once(then: tuple[str, bool], why: str) -> None:
    with pytest.raises(RefusedError, match=why) as refused:
        await admin.taken_over(cast(Any, HandingOver((None, False), then)), "n2/b")
    assert refused.value.metadata["why"] == "NO_HAND_OVER"
