"""TLS between nodes: both sides prove their names, and who cannot is kept out."""

import asyncio
import os
import shutil
import socket
import ssl
import subprocess
from collections.abc import Callable, Coroutine, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

import pytest

from holdfast.broker.peers import PeerLimits, PeerTls, Reason
from holdfast.broker.peers.opening import open_connection
from holdfast.broker.peers.words import PREFACE, Refused
from holdfast.common.certificates import CertificateError
from holdfast.serving import reloading
from tests.integration.certificates import Authority
from tests.integration.peer_nodes import DEADLINE_S, HOST, PeerNode, UnknownPeer, body, hello_of, meet, pair, until


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"), "authority")


@pytest.fixture(scope="module")
def tls(authority: Authority) -> dict[str, PeerTls]:
    """One by alternative name, one by common name, one with several names."""
    return {
        "n1": authority.issue("n1", subject="somebody", names=f"DNS:n1,IP:{HOST}"),
        "n2": authority.issue("n2", subject="n2"),
        "n3": authority.issue("n3", subject="x", names="DNS:other,DNS:N3"),
    }


def stranger_context(own: PeerTls | None, authority: Authority) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.load_verify_locations(authority.certificate)
    if own is not None:
        context.load_cert_chain(own.certificate, own.key)
    return context


async def dial(port: int, context: ssl.SSLContext) -> UnknownPeer:
    return UnknownPeer(*await asyncio.open_connection(HOST, port, ssl=context, server_hostname=""))


class Idle(asyncio.Protocol):
    """A connection that has nothing to say."""

    def __init__(self) -> None:
        self.lost = asyncio.Event()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def connection_lost(self, error: Exception | None) -> None:
        self.lost.set()

    def abort(self) -> None:
        self._transport.abort()


@pytest.mark.parametrize("turns", range(1, 25))
async def test_a_connection_that_is_given_up_while_it_is_made_is_closed(tls: dict[str, PeerTls], turns: int) -> None:
    """At whichever turn of the loop: before, during and at the end of the handshake."""
    loop = asyncio.get_running_loop()
    own, other = socket.socketpair()
    for sock in (own, other):
        sock.setblocking(False)
    descriptor = own.fileno()
    near, far = tls["n1"].contexts(), tls["n2"].contexts()
    accepting = asyncio.create_task(loop.connect_accepted_socket(Idle, other, ssl=far.accepting))

    def connect(make: Callable[[], Idle]) -> Coroutine[Any, Any, object]:
        return loop.create_connection(make, sock=own, ssl=near.dialling, server_hostname="")

    opening = asyncio.create_task(open_connection(own, Idle, connect))
    for _ in range(turns):
        await asyncio.sleep(0)
    opening.cancel()
    await asyncio.wait([opening])
    if not opening.cancelled():  # it was made before
        opening.result().abort()
        await opening.result().lost.wait()
    assert not loop.remove_reader(descriptor), "its transport is still there"
    with suppress(OSError):
        await (await accepting)[1].lost.wait()


async def test_three_nodes_talk_over_tls(ports: Mapping[str, int], tls: dict[str, PeerTls]) -> None:
    async with (
        PeerNode("n1", ports, tls=tls["n1"]) as one,
        PeerNode("n2", ports, tls=tls["n2"]) as two,
        PeerNode("n3", ports, tls=tls["n3"]) as three,
    ):
        await meet(one, two, three)
        large = b"\x01" + bytes(range(256)) * 16_000  # 4 MB
        for sender, receiver in ((one, two), (two, three), (three, one)):
            for frame in (body("first"), large, *map(body, range(500))):
                assert sender.peers.send(receiver.identity, frame)
        for sender, receiver in ((one, two), (two, three), (three, one)):
            await receiver.expect(body(499))
            assert receiver.frames == [
                (sender.identity, frame) for frame in (body("first"), large, *map(body, range(500)))
            ]
        assert await one.peers.all_empty(DEADLINE_S)


async def test_a_pause_over_tls_loses_nothing(ports: Mapping[str, int], tls: dict[str, PeerTls]) -> None:
    limits = PeerLimits(body_bytes_max=200_000, outgoing_bytes_max=1_000_000, dead_seconds=60)
    settings: dict[str, Any] = {"limits": limits}
    async with (
        PeerNode("n1", pair(ports), tls=tls["n1"], **settings) as one,
        PeerNode("n2", pair(ports), tls=tls["n2"], **settings) as two,
    ):
        await meet(one, two)
        two.on_frame = two.peers.pause_reading
        taken: list[bytes] = []
        number = 0
        while one.peers.counters.frames_dropped_full < 20:
            frame = body(number) + bytes(50_000)
            if one.peers.send(two.identity, frame):
                taken.append(frame)
            assert one.peers.waiting_bytes(two.identity) <= limits.outgoing_bytes_max + 100_000  # what TLS adds
            number += 1
            await asyncio.sleep(0)
        while len(two.frames) < len(taken):
            two.peers.resume_reading()
            await asyncio.sleep(0)
        assert two.bodies == taken
        assert one.peers.counters.connections_made == 2


async def test_a_node_that_claims_another_name_than_its_certificate(
    ports: Mapping[str, int], tls: dict[str, PeerTls]
) -> None:
    """n3's certificate is good, but it does not make its holder n2: neither side accepts it."""
    async with PeerNode("n1", pair(ports), tls=tls["n1"]) as one, PeerNode("n2", pair(ports), tls=tls["n3"]) as two:
        for count in (one.peers.counters.refused, two.peers.counters.refused_by_peers):
            # Twice: as the one that was dialled and as the one that dialled.
            await until(lambda: count[Reason.TLS_NAME] >= 2, "the refusal")  # noqa: B023
        assert one.peers.connected() == {}
        assert not one.peers.send(two.identity, body("secret"))
        assert one.frames == two.frames == []


async def test_an_impostor_with_a_certificate_hears_why(
    ports: Mapping[str, int], tls: dict[str, PeerTls], authority: Authority
) -> None:
    context = stranger_context(tls["n3"], authority)
    async with PeerNode("n1", ports, tls=tls["n1"]) as one, await dial(one.port, context) as impostor:
        impostor.say_hello(hello_of("n2", "n1"))
        assert await impostor.hear(preface=True) == Refused(Reason.TLS_NAME)
        await impostor.hear_end()
        assert one.peers.counters.refused[Reason.TLS_NAME] == 1


async def test_without_a_certificate_of_the_authority_nobody_gets_in(
    ports: Mapping[str, int], tls: dict[str, PeerTls], authority: Authority, tmp_path: Path
) -> None:
    foreign = Authority(tmp_path, "foreign").issue("n2", subject="n2")
    async with PeerNode("n1", pair(ports), tls=tls["n1"]) as one:
        for own in (None, foreign):
            refused = one.peers.counters.refused[Reason.TLS_FAILED]
            unknown_peer = await dial(one.port, stranger_context(own, authority))
            unknown_peer.say_hello(hello_of("n2", "n1"))
            with pytest.raises((ssl.SSLError, ConnectionError, asyncio.IncompleteReadError)):
                await unknown_peer.hear(preface=True)
            unknown_peer.writer.transport.abort()
            await until(lambda: one.peers.counters.refused[Reason.TLS_FAILED] > refused, "it to be counted")  # noqa: B023
        assert one.frames == []


async def test_a_node_of_another_authority_is_not_dialled(
    ports: Mapping[str, int], tls: dict[str, PeerTls], tmp_path: Path
) -> None:
    foreign = Authority(tmp_path, "foreign").issue("n2", subject="n2")
    async with PeerNode("n1", pair(ports), tls=tls["n1"]) as one, PeerNode("n2", pair(ports), tls=foreign) as two:
        for node in (one, two):
            # Once as the one that dialled, once as the one that was dialled.
            await until(lambda: node.peers.counters.refused[Reason.TLS_FAILED] >= 2, "both directions to fail")  # noqa: B023
            assert node.peers.connected() == {}


async def test_plain_speakers_at_a_tls_port(ports: Mapping[str, int], tls: dict[str, PeerTls]) -> None:
    limits = PeerLimits(hello_seconds_max=0.5)
    async with (
        PeerNode("n1", ports, tls=tls["n1"], limits=limits) as one,
        PeerNode("n3", ports, tls=tls["n3"]) as three,
    ):
        await meet(one, three)
        async with PeerNode("n2", ports, limits=limits) as plain:
            await until(lambda: one.peers.counters.refused[Reason.TLS_FAILED], "the plain node to be refused")
            await until(lambda: plain.peers.counters.refused, "the TLS node to be refused")
            assert "n2" not in one.peers.connected()
            assert plain.peers.connected() == {}
        async with await UnknownPeer.dial(one.port) as unknown_peer:
            unknown_peer.say_hello(hello_of("n2", "n1"))
            assert not (await unknown_peer.hear_end()).startswith(PREFACE)
        late = one.peers.counters.refused[Reason.HELLO_LATE]  # others may have been, on a busy machine
        async with await UnknownPeer.dial(one.port) as silent:  # a handshake that never begins
            await silent.hear_end()
        await until(lambda: one.peers.counters.refused[Reason.HELLO_LATE] > late, "the silent one to be closed")
        assert one.peers.send(three.identity, body("still here"))
        await three.expect(body("still here"))


async def test_handshakes_that_never_end_are_bounded_too(ports: Mapping[str, int], tls: dict[str, PeerTls]) -> None:
    limits = PeerLimits(half_open_max=4, hello_seconds_max=60)
    async with PeerNode("n1", pair(ports), tls=tls["n1"], limits=limits) as one:
        silent = [await UnknownPeer.dial(one.port) for _ in range(12)]
        await until(lambda: one.peers.counters.refused[Reason.HALF_OPEN_MAX] == 8, "the oldest to make room")
        assert one.peers.half_open == 4
        async with PeerNode("n2", pair(ports), tls=tls["n2"]) as two:
            await meet(one, two)
        for unknown_peer in silent:
            await unknown_peer.leave()


async def test_files_that_cannot_be_used_stop_the_start(
    ports: Mapping[str, int], tls: dict[str, PeerTls], authority: Authority, tmp_path: Path
) -> None:
    good = tls["n1"]
    empty = tmp_path / "empty.pem"
    empty.write_bytes(b"")
    locked = tmp_path / "locked.key"
    command = ["openssl", "ec", "-in", str(good.key), "-aes128", "-passout", "pass:x", "-out", str(locked)]
    subprocess.run(command, check=True, capture_output=True)
    for wrong in (
        PeerTls(tmp_path / "missing.pem", good.key, good.authority),
        PeerTls(good.certificate, tls["n2"].key, good.authority),
        PeerTls(good.certificate, locked, good.authority),
        PeerTls(good.certificate, good.key, empty),
    ):
        node = PeerNode("n1", pair(ports), tls=wrong)
        with pytest.raises(CertificateError, match="cannot be used"):
            await node.peers.start(HOST, node.port)
        await node.peers.stop()


async def test_certificates_are_replaced_while_nodes_talk(
    ports: Mapping[str, int], authority: Authority, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even the authority is: first both are trusted, then all have certificates of the new one, then it is alone. No
    connection ends for it, and whoever comes afterwards gets in with the new one only."""
    monkeypatch.setattr(reloading, "POLL_SECONDS", 0.02)
    newer = Authority(tmp_path, "newer")
    used = {name: authority.issue(f"{name}-used", subject=name) for name in ("n1", "n2")}
    trusted = {name: tmp_path / f"{name}-trusted.pem" for name in used}
    for path in trusted.values():
        shutil.copy(authority.certificate, path)
    own = {name: PeerTls(item.certificate, item.key, trusted[name]) for name, item in used.items()}
    async with (
        PeerNode("n1", ports, tls=own["n1"]) as one,
        PeerNode("n2", ports, tls=own["n2"]) as two,
    ):
        nodes = {"n1": one, "n2": two}
        await until(lambda: one.peers.connected() and two.peers.connected(), "both to be connected")

        async def change(do: Callable[[str], object]) -> None:
            for name, node in nodes.items():
                certificates = node.peers.certificates
                assert certificates is not None
                before = certificates.reloads
                do(name)
                await until(lambda: certificates.reloads > before and not certificates.problem, "the new ones")  # noqa: B023
                for sender, receiver in ((one, two), (two, one)):
                    assert sender.peers.send(receiver.identity, body("still there"))

        both = authority.certificate.read_text() + newer.certificate.read_text()
        await change(lambda name: trusted[name].write_text(both))
        for name in nodes:
            used[name].key.write_text("half written")
        for node in nodes.values():
            await until(lambda: node.peers.certificates and node.peers.certificates.problem, "it to be noticed")  # noqa: B023

        def reissue(name: str) -> None:
            issued = newer.issue(f"{name}-new", subject=name)
            os.replace(issued.key, used[name].key)
            os.replace(issued.certificate, used[name].certificate)

        await change(reissue)
        await change(lambda name: trusted[name].write_text(newer.certificate.read_text()))
        assert sum(one.peers.counters.refused.values()) == 0
        old, new = authority.issue("n3-old", subject="n3"), newer.issue("n3-new", subject="n3")
        async with PeerNode("n3", ports, tls=PeerTls(new.certificate, new.key, newer.certificate)) as three:
            await meet(one, two, three)
        refused = one.peers.counters.refused[Reason.TLS_FAILED]
        async with PeerNode("n3", ports, tls=PeerTls(old.certificate, old.key, newer.certificate)):
            await until(lambda: one.peers.counters.refused[Reason.TLS_FAILED] > refused, "the old one to be refused")
