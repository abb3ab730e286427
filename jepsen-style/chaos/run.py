"""`python -m chaos.run`: one run of the chaos harness on a cluster of its own. Exit code 0 only if every promise held.

python -m chaos.run --fault kill-leader --seconds 30 --seed 1
python -m chaos.run --fault mix --seconds 300 --json
python -m chaos.run --judge DIRECTORY        judges a recorded history again
"""

import argparse
import asyncio
import json
import random
import shutil
import sys
import tempfile
from pathlib import Path

import pytest  # PowerDisk skips where it is not possible

from bugs.sitecustomize import BUGS
from chaos.checkers import check
from chaos.faults import FAULTS, MIX, NONE, faults_of
from chaos.history import put_together, read_history
from chaos.phases import Plan, Report, Run, read_final
from chaos.verdicts import Violation
from tests.integration.cluster import Cluster

EXIT_OK = 0
EXIT_VIOLATION = 1
EXIT_NOT_POSSIBLE = 2
BUGS_DIR = Path(__file__).parents[1] / "bugs"
LINES_MAX = 40  # of the history of one violation


def main(argv: list[str] | None = None) -> int:
    options = _options(argv)
    if options.judge is not None:
        return _judge_again(options.judge)
    directory = options.directory or Path(tempfile.mkdtemp(prefix="holdfast-chaos-"))
    directory.mkdir(parents=True, exist_ok=True)
    try:
        report = _run(options, directory)
    except pytest.skip.Exception as reason:
        print(f"Not possible here: {reason}", file=sys.stderr)
        return EXIT_NOT_POSSIBLE
    except BaseException:
        print(f"The harness itself failed; what there is of the run is in {directory}", file=sys.stderr)
        raise
    _tell(options, report, directory)
    if report.violations or options.keep or options.directory:
        print(f"History, final state and logs are in {directory}", file=sys.stderr)
    else:
        shutil.rmtree(directory, ignore_errors=True)
    return EXIT_VIOLATION if report.violations else EXIT_OK


def _run(options: argparse.Namespace, directory: Path) -> Report:
    chosen = FAULTS.get(options.fault)
    power = options.power or (chosen is not None and chosen.needs_power_disk)
    faults = faults_of(options.fault, nodes=options.nodes, power=power)
    plan = Plan(faults, options.seed, options.seconds, options.strikes)
    env = {"PYTHONPATH": str(BUGS_DIR), "CHAOS_BUG": options.bug} if options.bug else None
    with Cluster(directory, size=options.nodes, power=power, env=env) as cluster:
        cluster.start()
        return asyncio.run(Run(cluster, plan, directory).play())


def _tell(options: argparse.Namespace, report: Report, directory: Path) -> None:
    summary = {"fault": options.fault, "seed": options.seed, "nodes": options.nodes, **report.summary()}
    if options.json:
        print(json.dumps(summary))
        return
    print(f"{options.fault}, seed {options.seed}, {options.nodes} nodes: {report.counts}")
    if report.failovers_s:
        print(f"next acknowledged write after a fault: {summary['failover_s']}")
    _tell_violations(report.violations, directory)


def _tell_violations(violations: list[Violation], directory: Path) -> None:
    if not violations:
        print("Every promise held.")
    for violation in violations[:LINES_MAX]:
        print(f"VIOLATION {violation}")
    if violations and violations[0].tasks:
        task = violations[0].tasks[0]
        print(f"The lines of {task}:")
        lines = (directory / "history.jsonl").read_text(encoding="utf-8").splitlines()
        print("\n".join([line for line in lines if task in line][:LINES_MAX]))


def _judge_again(directory: Path) -> int:
    story = put_together(read_history(directory / "history.jsonl"))
    violations = check(story, read_final(directory / "final.json"))
    _tell_violations(violations, directory)
    return EXIT_VIOLATION if violations else EXIT_OK


def _options(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m chaos.run", description="Brokers under load and faults, judged.")
    parser.add_argument("--fault", choices=[*FAULTS, MIX, NONE], default="kill-leader", help="what is done to them")
    parser.add_argument("--seconds", type=float, default=30.0, help="how long faults go on")
    parser.add_argument("--strikes", type=int, help="at most so many faults")
    parser.add_argument("--seed", type=int, help="of what is sent and when faults strike; drawn if missing")
    parser.add_argument("--nodes", type=int, choices=(1, 3), default=3, help="brokers in the cluster")
    parser.add_argument("--power", action="store_true", help="disks that can lose power, for mix (needs root)")
    parser.add_argument("--bug", choices=sorted(BUGS), help="brokers with a deliberate bug, which must be found")
    parser.add_argument("--directory", type=Path, help="where everything is kept; a temporary one if missing")
    parser.add_argument("--keep", action="store_true", help="keep a temporary directory also after a good run")
    parser.add_argument("--judge", type=Path, metavar="DIRECTORY", help="judge a recorded history again")
    parser.add_argument("--json", action="store_true", help="one JSON object on standard output")
    options = parser.parse_args(argv)
    if options.seed is None:
        options.seed = random.randrange(1_000_000)
    fault = FAULTS.get(options.fault)
    if fault is not None and options.nodes < fault.nodes_min:
        parser.error(f"{options.fault} needs {fault.nodes_min} nodes")
    return options


if __name__ == "__main__":
    sys.exit(main())
