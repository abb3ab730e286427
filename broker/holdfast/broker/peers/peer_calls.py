"""Calls from one broker to another: tasks that an ack brings with it and that live elsewhere, allocations of limits.

They travel in frames between nodes that know each other (peers/), never over the port for clients: whoever can make
them can have a shard take messages for received that never came. The request goes to a node in this node's connection,
the answer comes back in that node's own. What is under way is bounded in calls and in bytes, on both sides: the same
connections carry heartbeats.
"""

import asyncio
import itertools
from collections import defaultdict
from collections.abc import Collection
from typing import Final, Protocol

from holdfast.broker.peers.bodies import BodyError
from holdfast.broker.peers.calls import Answer, Request, decode_call, encode_call
from holdfast.broker.peers.identities import name_of
from holdfast.common.service import Service, report_bug
from holdfast.serving.logs import get_logger
from holdfast.serving.refusals import RefusedError, forget_frames, internal_error, overloaded

CALLS_MAX: Final = 64  # under way with one node, in each direction
CALLS_BYTES_MAX: Final = 8 * 1024 * 1024  # likewise, beside one call of any size
SECONDS_MAX: Final = 60.0  # for which a call is worked on

_log = get_logger(__name__)


class PeerCallFailedError(Exception):
    """There is no answer: what was asked for may have happened or not."""


class Link(Protocol):
    """The connections to the other nodes: `peers.transport.Peers`."""

    def identity_named(self, name: str) -> str | None:
        """Of the node of this name, if it is connected."""
        ...

    def send(self, identity: str, body: bytes) -> bool: ...

    def drop(self, identity: str, detail: str) -> None: ...


class Answerer(Protocol):
    """What this node does for others."""

    async def answer(self, sender: str, method: int, shard: int, message: bytes) -> bytes:
        """`sender`: the name of the node that asks. Raises RefusedError, or anything: that is a fault of this node."""
        ...


class _Budget:
    """What is under way with one node."""

    def __init__(self) -> None:
        self._calls = 0
        self._bytes = 0

    def take(self, size_bytes: int) -> bool:
        if self._calls and (self._calls >= CALLS_MAX or self._bytes + size_bytes > CALLS_BYTES_MAX):
            return False
        self._calls += 1
        self._bytes += size_bytes
        return True

    def give_back(self, size_bytes: int) -> None:
        self._calls -= 1
        self._bytes -= size_bytes

    @property
    def is_idle(self) -> bool:
        return not self._calls


class PeerCalls:
    """Asks other nodes, and answers them."""

    def __init__(self, own_name: str, link: Link) -> None:
        self._own_name = own_name
        self._link = link
        self._answerer: Answerer | None = None
        self._numbers = itertools.count(1)
        self._asked: dict[int, tuple[str, asyncio.Future[bytes]]] = {}  # by number: who was asked
        self._outgoing: defaultdict[str, _Budget] = defaultdict(_Budget)  # by identity
        self._incoming: defaultdict[str, _Budget] = defaultdict(_Budget)
        self._answering = Service(on_error=report_bug)

    def serve(self, answerer: Answerer) -> None:
        """To be called before anybody asks: this node may ask itself as soon as it leads."""
        self._answerer = answerer

    @property
    def is_serving(self) -> bool:
        """Whether nodes of this cluster ask each other at all."""
        return self._answerer is not None

    async def _do(self, sender: str, method: int, shard: int, message: bytes) -> bytes:
        assert self._answerer is not None, "it does not serve yet"
        return await self._answerer.answer(sender, method, shard, message)

    @property
    def is_idle(self) -> bool:
        """Whether nothing is asked and nothing is answered."""
        return not (self._outgoing or self._incoming or self._answering.under_way)

    async def stop(self) -> None:
        await self._answering.stop()

    # --- asking -----------------------------------------------------------------------------------------------

    async def ask(self, node: str, method: int, shard: int, message: bytes, timeout_s: float) -> bytes:
        """The answer of a node. Raises RefusedError if it refused, `PeerCallFailedError` if nobody knows."""
        try:
            async with asyncio.timeout(timeout_s):
                if node == self._own_name:
                    return await self._do(node, method, shard, message)
                return await self._ask(node, method, shard, message, timeout_s)
        except TimeoutError:
            raise PeerCallFailedError(f"{node} did not answer within {timeout_s:g} s") from None

    async def _ask(self, node: str, method: int, shard: int, message: bytes, timeout_s: float) -> bytes:
        identity = self._link.identity_named(node)
        if identity is None:
            raise PeerCallFailedError(f"{node} is not connected")
        number = next(self._numbers)
        body = encode_call(Request(number, method, shard, int(timeout_s * 1000), message))
        budget = self._outgoing[identity]
        if not budget.take(len(body)):
            raise PeerCallFailedError(f"too many calls to {node} are under way")
        answered: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._asked[number] = identity, answered
        try:
            if not self._link.send(identity, body):
                raise PeerCallFailedError(f"{node} takes nothing more at the moment")
            return await answered
        finally:
            del self._asked[number]
            _give_back(self._outgoing, identity, len(body))

    def connected(self, identities: Collection[str]) -> None:
        """These nodes are connected now: no answer comes from any other."""
        for identity, answered in self._asked.values():
            if identity not in identities and not answered.done():
                answered.set_exception(PeerCallFailedError(f"the connection to {name_of(identity)} was lost"))

    # --- what came --------------------------------------------------------------------------------------------

    def on_frame(self, identity: str, body: bytes) -> None:
        try:
            call = decode_call(body)
        except BodyError as error:
            self._link.drop(identity, str(error))
            return
        if isinstance(call, Answer):
            self._take_answer(identity, call)
        else:
            self._take_request(identity, call, len(body))

    def _take_answer(self, identity: str, answer: Answer) -> None:
        asked, answered = self._asked.get(answer.number, ("", None))
        if answered is None or asked != identity or answered.done():
            return  # it came too late, or from somebody who was not asked
        if answer.reason:
            answered.set_exception(RefusedError(answer.reason, answer.sentence))
        else:
            answered.set_result(answer.message)

    def _take_request(self, identity: str, request: Request, size_bytes: int) -> None:
        if not self._incoming[identity].take(size_bytes):
            self._send(identity, _refusal(request.number, overloaded("calls", CALLS_MAX)))
            return
        self._answering.spawn(self._serve(identity, request, size_bytes))

    async def _serve(self, identity: str, request: Request, size_bytes: int) -> None:
        try:
            async with asyncio.timeout(min(SECONDS_MAX, request.patience_ms / 1000)):
                answer = await self._answer(name_of(identity), request)
            self._send(identity, answer)
        except TimeoutError:
            pass  # nobody waits any more
        finally:
            _give_back(self._incoming, identity, size_bytes)

    async def _answer(self, sender: str, request: Request) -> Answer:
        try:
            done = await self._do(sender, request.method, request.shard, request.message)
            return Answer(request.number, done)
        except RefusedError as refused:
            forget_frames(refused)
            return _refusal(request.number, refused)
        except Exception as error:  # noqa: BLE001 - the last line of defence: it is logged and answered
            _log.error("call_failed", sender=sender, method=request.method, error=type(error).__name__, exc_info=error)
            return _refusal(request.number, internal_error())

    def _send(self, identity: str, answer: Answer) -> None:
        """Lost if the other node cannot be reached: it asks again."""
        self._link.send(identity, encode_call(answer))


def _refusal(number: int, refused: RefusedError) -> Answer:
    return Answer(number, reason=refused.reason, sentence=refused.message)


def _give_back(budgets: defaultdict[str, _Budget], identity: str, size_bytes: int) -> None:
    budget = budgets[identity]
    budget.give_back(size_bytes)
    if budget.is_idle:
        del budgets[identity]
