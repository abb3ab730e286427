"""One replica of either kind on a stage: the library as it is, or ours. A test says what the others say to it, in the
same words for both, so that a scene is written once and played twice.

Its log begins with entry 1 of term 0, which is committed. Commands are of the kind that neither side applies.
"""

import pickle
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar
from unittest import mock

import pytest
from pysyncobj import SyncObj, SyncObjConf, syncobj
from pysyncobj.journal import MemoryJournal as LibraryJournal
from pysyncobj.node import Node
from pysyncobj.transport import Transport

from holdfast.raft.codec import configuration_entry, decode_payload, encode_payload
from holdfast.raft.engine import ShardRaft
from holdfast.raft.journal import Journal, MemoryJournal
from holdfast.raft.library import CANDIDATE, FOLLOWER, LEADER, Timing
from holdfast.raft.membership import ChangeRefusedError, with_learner, without
from holdfast.raft.messages import (
    Append,
    AppendReply,
    Configuration,
    Entry,
    Kind,
    Message,
    PreVoteReply,
    RequestVote,
    VoteReply,
)
from holdfast.raft.sending import APPEND_BYTES_MAX

TICK_S = 0.05
FIRST = (1, 0)  # index and term of the entry that all have
NO_OP = bytes([Kind.NO_OP])
PATIENCE_S = 2.0  # longer than a follower of either kind waits for its leader


Row = tuple[bytes, int, int]  # payload, index, term


def entry(index: int, term: int, text: bytes = b"") -> Row:
    return NO_OP + text, index, term


class Player(ABC):
    """The replica `name`; the others are only voices."""

    now_s = 1_000.0
    syncs = True  # False: its disk is slow, and nothing becomes durable
    errors = 0  # messages of its own kind that it could not read

    def __init__(self, others: str = "bc", *, name: str = "a") -> None:
        self.name, self.voters = name, "".join(sorted(name + others))

    # --- what the others say ----------------------------------------------------------------------------------

    @abstractmethod
    def hear_append(
        self, sender: str, term: int, previous: tuple[int, int], entries: Sequence[Row], commit_index: int
    ) -> None: ...
    @abstractmethod
    def hear_ack(self, sender: str, term: int, index: int) -> None:
        """Its log agrees up to this index. It is said in this term."""

    @abstractmethod
    def hear_vote(self, sender: str, term: int) -> None: ...
    @abstractmethod
    def hear_vote_request(self, sender: str, term: int, last: tuple[int, int]) -> None: ...

    # --- what it does -----------------------------------------------------------------------------------------

    @abstractmethod
    def tick(self) -> None:
        """Time has passed, and whatever is due is done."""

    @abstractmethod
    def stand(self) -> None:
        """Waits in vain for a leader; others who are asked beforehand agree to an election."""

    @abstractmethod
    def propose(self, command: bytes) -> int: ...
    @abstractmethod
    def addition(self, member: str) -> bytes:
        """The command that adds a member."""

    @abstractmethod
    def removal(self, member: str) -> bytes: ...
    @abstractmethod
    def add(self, member: str) -> None:
        """Asks the leader for a new member; it may refuse."""

    @abstractmethod
    def restart(self) -> None:
        """Only the process ends: everything that it has written is there."""

    @abstractmethod
    def lose_power(self) -> None:
        """Only what was made durable is there."""

    def wait(self, seconds: float) -> None:
        """Lets time pass and does nothing."""
        self.now_s += seconds

    def work(self, seconds: float) -> None:
        for _ in range(round(seconds / TICK_S)):
            self.now_s += TICK_S
            self.tick()

    def lead(self, voters: str) -> None:
        self.stand()
        for voter in voters:
            self.hear_vote(voter, self.term)
        assert self.role == LEADER

    def serve(self, voters: str) -> None:
        """Leads, and these have its first entry: it is committed and applied."""
        self.lead(voters)
        for voter in voters:
            self.hear_ack(voter, self.term, self.last_index)
        self.tick()
        assert self.commit_index == self.last_index

    # --- what is seen -----------------------------------------------------------------------------------------

    @property
    @abstractmethod
    def role(self) -> int: ...
    @property
    @abstractmethod
    def term(self) -> int: ...
    @property
    @abstractmethod
    def last_index(self) -> int: ...
    @property
    @abstractmethod
    def commit_index(self) -> int: ...
    @property
    @abstractmethod
    def others(self) -> str: ...
    @property
    @abstractmethod
    def rows_read(self) -> int:
        """How many entries it has taken out of its log so far."""

    @abstractmethod
    def term_at(self, index: int) -> int | None: ...
    @abstractmethod
    def next_index(self, peer: str) -> int: ...
    @abstractmethod
    def is_read(self) -> bool:
        """Whether it lets a read pass now."""

    @abstractmethod
    def terms_told(self, to: str) -> list[int]:
        """Terms that are in what it has said to another."""

    @abstractmethod
    def votes_given(self, term: int) -> list[str]: ...
    @abstractmethod
    def take_sent(self, to: str) -> list[Any]:
        """Its own messages to another; they are on their way now."""

    @abstractmethod
    def hear(self, sender: str, message: Any) -> None: ...


def exchange(one: Player, other: Player) -> None:
    """Passes everything on between two of a kind."""
    for sender, receiver in ((one, other), (other, one)):
        for message in sender.take_sent(receiver.name):
            receiver.hear(sender.name, message)


# --- the library ------------------------------------------------------------------------------------------------------


class Sent(Transport):  # type: ignore[misc]  # the library has no types
    """Keeps what is sent."""

    def __init__(self) -> None:
        super().__init__(None, None, [])
        self.sent: list[tuple[str, dict[str, Any]]] = []

    def send(self, node: Node, message: dict[str, Any]) -> bool:
        self.sent.append((node.id, message))
        return True


class CountedLibraryJournal(LibraryJournal):  # type: ignore[misc]
    rows_read = 0

    def __getitem__(self, item: Any) -> Any:
        found = super().__getitem__(item)
        self.rows_read += len(found) if isinstance(item, slice) else 1
        return found


class Stock(Player):
    """Nothing of it is changed but its clock; it has a place for a journal and a transport."""

    SETTINGS: ClassVar[dict[str, Any]] = {"autoTick": False, "dynamicMembershipChange": True}

    def __init__(self, others: str = "bc", *, name: str = "a", journal: Any = None, **settings: Any) -> None:
        super().__init__(others, name=name)
        self._settings = self.SETTINGS | settings
        self.journal = CountedLibraryJournal() if journal is None else journal
        self.transport = Sent()
        self._begin()

    def _begin(self) -> None:
        settings = SyncObjConf(journalFile=self.journal, **self._settings)
        nodes = [Node(voter) for voter in self.voters if voter != self.name]
        with self._clock():
            self.library = self.make(nodes, settings)
            for node in nodes:
                self.transport._onNodeConnected(node)

    def make(self, nodes: list[Node], settings: Any) -> Any:
        return SyncObj(Node(self.name), nodes, settings, transport=self.transport)

    def _clock(self) -> Any:
        return mock.patch.object(syncobj, "monotonicTime", self._now)

    def _now(self) -> float:
        return self.now_s

    def _get(self, private: str) -> Any:
        return getattr(self.library, f"_SyncObj__{private}")

    def hear(self, sender: str, message: dict[str, Any]) -> None:
        with self._clock():
            try:
                self._get("onMessageReceived")(Node(sender), message)
            except Exception:
                if "transmission" not in message:
                    raise
                self.errors += 1  # its thread writes that to the program's log and goes on

    def hear_append(
        self, sender: str, term: int, previous: tuple[int, int], entries: Sequence[Row], commit_index: int
    ) -> None:
        index, index_term = previous
        message = {"type": "append_entries", "term": term, "prevLogIdx": index, "prevLogTerm": index_term}
        self.hear(sender, message | {"entries": list(entries), "commit_index": commit_index})

    def hear_ack(self, sender: str, term: int, index: int) -> None:
        # There is no place for the term in it.
        self.hear(sender, {"type": "next_node_idx", "next_node_idx": index + 1, "reset": False, "success": True})

    def hear_vote(self, sender: str, term: int) -> None:
        self.hear(sender, {"type": "response_vote", "term": term})

    def hear_vote_request(self, sender: str, term: int, last: tuple[int, int]) -> None:
        message = {"type": "request_vote", "term": term, "last_log_index": last[0], "last_log_term": last[1]}
        self.hear(sender, message)

    def tick(self) -> None:
        with self._clock():
            self.library.doTick(0)

    def stand(self) -> None:
        self.wait(PATIENCE_S)
        self.tick()

    def propose(self, command: bytes) -> int:
        with self._clock():
            self.library._applyCommand(NO_OP + command, None)
            self.library._checkCommandsToApply()
        return self.last_index

    def addition(self, member: str) -> bytes:
        return self._change("add", member)

    def removal(self, member: str) -> bytes:
        return self._change("rem", member)

    def _change(self, kind: str, member: str) -> bytes:
        return bytes([syncobj._COMMAND_TYPE.MEMBERSHIP]) + pickle.dumps([kind, member, Node(member)])

    def add(self, member: str) -> None:
        with self._clock():
            self.library.addNodeToCluster(Node(member))
            self.library._checkCommandsToApply()

    def restart(self) -> None:
        self._begin()
        self.tick()

    def lose_power(self) -> None:
        """It never asks for anything to be durable: test_stock_log.py."""
        self.journal = CountedLibraryJournal()
        self._begin()

    @property
    def role(self) -> int:
        return int(self._get("raftState"))

    @property
    def term(self) -> int:
        return int(self.library.raftCurrentTerm)

    @property
    def last_index(self) -> int:
        return int(self.journal[-1][1])

    @property
    def commit_index(self) -> int:
        return int(self.library.raftCommitIndex)

    @property
    def others(self) -> str:
        return "".join(sorted(node.id for node in self.library.otherNodes))

    @property
    def rows_read(self) -> int:
        return int(self.journal.rows_read)

    def term_at(self, index: int) -> int | None:
        terms = {row[1]: int(row[2]) for row in self.journal[0:]}
        return terms.get(index)

    def next_index(self, peer: str) -> int:
        return int(self._get("raftNextIndex")[Node(peer)])

    def is_read(self) -> bool:
        return bool(self.library._isLeader() and self.library.isReady())  # it knows no other question

    def terms_told(self, to: str) -> list[int]:
        return [message["term"] for receiver, message in self.transport.sent if receiver == to and "term" in message]

    def votes_given(self, term: int) -> list[str]:
        vote = {"type": "response_vote", "term": term}
        return [to for to, message in self.transport.sent if message == vote]

    def take_sent(self, to: str) -> list[Any]:
        taken = [message for receiver, message in self.transport.sent if receiver == to]
        self.transport.sent = [each for each in self.transport.sent if each[0] != to]
        return taken


# --- ours -------------------------------------------------------------------------------------------------------------


def own_entry(row: Row) -> Entry:
    payload, index, term = row
    return decode_payload(index, term, payload)


class CountedJournal(MemoryJournal):
    rows_read = 0

    def entry_at(self, index: int) -> Entry:
        self.rows_read += 1
        return super().entry_at(index)


class Ours(Player):
    """Driven as the rounds of a node do it: what happened is made durable, unless the disk is slow, and then told."""

    def __init__(self, others: str = "bc", *, name: str = "a", append_bytes_max: int = APPEND_BYTES_MAX) -> None:
        super().__init__(others, name=name)
        self._append_bytes_max = append_bytes_max
        self.sent: list[tuple[str, Message]] = []
        self.journal: Journal = self.new_journal(configuration_entry(*FIRST, Configuration.of(1, self.voters)))
        self._begin(FIRST[0])

    def new_journal(self, first: Entry) -> Journal:
        return CountedJournal([first])

    def sync_journal(self) -> None:
        assert isinstance(self.journal, MemoryJournal)
        self.journal.sync()

    def _begin(self, applied_index: int) -> None:
        self.engine = ShardRaft(
            self.name, self.journal, now_s=self.now_s, applied_index=applied_index, timing=Timing(),
            append_bytes_max=self._append_bytes_max, draw=lambda: 0.5,
        )  # fmt: skip

    def hear(self, sender: str, message: Message) -> None:
        self.engine.receive(sender, message, self.now_s)
        self._round()

    def _round(self) -> None:
        engine = self.engine
        engine.replicate()
        self._send()
        if self.syncs:
            self.sync_journal()
            engine.synced()
            self._send()
            for committed in engine.committed(1_000):
                engine.applied(committed.index)

    def _send(self) -> None:
        self.sent += self.engine.ready.take()

    def hear_append(
        self, sender: str, term: int, previous: tuple[int, int], entries: Sequence[Row], commit_index: int
    ) -> None:
        self.hear(sender, Append(term, *previous, tuple(own_entry(row) for row in entries), commit_index, 1))

    def hear_ack(self, sender: str, term: int, index: int) -> None:
        rounds = [message.round for to, message in self.sent if to == sender and isinstance(message, Append)]
        self.hear(sender, AppendReply(term, True, index, max(rounds, default=0)))

    def hear_vote(self, sender: str, term: int) -> None:
        self.hear(sender, VoteReply(term, True))

    def hear_vote_request(self, sender: str, term: int, last: tuple[int, int]) -> None:
        self.hear(sender, RequestVote(term, *last))

    def tick(self) -> None:
        self.engine.tick(self.now_s)
        self._round()

    def stand(self) -> None:
        self.wait(PATIENCE_S)
        self.tick()
        for peer in self.engine.others:
            self.hear(peer, PreVoteReply(self.term + 1, True))

    def propose(self, command: bytes) -> int:
        index = self.engine.propose(command, Kind.NO_OP)
        assert index is not None
        self._round()
        return index

    def addition(self, member: str) -> bytes:
        new = Configuration.of(self.engine.configuration.version + 1, self.voters + member)
        return encode_payload(configuration_entry(1, 1, new))

    def removal(self, member: str) -> bytes:
        return encode_payload(configuration_entry(1, 1, without(self.engine.configuration, member)))

    def add(self, member: str) -> None:
        now = self.engine.configuration
        try:
            self.engine.propose_configuration(with_learner(now, member), now.version)
        except ChangeRefusedError:
            return
        self._round()

    def restart(self) -> None:
        self.sync_journal()
        self.lose_power()

    def lose_power(self) -> None:
        assert isinstance(self.journal, MemoryJournal)
        self.journal = self.journal.after_crash()
        self._begin(FIRST[0])

    @property
    def role(self) -> int:
        return self.engine.role

    @property
    def term(self) -> int:
        return self.engine.term

    @property
    def last_index(self) -> int:
        return self.engine.last_index

    @property
    def commit_index(self) -> int:
        return self.engine.commit_index

    @property
    def others(self) -> str:
        return "".join(self.engine.others)

    @property
    def rows_read(self) -> int:
        assert isinstance(self.journal, CountedJournal)
        return self.journal.rows_read

    def term_at(self, index: int) -> int | None:
        return self.engine.term_at(index)

    def next_index(self, peer: str) -> int:
        return self.engine.progress[peer].next_index

    def is_read(self) -> bool:
        number = self.engine.begin_read()
        self._round()
        return number is not None and self.engine.may_read(number)

    def terms_told(self, to: str) -> list[int]:
        return [message.term for receiver, message in self.sent if receiver == to]

    def votes_given(self, term: int) -> list[str]:
        return [to for to, message in self.sent if message == VoteReply(term, True)]

    def take_sent(self, to: str) -> list[Any]:
        taken = [message for receiver, message in self.sent if receiver == to]
        self.sent = [each for each in self.sent if each[0] != to]
        return taken


KINDS: list[type[Player]] = [Stock, Ours]


# --- both can do what is right ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_a_leader_commits_what_a_majority_has(kind: type[Player]) -> None:
    player = kind()
    player.stand()
    assert (player.role, player.term) == (CANDIDATE, 1)
    player.hear_vote("b", 1)
    assert (player.role, player.last_index, player.commit_index) == (LEADER, 2, 1)
    index = player.propose(b"x")
    player.tick()
    assert player.commit_index == 1
    player.hear_ack("b", 1, index)
    player.tick()
    assert player.commit_index == index == 3


@pytest.mark.parametrize("kind", KINDS)
def test_a_follower_takes_entries_and_votes_once(kind: type[Player]) -> None:
    player = kind()
    player.hear_append("b", 1, FIRST, [entry(2, 1), entry(3, 1)], 2)
    assert (player.role, player.term, player.last_index, player.commit_index) == (FOLLOWER, 1, 3, 2)
    player.restart()
    assert (player.last_index, player.term_at(3), player.others) == (3, 1, "bc")
    player.wait(PATIENCE_S)
    player.hear_vote_request("b", 2, (3, 1))
    player.hear_vote_request("c", 2, (3, 1))
    assert player.votes_given(2) == ["b"]


@pytest.mark.parametrize("kind", KINDS)
def test_two_of_a_kind_understand_each_other(kind: type[Player]) -> None:
    a, b = kind(), kind("ac", name="b")
    a.lead("c")
    index = a.propose(b"x" * 200)
    for _ in range(4):
        a.work(4 * TICK_S)
        exchange(a, b)
    assert (b.last_index, b.commit_index, a.commit_index) == (index, index, index)
