"""Rules of the two sides that a whole transfer does not show: what they do not believe, and what they do not answer."""

import asyncio
import errno
import zlib
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass, field, replace
from functools import wraps
from pathlib import Path
from typing import Any, TypeVar

import pytest

from holdfast.raft.messages import Configuration
from holdfast.storage.snapshots.checkpoint import CheckpointPoint
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
from holdfast.storage.snapshots.receiving import ReceiveSettings, SnapshotReceiver
from holdfast.storage.snapshots.sending import SendSettings, SnapshotSender
from holdfast.storage.snapshots.throttle import Throttle
from tests.simulation import virtual_time
from tests.simulation.snapshot_files import PowerCutFiles

Result = TypeVar("Result")

LEADER, FOLLOWER = "n1/leader", "n2/follower"
TABLE = bytes(range(200)) * 5
CURRENT = b"MANIFEST-000005\n"
FILES = (
    SnapshotFile("000004.log", 0, 0),
    SnapshotFile("000008.sst", len(TABLE), zlib.crc32(TABLE)),
    SnapshotFile("CURRENT", len(CURRENT), zlib.crc32(CURRENT)),
)
BEGIN = SnapshotBegin(5, 70, 9, 4, Configuration(1, (LEADER, FOLLOWER)), FILES)


def in_virtual_time(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Nobody really waits."""

    @wraps(test)
    def run(**given: Any) -> None:
        virtual_time.run(lambda: test(**given), 0)

    return run


async def at_once(function: Callable[[], Result]) -> Result:
    return function()


def chunk(file_number: int, offset: int, data: bytes) -> SnapshotChunk:
    return SnapshotChunk(5, 70, file_number, offset, zlib.crc32(data), data)


@dataclass
class Stage:
    """A receiver, and what it says."""

    files: PowerCutFiles = field(default_factory=PowerCutFiles)
    index: int = 0
    term: int = 5
    said: list[SnapshotMessage] = field(default_factory=list)
    installed: list[tuple[str, int, int, Configuration]] = field(default_factory=list)
    room_bytes: int = 1 << 30
    settings: ReceiveSettings = field(default_factory=ReceiveSettings)
    installs: bool = True
    works: int = 1  # 0: whether a snapshot is needed cannot be told
    index_at_install: int = 0  # how far the replica is by itself when a snapshot is there
    before_install: Callable[[], Awaitable[object]] | None = None

    def __post_init__(self) -> None:
        self.directories = StateDirectories(Path("/state"), 0, self.files)
        self.receiver = SnapshotReceiver(self.directories, self, run_blocking=at_once, settings=self.settings)

    def send(self, to: str, message: SnapshotMessage) -> None:
        self.said.append(message)

    def is_needed(self, index: int, term: int) -> bool:
        return index > self.index // self.works

    def may_take(self, size_bytes: int) -> bool:
        return size_bytes < self.room_bytes

    async def install(self, directory: Path, index: int, index_term: int, configuration: Configuration) -> bool:
        if self.before_install is not None:
            await self.before_install()
        self.index = self.index_at_install
        if not self.installs:
            return False
        self.directories.adopt(directory, self.directories.new_name(index))
        self.index = index
        self.installed.append((directory.name, index, index_term, configuration))
        return True

    async def hear(self, *messages: SnapshotMessage) -> list[SnapshotMessage]:
        """What it says to these."""
        self.said.clear()
        for message in messages:
            self.receiver.handle(LEADER, message)
        await asyncio.sleep(1)
        return list(self.said)


def wants(file_number: int, offset: int) -> SnapshotWants:
    return SnapshotWants(5, 70, file_number, offset)


def done(outcome: Outcome) -> SnapshotDone:
    return SnapshotDone(5, 70, 9, outcome)


@in_virtual_time
async def test_a_transfer_message_by_message() -> None:
    stage = Stage()
    assert await stage.hear(BEGIN) == [wants(1, 0)], "an empty file needs no chunk"
    assert await stage.hear(chunk(1, 0, TABLE[:400])) == [wants(1, 400)]
    assert await stage.hear(chunk(1, 400, TABLE[400:])) == [wants(2, 0)]
    said = await stage.hear(chunk(2, 0, CURRENT))
    assert said == [wants(3, 0), done(Outcome.INSTALLED)]
    assert stage.installed == [("incoming-70", 9, 4, BEGIN.configuration)]
    [name] = stage.directories.states()
    path = stage.directories.state(name)
    assert sorted(stage.files.list_directory(path)) == sorted(file.name for file in FILES)
    assert stage.files.read(path / "000008.sst", 0, 10_000) == TABLE
    assert await stage.hear(BEGIN) == [done(Outcome.INSTALLED)], "who did not hear that is told again"
    assert await stage.hear(chunk(2, 0, CURRENT)) == []


@in_virtual_time
async def test_chunks_that_do_not_fit_are_dropped_and_answered_with_the_place_that_is_wanted() -> None:
    stage = Stage()
    await stage.hear(BEGIN, chunk(1, 0, TABLE[:400]))
    for wrong in (
        chunk(1, 0, TABLE[:400]),
        chunk(1, 800, TABLE[800:]),
        chunk(2, 0, CURRENT),
        chunk(7, 0, b"x"),
        replace(chunk(1, 400, TABLE[400:500]), crc32=1),
        chunk(1, 400, bytes(700)),
    ):
        assert await stage.hear(wrong) == [wants(1, 400)], wrong
    assert await stage.hear(*[chunk(1, 0, b"again")] * 10) == [wants(1, 400)], "a flood gets one answer"
    fitting = chunk(1, 400, b"x")
    for foreign in (replace(fitting, id=71), replace(fitting, term=4), replace(BEGIN, term=4)):
        assert await stage.hear(foreign) == []
    assert await stage.hear(wants(1, 400), done(Outcome.INSTALLED)) == [], "not what a sender says"
    await stage.hear(chunk(1, 400, TABLE[400:]), chunk(2, 0, CURRENT))
    assert len(stage.installed) == 1


@in_virtual_time
async def test_progress_is_always_acknowledged_even_if_what_follows_does_not_fit() -> None:
    stage = Stage()
    await stage.hear(BEGIN)
    await stage.hear(chunk(2, 0, CURRENT))
    assert wants(1, 100) in await stage.hear(chunk(1, 0, TABLE[:100]), chunk(2, 0, CURRENT))


@in_virtual_time
async def test_what_the_replica_has_is_not_fetched() -> None:
    stage = Stage(index=9)
    assert await stage.hear(BEGIN) == [done(Outcome.INSTALLED)]
    assert stage.directories.incoming_paths() == []


@in_virtual_time
async def test_an_old_snapshot_that_is_not_needed_does_not_end_the_one_that_is() -> None:
    stage = Stage(index=5)
    await stage.hear(BEGIN, chunk(1, 0, TABLE[:400]))
    old = replace(BEGIN, id=60, index=5)
    assert await stage.hear(old) == [SnapshotDone(5, 60, 5, Outcome.INSTALLED)]
    assert await stage.hear(BEGIN) == [wants(1, 400)]


@in_virtual_time
async def test_the_same_snapshot_in_a_later_term_goes_on() -> None:
    stage = Stage()
    await stage.hear(BEGIN, chunk(1, 0, TABLE[:400]))
    assert await stage.hear(replace(BEGIN, term=6)) == [SnapshotWants(6, 70, 1, 400)]


@in_virtual_time
async def test_while_it_installs_it_answers_and_follows_the_leaders_term() -> None:
    stage = Stage()
    go_on = asyncio.Event()
    stage.before_install = go_on.wait
    await stage.hear(BEGIN, chunk(1, 0, TABLE[:600]), chunk(1, 600, TABLE[600:]), chunk(2, 0, CURRENT))
    assert stage.installed == []
    assert stage.receiver.origin == (LEADER, 5)
    assert await stage.hear(replace(BEGIN, term=6)) == [SnapshotWants(6, 70, 3, 0)]
    assert stage.receiver.origin == (LEADER, 6)
    assert await stage.hear(chunk(2, 0, CURRENT)) == []
    go_on.set()
    assert [type(message) for message in await stage.hear()] == [SnapshotDone]
    assert len(stage.installed) == 1


@pytest.mark.parametrize(("index", "outcome"), [(9, Outcome.INSTALLED), (8, Outcome.FAILED)])
@in_virtual_time
async def test_what_was_not_installed_counts_only_if_it_is_not_needed_any_more(index: int, outcome: Outcome) -> None:
    stage = Stage(installs=False)
    await stage.hear(BEGIN, chunk(1, 0, TABLE[:600]), chunk(1, 600, TABLE[600:]))
    stage.index_at_install = index
    assert (await stage.hear(chunk(2, 0, CURRENT)))[-1] == done(outcome)
    assert stage.directories.incoming_paths() == []


@in_virtual_time
async def test_other_files_under_the_same_id_begin_anew() -> None:
    stage = Stage()
    await stage.hear(BEGIN, chunk(1, 0, TABLE[:400]))
    other = replace(BEGIN, files=FILES[:2])
    assert await stage.hear(other) == [wants(1, 0)]
    assert stage.files.size(stage.directories.incoming(70) / "CURRENT") is None


@in_virtual_time
async def test_more_than_can_wait_is_dropped() -> None:
    stage = Stage(settings=ReceiveSettings(inbox_max=4))
    await stage.hear(BEGIN)
    pieces = [chunk(1, start, TABLE[start : start + 100]) for start in range(0, 1000, 100)]
    said = await stage.hear(*pieces)
    assert said[-1] == wants(1, 400)


@pytest.mark.parametrize(
    ("number", "outcome"),
    [(errno.ENOSPC, Outcome.DISK_LOW), (errno.EDQUOT, Outcome.DISK_LOW), (errno.EIO, Outcome.FAILED)],
)
@in_virtual_time
async def test_a_disk_that_fails_refuses_the_transfer(number: int, outcome: Outcome) -> None:
    class Failing(PowerCutFiles):
        fails = False

        def write(self, path: Path, offset: int, data: bytes) -> None:
            if self.fails:
                raise OSError(number, "no")
            super().write(path, offset, data)

    files = Failing()
    stage = Stage(files=files)
    await stage.hear(BEGIN)
    files.fails = True
    assert await stage.hear(chunk(1, 0, TABLE[:400])) == [done(outcome)]
    assert stage.directories.incoming_paths() == []
    files.fails = False
    assert await stage.hear(BEGIN) == [wants(1, 0)], "and takes it when it is tried again"


@in_virtual_time
async def test_a_bug_in_what_it_was_given_does_not_silence_the_receiver() -> None:
    stage = Stage()
    stage.works = 0
    assert await stage.hear(BEGIN) == []
    stage.works = 1
    assert await stage.hear(BEGIN) == [wants(1, 0)]


# --- the sender -------------------------------------------------------------------------------------------------------


class SenderStage:
    """A sender with a checkpoint of a few bytes, and what it says."""

    def __init__(self, patience_s: float = 60.0) -> None:
        self.files = PowerCutFiles()
        self.said: list[SnapshotMessage] = []
        self.applied_index = self.base_index = 9
        self.sender = SnapshotSender(
            StateDirectories(Path("/state"), 0, self.files),
            self,
            throttle=Throttle(1e9, 1 << 20, now_s=asyncio.get_running_loop().time),
            slots=asyncio.Semaphore(1),
            run_blocking=at_once,
            settings=SendSettings(chunk_bytes=100, window_chunks=2, patience_s=patience_s),
        )

    def send(self, to: str, message: SnapshotMessage) -> None:
        self.said.append(message)

    def configuration_at(self, index: int) -> Configuration:
        return BEGIN.configuration

    def checkpoint(self, directory: Path) -> CheckpointPoint:
        self.files.make_directory(directory)
        for file, data in zip(FILES, (b"", TABLE, CURRENT), strict=True):
            self.files.write(directory / file.name, 0, data)
        self.files.write(directory / "LOCK", 0, b"not part of it")
        return CheckpointPoint(9, 4)

    async def begin(self) -> SnapshotBegin:
        self.sender.wanted([FOLLOWER], 5)
        await asyncio.sleep(0.01)
        [begin] = self.said
        assert isinstance(begin, SnapshotBegin)
        self.said.clear()
        return begin

    async def hear(self, message: SnapshotMessage, sender: str = FOLLOWER) -> list[SnapshotMessage]:
        self.said.clear()
        self.sender.handle(sender, message)
        await asyncio.sleep(0.01)
        return list(self.said)


@in_virtual_time
async def test_the_sender_stays_within_its_window_and_goes_where_it_is_asked_to() -> None:
    stage = SenderStage()
    begin = await stage.begin()
    assert begin == replace(BEGIN, id=begin.id)

    def place(number: int, offset: int) -> SnapshotWants:
        return SnapshotWants(5, begin.id, number, offset)

    def places(said: list[SnapshotMessage]) -> list[tuple[int, int]]:
        return [(part.file_number, part.offset) for part in said if isinstance(part, SnapshotChunk)]

    assert places(await stage.hear(place(1, 300))) == [(1, 300), (1, 400)], "what is there already is skipped"
    assert places(await stage.hear(place(1, 400))) == [(1, 500)]
    assert places(await stage.hear(place(1, 300))) == [], "an old answer"
    for wrong in (place(1, 1001), place(4, 0), replace(place(1, 900), id=1), BEGIN):
        assert await stage.hear(wrong) == []
    assert await stage.hear(place(1, 900), sender="n3/other") == []
    assert places(await stage.hear(place(1, 900))) == [(1, 900), (2, 0)]
    stage.said.clear()
    await asyncio.sleep(1)
    assert [type(message) for message in stage.said] == [SnapshotBegin], "nothing heard: it asks"
    assert places(await stage.hear(place(1, 0))) == [(1, 0), (1, 100)], "and believes the answer"
    assert await stage.hear(SnapshotDone(5, begin.id, 9, Outcome.INSTALLED)) == []
    assert stage.sender.progress == {}
    await stage.sender.close()


@in_virtual_time
async def test_a_receiver_that_answers_but_never_moves_is_given_up() -> None:
    stage = SenderStage(patience_s=10.0)
    begin = await stage.begin()
    for _second in range(9):
        await stage.hear(SnapshotWants(5, begin.id, 1, 0))
        await asyncio.sleep(1)
    assert stage.sender.progress
    for _second in range(3):
        await stage.hear(SnapshotWants(5, begin.id, 1, 0))
        await asyncio.sleep(1)
    assert stage.sender.progress == {}
    await stage.sender.close()


@in_virtual_time
async def test_ids_grow_and_a_checkpoint_that_the_log_no_longer_follows_is_not_used_again() -> None:
    stage = SenderStage()
    first = await stage.begin()
    await stage.hear(SnapshotDone(5, first.id, 9, Outcome.FAILED))
    stage.base_index = 10
    await asyncio.sleep(10)
    second = await stage.begin()
    assert second.id > first.id
    await stage.sender.close()


@in_virtual_time
async def test_a_replica_that_refuses_is_asked_less_and_less_often() -> None:
    loop = asyncio.get_running_loop()
    stage = SenderStage()
    pauses_s = []
    for _time in range(7):
        asked_s = loop.time()
        while not stage.said:
            stage.sender.wanted([FOLLOWER], 5)
            await asyncio.sleep(0.1)
        pauses_s.append(round(loop.time() - asked_s))
        begin = stage.said[0]
        assert isinstance(begin, SnapshotBegin)
        await stage.hear(SnapshotDone(5, begin.id, 9, Outcome.DISK_LOW))
        stage.said.clear()
    assert pauses_s == [0, 10, 20, 40, 80, 160, 300]
    await stage.sender.close()


@in_virtual_time
async def test_what_comes_after_the_end_is_ignored() -> None:
    stage = Stage()
    await stage.hear(BEGIN)
    await stage.receiver.close()
    assert await stage.hear(BEGIN) == []
    sender = SenderStage()
    begin = await sender.begin()
    await sender.sender.close()
    assert sender.files.list_directory(Path("/state/0")) == []
    assert await sender.hear(SnapshotWants(5, begin.id, 1, 0)) == []
    sender.sender.wanted([FOLLOWER], 6)
    await asyncio.sleep(1)
    assert sender.said == []


def test_a_throttle_needs_a_rate() -> None:
    with pytest.raises(ValueError, match="above 0"):
        Throttle(0, 1)
