"""What a worker counts, read as Prometheus reads it."""

from prometheus_client.parser import text_string_to_metric_families

from holdfast.client.worker.meters import OTHER_TYPES, Meter

NOW = {"slots": 4, "running": 3, "held": 2, "ready": 1}


def samples(meter: Meter, **info: str) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    families = list(text_string_to_metric_families(meter.text(NOW, info)))
    assert all(family.documentation for family in families)
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in families
        for sample in family.samples
    }


def value(found: dict[tuple[str, frozenset[tuple[str, str]]], float], name: str, **labels: str) -> float:
    return found[f"holdfast_worker_{name}", frozenset(labels.items())]


def test_everything_is_there_from_the_beginning() -> None:
    found = samples(Meter(["send"]), version="1", worker="w")
    assert value(found, "info", version="1", worker="w") == 1
    assert value(found, "slots") == 4
    for outcome in ("succeeded", "failed", "released", "lost"):
        assert value(found, "tasks_total", type="send", outcome=outcome) == 0
    assert value(found, "task_duration_seconds_count", type="send") == 0
    assert value(found, "leases_lost_total") == 0


def test_what_happened_is_counted_by_type_and_outcome() -> None:
    meter = Meter(["send", "report"])
    meter.settled("send", "succeeded")
    meter.settled("send", "lost")
    meter.settled("report", "lost")
    meter.settled("made-up-1", "failed")
    meter.settled("made-up-2", "failed")
    meter.polled(3)
    meter.polled(0)
    meter.poll_failed()
    meter.outage_began("claim tasks")
    found = samples(meter)
    assert value(found, "tasks_total", type="send", outcome="succeeded") == 1
    assert value(found, "tasks_total", type=OTHER_TYPES, outcome="failed") == 2, "their number is bounded"
    assert value(found, "leases_lost_total") == 2
    assert value(found, "tasks_claimed_total") == 3
    assert [value(found, "polls_total", result=item) for item in ("tasks", "empty", "failed")] == [1, 1, 1]
    assert value(found, "outages_total", call="claim tasks") == 1


def test_durations_are_a_histogram() -> None:
    meter = Meter(["send"])
    for seconds in (0.004, 0.005, 0.3, 100_000.0):
        meter.ran("send", seconds)
    found = samples(meter)
    buckets = {bound: value(found, "task_duration_seconds_bucket", type="send", le=bound) for bound in
               ("0.005", "0.25", "0.5", "3600.0", "+Inf")}  # fmt: skip
    assert buckets == {"0.005": 2, "0.25": 2, "0.5": 3, "3600.0": 3, "+Inf": 4}
    assert value(found, "task_duration_seconds_count", type="send") == 4
    assert value(found, "task_duration_seconds_sum", type="send") == 100_000.309


def test_names_may_have_any_characters() -> None:
    name = 'a"b\\c\nd'
    meter = Meter([name])
    meter.settled(name, "succeeded")
    assert value(samples(meter), "tasks_total", type=name, outcome="succeeded") == 1
