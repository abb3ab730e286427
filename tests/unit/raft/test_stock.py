"""The faults of the library as it is, and that ours does not have them.

Each scene is played twice, by the library and by ours, and tells what came of it. If the library's part fails, the
pinned library has changed, and with it what we replace.

    finding                                        scene; played as test_stock[...] and test_ours[...]
    T1  re-sent entries cut what is acknowledged   an_old_message_comes_again,
                                                   an_old_message_comes_again_and_the_leader_dies,
                                                   the_first_of_many_messages_is_acknowledged
    T2  acks carry no term                         an_ack_of_another_time_comes
    T5  two changes of members at once             two_members_are_added_at_once
        no learners                                a_member_is_added_that_has_nothing
        one that is removed does not see it        a_replica_is_removed
    T7  large entries are sent in broken chunks    an_entry_is_larger_than_a_message
    T8  votes are counted, not collected           a_vote_comes_twice
    T9  a leader counts what is not on its disk    a_disk_is_slower_than_a_follower
    T10 members in the log are forgotten           a_replica_restarts_during_a_change
    a cut-off leader keeps its role                a_leader_is_cut_off
    a stale leader is not told the higher term     a_stale_leader_sends_entries
    no pre-vote                                    a_replica_hears_nobody, a_replica_that_was_cut_off_comes_back
    no way to read safely                          a_leader_is_read_that_may_have_been_replaced
    the whole tail of the log for each message     a_follower_is_far_behind
    a vote is forgotten                            the_power_fails_after_a_vote

    finding                                        pair of tests, ..._stock and ..._ours
    T6  a callback that raises applies again       test_an_answer_that_fails_...
    T3  killed between state and compaction        test_stock_log.py: test_killed_between_state_and_log_...
    T4  killed while the log is compacted          test_stock_log.py: test_killed_at_any_step_of_a_compaction_...
    entries, term and vote are never synced        test_stock_log.py: test_promises_are_made_...
    bytes of anyone are unpickled                  test_stock_wire.py: test_bytes_of_a_stranger_...,
                                                   test_a_command_is_a_program_...
    it listens on all addresses                    test_stock_wire.py: test_where_it_listens_...
    pickle protocol 2                              test_stock_wire.py: test_bytes_of_an_entry_on_the_wire_...

A leader of ours does not remove itself either: it says why, and hands over first (test_members.py).
"""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from pysyncobj import SyncObj, replicated
from pysyncobj.node import Node

from holdfast.machine.entries import Enqueue
from holdfast.machine.machine import OutOfOrderError
from holdfast.raft.library import CANDIDATE, FOLLOWER, LEADER
from tests.unit.machine.machine_shard import new_task
from tests.unit.raft.test_stock_stage import FIRST, PATIENCE_S, TICK_S, Ours, Player, Stock, entry, exchange
from tests.unit.replica.small_shard import SmallShard, settle

Kind = Callable[..., Player]
MESSAGE_BYTES = 100


def small_messages(kind: Kind, others: str = "bc", *, name: str = "a") -> Player:
    """A replica whose messages have room for few entries."""
    setting = "appendEntriesBatchSizeBytes" if kind is Stock else "append_bytes_max"
    return kind(others, name=name, **{setting: MESSAGE_BYTES})


# --- entries ----------------------------------------------------------------------------------------------------------


def an_old_message_comes_again(kind: Kind) -> object:
    """The last index, after entries up to 3 were acknowledged and committed."""
    player = kind()
    player.hear_append("b", 1, FIRST, [entry(2, 1), entry(3, 1)], 3)
    player.hear_append("b", 1, FIRST, [entry(2, 1)], 3)
    return player.last_index


def an_old_message_comes_again_and_the_leader_dies(kind: Kind) -> object:
    """The term of entry 3 in the log of the next leader; it was acknowledged and committed with term 1."""
    player = kind()
    player.hear_append("b", 1, FIRST, [entry(2, 1), entry(3, 1)], 3)
    player.hear_append("b", 1, FIRST, [entry(2, 1)], 3)
    player.lead("c")
    return player.term_at(3)


def the_first_of_many_messages_is_acknowledged(kind: Kind) -> object:
    """Whether the leader sends again what is on its way."""
    player = small_messages(kind)
    player.serve("bc")
    for _ in range(10):
        player.propose(b"x" * (MESSAGE_BYTES // 2))
    player.work(4 * TICK_S)
    assert player.next_index("b") == player.last_index + 1, "all are on their way"
    player.hear_ack("b", player.term, player.commit_index + 1)
    return player.next_index("b") <= player.last_index


def an_ack_of_another_time_comes(kind: Kind) -> object:
    """Whether the leader commits an entry that it and one other of five have."""
    player = kind("bcde")
    player.lead("bc")
    for _ in range(3):
        player.propose(b"b has it, and says so too late")
    acknowledged = player.last_index
    player.hear_append("c", 2, FIRST, [entry(2, 2)], 1)
    assert (player.role, player.last_index) == (FOLLOWER, 2)
    player.lead("cd")
    assert player.term == 3
    index = player.propose(b"d has it")
    assert index <= acknowledged
    player.hear_ack("d", 3, index)
    player.hear_ack("b", 1, acknowledged)
    player.tick()
    return player.commit_index == index


def an_entry_is_larger_than_a_message(kind: Kind) -> object:
    """Whether the follower fails at a part of it, because it takes it for the end."""
    a, b = small_messages(kind), small_messages(kind, "ac", name="b")
    a.lead("c")
    index = a.propose(b"\xff" * 2 * MESSAGE_BYTES)
    for _ in range(4):
        a.work(4 * TICK_S)
        exchange(a, b)
    assert b.last_index == index
    return b.errors > 0


def a_follower_is_far_behind(kind: Kind) -> object:
    """Whether entries are read from the log many times more than they are sent."""
    player = small_messages(kind)
    player.serve("bc")
    before, count = player.rows_read, 300
    for _ in range(count):
        player.propose(b"x" * (MESSAGE_BYTES // 10))
    for _ in range(10):
        player.work(TICK_S)
        for peer in "bc":
            player.hear_ack(peer, player.term, player.next_index(peer) - 1)
    assert player.commit_index == player.last_index, "all were sent"
    return player.rows_read - before > 10 * count


def a_disk_is_slower_than_a_follower(kind: Kind) -> object:
    """Whether the leader commits an entry of which one copy of three is durable, and it is not its own."""
    player = kind()
    player.serve("bc")
    player.syncs = False
    index = player.propose(b"not on this disk")
    player.hear_ack("b", player.term, index)
    player.tick()
    return player.commit_index == index


# --- votes and leaders ------------------------------------------------------------------------------------------------


def a_vote_comes_twice(kind: Kind) -> object:
    """The role of a candidate that one other of five has voted for."""
    player = kind("bcde")
    player.stand()
    for _ in range(2):
        player.hear_vote("b", player.term)
    return player.role


def the_power_fails_after_a_vote(kind: Kind) -> object:
    """Who got a vote of the same term."""
    player = kind()
    player.wait(PATIENCE_S)
    player.syncs = False
    player.hear_vote_request("b", 1, FIRST)
    player.lose_power()
    player.wait(PATIENCE_S)
    player.syncs = True
    player.hear_vote_request("c", 1, FIRST)
    return player.votes_given(1)


def a_leader_is_cut_off(kind: Kind) -> object:
    """Its role when the others have long elected another."""
    player = kind()
    player.serve("bc")
    player.work(10 * PATIENCE_S)
    return player.role


def a_leader_is_read_that_may_have_been_replaced(kind: Kind) -> object:
    """Whether it lets a read pass, although nobody has answered it since."""
    player = kind()
    player.serve("bc")
    player.work(4 * TICK_S)
    return player.is_read()


def a_stale_leader_sends_entries(kind: Kind) -> object:
    """Which terms it is told."""
    player = kind()
    player.hear_append("c", 9, FIRST, [], 1)
    player.hear_append("b", 1, FIRST, [entry(2, 1)], 1)
    return player.terms_told("b")


def a_replica_hears_nobody(kind: Kind) -> object:
    """Whether its term grows, with which it will unseat a leader that all others hear."""
    player = kind()
    player.hear_append("b", 1, FIRST, [entry(2, 1)], 1)
    player.work(10 * PATIENCE_S)
    return player.term > 1


def a_replica_that_was_cut_off_comes_back(kind: Kind) -> object:
    """The role of a leader that a majority hears, and the new one's log is as good as its own."""
    player = kind()
    player.serve("bc")
    player.hear_vote_request("c", 9, (player.last_index, player.term))
    return player.role


# --- members ----------------------------------------------------------------------------------------------------------


def two_members_are_added_at_once(kind: Kind) -> object:
    """Who belongs to the group while neither change is committed."""
    player = kind()
    player.serve("bc")
    before = player.commit_index
    player.add("d")
    player.add("e")
    assert player.commit_index == before
    return player.others


def a_member_is_added_that_has_nothing(kind: Kind) -> object:
    """Whether two of the three who were there before can still commit."""
    player = kind()
    player.serve("bc")
    player.add("d")
    assert player.others == "bcd"
    index = player.propose(b"x")
    player.hear_ack("b", player.term, index)
    player.tick()
    return player.commit_index == index


def a_replica_is_removed(kind: Kind) -> object:
    """Its role when it hears no more of its leader."""
    player = kind()
    player.hear_append("b", 1, FIRST, [(player.removal("a"), 2, 1)], 2)
    player.tick()
    player.stand()
    return player.role


def a_replica_restarts_during_a_change(kind: Kind) -> object:
    """Who belongs to the group, by a log in which d was added and that is not known to be committed."""
    player = kind()
    player.hear_append("b", 1, FIRST, [(player.addition("d"), 2, 1)], 1)
    assert player.others == "bcd"
    player.restart()
    assert player.last_index == 2
    return player.others


SCENES: list[tuple[str, Callable[[Kind], object], object, object]] = [
    # finding, scene, what comes of it with the library, and with ours
    ("T1", an_old_message_comes_again, 2, 3),
    ("T1", an_old_message_comes_again_and_the_leader_dies, 2, 1),
    ("T1", the_first_of_many_messages_is_acknowledged, True, False),
    ("T2", an_ack_of_another_time_comes, True, False),
    ("T5", two_members_are_added_at_once, "bcde", "bcd"),
    ("T5", a_member_is_added_that_has_nothing, False, True),
    ("T5", a_replica_is_removed, CANDIDATE, FOLLOWER),
    ("T7", an_entry_is_larger_than_a_message, True, False),
    ("T8", a_vote_comes_twice, LEADER, CANDIDATE),
    ("T9", a_disk_is_slower_than_a_follower, True, False),
    ("T10", a_replica_restarts_during_a_change, "bc", "bcd"),
    ("fsync", the_power_fails_after_a_vote, ["b", "c"], ["c"]),
    ("cut-off", a_leader_is_cut_off, LEADER, FOLLOWER),
    ("read", a_leader_is_read_that_may_have_been_replaced, True, False),
    ("stale", a_stale_leader_sends_entries, [], [9]),
    ("pre-vote", a_replica_hears_nobody, True, False),
    ("pre-vote", a_replica_that_was_cut_off_comes_back, FOLLOWER, LEADER),
    ("slices", a_follower_is_far_behind, True, False),
]
IDS = [f"{finding}-{scene.__name__}" for finding, scene, _, _ in SCENES]


@pytest.mark.parametrize(("scene", "outcome"), [(scene, stock) for _, scene, stock, _ in SCENES], ids=IDS)
def test_stock(scene: Callable[[Kind], object], outcome: object) -> None:
    assert scene(Stock) == outcome


@pytest.mark.parametrize(("scene", "outcome"), [(scene, ours) for _, scene, _, ours in SCENES], ids=IDS)
def test_ours(scene: Callable[[Kind], object], outcome: object) -> None:
    assert scene(Ours) == outcome


# --- T6: whoever waits for an entry fails -----------------------------------------------------------------------------


class Counter(SyncObj):  # type: ignore[misc]  # the library has no types
    def __init__(self, *args: Any, **settings: Any) -> None:
        self.applied = 0
        super().__init__(*args, **settings)

    @replicated  # type: ignore[untyped-decorator]
    def add(self) -> None:
        self.applied += 1


class StockCounter(Stock):
    def make(self, nodes: list[Any], settings: Any) -> Any:
        return Counter(Node("a"), nodes, settings, transport=self.transport)


class AnswerFailedError(Exception):
    pass


def fail(*_: object) -> None:
    raise AnswerFailedError


def test_an_answer_that_fails_stock() -> None:
    player = StockCounter()
    player.serve("bc")
    player.library.add(callback=fail)
    player.tick()
    player.hear_ack("b", player.term, player.last_index)
    with pytest.raises(AnswerFailedError):
        player.tick()
    player.tick()
    assert player.library.applied == 2, "one call"


def test_an_answer_that_fails_ours() -> None:
    """Answers are futures: who waits for one runs later, and may be gone."""

    async def scene() -> int:
        small = SmallShard()
        failed: list[BaseException] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: failed.append(context["exception"]))
        call = Enqueue(small.time.now_ms, [new_task()])
        fails, is_gone = (asyncio.ensure_future(small.shard.submit(call)) for _ in range(2))
        await settle()
        for proposal in small.shard._proposals._waiting:
            proposal.future.add_done_callback(fail)
        is_gone.cancel()
        await small.round()
        await small.round()
        assert [type(error) for error in failed] == [AnswerFailedError] * 2
        assert len(await fails) == 1
        return len(await small.claim(tasks_max=10))

    assert asyncio.run(scene()) == 2, "two calls"


def test_an_entry_that_comes_again_is_not_applied_again_ours() -> None:
    """If a step between applying and saying so failed after all."""

    async def scene() -> None:
        small = SmallShard()
        await small.enqueue()
        with pytest.raises(OutOfOrderError):
            small.machine.apply(small.machine.meta.applied_index, 1, Enqueue(small.time.now_ms, [new_task()]))

    asyncio.run(scene())
