"""Measures what docs/performance.md shows and writes its tables: `make performance`, or with `--help`.

Without `--measure` the page is written from the reports of the last runs. A figure that no report has is shown as
not measured: nothing of it is ever written by hand.
"""

import argparse
import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from peers import scenarios, tables
from peers.page import NOTHING, fill
from peers.results import Report, read_report
from peers.sizing import sizing

HERE = Path(__file__).resolve().parent
PAGE = HERE.parent / "docs" / "performance.md"
RESULTS = HERE / "results"


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Writes the tables of docs/performance.md.")
    parser.add_argument("--measure", action="store_true", help="run `make bench-peers` and `make bench` before")
    parser.add_argument("--quick", action="store_true", help="small sizes, once each: shows that everything works")
    parser.add_argument("--only", choices=("peers", "scenarios"), help="measure only these; the others stay (both)")
    parser.add_argument(
        "--peers-python", default=sys.executable, metavar="FILE", help="of the environment with the peers (this one)"
    )
    parser.add_argument(
        "--results", type=Path, default=RESULTS, metavar="DIR", help="where reports are (benchmarks/results)"
    )
    parser.add_argument("--page", type=Path, default=PAGE, metavar="FILE", help="what is written (docs/performance.md)")
    return parser.parse_args(argv)


def _measure(arguments: argparse.Namespace) -> None:
    """A run that breaks says so itself, and its report has what was measured before."""
    quick = ["--quick"] if arguments.quick else []
    arguments.results.mkdir(parents=True, exist_ok=True)
    commands = {
        "peers": [arguments.peers_python, str(HERE / "compare.py"), *quick],
        "scenarios": [sys.executable, str(HERE / "run.py"), *scenarios.ALL, *quick],
    }
    for name, command in commands.items():
        if arguments.only in (None, name):
            subprocess.run([*command, "--json", str(arguments.results / f"{name}.json")], check=False)


def parts(report: Report | None, content: Mapping[str, Any] | None) -> dict[str, str]:
    """Every measured part of the page."""
    return {**_peers_parts(report), **_scenario_parts(content)}


def _peers_parts(report: Report | None) -> dict[str, str]:
    names = ("figures", "ratios", "cpu", "noise", "confirms", "sizing")
    if report is None:
        return dict.fromkeys(names, NOTHING)
    made = (
        "\n\n".join([tables.origin(report), tables.figures_table(report), tables.problems(report)]),
        tables.ratios_table(report),
        tables.cpu_table(report),
        tables.others_table(report),
        tables.confirms_table(report),
        sizing(report),
    )
    return dict(zip(names, made, strict=True))


def _scenario_parts(content: Mapping[str, Any] | None) -> dict[str, str]:
    names = ("stages", "backlog", "batches", "payloads", "shards")
    if content is None:
        return dict.fromkeys(names, NOTHING)
    found = {scenario["name"]: scenario for scenario in content["scenarios"]}
    made = (
        f"{scenarios.origin(content)}\n\n{scenarios.stages_table(found)}",
        scenarios.figures_table(found, scenarios.BACKLOG),
        scenarios.figures_table(found, scenarios.BATCHES),
        scenarios.figures_table(found, scenarios.PAYLOADS),
        scenarios.figures_table(found, scenarios.SHARDS),
    )
    return dict(zip(names, made, strict=True))


def main(argv: Sequence[str] | None = None) -> int:
    arguments = _arguments(argv)
    if arguments.measure:
        _measure(arguments)
    peers, bench = arguments.results / "peers.json", arguments.results / "scenarios.json"
    report = read_report(peers) if peers.exists() else None
    content = json.loads(bench.read_text(encoding="utf-8")) if bench.exists() else None
    page = arguments.page.read_text(encoding="utf-8")
    arguments.page.write_text(fill(page, parts(report, content)), encoding="utf-8")
    print(f"Wrote {arguments.page.name}: `git diff` shows what is different.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
