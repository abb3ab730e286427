"""What the leader of a shard counts: rates, latencies, and who works."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from holdfast.broker.api.tasks import TaskService
from holdfast.broker.histograms import BOUNDS_MS
from holdfast.broker.leader import stats as stats_module
from holdfast.broker.leader.stats import (
    DRAINED,
    GONE,
    NO_STATE,
    OTHER_TYPES,
    QUIET,
    RUNNING,
    SAMPLES_MAX,
    STOPPING,
    TYPES_MAX,
    WORKER_KEEP_MS,
    WORKER_SILENT_MS,
    Heartbeat,
    Stats,
    WorkerSeen,
)
from holdfast.machine.effects import CLAIM_TO_ACK, READY_TO_CLAIM, Effects, StateDuration
from holdfast.proto.v1 import tasks_pb2 as pb
from tests.unit.machine.machine_shard import QUEUE, Shard, new_task
from tests.unit.replica.small_shard import SmallShard, claim_ref


class Counted:
    """A shard whose statistics are kept."""

    def __init__(self) -> None:
        self.shard = Shard()
        self.polls = 0
        self.stats = Stats(
            self.shard.machine, now_ms=lambda: self.shard.now_ms, on_sample=self._looked
        )  # fmt: skip

    def _looked(self) -> None:
        self.polls += 1

    def enqueue(self, count: int, **changes: object) -> list[bytes]:
        accepted = self.shard.enqueue_all(*[new_task(**changes)] * count)
        self.stats.follow(self.shard.effects)
        return [task.task_id for task in accepted]

    def claim(self, task_id: bytes) -> int:
        token = self.shard.claim(task_id)
        self.stats.follow(self.shard.effects)
        return token

    def ack(self, task_id: bytes, token: int) -> None:
        self.shard.ack(task_id, token)
        self.stats.follow(self.shard.effects)

    def pass_samples(self, count: int) -> None:
        for _ in range(count):
            self.shard.now_ms += 5000
            self.stats.sample()

    def rates(self, queue: bytes = QUEUE) -> tuple[float, ...]:
        return self.stats.rates.per_second(queue)

    def workers(self) -> list[WorkerSeen]:
        return self.stats.workers_page(b"", 100)[0]


def names(workers: list[WorkerSeen]) -> list[bytes]:
    return [worker.name for worker in workers]


# --- rates ----------------------------------------------------------------------------------------------------


@pytest.fixture
def counted() -> Counted:
    return Counted()


def test_rates_are_changes_over_the_time_that_they_took(counted: Counted) -> None:
    task_ids = counted.enqueue(100)
    counted.pass_samples(2)
    for task_id in task_ids[:50]:
        counted.ack(task_id, counted.claim(task_id))
    token = counted.claim(task_ids[50])
    counted.shard.fail(task_ids[50], token)
    counted.pass_samples(2)
    assert counted.rates() == (5.0, 2.55, 2.5, 0.05)


def test_the_first_batch_of_a_new_queue_counts(counted: Counted) -> None:
    counted.enqueue(50)
    assert counted.rates() == (10.0, 0, 0, 0), "over five seconds at least"
    counted.pass_samples(2)
    assert counted.rates() == (5.0, 0, 0, 0)


def test_what_is_more_than_a_minute_ago_counts_no_more(counted: Counted) -> None:
    counted.enqueue(60)
    counted.pass_samples(12)
    assert counted.rates()[0] == 1.0
    counted.enqueue(6)
    counted.pass_samples(2)
    assert counted.rates()[0] == pytest.approx(0.1, rel=0.2)


def test_a_queue_that_rested_counts_from_its_first_batch_again(counted: Counted) -> None:
    counted.enqueue(60)
    counted.pass_samples(2 * SAMPLES_MAX)
    assert not counted.stats.rates.watched
    assert counted.rates() == (0, 0, 0, 0)
    counted.pass_samples(2 * SAMPLES_MAX)
    counted.enqueue(20)
    assert counted.rates()[0] == 4.0
    counted.pass_samples(2)
    assert counted.rates()[0] == 2.0


def test_a_failure_after_a_long_rest_counts(counted: Counted) -> None:
    (task_id,) = counted.enqueue(1)
    token = counted.claim(task_id)
    counted.pass_samples(2 * SAMPLES_MAX)
    assert not counted.stats.rates.watched
    counted.shard.fail(task_id, token)
    counted.stats.follow(counted.shard.effects)
    counted.pass_samples(2)
    assert counted.rates() == (0, 0, 0, 0.1)


def test_tasks_that_came_for_later_while_a_queue_rested_are_no_burst(counted: Counted) -> None:
    counted.enqueue(1)
    counted.pass_samples(2 * SAMPLES_MAX)
    counted.enqueue(1000, run_at_ms=counted.shard.now_ms + 3_600_000)
    counted.pass_samples(2 * SAMPLES_MAX)
    counted.enqueue(5)
    assert counted.rates()[0] == 1.0


def test_a_first_batch_counts_though_its_tasks_start_later(counted: Counted) -> None:
    counted.enqueue(300, run_at_ms=counted.shard.now_ms + 600_000)
    assert counted.rates() == (60.0, 0, 0, 0)


def test_a_first_batch_counts_though_some_of_it_starts_later(counted: Counted) -> None:
    later = new_task(run_at_ms=counted.shard.now_ms + 600_000)
    counted.shard.enqueue_all(*[new_task()] * 300, later)
    counted.stats.follow(counted.shard.effects)
    assert counted.rates() == (60.2, 0, 0, 0)


def test_rare_batches_that_start_later_count_each_time(counted: Counted) -> None:
    for _ in range(3):
        counted.enqueue(100, run_at_ms=counted.shard.now_ms + 86_400_000)
        assert counted.rates() == (20.0, 0, 0, 0)
        counted.pass_samples(3 * SAMPLES_MAX)
        assert not counted.stats.rates.watched


def test_tasks_whose_time_comes_are_not_new(counted: Counted) -> None:
    [task_id] = counted.enqueue(1, run_at_ms=counted.shard.now_ms + 600_000)
    counted.stats = Stats(counted.shard.machine, now_ms=lambda: counted.shard.now_ms)
    counted.shard.now_ms += 600_000
    counted.shard.promote(task_id)
    counted.stats.follow(counted.shard.effects)
    assert counted.rates() == (0, 0, 0, 0)


def test_a_new_leader_begins_at_nothing(counted: Counted) -> None:
    counted.enqueue(1000)
    counted.stats = Stats(counted.shard.machine, now_ms=lambda: counted.shard.now_ms)
    assert counted.rates() == (0, 0, 0, 0)
    counted.pass_samples(1)
    counted.enqueue(5)
    counted.pass_samples(1)
    assert counted.rates()[0] == 0.5


def test_the_first_batch_of_a_new_leader_counts(counted: Counted) -> None:
    counted.enqueue(1000)
    counted.stats = Stats(counted.shard.machine, now_ms=lambda: counted.shard.now_ms)
    counted.enqueue(5)
    assert counted.rates() == (1.0, 0, 0, 0)


def test_a_queue_that_is_not_there_has_no_rates(counted: Counted) -> None:
    assert counted.rates(b"nobody") == (0, 0, 0, 0)
    assert not counted.stats.rates.watched


def test_the_number_of_watched_queues_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stats_module, "RATED_QUEUES_MAX", 2)
    counted = Counted()
    for name in (b"a", b"b", b"c"):
        counted.enqueue(1, queue=name)
    assert set(counted.stats.rates.watched) == {b"a", b"b"}
    counted.pass_samples(2 * SAMPLES_MAX)
    counted.enqueue(1, queue=b"c")
    counted.enqueue(1, queue=b"d")
    counted.pass_samples(2 * SAMPLES_MAX)
    assert set(counted.stats.rates.resting) == {b"c", b"d"}


# --- latencies ------------------------------------------------------------------------------------------------


def test_latencies_are_counted_by_type(counted: Counted) -> None:
    mail, bill = counted.enqueue(1, type=b"mail")[0], counted.enqueue(1, type=b"bill")[0]
    counted.shard.now_ms += 30
    token = counted.claim(mail)
    counted.shard.now_ms += 700
    counted.ack(mail, token)
    counted.claim(bill)
    (_, *of_bill), (_, *of_mail) = latencies = counted.stats.latencies_of(QUEUE)
    assert [name for name, _, _ in latencies] == [b"bill", b"mail"]
    assert [took.total_ms for took in of_mail] == [30, 700]
    assert [took.counts[BOUNDS_MS.index(ms)] for took, ms in zip(of_mail, (50, 1000), strict=True)] == [1, 1]
    assert [sum(took.counts) for took in of_bill] == [1, 0]
    assert len(of_mail[0].counts) == len(BOUNDS_MS) + 1


def timings(*reported: tuple[bytes, bytes, int]) -> Effects:
    effects = Effects()
    effects.timings = [StateDuration(queue, name, span, 5) for queue, name, span in reported]
    return effects


def test_types_beyond_the_bound_are_counted_together(counted: Counted) -> None:
    many = [(QUEUE, b"type-%d" % number, READY_TO_CLAIM) for number in range(TYPES_MAX + 20)]
    counted.stats.follow(timings(*many, *many))
    found = {name: sum(ready.counts) for _, name, ready, _ in counted.stats.latencies()}
    assert len(found) == TYPES_MAX + 1
    assert found[OTHER_TYPES] == 40
    assert found[b"type-0"] == 2


def test_timed_queues_are_bounded_and_those_that_rest_make_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stats_module, "TIMED_QUEUES_MAX", 2)
    counted = Counted()

    def timed() -> set[bytes]:
        return {queue for queue, *_ in counted.stats.latencies()}

    counted.stats.follow(
        timings((b"a", b"t", READY_TO_CLAIM), (b"b", b"t", READY_TO_CLAIM), (b"c", b"t", READY_TO_CLAIM))
    )
    assert timed() == {b"a", b"b"}
    counted.pass_samples(1)
    counted.stats.follow(timings((b"b", b"t", CLAIM_TO_ACK)))
    counted.pass_samples(1)
    assert timed() == {b"a", b"b"}, "not every few seconds"
    counted.shard.now_ms += stats_module.TIMED_KEEP_MS
    counted.pass_samples(1)
    counted.stats.follow(timings((b"c", b"t", READY_TO_CLAIM)))
    assert timed() == {b"b", b"c"}


# --- workers --------------------------------------------------------------------------------------------------


def test_a_worker_that_asks_is_seen_and_waits_until_it_is_answered(counted: Counted) -> None:
    counted.shard.now_ms = 80
    with counted.stats.worker_asks(b"ann", [b"mail", b"bills"], 77):
        (worker,) = counted.workers()
        assert worker.is_waiting
        with pytest.raises(RuntimeError), counted.stats.worker_asks(b"ann", [b"mail"], 78):
            raise RuntimeError
        assert counted.workers()[0].is_waiting, "the other call still does"
    (worker,) = counted.workers()
    assert (worker.name, worker.last_seen_ms, worker.queues, worker.is_waiting) == (b"ann", 78, (b"mail",), False)


def test_a_worker_without_a_name_is_nobody(counted: Counted) -> None:
    with counted.stats.worker_asks(b"", [b"mail"], 77):
        assert not counted.workers()


def test_workers_that_hold_claims_are_listed_though_nobody_saw_them(counted: Counted) -> None:
    first, second = counted.enqueue(2)
    counted.shard.claim_all(first, second, worker=b"bob")
    with counted.stats.worker_asks(b"ann", [QUEUE], counted.shard.now_ms):
        pass
    assert [(worker.name, worker.claims, worker.last_seen_ms) for worker in counted.workers()] == [
        (b"ann", 0, counted.shard.now_ms), (b"bob", 2, 0),
    ]  # fmt: skip


HOLDING = [b"b", b"d", b"d2", b"f", b"z"]
SEEN = [b"a", b"b", b"c", b"d1", b"z", b"zz"]


@pytest.mark.parametrize(("holding", "seen"), [(HOLDING, SEEN), (HOLDING, []), ([], SEEN)])
@pytest.mark.parametrize("limit", [1, 2, 4, 5, 6, 7])
def test_pages_have_every_worker_once_in_order(limit: int, holding: list[bytes], seen: list[bytes]) -> None:
    counted = Counted()
    for name in holding:
        counted.shard.claim_all(*counted.enqueue(1), worker=name)
    for name in seen:
        with counted.stats.worker_asks(name, [QUEUE], counted.shard.now_ms):
            pass
    found: list[bytes] = []
    more = True
    while more:
        page, more = counted.stats.workers_page(found[-1] if found else b"", limit)
        assert len(page) <= limit
        found += names(page)
    assert found == sorted({*holding, *seen})


def test_workers_are_forgotten_when_there_are_too_many_or_they_left_long_ago(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stats_module, "WORKERS_MAX", 3)
    counted = Counted()
    for name in (b"a", b"b", b"c", b"a", b"d"):
        with counted.stats.worker_asks(name, [QUEUE], counted.shard.now_ms):
            pass
    assert names(counted.workers()) == [b"a", b"c", b"d"], "who was seen longest ago goes"
    counted.shard.now_ms += WORKER_KEEP_MS
    with counted.stats.worker_asks(b"c", [QUEUE], counted.shard.now_ms):
        counted.stats.sample()
        assert sorted(counted.stats.worker_names) == [b"a", b"c", b"d"]
        counted.shard.now_ms += 1
        counted.stats.sample()
        assert sorted(counted.stats.worker_names) == [b"c"]
        counted.shard.now_ms += 2 * WORKER_KEEP_MS
        counted.stats.sample()
        assert names(counted.workers()) == [b"c"], "it waits still"


def test_a_worker_is_seen_also_when_it_only_reports(counted: Counted) -> None:
    with counted.stats.worker_asks(b"ann", [b"mail"], 77):
        counted.stats.worker_seen(b"ann", 99)
    counted.stats.worker_seen(b"bob", 98)
    counted.stats.worker_seen(b"", 98)
    counted.shard.now_ms = 100
    assert [(worker.name, worker.last_seen_ms, worker.queues) for worker in counted.workers()] == [
        (b"ann", 99, (b"mail",)), (b"bob", 98, ()),
    ]  # fmt: skip


def test_a_worker_that_holds_claims_is_not_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither because nothing was heard of it, nor because there are too many."""
    monkeypatch.setattr(stats_module, "WORKERS_MAX", 3)
    counted = Counted()
    counted.shard.claim_all(*counted.enqueue(1), worker=b"holder")
    began_ms = counted.shard.now_ms
    for name in (b"holder", b"a", b"b", b"c"):
        with counted.stats.worker_asks(name, [QUEUE], began_ms):
            pass
    assert names(counted.workers()) == [b"b", b"c", b"holder"]
    counted.shard.now_ms += 2 * WORKER_KEEP_MS
    counted.stats.sample()
    (holder,) = counted.workers()
    assert (holder.name, holder.last_seen_ms, holder.queues) == (b"holder", began_ms, (QUEUE,))


def test_one_is_forgotten_if_all_of_too_many_hold_claims(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stats_module, "WORKERS_MAX", 2)
    counted = Counted()
    for name in (b"a", b"b", b"c"):
        counted.shard.claim_all(*counted.enqueue(1), worker=name)
        counted.stats.worker_seen(name, 77)
    assert [worker.last_seen_ms for worker in counted.workers()] == [0, 77, 77]


async def test_it_samples_by_itself_and_says_if_that_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stats_module, "SAMPLE_SECONDS", 0.0)

    def fail() -> None:
        raise ValueError("looked")

    sampler = Stats(Shard().machine, now_ms=lambda: 0, on_sample=fail)
    sampler.start()
    while sampler.failed() is None:
        await asyncio.sleep(0)
    assert str(sampler.failed()) == "looked"
    await sampler.stop()


@pytest.mark.parametrize("kind", ["ack", "fail", "extend", "release"])
async def test_every_worker_whose_claims_a_call_names_is_seen(kind: str) -> None:
    small = SmallShard()
    service = TaskService(small.shard, small.config, small.metrics)
    await small.enqueue(4)
    refs = []
    for worker in (b"ann", b"bob", b"eve", b"old"):
        [claim] = await small.claim(worker=worker)
        small.shard.stats.worker_seen(worker, small.time.now_ms)
        refs.append(claim_ref(claim.task_id, claim.token + (worker == b"old")))
    small.time.now_ms += 1000
    calls: dict[str, Callable[[], Coroutine[Any, Any, object]]] = {
        "ack": lambda: service.ack(pb.AckRequest(items=[pb.AckItem(claim=ref) for ref in refs])),
        "fail": lambda: service.fail(pb.FailRequest(items=[pb.FailItem(claim=ref) for ref in refs])),
        "extend": lambda: service.extend(
            pb.ExtendRequest(items=[pb.ExtendItem(claim=ref, lease_ms=5000) for ref in refs])
        ),
        "release": lambda: service.release(pb.ReleaseRequest(claims=refs)),
    }
    await small.rounds_until(calls[kind]())
    seen = {worker.name: worker.last_seen_ms for worker in small.shard.stats.workers_page(b"", 9)[0]}
    now_ms = small.time.now_ms
    assert seen == {b"ann": now_ms, b"bob": now_ms, b"eve": now_ms, b"old": now_ms - 1000}, "a wrong token is nobody's"


# --- heartbeats -----------------------------------------------------------------------------------------------


def beat(counted: Counted, state: int, name: bytes = b"ann") -> int:
    return counted.stats.heartbeat(Heartbeat(name, state, 8, b"1.2", (b"mail",)), counted.shard.now_ms)


def test_a_worker_with_heartbeats_is_listed_with_what_it_says(counted: Counted) -> None:
    assert beat(counted, RUNNING) == NO_STATE
    (worker,) = counted.workers()
    assert (worker.state, worker.slots, worker.version, worker.queues) == (RUNNING, 8, b"1.2", (b"mail",))
    assert worker.desired == NO_STATE


def test_a_worker_hears_what_is_wanted_until_it_is_so(counted: Counted) -> None:
    beat(counted, RUNNING)
    assert counted.stats.signal(b"ann", QUIET) == RUNNING
    assert counted.workers()[0].desired == QUIET
    assert [beat(counted, RUNNING), beat(counted, RUNNING)] == [QUIET, QUIET], "the first answer may have been lost"
    assert [beat(counted, QUIET), beat(counted, RUNNING)] == [NO_STATE, NO_STATE], "it was so once"
    counted.stats.signal(b"ann", STOPPING)
    counted.stats.signal(b"ann", RUNNING)
    assert beat(counted, RUNNING) == NO_STATE, "the newest request counts"
    counted.stats.signal(b"ann", QUIET)
    assert beat(counted, STOPPING) == NO_STATE, "nobody comes back from there"
    assert counted.stats.signal(b"ann", RUNNING) == STOPPING
    assert counted.workers()[0].desired == NO_STATE


def test_a_worker_with_nothing_left_is_as_quiet_as_it_was_asked_to_be(counted: Counted) -> None:
    beat(counted, RUNNING)
    counted.stats.signal(b"ann", QUIET)
    assert beat(counted, DRAINED) == NO_STATE
    assert counted.stats.signal(b"ann", QUIET) == DRAINED
    assert counted.workers()[0].desired == NO_STATE
    counted.stats.signal(b"ann", RUNNING)
    assert [beat(counted, DRAINED), beat(counted, RUNNING)] == [RUNNING, NO_STATE]


def test_only_workers_with_heartbeats_can_be_asked_for_something(counted: Counted) -> None:
    assert counted.stats.signal(b"nobody", QUIET) is None
    counted.stats.worker_seen(b"bob", counted.shard.now_ms)
    assert counted.stats.signal(b"bob", QUIET) is None
    beat(counted, RUNNING)
    beat(counted, GONE)
    assert counted.stats.signal(b"ann", QUIET) is None


def test_a_worker_is_gone_when_it_says_so_or_nothing_is_heard_for_a_minute(counted: Counted) -> None:
    beat(counted, RUNNING)
    beat(counted, GONE, b"bob")
    counted.stats.worker_seen(b"eve", counted.shard.now_ms)
    counted.shard.now_ms += WORKER_SILENT_MS
    states = {worker.name: worker.state for worker in counted.workers()}
    assert states == {b"ann": RUNNING, b"bob": GONE, b"eve": NO_STATE}
    counted.shard.now_ms += 1
    states = {worker.name: worker.state for worker in counted.workers()}
    assert states == {b"ann": GONE, b"bob": GONE}, "one whose heartbeats are not here leaves the list"
    assert counted.stats.signal(b"ann", QUIET) is None
    with counted.stats.worker_asks(b"ann", [b"mail"], counted.shard.now_ms - 1_000_000):
        assert counted.workers()[0].state == RUNNING, "it waits here"
    beat(counted, RUNNING)
    assert counted.workers()[0].state == RUNNING, "back again"


def test_one_whose_heartbeats_are_elsewhere_is_listed_for_a_minute_or_while_it_waits_or_holds_something() -> None:
    """A worker's home has its heartbeats, and a new leader of it has heard of none. Nobody would tell the other shards,
    which have seen the worker, that it is gone."""
    counted = Counted()
    counted.shard.claim_all(*counted.enqueue(1), worker=b"holder")
    for name in (b"holder", b"left"):
        counted.stats.worker_seen(name, counted.shard.now_ms)
    with counted.stats.worker_asks(b"waiter", [QUEUE], counted.shard.now_ms):
        counted.shard.now_ms += WORKER_SILENT_MS
        assert names(counted.workers()) == [b"holder", b"left", b"waiter"]
        counted.shard.now_ms += 1
        assert names(counted.workers()) == [b"holder", b"waiter"]
        pages = [counted.stats.workers_page(b"", 1), counted.stats.workers_page(b"holder", 1)]
        assert [(names(page), more) for page, more in pages] == [([b"holder"], True), ([b"waiter"], False)]
    assert names(counted.workers()) == [b"holder"]
    counted.stats.worker_seen(b"left", counted.shard.now_ms)
    assert names(counted.workers()) == [b"holder", b"left"], "back again"
