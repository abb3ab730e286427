"""Seeds that are known to find out an ablation, so that a test need not look for them.

They were found with `python tools/simulate.py --ablations`, which prints this table. A change of the engine or of the
simulation gives every seed another history: then a seed here may find nothing any more. The test looks further in that
case, which takes longer; look for new ones then.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from types import ModuleType
from typing import TypeVar

from holdfast.raft.engine import ShardRaft
from tests.simulation import raft_ablations, raft_group_ablations
from tests.simulation.raft_histories import history
from tests.simulation.raft_world import World

Base = TypeVar("Base")

# By ablation: seed, replicas.
KNOWN: dict[str, tuple[int, int]] = {
    "CutsWhatFits": (0, 5),
    "TakesOldReplies": (5, 3),
    "CountsVotesTwice": (50, 5),
    "CountsWhatIsNotDurable": (0, 3),
    "PromisesAtOnce": (0, 3),
    "KeepsOldPromises": (7, 5),
    "CommitsWhatWasNotCompared": (2, 3),
    "CommitsOldTerms": (1, 5),
    "VotesForAnyone": (0, 5),
    "VotesTwice": (9, 5),
    "CountsOldVoters": (2, 3),
    "CountsLearners": (0, 5),
    "ChangesTwiceAtOnce": (1, 5),
    "ChangesTooEarly": (0, 5),
    "KeepsWhatWasCut": (0, 5),
    "StandsWithoutBelonging": (0, 3),
    "InstallsWhatIsOld": (3, 5),
    "InstallsOverWhatFits": (3, 5),
    "AcknowledgesSnapshotsAtOnce": (3, 3),
    "StandsWithoutAsking": (8, 5),
    "LeadsWithoutAnswers": (56, 3),
    "ReadsWithoutAsking": (0, 5),
    "EchoesOldTerms": (2, 3),
    "CreditsTombstones": (1, 5),
    "ForgetsItsFormerLog": (4, 5),
    "KeepsItsIdentity": (0, 5),
    "ForgetsItsVote": (17, 5),
}


@dataclass(frozen=True)
class Ablation:
    """What is taken back: a correction of the engine, or a rule of the world around it."""

    engine: type[ShardRaft] = ShardRaft
    world: type[World] = World

    def is_found_out(self, seed: int, replicas: int) -> bool:
        try:
            history(seed, replicas, self.engine, self.world)
        except (AssertionError, LookupError, ValueError):  # an engine may also trip over itself
            return True
        return False

    def find_out(self, seeds: Iterable[int]) -> tuple[int, int] | None:
        """The first seed, and how many replicas, with which a history finds out that something is missing."""
        for seed in seeds:
            for replicas in (3, 5):
                if self.is_found_out(seed, replicas):
                    return seed, replicas
        return None


def _classes_of(module: ModuleType, base: type[Base]) -> dict[str, type[Base]]:
    return {name: var for name, var in vars(module).items() if isinstance(var, type) and base in var.__bases__}


ENGINES = _classes_of(raft_ablations, ShardRaft) | _classes_of(raft_group_ablations, ShardRaft)
ALL_ABLATIONS: dict[str, Ablation] = {
    **{name: Ablation(engine=engine) for name, engine in ENGINES.items()},
    **{name: Ablation(world=item) for name, item in _classes_of(raft_group_ablations, World).items()},
}
