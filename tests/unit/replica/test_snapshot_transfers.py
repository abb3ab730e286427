"""Snapshots of a replica, where they meet its group: what no member can have sent is heard by neither side."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn, cast

import pytest

from holdfast.broker.replica.commit_loop import Message
from holdfast.broker.replica.snapshot_transfers import SnapshotTransfers
from holdfast.raft.messages import TERM_MAX, Configuration, ImpossibleMessageError
from holdfast.storage.snapshots.codec import decode, encode
from holdfast.storage.snapshots.directories import StateDirectories
from holdfast.storage.snapshots.messages import (
    Outcome,
    SnapshotBegin,
    SnapshotChunk,
    SnapshotDone,
    SnapshotFile,
    SnapshotMessage,
    SnapshotWants,
)
from holdfast.storage.snapshots.throttle import Throttle
from tests.unit.raft.raft_stage import Stage

DEADLINE_S = 20.0
BEGIN = SnapshotBegin(1, 70, 9, 1, Configuration.of(1, "abc"), (SnapshotFile("CURRENT", 5, 0),))


class Receiving:
    """b, which a leads in term 1, and what it says about snapshots."""

    def __init__(self, state_dir: Path) -> None:
        stage = Stage()
        stage.serve("a")
        replica = SimpleNamespace(raft=stage["b"], journal=stage.journals["b"], applied_index=2, number=0, group=1)
        self.said: asyncio.Queue[tuple[str, SnapshotMessage]] = asyncio.Queue()
        self.transfers = SnapshotTransfers(
            cast(Any, replica),
            StateDirectories(state_dir, 0),
            self,
            disk=cast(Any, SimpleNamespace(has_room_for=lambda _bytes: True)),
            throttle=Throttle(1e6, 1_000_000),
            slots=asyncio.Semaphore(1),
        )

    # The node.

    def send_snapshot_message(self, to: str, message: Message) -> None:
        self.said.put_nowait((to, decode(bytes(message[2]))))

    def open_state(self, directories: StateDirectories, name: str) -> NoReturn:
        pytest.fail("nothing is complete")

    def wake(self, number: int) -> None:
        """There are no rounds."""

    def state_replaced(self, number: int) -> None:
        pytest.fail("nothing is complete")

    async def answer(self) -> tuple[str, SnapshotMessage]:
        async with asyncio.timeout(DEADLINE_S):
            return await self.said.get()


@pytest.fixture
async def receiving(tmp_path: Path) -> AsyncIterator[Receiving]:
    made = Receiving(tmp_path)
    yield made
    await made.transfers.close()


@pytest.mark.parametrize(
    "message",
    [
        replace(BEGIN, term=TERM_MAX, id=71),
        SnapshotChunk(TERM_MAX, 70, 0, 0, 0, b"x"),
        SnapshotWants(TERM_MAX, 70, 0, 0),
        SnapshotDone(TERM_MAX, 70, 9, Outcome.INSTALLED),
    ],
)
async def test_a_term_that_no_member_can_have_is_refused(receiving: Receiving, message: SnapshotMessage) -> None:
    """Otherwise it would take the place of the leader's own snapshot, which is of an older term than that."""
    with pytest.raises(ImpossibleMessageError, match="too far ahead"):
        receiving.transfers.handle("c", encode(message))
    receiving.transfers.handle("a", encode(BEGIN))
    assert await receiving.answer() == ("a", SnapshotWants(1, 70, 0, 0))
    assert receiving.said.empty()
    assert receiving.transfers.receiver.origin == ("a", 1)
