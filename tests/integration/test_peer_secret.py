"""A cluster secret between nodes: both sides prove that they know it, and whoever cannot changes nothing."""

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest
import structlog

from holdfast.broker.peers import Reason
from holdfast.broker.peers.handshake import DIALLING, ClusterSecret, new_nonce
from holdfast.broker.peers.words import Hello, Proof, Refused, encode_word
from holdfast.common.service import end_tasks
from tests.integration.peer_nodes import (
    CLUSTER,
    DIGEST,
    HOST,
    Listener,
    PeerNode,
    UnknownPeer,
    body,
    meet,
    node_id,
    pair,
    until,
)

TEXT = "the secret of all nodes, 32 bytes or more"
SECRET = ClusterSecret(TEXT.encode())
OTHER = ClusterSecret(b"another secret, of just as many bytes")


def hello(name: str, receiver: str, *, number: int = 2, nonce: bytes = b"n" * 32) -> Hello:
    return Hello(CLUSTER, DIGEST, name, node_id(number), receiver, empty=True, nonce=nonce)


async def test_nodes_that_share_a_secret_hear_each_other(ports: Mapping[str, int]) -> None:
    nodes = [PeerNode(name, ports, secret=SECRET) for name in ports]
    async with nodes[0], nodes[1], nodes[2]:
        await meet(*nodes)
        for one in nodes:
            for other in nodes:
                if one is not other:
                    assert one.peers.send(other.identity, body(one.name))
        for one in nodes:
            for other in nodes:
                if one is not other:
                    await one.expect(body(other.name))
        assert all(node.peers.counters.refused == {} for node in nodes)
        assert await nodes[0].peers.all_empty()


@pytest.mark.parametrize(
    ("settings", "reason"), [({}, Reason.SECRET_MISSING), ({"secret": OTHER}, Reason.SECRET_WRONG)]
)
async def test_nodes_with_different_secrets_or_none_do_not(
    ports: Mapping[str, int], settings: dict[str, Any], reason: Reason
) -> None:
    with structlog.testing.capture_logs() as logs:
        async with PeerNode("n1", pair(ports), secret=SECRET) as one, PeerNode("n2", pair(ports), **settings) as two:
            for node in (one, two):
                counters = node.peers.counters
                await until(lambda: counters.refused[reason] and counters.refused_by_peers[reason], "the refusal")  # noqa: B023
            assert one.peers.connected() == two.peers.connected() == {}
            assert one.peers.counters.connections_made == two.peers.counters.connections_made == 0
    assert {line["reason"] for line in logs if "reason" in line} == {reason.name}
    assert TEXT not in str(logs)


async def test_who_cannot_prove_it_changes_nothing(ports: Mapping[str, int]) -> None:
    """Not even as a node that is connected already, or with a frame before the proof."""
    async with PeerNode("n1", pair(ports), secret=SECRET) as one, PeerNode("n2", pair(ports), secret=SECRET) as two:
        await meet(one, two)
        made = one.peers.counters.connections_made
        for claim in (hello("n2", "n1"), hello("n2", "n1", number=7)):
            async with await UnknownPeer.dial(one.port) as unknown_peer:
                unknown_peer.say_hello(claim)
                answer = await unknown_peer.hear(preface=True)
                assert isinstance(answer, Hello)
                unknown_peer.say(Proof(OTHER.proof(DIALLING, claim, answer)))
                assert await unknown_peer.hear() == Refused(Reason.SECRET_WRONG)
                assert await unknown_peer.hear_end() == b""
        async with await UnknownPeer.dial(one.port) as hasty:
            hasty.say_hello(hello("n2", "n1"))
            assert isinstance(await hasty.hear(preface=True), Hello)
            hasty.frame(body("smuggled"))
            assert await hasty.hear_end() == b""
        async with await UnknownPeer.dial(one.port) as silent:
            silent.say_hello(hello("n2", "n1", nonce=b""))
            assert await silent.hear(preface=True) == Refused(Reason.SECRET_MISSING)
        assert one.peers.counters.connections_made == made
        assert two.peers.send(one.identity, body("genuine"))
        await one.expect(body("genuine"))
        assert one.bodies == [body("genuine")]
        assert one.peers.counters.broken == {}


class Recorder:
    """Between a node that dials and the one that it means: passes everything on, and keeps it."""

    def __init__(self, port: int) -> None:
        self._port = port
        self.dialling = b""
        self.dialled = b""
        self._tasks: list[asyncio.Task[None]] = []
        self._onward: UnknownPeer | None = None

    async def take(self, unknown_peer: UnknownPeer) -> None:
        self._onward = onward = await UnknownPeer.dial(self._port)
        self._tasks += [
            asyncio.create_task(self._pass(unknown_peer, onward, "dialling")),
            asyncio.create_task(self._pass(onward, unknown_peer, "dialled")),
        ]

    async def _pass(self, source: UnknownPeer, to: UnknownPeer, side: str) -> None:
        while data := await source.reader.read(4096):
            setattr(self, side, getattr(self, side) + data)
            to.write(data)

    async def stop(self) -> None:
        await end_tasks(self._tasks)
        if self._onward is not None:
            await self._onward.leave()


async def test_a_recorded_handshake_proves_nothing(ports: Mapping[str, int]) -> None:
    """Neither what the dialling node said nor what the dialled one did, sent again byte by byte."""
    through = {"n1": (HOST, ports["n3"])}  # n2 dials n1 through the recorder
    async with PeerNode("n1", pair(ports), secret=SECRET) as one, await Listener.at(ports["n3"]) as between:
        async with PeerNode("n2", pair(ports), secret=SECRET, addresses=through) as two:
            recorder = Recorder(one.port)
            await recorder.take(await between.next())
            await until(lambda: one.hears(two), "n2 to reach n1")
            await recorder.stop()
        proof = len(encode_word(Proof(bytes(32))))
        assert len(recorder.dialling) > proof
        await until(lambda: not one.peers.connected(), "n2 to be gone")
        async with await UnknownPeer.dial(one.port) as replay:
            replay.write(recorder.dialling)
            assert isinstance(await replay.hear(preface=True), Hello)
            assert await replay.hear() == Refused(Reason.SECRET_WRONG)
        async with PeerNode("n2", pair(ports), secret=SECRET, addresses=through) as two:
            dialled = await between.next()
            dialled.write(recorder.dialled)
            await until(lambda: two.peers.counters.refused[Reason.SECRET_WRONG], "n2 to notice")
            assert two.peers.connected() == {}


async def test_whoever_only_dials_is_told_no_proof(ports: Mapping[str, int]) -> None:
    """Nothing to try secrets on at leisure."""
    async with PeerNode("n1", pair(ports), secret=SECRET) as one, await UnknownPeer.dial(one.port) as unknown_peer:
        unknown_peer.say_hello(hello("n2", "n1", nonce=new_nonce()))
        assert isinstance(await unknown_peer.hear(preface=True), Hello)
        unknown_peer.writer.write_eof()
        assert await unknown_peer.hear_end() == b""
