"""Metrics: named, counted per batch, bounded in series."""

from holdfast.broker.metrics import QUEUES_MAX, Metrics


def lines(metrics: Metrics) -> set[str]:
    return {line for line in metrics.render().decode().splitlines() if not line.startswith("#")}


def test_counters_count_batches() -> None:
    metrics = Metrics()
    metrics.tasks_enqueued.inc(100)
    metrics.tasks_enqueued.inc(5)
    metrics.duplicates.inc()
    assert {"holdfast_tasks_enqueued_total 105.0", "holdfast_tasks_duplicate_total 1.0"} <= lines(metrics)


def test_two_nodes_in_one_process_do_not_share_numbers() -> None:
    first, second = Metrics(), Metrics()
    first.tasks_acked.inc()
    assert "holdfast_tasks_acked_total 0.0" in lines(second)


def test_calls_are_counted_by_method_and_code() -> None:
    metrics = Metrics()
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


def test_rejections_are_counted_by_reason() -> None:
    metrics = Metrics()
    metrics.rejected("STALE_TOKEN").inc(3)
    assert metrics.rejected("STALE_TOKEN") is metrics.rejected("STALE_TOKEN")
    assert 'holdfast_rejections_total{reason="STALE_TOKEN"} 3.0' in lines(metrics)


def test_queue_depths_are_read_when_scraped() -> None:
    metrics = Metrics()
    counts = {"mail": {"ready": 1, "dead": 2}}
    metrics.watch_queues(lambda: counts.items())
    assert 'holdfast_queue_tasks{queue="mail",state="ready"} 1.0' in lines(metrics)
    counts["mail"]["ready"] = 7
    assert {'holdfast_queue_tasks{queue="mail",state="ready"} 7.0', "holdfast_queues_truncated 0.0"} <= lines(metrics)


def test_formatting_uses_the_depths_read_before() -> None:
    metrics = Metrics()
    reads: list[int] = []

    def counts() -> list[tuple[str, dict[str, int]]]:
        reads.append(1)
        return [("mail", {"ready": 1})]

    metrics.watch_queues(counts)
    assert b"mail" not in metrics.format()
    metrics.refresh()
    assert b"mail" in metrics.format()
    assert len(reads) == 1


def test_the_number_of_queue_series_is_bounded() -> None:
    metrics = Metrics()
    metrics.watch_queues(lambda: ((f"queue-{number}", {"ready": 1}) for number in range(QUEUES_MAX + 500)))
    rendered = lines(metrics)
    assert len([line for line in rendered if line.startswith("holdfast_queue_tasks{")]) == QUEUES_MAX
    assert "holdfast_queues_truncated 1.0" in rendered


def test_every_name_has_our_prefix_or_the_standard_one() -> None:
    assert all(line.startswith(("holdfast_", "process_")) for line in lines(Metrics()))
    assert not any("_created" in line for line in lines(Metrics()))
