"""A follower answers nobody: what it does for the others comes first, and it applies what is committed together."""

import asyncio
import time
from collections.abc import AsyncIterator

import pytest

from holdfast.broker.replica import replica as replica_module
from holdfast.broker.replica import shard as shard_module
from holdfast.broker.replica.replica import BEHIND_BYTES, BEHIND_ENTRIES
from holdfast.broker.replica.sync_mode import SyncMode
from holdfast.machine.entries import Enqueue
from holdfast.machine.entries import encode as encode_entry
from holdfast.raft.codec import encode
from holdfast.raft.messages import Append, EntryKind, LogEntry, TimeoutNow
from tests.unit.machine.machine_shard import START_MS, new_task
from tests.unit.replica.pair_scene import GROUP, OTHER, SHARD, Scene
from tests.unit.replica.small_shard import settle


class AlwaysInLine(SyncMode):
    def is_in_line(self, size_bytes: int) -> bool:
        return True


class Following:
    """The other leads, and has committed all that it sent before."""

    def __init__(self, scene: Scene) -> None:
        self.scene = scene
        self.replica = scene.replica
        self.term = scene.replica.raft.term + 1
        self.index = scene.replica.raft.last_index
        self.last_term = scene.replica.raft.term
        self.sent = 0

    async def send(self, *sizes: int) -> None:
        entries: list[LogEntry] = []
        for size in sizes:
            task = new_task(envelope=bytes(size))
            command = encode_entry(Enqueue(START_MS, [task]))
            entries.append(LogEntry(self.index + len(entries) + 1, self.term, EntryKind.REGULAR, command))
        self.sent += 1
        append = Append(self.term, self.index, self.last_term, tuple(entries), self.index, self.sent)
        if entries:
            self.index, self.last_term = entries[-1].index, self.term
        self.scene.commit_loop.receive(OTHER, [(SHARD, GROUP, encode(append))])
        await settle()


@pytest.fixture
async def following(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Following]:
    monkeypatch.setattr(replica_module, "BEHIND_SECONDS", 1000.0)
    for name in ("SLICE_SECONDS", "APPLY_SECONDS_MAX"):  # a busy machine would leave some of it for later
        monkeypatch.setattr(shard_module, name, 1000.0)
    scene = await Scene(AlwaysInLine()).leading()
    scene.other.listens = False
    following = Following(scene)
    await following.send()
    assert not scene.shard.serves
    yield following
    await scene.stop()


async def test_it_applies_what_is_committed_together(following: Following) -> None:
    before = following.replica.applied_index
    for _ in range(BEHIND_ENTRIES):
        await following.send(10)
        assert following.replica.applied_index == before
    assert following.replica.raft.last_index == before + BEHIND_ENTRIES
    await following.send()
    assert following.replica.applied_index == before + BEHIND_ENTRIES


async def test_it_does_not_leave_much_of_it(following: Following) -> None:
    before = following.replica.applied_index
    await following.send(BEHIND_BYTES)
    await following.send()
    assert following.replica.applied_index == before + 1


async def test_it_does_not_leave_it_for_long(following: Following, monkeypatch: pytest.MonkeyPatch) -> None:
    before = following.replica.applied_index
    monkeypatch.setattr(replica_module, "BEHIND_SECONDS", 0.02)
    await following.send(10)
    await following.send()
    began_s = time.monotonic()
    async with asyncio.timeout(20):
        while following.replica.applied_index == before:
            await following.replica.next_round()
    assert time.monotonic() - began_s > 0.01


async def test_timers_that_come_too_early_cost_no_rounds(following: Following, monkeypatch: pytest.MonkeyPatch) -> None:
    """Some event loops round to whole milliseconds."""
    before, loop = following.replica.applied_index, asyncio.get_running_loop()
    call_later = loop.call_later
    monkeypatch.setattr(loop, "call_later", lambda delay_s, act: call_later(int(delay_s * 1000) / 1000, act))
    monkeypatch.setattr(replica_module, "BEHIND_SECONDS", 0.0207)
    await following.send(10)
    await following.send()
    rounds = following.scene.rounds
    async with asyncio.timeout(20):
        while following.replica.applied_index == before:
            await following.replica.next_round()
    assert following.scene.rounds - rounds <= 2


async def test_who_is_to_lead_applies_all_of_it(following: Following) -> None:
    before = following.replica.applied_index
    await following.send(10)
    await following.send()
    assert following.replica.applied_index == before
    following.scene.commit_loop.receive(OTHER, [(SHARD, GROUP, encode(TimeoutNow(following.term)))])
    await settle()
    assert following.replica.applied_index == before + 1


async def test_its_promises_leave_before_it_applies_what_earlier_rounds_have_committed(
    following: Following, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replica_module, "BEHIND_ENTRIES", 1)
    applied_at_ack: list[int] = []
    before = following.replica.applied_index
    wire = following.scene.other
    monkeypatch.setattr(wire, "send", lambda *_: applied_at_ack.append(following.replica.applied_index))
    await following.send(10)
    await following.send(10)
    await following.send()
    assert applied_at_ack == [before, before, before + 1]
    assert following.replica.applied_index == before + 2
