"""A log that begins in the middle: what is before its base is in the state. Traces show whole transfers. Each scene
fails without its rule."""

from collections.abc import Callable

import pytest

from holdfast.raft.engine import ShardRaft
from holdfast.raft.journal import MemoryJournal
from holdfast.raft.library import CANDIDATE, FOLLOWER, LEADER, LibraryRaft
from holdfast.raft.messages import Append, AppendReply, Configuration, EntryKind, LogEntry, Message, PreVoteReply
from tests.unit.raft.raft_stage import TIMING, Stage

Scene = Callable[[type[ShardRaft]], None]
GROUP = Configuration(1, ("a", "b", "c"))


def entries(first: int, terms: str) -> tuple[LogEntry, ...]:
    return tuple(LogEntry(index, int(term), EntryKind.REGULAR, b"x") for index, term in enumerate(terms, first))


def answers(said: list[tuple[str, str, Message]], sender: str) -> list[Message]:
    return [message for item, _, message in said if item == sender]


# --- installing -------------------------------------------------------------------------------------------------------


class TakesAnySnapshot(ShardRaft):
    def install_snapshot(
        self, sender: str, term: int, index: int, index_term: int, configuration: Configuration
    ) -> bool:
        self.journal.reset(index, index_term, configuration)
        return True


def a_snapshot_that_is_not_needed_changes_nothing(engine: type[ShardRaft]) -> None:
    stage = Stage(engine)
    b = stage["b"]
    stage.give("b", "a", Append(2, 1, 0, entries(2, "11222"), 4, 1))
    for index, term in [(1, 0), (3, 1), (4, 2), (5, 2), (6, 2)]:  # applied, committed, or in the log as it is there
        assert not b.install_snapshot("a", 2, index, term, GROUP)
    assert (b.base_index, b.last_index, b.commit_index) == (0, 6, 4)


def a_snapshot_replaces_a_log_that_does_not_agree_or_is_too_short(engine: type[ShardRaft]) -> None:
    for index, term in [(6, 3), (7, 2)]:
        stage = Stage(engine)
        b = stage["b"]
        stage.give("b", "a", Append(2, 1, 0, entries(2, "11222"), 4, 1))
        group = Configuration(7, ("a", "b", "e"))
        assert b.install_snapshot("c", 3, index, term, group)
        assert (b.base_index, b.last_index, b.last_term) == (index, index, term)
        assert (b.commit_index, b.applied_index, b.committed(10)) == (index, index, [])
        assert (b.configuration, b.others) == (group, ("a", "e"))
        assert (b.term, b.leader) == (3, "c")
        assert [b.term_at(item) for item in (index - 1, index, index + 1)] == [None, term, None]


class CountsTheOldLog(ShardRaft):
    def install_snapshot(
        self, sender: str, term: int, index: int, index_term: int, configuration: Configuration
    ) -> bool:
        durable_index = self.durable_index
        done = super().install_snapshot(sender, term, index, index_term, configuration)
        self.durable_index = durable_index
        return done

    def cut_from(self, index: int) -> None:
        LibraryRaft.cut_from(self, index)


def a_snapshot_is_not_durable_before_the_next_sync(engine: type[ShardRaft]) -> None:
    stage = Stage(engine)
    b = stage["b"]
    stage.give("b", "a", Append(2, 1, 0, entries(2, "11222"), 3, 1))
    stage.sync("b")
    assert b.durable_index == 6
    assert b.install_snapshot("a", 3, 5, 3, GROUP)
    assert b.durable_index == 3, "what was committed is in both"
    stage.sync("b")
    assert b.durable_index == 5


def what_is_cut_is_not_durable(engine: type[ShardRaft]) -> None:
    stage = Stage(engine)
    b = stage["b"]
    stage.give("b", "a", Append(2, 1, 0, entries(2, "11222"), 3, 1))
    stage.sync("b")
    stage.give("b", "c", Append(3, 4, 2, entries(5, "333"), 3, 1))
    assert (b.durable_index, b.last_index) == (4, 7)


# --- entries around the base ------------------------------------------------------------------------------------------


class LooksBehindTheBase(ShardRaft):
    def _on_append(self, sender: str, message: Append) -> None:
        if self.term_at(message.previous_index) != message.previous_term:
            self._hear_leader(sender)
            self._refuse(sender, message)
        else:
            super()._on_append(sender, message)


def what_is_before_the_base_agrees(engine: type[ShardRaft]) -> None:
    stage = Stage(engine)
    b = stage["b"]
    assert b.install_snapshot("a", 2, 5, 2, GROUP)
    stage.sync("b")
    stage.on_the_way.clear()
    stage.give("b", "a", Append(2, 2, 1, entries(3, "12"), 4, 1))  # all of it is before the base
    assert (b.last_index, b.commit_index) == (5, 5)
    stage.give("b", "a", Append(2, 2, 1, entries(3, "12222"), 6, 2))  # and this reaches behind it
    assert (b.last_index, b.commit_index) == (7, 6)
    stage.sync("b")
    assert [entry.index for entry in b.committed(10)] == [6]
    assert answers(stage.on_the_way, "b") == [AppendReply(2, True, 5, 1), AppendReply(2, True, 7, 2)]


SCENES: list[tuple[Scene, type[ShardRaft]]] = [
    (a_snapshot_that_is_not_needed_changes_nothing, TakesAnySnapshot),
    (a_snapshot_replaces_a_log_that_does_not_agree_or_is_too_short, TakesAnySnapshot),
    (a_snapshot_is_not_durable_before_the_next_sync, CountsTheOldLog),
    (what_is_cut_is_not_durable, CountsTheOldLog),
    (what_is_before_the_base_agrees, LooksBehindTheBase),
]


@pytest.mark.parametrize(("scene", "ablation"), SCENES, ids=[scene.__name__ for scene, _ in SCENES])
def test_scene(scene: Scene, ablation: type[ShardRaft]) -> None:
    scene(ShardRaft)
    with pytest.raises(AssertionError):
        scene(ablation)


def test_a_snapshot_of_a_former_leader_is_good_but_no_sign_of_a_leader(stage: Stage) -> None:
    """It may have taken long to arrive; what it has was committed and stays so."""
    b = stage["b"]
    stage.give("b", "c", Append(5, 1, 0, (), 1, 1))
    stage.sync("b")
    stage.on_the_way.clear()
    deadline_s = b.next_deadline_s()
    stage.now_s += 0.1
    assert b.install_snapshot("a", 4, 20, 3, GROUP)
    assert (b.term, b.leader, b.last_index, b.next_deadline_s()) == (5, "c", 20, deadline_s)
    stage.sync("b")
    assert stage.on_the_way == []


def test_a_candidate_gives_up_for_a_snapshot(stage: Stage) -> None:
    b = stage["b"]
    stage.now_s = 10.0
    b.tick(stage.now_s)
    stage.give("b", "a", PreVoteReply(b.term + 1, granted=True))
    assert b.role == CANDIDATE
    assert b.install_snapshot("a", 0, 20, 0, GROUP)
    assert (b.role, b.ready.after_sync) == (FOLLOWER, [])


def test_a_leader_takes_no_snapshot(stage: Stage) -> None:
    a = stage.elect("a")
    assert not a.install_snapshot("b", a.term, 99, a.term, GROUP)
    assert (a.role, a.base_index) == (LEADER, 0)
    assert stage["b"].wants_snapshot() == [], "who does not lead sends none"


# --- compaction -------------------------------------------------------------------------------------------------------


def test_only_what_is_applied_is_compacted(stage: Stage) -> None:
    a = stage.serve("a")
    a.propose(b"not applied")
    with pytest.raises(AssertionError, match="would be lost"):
        a.compact(a.last_index)
    a.compact(a.applied_index)
    a.compact(1)  # it is gone already
    assert (a.base_index, a.last_index) == (2, 3)
    assert [a.term_at(index) for index in range(1, 5)] == [None, 1, 1, None]


def test_a_replica_begins_where_its_state_ends() -> None:
    journal = MemoryJournal(entries(6, "2222"), 2, base=(5, 2), configuration=(3, GROUP))

    def begin(applied_index: int | None) -> ShardRaft:
        return ShardRaft("a", journal, now_s=0.0, applied_index=applied_index, timing=TIMING, draw=lambda: 0.5)

    for applied_index, begins_at in [(None, 5), (5, 5), (7, 7), (9, 9)]:
        engine = begin(applied_index)
        assert (engine.applied_index, engine.commit_index, engine.last_index) == (begins_at, begins_at, 9)
    for applied_index in (0, 4, 10):
        with pytest.raises(ValueError, match="Expected a state that goes with a log"):
            begin(applied_index)
