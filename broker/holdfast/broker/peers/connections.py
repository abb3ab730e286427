"""One connection between two nodes, as asyncio drives it. No task runs per connection or per frame.

Connection        preface and first word, frames, the end
├── Incoming      another node dialled: its frames are for this node
└── Outgoing      this node dialled: bounded, coalesced writing

A connection does not decide who is welcome: it hands the first word to its owner and does what that says.
"""

import asyncio
import socket
import time
from abc import abstractmethod
from collections import deque
from collections.abc import Set
from typing import Final, Protocol, cast

from holdfast.broker.peers.frames import HEAD_BYTES, PeerFrameReader, frame
from holdfast.broker.peers.handshake import DIALLED, DIALLING, ClusterSecret
from holdfast.broker.peers.reasons import PeerError, Reason
from holdfast.broker.peers.records import OwnSide, PeerCounters, PeerLimits, Warnings
from holdfast.broker.peers.tls import certified_names
from holdfast.broker.peers.words import (
    PREFACE,
    PREFACE_BYTES,
    WORD,
    WORD_BYTES_MAX,
    EmptyAnswer,
    EmptyQuery,
    Hello,
    Proof,
    Refused,
    Word,
    check_preface,
    decode_word,
    encode_word,
)

# What asyncio holds behind the kernel's own buffer stays about this small (twice that with TLS, which has a buffer of
# its own); all else that waits is counted in `OutgoingConnection`.
_WRITE_BYTES: Final = 128 * 1024
_ANSWER_BYTES_MAX: Final = 64 * 1024

DIGEST_CHARS: Final = 8  # of a list's digest, enough to tell two lists apart

_KEEPALIVE_IDLE_S: Final = 5
_KEEPALIVE_EVERY_S: Final = 2
_KEEPALIVE_TRIES: Final = 3


def tune(sock: socket.socket, dead_seconds: float) -> None:
    """Small frames leave at once, and a peer that vanished without a word is noticed, with traffic or without."""
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in (
        ("TCP_KEEPIDLE", _KEEPALIVE_IDLE_S),
        ("TCP_KEEPINTVL", _KEEPALIVE_EVERY_S),
        ("TCP_KEEPCNT", _KEEPALIVE_TRIES),
        ("TCP_USER_TIMEOUT", int(dead_seconds * 1000)),
    ):
        if hasattr(socket, option):  # not every system has them all
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)


class Owner(Protocol):
    """Whom a connection belongs to: it says who is welcome, and hears what comes."""

    @property
    def limits(self) -> PeerLimits: ...

    @property
    def counters(self) -> PeerCounters: ...

    @property
    def warnings(self) -> Warnings: ...

    @property
    def own(self) -> OwnSide:
        """What this node says of itself."""
        ...

    @property
    def secret(self) -> ClusterSecret | None: ...

    def hello_for(self, receiver: str) -> Hello:
        """To a node of this name."""
        ...

    def check_hello(self, connection: "Connection", hello: Hello) -> Reason | None:
        """Whether a hello is worth a proof; it changes nothing."""
        ...

    def greet_incoming(self, connection: "IncomingConnection", hello: Hello) -> Reason | None:
        """It counts from now on; a reason refuses it."""
        ...

    def greet_outgoing(self, connection: "OutgoingConnection", hello: Hello) -> Reason | None:
        """The same."""
        ...

    def connection_ended(self, connection: "Connection") -> None: ...

    def frame_came(self, identity: str, body: bytes) -> None: ...

    def is_empty(self) -> bool:
        """Whether this node has nothing yet."""
        ...

    def empty_answered(self) -> None:
        """A peer has answered whether it is empty."""
        ...


class Connection(asyncio.BufferedProtocol):
    """What both directions have in common. Ended connections ignore every call."""

    DIRECTION: str
    OTHER_SIDE: bytes  # which of the two sides the other node is

    def __init__(self, owner: Owner) -> None:
        self._owner = owner
        self.hello: Hello | None = None  # the other side's, once it is welcome
        self.identity = ""
        self.host = ""
        self.settled = asyncio.Event()  # the hello is welcome, or the connection has ended
        self.lost = asyncio.Event()  # the socket is closed
        self.has_ended = False  # nothing is taken or handed on any more
        self.was_judged = False  # one side said why it ended, and that was counted
        self.error: Exception | None = None  # what ended it otherwise, if anything is known
        self.finding = ""  # what its owner has to say along with a refusal
        self._heard_s = time.monotonic()
        self._own = owner.own
        self._secret = owner.secret
        self._own_hello: Hello | None = None  # once it was said
        self._unproven: Hello | None = None  # the other side's, while its proof is missing
        self._limits = owner.limits
        self._counters = owner.counters
        self._warnings = owner.warnings
        self._reader = PeerFrameReader(WORD_BYTES_MAX)
        self._has_preface = False
        self._has_spoken = False
        self._is_held = False
        self._patience: asyncio.TimerHandle | None = None  # with a frame that has begun
        self._transport: asyncio.Transport | None = None

    @property
    def transport(self) -> asyncio.Transport:
        assert self._transport is not None, "not connected yet"
        return self._transport

    def was_heard_lately(self) -> bool:
        """Whether anything came within `dead_seconds`; of a connection that is held nobody can tell."""
        return self._is_held or time.monotonic() - self._heard_s < self._limits.dead_seconds

    @property
    def certified(self) -> Set[str] | None:
        """The names in the other side's certificate; None without TLS."""
        if self.transport.get_extra_info("ssl_object") is None:
            return None
        return certified_names(self.transport.get_extra_info("peercert") or {})

    # --- what asyncio calls -----------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        address = transport.get_extra_info("peername")
        self.host = str(address[0]) if address else "?"

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._reader.space()

    def buffer_updated(self, nbytes: int) -> None:
        if not self.has_ended:  # TLS goes on reading while it closes
            self._heard_s = time.monotonic()
            self._reader.received(nbytes)
            self._read()
            if self._patience is None and self._reader.has_rest:
                self._wait_for_rest(self._limits.dead_seconds)

    def eof_received(self) -> bool:
        return False  # the transport closes itself

    def connection_lost(self, exc: Exception | None) -> None:
        if not (self.has_ended or self._is_held) and self._reader.has_rest:
            self._count(Reason.FRAME_TRUNCATED)
        self.error = exc
        self._end()
        self.lost.set()

    # --- reading ----------------------------------------------------------------------------------------------

    def _read(self) -> None:
        if self.has_ended:
            return
        try:
            if not self._has_preface:
                preface = self._reader.take(PREFACE_BYTES)
                if preface is None:
                    return
                check_preface(preface)
                self._has_preface = True
            self._read_bodies()
        except PeerError as error:
            self.fail(error.reason, str(error))

    def _wait_for_rest(self, seconds: float) -> None:
        if not self.has_ended:
            self._patience = asyncio.get_running_loop().call_later(seconds, self._check_rest)

    def _check_rest(self) -> None:
        """Whoever begins a frame goes on with it. The time before the hello has a limit of its own."""
        self._patience = None
        if not self._reader.has_rest:
            return
        silent_s = time.monotonic() - self._heard_s
        if self._is_held or self.hello is None:
            self._wait_for_rest(self._limits.dead_seconds)
        elif silent_s < self._limits.dead_seconds:
            self._wait_for_rest(self._limits.dead_seconds - silent_s)
        else:
            self.fail(Reason.FRAME_UNFINISHED, f"nothing for {silent_s:.1f} s")

    def _read_bodies(self) -> None:
        while not self.has_ended and (body := self._reader.next_body()) is not None:
            self._take(body)

    def _take(self, body: bytes) -> None:
        word = decode_word(body)
        match word:
            case Refused(reason):
                self.was_judged = True
                self._counters.refused_by_peers[reason] += 1
                self._warn("another node refuses a connection", reason, found=self._found_of(reason))
                self.close()
            case Hello() if self.hello is None and self._unproven is None:
                self._take_hello(word)
            case Proof(proof) if self._unproven is not None:
                self._take_proof(self._unproven, proof)
            case _ if self.hello is None:
                raise PeerError(Reason.FRAME_UNEXPECTED, "another word before the hello")
            case _:
                self._take_word(word)

    def _take_hello(self, hello: Hello) -> None:
        if self._secret is None:
            self._accept(hello)
            return
        reason = self._owner.check_hello(self, hello)
        if reason is not None:
            self._refuse_hello(hello, reason)
            return
        self._unproven = hello
        self._ask_for_proof(hello, self._secret)

    def _take_proof(self, hello: Hello, proof: bytes) -> None:
        assert self._secret is not None
        self._unproven = None
        if self._secret.is_proof(proof, self.OTHER_SIDE, *self._hellos(hello)):
            self._accept(hello)
        else:
            self.refuse(Reason.SECRET_WRONG, node=hello.name)

    @abstractmethod
    def _hellos(self, other: Hello) -> tuple[Hello, Hello]:
        """Of the node that dialled, and of the one that was dialled."""

    @abstractmethod
    def _ask_for_proof(self, hello: Hello, secret: ClusterSecret) -> None:
        """The other side's hello is in order; now it is to prove that it knows the secret."""

    def _refuse_hello(self, hello: Hello, reason: Reason) -> None:
        found = self.finding
        if reason is Reason.OTHER_NODE_LIST:
            found = f"{self._found_of(reason)}; the other's: digest {hello.digest.hex()[:DIGEST_CHARS]}"
        self.refuse(reason, node=hello.name, found=found)

    def _accept(self, hello: Hello) -> None:
        reason = self._greet(hello)
        if reason is not None:
            self._refuse_hello(hello, reason)
            return
        self.hello = hello
        self.identity = hello.identity
        self._counters.connections_made += 1
        self._welcome(hello)
        self.settled.set()

    def _found_of(self, reason: Reason) -> str:
        """What this node can say about itself when somebody refuses it."""
        if reason is Reason.OTHER_NODE_LIST:
            return f"this node's list: {self._own.node_list}"
        if reason is Reason.TWO_OF_ONE_NAME:
            return f"two nodes call themselves {self._own.name}: this one and another"
        return ""

    @abstractmethod
    def _greet(self, hello: Hello) -> Reason | None:
        """Asks the owner; a reason refuses the connection."""

    @abstractmethod
    def _welcome(self, hello: Hello) -> None:
        """The owner has accepted this hello."""

    def _take_word(self, word: Word) -> None:
        raise PeerError(Reason.FRAME_UNEXPECTED, "a word that does not belong here")

    # --- saying and ending ------------------------------------------------------------------------------------

    def say(self, word: Word) -> None:
        """Words go where frames go, each whole."""
        if not self.has_ended:
            self.transport.write(frame(encode_word(word)))

    def say_hello(self, hello: Hello) -> None:
        self._own_hello = hello
        self._say_preface()
        self.say(hello)

    def _say_preface(self) -> None:
        """Before the first word, whatever it is."""
        if not self._has_spoken:
            self._has_spoken = True
            self.transport.write(PREFACE)

    def refuse(self, reason: Reason, **facts: str) -> None:
        """Tells the other side why, and closes."""
        if self.has_ended:
            return
        self._count(reason)
        self._warn("connection refused" if self.hello is None else "connection closed", reason, **facts)
        self._say_preface()
        self.say(Refused(reason))
        self.close()

    def fail(self, reason: Reason, detail: str = "") -> None:
        """What came cannot be a node of ours, or not one in order: drop it without another word."""
        if self.has_ended:
            return
        self._count(reason)
        self._warn("connection dropped", reason, found=detail)
        if reason is Reason.OTHER_VERSION:
            self._say_preface()  # so that the other side can say the same
            self.close()
        else:
            self.abort()

    def close(self) -> None:
        """What was written still leaves; nothing is read any more."""
        if self._end():
            self.transport.close()

    def abort(self) -> None:
        self._end()
        if self._transport is not None:
            self._transport.abort()

    def _end(self) -> bool:
        """True the first time."""
        if self.has_ended:
            return False
        self.has_ended = True
        if self._patience is not None:
            self._patience.cancel()
        self.settled.set()
        self._owner.connection_ended(self)
        return True

    def _count(self, reason: Reason) -> None:
        self.was_judged = True
        (self._counters.refused if self.hello is None else self._counters.broken)[reason] += 1

    def _warn(self, event: str, reason: Reason, **facts: str) -> None:
        if self.hello is not None:
            facts["node"] = self.hello.name
        self._warnings.closed(event, reason, direction=self.DIRECTION, host=self.host, **facts)


class IncomingConnection(Connection):
    """Frames of one peer, handed on as they come; reading can be held when there is enough to do."""

    DIRECTION = "incoming"
    OTHER_SIDE = DIALLING

    def _greet(self, hello: Hello) -> Reason | None:
        return self._owner.greet_incoming(self, hello)

    def _hellos(self, other: Hello) -> tuple[Hello, Hello]:
        assert self._own_hello is not None
        return other, self._own_hello

    def _ask_for_proof(self, hello: Hello, secret: ClusterSecret) -> None:
        self.say_hello(self._owner.hello_for(hello.name))

    def _welcome(self, hello: Hello) -> None:
        if self._secret is None:
            self.say_hello(self._owner.hello_for(hello.name))
        else:
            self.say(Proof(self._secret.proof(DIALLED, *self._hellos(hello))))
        self._reader.widen(self._limits.body_bytes_max)

    def _read_bodies(self) -> None:
        counters, reader = self._counters, self._reader
        while not (self.has_ended or self._is_held) and (body := reader.next_body()) is not None:
            if body[0] == WORD or self.hello is None:
                self._take(body)
                continue
            counters.frames_received += 1
            counters.bytes_received += HEAD_BYTES + len(body)
            self._owner.frame_came(self.identity, body)

    def _take_word(self, word: Word) -> None:
        if not isinstance(word, EmptyQuery):
            raise PeerError(Reason.FRAME_UNEXPECTED, "a word that does not belong here")
        if self.transport.get_write_buffer_size() > _ANSWER_BYTES_MAX:
            raise PeerError(Reason.ANSWERS_UNREAD, "questions without an end")
        self.say(EmptyAnswer(word.number, self._owner.is_empty()))

    def hold(self) -> None:
        """No more frames from here, not even those that have come already, until `let_go`."""
        if not (self._is_held or self.has_ended):
            self._is_held = True
            self.transport.pause_reading()

    def let_go(self) -> None:
        """May hand frames on before it returns, and may be held again by them."""
        if not self._is_held or self.has_ended:
            return
        self._is_held = False
        self._heard_s = time.monotonic()  # until now nobody listened
        self._read()
        if not (self._is_held or self.has_ended):
            self.transport.resume_reading()


class OutgoingConnection(Connection):
    """What this node has to say to one peer.

    The first frame of a turn of the event loop leaves at once; more of the same turn are joined and leave at its end,
    or when the kernel takes more. asyncio never holds more than about `_WRITE_BYTES`; what waits here is counted, and
    a frame that would exceed the limit is not taken.
    """

    DIRECTION = "outgoing"
    OTHER_SIDE = DIALLED

    def __init__(self, owner: Owner, dialled: str, address: tuple[str, int]) -> None:
        super().__init__(owner)
        self.dialled = dialled
        self.address = address
        self.empty = False  # as the peer last said
        self.empty_number = 0  # of the last question that it answered
        self._loop = asyncio.get_running_loop()
        self._waiting: deque[bytes | memoryview] = deque()
        self._waiting_bytes = 0
        self._is_paused = False
        self._turn_is_open = False  # something left in this turn of the loop already

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self.transport.set_write_buffer_limits(high=_WRITE_BYTES // 2)
        self.say_hello(self._owner.hello_for(self.dialled))  # before anything is read: the other side may speak first

    def _greet(self, hello: Hello) -> Reason | None:
        return self._owner.greet_outgoing(self, hello)

    def _hellos(self, other: Hello) -> tuple[Hello, Hello]:
        assert self._own_hello is not None
        return self._own_hello, other

    def _ask_for_proof(self, hello: Hello, secret: ClusterSecret) -> None:
        self.say(Proof(secret.proof(DIALLING, *self._hellos(hello))))

    def _welcome(self, hello: Hello) -> None:
        self.empty = hello.empty

    def _take_word(self, word: Word) -> None:
        if not isinstance(word, EmptyAnswer):
            raise PeerError(Reason.FRAME_UNEXPECTED, "a word that does not belong here")
        self.empty, self.empty_number = word.empty, word.number
        self._owner.empty_answered()

    def _warn(self, event: str, reason: Reason, **facts: str) -> None:
        super()._warn(event, reason, **({"node": self.dialled} | facts))

    # --- writing ----------------------------------------------------------------------------------------------

    @property
    def waiting_bytes(self) -> int:
        """What was taken and has not reached the kernel."""
        return self._waiting_bytes + self.transport.get_write_buffer_size()

    @property
    def is_closing(self) -> bool:
        return self.has_ended or self.transport.is_closing()

    def send(self, framed: bytes) -> bool:
        """Takes a frame, or returns False when too much is waiting. Few frames are larger than half of the limit, but
        each must find room once the others have left, so it counts as half."""
        limit, size = self._limits.outgoing_bytes_max, len(framed)
        if self.waiting_bytes + min(size, limit // 2) > limit:
            return False
        self._put(framed)
        counters = self._counters
        counters.frames_sent += 1
        counters.bytes_sent += size
        return True

    def say(self, word: Word) -> None:
        """Few and small: not counted among the frames, and never dropped."""
        if not self.has_ended:
            self._put(frame(encode_word(word)))

    def _put(self, framed: bytes) -> None:
        if self._turn_is_open or self._is_paused or len(framed) > _WRITE_BYTES:
            self._waiting.append(framed)
            self._waiting_bytes += len(framed)
            if not (self._turn_is_open or self._is_paused):
                self._flush()
        else:
            self.transport.write(framed)
        if not self._turn_is_open:
            self._turn_is_open = True
            self._loop.call_soon(self._end_turn)

    def _end_turn(self) -> None:
        self._turn_is_open = False
        self._flush()

    def pause_writing(self) -> None:
        self._is_paused = True

    def resume_writing(self) -> None:
        self._is_paused = False
        self._flush()

    def _flush(self) -> None:
        """Writes what waits, piece by piece, until the transport has enough."""
        while self._waiting and not (self._is_paused or self.transport.is_closing()):
            piece = self._next_piece()
            self._waiting_bytes -= len(piece)
            self.transport.write(piece)

    def _next_piece(self) -> bytes | memoryview:
        """Up to `_WRITE_BYTES` from the front: many small parts joined, or a piece of a large one."""
        waiting = self._waiting
        parts: list[bytes | memoryview] = []
        room = _WRITE_BYTES
        while waiting and room:
            part = waiting.popleft()
            if len(part) > room:
                view = memoryview(part)
                waiting.appendleft(view[room:])
                part = view[:room]
            parts.append(part)
            room -= len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def close(self) -> None:
        """At an orderly end what the transport can take now still leaves."""
        if not self.has_ended:
            self._flush()
        super().close()
