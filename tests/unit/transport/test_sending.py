"""Attempts of one call over the network's twin."""

import asyncio
from collections.abc import Collection, Sequence

import pytest

from holdfast.routing.leaders import KnownLeader
from holdfast.transport.channels import CallFailedError, Metadata, OutgoingCall
from holdfast.transport.giving_up import ENDLESS, GivingUp, Patience
from holdfast.transport.in_memory import MemoryNetwork
from holdfast.transport.sending import LeaderCall, Sender


class Leader(KnownLeader):
    def candidates(self) -> Sequence[str]:
        return ("a", "b")

    def pick(self, _now_s: float, avoid: Collection[str] = ()) -> str | None:
        return next((candidate for candidate in self.candidates() if candidate not in avoid), None)


class Twice(LeaderCall):
    """Goes from a to b after any failure, and from there nowhere."""

    def __init__(self, network: MemoryNetwork, *, may_repeat: bool = True) -> None:
        super().__init__(Leader(), 0, "a")
        self._network = network
        self._may_repeat = may_repeat
        self.timeout_s = 10.0
        self.noted: list[str] = []

    async def begin(self, _patience: Patience) -> OutgoingCall:
        return self._network.call(self.address, "/s/M", b"q", None, self.timeout_s)

    def may_repeat(self) -> bool:
        return self._may_repeat

    def note(self, failure: CallFailedError) -> None:
        self.noted.append(failure.code)

    def after(self, failure: CallFailedError, _now_s: float) -> float | None:
        self.note(failure)
        if self.address == "b":
            return None
        self.address = "b"
        return 0.001

    def last_word(self, failure: CallFailedError) -> Exception:
        return LookupError(failure.code)


class Others:
    """Say that b leads."""

    async def who_leads(self, _addresses: Sequence[str], _shard: int | None, _timeout_s: float) -> tuple[str, int]:
        return ("b", 1)

    async def waits_for_leader(self, _address: str, _shard: int | None, _timeout_s: float) -> bool:
        return False


@pytest.fixture
def network() -> MemoryNetwork:
    network = MemoryNetwork(lambda: 0.0, lambda: False)
    for address in ("a", "b"):

        def serve(_path: str, data: bytes, _metadata: Metadata, address: str = address) -> bytes:
            return data + address.encode()

        network.add(address, serve)
    return network


@pytest.fixture
def sender() -> Sender:
    return Sender(Others())


async def test_whoever_answers_leads(network: MemoryNetwork, sender: Sender) -> None:
    call = Twice(network)
    assert await sender.send(call, ENDLESS) == b"qa"
    assert (call.leader.named, sender.repeated) == ("a", 0)
    await sender.close()


async def test_a_call_goes_on_where_its_side_says(network: MemoryNetwork, sender: Sender) -> None:
    network.stop("a")
    call = Twice(network)
    assert await sender.send(call, ENDLESS) == b"qb"
    assert (call.noted, call.leader.named, sender.repeated) == (["UNAVAILABLE"], "b", 1)
    await sender.close()


async def test_the_last_word_is_that_of_its_side(network: MemoryNetwork, sender: Sender) -> None:
    network.stop("a")
    network.stop("b")
    with pytest.raises(LookupError) as raised:
        await sender.send(Twice(network), ENDLESS)
    assert isinstance(raised.value.__cause__, CallFailedError)
    await sender.close()


async def test_a_call_leaves_a_silent_server(network: MemoryNetwork, sender: Sender) -> None:
    network.silence("a")
    call = Twice(network)
    assert await sender.send(call, ENDLESS) == b"qb"
    assert call.noted == ["CANCELLED"]
    await sender.close()


async def test_a_call_that_must_not_be_repeated_waits_for_a_silent_server(
    network: MemoryNetwork, sender: Sender
) -> None:
    network.silence("a")
    sending = asyncio.create_task(sender.send(Twice(network, may_repeat=False), ENDLESS))
    await asyncio.sleep(1.2)
    assert not sending.done()
    network.resume("a")
    assert await sending == b"qa"
    await sender.close()


async def test_a_call_that_is_given_up_is_not_sent_again(network: MemoryNetwork, sender: Sender) -> None:
    network.silence("a")
    giving_up, call = GivingUp(), Twice(network)
    sending = asyncio.create_task(sender.send(call, giving_up))
    await asyncio.sleep(0.01)
    giving_up.give_up()
    with pytest.raises(LookupError):
        await sending
    assert (call.noted, sender.repeated) == (["CANCELLED"], 0)
    await sender.close()
