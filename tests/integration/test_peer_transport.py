"""Nodes that talk over real sockets: who hears whom, and what happens to what does not get through."""

import asyncio
import signal
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
import structlog

from holdfast.broker.peers import PeerInfo, PeerLimits, Reason
from holdfast.broker.peers.dialling import Dialler
from holdfast.broker.peers.listening import Acceptor
from holdfast.broker.peers.words import Hello, Refused
from tests.integration.peer_nodes import DEADLINE_S, PeerNode, UnknownPeer, body, hello_of, meet, pair, until

REPO = Path(__file__).resolve().parents[2]


async def test_two_nodes_talk_in_order(ports: Mapping[str, int]) -> None:
    async with PeerNode("n1", pair(ports)) as one, PeerNode("n2", pair(ports)) as two:
        await meet(one, two)
        for number in range(1000):
            assert one.peers.send(two.identity, body(number))
        assert two.peers.send(one.identity, body("back"))
        await two.expect(body(999))
        await one.expect(body("back"))
        assert two.frames == [(one.identity, body(number)) for number in range(1000)]
        assert one.frames == [(two.identity, body("back"))]
        assert one.peers.counters.frames_sent == two.peers.counters.frames_received == 1000
        assert one.peers.counters.bytes_sent == two.peers.counters.bytes_received
        assert one.changes >= 1


async def test_three_nodes_talk_each_with_each(ports: Mapping[str, int]) -> None:
    async with PeerNode("n1", ports) as one, PeerNode("n2", ports) as two, PeerNode("n3", ports) as three:
        nodes = (one, two, three)
        await meet(*nodes)
        for sender in nodes:
            for receiver in nodes:
                if sender is not receiver:
                    assert sender.peers.send(receiver.identity, body(sender.name))
        for node in nodes:
            others = {(other.identity, body(other.name)) for other in nodes if other is not node}
            await until(lambda node=node: len(node.frames) == 2, "two frames")  # type: ignore[misc]
            assert set(node.frames) == others


async def test_a_large_frame_arrives_whole_between_small_ones(ports: Mapping[str, int]) -> None:
    large = b"\x01" + bytes(range(256)) * (8 * 1024 * 4 - 1)  # almost the limit of 8 MiB
    async with PeerNode("n1", pair(ports)) as one, PeerNode("n2", pair(ports)) as two:
        await meet(one, two)
        for frame in (body("before"), large, body("between"), large, body("after")):
            assert one.peers.send(two.identity, frame)
        await two.expect(body("after"))
        assert two.bodies == [body("before"), large, body("between"), large, body("after")]


async def test_what_no_frame_can_carry_is_the_fault_of_the_sender(ports: Mapping[str, int]) -> None:
    limits = PeerLimits(body_bytes_max=100)
    async with PeerNode("n1", pair(ports), limits=limits) as one:
        for wrong in (b"", b"\x00word", b"\x01" + bytes(100)):
            with pytest.raises(ValueError, match="Expected a body"):
                one.peers.send("n2/x", wrong)


async def test_a_frame_goes_to_an_identity_and_not_to_a_name(ports: Mapping[str, int]) -> None:
    """What was meant for a replica whose disk is lost must not reach the one that came in its place."""
    async with PeerNode("n1", pair(ports)) as one:
        async with PeerNode("n2", pair(ports), number=22) as old:
            await meet(one, old)
        await until(lambda: not one.peers.connected(), "the old one to be gone")
        assert not one.peers.send(old.identity, body("nobody"))
        async with PeerNode("n2", pair(ports), number=23) as new:
            await meet(one, new)
            assert one.peers.connected() == {"n2": PeerInfo(new.identity, empty=True)}
            assert not one.peers.send(old.identity, body("for the old one"))
            assert one.peers.send(new.identity, body("for the new one"))
            await new.expect(body("for the new one"))
            assert new.bodies == [body("for the new one")]
        assert one.peers.counters.frames_dropped_unconnected == 2


async def test_of_two_nodes_with_one_name_the_one_that_is_there_stays(
    ports: Mapping[str, int],
) -> None:
    """They would push each other out for ever: somebody forgot to give one of them its name."""
    async with PeerNode("n1", pair(ports)) as one, PeerNode("n2", pair(ports)) as two:
        await meet(one, two)
        changes = one.changes
        with structlog.testing.capture_logs() as logs:
            for _ in range(3):
                assert two.peers.send(one.identity, body("here"))
                await one.expect(body("here"))
                one.frames.clear()
                async with await UnknownPeer.dial(one.port) as twin:
                    twin.say_hello(hello_of("n2", "n1", number=77))
                    assert await twin.hear(preface=True) == Refused(Reason.TWO_OF_ONE_NAME)
                    assert await twin.hear_end() == b""
        assert (one.changes, one.peers.counters.refused[Reason.TWO_OF_ONE_NAME]) == (changes, 3)
        assert one.hears(two)
        assert two.hears(one)
    [said] = logs  # the same is not said again and again
    assert (said["event"], said["node"]) == ("connection refused", "n2")
    assert said["found"].startswith(f"two nodes call themselves n2: {two.identity} at ")


async def test_the_one_that_is_refused_says_so_itself(ports: Mapping[str, int]) -> None:
    async with PeerNode("n1", pair(ports)) as one, PeerNode("n2", pair(ports)) as two:
        await meet(one, two)
        with structlog.testing.capture_logs() as logs:
            async with PeerNode("n2", {"n1": ports["n1"], "n2": ports["n3"]}, number=77) as twin:
                refused = twin.peers.counters.refused_by_peers
                await until(lambda: refused[Reason.TWO_OF_ONE_NAME] >= 2, "the twin to be refused")
                assert not twin.peers.connected()
    [said] = [log for log in logs if log["event"] == "another node refuses a connection"]
    assert said["found"] == "two nodes call themselves n2: this one and another"


async def test_a_node_with_another_disk_gets_in_once_the_old_connection_is_silent(ports: Mapping[str, int]) -> None:
    """Its machine lost its power, so nobody closed the connection."""
    limits = PeerLimits(dead_seconds=1.0)
    async with PeerNode("n1", pair(ports), limits=limits) as one, await UnknownPeer.dial(one.port) as old:
        old.say_hello(hello_of("n2", "n1", number=76))
        assert isinstance(await old.hear(preface=True), Hello)

        def is_refused() -> bool:
            old.frame(body("here"))  # it is fresh until the new one was there
            return one.peers.counters.refused[Reason.TWO_OF_ONE_NAME] > 0

        async with PeerNode("n2", pair(ports), number=77) as new:
            await until(is_refused, "the new one to be tried while the old one was fresh")
            await meet(one, new)
            assert await old.hear() == Refused(Reason.REPLACED)


async def test_a_repeated_connection_takes_the_place_of_the_first(ports: Mapping[str, int]) -> None:
    """A node that came back before its old connection was found dead."""
    async with (
        PeerNode("n1", pair(ports)) as one,
        await UnknownPeer.dial(one.port) as first,
        await UnknownPeer.dial(one.port) as second,
    ):
        for unknown_peer in (first, second):
            unknown_peer.say_hello(hello_of("n2", "n1"))
            await unknown_peer.hear(preface=True)
        assert await first.hear() == Refused(Reason.REPLACED)
        assert await first.hear_end() == b""
        second.frame(body("second"))
        await one.expect(body("second"))


async def test_nodes_that_were_killed_come_back(ports: Mapping[str, int]) -> None:
    command = [sys.executable, "-m", "tests.integration.peer_nodes", "n2"]
    pairs = [f"{name}={port}" for name, port in pair(ports).items()]
    roots = ":".join(str(REPO / root) for root in ("proto", "common", "client", "router", "broker"))
    async with PeerNode("n1", pair(ports)) as one:
        for number in (31, 31, 32):  # the same disk twice, then another one
            process = subprocess.Popen(
                [*command, str(number), *pairs], cwd=REPO, env={"PYTHONPATH": roots}, stdout=subprocess.DEVNULL
            )
            try:
                await until(lambda: "n2" in one.peers.connected(), "the other to be connected")
                identity = one.peers.connected()["n2"].identity
                assert int(identity.partition("/")[2], 16) == number
                one.frames.clear()
                await until(lambda: one.peers.send(identity, body("ping")) and one.frames, "an answer")  # noqa: B023
                assert one.frames[0] == (identity, body("ping"))
            finally:
                process.send_signal(signal.SIGKILL)
                process.wait()
            await until(lambda: not one.peers.connected(), "the death to be noticed")


async def test_what_was_sent_before_a_stop_still_arrives(ports: Mapping[str, int]) -> None:
    async with PeerNode("n1", pair(ports)) as one:
        async with PeerNode("n2", pair(ports)) as two:
            await meet(one, two)
            for number in range(100):
                assert two.peers.send(one.identity, body(number))
        await one.expect(body(99))
        assert two.peers.connected() == {}


async def test_a_port_that_is_taken_is_an_error(ports: Mapping[str, int]) -> None:
    async with PeerNode("n1", pair(ports)):
        other = PeerNode("n1", pair(ports))
        with pytest.raises(OSError, match="in use"):
            await other.peers.start("127.0.0.1", other.port)
        await other.peers.stop()


# --- slow readers ---------------------------------------------------------------------------------------------


async def test_frames_for_a_slow_reader_are_dropped_beyond_the_bound(ports: Mapping[str, int]) -> None:
    limits = PeerLimits(body_bytes_max=200_000, outgoing_bytes_max=1_000_000, dead_seconds=60)
    async with PeerNode("n1", pair(ports), limits=limits) as one, PeerNode("n2", pair(ports), limits=limits) as two:
        await meet(one, two)
        two.peers.pause_reading()
        taken: list[int] = []
        number = 0
        while one.peers.counters.frames_dropped_full < 50:  # the kernel's buffers are filled first
            if one.peers.send(two.identity, body(number) + bytes(100_000)):
                taken.append(number)
            assert one.peers.waiting_bytes(two.identity) <= limits.outgoing_bytes_max + 8
            number += 1
            await asyncio.sleep(0)
        assert one.peers.waiting_bytes(two.identity) > 500_000
        assert two.peers.send(one.identity, body("the other direction is free"))
        await one.expect(body("the other direction is free"))

        two.peers.resume_reading()
        await until(lambda: len(two.frames) == len(taken), "all that was taken")
        assert two.bodies == [body(number) + bytes(100_000) for number in taken]
        assert one.peers.waiting_bytes(two.identity) == 0
        assert one.peers.send(two.identity, body("after"))
        await two.expect(body("after"))
        assert one.peers.counters.connections_made == 2, "the connection survived"


async def test_a_frame_that_is_larger_than_what_may_wait_still_leaves(ports: Mapping[str, int]) -> None:
    """The log may have entries from a time when more was allowed in one call."""
    limits = PeerLimits(body_bytes_max=20_000_000, outgoing_bytes_max=200_000, dead_seconds=60)
    large = body("large") + bytes(limits.body_bytes_max - 100)
    async with PeerNode("n1", pair(ports), limits=limits) as one, PeerNode("n2", pair(ports), limits=limits) as two:
        await meet(one, two)
        assert one.peers.send(two.identity, body("a few") + bytes(50_000))
        assert one.peers.send(two.identity, large)
        assert not one.peers.send(two.identity, large), "one at a time"
        await two.expect(large)
        assert one.peers.send(two.identity, large)
        await until(lambda: len(two.frames) == 3, "both of them")


async def test_who_takes_nothing_for_long_is_dialled_again(ports: Mapping[str, int]) -> None:
    limits = PeerLimits(body_bytes_max=200_000, outgoing_bytes_max=1_000_000, dead_seconds=0.5, redial_seconds_max=0.1)
    async with PeerNode("n1", pair(ports), limits=limits) as one, PeerNode("n2", pair(ports)) as two:
        await meet(one, two)
        two.peers.pause_reading()

        def is_dialled_again() -> bool:
            one.peers.send(two.identity, body("x") + bytes(100_000))
            return one.peers.counters.connections_made > 2

        await until(is_dialled_again, "the connection to be given up")
        two.peers.resume_reading()
        await until(lambda: one.peers.send(two.identity, body("at last")), "the node to be connected again")
        await two.expect(body("at last"))


async def test_a_pause_holds_what_has_come_already(ports: Mapping[str, int]) -> None:
    """Many frames come with one read. Each is handed on only when the node wants one more."""
    async with PeerNode("n1", pair(ports)) as one, PeerNode("n2", pair(ports)) as two:
        await meet(one, two)
        two.on_frame = two.peers.pause_reading
        for number in range(50):
            assert one.peers.send(two.identity, body(number))
        for number in range(50):
            await until(lambda: two.frames, "a frame")
            assert two.bodies == [body(number)]
            two.frames.clear()
            two.peers.resume_reading()
        two.on_frame = lambda: None
        two.peers.resume_reading()
        assert one.peers.send(two.identity, body("last"))
        await two.expect(body("last"))


async def test_who_connects_during_a_pause_waits_too(ports: Mapping[str, int]) -> None:
    async with PeerNode("n1", pair(ports)) as one:
        one.peers.pause_reading()
        async with PeerNode("n2", pair(ports)) as two:
            await meet(one, two)
            assert two.peers.send(one.identity, body("held"))
            assert not await one.peers.all_empty(0.0)
            assert await one.peers.all_empty(DEADLINE_S), "n2 reads and answers"
            assert not await two.peers.all_empty(0.05), "n1 reads nothing"
            assert one.frames == []
            one.peers.resume_reading()
            await one.expect(body("held"))
            assert await two.peers.all_empty(DEADLINE_S)


# --- founding -------------------------------------------------------------------------------------------------


async def test_a_founder_learns_who_is_empty_now(ports: Mapping[str, int]) -> None:
    async with PeerNode("n1", ports) as one, PeerNode("n2", ports) as two:
        await meet(one, two)
        assert not await one.peers.all_empty(), "n3 is not there"
        async with PeerNode("n3", ports) as three:
            await meet(one, two, three)
            assert await one.peers.all_empty(DEADLINE_S)
            three.is_empty = False
            assert one.peers.connected()["n3"].empty, "as it said in its hello"
            changes = one.changes
            assert not await one.peers.all_empty(DEADLINE_S)
            assert not one.peers.connected()["n3"].empty
            assert one.peers.connected()["n2"].empty
            await until(lambda: one.changes > changes, "the change to be told")
        await until(lambda: "n3" not in one.peers.connected(), "n3 to be gone")
        assert not await one.peers.all_empty()


async def test_a_hello_says_whether_its_sender_is_empty(ports: Mapping[str, int]) -> None:
    two = PeerNode("n2", pair(ports))
    two.is_empty = False
    async with PeerNode("n1", pair(ports)) as one, two:
        await meet(one, two)
        assert one.peers.connected() == {"n2": PeerInfo(two.identity, empty=False)}
        assert two.peers.connected() == {"n1": PeerInfo(one.identity, empty=True)}


async def test_a_node_alone_has_nobody_to_ask(ports: Mapping[str, int]) -> None:
    async with PeerNode("n1", {"n1": ports["n1"]}) as one:
        assert await one.peers.all_empty()


def test_a_node_is_not_its_own_peer(ports: Mapping[str, int]) -> None:
    with pytest.raises(ValueError, match="n1 itself"):
        PeerNode("n1", ports, addresses={"n1": ("127.0.0.1", 1)})


def test_names_are_checked_at_once(ports: Mapping[str, int]) -> None:
    for wrong in ({"cluster": "a b"}, {"addresses": {"n/2": ("127.0.0.1", 1)}}, {"node_id": "short"}):
        with pytest.raises(ValueError, match="Expected"):
            PeerNode("n1", ports, **wrong)
    assert replace(hello_of("n1", "n2"), name="n2").identity.startswith("n2/")


@pytest.mark.parametrize(("part", "work"), [(Dialler, "run"), (Acceptor, "_accept")])
async def test_a_bug_that_ends_what_dials_or_listens_is_known(
    ports: Mapping[str, int], monkeypatch: pytest.MonkeyPatch, part: type[object], work: str
) -> None:
    """Nobody would connect any more, and nobody would say so."""

    async def broken(*_args: object) -> None:
        raise ArithmeticError("a bug")

    monkeypatch.setattr(part, work, broken)
    async with PeerNode("n1", pair(ports)) as one:
        await until(lambda: isinstance(one.peers.failed(), ArithmeticError), "the failure to be known")
