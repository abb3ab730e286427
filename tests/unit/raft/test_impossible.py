"""What no correct member can have sent ends neither the replica nor its group, and changes nothing; what is only late,
or of somebody who knows less, is what it always was."""

from copy import deepcopy

import pytest

from holdfast.raft.codec import decode, encode
from holdfast.raft.engine import TERM_LIKELY_MAX, TERMS_AHEAD_MAX, ShardRaft
from holdfast.raft.library import FOLLOWER, LEADER
from holdfast.raft.messages import (
    TERM_MAX,
    Append,
    AppendReply,
    Configuration,
    EntryKind,
    ImpossibleMessageError,
    LogEntry,
    Message,
    PreVote,
    PreVoteReply,
    RequestVote,
    TimeoutNow,
    VoteReply,
)
from tests.unit.raft.raft_stage import Stage


def no_ops(*places: tuple[int, int]) -> tuple[LogEntry, ...]:
    """Entries of these indexes and terms."""
    return tuple(LogEntry(index, term, EntryKind.NO_OP) for index, term in places)


def picture(raft: ShardRaft) -> object:
    """Everything that a message may change."""
    log = [raft.entry_at(index) for index in range(raft.base_index + 1, raft.last_index + 1)]
    votes = (raft.role, raft.term, raft.voted_for, raft.leader, raft.election_deadline_s)
    return votes, log, raft.commit_index, raft.leader_commit_index, raft.leader_time_ms, deepcopy(raft.ready)


def refused(stage: Stage, to: str, sender: str, message: Message) -> str:
    before = picture(stage[to])
    with pytest.raises(ImpossibleMessageError) as caught:
        stage.give(to, sender, decode(encode(message)))
    assert picture(stage[to]) == before
    return str(caught.value)


def serving() -> Stage:
    """a leads b and c in term 1; entry 2 is its first, and committed everywhere."""
    stage = Stage()
    stage.serve("a")
    assert [(engine.term, engine.commit_index) for engine in stage.engines.values()] == [(1, 2)] * 3
    return stage


@pytest.mark.parametrize("entries", [(), (LogEntry(3, 1, EntryKind.REGULAR, b"x"),)])
def test_a_second_leader_of_a_term_is_refused_by_the_first(entries: tuple[LogEntry, ...]) -> None:
    stage = serving()
    assert "in which a leads" in refused(stage, "a", "b", Append(1, 2, 1, entries, 2, 1, 5))
    assert stage["a"].serves
    stage["a"].resign()
    assert "in which a leads" in refused(stage, "a", "b", Append(1, 2, 1, entries, 2, 1, 5)), "it still knows"


def test_a_second_leader_of_a_term_is_refused_by_who_knows_the_first() -> None:
    stage = serving()
    assert "in which a leads" in refused(
        stage, "b", "c", Append(1, 2, 1, (LogEntry(3, 1, EntryKind.REGULAR, b"x"),), 3, 1)
    )
    assert stage["b"].leader == "a"


@pytest.mark.parametrize("term", [1, 2, 9])
def test_nobody_has_another_entry_where_one_is_committed(stage: Stage, term: int) -> None:
    """An assertion would end the node; without it, what was acknowledged would be gone."""
    stage.write_log("a", "12", term=2)
    stage.serve("a")
    b = stage["b"]
    assert (b.term, b.commit_index, b.last_index) == (3, 4, 4)
    other = Append(
        3 + term,
        1,
        0,
        (LogEntry(2, 1, EntryKind.NO_OP), LogEntry(3, 3, EntryKind.REGULAR, b"x"), LogEntry(4, 3, EntryKind.NO_OP)),
        4,
        1,
    )
    assert refused(stage, "b", "c", other) == "entry 3 of term 3, where another is committed"


def test_nobody_has_another_entry_at_the_base() -> None:
    stage = serving()
    b = stage["b"]
    b.compact(2)
    assert "entry 2 of term 2" in refused(stage, "b", "c", Append(2, 1, 0, no_ops((2, 2), (3, 2)), 3, 1))
    stage.give("b", "c", Append(2, 0, 0, no_ops((1, 0), (2, 1), (3, 2)), 3, 1))
    assert (b.last_index, b.leader) == (3, "c"), "what it has of old is not compared, what follows is taken"


@pytest.mark.parametrize("to", ["a", "b"])
@pytest.mark.parametrize("term", [TERM_LIKELY_MAX + 1, TERM_MAX])
def test_a_term_that_no_member_can_have_is_not_adopted(to: str, term: int) -> None:
    stage = serving()
    messages: list[Message] = [RequestVote(term, 9, 9, True), RequestVote(term, 9, 9), VoteReply(term, False)]
    messages += [Append(term, 2, 1, (), 2, 1), AppendReply(term, False, 1, 0), TimeoutNow(term)]
    messages += [PreVote(term, 9, 9), PreVoteReply(term, False)]
    for message in messages:
        assert "too far ahead" in refused(stage, to, "c", message)
    stage[to].check_term(TERM_LIKELY_MAX)


def test_a_snapshot_of_a_term_that_no_member_can_have_is_not_installed() -> None:
    stage = serving()
    before = picture(stage["b"])
    assert not stage["b"].install_snapshot("c", TERM_MAX, 9, 9, Configuration.of(1, "abc"))
    assert picture(stage["b"]) == before
    with pytest.raises(ImpossibleMessageError):
        stage["b"].check_term(TERM_MAX)


def test_after_any_term_that_is_adopted_the_group_elects() -> None:
    stage = serving()
    stage.give("b", "c", RequestVote(TERM_LIKELY_MAX - 9, 1, 0, True))
    stage.sync("b")
    stage.on_the_way.clear()
    for number, name in enumerate("bcabcabcabca"):
        assert stage.serve(name).term == TERM_LIKELY_MAX - 8 + number
    term = stage["a"].term
    assert {engine.term for engine in stage.engines.values()} == {term} == {TERM_LIKELY_MAX + 3}
    stage["b"].check_term(term + TERMS_AHEAD_MAX)
    assert "too far ahead" in refused(stage, "b", "c", RequestVote(term + TERMS_AHEAD_MAX + 1, 9, 9, True))


def test_who_is_empty_takes_any_term() -> None:
    """It has none of its own to compare with, and its group may be old."""
    stage = Stage(empty="d")
    stage.give("d", "a", Append(TERM_MAX, 0, 0, (), 0, 1))
    assert stage["d"].term == TERM_MAX


def test_what_is_late_comes_twice_or_is_of_strangers_is_possible() -> None:
    stage = serving()
    first = Append(1, 1, 0, (LogEntry(2, 1, EntryKind.NO_OP),), 1, 1)
    stage.serve("b")
    for to in "abc":
        for sender in "abcx":
            stage.give(to, sender, first)
            stage.give(to, sender, AppendReply(1, True, 2, 1))
            stage.give(to, sender, VoteReply(1, True))
            stage.give(to, sender, TimeoutNow(1))
            stage.give(to, sender, RequestVote(1, 1, 0))
            stage.give(to, sender, PreVote(1, 1, 0))
    assert (stage["b"].role, stage["a"].role, stage["c"].role) == (LEADER, FOLLOWER, FOLLOWER)
    stage.give("a", "b", Append(2, 1, 0, no_ops((2, 1), (3, 2)), 1, 1))
    assert stage["a"].commit_index == 3, "what the leader says again is what is there"
