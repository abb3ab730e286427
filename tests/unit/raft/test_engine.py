"""Steps of Raft that take more than messages to show: time, hand-over, clocks, unknown senders. See traces for more."""

import itertools
from collections.abc import Callable

import pytest

from holdfast.raft.engine import ShardRaft
from holdfast.raft.library import CANDIDATE, FOLLOWER, LEADER
from holdfast.raft.messages import (
    Append,
    AppendReply,
    EntryKind,
    LogEntry,
    Message,
    PreVote,
    PreVoteReply,
    RequestVote,
    TimeoutNow,
    VoteReply,
)
from tests.unit.raft.raft_stage import TIMING, Stage

Scene = Callable[[type[ShardRaft]], None]


# --- elections and hand-over ------------------------------------------------------------------------------------------


def test_a_leader_without_a_majority_steps_down_before_another_can_be_elected(stage: Stage) -> None:
    a = stage.elect("a")
    sent_s = stage.now_s
    a.begin_read()  # a heartbeat for all
    stage.collect("a")
    stage.deliver()
    stage.now_s = sent_s + TIMING.silence_s_max - 0.001
    a.tick(stage.now_s)
    assert a.role == LEADER
    assert a.next_deadline_s() == sent_s + TIMING.silence_s_max, "it wakes up in time for that"
    stage.now_s = sent_s + TIMING.silence_s_max
    a.tick(stage.now_s)
    assert a.role == FOLLOWER
    stage.now_s = sent_s + TIMING.election_s_min - 0.001
    stage.give("b", "c", RequestVote(a.term + 1, 9, 9))
    assert stage["b"].term == a.term, "b still owes its ear to the leader"


def test_a_restarted_replica_votes_only_when_the_leader_that_it_may_have_heard_has_stepped_down(stage: Stage) -> None:
    stage.restart("b")
    stage.give("b", "a", RequestVote(7, 9, 9))
    assert stage["b"].term == 0
    stage.now_s += TIMING.election_s_min
    stage.give("b", "a", RequestVote(7, 9, 9))
    assert stage["b"].term == 7


def test_a_hand_over_that_does_not_happen_ends(stage: Stage) -> None:
    a = stage.elect("a")
    a.propose(b"it never gets this")
    assert a.hand_over("c")
    assert not any(isinstance(message, TimeoutNow) for message in stage.collect("a"))
    ends_s = stage.now_s + 2 * TIMING.election_s_max
    while stage.now_s < ends_s:
        stage.now_s += TIMING.heartbeat_s
        a.tick(stage.now_s)
        stage.collect("a")
        stage.on_the_way = [message for message in stage.on_the_way if "c" not in message[:2]]
        stage.deliver("ab")
    a.tick(stage.now_s)
    assert a.role == LEADER
    assert a.propose(b"again") is not None


def test_an_answer_to_an_earlier_life_is_no_echo(stage: Stage) -> None:
    """A leader restarted and leads again in the next term: whoever gets its old words now tells that term, no more."""
    leader = stage.serve("a")
    for _ in range(50):
        stage.now_s += TIMING.heartbeat_s
        leader.tick(stage.now_s)
        stage.deliver()
    stage.now_s += TIMING.heartbeat_s
    leader.tick(stage.now_s)
    late = [message for sender, to, message in stage.on_the_way if to == "b"] or [
        message for to, message in leader.ready.messages if to == "b"
    ]
    stage.collect("a")
    stage.on_the_way.clear()
    stage.restart("a")
    again = stage.serve("a")
    number = again.begin_read()
    assert number is not None
    stage.collect("a")
    stage.on_the_way.clear()  # nobody hears the question
    stage.give("b", "a", late[-1])
    stage.collect("b")
    stage.deliver()
    assert not again.may_read(number)


def test_what_never_became_durable_is_taken_back_by_a_leader_on_its_own() -> None:
    stage = Stage(replicas="a")
    a = stage.serve("a")
    last_index = a.last_index
    a.propose(b"there was no room for it")
    a.go_back_to(stage.journals["a"].after_crash())
    assert (a.role, a.last_index, a.durable_index) == (LEADER, last_index, last_index)
    assert a.propose(b"something else") == last_index + 1


def test_a_leader_that_was_not_alone_takes_nothing_back() -> None:
    stage = Stage(replicas="a", empty="b")
    a = stage.serve("a")
    a.add_member("b", 1)  # and b may have been sent it
    a.go_back_to(stage.journals["a"].after_crash())
    assert a.role == FOLLOWER
    assert a.is_alone


class AppliesBeforeItIsDurable(ShardRaft):
    def committed(self, entries_max: int) -> list[LogEntry]:
        self.durable_index = self.last_index
        return super().committed(entries_max)


def no_state_is_ahead_of_its_log(engine: type[ShardRaft]) -> None:
    stage = Stage(engine)
    b = stage["b"]
    stage.give("b", "a", Append(1, 1, 0, (LogEntry(2, 1, EntryKind.NO_OP), LogEntry(3, 1, EntryKind.NO_OP)), 3, 1))
    assert (b.commit_index, b.committed(10)) == (3, [])
    stage.sync("b")
    assert [entry.index for entry in b.committed(10)] == [2, 3]
    assert [entry.index for entry in b.committed(1)] == [2]


def test_no_state_is_ahead_of_its_log() -> None:
    no_state_is_ahead_of_its_log(ShardRaft)
    with pytest.raises(AssertionError):
        no_state_is_ahead_of_its_log(AppliesBeforeItIsDurable)


def test_an_entry_has_a_kind() -> None:
    stage = Stage(replicas="a")
    a = stage.serve("a")
    stage.settle("a")
    regular, probe = (a.entry_at(a.propose(b"x", kind) or 0) for kind in (EntryKind.REGULAR, EntryKind.PROBE))
    assert (regular.kind, regular.command, probe.kind) == (EntryKind.REGULAR, b"x", EntryKind.PROBE)
    with pytest.raises(AssertionError, match="propose_configuration"):
        a.propose(b"", EntryKind.CONFIGURATION)


# --- time -------------------------------------------------------------------------------------------------------------


def test_a_follower_hears_the_leaders_time(stage: Stage) -> None:
    a, b = stage.elect("a"), stage["b"]
    a.shard_time_ms = lambda: 5_000
    a.begin_read()
    stage.settle("a")
    assert b.leader_time_ms == 5_000
    heard_s = b.leader_time_heard_s
    stage.now_s += 1.0
    stage.give("b", "a", Append(a.term, 2, a.term, (), 2, 1, now_ms=4_000))  # it was overtaken on its way
    assert (b.leader_time_ms, b.leader_time_heard_s) == (5_000, heard_s)
    stage.give("b", "a", Append(a.term, 2, a.term, (), 2, 1, now_ms=6_000))
    assert (b.leader_time_ms, b.leader_time_heard_s) == (6_000, stage.now_s)


def test_what_the_newest_leader_tells_counts_also_if_it_is_less(stage: Stage) -> None:
    """All that has happened since was counted by it: to go on with a later time would make leases end early."""
    a, b, c = stage.serve("a"), stage["b"], stage["c"]
    a.shard_time_ms = lambda: 9_000
    a.begin_read()
    stage.deliver()
    assert (a.leader_time_ms, b.leader_time_ms, c.leader_time_ms) == (9_000, 9_000, 9_000), "its own, too"
    stage.serve("b", "bc")
    b.shard_time_ms = lambda: 8_000
    b.begin_read()
    stage.deliver("bc")
    assert (b.leader_time_ms, c.leader_time_ms) == (8_000, 8_000)


def test_a_replica_whose_clock_is_off_neither_campaigns_nor_leads(stage: Stage) -> None:
    a, b = stage.elect("a"), stage["b"]
    b.may_campaign = False
    stage.give("b", "a", TimeoutNow(a.term))
    assert b.role == FOLLOWER
    stage.now_s += 10.0
    b.tick(stage.now_s)
    assert stage.collect("b") == []
    assert b.next_deadline_s() > stage.now_s, "it is not asked again and again"
    stage = Stage()
    a = stage.elect("a")
    a.may_campaign = False
    a.tick(stage.now_s)
    assert a.role == FOLLOWER


def test_a_leader_whose_clock_is_off_may_hand_over_first(stage: Stage) -> None:
    a = stage.elect("a")
    a.propose(b"it lacks this")
    a.may_campaign = False
    a.hand_over("b")
    a.tick(stage.now_s)
    assert a.role == LEADER
    a.replicate()
    stage.sync("a")
    stage.deliver()
    assert (a.role, stage["b"].role) == (FOLLOWER, LEADER)


def test_a_hand_over_that_does_not_happen_ends_the_time_of_a_leader_whose_clock_is_off(stage: Stage) -> None:
    a = stage.elect("a")
    a.propose(b"it never gets this")
    a.may_campaign = False
    a.hand_over("b")
    a.tick(stage.now_s + 2 * TIMING.election_s_max)
    assert a.role == FOLLOWER


def test_a_group_of_one_is_due_at_once_and_others_when_they_have_waited() -> None:
    assert Stage(replicas="a")["a"].next_deadline_s() == 0.0
    waits_s = TIMING.election_s_max - TIMING.election_s_min
    deadlines_s = [Stage()[name].next_deadline_s() - TIMING.election_s_min for name in "abc"]
    assert deadlines_s == pytest.approx([(turn + 0.25) / 3 * waits_s for turn in range(3)]), "one after the other"


@pytest.mark.parametrize("replicas", ["ab", "abc", "abcde"])
def test_voters_stand_in_turns_and_each_term_has_others(replicas: str) -> None:
    """Two that stand at the same moment get half of the votes each: it took two elections to have a leader."""
    stage = Stage(replicas=replicas)
    first = set()
    apart_s = (TIMING.election_s_max - TIMING.election_s_min) / len(replicas) / 2
    for term in range(len(replicas)):
        ends_s = {}
        for name in replicas:
            engine = stage[name]
            engine.set_term(term, None)
            for draw in (0.0, 0.999):
                engine.draw = lambda draw=draw: draw  # type: ignore[misc]
                ends_s[name, draw] = engine.draw_election_s()
        assert TIMING.election_s_min <= min(ends_s.values()) < max(ends_s.values()) <= TIMING.election_s_max
        order = sorted(replicas, key=lambda name: ends_s[name, 0.0])
        for earlier, later in itertools.pairwise(order):
            assert ends_s[later, 0.0] - ends_s[earlier, 0.999] >= apart_s - 1e-9
        first.add(order[0])
    assert first == set(replicas)
    stage = Stage()
    a = stage.elect("a")
    assert a.next_deadline_s() == stage.now_s + TIMING.heartbeat_s


# --- unknown senders --------------------------------------------------------------------------------------------------


def test_requests_are_answered_for_everybody(stage: Stage) -> None:
    """This replica may not have heard yet that they belong to the group."""
    stage.now_s = 10.0
    stage.give("a", "unknown", PreVote(7, 9, 9))
    assert stage.collect("a") == [PreVoteReply(7, True)]
    stage.give("a", "unknown", RequestVote(7, 9, 9))
    stage.give("a", "unknown", Append(7, 1, 0, (), 1, 1))
    stage.sync("a")
    replies = [message for sender, _, message in stage.on_the_way if sender == "a"]
    assert replies[1:] == [VoteReply(7, True), AppendReply(7, True, 1, 1)]


def replies_of_unknown_senders_count_for_nothing(engine: type[ShardRaft]) -> None:
    stage = Stage(engine)
    a = stage["a"]
    stage.now_s = 10.0
    a.tick(stage.now_s)
    stage.give("a", "unknown", PreVoteReply(9, False))
    assert a.term == 0, "nor does their term"
    stage.give("a", "unknown", PreVoteReply(1, True))
    assert a.role == FOLLOWER


def unknown_senders_make_no_leader(engine: type[ShardRaft]) -> None:
    stage = Stage(engine)
    a = stage["a"]
    stage.now_s = 10.0
    a.tick(stage.now_s)
    stage.give("a", "b", PreVoteReply(1, True))
    stage.sync("a")
    stage.give("a", "unknown", VoteReply(1, True))
    assert a.role == CANDIDATE


class HearsUnknownSenders(ShardRaft):
    """Whoever replies is taken for a voter."""

    def receive(self, sender: str, message: Message, now_s: float) -> None:
        self._others |= {sender}
        self._voters |= {sender}
        super().receive(sender, message, now_s)


@pytest.mark.parametrize("scene", [replies_of_unknown_senders_count_for_nothing, unknown_senders_make_no_leader])
def test_strangers(scene: Scene) -> None:
    scene(ShardRaft)
    with pytest.raises(AssertionError):
        scene(HearsUnknownSenders)
