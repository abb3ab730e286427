"""Seeds that are known to find out an ablation, so that a test need not look for them.

They were found with `python tools/simulate.py --ablations`, which prints this table. A change of the engine or of the
simulation gives every seed another history: then a seed here may find nothing any more. The test looks further in that
case, which takes longer; look for new ones then.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from holdfast.raft.engine import ShardRaft
from tests.simulation.raft_ablations import ABLATIONS
from tests.simulation.raft_group_ablations import GROUP_ABLATIONS, WORLD_ABLATIONS
from tests.simulation.raft_histories import history
from tests.simulation.raft_world import World

# By ablation: seed, replicas.
KNOWN: dict[str, tuple[int, int]] = {
    "CutsWhatFits": (0, 3),
    "TakesOldReplies": (15, 3),
    "CountsVotesTwice": (19, 5),
    "CountsWhatIsNotDurable": (1, 5),
    "PromisesAtOnce": (0, 3),
    "KeepsOldPromises": (0, 5),
    "CommitsWhatWasNotCompared": (2, 3),
    "CommitsOldTerms": (2, 5),
    "VotesForAnyone": (0, 5),
    "VotesTwice": (0, 5),
    "CountsOldVoters": (6, 3),
    "CountsLearners": (1, 3),
    "ChangesTwiceAtOnce": (5, 5),
    "ChangesTooEarly": (0, 5),
    "KeepsWhatWasCut": (7, 5),
    "StandsWithoutBelonging": (0, 3),
    "InstallsWhatIsOld": (4, 3),
    "InstallsOverWhatFits": (10, 5),
    "AcknowledgesSnapshotsAtOnce": (4, 3),
    "StandsWithoutAsking": (3, 3),
    "LeadsWithoutAnswers": (44, 3),
    "ReadsWithoutAsking": (2, 3),
    "EchoesOldTerms": (17, 3),
    "CountsFormerLives": (2, 3),
    "ForgetsItsFormerLog": (0, 5),
    "KeepsItsIdentity": (1, 3),
    "ForgetsItsVote": (0, 5),
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


ALL_ABLATIONS: dict[str, Ablation] = {
    **{engine.__name__: Ablation(engine=engine) for engine in ABLATIONS},
    **{engine.__name__: Ablation(engine=engine) for engine in GROUP_ABLATIONS},
    **{world.__name__: Ablation(world=world) for world in WORLD_ABLATIONS},
}
