"""Members of a group: who counts, from when on, and which changes are allowed. Each scene fails without its rule."""

from collections.abc import Callable
from typing import Any

import pytest

from holdfast.raft import membership as reasons
from holdfast.raft.codec import configuration_entry
from holdfast.raft.engine import ShardRaft
from holdfast.raft.journal import Journal, MemoryJournal, found
from holdfast.raft.library import CANDIDATE, FOLLOWER, LEADER, LibraryRaft
from holdfast.raft.membership import PROMOTE_LAG_ENTRIES_MAX, ChangeRefusedError, check_change
from holdfast.raft.messages import (
    NO_CONFIGURATION,
    Append,
    AppendReply,
    Configuration,
    EntryKind,
    LogEntry,
    PreVote,
    PreVoteReply,
    RequestVote,
    TimeoutNow,
    VoteReply,
)
from tests.unit.raft.raft_stage import TIMING, Stage

Scene = Callable[[type[ShardRaft]], None]


def refusal(act: Callable[[], object]) -> str:
    """Why a change is refused; nothing if it is not."""
    try:
        act()
    except ChangeRefusedError as refused:
        return refused.reason
    return ""


def with_a_learner(engine: type[ShardRaft]) -> tuple[Stage, ShardRaft]:
    """a leads b and c, and d learns."""
    stage = Stage(engine, empty="d")
    a = stage.serve("a")
    a.add_member("d", 1)
    stage.settle("a")
    return stage, a


# --- who counts -------------------------------------------------------------------------------------------------------


class CountsLearners(ShardRaft):
    def _configuration_changed(self) -> None:
        super()._configuration_changed()
        self._other_voters = self.others


def a_learner_gets_entries_and_commits_nothing(engine: type[ShardRaft]) -> None:
    stage, a = with_a_learner(engine)
    index, before = a.propose(b"new"), a.commit_index
    a.replicate()
    stage.collect("a")
    stage.sync("a")
    stage.deliver("ad")
    assert stage["d"].last_index == index
    assert a.commit_index == before
    stage.deliver("ab")
    assert a.commit_index == index


def a_learner_is_no_majority_for_a_read(engine: type[ShardRaft]) -> None:
    stage, a = with_a_learner(engine)
    number = a.begin_read() or 0
    stage.collect("a")
    stage.deliver("ad")
    assert not a.may_read(number)
    stage.deliver("ab")
    assert a.may_read(number)


def a_leader_that_hears_only_a_learner_steps_down(engine: type[ShardRaft]) -> None:
    stage, a = with_a_learner(engine)
    for _ in range(10):
        stage.now_s += TIMING.heartbeat_s
        a.tick(stage.now_s)
        stage.deliver("ad")
    assert a.role == FOLLOWER


class TakesVotesOfLearners(ShardRaft):
    def _on_vote_reply(self, sender: str, reply: VoteReply) -> None:
        self._votes.add(sender)
        self._lead_if_elected()

    def _on_pre_vote_reply(self, sender: str, reply: PreVoteReply) -> None:
        if self._pre_votes is not None:
            self._pre_votes.add(sender)
            self._stand_if_promised()


def a_learners_pre_vote_counts_for_nothing(engine: type[ShardRaft]) -> None:
    stage, a = with_a_learner(engine)
    a.follow(None)
    stage.now_s += 10.0
    a.tick(stage.now_s)
    assert ("d", PreVote(a.term + 1, a.last_index, a.last_term)) not in a.ready.messages, "it is not even asked"
    stage.give("a", "d", PreVoteReply(a.term + 1, True))
    assert a.role == FOLLOWER


def a_learners_vote_counts_for_nothing(engine: type[ShardRaft]) -> None:
    stage, a = with_a_learner(engine)
    a.follow(None)
    stage.now_s += 10.0
    a.tick(stage.now_s)
    stage.give("a", "b", PreVoteReply(a.term + 1, True))
    assert [to for to, message in a.ready.after_sync if isinstance(message, RequestVote)] == ["b", "c"]
    stage.sync("a")
    stage.give("a", "d", VoteReply(a.term, True))
    assert a.role == CANDIDATE
    stage.give("a", "b", VoteReply(a.term, True))
    assert a.role == LEADER


class AnyoneStands(ShardRaft):
    def _may_stand(self) -> bool:
        return True


def a_learner_never_campaigns(engine: type[ShardRaft]) -> None:
    stage, _ = with_a_learner(engine)
    stage.now_s += 10.0
    stage["d"].tick(stage.now_s)
    assert stage.collect("d") == []


def a_learner_is_not_asked_to_lead(engine: type[ShardRaft]) -> None:
    stage, a = with_a_learner(engine)
    stage.give("d", "a", TimeoutNow(a.term))
    assert stage["d"].role == FOLLOWER


def an_empty_replica_never_campaigns(engine: type[ShardRaft]) -> None:
    stage = Stage(engine, empty="d")
    stage.now_s += 10.0
    stage["d"].tick(stage.now_s)
    assert (stage["d"].role, stage["d"].term) == (FOLLOWER, 0)


def a_replica_that_was_removed_never_campaigns(engine: type[ShardRaft]) -> None:
    stage = Stage(engine)
    stage.give("c", "a", Append(1, 1, 0, (configuration_entry(2, 1, Configuration(2, ("a", "b"))),), 1, 1))
    stage.now_s += 10.0
    stage["c"].tick(stage.now_s)
    assert stage.collect("c") == []


# --- from when on -----------------------------------------------------------------------------------------------------


class CountsWhenCommitted(ShardRaft):
    """A configuration does not count while it is only in the log."""

    def append(self, entry: LogEntry) -> None:
        LibraryRaft.append(self, entry)


def a_configuration_counts_from_when_it_is_appended(engine: type[ShardRaft]) -> None:
    stage = Stage(engine)
    a = stage.serve("a")
    index, before = a.remove("c", 1), a.commit_index
    assert a.configuration == Configuration(2, ("a", "b"))
    stage.sync("a")
    stage.give("a", "c", AppendReply(a.term, True, index, 1))
    assert a.commit_index == before, "two of the old three are not two of the new two"
    stage.give("a", "b", AppendReply(a.term, True, index, 1))
    assert a.commit_index == index


class KeepsWhatWasCut(ShardRaft):
    def cut_from(self, index: int) -> None:
        LibraryRaft.cut_from(self, index)


def a_configuration_counts_no_longer_when_it_is_cut(engine: type[ShardRaft]) -> None:
    stage = Stage(engine)
    b = stage["b"]
    stage.give("b", "a", Append(1, 1, 0, (configuration_entry(2, 1, Configuration(2, ("a", "b"))),), 1, 1))
    assert b.configuration.version == 2
    stage.give("b", "c", Append(2, 1, 0, (LogEntry(2, 2, EntryKind.NO_OP),), 1, 1))
    assert b.configuration == Configuration(1, ("a", "b", "c"))
    assert b.others == ("a", "c")


class ForgetsWhatIsNotCommitted(ShardRaft):
    """As the library does: at a start it goes by what was committed."""

    def __init__(self, replica: str, journal: Journal, **settings: Any) -> None:
        super().__init__(replica, journal, **settings)
        _, self.configuration = journal.configurations[0]
        self.others = tuple(member for member in self.configuration.members if member != replica)


def a_configuration_that_is_not_committed_counts_after_a_restart(engine: type[ShardRaft]) -> None:
    stage = Stage(engine)
    stage.give("b", "a", Append(1, 1, 0, (configuration_entry(2, 1, Configuration(2, ("a", "b"))),), 1, 1))
    stage.sync("b")
    stage.restart("b")
    assert (stage["b"].configuration.version, stage["b"].commit_index) == (2, 1)
    assert stage["b"].others == ("a",)


class LeadsOn(ShardRaft):
    def _become_follower(self, leader: str | None) -> None:
        if self.role != LEADER:
            super()._become_follower(leader)


def a_leader_whose_group_goes_on_without_it_steps_down(engine: type[ShardRaft]) -> None:
    stage = Stage(engine)
    a = stage.serve("a")
    # Not through propose_configuration, which refuses it: as if an earlier leader had left it in this log.
    a.append(configuration_entry(a.last_index + 1, a.term, Configuration(2, ("b", "c"))))
    index = a.last_index
    a.replicate()
    stage.collect("a")
    stage.sync("a")
    stage.deliver("ab")
    assert (a.role, a.commit_index) == (LEADER, index - 1), "it does not count itself"
    stage.deliver("ac")
    assert (a.role, a.commit_index) == (FOLLOWER, index)


# --- which changes ----------------------------------------------------------------------------------------------------


class ServesAtOnce(ShardRaft):
    @property
    def serves(self) -> bool:
        return self.role == LEADER


def a_new_leader_commits_an_entry_of_its_own_before_it_changes_members(engine: type[ShardRaft]) -> None:
    stage = Stage(engine)
    a = stage.elect("a", "ab")
    assert refusal(lambda: a.remove("c", 1)) == reasons.NOT_LEADER
    stage.settle("a", "ab")
    assert refusal(lambda: a.remove("c", 1)) == ""


class ChangesManyAtOnce(ShardRaft):
    def propose_configuration(self, new: Configuration, expected_version: int) -> int:
        commit_index, self.commit_index = self.commit_index, self.last_index
        try:
            return super().propose_configuration(new, expected_version)
        finally:
            self.commit_index = commit_index


def one_change_at_a_time(engine: type[ShardRaft]) -> None:
    stage = Stage(engine, "abcde")
    a = stage.serve("a")
    a.remove("e", 1)
    assert refusal(lambda: a.remove("d", 2)) == reasons.CHANGE_UNDER_WAY
    assert refusal(lambda: a.remove("e", 1)) == reasons.CHANGE_UNDER_WAY, "it may still fail: no false yes"
    stage.settle("a", "abcd")
    assert refusal(lambda: a.remove("d", 2)) == ""


class ChangesAnyVersion(ShardRaft):
    def propose_configuration(self, new: Configuration, expected_version: int) -> int:
        return super().propose_configuration(new, self.configuration.version)


def a_change_is_made_to_the_version_that_it_was_meant_for(engine: type[ShardRaft]) -> None:
    stage = Stage(engine)
    a = stage.serve("a")
    assert refusal(lambda: a.remove("c", 0)) == reasons.VERSION_MISMATCH
    assert refusal(lambda: a.remove("c", 2)) == reasons.VERSION_MISMATCH
    assert a.configuration.version == 1


class PromotesAnyone(ShardRaft):
    def has_caught_up(self, replica: str) -> bool:
        return True


def a_learner_votes_once_it_has_caught_up(engine: type[ShardRaft]) -> None:
    stage = Stage(engine, empty="d")
    a = stage.serve("a")
    a.add_member("d", 1)
    stage.settle("a", "abc")
    assert refusal(lambda: a.promote("d", 2)) == reasons.NOT_CAUGHT_UP, "it has never answered"
    stage.settle("a")
    for _ in range(PROMOTE_LAG_ENTRIES_MAX + 1):
        a.propose(b"more")
    stage.settle("a", "abc")
    stage.on_the_way.clear()
    assert refusal(lambda: a.promote("d", 2)) == reasons.NOT_CAUGHT_UP, "it lacks too much"
    stage.settle("a")
    assert refusal(lambda: a.promote("d", 2)) == ""


def a_learner_that_does_not_answer_is_not_made_a_voter(engine: type[ShardRaft]) -> None:
    stage, a = with_a_learner(engine)
    heard_s = stage.now_s
    while stage.now_s < heard_s + 2 * TIMING.election_s_max:
        stage.settle("a", "abc")
        stage.on_the_way.clear()
    assert a.peer_lag("d") == 0, "it lacks nothing"
    assert refusal(lambda: a.promote("d", 2)) == reasons.NOT_CAUGHT_UP


class CountsEntriesOnly(ShardRaft):
    def has_caught_up(self, replica: str) -> bool:
        return self.peer_heard_s(replica) is not None and self.peer_lag(replica) <= PROMOTE_LAG_ENTRIES_MAX


def a_learner_that_waits_for_a_snapshot_is_not_made_a_voter(engine: type[ShardRaft]) -> None:
    """It counts from when the change is appended: with another voter away nothing would be committed until it has its
    snapshot, and that may take long."""
    stage = Stage(engine, empty="d")
    a = stage.serve("a")
    a.compact(a.applied_index)
    a.add_member("d", 1)
    stage.settle("a")
    assert a.wants_snapshot() == ["d"]
    assert a.peer_heard_s("d") is not None
    assert a.peer_lag("d") <= PROMOTE_LAG_ENTRIES_MAX, "the log is short"
    assert refusal(lambda: a.promote("d", 2)) == reasons.NOT_CAUGHT_UP
    stage["d"].install_snapshot("a", a.term, a.base_index, a.term, a.configuration)
    stage.sync("d")
    stage.settle("a")
    assert refusal(lambda: a.promote("d", 2)) == ""


SCENES: list[tuple[Scene, type[ShardRaft]]] = [
    (a_learner_gets_entries_and_commits_nothing, CountsLearners),
    (a_learner_is_no_majority_for_a_read, CountsLearners),
    (a_leader_that_hears_only_a_learner_steps_down, CountsLearners),
    (a_learners_pre_vote_counts_for_nothing, TakesVotesOfLearners),
    (a_learners_vote_counts_for_nothing, TakesVotesOfLearners),
    (a_learner_never_campaigns, AnyoneStands),
    (a_learner_is_not_asked_to_lead, AnyoneStands),
    (an_empty_replica_never_campaigns, AnyoneStands),
    (a_replica_that_was_removed_never_campaigns, AnyoneStands),
    (a_configuration_counts_from_when_it_is_appended, CountsWhenCommitted),
    (a_configuration_counts_no_longer_when_it_is_cut, KeepsWhatWasCut),
    (a_configuration_that_is_not_committed_counts_after_a_restart, ForgetsWhatIsNotCommitted),
    (a_leader_whose_group_goes_on_without_it_steps_down, LeadsOn),
    (a_new_leader_commits_an_entry_of_its_own_before_it_changes_members, ServesAtOnce),
    (one_change_at_a_time, ChangesManyAtOnce),
    (a_change_is_made_to_the_version_that_it_was_meant_for, ChangesAnyVersion),
    (a_learner_votes_once_it_has_caught_up, PromotesAnyone),
    (a_learner_that_does_not_answer_is_not_made_a_voter, PromotesAnyone),
    (a_learner_that_waits_for_a_snapshot_is_not_made_a_voter, CountsEntriesOnly),
]


@pytest.mark.parametrize(("scene", "ablation"), SCENES, ids=[scene.__name__ for scene, _ in SCENES])
def test_scene(scene: Scene, ablation: type[ShardRaft]) -> None:
    scene(ShardRaft)
    with pytest.raises(AssertionError):
        scene(ablation)


NOW = Configuration(3, ("a", "b", "c"), ("d", "e"))


@pytest.mark.parametrize(
    ("new", "reason"),
    [
        (Configuration.of(4, "abc", "def"), ""),
        (Configuration.of(4, "abcd", "e"), ""),
        (Configuration.of(4, "ab", "de"), ""),
        (Configuration.of(4, "abc", "d"), ""),
        (Configuration.of(4, "abc", "de"), reasons.ALREADY),
        (Configuration.of(9, "abc", "de"), reasons.ALREADY),
        (Configuration.of(3, "abc", "d"), reasons.VERSION_MISMATCH),
        (Configuration.of(5, "abc", "d"), reasons.VERSION_MISMATCH),
        (Configuration.of(4, "bc", "de"), reasons.LEADER_STAYS),
        (Configuration.of(4, "bc", "ade"), reasons.LEADER_STAYS),
        (Configuration.of(4, "abcf", "de"), reasons.NOT_ONE_CHANGE),  # it has not learned
        (Configuration.of(4, "ab", "cde"), reasons.NOT_ONE_CHANGE),  # remove it, then let it learn
        (Configuration.of(4, "abcde", ""), reasons.NOT_ONE_CHANGE),
        (Configuration.of(4, "a", "de"), reasons.NOT_ONE_CHANGE),
        (Configuration.of(4, "abf", "de"), reasons.NOT_ONE_CHANGE),
        (Configuration.of(4, "abd", "e"), reasons.NOT_ONE_CHANGE),
    ],
)
def test_which_changes_are_one_step(new: Configuration, reason: str) -> None:
    assert refusal(lambda: check_change(NOW, new, 3, "a")) == reason


def test_a_change_that_was_made_is_not_made_again() -> None:
    stage, a = with_a_learner(ShardRaft)
    last_index = a.last_index
    assert refusal(lambda: a.add_member("d", 1)) == reasons.ALREADY
    assert refusal(lambda: a.add_member("b", 2)) == reasons.ALREADY
    assert refusal(lambda: a.remove("nobody", 2)) == reasons.ALREADY
    assert refusal(lambda: a.promote("b", 2)) == reasons.ALREADY
    assert refusal(lambda: a.promote("nobody", 2)) == reasons.NOT_ONE_CHANGE
    assert a.last_index == last_index
    a.promote("d", 2)
    stage.settle("a")
    assert refusal(lambda: a.promote("d", 2)) == reasons.ALREADY
    assert stage["c"].configuration == Configuration(3, ("a", "b", "c", "d"))


def test_only_a_leader_that_serves_and_stays_changes_members(stage: Stage) -> None:
    a = stage.serve("a")
    assert refusal(lambda: stage["b"].remove("c", 1)) == reasons.NOT_LEADER
    assert refusal(lambda: a.remove("a", 1)) == reasons.LEADER_STAYS
    a.propose(b"it lacks this")
    a.hand_over("b")
    assert refusal(lambda: a.remove("c", 1)) == reasons.NOT_LEADER


def test_a_leader_hands_over_to_voters_only() -> None:
    _, a = with_a_learner(ShardRaft)
    assert not a.hand_over("d")
    assert not a.hand_over("a")
    assert not a.hand_over("nobody")
    assert a.hand_over("b")


# --- a group's life ---------------------------------------------------------------------------------------------------


def test_a_group_is_founded_by_one_and_the_others_are_empty() -> None:
    stage = Stage(replicas="", empty="abc")
    stage.journals["a"] = MemoryJournal()
    found(stage.journals["a"], "abc")
    stage.sync("a")
    stage.restart("a")
    assert stage["b"].configuration == NO_CONFIGURATION
    a = stage.serve("a")
    assert (a.term, a.first_own_index) == (2, 2)
    for name in "abc":
        assert stage[name].configuration == Configuration(1, ("a", "b", "c"))
        assert [stage[name].term_at(index) for index in range(4)] == [0, 1, 2, None]
        assert (stage[name].commit_index, stage[name].applied_index) == (2, 2)
    assert stage.elect("c").term == 3, "and those who were empty may lead"


def test_a_group_of_one_grows_to_three_and_outlives_its_founder() -> None:
    stage = Stage(replicas="a", empty="bc")
    a = stage.serve("a")
    for version, name in ((1, "b"), (3, "c")):
        a.add_member(name, version)
        stage.settle("a")
        a.promote(name, version + 1)
        stage.settle("a")
    assert a.configuration == Configuration(5, ("a", "b", "c"))
    assert a.hand_over("b")
    stage.deliver()
    stage.settle("b")
    stage["b"].remove("a", 5)
    stage.settle("b", "bc")
    assert stage["c"].configuration == Configuration(6, ("b", "c"))
    index = stage["b"].propose(b"without a")
    stage.settle("b", "bc")
    assert stage["c"].applied_index == index


def test_what_a_leader_knows_of_a_member_goes_when_it_is_removed() -> None:
    stage, a = with_a_learner(ShardRaft)
    assert a.progress["d"].match_index == a.last_index
    assert a.peer_lag("d") == 0
    a.remove("d", 2)
    stage.settle("a", "abc")
    stage.on_the_way.clear()
    assert a.others == ("b", "c")
    assert a.peer_heard_s("d") is None
    assert "d" not in a.progress
    a.propose(b"not for d")
    a.replicate()
    a.begin_read()
    stage.collect("a")
    assert {to for _, to, _ in stage.on_the_way} == {"b", "c"}
    stage.give("a", "d", AppendReply(a.term, True, a.last_index, a._round))  # a late one, of which nothing is known
    a.add_member("d", 3)
    assert a.progress["d"].match_index == 0
    stage.settle("a")
    assert stage["d"].last_index == a.last_index


def test_an_empty_replica_votes_and_takes_entries_of_whoever_asks() -> None:
    stage = Stage(empty="d")
    stage.now_s = 10.0
    stage.give("d", "a", RequestVote(1, 1, 0))
    stage.give("d", "a", Append(1, 0, 0, (configuration_entry(1, 1, Configuration(1, ("a", "d"))),), 1, 1))
    stage.sync("d")
    assert [message for _, _, message in stage.on_the_way] == [VoteReply(1, True), AppendReply(1, True, 1, 1)]
    assert (stage["d"].commit_index, stage["d"].configuration.voters) == (1, ("a", "d"))
