"""Whoever decides which replicas belong to the group: it tells the leader the next change, until they are as wanted."""

from typing import TYPE_CHECKING

from holdfast.raft.engine import ShardRaft
from tests.simulation.raft_checks import Violation

if TYPE_CHECKING:
    from tests.simulation.raft_world import World

EVERY_S = 0.25
CARELESS_SHARE = 0.1  # of the requests: repeated, or meant for a version that is gone


class Operator:
    def __init__(self, world: "World", wanted: set[str]) -> None:
        self._world = world
        self.wanted = wanted

    def begin(self) -> None:
        self._go_on()
        self._world.at(self._world.draw.uniform(0, 2 * EVERY_S), self.begin)

    def _go_on(self) -> None:
        leader = self._world.leader()
        if leader is None or leader.engine is None or self.is_settled():
            return
        leader.requests.append(self._next_change)
        if self._world.draw.random() < CARELESS_SHARE:
            leader.requests.append(self._next_change)
            leader.requests.append(self._belated_change)
        leader.round()

    def is_settled(self) -> bool:
        """Whether the group is as wanted, for certain."""
        leader = self._world.leader()
        if leader is None or leader.engine is None or not leader.engine.serves:
            return False
        engine = leader.engine
        is_committed = engine.configuration_index <= engine.commit_index
        return is_committed and set(engine.configuration.voters) == self.wanted and not engine.configuration.learners

    def _next_change(self, engine: ShardRaft) -> None:
        """First a new one learns, then an old one goes, then the new one votes."""
        now = engine.configuration
        missing = sorted(self.wanted - set(now.members))
        ready = [learner for learner in now.learners if learner in self.wanted and engine.has_caught_up(learner)]
        gone = sorted(set(now.members) - self.wanted)
        if missing:
            engine.add_member(missing[0], now.version)
        elif gone and (ready or not set(now.learners) & self.wanted):
            self._remove(engine, gone[0])
        elif ready:
            engine.promote(ready[0], now.version)

    def _remove(self, engine: ShardRaft, name: str) -> None:
        if name != engine.replica:
            engine.remove(name, engine.configuration.version)
            return
        others = [voter for voter in engine.configuration.voters if voter in self.wanted]
        if others:
            self._world.handed_over_s = self._world.now_s
            engine.hand_over(self._world.draw.choice(others))

    def _belated_change(self, engine: ShardRaft) -> None:
        version = engine.configuration.version - 1
        engine.add_member("late/0", version)
        raise Violation(f"a change that was meant for version {version} was made in {version + 1}")
