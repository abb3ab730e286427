"""What the library does with bytes from the network (see the table in test_stock.py), and what ours does.

The program that is sent here only notes that it ran.
"""

import ast
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
from pysyncobj import SyncObj, SyncObjConf
from pysyncobj.journal import MemoryJournal
from pysyncobj.node import TCPNode
from pysyncobj.tcp_server import TcpServer

import holdfast.broker
from holdfast.broker.config import BrokerConfig
from holdfast.broker.peers import bodies, frames, words
from holdfast.broker.peers.reasons import PeerError, Reason
from holdfast.raft.codec import FrameError, decode, decode_configuration, encode
from holdfast.raft.messages import Append, Entry, Kind
from tests.unit.raft.test_stock_stage import FIRST, Ours, Player, Stock

EVENT_S = 5.0  # for something that has happened already

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


# --- bytes of anyone who connects -------------------------------------------------------------------------------------


def library_frame() -> bytes:
    data = zlib.compress(PROGRAM)
    return struct.pack("i", len(data)) + data


def test_bytes_of_a_stranger_stock() -> None:
    settings = SyncObjConf(autoTick=False, bindAddress="127.0.0.1:0", journalFile=MemoryJournal())
    library: Any = SyncObj("127.0.0.1:1", [], settings)
    try:
        address = library._SyncObj__transport._server._TcpServer__socket.getsockname()
        with closing(socket.create_connection(address)) as stranger:
            library.doTick(EVENT_S)  # takes the connection in
            stranger.sendall(library_frame())
            library.doTick(EVENT_S)
        assert ran == ["it ran"]
    finally:
        library._SyncObj__transport._server.unbind()
        for connection in list(library._SyncObj__transport._unknownConnections):
            connection.disconnect()


def read_frames(data: bytes) -> bytes | None:
    reader = frames.FrameReader(words.WORD_BYTES_MAX)
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
    player.hear_append("b", 1, FIRST, [(bytes([Kind.REGULAR]) + PROGRAM, 2, 1)], 2)
    try:
        player.tick()
    except KeyError:
        assert isinstance(player, Stock)  # it is no call of a method, but by now it has run
    assert player.commit_index == 2
    return ran


def test_a_command_is_a_program_stock() -> None:
    assert a_command_is_a_program(Stock()) == ["it ran"]


def test_a_command_is_a_program_ours() -> None:
    player = Ours()
    assert a_command_is_a_program(player) == []
    assert player.engine.applied_index == 2
    sent = Append(1, *FIRST, (Entry(2, 1, Kind.REGULAR, PROGRAM),), 1, 1)
    assert decode(encode(sent)) == sent
    assert ran == [], "on its way it is only bytes as well"


# --- where it listens -------------------------------------------------------------------------------------------------


def test_where_it_listens_stock() -> None:
    with mock.patch.object(TcpServer, "bind") as bound:
        library: Any = SyncObj(TCPNode("127.0.0.1:7402"), [], SyncObjConf(autoTick=False, journalFile=MemoryJournal()))
    assert bound.call_count == 1
    assert library._SyncObj__transport._server._TcpServer__host == "0.0.0.0"


def test_where_it_listens_ours() -> None:
    assert BrokerConfig().host == "127.0.0.1"


# --- pickle protocol 2 ------------------------------------------------------------------------------------------------

COMMAND = bytes(range(256)) * 4


def bytes_of_an_entry_on_the_wire(dump: Callable[[], bytes]) -> float:
    """For each byte of its command, before anything compresses it."""
    return len(dump()) / len(COMMAND)


def test_bytes_of_an_entry_on_the_wire_stock() -> None:
    rows = [(bytes([Kind.REGULAR]) + COMMAND, 2, 1)]
    message = {"type": "append_entries", "term": 1, "commit_index": 1, "entries": rows}
    assert bytes_of_an_entry_on_the_wire(lambda: bytes(library_pickle.dumps(message))) > 1.5


def test_bytes_of_an_entry_on_the_wire_ours() -> None:
    message = Append(1, *FIRST, (Entry(2, 1, Kind.REGULAR, COMMAND),), 1, 1)
    assert bytes_of_an_entry_on_the_wire(lambda: encode(message)) < 1.1
