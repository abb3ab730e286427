"""What operators are told: never that something was done which another leader may have replaced."""

from dataclasses import dataclass
from typing import Any, cast

import pytest

from holdfast.broker import hosting
from holdfast.broker.raft.library import FOLLOWER, LEADER
from holdfast.serving.refusals import OutcomeUnknownError

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
