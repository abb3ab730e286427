"""Nodes that only have a transport, on loopback, and an unknown sender who can say anything to them.

Run as a program it is one such node in a process of its own: see `main`.
"""

import asyncio
import socket
import sys
from collections.abc import Callable, Mapping
from typing import Any, Self

from holdfast.broker.peers import PeerLimits, Peers, identity_of
from holdfast.broker.peers.frames import HEAD_BYTES, frame_head
from holdfast.broker.peers.words import PREFACE, PREFACE_BYTES, Hello, Word, decode_word, encode_word

DEADLINE_S = 30.0  # generous, because the machine may be busy; nothing waits that long unless it is broken
POLL_EVERY_S = 0.005
HOST = "127.0.0.1"
CLUSTER = "test"
DIGEST = b"the list"
NAMES = ("n1", "n2", "n3")


async def until(poll: Callable[[], object], what: str) -> None:
    """Returns once `poll` returns something true."""
    loop = asyncio.get_running_loop()
    give_up_s = loop.time() + DEADLINE_S
    while not poll():
        if loop.time() > give_up_s:
            raise AssertionError(f"Expected {what} within {DEADLINE_S:g} s, but it did not happen.")
        await asyncio.sleep(POLL_EVERY_S)


def node_id(number: int) -> str:
    return f"{number:032x}"


def body(text: str | int) -> bytes:
    """A frame's body that is easy to read in a failure."""
    return b"\x01" + str(text).encode()


class Ports:
    """A port for each name, kept for this test until `close`: a socket that is bound and does not listen shares its
    port with the node that will."""

    def __init__(self, names: tuple[str, ...] = NAMES) -> None:
        self._sockets = {name: socket.socket() for name in names}
        for sock in self._sockets.values():
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            sock.bind((HOST, 0))
        self.of = {name: int(sock.getsockname()[1]) for name, sock in self._sockets.items()}

    def close(self) -> None:
        for sock in self._sockets.values():
            sock.close()


def pair(ports: Mapping[str, int]) -> Mapping[str, int]:
    """For two nodes."""
    return {name: ports[name] for name in ("n1", "n2")}


class PeerNode:
    """A transport, everything that it handed on, and whether it says that it is empty."""

    def __init__(self, name: str, ports: Mapping[str, int], *, number: int = 0, **settings: Any) -> None:
        self.name = name
        self.port = ports[name]
        self.frames: list[tuple[str, bytes]] = []
        self.changes = 0
        self.is_empty = True
        self.on_frame: Callable[[], None] = lambda: None
        own_id = node_id(number or 1 + NAMES.index(name))
        self.identity = identity_of(name, own_id)
        given: dict[str, Any] = {
            "name": name,
            "node_id": own_id,
            "cluster": CLUSTER,
            "digest": DIGEST,
            "addresses": {other: (HOST, port) for other, port in ports.items() if other != name},
            "limits": PeerLimits(lasting_seconds=0.2),
        }
        self.peers = Peers(listener=self, **(given | settings))

    def frame_came(self, identity: str, frame: bytes) -> None:
        self.frames.append((identity, frame))
        self.on_frame()

    def peers_changed(self) -> None:
        self.changes += 1

    async def __aenter__(self) -> Self:
        assert await self.peers.start(HOST, self.port) == self.port
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.peers.stop()

    @property
    def bodies(self) -> list[bytes]:
        return [frame for _, frame in self.frames]

    def hears(self, other: "PeerNode") -> bool:
        """Whether what the other sends would come here."""
        info = other.peers.connected().get(self.name)
        return info is not None and info.identity == self.identity

    async def expect(self, frame: bytes) -> None:
        await until(lambda: frame in self.bodies, f"{frame!r} at {self.name}")


async def meet(*nodes: PeerNode) -> None:
    """Returns once each of them hears each other."""
    pairs = [(one, other) for one in nodes for other in nodes if one is not other]
    await until(lambda: all(one.hears(other) for one, other in pairs), "the nodes to be connected")


class UnknownPeer:
    """Somebody on the network who says what a test wants."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    @classmethod
    async def dial(cls, port: int, *, receive_bytes: int | None = None) -> Self:
        """`receive_bytes` is about what its system takes for it while it does not read."""
        sock = socket.socket()
        if receive_bytes is not None:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
        sock.setblocking(False)
        await asyncio.get_running_loop().sock_connect(sock, (HOST, port))
        return cls(*await asyncio.open_connection(sock=sock))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.leave()

    async def leave(self) -> None:
        self.writer.close()
        try:
            await self.writer.wait_closed()
        except OSError:
            pass  # the other side was quicker

    def write(self, data: bytes) -> None:
        self.writer.write(data)

    def frame(self, content: bytes) -> None:
        self.write(frame_head(content) + content)

    def say(self, word: Word) -> None:
        self.frame(encode_word(word))

    def say_hello(self, hello: Hello) -> None:
        self.write(PREFACE)
        self.say(hello)

    async def hear(self, *, preface: bool = False) -> Word:
        """The next word; the first one of a connection has the preface before it."""
        async with asyncio.timeout(DEADLINE_S):
            if preface:
                assert await self.reader.readexactly(PREFACE_BYTES) == PREFACE
            head = await self.reader.readexactly(HEAD_BYTES)
            return decode_word(await self.reader.readexactly(int.from_bytes(head[:4], "big")))

    async def hear_end(self) -> bytes:
        """What still comes, once the other side has closed."""
        async with asyncio.timeout(DEADLINE_S):
            try:
                return await self.reader.read()
            except ConnectionError:
                return b""


class Listener:
    """An unknown sender where a node was expected: takes connections in and hands them to the test."""

    def __init__(self) -> None:
        self._arrived: asyncio.Queue[UnknownPeer] = asyncio.Queue()
        self._server: asyncio.Server | None = None
        self._taken: list[UnknownPeer] = []

    @classmethod
    async def at(cls, port: int) -> Self:
        self = cls()
        self._server = await asyncio.start_server(self._take, HOST, port)
        return self

    def _take(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._taken.append(UnknownPeer(reader, writer))
        self._arrived.put_nowait(self._taken[-1])

    async def next(self) -> UnknownPeer:
        async with asyncio.timeout(DEADLINE_S):
            return await self._arrived.get()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        for unknown_peer in self._taken:
            await unknown_peer.leave()
        await self._server.wait_closed()


def hello_of(name: str, receiver: str, *, number: int = 0, cluster: str = CLUSTER, digest: bytes = DIGEST) -> Hello:
    return Hello(cluster, digest, name, node_id(number or 99), receiver, empty=True)


async def main() -> None:
    """One node that sends every frame back: arguments are its name, its number, and name=port of each node."""
    name, number, *pairs = sys.argv[1:]
    ports = {key: int(port) for key, _, port in (pair.partition("=") for pair in pairs)}
    node = PeerNode(name, ports, number=int(number))

    def send_back() -> None:
        node.peers.send(*node.frames.pop())

    node.on_frame = send_back
    async with node:
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main())
