"""The report of a run: one HTML page that needs nothing else, and the numbers in it as JSON."""

import json
from collections.abc import Mapping
from dataclasses import asdict, is_dataclass
from html import escape
from pathlib import Path

from chaos.history import ACK, ENQUEUE
from chaos.outcome import Report
from chaos.report import series
from chaos.report.svg import Line, bars_plot, lines_plot

_STYLE = """
body { font: 14px/1.45 system-ui, sans-serif; max-width: 1040px; margin: 24px auto; color: #111827; padding: 0 12px }
h1 { font-size: 22px } h2 { font-size: 16px; margin-top: 28px } svg { width: 100%; font: 11px system-ui, sans-serif }
table { border-collapse: collapse } td, th { border: 1px solid #e5e7eb; padding: 2px 8px; text-align: left }
.ok { color: #059669 } .bad { color: #dc2626 } pre { background: #f3f4f6; padding: 8px; overflow-x: auto }
"""


def write_report(directory: Path, report: Report, asked: Mapping[str, object]) -> None:
    """report.html and report.json."""
    reported = {**asked, **report.summary(), **series.numbers(report.story, report.began_ns)}
    (directory / "report.json").write_text(json.dumps(reported, default=_plain, indent=1), encoding="utf-8")
    (directory / "report.html").write_text(page(report, asked), encoding="utf-8")


def page(report: Report, asked: Mapping[str, object]) -> str:
    story, began_ns = report.story, report.began_ns
    bands = series.bands(story, began_ns)
    rate = [Line(f"{f} per second", series.throughput(story, f, began_ns)) for f in (ENQUEUE, ACK)]
    times = [
        Line(f"{f} {name}", series.latency_ms(story, f, share, began_ns))
        for f in (ENQUEUE, ACK)
        for name, share in (("p50", 0.5), ("p99", 0.99))
    ]
    outages = [
        (f"{one.at_s:.0f} s {one.what}", one.next_write_s, one.worst_shard_s) for one in series.outages(story, began_ns)
    ]
    verdict = '<span class="ok">every promise held</span>'
    if report.violations:
        verdict = f'<span class="bad">{len(report.violations)} broken promises</span>'
    parts = [
        f"<h1>Holdfast under faults: {verdict}</h1>", _asked(asked), _violations(report),
        "<h2>Acknowledged calls per second</h2>", lines_plot(rate, bands, "1/s"),
        "<h2>Time of a call (ms)</h2>", lines_plot(times, bands, "ms", logarithmic=True),
        "<h2>Unavailability after each fault: any write, and the shard that took the longest</h2>",
        bars_plot(outages, "s") if outages else "<p>There was no fault.</p>",
        "<h2>How much happened</h2>", _table(report.counts),
        "<h2>How much each judge had to judge</h2>", _table(dict(sorted(report.verdict.judged.items()))),
    ]  # fmt: skip
    if report.done:
        parts.append("<h2>What was done meanwhile</h2>" + _table(report.done))
    if report.cannot:
        parts.append("<h2>Not possible here</h2><pre>" + escape("\n".join(report.cannot)) + "</pre>")
    if report.skipped:
        parts.append("<h2>Skipped steps</h2><pre>" + escape("\n".join(report.skipped)) + "</pre>")
    head = f'<meta charset="utf-8"><title>Holdfast under faults</title><style>{_STYLE}</style>'
    return f'<!doctype html><html lang="en"><head>{head}</head><body>{"".join(parts)}</body></html>\n'


def _asked(asked: Mapping[str, object]) -> str:
    return f"<pre>{escape(json.dumps(asked.get('arguments', {}), default=_plain))}</pre>" if asked else ""


def _violations(report: Report) -> str:
    if not report.violations:
        return ""
    items = "".join(f"<li>{escape(str(violation))}</li>" for violation in report.violations[:100])
    return f'<ul class="bad">{items}</ul>'


def _table(counts: Mapping[str, int]) -> str:
    rows = "".join(f"<tr><td>{escape(name)}</td><td>{count}</td></tr>" for name, count in counts.items())
    return f"<table>{rows}</table>"


def _plain(value: object) -> object:
    if is_dataclass(value) and not isinstance(value, type):
        return asdict(value)
    return str(value)
