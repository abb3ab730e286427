"""Snapshots on virtual time: what is installed is what the leader had, whatever happens on the way."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from holdfast.storage.rocksdb import StateDamagedError
from holdfast.storage.snapshots.messages import Outcome, SnapshotBegin, SnapshotWants
from holdfast.storage.snapshots.receiving import SnapshotReceiver
from tests.long import IS_LONG
from tests.simulation import virtual_time
from tests.simulation.snapshot_world import LEADER, SEND, TICK_S, Faults, World

KIB = 1024
QUIET = Faults()
ROUGH = Faults(loss=0.05, repetition=0.1, change=0.02, reordering=True, delay_s_max=0.1)
BYTES_PER_S = 20.0 * KIB
SEEDS = 100 if IS_LONG else 25


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


Scene = Callable[[World], Awaitable[None]]


def play(scene: Scene, make: Callable[[], World], seed: int = 0) -> None:
    async def main() -> None:
        world = make()
        try:
            await scene(world)
        finally:
            await world.close()

    virtual_time.run(main, seed)


def on_a_world(seed: int, faults: Faults = QUIET, **options: Any) -> Callable[[Scene], Callable[[Path], None]]:
    """Makes a scene a test, on a world of its own."""

    def decorate(scene: Scene) -> Callable[[Path], None]:
        def test(tmp_path: Path) -> None:
            play(scene, lambda: World(tmp_path, seed, faults, **options))

        return test

    return decorate


def test_a_follower_gets_what_the_leader_has(tmp_path: Path) -> None:
    async def scene(world: World) -> None:
        await world.until_installed()
        world.check()
        assert world.follower.index == 6
        assert [done.outcome for done in world.network.done()] == [Outcome.INSTALLED]
        whole_bytes = sum(file.size_bytes for file in world.network.begins()[0].files)
        assert sum(len(chunk.data) for _, chunk in world.network.chunks()) == whole_bytes, "nothing was sent twice"
        wants = [message for _, _, _, message in world.network.said if isinstance(message, SnapshotWants)]
        assert len(wants) <= len(world.network.chunks()) + 3
        assert len(world.leader.outgoing()) == 1
        await asyncio.sleep(SEND.linger_s + TICK_S)
        assert world.leader.outgoing() == []
        assert world.leader.sender.held_index is None
        assert world.follower.directories.incoming_paths() == []

    play(scene, lambda: World(tmp_path, 0, QUIET))


@pytest.mark.parametrize("seed", range(SEEDS))
def test_rough_seas(tmp_path: Path, seed: int) -> None:
    """Loss, repetition, reordering and changed bytes; both sides restarted, with and without power; the state moves."""

    async def scene(world: World) -> None:
        draw, leader, follower = world.draw, world.leader, world.follower
        for _fault in range(draw.randrange(1, 6)):
            follower.files.cut_power_at(draw.randrange(1, 120))
            for _tick in range(draw.choice([3, 30, 300])):
                await world.tick()
                if draw.random() < 0.2 and len(leader.hashes) < 12:
                    leader.write(20)
            event = draw.random()
            if event < 0.3:
                leader.sender.kill()
                await asyncio.sleep(draw.uniform(0, 3))
                leader.restart()
            elif event < 0.4:
                await leader.sender.close()
                leader.restart()
            elif event < 0.5:  # leadership is lost and won again
                leader.sender.wanted([], leader.term)
                leader.term += 1
            if draw.random() < 0.5:
                follower.files.cut_power()
            await follower.restart(power_cut=follower.files.is_off)
        follower.files.keep_power()
        await world.until_installed()
        world.check()
        assert follower.directories.states() == [follower.state_name]

    play(scene, lambda: World(tmp_path, seed, ROUGH), seed)


@pytest.mark.parametrize("power_cut", [False, True])
def test_a_restarted_follower_goes_on_where_it_was(tmp_path: Path, power_cut: bool) -> None:
    async def scene(world: World) -> None:
        follower = world.follower
        await world.until(lambda: (follower.receiver.progress or (0, 1))[0] > 100 * KIB)
        have_bytes, whole_bytes = follower.receiver.progress or (0, 0)
        assert have_bytes < whole_bytes - 50 * KIB
        sent_before = len(world.network.chunks())
        await follower.restart(power_cut=power_cut)
        assert follower.leftovers.resumable is not None
        await world.until_installed()
        world.check()
        again_bytes = sum(len(chunk.data) for _, chunk in world.network.chunks()[sent_before:])
        if not power_cut:
            in_flight_bytes = 2 * SEND.window_chunks * SEND.chunk_bytes
            assert again_bytes <= whole_bytes - have_bytes + in_flight_bytes
        assert len({begin.id for begin in world.network.begins()}) == 1

    faults = replace(QUIET, delay_s_max=0.1)
    play(scene, lambda: World(tmp_path, 1, faults))


def test_without_the_checksums_a_power_cut_would_leave_a_wrong_state(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The checks of the other tests can fail."""

    async def believe(_receiver: SnapshotReceiver, transfer: Any, number: int) -> None:
        transfer.verified.add(number)

    async def scene(world: World) -> None:
        follower = world.follower
        await world.until(lambda: (follower.receiver.progress or (0, 1))[0] > 100 * KIB)
        await follower.restart(power_cut=True)
        await world.until_installed()
        try:
            world.check()
        except (AssertionError, StateDamagedError):
            wrong.append(follower.index)

    monkeypatch.setattr(SnapshotReceiver, "verify", believe)
    wrong: list[int] = []
    for seed in range(6):  # what survives is drawn: in some, everything that was not synced is plainly gone
        play(scene, lambda seed=seed: World(tmp_path / str(seed), seed, replace(QUIET, delay_s_max=0.1)))  # type: ignore[misc]
    assert wrong


@on_a_world(2, followers=2, bytes_per_s=BYTES_PER_S)
async def test_the_throttle_holds_for_all_transfers_together(world: World) -> None:
    began_s = asyncio.get_running_loop().time()
    await world.until_installed()
    world.check()
    chunks = world.network.chunks()
    sent_bytes = 0
    for when_s, chunk in chunks:
        sent_bytes += len(chunk.data)
        assert sent_bytes <= 2 * SEND.chunk_bytes + (when_s - began_s) * BYTES_PER_S + 1
    took_s = chunks[-1][0] - chunks[0][0]
    assert took_s >= (sent_bytes - 3 * SEND.chunk_bytes) / BYTES_PER_S
    assert took_s <= 1.2 * sent_bytes / BYTES_PER_S, "and what it allows is used"


@on_a_world(3, followers=3)
async def test_one_checkpoint_serves_all_who_ask_while_it_is_there(world: World) -> None:
    late = world.followers[1]
    lacking = world.lacking
    world.lacking = lambda: [name for name in lacking() if name != late.name]  # type: ignore[method-assign]
    await world.until_installed()
    world.leader.write(10)
    world.lacking = lacking  # type: ignore[method-assign]
    await world.until_installed()
    world.check()
    assert world.leader.checkpoints == 1
    assert late.index == world.follower.index
    assert world.leader.sender.held_index == late.index


@on_a_world(4, replace(QUIET, delay_s_max=0.1))
async def test_a_file_that_is_damaged_on_the_followers_disk_is_fetched_again(world: World) -> None:
    follower = world.follower
    await world.until(lambda: (follower.receiver.progress or (0, 1))[0] > 100 * KIB)
    [begin] = {replace(begin, term=0) for begin in world.network.begins()}
    await follower.kill()
    path = follower.directories.incoming(begin.id)
    tables = [file for file in begin.files if file.name.endswith(".sst")]
    follower.files.damage(path / tables[0].name, 5000)
    follower.start()
    await world.until_installed()
    world.check()
    chunks = [chunk for _, chunk in world.network.chunks() if chunk.offset == 0]
    times_sent = [sum(chunk.file_number == number for chunk in chunks) for number in range(len(begin.files))]
    assert times_sent[begin.files.index(tables[0])] == 2


@on_a_world(5)
async def test_a_checkpoint_that_is_not_what_was_announced_is_refused(world: World) -> None:
    await world.until(lambda: bool(world.network.begins()))
    [outgoing] = world.leader.directories.path.glob("outgoing-*")
    # Through a copy: the file itself is the leader's state as well.
    [current] = outgoing.glob("CURRENT")
    content = current.read_bytes()
    current.write_bytes(content[:-1] + b"!")
    await world.until(lambda: bool(world.network.done()))
    assert [done.outcome for done in world.network.done()] == [Outcome.DAMAGED]
    assert world.follower.installs == 0
    assert world.follower.directories.incoming_paths() == []
    current.write_bytes(content)
    await world.until_installed()
    world.check()


@on_a_world(6)
async def test_a_full_disk_refuses_at_the_beginning_and_in_the_middle(world: World) -> None:
    follower = world.follower
    follower.free_bytes = 100 * KIB
    await world.until(lambda: bool(world.network.done()))
    assert world.network.chunks() == []
    follower.free_bytes = 1 << 40
    await world.until(lambda: follower.receiver.progress is not None)
    follower.free_bytes = 0
    await world.until(lambda: len(world.network.done()) == 2)
    assert [done.outcome for done in world.network.done()] == [Outcome.DISK_LOW] * 2
    assert follower.directories.incoming_paths() == [], "its space is free again"
    follower.free_bytes = 1 << 40
    await world.until_installed()
    world.check()


@pytest.mark.parametrize("stop", ["leadership lost", "closed"])
def test_a_transfer_ends_when_it_is_told_to(tmp_path: Path, stop: str) -> None:
    async def scene(world: World) -> None:
        await world.until(lambda: len(world.network.chunks()) > 3)
        if stop == "closed":
            await world.leader.sender.close()
            assert world.leader.outgoing() == []
            world.leader.sender.wanted(world.lacking(), 1)
        else:
            world.leader.sender.wanted([], 2)
        said = len([1 for _, source, _, _ in world.network.said if source == LEADER])
        await asyncio.sleep(SEND.linger_s + 1)
        assert len([1 for _, source, _, _ in world.network.said if source == LEADER]) == said
        assert world.leader.outgoing() == []
        assert world.leader.sender.progress == {}

    play(scene, lambda: World(tmp_path, 7, replace(QUIET, delay_s_max=0.1)))


@on_a_world(8)
async def test_a_follower_that_is_silent_is_given_up_and_tried_again_later(world: World) -> None:
    loop = asyncio.get_running_loop()
    await world.follower.kill()
    await world.until(lambda: bool(world.network.begins()))
    began_s = loop.time()
    await world.until(lambda: not world.leader.sender.progress)
    assert SEND.patience_s <= loop.time() - began_s <= SEND.patience_s + 2 * SEND.ask_again_s
    tries = len(world.network.begins())
    assert tries <= SEND.patience_s / SEND.ask_again_s + 2
    gave_up_s = loop.time()
    await world.until(lambda: len(world.network.begins()) > tries)
    assert loop.time() - gave_up_s >= SEND.backoff.first_s - TICK_S
    world.follower.start()
    await world.until_installed()
    world.check()


@on_a_world(9)
async def test_an_install_that_takes_long_is_waited_for(world: World) -> None:
    async def slow() -> None:
        await asyncio.sleep(3 * SEND.patience_s)

    world.follower.on_install = slow
    await world.until_installed()
    world.check()
    assert len({begin.id for begin in world.network.begins()}) == 1


@on_a_world(10)
async def test_an_install_that_fails_is_refused_and_leaves_nothing(world: World) -> None:
    async def failing() -> None:
        raise RuntimeError("the log is closed")

    world.follower.on_install = failing
    await world.until(lambda: bool(world.network.done()))
    assert [done.outcome for done in world.network.done()] == [Outcome.FAILED]
    await asyncio.sleep(TICK_S)
    assert world.follower.directories.incoming_paths() == []
    world.follower.on_install = None
    await world.until_installed()
    world.check()


@on_a_world(11)
async def test_a_checkpoint_that_cannot_be_made_is_tried_again(world: World) -> None:
    sender = world.leader.sender
    world.leader.directories.outgoing(sender.next_id).mkdir()
    await world.tick()
    await world.until(lambda: not sender.progress)
    assert world.network.said == []
    await world.until_installed()
    world.check()


@on_a_world(12, replace(QUIET, delay_s_max=0.1))
async def test_a_later_snapshot_replaces_an_earlier_one_and_never_the_other_way_round(world: World) -> None:
    follower = world.follower
    await world.until(lambda: (follower.receiver.progress or (0, 1))[0] > 20 * KIB)
    first = world.network.begins()[-1]
    world.leader.sender.kill()
    world.leader.write(50)
    world.leader.restart()
    await world.until(lambda: world.network.begins()[-1].id != first.id)
    await world.until(lambda: follower.directories.incoming(first.id) not in follower.directories.incoming_paths())
    later = world.network.begins()[-1]
    for stale in (first, SnapshotBegin(later.term, later.id - 1, 5, 1, later.configuration, later.files)):
        follower.receiver.handle(LEADER, stale)
    await world.tick()
    assert follower.directories.incoming_paths() in ([follower.directories.incoming(later.id)], [])
    await world.until_installed()
    world.check()
    assert follower.index == later.index > first.index
