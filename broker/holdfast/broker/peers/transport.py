"""The connections of one node to the others: one port, one connection per direction and pair of nodes.

Node A dials B for what A has to say to B. Both say hello on that connection; it counts only if each is welcome to
the other. A frame goes to an *identity*, never to a name: what was meant for a replica whose disk is lost must not
reach the one that came in its place. Frames may be lost with a connection or dropped when a peer does not read, never
changed, and those of one connection arrive in order.

**Empty.** A founder may found only if every other node is empty *now*. A hello tells how it was then, so
`all_empty` asks again: a numbered question on each outgoing connection, answered on the same connection from the
peer's present state. It is true only if every other node answered this very question with yes.

**Addresses** may change at run time. Two nodes learn of a third at different moments, so a node that is new may be
refused by those who have not heard of it yet; it dials again.
"""

import asyncio
import ssl
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from holdfast.broker.peers.connections import DIGEST_CHARS, Connection, IncomingConnection, OutgoingConnection
from holdfast.broker.peers.dialling import Dialler
from holdfast.broker.peers.frames import frame
from holdfast.broker.peers.handshake import ClusterSecret, new_nonce
from holdfast.broker.peers.identities import identity_of, is_name
from holdfast.broker.peers.listening import Acceptor
from holdfast.broker.peers.reasons import Reason
from holdfast.broker.peers.records import OwnSide, PeerCounters, PeerLimits, Warnings
from holdfast.broker.peers.tls import PeerContexts, PeerTls
from holdfast.broker.peers.words import WORD, EmptyQuery, Expectation, Hello, objection
from holdfast.common.service import Service
from holdfast.serving import reloading
from holdfast.serving.logs import get_logger
from holdfast.serving.reloading import Reloaded

_LAST_WORDS_S: Final = 1.0  # for what was sent just before `stop`
_NUMBERS: Final = 2**32

_log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class PeerInfo:
    identity: str
    empty: bool  # as it last said: in its hello, or when `all_empty` asked


class PeerListener(Protocol):
    """The node, as its connections see it."""

    @property
    def is_empty(self) -> bool:
        """Whether it has nothing yet: no log, no vote, no promise."""
        ...

    def frame_came(self, identity: str, body: bytes) -> None:
        """In the middle of reading: the frame should only be put somewhere."""
        ...

    def peers_changed(self) -> None:
        """Somebody came or went, or has something now."""
        ...


class Peers:
    """`start`, then `send`; the listener hears of frames of others, and of changes of `connected`.

    Everything belongs to the event loop that `start` ran on; the listener is called there. It is the owner of all
    connections, and of those who make them.
    """

    def __init__(
        self,
        *,
        name: str,
        node_id: str,
        cluster: str,
        digest: bytes,
        addresses: Mapping[str, tuple[str, int]],
        listener: PeerListener,
        tls: PeerTls | None = None,
        secret: ClusterSecret | None = None,
        limits: PeerLimits | None = None,
    ) -> None:
        self.identity = identity_of(name, node_id)
        if not is_name(cluster):
            raise ValueError(f"Expected a name, but got {cluster!r}.")
        self.counters = PeerCounters()
        self._name = name
        self._node_id = node_id
        self.secret = secret
        self._note_addresses(addresses, cluster, digest)
        self._listener = listener
        self._tls = tls
        self.limits = limits or PeerLimits()
        self.warnings = Warnings(_log)
        self._acceptor: Acceptor | None = None
        self._is_running = False
        self._background = Service()
        self.certificates: Reloaded[PeerContexts] | None = None
        self._diallers: dict[str, Dialler] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._incoming: dict[str, IncomingConnection] = {}  # by name: one of each node
        self._outgoing: dict[str, OutgoingConnection] = {}  # by identity, one of each name
        self._closing: list[Connection] = []  # ended, but their sockets may be open still
        self._is_paused = False
        self._change_planned = False
        self._questions = 0
        self._answered = asyncio.Event()

    # --- life -------------------------------------------------------------------------------------------------

    async def start(self, host: str, port: int) -> int:
        """Listens and begins to dial; returns the port. Raises OSError or `PeerTlsError`; then nothing is running."""
        self.certificates = await asyncio.to_thread(self._tls.reloaded) if self._tls else None
        acceptor = Acceptor(self, self._background)
        port = await acceptor.start(host, port)
        self._acceptor = acceptor
        self._is_running = True
        if self.certificates is not None:
            self._background.spawn(_keep_current(self.certificates), "peers certificates")
        for name in self._addresses:
            self._begin_to_dial(name)
        return port

    def failed(self) -> BaseException | None:
        """The error that ended a part of it, if one did: a bug that must stop the node."""
        return self._background.failed()

    async def stop(self) -> None:
        """Ends all connections. What was sent just before still leaves if the peers read it quickly."""
        self._is_running = False
        for name in list(self._diallers):
            self._cease_to_dial(name)
        await self._background.stop()
        if self._acceptor is not None:
            await self._acceptor.stop()
            self._acceptor = None
        ending: list[Connection] = [*self._outgoing.values(), *self._incoming.values(), *self._closing]
        for connection in ending:
            if isinstance(connection, OutgoingConnection):
                connection.close()
            else:
                connection.abort()
        try:
            async with asyncio.timeout(_LAST_WORDS_S):
                for connection in ending:
                    await connection.lost.wait()
        except TimeoutError:
            for connection in ending:
                connection.abort()
                await connection.lost.wait()

    # --- addresses --------------------------------------------------------------------------------------------

    def set_addresses(self, addresses: Mapping[str, tuple[str, int]]) -> None:
        """These are the other nodes from now on, before `start` or while it runs.

        Who is new is dialled, whose address changed is dialled there, and who is gone is not welcome any more: its
        connections end.
        """
        before = self._addresses
        self._note_addresses(addresses, self._expected.cluster, self._expected.digest)
        if not self._is_running:
            return
        for name in sorted(before.keys() | self._addresses.keys()):
            if before.get(name) != self._addresses.get(name):
                self._follow_address(name)

    def set_digest(self, digest: bytes) -> None:
        """What the others must say of their list from now on; connections that count stay."""
        self._note_addresses(self._addresses, self._expected.cluster, digest)

    def _note_addresses(self, addresses: Mapping[str, tuple[str, int]], cluster: str, digest: bytes) -> None:
        """Raises ValueError and changes nothing if they cannot be right."""
        for name in addresses:
            if not is_name(name):
                raise ValueError(f"Expected a name, but got {name!r}.")
        if self._name in addresses:
            raise ValueError(f"Expected the addresses of the other nodes, but {self._name} itself is among them.")
        self._addresses = dict(addresses)
        self._expected = Expectation(
            cluster, digest, self._name, frozenset(addresses), has_secret=self.secret is not None
        )
        self.own = OwnSide(self._name, f"{len(addresses) + 1} nodes, digest {digest.hex()[:DIGEST_CHARS]}")

    def _follow_address(self, name: str) -> None:
        self._cease_to_dial(name)
        for connection in [outgoing for outgoing in self._outgoing.values() if outgoing.dialled == name]:
            connection.close()
        if name in self._addresses:
            self._begin_to_dial(name)
            return
        incoming = self._incoming.get(name)
        if incoming is not None:
            incoming.refuse(Reason.UNKNOWN_NODE)

    def _begin_to_dial(self, name: str) -> None:
        dialler = Dialler(name, self._addresses[name], self)
        self._diallers[name] = dialler
        self._tasks[name] = self._background.spawn(dialler.run(), f"peers dial {name}")

    def _cease_to_dial(self, name: str) -> None:
        task = self._tasks.pop(name, None)
        self._diallers.pop(name, None)
        if task is not None:
            task.cancel()

    # --- what the node uses -----------------------------------------------------------------------------------

    def send(self, identity: str, body: bytes) -> bool:
        """Takes a frame for exactly this identity; False if it was dropped, which is counted and never waits."""
        return self.send_each((identity,), body) > 0

    def send_each(self, identities: Sequence[str], body: bytes) -> int:
        """The same for several, who share the bytes of one frame; returns for how many it was taken."""
        if not body or body[0] == WORD or len(body) > self.limits.body_bytes_max:
            raise ValueError(f"Expected a body of 1 to {self.limits.body_bytes_max} bytes, but it has {len(body)}.")
        framed = frame(body)
        taken = 0
        for identity in identities:
            connection = self._outgoing.get(identity)
            if connection is None or connection.is_closing:
                self.counters.frames_dropped_unconnected += 1
            elif connection.send(framed):
                taken += 1
            else:
                self.counters.frames_dropped_full += 1
        return taken

    def connected(self) -> dict[str, PeerInfo]:
        """The nodes that hear this one, by name."""
        return {outgoing.dialled: PeerInfo(outgoing.identity, outgoing.empty) for outgoing in self._outgoing.values()}

    def identity_named(self, name: str) -> str | None:
        """Of the node of this name, if it hears this one."""
        return next((outgoing.identity for outgoing in self._outgoing.values() if outgoing.dialled == name), None)

    async def all_empty(self, timeout_s: float = 1.0) -> bool:
        """Whether every other node is connected and says now, not in some earlier hello, that it is empty."""
        self._questions = (self._questions + 1) % _NUMBERS
        number = self._questions
        asked = list(self._outgoing.values())
        if {outgoing.dialled for outgoing in asked} != self._addresses.keys():
            return False
        for connection in asked:
            connection.say(EmptyQuery(number))
        try:
            async with asyncio.timeout(timeout_s):
                while not all(outgoing.empty_number == number or outgoing.has_ended for outgoing in asked):
                    self._answered.clear()
                    await self._answered.wait()
        except TimeoutError:
            return False
        return all(outgoing.empty and not outgoing.has_ended for outgoing in asked)

    def waiting_bytes(self, identity: str) -> int:
        """What was taken for this peer and has not left yet; 0 when it is not connected."""
        connection = self._outgoing.get(identity)
        return connection.waiting_bytes if connection is not None else 0

    def pause_reading(self) -> None:
        """There is enough to do: no frame comes until `resume_reading`. The listener may call it.

        Peers keep what they have for this node up to their limit, then drop. They end a connection that takes nothing
        for `dead_seconds`, and dial again.
        """
        self._is_paused = True
        for connection in self._incoming.values():
            connection.hold()

    def resume_reading(self) -> None:
        """Frames that have come already may be handed on before this returns."""
        self._is_paused = False
        for connection in list(self._incoming.values()):
            if not self._is_paused:  # again, by one of those frames
                connection.let_go()

    def drop(self, identity: str, detail: str) -> None:
        """What this peer sent is not to be trusted, though its frames are whole. It may dial again."""
        for connection in list(self._incoming.values()):
            if connection.identity == identity:
                connection.fail(Reason.BODY_BROKEN, detail)

    @property
    def half_open(self) -> int:
        """Connections that came in and have not said hello."""
        return self._acceptor.half_open if self._acceptor is not None else 0

    # --- what connections use ---------------------------------------------------------------------------------

    def accepting_context(self) -> ssl.SSLContext | None:
        return self.certificates.current.accepting if self.certificates else None

    def dialling_context(self) -> ssl.SSLContext | None:
        return self.certificates.current.dialling if self.certificates else None

    def is_empty(self) -> bool:
        return self._listener.is_empty

    def frame_came(self, identity: str, body: bytes) -> None:
        self._listener.frame_came(identity, body)

    def hello_for(self, receiver: str) -> Hello:
        expected = self._expected
        nonce = b"" if self.secret is None else new_nonce()
        return Hello(expected.cluster, expected.digest, self._name, self._node_id, receiver, self.is_empty(), nonce)

    def check_hello(self, connection: Connection, hello: Hello) -> Reason | None:
        dialled = connection.dialled if isinstance(connection, OutgoingConnection) else None
        return objection(hello, self._expected, dialled, connection.certified)

    def greet_incoming(self, connection: IncomingConnection, hello: Hello) -> Reason | None:
        reason = self.check_hello(connection, hello) or self._two_of_one_name(connection, hello)
        if reason is not None:
            return reason
        older = self._incoming.pop(hello.name, None)
        if older is not None:
            older.refuse(Reason.REPLACED)
        self._close_other_identity(hello)
        self._incoming[hello.name] = connection
        if self._is_paused:
            connection.hold()
        if hello.name in self._diallers:  # not while it stops
            self._diallers[hello.name].hurry()
        return None

    def greet_outgoing(self, connection: OutgoingConnection, hello: Hello) -> Reason | None:
        reason = self.check_hello(connection, hello) or self._two_of_one_name(connection, hello)
        if reason is None and self._addresses.get(hello.name) != connection.address:
            reason = Reason.REPLACED  # its dialler is on its way out: the node is looked for elsewhere by now
        if reason is not None:
            return reason
        self._close_other_identity(hello)
        older = self._outgoing.get(hello.identity)
        if older is not None:
            older.close()  # of a dialler on its way out, when an address went and came back
        self._outgoing[hello.identity] = connection
        _log.info("node connected", node=hello.name, node_id=hello.node_id, host=connection.host, empty=hello.empty)
        self._plan_change()
        return None

    def _other_identities(self, hello: Hello) -> list[Connection]:
        """Connections with a node of the same name and another disk."""
        known = (*self._incoming.values(), *self._outgoing.values())
        return [
            connection
            for connection in known
            if connection.hello is not None
            and connection.hello.name == hello.name
            and connection.hello.node_id != hello.node_id
        ]

    def _two_of_one_name(self, connection: Connection, hello: Hello) -> Reason | None:
        """Two nodes that were given the same name would push each other out for ever, so the one that is there stays.

        A node that lost its disk and came back is alone: its old connections ended with the old process, or are
        silent, with the machine that is gone.
        """
        there = next(
            (other_identity for other_identity in self._other_identities(hello) if other_identity.was_heard_lately()),
            None,
        )
        if there is None:
            return None
        connection.finding = (
            f"two nodes call themselves {hello.name}: {there.identity} at {there.host}, which is connected, and "
            f"{hello.identity} at {connection.host}"
        )
        return Reason.TWO_OF_ONE_NAME

    def _close_other_identity(self, hello: Hello) -> None:
        """One name is one node: it came back with another disk, and the old connections are dead."""
        for connection in self._other_identities(hello):
            connection.refuse(Reason.REPLACED)

    def connection_ended(self, connection: Connection) -> None:
        hello = connection.hello
        if hello is None:
            return  # its acceptor or dialler deals with it
        self._closing = [closing for closing in self._closing if not closing.lost.is_set()]
        self._closing.append(connection)
        if isinstance(connection, OutgoingConnection):
            if self._outgoing.get(connection.identity) is connection:
                del self._outgoing[connection.identity]
            _log.info("node disconnected", node=hello.name, node_id=hello.node_id, host=connection.host)
            self._plan_change()
        elif self._incoming.get(hello.name) is connection:
            del self._incoming[hello.name]
        self._answered.set()

    def empty_answered(self) -> None:
        self._answered.set()
        self._plan_change()

    def _plan_change(self) -> None:
        """Not at once: the caller may be in the middle of something, and several changes need one call."""
        if not self._change_planned:
            self._change_planned = True
            asyncio.get_running_loop().call_soon(self._notify_change)

    def _notify_change(self) -> None:
        self._change_planned = False
        self._listener.peers_changed()


async def _keep_current(certificates: Reloaded[PeerContexts]) -> None:
    """New connections are made with new certificates; those that are there go on."""
    while True:
        await asyncio.sleep(reloading.POLL_SECONDS)
        await asyncio.to_thread(certificates.poll)
