"""The faults of the library as it is. If one of these fails, the library has changed, and what we replace with it.

Each has its counterpart among the scenes of test_raft_engine.py, which pass with the corrected steps.
"""

from typing import Any

import pytest
from pysyncobj import SyncObj, SyncObjConf
from pysyncobj.node import Node
from pysyncobj.transport import Transport

from holdfast.broker.raft.journal import MemoryJournal
from holdfast.broker.raft.library import LEADER

NOOP, COMMAND = b"\x01", b"\x00x"


class Deaf(Transport):  # type: ignore[misc]  # the library has no types
    """Keeps what is sent."""

    def __init__(self) -> None:
        super().__init__(None, None, [])
        self.sent: list[tuple[str, dict[str, Any]]] = []

    @property
    def ready(self) -> bool:
        return True

    def send(self, node: Node, message: dict[str, Any]) -> None:
        self.sent.append((node.id, message))


class StockJournal(MemoryJournal):
    """With what only the library's own steps call."""

    def onOneSecondTimer(self) -> None:  # noqa: N802 - its name in the library
        pass

    def __getitem__(self, item: Any) -> Any:  # its slices too
        return self._rows[item]

    def getRaftCommitIndex(self) -> int:  # noqa: N802
        return 1


def stock(others: str) -> tuple[Any, Deaf, MemoryJournal]:
    transport, journal = Deaf(), StockJournal([(NOOP, 1, 0)])
    settings = SyncObjConf(autoTick=False, journalFile=journal)
    return SyncObj(Node("a"), [Node(name) for name in others], settings, transport=transport), transport, journal


def receive(replica: Any, sender: str, **message: Any) -> None:
    replica._SyncObj__onMessageReceived(Node(sender), message)


def append(replica: Any, sender: str, entries: list[tuple[bytes, int, int]], commit_index: int) -> None:
    receive(
        replica, sender, type="append_entries", term=1, prevLogIdx=1, prevLogTerm=0, entries=entries,
        commit_index=commit_index,
    )  # fmt: skip


@pytest.fixture
def follower() -> tuple[Any, Deaf, MemoryJournal]:
    return stock("bc")


def test_an_old_message_cuts_committed_entries(follower: tuple[Any, Deaf, MemoryJournal]) -> None:
    replica, _, journal = follower
    append(replica, "b", [(COMMAND, 2, 1), (COMMAND, 3, 1)], commit_index=3)
    assert (journal[-1][1], replica.raftCommitIndex) == (3, 3)
    append(replica, "b", [(COMMAND, 2, 1)], commit_index=1)
    assert journal[-1][1] == 2, "entry 3 was acknowledged and committed, and is gone"


def test_a_vote_leaves_before_anything_is_on_disk(follower: tuple[Any, Deaf, MemoryJournal]) -> None:
    replica, transport, journal = follower
    receive(replica, "b", type="request_vote", term=1, last_log_index=1, last_log_term=0)
    assert ("b", {"type": "response_vote", "term": 1}) in transport.sent
    assert journal.after_crash().getVotedForNodeId() is None, "after a crash it would vote once more in this term"


def candidate(others: str) -> Any:
    replica, _, _ = stock(others)
    replica._SyncObj__raftElectionDeadline = 0
    replica._SyncObj__connectedNodes.add(Node(others[0]))
    replica.doTick(0)
    return replica


def test_a_vote_that_comes_twice_is_two_votes() -> None:
    replica = candidate("bcde")
    for _ in range(2):
        receive(replica, "b", type="response_vote", term=1)
    assert replica._SyncObj__raftState == LEADER, "with the votes of two out of five"


def leader() -> Any:
    replica = candidate("bc")
    receive(replica, "b", type="response_vote", term=1)
    assert replica._SyncObj__raftState == LEADER
    return replica


def test_acks_carry_no_term_and_one_of_another_time_commits() -> None:
    replica = leader()
    replica._SyncObj__setCurrentTerm(3, "a")  # it lost the leadership meanwhile, and has it again
    replica._SyncObj__onBecomeLeader()
    last = replica._SyncObj__getCurrentLogIndex()
    # Said in term 1, of another entry at this place: nothing in the message tells.
    receive(replica, "b", type="next_node_idx", next_node_idx=last + 1, reset=False, success=True)
    replica.doTick(0)
    assert replica.raftCommitIndex == last


def test_a_leader_counts_what_is_not_on_its_disk() -> None:
    replica = leader()
    last = replica._SyncObj__getCurrentLogIndex()
    receive(replica, "b", type="next_node_idx", next_node_idx=last + 1, reset=False, success=True)
    replica.doTick(0)
    assert replica.raftCommitIndex == last, "one copy of three is durable, that of b"
