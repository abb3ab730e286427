"""Nodes whose list of the others changes while they run: who is dialled, who is welcome, and who is not any more."""

import asyncio
from collections.abc import Mapping

import pytest

from holdfast.broker.peers import Reason
from holdfast.broker.peers.frames import HEAD_BYTES
from holdfast.broker.peers.words import Hello, Refused
from tests.integration.peer_nodes import HOST, Listener, PeerNode, UnknownPeer, body, hello_of, meet, pair, until


def addresses(ports: Mapping[str, int], *names: str) -> dict[str, tuple[str, int]]:
    return {name: (HOST, ports[name]) for name in names}


async def test_nodes_that_learn_of_each_other_at_run_time_talk(ports: Mapping[str, int]) -> None:
    """Lists that differ are no hindrance: the digest is what both sides were given, not made of the list."""
    async with (
        PeerNode("n1", ports, addresses={}) as one,
        PeerNode("n2", ports, addresses=addresses(ports, "n1")) as two,
        PeerNode("n3", ports, addresses={}) as three,
    ):
        await until(lambda: two.peers.counters.refused_by_peers[Reason.UNKNOWN_NODE] >= 2, "n2 to be refused")
        assert not two.peers.connected()
        one.peers.set_addresses(addresses(ports, "n2", "n3"))
        await meet(one, two)
        three.peers.set_addresses(addresses(ports, "n1"))
        await meet(one, three)
        assert one.peers.send(three.identity, body("late"))
        await three.expect(body("late"))
        assert set(one.peers.connected()) == {"n2", "n3"}
        assert one.changes >= 2


async def test_addresses_may_be_given_before_the_start(ports: Mapping[str, int]) -> None:
    one = PeerNode("n1", pair(ports), addresses=addresses(ports, "n3"))
    one.peers.set_addresses(addresses(ports, "n2"))
    async with one, PeerNode("n2", pair(ports)) as two:
        await meet(one, two)
        async with await UnknownPeer.dial(one.port) as third:
            third.say_hello(hello_of("n3", "n1"))
            assert await third.hear(preface=True) == Refused(Reason.UNKNOWN_NODE)


async def test_who_is_gone_is_neither_dialled_nor_welcome(ports: Mapping[str, int]) -> None:
    async with PeerNode("n1", ports) as one, PeerNode("n2", ports) as two, PeerNode("n3", ports) as three:
        await meet(one, two, three)
        one.peers.set_addresses(addresses(ports, "n3"))
        assert set(one.peers.connected()) == {"n3"}, "at once"
        assert not one.peers.send(two.identity, body("no more"))
        await until(lambda: "n1" not in two.peers.connected(), "n2 to notice")
        refused = two.peers.counters.refused_by_peers
        await until(lambda: refused[Reason.UNKNOWN_NODE] >= 3, "n2 to try again in vain")
        assert one.peers.send(three.identity, body("the others go on"))
        await three.expect(body("the others go on"))
        assert one.hears(three)
        assert not one.hears(two)
        one.peers.set_addresses(addresses(ports, "n2", "n3"))
        await meet(one, two, three)


async def test_nobody_dials_who_is_gone(ports: Mapping[str, int]) -> None:
    async with PeerNode("n1", pair(ports)) as one, await Listener.at(ports["n2"]) as place:
        await place.next()  # it has not said anything yet: the dial is under way
        one.peers.set_addresses({})
        dialling = [task for task in asyncio.all_tasks() if task.get_name().startswith("peers dial")]
        await asyncio.gather(*dialling, return_exceptions=True)
        assert not [task for task in asyncio.all_tasks() if task.get_name().startswith("peers dial")]


async def test_a_node_that_moved_is_dialled_where_it_is(ports: Mapping[str, int]) -> None:
    moved = {"n1": ports["n1"], "n2": ports["n3"]}
    async with PeerNode("n1", pair(ports)) as one:
        async with PeerNode("n2", pair(ports)) as two:
            await meet(one, two)
        async with PeerNode("n2", moved) as two:
            await until(lambda: two.peers.connected(), "n2 to dial from its new place")
            assert not one.peers.connected(), "n1 cannot know yet"
            one.peers.set_addresses({"n2": (HOST, moved["n2"])})
            await meet(one, two)
            assert one.peers.send(two.identity, body("there"))
            await two.expect(body("there"))


async def test_a_connection_to_the_old_place_ends_even_if_somebody_answers_there(ports: Mapping[str, int]) -> None:
    """The hello of the old place comes after the address changed, on a connection that was made before."""
    async with PeerNode("n1", pair(ports)) as one, await Listener.at(ports["n2"]) as old:
        unknown_peer = await old.next()
        assert isinstance(await unknown_peer.hear(preface=True), Hello)
        unknown_peer.say_hello(hello_of("n2", "n1"))
        one.peers.set_addresses({"n2": (HOST, ports["n3"])})
        async with await Listener.at(ports["n3"]) as new:
            there = await new.next()
            assert isinstance(await there.hear(preface=True), Hello)
            there.say_hello(hello_of("n2", "n1"))
            await until(lambda: one.peers.connected(), "n1 to be connected to the new place")
            assert one.peers.send(one.peers.connected()["n2"].identity, body("new"))
            assert body("new") in await there.reader.readexactly(HEAD_BYTES + len(body("new")))
            await unknown_peer.hear_end()


async def test_the_same_addresses_again_change_nothing(ports: Mapping[str, int]) -> None:
    async with PeerNode("n1", pair(ports)) as one, PeerNode("n2", pair(ports)) as two:
        await meet(one, two)
        made = one.peers.counters.connections_made
        for _ in range(3):
            one.peers.set_addresses(addresses(ports, "n2"))
        assert one.peers.send(two.identity, body("still"))
        await two.expect(body("still"))
        assert one.peers.counters.connections_made == made


async def test_an_address_that_goes_and_comes_back_at_once_leaves_one_connection(ports: Mapping[str, int]) -> None:
    async with PeerNode("n1", pair(ports)) as one, PeerNode("n2", pair(ports)) as two:
        await meet(one, two)
        for _ in range(20):
            one.peers.set_addresses({"n2": (HOST, ports["n3"])})
            one.peers.set_addresses(addresses(ports, "n2"))
            await asyncio.sleep(0)
        await meet(one, two)
        await until(lambda: one.peers.send(two.identity, body("one")), "a frame to be taken")
        await two.expect(body("one"))
        await until(lambda: two.bodies.count(body("one")) == 1, "it to come once")


async def test_a_hello_under_way_is_judged_by_the_newest_list(ports: Mapping[str, int]) -> None:
    async with PeerNode("n1", pair(ports)) as one, await UnknownPeer.dial(ports["n1"]) as late:
        one.peers.set_addresses({})
        late.say_hello(hello_of("n2", "n1"))
        assert await late.hear(preface=True) == Refused(Reason.UNKNOWN_NODE)


async def test_a_stopped_node_dials_nobody(ports: Mapping[str, int]) -> None:
    one = PeerNode("n1", pair(ports))
    async with one:
        pass
    one.peers.set_addresses(addresses(ports, "n2", "n3"))
    assert not [task for task in asyncio.all_tasks() if task.get_name().startswith("peers dial")]


async def test_addresses_that_cannot_be_right_change_nothing(ports: Mapping[str, int]) -> None:
    async with PeerNode("n1", pair(ports)) as one, PeerNode("n2", pair(ports)) as two:
        await meet(one, two)
        for wrong in (addresses(ports, "n1"), {"no name": (HOST, 1)}):
            with pytest.raises(ValueError, match="Expected"):
                one.peers.set_addresses(wrong)
        assert one.hears(two)
        assert two.hears(one)


async def test_a_name_that_cannot_be_one_is_tried_again_like_one_that_nobody_has(ports: Mapping[str, int]) -> None:
    """`a..b` is refused before any server of names is asked, in another way than a name that is unknown."""
    nowhere = {"n2": ("a..b", ports["n2"]), "n3": (HOST, ports["n3"])}
    async with PeerNode("n1", ports, addresses=nowhere) as one, PeerNode("n3", ports) as three:
        await meet(one, three)
        await until(lambda: one.peers.counters.dials_failed >= 2, "n1 to try again")
