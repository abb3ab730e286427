"""One replica of either kind: the library as it is, or ours. It is told what the others say in the same messages, so
that a scene is written once and played twice.

Its log begins with entry 1 of term 0, which is committed. Commands are of the kind that neither side applies.
"""

import pickle
import random
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any
from unittest import mock

from pysyncobj import SyncObj, SyncObjConf, syncobj
from pysyncobj.journal import MemoryJournal as LibraryMemoryJournal
from pysyncobj.node import Node
from pysyncobj.transport import Transport

from holdfast.raft.codec import configuration_entry, decode_configuration, encode_payload
from holdfast.raft.engine import ShardRaft
from holdfast.raft.library import LEADER, Timing
from holdfast.raft.membership import ChangeRefusedError, with_learner
from holdfast.raft.messages import (
    Append,
    AppendReply,
    Configuration,
    EntryKind,
    LogEntry,
    Message,
    PreVoteReply,
    RequestVote,
    VoteReply,
)
from holdfast.raft.node_journal import NodeJournal
from holdfast.raft.sending import APPEND_BYTES_MAX
from holdfast.wal.node_log import SEGMENT_BYTES_MIN, NodeLog
from tests.simulation.fake_disk import FakeDisk

TICK_S = 0.05
FIRST = (1, 0)  # index and term of the entry that all have
PATIENCE_S = 2.0  # longer than a follower of either kind waits for its leader
SHARD = 3


class Player(ABC):
    """The replica `name`; the others are only voices."""

    now_s = 1_000.0
    syncs = True  # False: its disk is slow, and nothing becomes durable
    errors = 0  # messages of its own kind that it could not read

    def __init__(self, name: str, voters: str) -> None:
        self.name, self.voters = name, voters

    @abstractmethod
    def hear(self, sender: str, message: Any) -> None:
        """One of our messages, which the library gets in its words; or one of its own kind's."""

    @abstractmethod
    def tick(self) -> None:
        """Time has passed, and whatever is due is done."""

    @abstractmethod
    def stand(self) -> None:
        """Waits in vain for a leader; others who are asked beforehand agree to an election."""

    @abstractmethod
    def propose(self, command: bytes) -> None: ...
    @abstractmethod
    def add(self, member: str) -> None:
        """Asks the leader for a new member; it may refuse."""

    @abstractmethod
    def save_state(self) -> None:
        """Its state is on the disk, up to what is applied."""

    @abstractmethod
    def restart(self) -> None:
        """Only the process ends: everything that it has written is there."""

    @abstractmethod
    def lose_power(self) -> None:
        """Only what was made durable is there."""

    @abstractmethod
    def take_sent(self, to: str) -> list[Any]:
        """Its own messages to another; they are on their way now."""

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

    # --- longer scenes ----------------------------------------------------------------------------------------

    def hear_ack(self, sender: str, term: int, index: int) -> None:
        """Its log agrees up to this index. It is said in this term."""
        self.hear(sender, AppendReply(term, True, index, self.newest_round(sender)))

    def newest_round(self, _to: str) -> int:
        return 0  # the library does not count

    def work(self, seconds: float) -> None:
        for _ in range(round(seconds / TICK_S)):
            self.now_s += TICK_S
            self.tick()

    def lead(self, voters: str) -> None:
        self.stand()
        for voter in voters:
            self.hear(voter, VoteReply(self.term, True))
        assert self.role == LEADER

    def serve(self, voters: str) -> None:
        """Leads, and these have its first entry: it is committed and applied."""
        self.lead(voters)
        for voter in voters:
            self.hear_ack(voter, self.term, self.last_index)
        self.tick()
        assert self.commit_index == self.last_index


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


class CountedLibraryJournal(LibraryMemoryJournal):  # type: ignore[misc]
    rows_read = 0

    def __getitem__(self, item: Any) -> Any:
        found = super().__getitem__(item)
        self.rows_read += len(found) if isinstance(item, slice) else 1
        return found


class Stock(Player):
    """Nothing of it is changed but its clock; it has a place for a journal and a transport."""

    def __init__(
        self,
        name: str = "a",
        voters: str = "abc",
        *,
        message_bytes: int | None = None,
        open_journal: Callable[[], Any] = CountedLibraryJournal,
        make: Callable[..., Any] = SyncObj,
        **settings: Any,
    ) -> None:
        super().__init__(name, voters)
        self._make, self._open_journal = make, open_journal
        self._settings = {"autoTick": False, "dynamicMembershipChange": True, **settings}
        if message_bytes is not None:
            self._settings["appendEntriesBatchSizeBytes"] = message_bytes
        self.transport = Sent()
        self.journal = open_journal()
        self._begin()

    def _begin(self) -> None:
        settings = SyncObjConf(journalFile=self.journal, **self._settings)
        nodes = [Node(voter) for voter in self.voters if voter != self.name]
        with self._clock():
            self.library = self._make(Node(self.name), nodes, settings, transport=self.transport)
            for node in nodes:
                self.transport._onNodeConnected(node)

    def _clock(self) -> Any:
        return mock.patch.object(syncobj, "monotonicTime", return_value=self.now_s)

    def _get(self, private: str) -> Any:
        return getattr(self.library, f"_SyncObj__{private}")

    def hear(self, sender: str, message: Any) -> None:
        heard = message if isinstance(message, dict) else self._in_its_words(message)
        with self._clock():
            try:
                self._get("onMessageReceived")(Node(sender), heard)
            except Exception:
                if "transmission" not in heard:
                    raise
                self.errors += 1  # its thread writes that to the program's log and goes on

    def _in_its_words(self, message: Message) -> dict[str, Any]:
        match message:
            case Append(term, index, index_term, entries, commit_index):
                rows = [(self._payload(entry), entry.index, entry.term) for entry in entries]
                message_of = {"type": "append_entries", "term": term, "entries": rows, "commit_index": commit_index}
                return message_of | {"prevLogIdx": index, "prevLogTerm": index_term}
            case AppendReply(_, success, index):  # there is no place for a term in it
                return {"type": "next_node_idx", "next_node_idx": index + 1, "reset": False, "success": success}
            case RequestVote(term, last_index, last_term):
                last = {"last_log_index": last_index, "last_log_term": last_term}
                return {"type": "request_vote", "term": term, **last}
            case VoteReply(term):
                return {"type": "response_vote", "term": term}
        raise AssertionError(f"it has no words for {message}")

    def _payload(self, entry: LogEntry) -> bytes:
        if entry.kind != EntryKind.CONFIGURATION:
            return encode_payload(entry)
        voters = set(decode_configuration(entry.command).voters)
        [member] = voters ^ set(self.voters)
        change = pickle.dumps(["add" if member in voters else "rem", member, Node(member)])
        return bytes([syncobj._COMMAND_TYPE.MEMBERSHIP]) + change

    def tick(self) -> None:
        with self._clock():
            self.library.doTick(0)

    def stand(self) -> None:
        self.now_s += PATIENCE_S
        self.tick()

    def propose(self, command: bytes) -> None:
        with self._clock():
            self.library._applyCommand(bytes([EntryKind.NO_OP]) + command, None)
            self.library._checkCommandsToApply()

    def add(self, member: str) -> None:
        with self._clock():
            self.library.addNodeToCluster(Node(member))
            self.library._checkCommandsToApply()

    def save_state(self) -> None:
        self.library.forceLogCompaction()
        self.tick()  # the log is compacted in the next one

    def restart(self) -> None:
        if not isinstance(self.journal, LibraryMemoryJournal):
            self.journal = self._open_journal()
        self._begin()
        self.tick()

    def lose_power(self) -> None:
        """It never asks for anything to be durable: see the scene about that."""
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
        return {row[1]: int(row[2]) for row in self.journal[0:]}.get(index)

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
        self.transport.sent = [item for item in self.transport.sent if item[0] != to]
        return taken


# --- ours -------------------------------------------------------------------------------------------------------------


class CountedJournal(NodeJournal):
    """On the node's log."""

    rows_read = 0

    def entry_at(self, index: int) -> LogEntry:
        self.rows_read += 1
        return super().entry_at(index)


class Ours(Player):
    """Driven as the rounds of a node do it: what happened is made durable, unless the disk is slow, and then told."""

    def __init__(self, name: str = "a", voters: str = "abc", *, message_bytes: int = APPEND_BYTES_MAX, seed: int = 0):
        super().__init__(name, voters)
        self._message_bytes = message_bytes
        self._saved_index = FIRST[0]
        self.sent: list[tuple[str, Message]] = []
        self.disk = FakeDisk(random.Random(seed))
        self.log = NodeLog.open(self.disk, segment_bytes=SEGMENT_BYTES_MIN)
        self.journal = self._counted(CountedJournal.create(self.log, SHARD, group=7, state_name="s"))
        self.journal.append(configuration_entry(*FIRST, Configuration.of(1, voters)))
        self._begin()
        self.sync()

    def _begin(self) -> None:
        self.engine = ShardRaft(
            self.name, self.journal, now_s=self.now_s, applied_index=self._saved_index, timing=Timing(),
            append_bytes_max=self._message_bytes, draw=lambda: 0.5,
        )  # fmt: skip

    def sync(self) -> None:
        flush = self.log.begin_flush()
        if flush is not None:
            flush.run()
            flush.done()
        self.journal.synced()

    def hear(self, sender: str, message: Any) -> None:
        self.engine.receive(sender, message, self.now_s)
        self._round()

    def _round(self) -> None:
        engine = self.engine
        engine.replicate()
        self.sent += engine.ready.take()
        if self.syncs:
            self.sync()
            engine.synced()
            self.sent += engine.ready.take()
            for committed in engine.committed(1_000):
                engine.applied(committed.index)

    def newest_round(self, to: str) -> int:
        rounds = [message.round for item, message in self.sent if item == to and isinstance(message, Append)]
        return max(rounds, default=0)

    def tick(self) -> None:
        self.engine.tick(self.now_s)
        self._round()

    def stand(self) -> None:
        self.now_s += PATIENCE_S
        self.tick()
        for peer in self.engine.others:
            self.hear(peer, PreVoteReply(self.term + 1, True))

    def propose(self, command: bytes) -> None:
        assert self.engine.propose(command, EntryKind.NO_OP) is not None
        self._round()

    def add(self, member: str) -> None:
        now = self.engine.configuration
        try:
            self.engine.propose_configuration(with_learner(now, member), now.version)
        except ChangeRefusedError:
            return
        self._round()

    def save_state(self) -> None:
        self._saved_index = self.engine.applied_index

    def restart(self) -> None:
        self.sync()
        self.disk.restart()
        self._load()

    def lose_power(self) -> None:
        self.disk.crash()
        self._load()

    def _load(self) -> None:
        self.log = NodeLog.open(self.disk, segment_bytes=SEGMENT_BYTES_MIN)
        self.journal = self._counted(CountedJournal.load(self.log, SHARD))
        self._begin()

    @staticmethod
    def _counted(journal: NodeJournal | None) -> CountedJournal:
        assert isinstance(journal, CountedJournal)
        return journal

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
        self.sent = [item for item in self.sent if item[0] != to]
        return taken
