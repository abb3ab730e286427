"""What shards tell of one queue or one worker, put together."""

from holdfast.proto.v1 import queues_pb2
from holdfast.proto.v1 import tasks_pb2 as pb
from holdfast.routing.sums import add_counts, add_worker, sum_parts

NUMBERS = [
    field.name
    for field in pb.QueueCounts.DESCRIPTOR.fields
    if field.name not in ("queue", "oldest_ready_age_ms", "oldest_claim_age_ms", "paused", "dead_alert", "latencies")
]


def counts(number: int, **fields: object) -> pb.QueueCounts:
    return pb.QueueCounts(queue="q", **{name: number + index for index, name in enumerate(NUMBERS)}, **fields)  # type: ignore[arg-type]


def latency(kind: str, *counted: int) -> pb.TypeLatency:
    total_ms = sum(counted)
    return pb.TypeLatency(
        type=kind, ready_to_claim=counted, claim_to_ack=counted[::-1], ready_to_claim_ms_total=total_ms,
        claim_to_ack_ms_total=2 * total_ms,
    )  # fmt: skip


def test_every_number_and_rate_of_a_queue_is_added_up() -> None:
    total = counts(10, oldest_ready_age_ms=5, oldest_claim_age_ms=7)
    add_counts(total, counts(200, oldest_ready_age_ms=9, oldest_claim_age_ms=3))
    assert total.oldest_claim_age_ms == 7
    assert {name: getattr(total, name) for name in NUMBERS} == {
        name: 210 + 2 * index for index, name in enumerate(NUMBERS)
    }
    assert (total.queue, total.oldest_ready_age_ms) == ("q", 9)
    add_counts(total, pb.QueueCounts(queue="q", oldest_ready_age_ms=1, claimed_per_second=0.25))
    assert (total.oldest_ready_age_ms, total.claimed_per_second % 1) == (9, 0.25)


def test_what_holds_for_one_shard_holds_for_the_queue() -> None:
    for here in (False, True):
        for there in (False, True):
            total = pb.QueueCounts(paused=here, dead_alert=there)
            add_counts(total, pb.QueueCounts(paused=there, dead_alert=here))
            assert (total.paused, total.dead_alert) == (here or there, here or there)


def test_histograms_are_added_by_type_and_place() -> None:
    total = pb.QueueCounts(latencies=[latency("a", 1, 2, 3), latency("b", 7), latency("(other)", 1)])
    more = pb.QueueCounts(latencies=[latency("c", 5, 5), latency("a", 10, 20, 30), latency("b", 1, 2)])
    add_counts(total, more)
    assert [item.type for item in total.latencies] == ["a", "b", "(other)", "c"]
    a, b, _, c = total.latencies
    assert a == latency("a", 11, 22, 33)
    assert (list(b.ready_to_claim), b.ready_to_claim_ms_total, b.claim_to_ack_ms_total) == ([8, 2], 10, 20)
    assert c == latency("c", 5, 5)


def test_a_worker_is_known_by_all_its_shards() -> None:
    worker = queues_pb2.WorkerInfo(worker="w", claims=2, last_seen_ms=50, queues=["b", "a"])
    add_worker(worker, queues_pb2.WorkerInfo(worker="w", claims=3, last_seen_ms=40, queues=["c", "a"], is_waiting=True))
    assert worker == queues_pb2.WorkerInfo(
        worker="w", claims=5, last_seen_ms=50, queues=["a", "b", "c"], is_waiting=True
    )
    home = queues_pb2.WorkerInfo(worker="w", state=queues_pb2.WORKER_STATE_QUIET, slots=8, version="1.2")
    add_worker(worker, home)
    assert (worker.state, worker.slots, worker.version) == (queues_pb2.WORKER_STATE_QUIET, 8, "1.2")
    add_worker(worker, queues_pb2.WorkerInfo(worker="w", last_seen_ms=60))
    assert worker.slots == 8, "other shards know nothing of it"
    assert (worker.last_seen_ms, worker.is_waiting) == (60, True)


def test_queues_are_summed_over_the_shards_that_know_them_and_not_if_one_cannot_say() -> None:
    unknown = pb.Rejection(reason="QUEUE_NOT_FOUND", field="queues[0]", message="Expected queues[0] to exist.")
    silent = pb.Rejection(reason="NOT_LEADER", message="Nobody leads.")

    def reported(*outcomes: pb.QueueCounts | pb.Rejection) -> pb.QueueStatsResponse:
        return pb.QueueStatsResponse(
            outcomes=[{"rejection" if isinstance(outcome, pb.Rejection) else "counts": outcome} for outcome in outcomes]
        )

    parts = [
        ([0, 1], reported(pb.QueueCounts(queue="a", ready=2), pb.QueueCounts(queue="b", ready=1))),
        ([0], reported(pb.QueueCounts(queue="a", ready=3))),
        ([0], reported(unknown)),
        ([2], reported(unknown)),
        ([1], silent),
    ]
    nowhere = pb.Rejection(reason="QUEUE_NOT_FOUND", field="queues[2]", message="Expected queues[2] to exist.")
    assert sum_parts(pb.QueueStatsResponse, parts, 3) == reported(pb.QueueCounts(queue="a", ready=5), silent, nowhere)
