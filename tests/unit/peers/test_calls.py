"""Calls between brokers: bounded, answered once by whoever was asked, and never believed to be from anybody else."""

import asyncio
from collections.abc import AsyncIterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.broker.peers import peer_calls
from holdfast.broker.peers.bodies import BodyError
from holdfast.broker.peers.calls import ANSWER, REQUEST, Answer, Request, decode_call, encode_call, is_call
from holdfast.broker.peers.peer_calls import PeerCallFailedError, PeerCalls
from holdfast.serving.refusals import INTERNAL, NOT_LEADER, OVERLOADED, RefusedError, not_leader

METHOD, SHARD = 1, 3
LONG_S = 60.0  # no test waits for its end


class Side:
    """One node: what it is asked waits in `asked` until `go` is set; its frames go to the other side at once."""

    def __init__(self, name: str) -> None:
        self.name, self.identity = name, f"{name}/{name * 32}"
        self.other: Side | None = None
        self.sent: list[bytes] = []
        self.dropped: list[str] = []
        self.asked: list[tuple[str, int, int, bytes]] = []
        self.go = asyncio.Event()
        self.go.set()
        self.trouble: Exception | None = None
        self.is_full = False
        self.calls = PeerCalls(name, self)
        self.calls.serve(self)

    # As a link.

    def identity_named(self, name: str) -> str | None:
        return self.other.identity if self.other is not None and self.other.name == name else None

    def send(self, identity: str, body: bytes) -> bool:
        if self.is_full:
            return False
        self.sent.append(body)
        if self.other is not None and self.other.identity == identity:
            asyncio.get_running_loop().call_soon(self.other.calls.on_frame, self.identity, body)
        return True

    def drop(self, identity: str, detail: str) -> None:
        self.dropped.append(detail)

    # As what answers.

    async def answer(self, sender: str, method: int, shard: int, message: bytes) -> bytes:
        self.asked.append((sender, method, shard, message))
        await self.go.wait()
        if self.trouble is not None:
            raise self.trouble
        return message[::-1]


@pytest.fixture
async def pair() -> AsyncIterator[tuple[Side, Side]]:
    a, b = Side("a"), Side("b")
    a.other, b.other = b, a
    yield a, b
    await a.calls.stop()
    await b.calls.stop()


async def turns(count: int = 10) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


numbers = st.integers(0, 2**32 - 1)
calls = st.one_of(
    st.builds(Request, numbers, st.integers(0, 255), numbers, numbers, st.binary(max_size=50)),
    st.builds(Answer, numbers, st.binary(max_size=50)),
    st.builds(
        Answer, numbers, reason=st.text("ABC_", min_size=1, max_size=50), sentence=st.text(min_size=0, max_size=50)
    ),
)


@given(calls)
def test_a_call_is_read_back_as_written(call: Request | Answer) -> None:
    body = encode_call(call)
    assert is_call(body)
    assert decode_call(body) == call


@given(st.sampled_from((REQUEST, ANSWER)), st.binary(max_size=40))
def test_any_bytes_are_a_call_or_refused(kind: int, rest: bytes) -> None:
    try:
        call = decode_call(bytes([kind]) + rest)
    except BodyError:
        return
    assert encode_call(call)[:10] == (bytes([kind]) + rest)[:10]


async def test_a_call_is_answered_by_the_node_that_was_asked(pair: tuple[Side, Side]) -> None:
    a, b = pair
    assert await a.calls.ask("b", METHOD, SHARD, b"abc", LONG_S) == b"cba"
    assert b.asked == [("a", METHOD, SHARD, b"abc")]
    assert await asyncio.gather(*(a.calls.ask("b", METHOD, n, b"x%d" % n, LONG_S) for n in range(5))) == [
        b"%dx" % n for n in range(5)
    ]


async def test_a_node_asks_itself_without_a_connection(pair: tuple[Side, Side]) -> None:
    a, _ = pair
    assert await a.calls.ask("a", METHOD, SHARD, b"abc", LONG_S) == b"cba"
    assert (a.asked, a.sent) == ([("a", METHOD, SHARD, b"abc")], [])


async def test_refusals_arrive_as_they_were_made(pair: tuple[Side, Side]) -> None:
    a, b = pair
    b.trouble = not_leader(SHARD, 1, None)
    with pytest.raises(RefusedError) as refused:
        await a.calls.ask("b", METHOD, SHARD, b"", LONG_S)
    assert (refused.value.reason, refused.value.message) == (NOT_LEADER, not_leader(SHARD, 1, None).message)
    b.trouble = ZeroDivisionError("a secret of the other node")
    with pytest.raises(RefusedError) as failed:
        await a.calls.ask("b", METHOD, SHARD, b"", LONG_S)
    assert failed.value.reason == INTERNAL
    assert "secret" not in failed.value.message


async def test_an_answer_of_somebody_else_or_to_another_call_counts_for_nothing(pair: tuple[Side, Side]) -> None:
    a, b = pair
    b.go.clear()
    asking = asyncio.ensure_future(a.calls.ask("b", METHOD, SHARD, b"abc", LONG_S))
    await turns()
    number = decode_call(a.sent[0]).number
    a.calls.on_frame("c/" + "c" * 32, encode_call(Answer(number, b"forged")))
    a.calls.on_frame(b.identity, encode_call(Answer(number + 1, b"forged")))
    await turns()
    assert not asking.done()
    b.go.set()
    assert await asking == b"cba"
    a.calls.on_frame(b.identity, encode_call(Answer(number, b"again")))


async def test_who_is_not_connected_or_gets_lost_is_not_waited_for(pair: tuple[Side, Side]) -> None:
    a, b = pair
    with pytest.raises(PeerCallFailedError, match="c is not connected"):
        await a.calls.ask("c", METHOD, SHARD, b"", LONG_S)
    a.is_full = True
    with pytest.raises(PeerCallFailedError, match="takes nothing more"):
        await a.calls.ask("b", METHOD, SHARD, b"", LONG_S)
    a.is_full = False
    b.go.clear()
    asking = asyncio.ensure_future(a.calls.ask("b", METHOD, SHARD, b"", LONG_S))
    await turns()
    a.calls.connected({b.identity})
    await turns()
    assert not asking.done()
    a.calls.connected(set())
    with pytest.raises(PeerCallFailedError, match="was lost"):
        await asking


async def test_after_the_deadline_nobody_works_on_it(pair: tuple[Side, Side]) -> None:
    a, b = pair
    b.go.clear()
    with pytest.raises(PeerCallFailedError, match="did not answer within"):
        await a.calls.ask("b", METHOD, SHARD, b"", 0.01)
    while b.calls._tasks:
        await asyncio.sleep(0)
    assert b.sent == []


async def test_what_is_under_way_is_bounded_on_both_sides(
    pair: tuple[Side, Side], monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b = pair
    b.go.clear()
    asking = [asyncio.ensure_future(a.calls.ask("b", METHOD, SHARD, b"", LONG_S)) for _ in range(peer_calls.CALLS_MAX)]
    await turns()
    with pytest.raises(PeerCallFailedError, match="too many"):
        await a.calls.ask("b", METHOD, SHARD, b"", LONG_S)
    assert len(b.asked) == peer_calls.CALLS_MAX
    # Whoever does not keep to it himself is told.
    b.calls.on_frame(a.identity, encode_call(Request(10**6, METHOD, SHARD, 1000, b"")))
    refused = decode_call(b.sent[-1])
    assert isinstance(refused, Answer)
    assert (refused.number, refused.reason) == (10**6, OVERLOADED)
    b.go.set()
    await asyncio.gather(*asking)
    large = bytes(peer_calls.CALLS_BYTES_MAX)
    assert await a.calls.ask("b", METHOD, SHARD, large, LONG_S) == large, "one of any size, if it is alone"
    b.go.clear()
    alone = asyncio.ensure_future(a.calls.ask("b", METHOD, SHARD, large, LONG_S))
    await turns()
    with pytest.raises(PeerCallFailedError, match="too many"):
        await a.calls.ask("b", METHOD, SHARD, b"x", LONG_S)
    b.go.set()
    await alone
    assert not a.calls._outgoing
    assert not b.calls._incoming


async def test_a_broken_call_ends_the_connection(pair: tuple[Side, Side]) -> None:
    a, b = pair
    for body in (b"\x02", b"\x03abc", bytes([ANSWER]) + bytes(8) + b"\x02", bytes([ANSWER]) + bytes(8) + b"\x01\x05ab"):
        a.calls.on_frame(b.identity, body)
    assert len(a.dropped) == 4
