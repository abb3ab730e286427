"""The library's faults, as it is, and that ours does not have them. `library_faults.txt` has the scenes that one
replica and its log can show, and what comes of each with the library and with ours. `REGENERATE=1` writes it anew.

    group abcde / messages 100   who belongs to the group (otherwise abc); how many bytes of entries fit a message
    other b / exchange 4         b is played as well; a works, and they hear each other, so many times
    give b <message>             b says this (in the words of the traces); `ack b term=1 index=3`: b acknowledges
    follow b 2..9 commit=9       b sends entries of term 1
    lead bc / serve bc / stand   a becomes the leader by these votes; and its first entry is committed; a is a candidate
    propose 3 bytes=50           entries of a leader; `acked bc 10`: so many times it sends, and b and c acknowledge all
    work 0.2 / wait 2.0 / tick   time passes, with ticks and without
    slow-disk / fast-disk        from now on nothing, or everything, becomes durable
    save / restart / lose-power  its state is saved; its process ends; it has only what was durable
    add d                        the leader is asked for a new member
    show role others b:last      what is seen, of a or of another

Those below take more: files, sockets, a state machine.
"""

import ast
import asyncio
import itertools
import mmap
import os
import pickle
import socket
import struct
import zlib
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any
from unittest import mock

import pysyncobj.pickle as library_pickle
import pytest
from pysyncobj import SyncObj, SyncObjConf, replicated
from pysyncobj.journal import FileJournal, ResizableFile
from pysyncobj.journal import MemoryJournal as LibraryMemoryJournal
from pysyncobj.node import TCPNode
from pysyncobj.tcp_server import TcpServer

import holdfast.broker
from holdfast.broker.config import BrokerConfig
from holdfast.broker.leader.proposals import Proposal
from holdfast.broker.peers import bodies, frames, words
from holdfast.broker.peers.reasons import PeerError, Reason
from holdfast.machine.entries import Enqueue
from holdfast.machine.machine import OutOfOrderError
from holdfast.raft.codec import FrameError, decode, decode_configuration, encode
from holdfast.raft.library import CANDIDATE, FOLLOWER, LEADER
from holdfast.raft.messages import Append, EntryKind, LogEntry
from tests.unit.machine.machine_shard import new_task
from tests.unit.raft.library_players import FIRST, Ours, Player, Stock, exchange
from tests.unit.raft.trace_messages import parse_message
from tests.unit.raft.trace_player import OUTPUT, scenes
from tests.unit.replica.small_shard import SmallShard

FAULTS = Path(__file__).parent / "library_faults.txt"
ROLES = {FOLLOWER: "follower", CANDIDATE: "candidate", LEADER: "leader"}
EVENT_S = 5.0  # for something that has happened already

# It leaves the file of its term and vote to the garbage collector.
leaves_files_open = pytest.mark.filterwarnings("ignore::ResourceWarning")

Make = Callable[..., Player]
Option = dict[str, str]


class Scene:
    """One scene, played by one kind."""

    def __init__(self, make: Make, count_syncs: Callable[[Player], int]) -> None:
        self._make, self._count_syncs = make, count_syncs
        self._voters, self._settings = "abc", dict[str, int]()
        self._players: dict[str, Player] = {}
        self._seen: list[str] = []
        self._synced = 0

    def play(self, commands: list[str]) -> str:
        """What was seen."""
        for command in commands:
            name, *words = command.split()
            act = getattr(self, f"_do_{name.replace('-', '_')}")
            if name not in ("group", "messages") and not self._players:
                self._players["a"] = self._make("a", self._voters, **self._settings)
                self._synced = self._count_syncs(self._a)
            act(*words)
        return " ".join(self._seen)

    @property
    def _a(self) -> Player:
        return self._players["a"]

    def _do_group(self, voters: str) -> None:
        self._voters = voters

    def _do_messages(self, size_bytes: str) -> None:
        self._settings["message_bytes"] = int(size_bytes)

    def _do_other(self, name: str) -> None:
        self._players[name] = self._make(name, self._voters, **self._settings)

    def _do_exchange(self, times: str) -> None:
        for _ in range(int(times)):
            self._a.work(0.2)
            exchange(self._a, self._players["b"])

    def _do_give(self, sender: str, *message: str) -> None:
        self._a.hear(sender, parse_message(message))

    def _do_ack(self, sender: str, *fields: str) -> None:
        term, index = (int(field.partition("=")[2]) for field in fields)
        self._a.hear_ack(sender, term, index)

    def _do_follow(self, sender: str, indexes: str, commit: str) -> None:
        first, last = (int(index) for index in indexes.split(".."))
        entries = tuple(LogEntry(index, 1, EntryKind.NO_OP, b"%d" % index) for index in range(first, last + 1))
        previous_term = self._a.term_at(first - 1)
        assert previous_term is not None
        self._a.hear(sender, Append(1, first - 1, previous_term, entries, int(commit.partition("=")[2]), 1))

    def _do_lead(self, voters: str) -> None:
        self._a.lead(voters)

    def _do_serve(self, voters: str) -> None:
        self._a.serve(voters)

    def _do_stand(self) -> None:
        self._a.stand()

    def _do_propose(self, count: str, size: str = "bytes=1") -> None:
        for _ in range(int(count)):
            self._a.propose(b"\xff" * int(size.partition("=")[2]))

    def _do_acked(self, peers: str, times: str) -> None:
        for _ in range(int(times)):
            self._a.work(0.05)
            for peer in peers:
                self._a.hear_ack(peer, self._a.term, self._a.next_index(peer) - 1)

    def _do_work(self, seconds: str) -> None:
        self._a.work(float(seconds))

    def _do_wait(self, seconds: str) -> None:
        self._a.now_s += float(seconds)

    def _do_tick(self) -> None:
        self._a.tick()

    def _do_slow_disk(self) -> None:
        self._a.syncs = False

    def _do_fast_disk(self) -> None:
        self._a.syncs = True

    def _do_save(self) -> None:
        self._a.save_state()

    def _do_restart(self) -> None:
        self._a.restart()

    def _do_lose_power(self) -> None:
        self._a.lose_power()

    def _do_add(self, member: str) -> None:
        self._a.add(member)

    def _do_show(self, *questions: str) -> None:
        for question in questions:
            of, _, rest = question.partition(":")
            name, asked = (of, rest) if of in self._players else ("a", question)
            self._seen.append(f"{question}={self._answer(self._players[name], *asked.split(':'))}")

    def _answer(self, player: Player, question: str, detail: str = "") -> object:
        if question == "synced":
            before, self._synced = self._synced, self._count_syncs(player)
            return self._synced > before
        answers: dict[str, Callable[[], object]] = {
            "role": lambda: ROLES[player.role],
            "term": lambda: player.term,
            "last": lambda: player.last_index,
            "commit": lambda: player.commit_index,
            "others": lambda: player.others,
            "errors": lambda: player.errors,
            "may-read": player.is_read,
            "is-of-another-term": lambda: player.term > 1,
            "reads-of-each": lambda: round(player.rows_read / player.last_index),
            "next": lambda: player.next_index(detail),
            "term-at": lambda: player.term_at(int(detail)),
            "votes": lambda: "".join(player.votes_given(int(detail))),
            "told": lambda: player.terms_told(detail),
        }
        return answers[question]()


@pytest.fixture
def open_files(tmp_path: Path) -> Iterator[Callable[[str], Any]]:
    """The library's journal in a file of this name."""
    opened: list[Any] = []

    def open_journal(name: str) -> Any:
        opened.append(FileJournal(str(tmp_path / name)))
        return opened[-1]

    yield open_journal
    for journal in opened:
        journal._destroy()


@pytest.fixture
def make_stock(open_files: Callable[[str], Any], tmp_path: Path) -> Make:
    """The library with its own files, unless there are several, or what it reads of its log is counted."""
    numbers = itertools.count()

    def make(name: str, voters: str, **settings: Any) -> Player:
        if settings or name != "a":
            return Stock(name, voters, **settings)
        number = next(numbers)
        dump = str(tmp_path / f"dump-{number}")
        return Stock(voters=voters, open_journal=lambda: open_files(f"{number}"), fullDumpFile=dump, useFork=False)

    return make


@pytest.fixture
def synced(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Notes whatever the library could make something durable with."""
    noted: list[str] = []

    class CountedMap(mmap.mmap):
        def flush(self, *place: int) -> None:
            noted.append("mmap")
            super().flush(*place)

    monkeypatch.setattr(mmap, "mmap", CountedMap)
    for name in ("fsync", "fdatasync", "sync"):
        monkeypatch.setattr(os, name, lambda *_, name=name: noted.append(name))
    return noted


def sync_count(player: Player) -> int:
    assert isinstance(player, Ours)
    return player.disk.sync_count


@leaves_files_open
def test_faults(make_stock: Make, synced: list[str]) -> None:
    about, *expected = scenes(FAULTS.read_text(encoding="utf-8"))
    played = []
    for scene in expected:
        head, _, _ = scene.partition(f"\n{OUTPUT}\n")
        commands = head.strip().splitlines()[1:]
        library = Scene(make_stock, lambda _: len(synced)).play(commands)
        ours = Scene(Ours, sync_count).play(commands)
        played.append(f"{head}\n{OUTPUT}\nlibrary: {library}\nours:    {ours}\n")
    if os.environ.get("REGENERATE"):
        FAULTS.write_text(about + "".join(played), encoding="utf-8")
        return
    for scene, seen in zip(expected, played, strict=True):
        assert seen == scene


def test_a_sync_of_the_library_would_be_noted(make_stock: Make, synced: list[str]) -> None:
    stock = make_stock("a", "abc")
    assert isinstance(stock, Stock)
    stock.journal.flush()
    assert synced == ["mmap"]


# --- T4: killed while the log is compacted (ours: test_journal_crashes.py) --------------------------------------------


class KilledError(Exception):
    pass


def test_killed_while_the_log_is_compacted_library(
    open_files: Callable[[str], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = open_files("journal")
    for index in range(1, 41):
        journal.add(b"\x01x", index, 1)
    steps, write = iter(range(1)), ResizableFile.write

    def write_until_killed(self: Any, offset: int, values: bytes) -> None:
        if next(steps, None) is None:
            raise KilledError
        write(self, offset, values)

    with monkeypatch.context() as patch:
        patch.setattr(ResizableFile, "write", write_until_killed)
        with pytest.raises(KilledError):
            journal.deleteEntriesTo(20)
    assert len(open_files("journal")[0:]) == 0, "the first that it does is to forget everything"


# --- T6: whoever waits for an entry fails -----------------------------------------------------------------------------


class Counter(SyncObj):  # type: ignore[misc]  # the library has no types
    def __init__(self, *args: Any, **settings: Any) -> None:
        self.applied = 0
        super().__init__(*args, **settings)

    @replicated  # type: ignore[untyped-decorator]
    def add(self) -> None:
        self.applied += 1


class AnswerFailedError(Exception):
    pass


def fail(*_: object) -> None:
    raise AnswerFailedError


def test_an_answer_that_fails_library() -> None:
    player = Stock(make=Counter)
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
        fails, is_gone = Proposal(call), Proposal(call)
        for proposal in (fails, is_gone):
            small.shard.propose(proposal)
            proposal.future.add_done_callback(fail)
        is_gone.future.cancel()
        await small.round()
        await small.round()
        assert [type(error) for error in failed] == [AnswerFailedError] * 2
        assert len(await fails.future) == 1
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


# --- bytes of anyone who connects are unpickled -----------------------------------------------------------------------

ran: list[str] = []


def note(what: str) -> str:
    ran.append(what)
    return what


class Program:
    """Runs when somebody unpickles it."""

    def __reduce__(self) -> tuple[Callable[[str], str], tuple[str]]:
        return note, ("it ran",)


PROGRAM = pickle.dumps(Program())


@pytest.fixture(autouse=True)
def nothing_ran() -> Iterator[None]:
    ran.clear()
    yield
    ran.clear()


def library_frame() -> bytes:
    data = zlib.compress(PROGRAM)
    return struct.pack("i", len(data)) + data


def test_bytes_of_a_stranger_library() -> None:
    settings = SyncObjConf(autoTick=False, bindAddress="127.0.0.1:0", journalFile=LibraryMemoryJournal())
    library: Any = SyncObj("127.0.0.1:1", [], settings)
    try:
        address = library._SyncObj__transport._server._TcpServer__socket.getsockname()
        with closing(socket.create_connection(address)) as unknown:
            library.doTick(EVENT_S)  # takes the connection in
            unknown.sendall(library_frame())
            library.doTick(EVENT_S)
        assert ran == ["it ran"]
    finally:
        library._SyncObj__transport._server.unbind()
        for connection in list(library._SyncObj__transport._unknownConnections):
            connection.disconnect()


def read_frames(data: bytes) -> bytes | None:
    reader = frames.PeerFrameReader(words.WORD_BYTES_MAX)
    while data:
        space = reader.space()
        count = min(len(space), len(data))
        space[:count] = data[:count]
        reader.received(count)
        data = data[count:]
    return reader.next_body()


READERS: list[Callable[[bytes], object]] = [
    lambda data: words.check_preface(data[: words.PREFACE_BYTES]),
    read_frames,
    words.decode_word,
    bodies.unpack,
    decode,
    decode_configuration,
]


@pytest.mark.parametrize("data", [PROGRAM, library_frame()], ids=["bare", "in the library's frame"])
@pytest.mark.parametrize("read", READERS, ids=["preface", "frame", "word", "body", "message", "configuration"])
def test_bytes_of_a_stranger_ours(read: Callable[[bytes], object], data: bytes) -> None:
    """Whatever stands in the way of such bytes refuses them, and runs nothing."""
    with pytest.raises((PeerError, FrameError)):
        read(data)
    assert ran == []


def test_the_first_bytes_of_a_stranger_end_the_connection_ours() -> None:
    with pytest.raises(PeerError) as refused:
        words.check_preface(library_frame()[: words.PREFACE_BYTES])
    assert refused.value.reason == Reason.OTHER_PROTOCOL


def test_nothing_of_ours_can_unpickle() -> None:
    root = Path(holdfast.broker.__file__).parent
    imported = {
        name.split(".")[0]
        for file in root.rglob("*.py")
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        for name in _imported(node)
    }
    assert "struct" in imported
    assert imported.isdisjoint({"pickle", "cPickle", "_pickle", "marshal", "shelve", "dill", "cloudpickle"})


def _imported(node: ast.AST) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom):
        return [node.module or ""]
    return []


# --- the command of an entry ------------------------------------------------------------------------------------------


def a_command_is_a_program(player: Player) -> list[str]:
    """What runs when it is committed and applied."""
    player.hear("b", Append(1, *FIRST, (LogEntry(2, 1, EntryKind.REGULAR, PROGRAM),), 2, 1))
    try:
        player.tick()
    except KeyError:
        assert isinstance(player, Stock)  # it is no call of a method, but by now it has run
    assert player.commit_index == 2
    return ran


def test_a_command_is_a_program_library() -> None:
    assert a_command_is_a_program(Stock()) == ["it ran"]


def test_a_command_is_a_program_ours() -> None:
    player = Ours()
    assert a_command_is_a_program(player) == []
    assert player.engine.applied_index == 2
    sent = Append(1, *FIRST, (LogEntry(2, 1, EntryKind.REGULAR, PROGRAM),), 1, 1)
    assert decode(encode(sent)) == sent
    assert ran == [], "on its way it is only bytes as well"


# --- where it listens -------------------------------------------------------------------------------------------------


def test_where_it_listens_library() -> None:
    with mock.patch.object(TcpServer, "bind") as bound:
        settings = SyncObjConf(autoTick=False, journalFile=LibraryMemoryJournal())
        library: Any = SyncObj(TCPNode("127.0.0.1:7402"), [], settings)
    assert bound.call_count == 1
    assert library._SyncObj__transport._server._TcpServer__host == "0.0.0.0"


def test_where_it_listens_ours() -> None:
    assert BrokerConfig().host == "127.0.0.1"


# --- pickle protocol 2 ------------------------------------------------------------------------------------------------

COMMAND = bytes(range(256)) * 4


def bytes_of_an_entry_on_the_wire(dump: Callable[[], bytes]) -> float:
    """For each byte of its command, before anything compresses it."""
    return len(dump()) / len(COMMAND)


def test_bytes_of_an_entry_on_the_wire_library() -> None:
    rows = [(bytes([EntryKind.REGULAR]) + COMMAND, 2, 1)]
    message = {"type": "append_entries", "term": 1, "commit_index": 1, "entries": rows}
    assert bytes_of_an_entry_on_the_wire(lambda: bytes(library_pickle.dumps(message))) > 1.5


def test_bytes_of_an_entry_on_the_wire_ours() -> None:
    message = Append(1, *FIRST, (LogEntry(2, 1, EntryKind.REGULAR, COMMAND),), 1, 1)
    assert bytes_of_an_entry_on_the_wire(lambda: encode(message)) < 1.1
