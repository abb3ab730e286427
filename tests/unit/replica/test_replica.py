"""A replica of a group of two in its rounds."""

import asyncio
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest
import structlog

from holdfast.broker.replica import commit_loop as rounds_module
from holdfast.broker.replica.replica import NewState
from holdfast.machine.kv import MemoryKV
from holdfast.machine.machine import Machine
from holdfast.raft.codec import encode
from holdfast.raft.library import FOLLOWER
from holdfast.raft.messages import (
    TERM_MAX,
    Append,
    AppendReply,
    Configuration,
    EntryKind,
    PreVote,
    RequestVote,
    TimeoutNow,
    VoteReply,
)
from holdfast.raft.node_journal import NodeJournal, tombstone_of
from holdfast.routing.groups import mapped_group
from holdfast.serving.refusals import NOT_LEADER, SHARD_NOT_FOUND, OutcomeUnknownError, RefusedError
from holdfast.storage.startup_checks import recover_shard
from holdfast.wal.errors import DiskFullError
from holdfast.wal.node_log import NodeLog
from tests.simulation.fake_disk import FakeDisk
from tests.simulation.syncs import beside
from tests.unit.replica.pair_scene import GROUP, ME, OTHER, SHARD, Scene
from tests.unit.replica.small_shard import settle


@pytest.fixture
async def scene() -> AsyncIterator[Scene]:
    scene = await Scene().leading()
    yield scene
    await scene.stop()


async def refusal(call: Awaitable[object]) -> str:
    with pytest.raises(RefusedError) as refused:
        await call
    return refused.value.reason


async def test_what_two_have_is_acknowledged(scene: Scene) -> None:
    await scene.enqueue()
    assert scene.other.raft.last_index == scene.replica.raft.last_index


async def test_an_answer_that_comes_in_the_middle_of_a_round_is_asked_for_once(scene: Scene) -> None:
    await settle()
    before = scene.rounds
    await scene.enqueue()
    await settle()
    assert scene.rounds - before == 2, "it is staged and synced, and what is committed is applied"


async def test_only_what_has_to_wait_for_a_round_is_a_sign_of_life_before(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    await settle()
    heard: list[bytes] = []
    monkeypatch.setattr(scene.replica, "overhear", lambda _sender, data, _now_s: heard.append(bytes(data)))
    echo = encode(AppendReply(scene.replica.raft.term, True, 0, 1))
    scene.commit_loop.receive(OTHER, [(SHARD, GROUP, echo)])
    assert not heard, "it is delivered at once"
    scene.commit_loop.wake(SHARD)
    scene.commit_loop.receive(OTHER, [(SHARD, GROUP, echo)])
    assert heard == [echo], "there is to be a round, which may take long"
    await settle()


async def test_answers_that_leave_nothing_to_do_cost_no_round(scene: Scene) -> None:
    await scene.enqueue()
    await settle()
    before, raft = scene.rounds, scene.replica.raft
    for number in range(1, raft.newest_round + 1):
        answer = encode(AppendReply(raft.term, True, raft.last_index, number))
        scene.commit_loop.receive(OTHER, [(SHARD, GROUP, answer)])
    await settle()
    assert raft.progress[OTHER].echoed_round == raft.newest_round
    assert scene.rounds == before


async def test_a_bug_that_shows_between_two_rounds_ends_the_loop(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    await settle()

    def fail(*_: object) -> None:
        raise AssertionError("a bug")

    monkeypatch.setattr(scene.replica, "deliver", fail)
    scene.commit_loop.receive(OTHER, [(SHARD, GROUP, encode(AppendReply(1, True, 0, 1)))])
    with pytest.raises(AssertionError, match="a bug"):
        await scene.running


async def test_what_the_other_does_not_answer_is_not(scene: Scene) -> None:
    scene.other.listens = False
    call = scene.enqueue()
    await settle()
    assert not call.done()
    scene.replica.raft.set_term(scene.replica.raft.term + 1, None)
    scene.replica.raft.follow(None)
    scene.commit_loop.wake(SHARD)
    with pytest.raises(OutcomeUnknownError):
        await call


async def test_a_round_without_room_that_others_were_sent_is_neither_refused_nor_forgotten(scene: Scene) -> None:
    """The other has it and may commit it with a third: to say that nothing was changed would be a lie."""
    scene.disk.capacity_bytes -= scene.disk.free_bytes()
    with pytest.raises(OutcomeUnknownError):
        await scene.enqueue_for_ever()  # there is room until the end of the file
    assert scene.other.raft.last_index == scene.replica.journal.last_index + 1
    assert not scene.shard.serves, "it has nothing of what it sent: another must lead"
    assert await refusal(scene.enqueue()) == NOT_LEADER
    scene.disk.capacity_bytes = 1 << 40


async def test_a_round_without_room_is_told_to_those_who_had_no_part_in_it(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who is elected at the end of a round stages its first entry then: it goes with the round of somebody else."""

    async def without_room(_work: Callable[[], None]) -> None:
        raise DiskFullError("there is no room")

    monkeypatch.setattr(scene, "begin_sync", beside(without_room))
    assert scene.replica.raft.propose(b"", EntryKind.PROBE) is not None
    flush = scene.log.begin_flush()
    assert flush is not None
    await scene.commit_loop.sync(flush, [], [])
    assert scene.replica.raft.last_index == scene.log.last_index(SHARD), "it would count what is on no disk of its own"
    monkeypatch.undo()


async def test_what_is_staged_after_a_round_has_the_next_one_soon(scene: Scene) -> None:
    before = scene.replica.is_unfinished
    scene.replica.raft.propose(b"", EntryKind.PROBE)
    assert (before, scene.replica.is_unfinished) == (False, True)


async def test_the_log_is_kept_while_a_snapshot_needs_what_follows_it(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(20):
        await scene.enqueue()
    sent_index = scene.replica.applied_index - 10
    needed: list[int | None] = [sent_index]
    monkeypatch.setattr(scene.host, "log_needed_after", lambda _number: needed[0])
    scene.replica.compact(scene.replica.applied_index)
    await scene.enqueue()
    assert scene.replica.journal.base_index == sent_index
    needed[0] = None
    await scene.enqueue()
    assert scene.replica.journal.base_index > sent_index, "it goes on by itself when the snapshot is there"


async def test_reads_do_not_wait_for_the_next_heartbeat(scene: Scene) -> None:
    """Each asks by itself, also the one that came while another was waiting for its answer."""
    for _ in range(3):
        reads = [asyncio.ensure_future(scene.shard.read_barrier()) for _ in range(2)]
        write = scene.enqueue()
        await settle()
        reads.append(asyncio.ensure_future(scene.shard.read_barrier()))
        done, waiting = await asyncio.wait([write, *reads], timeout=30)  # heartbeats come once a minute here
        assert (len(done), len(waiting)) == (4, 0)


async def test_what_is_asked_while_entries_are_applied_leavesat_once(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The round has sent everything by then, and nothing else may come for a while."""
    raft = scene.replica.raft
    asked: list[int | None] = []
    monkeypatch.setattr(scene.host, "probe_reached", lambda _number, _index: asked.append(raft.begin_read()))
    proposed: list[int | None] = []
    scene.replica.request(lambda: proposed.append(raft.propose(b"", EntryKind.PROBE)))
    scene.commit_loop.wake(SHARD)
    async with asyncio.timeout(10):
        while not asked or not raft.may_read(asked[0] or 0):
            await scene.replica.next_round()
    assert asked[0] is not None


@pytest.mark.parametrize(
    ("data", "detail"),
    [
        (b"\x07 nonsense", "a message of 10 bytes where it takes 9"),
        (encode(RequestVote(2**63, 1, 1, transfer=True)), "a number that is too large"),
        (encode(RequestVote(TERM_MAX + 1, 1, 1, transfer=True)), "a term that leaves no room for the next ones"),
        (encode(RequestVote(TERM_MAX, 1, 1, transfer=True)), "too far ahead of term 2"),
        (encode(Append(2, 1, 1, (), 0, 1)), f"entries of term 2, in which {ME} leads"),
    ],
)
async def test_a_message_that_no_member_sends_costs_its_sender_the_connection(
    scene: Scene, data: bytes, detail: str
) -> None:
    raft = scene.replica.raft
    before = (raft.term, raft.voted_for, raft.last_index)
    with structlog.testing.capture_logs() as logs:
        # What follows it came by the same connection, and goes with it.
        scene.commit_loop.receive(OTHER, [(SHARD, GROUP, data), (SHARD, GROUP, data)])
        await settle()
    assert [(sender, detail in found) for sender, found in scene.other.drops] == [(OTHER, True)]
    said = [line for line in logs if line["event"] == "message_refused"]
    assert [(line["sender"], line["shard"]) for line in said] == [(OTHER, SHARD)]
    assert (raft.term, raft.voted_for, raft.last_index) == before
    await scene.enqueue()
    assert scene.shard.serves


async def test_what_is_only_late_or_of_others_costs_nothing(scene: Scene) -> None:
    late = [encode(Append(1, 1, 1, (), 0, 1)), encode(AppendReply(1, True, 99, 99)), encode(VoteReply(1, True))]
    late += [encode(RequestVote(1, 1, 1)), encode(PreVote(1, 1, 1)), encode(TimeoutNow(1))]
    messages = [(SHARD, GROUP, data) for data in late]
    scene.commit_loop.receive(
        OTHER, [*messages, (SHARD, GROUP + 1, b"of another group"), (SHARD + 1, GROUP, b"elsewhere")]
    )
    await scene.enqueue()
    assert scene.shard.serves
    assert scene.other.drops == []


async def test_a_request_is_carried_out_in_a_round(scene: Scene) -> None:
    done = asyncio.Event()
    scene.replica.request(done.set)
    assert not done.is_set()
    scene.commit_loop.wake(SHARD)
    await done.wait()


# --- leaving ------------------------------------------------------------------------------------------------------


async def test_who_is_forgotten_leads_nobody_and_is_driven_no_more(scene: Scene) -> None:
    await scene.enqueue()
    last = (scene.replica.raft.last_term, scene.replica.raft.last_index)
    scene.other.listens = False
    call = scene.enqueue()
    await settle()
    await scene.commit_loop.forget(scene.replica)
    with pytest.raises(OutcomeUnknownError):
        await call
    gone = tombstone_of(scene.log, SHARD)
    assert gone is not None
    assert (gone.group, gone.term, gone.last) == (GROUP, scene.replica.raft.term, (last[0], last[1] + 1))
    assert list(scene.commit_loop.replicas) == []
    assert not scene.shard.serves
    scene.replica.raft.election_deadline_s = 0.0
    scene.other.heard = 0
    scene.other.listens = True
    scene.commit_loop.wake(SHARD)  # somebody has not heard yet
    await settle()
    assert (scene.other.heard, scene.log.staged_bytes) == (0, 0)


async def test_what_comes_for_who_is_forgotten_is_a_strangers(scene: Scene) -> None:
    unknown_senders = scene.unknown_senders
    leaving = asyncio.ensure_future(scene.commit_loop.forget(scene.replica))
    await asyncio.sleep(0)
    scene.commit_loop.receive(OTHER, [(SHARD, GROUP, b"early")])
    await leaving
    assert unknown_senders == [], "not before it is durable: nobody could join"
    scene.commit_loop.receive(OTHER, [(SHARD, GROUP, b"late")])
    await settle()
    assert unknown_senders == [(SHARD, GROUP, b"late")]


async def test_who_waits_for_a_replica_that_leaves_is_told(scene: Scene) -> None:
    roles: list[int] = []
    scene.replica.request(lambda: roles.append(scene.replica.raft.role))
    waiting = asyncio.ensure_future(scene.replica.next_round())
    await asyncio.sleep(0)
    scene.commit_loop.detach(scene.replica)
    await waiting
    assert roles == [FOLLOWER]
    assert await refusal(scene.replica.next_round()) == SHARD_NOT_FOUND
    with pytest.raises(RefusedError):
        scene.replica.request(lambda: None)


async def test_it_is_forgotten_once_there_is_room(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    tries: list[bool] = []

    async def sometimes_without_room(work: Callable[[], None]) -> None:
        tries.append(tombstone_of(scene.log, SHARD) is not None)
        if len(tries) < 3:
            raise DiskFullError("there is no room")
        work()

    monkeypatch.setattr(scene, "begin_sync", beside(sometimes_without_room))
    monkeypatch.setattr(rounds_module, "FULL_SECONDS", 0.0)
    await scene.commit_loop.forget(scene.replica)
    assert tries == [False, False, False]
    assert tombstone_of(scene.log, SHARD) is not None


async def test_a_stop_does_not_wait_for_room_to_forget(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    async def without_room(_work: Callable[[], None]) -> None:
        raise DiskFullError("there is no room")

    monkeypatch.setattr(scene, "begin_sync", beside(without_room))
    monkeypatch.setattr(rounds_module, "FULL_SECONDS", 0.0)
    leaving = asyncio.ensure_future(scene.commit_loop.forget(scene.replica))
    await settle()
    assert not leaving.done()
    scene.commit_loop.stop()
    await scene.running
    with pytest.raises(asyncio.CancelledError):
        await leaving
    assert NodeJournal.load(scene.log, SHARD) is not None, "the next start finds it"


async def test_a_snapshot_that_comes_too_late_is_thrown_away(scene: Scene) -> None:
    ended: list[bool] = []
    kv = MemoryKV()
    new = NewState(
        OTHER, 1, 9, 1, Configuration.of(1, [ME]), "s-9", kv, Machine(kv), lambda taken, _kv: ended.append(taken)
    )
    scene.replica.offer_state(new)
    await scene.commit_loop.forget(scene.replica)
    scene.replica.offer_state(new)
    assert ended == [False, False]


async def test_the_state_that_a_snapshot_replaced_goes_only_when_the_log_does_not_name_it(scene: Scene) -> None:
    """A replica that leaves between the round that takes a snapshot and its sync."""
    ended: list[tuple[bool, object, bool]] = []
    kv = MemoryKV()
    scene.replica.raft.set_term(9, None)
    scene.replica.raft.follow(None)
    new = NewState(
        OTHER, 9, 50, 9, Configuration.of(2, [OTHER]), "s-50", kv, Machine(kv),
        lambda taken, unneeded: ended.append((taken, unneeded, tombstone_of(scene.log, SHARD) is not None)),
    )  # fmt: skip
    scene.replica.offer_state(new)
    scene.replica.step(time.monotonic())
    assert (ended, scene.shard.machine) == ([], new.machine)
    await scene.commit_loop.forget(scene.replica)
    assert ended == [(True, scene.kv, True)]
    gone = tombstone_of(scene.log, SHARD)
    assert gone is not None
    assert gone.last == (9, 50)


# --- an empty state ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("group", "incarnation"),
    [(1, 1), ((1 << 63) - 1, 1), (mapped_group(1, 5), 1), (mapped_group(7, 5), 7), (mapped_group(65535, 0), 65535)],
)
def test_an_empty_state_has_the_incarnation_of_its_group(group: int, incarnation: int) -> None:
    """Whoever founds or joins the group, and whenever: replicas with another one would make other tokens."""
    log = NodeLog.open(FakeDisk(random.Random(0)), segment_bytes=64 * 1024)
    journal = NodeJournal.create(log, SHARD, group=group, state_name="s")
    assert recover_shard(journal, log, MemoryKV(), SHARD).meta.incarnation == incarnation
