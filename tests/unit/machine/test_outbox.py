"""Tasks that cross shards: accepted with the ack that made them or not at all, arrived exactly once and in order."""

from collections import Counter

import hypothesis.strategies as st
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from holdfast.machine import entries, keys, rows
from holdfast.machine.entries import AckItem, RemoteFollowUp
from holdfast.machine.invariants import violations
from holdfast.machine.kv import MemoryKV, rows_of, state_hash
from holdfast.machine.machine import Machine
from holdfast.machine.new_tasks import NewTask
from holdfast.machine.outcomes import Accepted, Acked, Changed, Claimed, Outcome, Received
from tests.unit.machine.machine_shard import DEAD_KEEP_MS, KEEP_MS, QUEUE, START_MS, Shard, code, new_task

AWAY = 2


def remote_follow_ups(*envelopes: bytes, destination: int = AWAY) -> tuple[RemoteFollowUp, ...]:
    return tuple(RemoteFollowUp(index, destination, 0, envelope) for index, envelope in enumerate(envelopes))


def ack_away(
    shard: Shard, task_id: bytes, token: int, away: tuple[RemoteFollowUp, ...], *here: NewTask, waiting_max: int = 100
) -> Outcome:
    item = AckItem(task_id, token, None, here, away)
    return shard.apply(entries.AckAway(shard.now_ms, KEEP_MS, waiting_max, [item]))[0]


def messages(shard: Shard, destination: int = AWAY) -> list[tuple[int, bytes]]:
    found = shard.kv.scan(keys.outbox(destination, 1), keys.outbox_end(destination), 1000)
    return [(keys.outbox_place(key)[1], rows.OutboxMessage.decode(row).envelope) for key, row in found]


def held_task(shard: Shard) -> tuple[bytes, int]:
    task_id = shard.enqueue()
    return task_id, shard.claim(task_id)


def receive(shard: Shard, first: int, *tasks: NewTask, incarnation: int = 1) -> Outcome:
    return shard.apply(entries.Receive(shard.now_ms, 5, incarnation, first, DEAD_KEEP_MS, list(tasks)))[0]


def envelopes(shard: Shard) -> list[bytes]:
    """Of all tasks, in the order in which they came."""
    return [row for _, row in rows_of(shard.kv, b"\x02", b"\x03")]


# --- the source -------------------------------------------------------------------------------------------------------


def test_an_entry_removes_no_more_than_its_share(shard: Shard) -> None:
    for _ in range(11):
        ack_away(shard, *held_task(shard), remote_follow_ups(*[b""] * 100), waiting_max=2000)
    assert shard.apply(entries.Delivered(shard.now_ms, AWAY, 1100)) == [Changed(entries.ENTRY_ITEMS_MAX)]
    assert len(messages(shard)) == 100
    assert violations(shard.kv) == []


# --- the destination --------------------------------------------------------------------------------------------------


def test_a_destination_that_was_created_anew_begins_where_the_source_is(shard: Shard) -> None:
    outcome = receive(shard, 41, new_task(), new_task())
    assert isinstance(outcome, Received)
    assert (outcome.last, len(outcome.accepted)) == (42, 2)


# --- two shards and a bad road between them ---------------------------------------------------------------------------

Batch = tuple[int, tuple[tuple[int, bytes], ...]]  # the first sequence and the messages


class OneSide:
    """A machine with its log, so that other replicas can be compared with it."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.kv = MemoryKV()
        self.machine = Machine(self.kv, shard=number)
        self.log: list[bytes] = []

    def apply(self, entry: entries.Entry) -> list[Outcome]:
        self.log.append(entries.encode(entry))
        done = self.machine.apply(len(self.log), 1, entries.decode(self.log[-1]))
        self.machine.commit()
        assert violations(self.kv) == []
        return done

    def restart(self) -> None:
        self.kv = MemoryKV(self.kv.rows())
        self.machine = Machine(self.kv, shard=self.number)

    def check_replica(self, group: int) -> None:
        """Another replica, that commits in groups of another size, has the same state."""
        kv = MemoryKV()
        machine = Machine(kv, shard=self.number)
        for index, data in enumerate(self.log, start=1):
            machine.apply(index, 1, entries.decode(data))
            if index % group == 0 or index == len(self.log):
                machine.commit()
        assert state_hash(kv) == state_hash(self.kv)


class BadRoad(RuleBasedStateMachine):
    """Messages and answers are lost, repeated and overtaken; relays are replaced in the middle of everything."""

    def __init__(self) -> None:
        super().__init__()
        self.source, self.destination = OneSide(1), OneSide(AWAY)
        self.road: list[Batch] = []  # sent and not lost; each may arrive any number of times
        self.answers: list[int] = []  # the same, back
        self.outgoing: list[bytes] = []
        self.relay_sent: Batch | None = None  # what the relay waits for an answer to

    @rule(count=st.integers(1, 3))
    def ack(self, count: int) -> None:
        (accepted,) = self.source.apply(entries.Enqueue(START_MS, [new_task()]))
        assert isinstance(accepted, Accepted)
        claim = entries.Claim(START_MS, START_MS + 9, b"", b"", 0, [accepted.task_id], [])
        (claimed,) = self.source.apply(claim)
        assert isinstance(claimed, Claimed)
        names = [b"%d" % (len(self.outgoing) + index) for index in range(count)]
        item = AckItem(accepted.task_id, claimed.token, None, (), remote_follow_ups(*names))
        (outcome,) = self.source.apply(entries.AckAway(START_MS, KEEP_MS, 6, [item]))
        if isinstance(outcome, Acked):
            self.outgoing += names
        else:
            assert code(outcome) == "OUTBOX_FULL"

    @rule(count=st.integers(1, 4))
    def send(self, count: int) -> None:
        """The relay reads the state and sends, or sends once more what was not answered."""
        row = self.source.kv.get(keys.outbox(AWAY, 0))
        if row is None:
            return
        first = rows.Outbox.decode(row).delivered + 1
        found = self.source.kv.scan(keys.outbox(AWAY, first), keys.outbox_end(AWAY), count)
        if found:
            read = [rows.OutboxMessage.decode(message) for _, message in found]
            self.relay_sent = first, tuple((message.run_at_ms, message.envelope) for message in read)
            self.road.append(self.relay_sent)

    @precondition(lambda self: self.road)
    @rule(which=st.integers(0, 20), stays=st.booleans())
    def arrive(self, which: int, stays: bool) -> None:
        """Any batch, old or new, maybe not for the last time."""
        chosen = which % len(self.road)
        first, sent = self.road[chosen] if stays else self.road.pop(chosen)
        tasks = [new_task(envelope=envelope) for _, envelope in sent]
        (outcome,) = self.destination.apply(entries.Receive(START_MS, 1, 1, first, DEAD_KEEP_MS, tasks))
        assert isinstance(outcome, Received), "a relay that waits for answers never makes a gap"
        self.answers.append(outcome.last)

    @precondition(lambda self: self.road)
    @rule(which=st.integers(0, 20))
    def lose(self, which: int) -> None:
        del self.road[which % len(self.road)]

    @precondition(lambda self: self.answers)
    @rule(which=st.integers(0, 20), is_lost=st.booleans())
    def answer(self, which: int, is_lost: bool) -> None:
        received = self.answers.pop(which % len(self.answers))
        if self.relay_sent is None or is_lost:
            return
        first, sent = self.relay_sent
        delivered = min(received, first + len(sent) - 1)
        if delivered >= first:
            self.source.apply(entries.Delivered(START_MS, AWAY, delivered))
        self.relay_sent = None

    @rule()
    def fail_over(self) -> None:
        """Another relay, which knows what the state knows; what the old one sent is still on the road."""
        self.source.restart()
        self.destination.restart()
        self.relay_sent = None

    @invariant()
    def arrived_once_and_in_order(self) -> None:
        arrived = [row for _, row in rows_of(self.destination.kv, b"\x02", b"\x03")]
        assert arrived == self.outgoing[: len(arrived)]
        waiting = rows_of(self.source.kv, keys.outbox(AWAY, 1), keys.outbox_end(AWAY))
        left = [rows.OutboxMessage.decode(row).envelope for _, row in waiting]
        assert left == self.outgoing[len(self.outgoing) - len(left) :]
        assert len(arrived) + len(left) >= len(self.outgoing), "nothing is gone here before it is there"

    def teardown(self) -> None:
        """Once the road is good everything arrives."""
        for _ in range(len(self.outgoing) + 1):
            self.send(4)
            if self.relay_sent is None:
                break
            self.road = [self.relay_sent]
            self.arrive(0, False)
            self.answers = self.answers[-1:]
            self.answer(0, False)
        arrived = Counter(row for _, row in rows_of(self.destination.kv, b"\x02", b"\x03"))
        assert arrived == Counter(self.outgoing)
        for side in (self.source, self.destination):
            side.check_replica(3)
            side.check_replica(1000)


TestBadRoad = BadRoad.TestCase
TestBadRoad.settings = settings(max_examples=40, stateful_step_count=40, deadline=None, print_blob=True)


def test_the_key_of_the_source_is_all_that_a_receiver_remembers() -> None:
    """However many messages came: one small row for each source."""
    shard = Shard()
    for sequence in range(1, 30):
        receive(shard, sequence, new_task(queue=QUEUE))
    assert [key for key in shard.kv.rows() if key[0] == keys.INBOX] == [keys.inbox(5, 1)]
