"""Signs of life in the middle of a round: they are sent and heard while an engine is frozen, and promise nothing."""

from holdfast.raft.codec import encode, peek
from holdfast.raft.library import CANDIDATE, FOLLOWER, LEADER
from holdfast.raft.messages import Append, AppendReply, EntryKind, LogEntry, PreVote, RequestVote, Sign
from holdfast.raft.progress import Progress
from tests.unit.raft.raft_stage import TIMING, Stage


def frozen_stage() -> Stage:
    """a leads b and c, and all of them have just staged something that is not durable yet."""
    stage = Stage()
    a = stage.serve("a")
    a.propose(b"x")
    a.replicate()
    for sender, to, message in stage_takes(stage, "a"):
        stage.give(to, sender, message)
    stage.collect("b")
    stage.collect("c")
    stage.on_the_way.clear()
    return stage


def stage_takes(stage: Stage, name: str) -> list[tuple[str, str, Append]]:
    stage.collect(name)
    said, stage.on_the_way = stage.on_the_way, []
    return [(sender, to, message) for sender, to, message in said if isinstance(message, Append)]


def exchange(stage: Stage, names: str = "abc") -> None:
    """Everybody beats, and what is said is overheard and not delivered."""
    for name in names:
        stage[name].beat(stage.now_s)
        stage.collect(name)
    said, stage.on_the_way = stage.on_the_way, []
    for sender, to, message in said:
        sign = peek(encode(message))
        if to in names and sign is not None:
            stage[to].overhear(sender, sign, stage.now_s)


def test_a_leader_goes_on_while_all_disks_are_slow() -> None:
    stage = frozen_stage()
    commit_index = stage["a"].commit_index
    for _ in range(100):
        stage.now_s += 0.05
        exchange(stage)
    for name in "abc":
        stage[name].tick(stage.now_s)
    assert [stage[name].role for name in "abc"] == [LEADER, FOLLOWER, FOLLOWER]
    assert (stage["a"].term, stage["b"].leader) == (stage["c"].term, "a")
    assert stage["a"].commit_index == commit_index, "nobody has said that it is durable"
    for name in "abc":
        stage.sync(name)
    stage.deliver()
    assert stage["a"].commit_index == stage["a"].last_index


def test_without_beats_it_would_not() -> None:
    stage = frozen_stage()
    stage.now_s += TIMING.silence_s_max
    stage["a"].tick(stage.now_s)
    assert stage["a"].role == FOLLOWER


def test_heartbeats_leave_when_they_are_due_without_entries_and_not_after_a_long_silence() -> None:
    stage = frozen_stage()
    a = stage["a"]
    a.propose(b"y")
    a.beat(stage.now_s)
    assert stage.collect("a") == []
    stage.now_s += TIMING.heartbeat_s
    a.beat(stage.now_s)
    assert [message.entries for _, _, message in stage_takes(stage, "a")] == [(), ()]
    stage.now_s += TIMING.silence_s_max
    a.beat(stage.now_s)
    assert stage.collect("a") == [], "it may have been replaced"


def test_an_echo_says_nothing_of_the_log() -> None:
    stage = frozen_stage()
    a, peer = stage["a"], stage["a"].progress["b"]
    flying, match_index = len(peer.inflight), a.progress["b"].match_index
    stage["b"].beat(stage.now_s)
    [echo] = stage.collect("b")
    assert isinstance(echo, AppendReply)
    assert echo.index == 0
    assert peer.echoed_round < echo.round <= a.newest_round
    peer.probing = True
    stage.give("a", "b", echo)
    assert (len(peer.inflight), a.progress["b"].match_index, peer.probing) == (flying, match_index, True)
    assert flying == 1
    stage.sync("b")
    stage.deliver("ab")
    assert (len(peer.inflight), a.progress["b"].match_index, peer.probing) == (0, a.last_index, False)


def test_a_sending_is_echoed_once_and_not_if_it_was_answered() -> None:
    stage = frozen_stage()
    b = stage["b"]
    b.beat(stage.now_s)
    assert len(stage.collect("b")) == 1
    b.beat(stage.now_s)
    assert stage.collect("b") == []
    stage.sync("b")
    stage.on_the_way.clear()
    stage.give("b", "a", Append(b.term, b.last_index, b.last_term, (), 1, 1_000))
    stage.sync("b")
    b.beat(stage.now_s)
    assert [message.round for _, _, message in stage.on_the_way] == [1_000]  # type: ignore[union-attr]


def test_nothing_is_echoed_before_the_term_is_durable(stage: Stage) -> None:
    b = stage["b"]
    stage.give("b", "a", Append(5, 1, 0, (LogEntry(2, 5, EntryKind.REGULAR, b"x"),), 1, 7))
    b.beat(stage.now_s)
    assert (b.leader, stage.collect("b")) == ("a", [])
    stage.sync("b")
    assert AppendReply(5, True, 2, 7) in [message for _, _, message in stage.on_the_way]


def test_what_is_overheard_puts_off_an_election() -> None:
    stage = frozen_stage()
    b = stage["b"]
    for _ in range(20):
        stage.now_s += TIMING.heartbeat_s
        b.overhear("a", Sign(False, b.term, 1_000), stage.now_s)
    b.tick(stage.now_s)
    assert b.leader == "a"
    before = (b.term, b.voted_for)
    stage.give("b", "c", RequestVote(b.term + 1, 100, b.term))
    assert (b.term, b.voted_for) == before, "a leader may still count on it"


def test_only_the_leader_of_this_term_is_overheard() -> None:
    stage = frozen_stage()
    b = stage["b"]
    stage.now_s += TIMING.election_s_max
    for sender, term in (("c", b.term), ("a", b.term - 1), ("a", b.term + 1)):
        b.overhear(sender, Sign(False, term, 1_000), stage.now_s)
    b.tick(stage.now_s)
    assert b.leader is None
    b.beat(stage.now_s)
    assert not any(isinstance(message, AppendReply) for message in stage.collect("b"))


def test_a_candidate_overhears_nobody(stage: Stage) -> None:
    b = stage["b"]
    b.stand()
    b.overhear("a", Sign(False, b.term, 1), stage.now_s)
    b.beat(stage.now_s)
    assert (b.role, stage.collect("b")) == (CANDIDATE, [])


def test_only_answers_of_members_to_what_was_sent_count() -> None:
    stage = frozen_stage()
    a = stage["a"]
    before = {name: peer.echoed_sent_s for name, peer in a.progress.items()}
    stage.now_s += TIMING.heartbeat_s
    a.beat(stage.now_s)
    sent = a.newest_round
    for sender, term, number in (("x", a.term, sent), ("b", a.term - 1, sent), ("b", a.term, sent + 1)):
        a.overhear(sender, Sign(True, term, number), stage.now_s)
    assert {name: peer.echoed_sent_s for name, peer in a.progress.items()} == before
    a.overhear("b", Sign(True, a.term, sent), stage.now_s)
    assert a.progress["b"].echoed_sent_s == stage.now_s


def test_what_is_overheard_does_not_make_an_answer_old() -> None:
    """A refusal is a replica's newest word also if a later answer of its has arrived and is not read yet."""
    peer = Progress(0.0, 1)
    for number in (1, 2):
        peer.note_sent(number, float(number), 0, 0)
    peer.note_heard(2)
    assert (peer.echoed_round, peer.echoed_sent_s) == (0, 2.0)
    peer.note_echo(1)
    assert (peer.echoed_round, peer.echoed_sent_s) == (1, 2.0)


def test_who_is_far_behind_does_not_hold_up_the_others(stage: Stage) -> None:
    a = stage.serve("a")
    a.append_bytes_max = 10
    for _ in range(30):
        a.propose(b"x" * 9)
    sent_bytes = a.replicate(100)
    assert 100 <= sent_bytes <= 120
    sent = [to for _, to, message in stage_takes(stage, "a") if message.entries]
    assert sent == ["b", "c"] * (len(sent) // 2)
    assert a.has_to_send


def test_a_sign_is_seen_in_bytes() -> None:
    assert peek(encode(Append(3, 1, 1, (LogEntry(2, 3, EntryKind.REGULAR, b"x"),), 1, 9))) == Sign(False, 3, 9)
    assert peek(encode(AppendReply(3, False, 5, 9))) == Sign(True, 3, 9)
    assert peek(encode(PreVote(3, 1, 1))) is None
    assert peek(b"") is None
    assert peek(encode(AppendReply(3, False, 5, 9))[:-1]) is None
    assert peek(encode(Append(3, 1, 1, (), 1, 9))[:-1]) is None
