"""A replica that was removed and deleted, and is taken back under the same name: what it owes, and what it is not
credited with. Each scene fails without its rule."""

from collections.abc import Callable

import pytest

from holdfast.raft.engine import ShardRaft
from holdfast.raft.journal import MemoryJournal
from holdfast.raft.library import CANDIDATE, FOLLOWER, LEADER
from holdfast.raft.membership import PROMOTE_LAG_ENTRIES_MAX
from holdfast.raft.messages import (
    Append,
    AppendReply,
    Configuration,
    Message,
    PreVote,
    PreVoteReply,
    RequestVote,
    TimeoutNow,
    VoteReply,
)
from tests.simulation.raft_group_ablations import CreditsTombstones, ForgetsItsFormerLog
from tests.unit.raft.raft_stage import TIMING, Stage

Scene = Callable[[type[ShardRaft]], None]


def remove(stage: Stage, leader: str, name: str, among: str = "") -> None:
    engine = stage[leader]
    engine.remove(name, engine.configuration.version)
    stage.settle(leader, among)
    stage.on_the_way.clear()
    assert engine.configuration_index <= engine.commit_index


def add_again(stage: Stage, leader: str, name: str, among: str) -> None:
    """As a learner that has not heard of it."""
    engine = stage[leader]
    engine.add_member(name, engine.configuration.version)
    stage.settle(leader, among)
    stage.on_the_way.clear()


# --- what it is not credited with -------------------------------------------------------------------------------------


def with_a_late_answer(engine: type[ShardRaft], late: Callable[[ShardRaft], Message]) -> tuple[Stage, ShardRaft]:
    """c has many entries, is removed, deleted and added again, all by one leader in one term. Its answer of before
    comes now."""
    stage = Stage(engine)
    a = stage.serve("a")
    for _ in range(PROMOTE_LAG_ENTRIES_MAX + 10):
        a.propose(b"much")
    stage.settle("a")
    answer = late(a)
    remove(stage, "a", "c", "ab")
    stage.wipe("c")
    add_again(stage, "a", "c", "ab")
    stage.give("a", "c", answer)
    return stage, a


def an_answer_of_before_counts_for_nothing(engine: type[ShardRaft]) -> None:
    stage, a = with_a_late_answer(engine, lambda a: AppendReply(a.term, True, a.last_index, a.newest_round))
    assert (a.progress["c"].match_index, a.peer_heard_s("c"), a.has_caught_up("c")) == (0, None, False)
    stage.settle("a")
    assert a.progress["c"].match_index == a.last_index == stage["c"].last_index


def an_installed_snapshot_of_before_counts_for_nothing(engine: type[ShardRaft]) -> None:
    _, a = with_a_late_answer(engine, lambda a: AppendReply(a.term, True, a.last_index, 0))
    assert a.progress["c"].match_index == 0


def a_refusal_of_before_moves_nothing(engine: type[ShardRaft]) -> None:
    _, a = with_a_late_answer(engine, lambda a: AppendReply(a.term, False, 3, a.newest_round))
    assert a.progress["c"].next_index > 4
    assert a.peer_heard_s("c") is None


@pytest.mark.parametrize(
    "scene",
    [
        an_answer_of_before_counts_for_nothing,
        an_installed_snapshot_of_before_counts_for_nothing,
        a_refusal_of_before_moves_nothing,
    ],
)
def test_who_is_added_again_is_not_credited_with_what_was_before(scene: Scene) -> None:
    scene(ShardRaft)
    with pytest.raises(AssertionError):
        scene(CreditsTombstones)


def test_a_snapshot_installed_by_who_was_added_again_is_heard_of_with_the_next_heartbeat(stage: Stage) -> None:
    """The answer to the snapshot itself has no number, so nobody can tell in which life it was given."""
    a = stage.serve("a")
    for _ in range(5):
        a.propose(b"old")
    stage.settle("a")
    remove(stage, "a", "c", "ab")
    stage.wipe("c")
    a.compact(a.applied_index)
    add_again(stage, "a", "c", "ab")
    stage.settle("a")
    assert a.wants_snapshot() == ["c"]
    index = a.applied_index
    term = a.term_at(index)
    assert term is not None
    assert stage["c"].install_snapshot("a", a.term, index, term, a.configuration)
    stage.sync("c")
    stage.settle("a")
    assert (a.wants_snapshot(), a.progress["c"].match_index) == ([], a.last_index)


# --- what it owes -----------------------------------------------------------------------------------------------------


def test_a_deleted_replica_votes_once_in_a_term() -> None:
    """e hands over to a and b, which stand in the same term; c votes for a, which leads and removes it. Then b asks."""
    stage = Stage(replicas="abcde")
    e = stage.serve("e")
    for candidate in "ab":
        stage.give(candidate, "e", TimeoutNow(e.term))
        stage.sync(candidate)
    asked = [message for sender, to, message in stage.on_the_way if (sender, to) == ("b", "c")]
    stage.on_the_way = [message for message in stage.on_the_way if message[:2] in (("a", "c"), ("a", "d"), ("b", "e"))]
    stage.deliver("acd")
    stage.deliver("be")
    a, b = stage["a"], stage["b"]
    assert (a.role, a.term, b.role) == (LEADER, b.term, CANDIDATE)
    assert (stage.journals["b"].voted_for, stage.journals["e"].voted_for) == ("b", "b")
    stage.on_the_way.clear()
    stage.settle("a", "ade")
    remove(stage, "a", "c", "ade")
    stage.wipe("c")
    [question] = asked
    assert isinstance(question, RequestVote)
    stage.give("c", "b", question)
    stage.sync("c")
    assert stage.on_the_way == [("c", "b", VoteReply(a.term, False))]


def meets_who_was_away(engine: type[ShardRaft]) -> Stage:
    """d and e are removed while c hears nothing; e has acknowledged that d is removed. e is deleted, and c asks."""
    stage = Stage(engine, replicas="abcde")
    stage.serve("a")
    remove(stage, "a", "d", "abe")
    assert stage["e"].configuration.voters == ("a", "b", "c", "e")
    remove(stage, "a", "e", "ab")
    stage["a"].propose(b"acknowledged")
    stage.settle("a", "ab")
    stage.on_the_way.clear()
    stage.wipe("e")
    return stage


def nobody_leads_without_what_it_had_acknowledged(engine: type[ShardRaft]) -> None:
    stage = meets_who_was_away(engine)
    c = stage["c"]
    assert c.configuration.voters == ("a", "b", "c", "d", "e")
    stage.now_s += 10.0
    for _ in range(3):
        stage.now_s += TIMING.election_s_max
        c.tick(stage.now_s)
        stage.deliver("cde")
        stage.sync("c")
        stage.deliver("cde")
    assert c.role != LEADER


def it_does_not_stand_before_it_has_that_again(engine: type[ShardRaft]) -> None:
    """Half filled again, it knows of an old configuration in which it votes."""
    stage = meets_who_was_away(engine)
    e = stage["e"]
    first = stage["a"].entry_at(1)
    stage.give("e", "a", Append(stage["a"].term, 0, 0, (first,), 1, 1))
    stage.sync("e")
    stage.on_the_way.clear()
    assert "e" in e.configuration.voters
    stage.now_s += 10.0
    e.tick(stage.now_s)
    assert (e.ready.messages, e.role) == ([], FOLLOWER)


@pytest.mark.parametrize(
    "scene", [nobody_leads_without_what_it_had_acknowledged, it_does_not_stand_before_it_has_that_again]
)
def test_a_deleted_replica_still_answers_for_the_log_that_it_had(scene: Scene) -> None:
    scene(ShardRaft)
    with pytest.raises(AssertionError):
        scene(ForgetsItsFormerLog)


def test_it_votes_for_who_has_what_it_had() -> None:
    """Also while it is empty: or a group could not go on without it."""
    stage = Stage(empty="d")
    stage.journals["d"] = MemoryJournal((), 3, "a", former_last=(2, 7))
    stage.restart("d")
    stage.now_s = 10.0
    answers: list[Message] = []
    for last_term, last_index in ((2, 6), (1, 9), (2, 7), (3, 1)):
        stage.give("d", "b", PreVote(4, last_index, last_term))
        answers += stage.collect("d")
    assert answers == [
        PreVoteReply(3, granted=False), PreVoteReply(3, granted=False),
        PreVoteReply(4, granted=True), PreVoteReply(4, granted=True),
    ]  # fmt: skip
    stage.on_the_way.clear()
    stage.give("d", "b", RequestVote(4, 7, 2))
    stage.sync("d")
    assert stage.on_the_way == [("d", "b", VoteReply(4, True))]


def test_who_has_everything_again_stands_and_leads(stage: Stage) -> None:
    a = stage.serve("a")
    a.propose(b"something")
    stage.settle("a")
    remove(stage, "a", "c", "ab")
    stage.wipe("c")
    assert stage["c"].journal.former_last != (0, 0)
    add_again(stage, "a", "c", "ab")
    stage.settle("a")
    a.promote("c", a.configuration.version)
    stage.settle("a")
    assert a.configuration == Configuration.of(4, "abc")
    assert stage.elect("c").role == LEADER


def test_it_owes_the_same_after_a_crash() -> None:
    stage = meets_who_was_away(ShardRaft)
    owed = stage["e"].journal.former_last
    stage.restart("e")
    assert stage["e"].journal.former_last == owed > (0, 0)


def test_who_resigns_leads_nobody_and_stands_no_more(stage: Stage) -> None:
    a = stage.serve("a")
    a.resign()
    assert (a.role, a.accepts) == (FOLLOWER, False)
    stage.now_s += 10.0
    a.tick(stage.now_s)
    assert a.ready.messages == []
