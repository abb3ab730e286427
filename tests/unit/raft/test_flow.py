"""How much a leader sends before it is answered. Each scene fails without its bound."""

from collections.abc import Callable, Iterable

import pytest

from holdfast.raft.codec import ENTRIES_MAX, decode, encode_each
from holdfast.raft.engine import ShardRaft
from holdfast.raft.messages import Append, AppendReply, EntryKind, LogEntry
from holdfast.raft.progress import INFLIGHT_APPENDS_MAX, INFLIGHT_BYTES_MAX, SENDINGS_KEPT, Progress
from holdfast.raft.sending import APPEND_BYTES_MAX, APPEND_ENTRIES_MAX
from tests.unit.raft.raft_stage import TIMING, Stage


def appends(stage: Stage, to: str) -> list[Append]:
    """What a has for another replica now; the others get theirs."""
    stage.collect("a")
    mine = [message for _, other, message in stage.on_the_way if other == to and isinstance(message, Append)]
    stage.on_the_way = [message for message in stage.on_the_way if to not in message[:2]]
    return mine


def with_one_down(engine: type[ShardRaft] = ShardRaft) -> tuple[Stage, ShardRaft]:
    """a leads; c has answered before, and then goes down."""
    stage = Stage(engine)
    a = stage.serve("a")
    stage.on_the_way.clear()
    return stage, a


class ForgetsWhatFlies(ShardRaft):
    """Sends all that there is, answered or not."""

    def _send_appends(self, peers: Iterable[str], *, heartbeat: bool = False) -> int:
        size_bytes = super()._send_appends(peers, heartbeat=heartbeat)
        for progress in self.progress.values():
            progress.inflight.clear()
            progress.inflight_bytes = 0
        return size_bytes


def a_replica_that_is_down_is_not_sent_more_and_more(engine: type[ShardRaft]) -> None:
    stage, a = with_one_down(engine)
    sent: list[Append] = []
    for _ in range(3 * INFLIGHT_APPENDS_MAX):
        a.propose(b"x")
        a.replicate()
        sent += appends(stage, "c")
        stage.sync("a")
        stage.deliver("ab")
    assert sum(bool(message.entries) for message in sent) == INFLIGHT_APPENDS_MAX
    assert a.progress["c"].next_index == sent[-1].previous_index + 2
    for _ in range(2 * SENDINGS_KEPT):  # for a long time
        stage.now_s += TIMING.heartbeat_s
        a.tick(stage.now_s)
        sent = appends(stage, "c")
        assert [message.entries for message in sent] == [()], "heartbeats go on"
        stage.deliver("ab")
    stage.settle("a")
    assert stage["c"].last_index == a.last_index, "when it is back, it gets all of it"
    assert a.peer_heard_s("c") == pytest.approx(stage.now_s)


def large_entries_in_flight_are_bounded_by_their_size(engine: type[ShardRaft]) -> None:
    stage, a = with_one_down(engine)
    size_bytes = INFLIGHT_BYTES_MAX // 4
    for _ in range(8):
        a.propose(bytes(size_bytes))
    a.replicate()
    sent = appends(stage, "c")
    assert [len(message.entries) for message in sent] == [1, 1, 1, 1], "one in each message, larger than its limit"


@pytest.mark.parametrize(
    "scene",
    [
        a_replica_that_is_down_is_not_sent_more_and_more,
        large_entries_in_flight_are_bounded_by_their_size,
    ],
)
def test_scene(scene: Callable[[type[ShardRaft]], None]) -> None:
    scene(ShardRaft)
    with pytest.raises(AssertionError):
        scene(ForgetsWhatFlies)


def test_an_append_for_several_is_made_and_encoded_once() -> None:
    stage = Stage(replicas="abcd")
    a = stage.serve("a")
    stage.on_the_way.clear()
    for _ in range(3):
        a.propose(b"x" * 100)
    a.progress["d"].next_index -= 1  # it is elsewhere
    a.replicate()
    (to_b, for_b), (to_c, for_c), (to_d, for_d) = a.ready.messages
    assert (to_b, to_c, to_d) == ("b", "c", "d")
    assert for_b is for_c
    assert isinstance(for_b, Append)
    assert isinstance(for_d, Append)
    assert (len(for_b.entries), len(for_d.entries), for_d.round) == (3, 4, for_b.round + 1)
    encoded = dict(encode_each(a.ready.take()))
    assert encoded["b"] is encoded["c"]
    assert [decode(encoded[name]) for name in "bcd"] == [for_b, for_c, for_d]


def test_an_answer_makes_room() -> None:
    stage, a = with_one_down()
    for _ in range(2 * INFLIGHT_APPENDS_MAX):
        a.propose(bytes(APPEND_BYTES_MAX // 4))
    a.replicate()
    sent = appends(stage, "c")
    more = len(sent)
    stage.give("a", "c", AppendReply(a.term, True, sent[0].previous_index + len(sent[0].entries), sent[0].round))
    a.replicate()
    sent = appends(stage, "c")
    assert more > 1
    assert len(sent) == 1


def test_a_message_has_no_more_entries_than_can_be_read() -> None:
    assert APPEND_ENTRIES_MAX <= ENTRIES_MAX
    stage, a = with_one_down()
    for _ in range(APPEND_ENTRIES_MAX + 10):
        a.propose(b"")
    a.replicate()
    assert [len(message.entries) for message in appends(stage, "c")] == [APPEND_ENTRIES_MAX, 10]


def test_a_message_ends_before_it_is_too_large() -> None:
    stage, a = with_one_down()
    a.append_bytes_max = 100
    for size_bytes in (39, 39, 39, 299, 9):
        a.propose(bytes(size_bytes))
    a.replicate()
    sizes = [[entry.size_bytes for entry in message.entries] for message in appends(stage, "c")]
    assert sizes == [[40, 40], [40], [300], [10]]


def test_a_log_that_is_too_short_is_continued_where_it_ends(stage: Stage) -> None:
    """After a restart little of it is known to be committed; what is there need not be sent again."""
    stage.write_log("b", "1" * 50)
    stage.give("b", "a", Append(1, 99, 1, (), 1, 1))
    assert stage.collect("b") == [AppendReply(1, False, 51, 1)]
    stage.give("b", "a", Append(2, 51, 2, (LogEntry(52, 2, EntryKind.REGULAR, b"x"),), 1, 2))
    assert stage.collect("b") == [AppendReply(2, False, 1, 2)], "a whole term that does not fit"


# --- what is known of a peer ------------------------------------------------------------------------------------------


def test_echoes_count_once_and_only_forwards() -> None:
    peer = Progress(0.0, 1)
    for number in (1, 2, 3):
        peer.note_sent(number, float(number), 0, 0)
    peer.note_echo(2)
    assert (peer.echoed_round, peer.echoed_sent_s) == (2, 2.0)
    peer.note_echo(1)
    assert (peer.echoed_round, peer.echoed_sent_s) == (2, 2.0)


def test_what_is_remembered_of_sendings_is_bounded_and_never_newer_than_the_truth() -> None:
    peer = Progress(0.0, 1)
    for number in range(1, SENDINGS_KEPT + 100):
        peer.note_sent(number, float(number), 0, 0)
    peer.note_echo(SENDINGS_KEPT + 50)
    assert (peer.echoed_round, peer.echoed_sent_s) == (SENDINGS_KEPT + 50, float(SENDINGS_KEPT))
    peer.note_sent(2_000, 2_000.0, 0, 0)
    peer.note_echo(2_000)
    assert peer.echoed_sent_s == 2_000.0
