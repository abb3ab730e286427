"""Whoever is not welcome is refused with a reason that both sides know, and whatever comes over the wire, the node
lives and goes on talking to the others."""

import asyncio
import random
import zlib
from collections.abc import Callable, Mapping
from typing import Any

import pytest
import structlog

from holdfast.broker.peers import PeerLimits, Reason
from holdfast.broker.peers.frames import frame_head
from holdfast.broker.peers.words import (
    MAGIC,
    PREFACE,
    PREFACE_BYTES,
    EmptyAnswer,
    EmptyQuery,
    Hello,
    Refused,
    encode_word,
)
from tests.integration.peer_nodes import (
    DIGEST,
    HOST,
    Listener,
    PeerNode,
    UnknownPeer,
    body,
    hello_of,
    meet,
    pair,
    until,
)

OTHER_PREFACE = MAGIC + b"\x00\x00\x00\x09"


# --- hellos that are refused ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "reason"),
    [({"cluster": "other"}, Reason.OTHER_CLUSTER), ({"digest": b"other"}, Reason.OTHER_NODE_LIST)],
)
async def test_nodes_of_different_clusters_refuse_each_other(
    ports: Mapping[str, int], settings: dict[str, Any], reason: Reason
) -> None:
    with structlog.testing.capture_logs() as logs:
        async with PeerNode("n1", pair(ports)) as one, PeerNode("n2", pair(ports), **settings) as two:
            for node in (one, two):
                counters = node.peers.counters
                await until(lambda: counters.refused[reason] and counters.refused_by_peers[reason], "the refusal")  # noqa: B023
                assert node.peers.connected() == {}
                assert not node.peers.send(one.identity, body("x"))
    said = [(line["event"], line["reason"]) for line in logs if "reason" in line]
    assert said.count(("connection refused", reason.name)) == 2, "once at each node, however often it happened"
    assert said.count(("another node refuses a connection", reason.name)) == 2
    if reason is Reason.OTHER_NODE_LIST:
        own = {f"this node's list: 2 nodes, digest {digest.hex()[:8]}" for digest in (DIGEST, b"other")}
        found = [entry.get("found", "") for entry in logs if entry.get("reason") == reason.name]
        assert {text.partition(";")[0] for text in found} == own, "both say which list they have"


@pytest.mark.parametrize(
    ("hello", "reason"),
    [
        (hello_of("n9", "n1"), Reason.UNKNOWN_NODE),
        (hello_of("n1", "n1"), Reason.OWN_NAME),
        (hello_of("n2", "n3"), Reason.OTHER_NODE),
        (hello_of("n2", "n1", cluster="other"), Reason.OTHER_CLUSTER),
        (hello_of("n2", "n1", digest=b"other"), Reason.OTHER_NODE_LIST),
    ],
)
async def test_a_stranger_is_refused_and_hears_why(ports: Mapping[str, int], hello: Hello, reason: Reason) -> None:
    async with PeerNode("n1", pair(ports)) as one, await UnknownPeer.dial(one.port) as unknown_peer:
        unknown_peer.say_hello(hello)
        assert await unknown_peer.hear(preface=True) == Refused(reason)
        assert await unknown_peer.hear_end() == b""
        assert one.peers.counters.refused == {reason: 1}
        assert one.frames == []


async def test_a_refused_stranger_is_not_listened_to(ports: Mapping[str, int]) -> None:
    async with PeerNode("n1", pair(ports)) as one, await UnknownPeer.dial(one.port) as unknown_peer:
        hello = encode_word(hello_of("n9", "n1"))
        frame = body("smuggled")
        unknown_peer.write(PREFACE + frame_head(hello) + hello + frame_head(frame) + frame)
        await unknown_peer.hear_end()
        assert one.frames == []


async def test_an_address_that_leads_to_another_node(ports: Mapping[str, int]) -> None:
    astray = {"n2": (HOST, ports["n3"]), "n3": (HOST, ports["n3"])}
    async with PeerNode("n1", ports, addresses=astray) as one, PeerNode("n3", ports) as three:
        await meet(one, three)
        await until(lambda: one.peers.counters.refused_by_peers[Reason.OTHER_NODE], "the refusal")
        assert three.peers.counters.refused[Reason.OTHER_NODE] >= 1
        assert one.peers.connected().keys() == {"n3"}


async def test_an_address_that_leads_back(ports: Mapping[str, int]) -> None:
    async with PeerNode("n1", pair(ports), addresses={"n2": (HOST, ports["n1"])}) as one:
        await until(lambda: one.peers.counters.refused_by_peers[Reason.OWN_NAME], "the refusal")
        assert one.peers.counters.refused[Reason.OWN_NAME] >= 1
        assert one.peers.connected() == {}


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (hello_of("n3", "n1"), Reason.OTHER_NODE),
        (hello_of("n1", "n1"), Reason.OWN_NAME),
        (hello_of("n2", "n3"), Reason.OTHER_NODE),
        (hello_of("n2", "n1", cluster="other"), Reason.OTHER_CLUSTER),
    ],
)
async def test_who_answers_with_a_wrong_hello_is_refused(
    ports: Mapping[str, int], answer: Hello, reason: Reason
) -> None:
    async with await Listener.at(ports["n2"]) as listener, PeerNode("n1", pair(ports)) as one:
        unknown_peer = await listener.next()
        heard = await unknown_peer.hear(preface=True)
        assert isinstance(heard, Hello)
        assert (heard.identity, heard.receiver) == (one.identity, "n2")
        unknown_peer.say_hello(answer)
        assert await unknown_peer.hear() == Refused(reason)
        assert await unknown_peer.hear_end() == b""
        assert one.peers.connected() == {}
        assert one.peers.counters.refused[reason] == 1


async def test_another_version_is_told_from_another_protocol(ports: Mapping[str, int]) -> None:
    async with PeerNode("n1", pair(ports)) as one:
        async with await UnknownPeer.dial(one.port) as newer:
            newer.write(OTHER_PREFACE + b"whatever that version says")
            assert await newer.hear_end() in (PREFACE, b"")  # what was not read may cut the answer off
        async with await UnknownPeer.dial(one.port) as newer:
            newer.write(OTHER_PREFACE)
            assert await newer.hear_end() == PREFACE
        async with await UnknownPeer.dial(one.port) as browser:
            browser.write(b"GET / HTTP/1.1\r\n\r\n")
            assert await browser.hear_end() == b""
        assert one.peers.counters.refused == {Reason.OTHER_VERSION: 2, Reason.OTHER_PROTOCOL: 1}
    async with await Listener.at(ports["n2"]) as listener, PeerNode("n1", pair(ports)) as one:
        (await listener.next()).write(OTHER_PREFACE)
        (await listener.next()).write(b"220 mail.example.org ready")
        await listener.next()
        assert one.peers.counters.refused == {Reason.OTHER_VERSION: 1, Reason.OTHER_PROTOCOL: 1}


# --- what comes after a good hello ----------------------------------------------------------------------------


def head_of(size: int) -> bytes:
    """Of a frame of this size that never comes."""
    head = size.to_bytes(4, "big") + bytes(4)
    return head + zlib.crc32(head).to_bytes(4, "big")


BAD_FRAMES: dict[str, tuple[bytes, Reason]] = {
    "empty": (frame_head(b""), Reason.FRAME_EMPTY),
    "oversized": (head_of(2**32 - 1), Reason.FRAME_OVERSIZED),
    "damaged": (frame_head(b"\x01abc") + b"\x01abd", Reason.FRAME_DAMAGED),
    "damaged length": (b"\x00\x10" + frame_head(b"\x01abc")[2:] + b"\x01abc", Reason.FRAME_DAMAGED),
    "text": (b"GET / HTTP/1.1\r\n\r\n", Reason.FRAME_DAMAGED),
    "unknown word": (frame_head(b"\x00\x77") + b"\x00\x77", Reason.FRAME_UNEXPECTED),
    "answer to nothing": (
        frame_head(encode_word(EmptyAnswer(1, empty=True))) + encode_word(EmptyAnswer(1, empty=True)),
        Reason.FRAME_UNEXPECTED,
    ),
    "second hello": (
        frame_head(encode_word(hello_of("n2", "n1"))) + encode_word(hello_of("n2", "n1")),
        Reason.FRAME_UNEXPECTED,
    ),
}


@pytest.mark.parametrize("name", BAD_FRAMES)
async def test_a_bad_frame_ends_its_connection_and_nothing_else(ports: Mapping[str, int], name: str) -> None:
    data, reason = BAD_FRAMES[name]
    async with PeerNode("n1", ports) as one, PeerNode("n3", ports) as three, await UnknownPeer.dial(one.port) as bad:
        await meet(one, three)
        bad.say_hello(hello_of("n2", "n1"))
        assert isinstance(await bad.hear(preface=True), Hello)
        bad.frame(body("good"))
        bad.write(data)
        bad.frame(body("after the bad one"))
        await bad.hear_end()
        assert one.peers.counters.broken == {reason: 1}
        assert one.bodies == [body("good")]
        assert three.peers.send(one.identity, body("still here"))
        await one.expect(body("still here"))


async def test_a_frame_that_ends_in_the_middle(ports: Mapping[str, int]) -> None:
    async with PeerNode("n1", pair(ports)) as one:
        async with await UnknownPeer.dial(one.port) as cut:
            cut.say_hello(hello_of("n2", "n1"))
            await cut.hear(preface=True)
            cut.write(frame_head(bytes(1000)) + bytes(10))
        await until(lambda: one.peers.counters.broken[Reason.FRAME_TRUNCATED] == 1, "the end to be noticed")
        assert one.frames == []


async def test_a_frame_that_does_not_go_on(ports: Mapping[str, int]) -> None:
    """Of another node's machine that hangs, or its program: the connection must not be mute for ever."""
    limits = PeerLimits(dead_seconds=0.8)
    large = body("large") + bytes(500_000)
    async with PeerNode("n1", pair(ports), limits=limits) as one, await UnknownPeer.dial(one.port) as slow:
        slow.say_hello(hello_of("n2", "n1"))
        await slow.hear(preface=True)
        stream = frame_head(large) + large
        for place in range(0, len(stream), len(stream) // 10):  # longer than the deadline, but it goes on
            slow.write(stream[place : place + len(stream) // 10])
            await asyncio.sleep(0.1)
        await one.expect(large)
        await asyncio.sleep(1.1 * limits.dead_seconds)  # between frames there is no hurry
        slow.write(stream[:1000])
        await asyncio.sleep(0.1)
        one.peers.pause_reading()
        await asyncio.sleep(1.5 * limits.dead_seconds)  # nor while nobody reads
        assert one.peers.counters.broken == {}
        one.peers.resume_reading()
        await slow.hear_end()
        assert one.peers.counters.broken == {Reason.FRAME_UNFINISHED: 1}


async def test_a_body_that_the_node_cannot_read_costs_the_connection(ports: Mapping[str, int]) -> None:
    async with PeerNode("n1", pair(ports)) as one, PeerNode("n2", pair(ports)) as two:
        await meet(one, two)
        made = one.peers.counters.connections_made
        one.peers.drop(two.identity, "no messages in it")
        assert one.peers.counters.broken == {Reason.BODY_BROKEN: 1}
        await until(lambda: one.peers.counters.connections_made > made, "the node to dial again")
        await until(lambda: two.peers.send(one.identity, body("better")), "the node to be connected")
        await one.expect(body("better"))


async def test_who_asks_without_end_and_never_listens_is_dropped(ports: Mapping[str, int]) -> None:
    limits = PeerLimits(dead_seconds=60)  # which would end it, too
    async with (
        PeerNode("n1", pair(ports), limits=limits) as one,
        await UnknownPeer.dial(one.port, receive_bytes=4096) as nosy,
    ):
        nosy.say_hello(hello_of("n2", "n1"))
        await nosy.hear(preface=True)
        question = encode_word(EmptyQuery(1))
        many = (frame_head(question) + question) * 1000

        def is_dropped() -> bool:
            if nosy.writer.transport.get_write_buffer_size() < len(many):
                nosy.write(many)
            return bool(one.peers.counters.broken)

        nosy.writer.transport.pause_reading()  # type: ignore[attr-defined]  # it is one that reads
        await until(is_dropped, "the questions to end")
        assert one.peers.counters.broken == {Reason.ANSWERS_UNREAD: 1}
        nosy.writer.transport.abort()


async def test_frames_on_the_way_back_are_unexpected(ports: Mapping[str, int]) -> None:
    """Who was dialled has answers to give, nothing else: its frames come on the connection that it dials."""
    async with await Listener.at(ports["n2"]) as listener, PeerNode("n1", pair(ports)) as one:
        unknown_peer = await listener.next()
        unknown_peer.say_hello(hello_of("n2", "n1"))
        await until(one.peers.connected, "the unknown sender to be taken for n2")
        unknown_peer.frame(body("wrong way"))
        await until(lambda: one.peers.counters.broken[Reason.FRAME_UNEXPECTED], "the frame to be refused")
        assert one.frames == []


async def test_an_answer_to_an_earlier_question_does_not_count(ports: Mapping[str, int]) -> None:
    """Who said yes a while ago may have become something else since."""
    async with await Listener.at(ports["n2"]) as listener, PeerNode("n1", pair(ports)) as one:
        unknown_peer = await listener.next()
        await unknown_peer.hear(preface=True)
        unknown_peer.say_hello(hello_of("n2", "n1"))
        await until(one.peers.connected, "the unknown sender to be taken for n2")
        first = asyncio.create_task(one.peers.all_empty(60))
        asked = await unknown_peer.hear()
        assert isinstance(asked, EmptyQuery)
        second = asyncio.create_task(one.peers.all_empty(60))
        asked_again = await unknown_peer.hear()
        assert isinstance(asked_again, EmptyQuery)
        unknown_peer.say(EmptyAnswer(asked.number, empty=True))
        assert await first
        assert not second.done()
        unknown_peer.say(EmptyAnswer(asked_again.number, empty=False))
        assert not await second


# --- the port ---------------------------------------------------------------------------------------------------


async def test_connections_without_a_hello_are_bounded(ports: Mapping[str, int]) -> None:
    limits = PeerLimits(half_open_max=4, hello_seconds_max=60)
    async with PeerNode("n1", pair(ports), limits=limits) as one:
        silent = [await UnknownPeer.dial(one.port) for _ in range(20)]
        await until(lambda: one.peers.counters.refused[Reason.HALF_OPEN_MAX] == 16, "the oldest to make room")
        assert one.peers.half_open == 4
        for unknown_peer in silent[:16]:
            assert await unknown_peer.hear_end() == b""
        async with PeerNode("n2", pair(ports)) as two:
            await meet(one, two)  # who says hello gets in
            await until(lambda: one.peers.half_open == 3, "n2 to be welcome in the place of the oldest")
        for unknown_peer in silent:
            await unknown_peer.leave()
        await until(lambda: one.peers.half_open == 0, "the unknown senders to be gone")


async def test_who_says_nothing_is_closed_after_a_while(ports: Mapping[str, int]) -> None:
    limits = PeerLimits(hello_seconds_max=0.1)
    async with PeerNode("n1", pair(ports), limits=limits) as one:
        for said in (b"", PREFACE, PREFACE + b"\x00\x00"):
            async with await UnknownPeer.dial(one.port) as unknown_peer:
                unknown_peer.write(said)
                assert await unknown_peer.hear_end() == b""
        assert one.peers.counters.refused == {Reason.HELLO_LATE: 3}


async def test_a_node_that_takes_a_connection_and_says_nothing(ports: Mapping[str, int]) -> None:
    """One that is stopped: its system still takes connections in."""
    limits = PeerLimits(hello_seconds_max=0.1)
    async with await Listener.at(ports["n2"]) as listener, PeerNode("n1", pair(ports), limits=limits) as one:
        for _ in range(3):
            unknown_peer = await listener.next()
            assert (await unknown_peer.hear_end()).startswith(PREFACE)
        assert one.peers.counters.refused[Reason.HELLO_LATE] >= 2
        assert one.peers.connected() == {}


def _random(rng: random.Random) -> bytes:
    return rng.randbytes(rng.randint(1, 3000))


def _random_after_preface(rng: random.Random) -> bytes:
    return PREFACE + _random(rng)


def _random_word(rng: random.Random) -> bytes:
    word = b"\x00" + rng.randbytes(rng.randint(1, 200))
    return PREFACE + frame_head(word) + word


def _random_after_hello(rng: random.Random) -> bytes:
    hello = encode_word(hello_of("n3", "n1", number=rng.randint(1, 5)))
    return PREFACE + frame_head(hello) + hello + _random(rng)


def _flipped_hello(rng: random.Random) -> bytes:
    hello = encode_word(hello_of("n3", "n1"))
    data = bytearray(PREFACE + frame_head(hello) + hello)
    data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    return bytes(data)


async def _spray(port: int, rng: random.Random, is_over: asyncio.Event) -> None:
    makers: list[Callable[[random.Random], bytes]] = [
        _random, _random_after_preface, _random_word, _random_after_hello, _flipped_hello
    ]  # fmt: skip
    while not is_over.is_set():
        async with await UnknownPeer.dial(port) as unknown_peer:
            unknown_peer.write(rng.choice(makers)(rng))
            if rng.random() < 0.5:
                try:
                    await asyncio.wait_for(unknown_peer.reader.read(PREFACE_BYTES), 0.01)
                except (TimeoutError, ConnectionError):
                    pass


async def test_two_nodes_go_on_talking_while_garbage_is_sprayed_on_their_ports(ports: Mapping[str, int]) -> None:
    async with PeerNode("n1", ports) as one, PeerNode("n2", ports) as two:
        await meet(one, two)
        is_over = asyncio.Event()
        sprayers = [asyncio.create_task(_spray(one.port, random.Random(seed), is_over)) for seed in range(3)]
        counters = one.peers.counters

        def is_enough() -> bool:
            refused = counters.refused.total() + counters.broken.total()
            return refused > 300 and len(counters.refused) + len(counters.broken) >= 5

        sent = 0
        while not is_enough():
            assert one.peers.send(two.identity, body(sent))
            assert two.peers.send(one.identity, body(sent))
            sent += 1
            assert not any(sprayer.done() for sprayer in sprayers)
            await asyncio.sleep(0.001)
        is_over.set()
        await asyncio.gather(*sprayers)
        await one.expect(body(sent - 1))
        await two.expect(body(sent - 1))
        assert [frame for identity, frame in one.frames if identity == two.identity] == [*map(body, range(sent))]
        assert two.bodies == [*map(body, range(sent))]
        await until(lambda: one.peers.half_open == 0, "nothing to be left of the spray")
