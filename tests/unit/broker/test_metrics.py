"""Metrics: named, counted per batch, bounded in series."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.broker.histograms import LatencyHistogram
from holdfast.broker.metrics import LATENCIES_MAX, QUEUES_MAX, Latencies, Metrics, QueueFigures
from holdfast.client.worker.meters import GAUGES, Meter
from holdfast.rebalancer.metrics import Metrics as RebalancerMetrics
from holdfast.router.metrics import Metrics as RouterMetrics


def lines(metrics: Metrics) -> set[str]:
    return {line for line in metrics.render().decode().splitlines() if not line.startswith("#")}


@pytest.fixture
def metrics() -> Metrics:
    return Metrics()


def test_counters_count_batches(metrics: Metrics) -> None:
    metrics.tasks_enqueued.inc(100)
    metrics.tasks_enqueued.inc(5)
    metrics.duplicates.inc()
    assert {"holdfast_tasks_enqueued_total 105.0", "holdfast_tasks_duplicate_total 1.0"} <= lines(metrics)


def test_two_nodes_in_one_process_do_not_share_numbers() -> None:
    first, second = Metrics(), Metrics()
    first.tasks_acked.inc()
    assert "holdfast_tasks_acked_total 0.0" in lines(second)


def test_calls_are_counted_by_method_and_code(metrics: Metrics) -> None:
    enqueue = metrics.rpc("Enqueue")
    enqueue.observe("OK", 0.003)
    enqueue.observe("OK", 0.2)
    metrics.rpc("Enqueue").observe("INVALID_ARGUMENT", 0.0001)
    assert {
        'holdfast_rpc_calls_total{code="OK",method="Enqueue"} 2.0',
        'holdfast_rpc_calls_total{code="INVALID_ARGUMENT",method="Enqueue"} 1.0',
        'holdfast_rpc_seconds_bucket{le="0.005",method="Enqueue"} 2.0',
        'holdfast_rpc_seconds_count{method="Enqueue"} 3.0',
    } <= lines(metrics)


def test_rejections_are_counted_by_reason(metrics: Metrics) -> None:
    metrics.rejected("STALE_TOKEN").inc(3)
    assert metrics.rejected("STALE_TOKEN") is metrics.rejected("STALE_TOKEN")
    assert 'holdfast_rejections_total{reason="STALE_TOKEN"} 3.0' in lines(metrics)


def test_queue_depths_are_read_when_scraped(metrics: Metrics) -> None:
    counts = {"ready": 1, "dead": 2}
    metrics.watch_queues(lambda: [QueueFigures("mail", dict(counts))])
    assert 'holdfast_queue_tasks{queue="mail",state="ready"} 1.0' in lines(metrics)
    counts["ready"] = 7
    assert {'holdfast_queue_tasks{queue="mail",state="ready"} 7.0', "holdfast_queues_truncated 0.0"} <= lines(metrics)


def test_a_queue_tells_its_age_its_pause_and_its_alert(metrics: Metrics) -> None:
    mail = QueueFigures("mail", {"ready": 1}, {}, 2.5, is_paused=True, has_dead_alert=True, oldest_claim_seconds=8)
    calm = QueueFigures("calm", {"ready": 0}, {}, 0.0, has_dead_alert=False)
    plain = QueueFigures("plain", {"ready": 9}, {}, None, oldest_claim_seconds=None)
    metrics.watch_queues(lambda: [mail, calm, plain])
    shown = lines(metrics)
    assert {
        'holdfast_queue_oldest_ready_seconds{queue="mail"} 2.5',
        'holdfast_queue_oldest_ready_seconds{queue="calm"} 0.0',
        'holdfast_queue_oldest_claim_seconds{queue="mail"} 8.0',
        'holdfast_queue_oldest_claim_seconds{queue="calm"} 0.0',
        'holdfast_queue_paused{queue="mail"} 1.0',
        'holdfast_queue_paused{queue="plain"} 0.0',
        'holdfast_queue_dead_alert{queue="mail"} 1.0',
        'holdfast_queue_dead_alert{queue="calm"} 0.0',
    } <= shown
    assert not any("plain" in line for line in shown if "oldest" in line or "dead_alert" in line)


def test_a_queue_on_several_shards_is_shown_once(metrics: Metrics) -> None:
    one = QueueFigures(
        "mail", {"ready": 1, "dead": 2}, {"failed": 3}, 2.5, has_dead_alert=False, oldest_claim_seconds=None
    )
    other = QueueFigures(
        "mail", {"ready": 10, "dead": 20}, {"failed": 4, "dead": 5}, 7.5, has_dead_alert=True, oldest_claim_seconds=4
    )
    third = QueueFigures("mail", {"ready": 100, "dead": 0}, {}, None)
    metrics.watch_queues(lambda: [one, QueueFigures("bills", {"ready": 5}), other, third])
    shown = [line for line in metrics.render().decode().splitlines() if "mail" in line]
    assert sorted(shown) == [
        'holdfast_queue_dead_alert{queue="mail"} 1.0',
        'holdfast_queue_events_total{event="dead",queue="mail"} 5.0',
        'holdfast_queue_events_total{event="failed",queue="mail"} 7.0',
        'holdfast_queue_oldest_claim_seconds{queue="mail"} 4.0',
        'holdfast_queue_oldest_ready_seconds{queue="mail"} 7.5',
        'holdfast_queue_paused{queue="mail"} 0.0',
        'holdfast_queue_tasks{queue="mail",state="dead"} 22.0',
        'holdfast_queue_tasks{queue="mail",state="ready"} 111.0',
    ]


def test_claims_are_added_up_over_queues(metrics: Metrics) -> None:
    metrics.watch_queues(lambda: [QueueFigures(name, {"ready": 9, "claimed": 2}) for name in ("mail", "bills")])
    assert "holdfast_claims_held 4.0" in lines(metrics)


def test_every_metric_that_is_written_about_exists(metrics: Metrics) -> None:
    metrics.watch_queues(lambda: [QueueFigures("mail", {"ready": 1}, {"failed": 1}, has_dead_alert=True)])
    metrics.watch_latencies(lambda: [latencies("mail", "welcome", 1)])
    worker = Meter([]).text(dict.fromkeys(GAUGES, 0), {})
    shown = metrics.render() + RouterMetrics().format() + RebalancerMetrics().format() + worker.encode()
    known = {line.split()[2] for line in shown.decode().splitlines() if line.startswith("# TYPE ")}
    docs = Path(__file__).parents[3] / "docs"
    for page in sorted(docs.glob("*.md")):
        named = set(re.findall(r"`(holdfast_[a-z_]+)[`{]", page.read_text()))
        assert named <= known, page.name


def test_formatting_uses_the_depths_read_before(metrics: Metrics) -> None:
    reads: list[int] = []

    def figures() -> list[QueueFigures]:
        reads.append(1)
        return [QueueFigures("mail", {"ready": 1})]

    metrics.watch_queues(figures)
    assert b"mail" not in metrics.format()
    list(metrics.refresh())
    assert b"mail" in metrics.format()
    assert len(reads) == 1


def test_the_number_of_queue_series_is_bounded_and_so_is_what_is_read(metrics: Metrics) -> None:
    read = 0

    def figures() -> Iterator[QueueFigures]:
        nonlocal read
        for number in range(QUEUES_MAX + 500):
            read += 1
            yield QueueFigures(f"queue-{number}", {"ready": 1})

    metrics.watch_queues(figures)
    rendered = lines(metrics)
    assert len([line for line in rendered if line.startswith("holdfast_queue_tasks{")]) == QUEUES_MAX
    assert "holdfast_queues_truncated 1.0" in rendered
    assert read == QUEUES_MAX + 1


def latencies(queue: str, name: str, *took_ms: int) -> Latencies:
    waits, runs = LatencyHistogram(), LatencyHistogram()
    for value in took_ms:
        waits.add(value)
        runs.add(10 * value)
    return Latencies(queue, name, waits.counts, waits.total_ms, runs.counts, runs.total_ms)


def test_latencies_are_histograms_by_queue_and_type(metrics: Metrics) -> None:
    metrics.watch_latencies(
        lambda: [latencies("mail", "send", 3, 40), latencies("mail", "read", 1), latencies("mail", "send", 200)]
    )
    shown = lines(metrics)
    wait, run = "holdfast_task_ready_to_claim_seconds", "holdfast_task_claim_to_ack_seconds"
    assert {
        wait + '_bucket{le="0.002",queue="mail",type="send"} 0.0',
        wait + '_bucket{le="0.005",queue="mail",type="send"} 1.0',
        wait + '_bucket{le="0.05",queue="mail",type="send"} 2.0',
        wait + '_bucket{le="100000",queue="mail",type="send"} 3.0',
        wait + '_bucket{le="+Inf",queue="mail",type="send"} 3.0',
        wait + '_count{queue="mail",type="send"} 3.0',
        wait + '_sum{queue="mail",type="send"} 0.243',
        run + '_sum{queue="mail",type="send"} 2.43',
        run + '_count{queue="mail",type="read"} 1.0',
        "holdfast_latencies_truncated 0.0",
    } <= shown


def test_latencies_are_bounded_and_copied(metrics: Metrics) -> None:
    counted = latencies("mail", "send", 5)
    many = [latencies("mail", f"type-{number}", 1) for number in range(LATENCIES_MAX + 5)]
    metrics.watch_latencies(lambda: [counted, *many])
    list(metrics.refresh())
    counted.ready_to_claim[0] = 1000  # type: ignore[index]
    shown = metrics.format().decode().splitlines()
    counts = [line for line in shown if line.startswith("holdfast_task_ready_to_claim_seconds_count")]
    assert len(counts) == LATENCIES_MAX
    assert 'holdfast_task_ready_to_claim_seconds_count{queue="mail",type="send"} 1.0' in counts
    assert "holdfast_latencies_truncated 1.0" in shown


def test_ends_that_time_brings_about_are_counted(metrics: Metrics) -> None:
    for index, metric in enumerate(
        (
            metrics.tasks_timed_out,
            metrics.tasks_ttl_expired,
            metrics.schedule_ticks_fired,
            metrics.schedule_ticks_skipped,
        ),
        start=1,
    ):
        metric.inc(index)
    assert {
        "holdfast_tasks_timed_out_total 1.0",
        "holdfast_tasks_ttl_expired_total 2.0",
        "holdfast_schedule_ticks_fired_total 3.0",
        "holdfast_schedule_ticks_skipped_total 4.0",
        "holdfast_webhooks_failed_total 0.0",
    } <= lines(metrics)


def test_every_name_has_our_prefix_or_the_standard_one() -> None:
    assert all(line.startswith(("holdfast_", "process_")) for line in lines(Metrics()))
    assert not any("_created" in line for line in lines(Metrics()))
