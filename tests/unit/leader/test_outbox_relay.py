"""Follow-ups for other shards, from the ack to the other shard's log: through two services and over a bad road."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any, NoReturn

import pytest

from holdfast.broker.api.answering import OUTBOX_RETRY_MS
from holdfast.broker.api.conversion import receive_request
from holdfast.broker.api.tasks import TaskService
from holdfast.broker.cluster_view.view import StaticClusterView
from holdfast.broker.leader import outbox_relay as relay_module
from holdfast.broker.leader.outbox_relay import BATCH_MESSAGES_MAX, OutboxRelay
from holdfast.common.backoff import Backoff
from holdfast.machine import entries, keys, rows
from holdfast.machine.entries import Delivered, Entry
from holdfast.machine.ids import format_task_id, parse_task_id, task_id_shard
from holdfast.machine.kv import MemoryKV, rows_of
from holdfast.machine.new_tasks import NewTask
from holdfast.machine.outcomes import Changed, Outcome
from holdfast.machine.reader import Reader
from holdfast.machine.rows import Outbox, OutboxMessage
from holdfast.proto.v1 import broker_calls_pb2, tasks_pb2
from holdfast.proto.v1.cluster_pb2 import QueuePolicy as PolicyMessage
from holdfast.serving.refusals import (
    BATCH_TOO_LARGE,
    CHANGE_REFUSED,
    DISK_LOW,
    INVALID_FIELD,
    MISSING_FIELD,
    NOT_LEADER,
    OUT_OF_RANGE,
    RefusedError,
    overloaded,
)
from holdfast.storage.disk_guard import DiskGuard
from tests.unit.machine.machine_shard import QUEUE, START_MS
from tests.unit.replica.small_shard import SmallShard, counted, settle

HERE, AWAY = 0, 2
FAR = b"far"  # the queue that lives elsewhere
CLUSTER = "0123456789abcdef0123456789abcdef"


class Side(SmallShard):
    """A shard with its service; its rounds run by themselves."""

    def __init__(self, number: int, **settings: Any) -> None:
        super().__init__(**settings)
        self.machine.meta.shard = number
        view = StaticClusterView(self.config)
        view.cluster_id = CLUSTER
        self.service = TaskService(self.shard, self.config, self.metrics, draw=lambda: 0.5, cluster_view=view)

    async def run(self) -> None:
        while True:
            await self.round()

    def envelopes(self) -> list[tasks_pb2.TaskSpec]:
        found = rows_of(self.kv, keys.envelope(b""), keys.envelope(b"\xff" * 17))
        return [tasks_pb2.TaskSpec.FromString(row) for _, row in found]


class Pair:
    """Two shards and the road from one to the other."""

    def __init__(self, *, is_alone: bool = False) -> None:
        self.near, self.far = Side(HERE, others=None if is_alone else self), Side(AWAY)
        self.sent: list[tuple[int, int]] = []  # (first sequence, messages) of each call
        self.troubles: list[Exception | None] = []  # of the next calls; None loses only the answer
        self.near.view.owner = lambda new: AWAY if new.queue == FAR else None
        if not is_alone:
            self.lead(2)
        self.running = [asyncio.ensure_future(side.run()) for side in (self.near, self.far)]

    def lead(self, term: int) -> None:
        """The near shard has a leader anew, with nothing but its state."""
        near = self.near
        near.lose(term - 1)
        near.log.term, near.log.serves = term, True
        near.lead()
        assert near.leadership.relay is not None
        near.leadership.relay.start()

    async def deliver(
        self, destination: int, source: int, incarnation: int, first_sequence: int, messages: Sequence[OutboxMessage]
    ) -> int:
        self.sent.append((first_sequence, len(messages)))
        trouble = self.troubles.pop(0) if self.troubles else ()
        if isinstance(trouble, Exception):
            raise trouble
        request = receive_request(CLUSTER, destination, source, incarnation, first_sequence, list(messages))
        response = await self.far.service.receive_tasks(
            broker_calls_pb2.ReceiveTasksRequest.FromString(bytes_of(request))
        )
        if trouble is None:
            raise TimeoutError
        return int(response.received)

    async def allocate(
        self, destination: int, source: int, reports: Sequence[broker_calls_pb2.AllocationReport]
    ) -> NoReturn:
        raise AssertionError("no queue is spread")

    async def ack(self, *follow_ups: tasks_pb2.TaskSpec) -> tasks_pb2.AckOutcome:
        (claim,) = await self.claim()
        item = tasks_pb2.AckItem(claim=claim, follow_ups=follow_ups)
        (outcome,) = (await self.near.service.ack(tasks_pb2.AckRequest(items=[item]))).outcomes
        return outcome

    async def claim(self) -> list[tasks_pb2.ClaimRef]:
        spec = tasks_pb2.TaskSpec(queue=QUEUE.decode(), type="t")
        await self.near.service.enqueue(tasks_pb2.EnqueueRequest(tasks=[spec]))
        wanted = tasks_pb2.ReserveRequest(queues=[QUEUE.decode()], max_tasks=1, lease_ms=30_000)
        claims = (await self.near.service.reserve(wanted)).claims
        return [tasks_pb2.ClaimRef(task_id=claim.task_id, token=claim.token, secret=claim.secret) for claim in claims]

    async def until_delivered(self) -> None:
        async with asyncio.timeout(20):
            while any(waiting for _, waiting in self.near.shard.outboxes()):
                await asyncio.sleep(0.001)

    async def close(self) -> None:
        for task in self.running:
            task.cancel()
        await asyncio.gather(*self.running, return_exceptions=True)
        await self.near.shard.stop()


def bytes_of(message: broker_calls_pb2.ReceiveTasksRequest) -> bytes:
    return message.SerializeToString()


@pytest.fixture
async def pair(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Pair]:
    monkeypatch.setattr(relay_module, "BACKOFF", Backoff(0.001, 5.0))
    pair = Pair()
    yield pair
    await pair.close()


def far_task(name: str, **fields: Any) -> tasks_pb2.TaskSpec:
    return tasks_pb2.TaskSpec(queue=FAR.decode(), type=name, **fields)


# --- the way of a follow-up -------------------------------------------------------------------------------------------


async def test_a_follow_up_arrives_where_its_queue_lives(pair: Pair) -> None:
    here = tasks_pb2.TaskSpec(queue=QUEUE.decode(), type="here")
    outcome = await pair.ack(far_task("a", payload=b"p", headers={"k": "v"}), here, far_task("b"))
    ids = [accepted.task_id for accepted in outcome.acked.follow_ups]
    assert (ids[0], ids[2]) == ("", "")
    parsed = parse_task_id(ids[1])
    assert parsed is not None
    assert task_id_shard(parsed) == HERE
    await pair.until_delivered()
    assert pair.far.envelopes() == [far_task("a", payload=b"p", headers={"k": "v"}), far_task("b")]
    assert pair.sent == [(1, 2)]
    assert Reader(pair.near.kv).outboxes() == [(AWAY, Outbox(2, 2))]
    assert [spec.type for spec in pair.near.envelopes()] == ["here"]


async def test_a_repeated_ack_gives_the_first_answer(pair: Pair) -> None:
    (claim,) = await pair.claim()
    request = tasks_pb2.AckRequest(items=[tasks_pb2.AckItem(claim=claim, follow_ups=[far_task("a")])])
    first = await pair.near.service.ack(request)
    assert await pair.near.service.ack(request) == first
    await pair.until_delivered()
    assert len(pair.far.envelopes()) == 1


async def test_lost_calls_and_answers_change_nothing(pair: Pair) -> None:
    pair.troubles = [ConnectionError(), None, None, overloaded("calls", 1)]
    await pair.ack(far_task("a"), far_task("b"))
    await pair.ack(far_task("c"))
    await pair.until_delivered()
    assert [spec.type for spec in pair.far.envelopes()] == ["a", "b", "c"]
    assert len(pair.sent) >= 5


async def test_a_new_leader_goes_on_where_the_state_is(pair: Pair) -> None:
    pair.troubles = [ConnectionError()] * 1000
    await pair.ack(far_task("a"))
    await pair.ack(far_task("b"))
    assert pair.near.shard.outboxes() == [(AWAY, 2)]
    pair.lead(3)
    pair.troubles = [None]
    pair.lead(4)
    await pair.until_delivered()
    assert [spec.type for spec in pair.far.envelopes()] == ["a", "b"]


async def test_the_destination_decides_what_its_queue_says(pair: Pair) -> None:
    await pair.far.shard.set_queue(FAR, 1, PolicyMessage(max_attempts=7).SerializeToString())
    await pair.near.shard.set_queue(FAR, 1, PolicyMessage(max_attempts=3).SerializeToString())
    await pair.ack(far_task("a", delay_ms=5000), far_task("b", max_attempts=4))
    await pair.until_delivered()
    found = rows_of(pair.far.kv, keys.execution(b""), keys.execution(b"\xff" * 17))
    tasks = [rows.Execution.decode(row) for _, row in found]
    assert [(task.max_attempts, task.timer_ms) for task in tasks] == [(7, START_MS + 5000), (4, 0)]
    assert [task.state for task in tasks] == [rows.DELAYED, rows.READY]


async def test_a_request_id_is_known_there_too(pair: Pair) -> None:
    await pair.far.service.enqueue(tasks_pb2.EnqueueRequest(tasks=[far_task("a", request_id="r")]))
    await pair.ack(far_task("a", request_id="r"))
    await pair.until_delivered()
    assert len(pair.far.envelopes()) == 1


async def test_a_follow_up_whose_id_stands_for_another_task_there_is_a_dead_letter(pair: Pair) -> None:
    """Brought again and again, and there once; it is kept as long as its queue says, and runs if it is retried."""
    policy = PolicyMessage(dead_retention_ms=77_000).SerializeToString()
    await pair.far.shard.set_queue(FAR, 1, policy)
    request = tasks_pb2.EnqueueRequest(tasks=[far_task("a", request_id="r")])
    (known,) = (await pair.far.service.enqueue(request)).outcomes
    pair.troubles = [None, None]
    elsewhere = tasks_pb2.TaskSpec(queue="far.other", type="c")
    pair.near.view.owner = lambda new: AWAY if new.queue.startswith(FAR) else None
    outcome = await pair.ack(far_task("b", request_id="r"), elsewhere, far_task("d"))
    assert outcome.HasField("acked")
    await pair.until_delivered()
    assert [spec.type for spec in pair.far.envelopes()] == ["a", "b", "c", "d"]
    dead_letters = pair.far.service.dead_letters
    wanted = tasks_pb2.DeadLetterFilter(reason="REQUEST_ID_CONFLICT", error="STANDS FOR TASK")
    listed = tasks_pb2.ListDeadLettersRequest(queue=FAR.decode(), filter=wanted)
    (letter,) = (await dead_letters.list_dead_letters(listed)).tasks
    assert (letter.dead_reason, letter.purge_at_ms) == ("REQUEST_ID_CONFLICT", START_MS + 77_000)
    assert letter.last_error.type == "RequestIdConflict"
    assert f'The request id "r" of queue far stands for task {known.accepted.task_id}' in letter.last_error.message
    assert counted(pair.far.metrics.tasks_dead) == 1
    retried = tasks_pb2.RetryDeadLettersRequest(task_ids=[letter.task_id])
    await dead_letters.retry_dead_letters(retried)
    await pair.far.service.cancel(tasks_pb2.CancelRequest(task_ids=[known.accepted.task_id]))
    (again,) = (await pair.far.service.enqueue(request)).outcomes
    assert again.accepted.task_id == known.accepted.task_id
    wanted_tasks = tasks_pb2.ReserveRequest(queues=[FAR.decode()], max_tasks=9, lease_ms=30_000)
    claims = (await pair.far.service.reserve(wanted_tasks)).claims
    assert sorted(claim.task.type for claim in claims) == ["b", "d"]


async def test_an_ack_whose_follow_up_here_conflicts_is_refused_and_nothing_goes_away(pair: Pair) -> None:
    known = tasks_pb2.TaskSpec(queue=QUEUE.decode(), type="known", request_id="r")
    await pair.near.service.enqueue(tasks_pb2.EnqueueRequest(tasks=[known]))
    other = tasks_pb2.TaskSpec(queue=QUEUE.decode(), type="other", request_id="r")
    wanted = tasks_pb2.ReserveRequest(queues=[QUEUE.decode()], max_tasks=1, lease_ms=30_000)
    (held,) = (await pair.near.service.reserve(wanted)).claims
    claim = tasks_pb2.ClaimRef(task_id=held.task_id, token=held.token, secret=held.secret)
    item = tasks_pb2.AckItem(claim=claim, follow_ups=[far_task("a"), far_task("b"), other])
    guess = tasks_pb2.ClaimRef(task_id=held.task_id, token=held.token, secret=held.secret ^ 1)
    stale = tasks_pb2.AckItem(claim=guess)
    refusals = (await pair.near.service.ack(tasks_pb2.AckRequest(items=[stale, item]))).outcomes
    reported = [(outcome.rejection.reason, outcome.rejection.field) for outcome in refusals]
    assert reported == [("STALE_TOKEN", ""), ("REQUEST_ID_CONFLICT", "items[1].follow_ups[2].request_id")]
    assert Reader(pair.near.kv).outboxes() == []
    item.follow_ups[2].CopyFrom(known)
    (done,) = (await pair.near.service.ack(tasks_pb2.AckRequest(items=[item]))).outcomes
    there = done.acked.follow_ups[2]
    assert (there.duplicate, there.state) == (True, tasks_pb2.TASK_STATE_SUCCEEDED), "it was the task itself"


async def test_a_full_outbox_refuses_the_ack_alone(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.broker.api.tasks.OUTBOX_TASKS_MAX", 2)
    pair.troubles = [ConnectionError()] * 10_000
    await pair.ack(far_task("a"), far_task("b"))
    (claim,), (neighbour,) = await pair.claim(), await pair.claim()
    items = [
        tasks_pb2.AckItem(claim=claim, follow_ups=[far_task("c")]),
        tasks_pb2.AckItem(claim=neighbour),
    ]
    refused, acked = (await pair.near.service.ack(tasks_pb2.AckRequest(items=items))).outcomes
    assert (refused.rejection.reason, refused.rejection.retry_after_ms) == ("OUTBOX_FULL", OUTBOX_RETRY_MS)
    assert acked.HasField("acked")
    pair.troubles = []
    await pair.until_delivered()
    (again,) = (await pair.near.service.ack(tasks_pb2.AckRequest(items=items[:1]))).outcomes
    assert again.HasField("acked")
    await pair.until_delivered()
    assert [spec.type for spec in pair.far.envelopes()] == ["a", "b", "c"]


async def test_without_other_shards_everything_stays_here() -> None:
    pair = Pair(is_alone=True)
    outcome = await pair.ack(far_task("a"))
    assert outcome.acked.follow_ups[0].task_id
    assert pair.near.shard.outboxes() == []
    await pair.close()


async def test_what_belongs_to_this_shard_stays_here(pair: Pair) -> None:
    pair.near.view.owner = lambda _new: HERE
    assert (await pair.ack(far_task("a"))).acked.follow_ups[0].task_id
    asked: list[tuple[bytes, bytes]] = []

    def owner_of(new: NewTask) -> None:
        asked.append((new.queue, new.request_id))

    pair.near.view.owner = owner_of
    await pair.ack(far_task("a", request_id="r"))
    assert asked == [(FAR, b"r")]


async def test_before_every_replica_knows_remote_follow_ups_none_are_made(pair: Pair) -> None:
    pair.near.view.knows_level = lambda _level: False
    with pytest.raises(RefusedError) as refused:
        await pair.ack(far_task("a"))
    assert refused.value.reason == CHANGE_REFUSED


# --- what a relay may say -------------------------------------------------------------------------------------------


def request(**changes: Any) -> broker_calls_pb2.ReceiveTasksRequest:
    plain = receive_request(CLUSTER, AWAY, HERE, 1, 1, [OutboxMessage(0, far_task("a").SerializeToString())])
    for name, value in changes.items():
        setattr(plain, name, value)
    return plain


@pytest.mark.parametrize(
    ("changes", "reason", "field"),
    [
        ({"cluster_id": "another"}, INVALID_FIELD, "cluster_id"),
        ({"destination_shard": 3}, INVALID_FIELD, "destination_shard"),
        ({"source_shard": -1}, OUT_OF_RANGE, "source_shard"),
        ({"source_shard": 2**16}, OUT_OF_RANGE, "source_shard"),
        ({"source_incarnation": 2**16}, OUT_OF_RANGE, "source_incarnation"),
        ({"first_sequence": 0}, OUT_OF_RANGE, "first_sequence"),
        ({"first_sequence": 2**62}, OUT_OF_RANGE, "first_sequence"),
    ],
)
async def test_a_relay_at_the_wrong_door_is_refused(changes: dict[str, Any], reason: str, field: str) -> None:
    side = Side(AWAY)
    with pytest.raises(RefusedError) as refused:
        await side.service.receive_tasks(request(**changes))
    assert (refused.value.reason, refused.value.field) == (reason, field)


async def test_bad_messages_are_refused_by_place() -> None:
    side = Side(AWAY)
    bad = request()
    bad.messages.add(run_at_ms=-1).task.CopyFrom(far_task("b"))
    empty = request()
    empty.ClearField("messages")
    nameless = request()
    nameless.messages[0].task.queue = "a b"
    many = request()
    many.messages.extend([many.messages[0]] * 1000)
    for message, reason, field in (
        (bad, OUT_OF_RANGE, "messages[1].run_at_ms"),
        (empty, MISSING_FIELD, "messages"),
        (nameless, INVALID_FIELD, "messages[0].queue"),
        (many, BATCH_TOO_LARGE, "messages"),
    ):
        with pytest.raises(RefusedError) as refused:
            await side.service.receive_tasks(message)
        assert (refused.value.reason, refused.value.field) == (reason, field)


async def test_messages_out_of_order_are_refused() -> None:
    side = Side(AWAY)
    assert (await side.rounds_until(side.service.receive_tasks(request()))).received == 1
    assert (await side.rounds_until(side.service.receive_tasks(request()))).received == 1
    with pytest.raises(RefusedError) as refused:
        await side.rounds_until(side.service.receive_tasks(request(first_sequence=3)))
    assert (refused.value.reason, refused.value.field) == (INVALID_FIELD, "first_sequence")
    assert len(side.envelopes()) == 1


async def test_only_the_leader_receives() -> None:
    side = Side(AWAY)
    side.lose()
    with pytest.raises(RefusedError) as refused:
        await side.service.receive_tasks(request())
    assert refused.value.reason == NOT_LEADER


def test_a_disk_that_is_low_takes_no_messages() -> None:
    guard = DiskGuard(lambda: 80, 100)
    guard.check(Delivered(1, 2, 3))
    with pytest.raises(RefusedError) as refused:
        guard.check(entries.Receive(1, 2, 3, 4, 5, []))
    assert refused.value.reason == DISK_LOW


# --- the relay alone ------------------------------------------------------------------------------------------------


def filled(count: int, size: int = 1, destination: int = AWAY) -> MemoryKV:
    state = {keys.outbox(destination, number): OutboxMessage(0, bytes(size)).encode() for number in range(1, count + 1)}
    return MemoryKV({**state, keys.outbox(destination, 0): Outbox(count, 0).encode()})


def test_messages_are_read_in_bounded_batches() -> None:
    kv = filled(40)
    first, some = Reader(kv).outbox_messages(AWAY, 30, 10**6)
    assert (first, len(some)) == (1, 30)
    first, some = Reader(kv).outbox_messages(AWAY, 32, 10**6)
    assert (first, len(some)) == (1, 32)
    assert len(Reader(kv).outbox_messages(AWAY, 100, 10**6)[1]) == 40
    assert len(Reader(kv).outbox_messages(AWAY, 100, 45)[1]) == 5, "nine bytes each"
    assert len(Reader(kv).outbox_messages(AWAY, 100, 1)[1]) == 1, "one that is larger must not stay for ever"
    assert Reader(kv).outbox_messages(3, 100, 100) == (1, [])
    kv.write({keys.outbox(AWAY, 0): Outbox(40, 38).encode()})
    assert Reader(kv).outbox_messages(AWAY, 100, 1000) == (39, [OutboxMessage(0, b"\0")] * 2)


def test_outboxes_are_found_without_reading_messages() -> None:
    state = {**filled(3).rows(), **filled(2, destination=7).rows(), **filled(1, destination=2**16 - 1).rows()}
    boxes = [(AWAY, Outbox(3, 0)), (7, Outbox(2, 0)), (2**16 - 1, Outbox(1, 0))]
    assert Reader(MemoryKV(state)).outboxes() == boxes
    assert Reader(MemoryKV()).outboxes() == []


Answer = Callable[[int, int, list[OutboxMessage]], Awaitable[int]]  # of a destination, to messages from a number on


def relay_of(kv: MemoryKV, answer: Answer, desk: "Desk | None" = None) -> OutboxRelay:
    """The relay of incarnation 9 of shard 4."""

    async def deliver(
        destination: int, source: int, incarnation: int, first: int, messages: list[OutboxMessage]
    ) -> int:
        assert (source, incarnation) == (4, 9)
        return await answer(destination, first, messages)

    submit = (desk or Desk(kv)).submit
    return OutboxRelay(Reader(kv), 4, 9, deliver, now_ms=lambda: START_MS, submit=submit)


class Desk:
    """Takes `Delivered` entries as a shard would."""

    def __init__(self, kv: MemoryKV) -> None:
        self.kv = kv
        self.refusals: list[Exception] = []

    async def submit(self, entry: Entry) -> list[Outcome]:
        await asyncio.sleep(0)
        if self.refusals:
            raise self.refusals.pop()
        assert isinstance(entry, Delivered)
        row = self.kv.get(keys.outbox(entry.destination, 0))
        assert row is not None
        box = Outbox.decode(row)
        assert box.delivered < entry.sequence <= box.last
        self.kv.write({keys.outbox(entry.destination, 0): box._replace(delivered=entry.sequence).encode()})
        return [Changed(entry.sequence)]


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not condition():
            await asyncio.sleep(0.001)


async def test_one_destination_that_does_not_answer_holds_up_no_other() -> None:
    kv = MemoryKV({**filled(2).rows(), **filled(2, destination=7).rows()})
    stuck = asyncio.Event()

    async def answer(destination: int, first: int, messages: list[OutboxMessage]) -> int:
        if destination == AWAY:
            await stuck.wait()
        return first + len(messages) - 1

    relay = relay_of(kv, answer)
    relay.start()
    await until(lambda: dict(Reader(kv).outboxes())[7].waiting == 0)
    assert dict(Reader(kv).outboxes())[AWAY].waiting == 2
    stuck.set()
    await until(lambda: dict(Reader(kv).outboxes())[AWAY].waiting == 0)
    await settle()
    assert relay.destinations == set(), "who has nothing to bring takes no memory"
    await relay.stop()


async def test_batches_follow_each_other_and_refused_notes_are_written_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(relay_module, "BACKOFF", Backoff(0.001, 5.0))
    kv = filled(BATCH_MESSAGES_MAX + 3)
    desk = Desk(kv)
    desk.refusals = [overloaded("writes", 1)]
    brought: list[tuple[int, int]] = []

    async def answer(_destination: int, first: int, messages: list[OutboxMessage]) -> int:
        brought.append((first, len(messages)))
        return 10**9  # a destination may know more than it was told now

    relay = relay_of(kv, answer, desk)
    relay.wake([AWAY])
    await settle()
    assert brought == [], "nobody goes before it is started"
    relay.start()
    relay.wake([AWAY])
    await until(lambda: Reader(kv).outboxes()[0][1].waiting == 0)
    half = BATCH_MESSAGES_MAX // 2  # after anything that went wrong it is tried with fewer
    assert brought == [(1, BATCH_MESSAGES_MAX), (1, half), (half + 1, half + 3)]
    await relay.stop()


async def test_while_the_outbox_is_held_nothing_is_brought() -> None:
    kv = filled(2)
    answers = asyncio.Event()
    brought: list[int] = []

    async def answer(_destination: int, first: int, messages: list[OutboxMessage]) -> int:
        brought.append(first)
        await answers.wait()
        return first + len(messages) - 1

    relay = relay_of(kv, answer)
    relay.start()
    await until(lambda: brought == [1])
    given_up = asyncio.ensure_future(relay.hold())
    holding = asyncio.ensure_future(relay.hold())
    await settle()
    assert not holding.done(), "something is on its way"
    given_up.cancel()
    answers.set()
    await holding
    assert Reader(kv).outboxes()[0][1].waiting == 0, "what was on its way has left the outbox"
    kv.write(filled(4).rows() | {keys.outbox(AWAY, 0): Outbox(4, 2).encode()})
    relay.wake([AWAY])
    await settle()
    assert brought == [1]
    relay.let_go()
    await until(lambda: Reader(kv).outboxes()[0][1].waiting == 0)
    assert brought == [1, 3], "who gave up holds nothing any more"
    await relay.stop()


async def test_what_is_not_received_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(relay_module, "BACKOFF", Backoff(0.001, 5.0))
    kv = filled(2)
    calls = []

    async def answer(_destination: int, first: int, _messages: list[OutboxMessage]) -> int:
        calls.append(first)
        return 0 if len(calls) < 4 else len(calls) - 3  # nothing, then one after the other

    relay = relay_of(kv, answer)
    relay.start()
    await until(lambda: Reader(kv).outboxes()[0][1].waiting == 0)
    assert calls == [1, 1, 1, 1, 2]
    await relay.stop()
    assert relay.failed() is None


async def test_a_bug_in_a_delivery_is_seen() -> None:
    kv = filled(1)

    async def deliver(*_args: object) -> int:
        return 1

    async def submit(_entry: Entry) -> list[Outcome]:
        raise ZeroDivisionError

    relay = OutboxRelay(Reader(kv), HERE, 1, deliver, now_ms=lambda: START_MS, submit=submit)
    relay.start()
    await until(lambda: relay.failed() is not None)
    assert isinstance(relay.failed(), ZeroDivisionError)


def test_an_id_is_never_that_of_elsewhere() -> None:
    """The id that stands for another shard is none that a shard could make."""
    assert parse_task_id(format_task_id(bytes(16))) is None
