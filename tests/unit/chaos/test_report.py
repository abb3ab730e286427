"""The page of a chaos run: numbers of a history, and pictures of numbers."""

import json
from pathlib import Path
from xml.etree import ElementTree

import pytest

from chaos.faults.catalogue import possible
from chaos.history import ACK, ENQUEUE, FAULT, HEAL, INFO, OK, Call, Event, Story
from chaos.matrix import FAULTS, HEAD, WORKLOADS, Combination, Result, combinations, read_result, skipped_steps
from chaos.outcome import make_report
from chaos.play import TIME_OVER
from chaos.report.page import write_report
from chaos.report.series import bands, latency_ms, outages, quantile, throughput
from chaos.report.svg import Line, bars_plot, lines_plot
from chaos.system.abilities import Abilities
from chaos.system.system import Spec
from chaos.verdicts import Final, Verdict, Violation

S = 1_000_000_000


def call(at: float, took: float = 0.1, *, f: str = ENQUEUE, outcome: str = OK, queue: str = "probe-0-1") -> Call:
    return Call(f=f, outcome=outcome, invoked_ns=int(at * S), ended_ns=int((at + took) * S), queue=queue, task=f"t{at}")


def fault(at: float, to: float) -> list[Event]:
    return [
        Event(t_ns=int(at * S), proc=-1, type=INFO, f=FAULT, value="kill", node="n1", req_id="1"),
        Event(t_ns=int(to * S), proc=-1, type=INFO, f=HEAL, value="kill", node="n1", req_id="1"),
    ]


def small_story() -> Story:
    calls = [call(1), call(1.5), call(3), call(3.2, 1.0, outcome=INFO), call(6, 0.5), call(3.5, queue="probe-1-0")]
    return Story(calls=[*calls, call(2, f=ACK)], faults=fault(3.1, 5))


def test_throughput_counts_what_was_acknowledged_in_each_second() -> None:
    assert throughput(small_story(), ENQUEUE, 0) == [(0, 0), (1, 2), (2, 0), (3, 2), (4, 0), (5, 0), (6, 1)]
    assert throughput(small_story(), ACK, 1 * S) == [(0, 0), (1, 1)]


def test_latency_is_by_the_second_in_which_a_call_began() -> None:
    points = dict(latency_ms(small_story(), ENQUEUE, 0.99, 0))
    assert points == pytest.approx({1: 100, 3: 1000, 6: 500})


def test_quantiles() -> None:
    assert quantile([3, 1, 2], 0.5) == 2
    assert quantile([3, 1, 2], 0.99) == 3


def test_a_fault_is_a_band_and_an_outage() -> None:
    [band] = bands(small_story(), 1 * S)
    assert (band.what, band.from_s, band.to_s) == ("kill n1", 2.1, 4.0)
    [outage] = outages(small_story(), 0)
    assert outage.next_write_s == pytest.approx(0.5)  # of the other shard
    assert outage.worst_shard_s == pytest.approx(3.4)


def test_a_shard_that_never_came_back() -> None:
    story = Story(calls=[call(1), call(4, queue="probe-1-0")], faults=fault(3.1, 5))
    [outage] = outages(story, 0)
    assert outage.worst_shard_s is None


@pytest.mark.parametrize("logarithmic", [False, True])
def test_plots_are_whole_pictures(logarithmic: bool) -> None:
    lines = [Line("a & b", [(0, 1), (1, 30), (2, 0)]), Line("none", [])]
    root = ElementTree.fromstring(lines_plot(lines, bands(small_story(), 0), "ms", logarithmic=logarithmic))
    tags = [element.tag.rpartition("}")[2] for element in root.iter()]
    assert tags.count("polyline") == 2
    assert "title" in tags, "the band says what it is"
    ElementTree.fromstring(bars_plot([("kill <n1>", 0.5, None), ("pause", None, None)], "s"))
    ElementTree.fromstring(lines_plot([], [], "ms", logarithmic=logarithmic))


def test_a_report_needs_nothing_else(tmp_path: Path) -> None:
    verdict = Verdict([Violation("lost", "t1 <is> gone")], {"lost": 1, "ready": 0})
    report = make_report(small_story(), Final(), verdict, 0, ["drain: nobody"])
    write_report(tmp_path, report, {"arguments": {"seed": 1}})
    page = (tmp_path / "report.html").read_text()
    assert "t1 &lt;is&gt; gone" in page
    assert page.count("<svg") == 3
    assert not any(text in page for text in ("<script", "href=", "src="))
    numbers = json.loads((tmp_path / "report.json").read_text())
    assert numbers["worst_shard_s"] == {"median": 3.4, "max": 3.4}
    assert numbers["violations"] == ["lost: t1 <is> gone"]
    assert numbers["judged"] == {"lost": 1, "ready": 0}
    assert verdict.inert == ["ready"]


# --- the matrix -------------------------------------------------------------------------------------------------------


def test_the_matrix_has_every_workload_with_every_group_of_faults() -> None:
    found = combinations(5)
    assert {(one.workload, one.fault) for one in found} == {(one, other) for one in WORKLOADS for other in FAULTS}
    assert len(found) == 24
    assert len({one.seed for one in found}) == 24
    assert len({one.name for one in found}) == 24
    assert "--brokers" in found[0].arguments(60)


def test_a_result_survives_its_file_and_is_a_row(tmp_path: Path) -> None:
    combination = Combination("01", "calls", "kills", "none", 7, {"brokers": 3, "shards": 8, "etcds": 1})
    result = Result(
        combination, False, ["lost: a", "lost: b", "tick: c"], {"tasks": 5}, {"median": 1.0, "max": 2.5}, 99.0,
        {"move": 2}, {"move": 3, "strike at a source": 1}, ["loss"],
    )  # fmt: skip
    path = tmp_path / "01.json"
    path.write_text(
        json.dumps({**vars(result), "combination": {**vars(combination), "system": dict(combination.system)}})
    )
    assert read_result(path) == result
    meanwhile = "move 3, strike at a source 1; skipped: move 2; not possible: loss"
    assert (
        result.row() == f"| calls | kills | none | 3/8/1 | 7 | 5 | 0 | 0 | {meanwhile} | 1.0 / 2.5 | lost 2, tick 1 |"
    )
    assert result.row().count("|") == HEAD.splitlines()[0].count("|")


def test_every_operation_of_the_matrix_is_possible_where_it_is_asked_for() -> None:
    for one in combinations(5):
        spec = Spec(brokers=one.system["brokers"], shards=one.system["shards"], etcds=one.system["etcds"])
        asked = [] if one.operation == "none" else one.operation.split(",")
        assert possible(asked, spec, Abilities()) == (asked, {}), one
        if {"move", "drain", "add"} & set(asked):
            assert spec.brokers > spec.replication


def test_the_matrix_has_systems_of_8_to_64_shards() -> None:
    assert {one.system["shards"] for one in combinations(5)} == {8, 16, 32, 64}


def test_what_was_skipped_is_told_by_name() -> None:
    said = [
        "drain any: nobody to be struck",
        "move: no node was alive",
        "drain any: Unavailable",
        f"add all: {TIME_OVER}",
    ]
    assert skipped_steps(said) == {"drain": 2, "move": 1}
