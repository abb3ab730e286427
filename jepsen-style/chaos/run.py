"""`python -m chaos.run`: one run of the chaos harness on a system of its own. Exit code 0 only if every promise held.

python -m chaos.run --fault kill,pause --seconds 60 --seed 1
python -m chaos.run --workload lifecycle,limits --fault mix --operation move,spread --brokers 5 --seconds 300
python -m chaos.run --schedule steps.json        the same steps again
python -m chaos.run --judge DIRECTORY            judges a recorded history again
"""

import argparse
import asyncio
import json
import random
import shutil
import sys
import tempfile
from pathlib import Path

from bugs.sitecustomize import BUGS
from chaos.checkers import judge
from chaos.faults.catalogue import ALL, FAULTS, OPERATIONS, UnknownFaultError, names_of, possible
from chaos.faults.clocks import build_clock
from chaos.history import History, put_together, read_histories
from chaos.matrix import run_matrix
from chaos.outcome import Report, make_report, read_final
from chaos.plan import Step, draw_steps, read_steps, write_steps
from chaos.play import Run
from chaos.proof import prove
from chaos.report.page import write_report
from chaos.system.abilities import Abilities, enter_namespaces, find_abilities
from chaos.system.owners import end_what_was_left
from chaos.system.servers import BUGS_DIR, python_path
from chaos.system.system import Options, Spec, System
from chaos.verdicts import Verdict, Violation
from chaos.workloads.base import Setting
from chaos.workloads.catalogue import WORKLOADS, make_workloads

EXIT_OK = 0
EXIT_VIOLATION = 1
EXIT_NOT_POSSIBLE = 2
LINES_MAX = 40  # of the history of one violation


def main(argv: list[str] | None = None) -> int:
    arguments = sys.argv[1:] if argv is None else argv
    options = parse(arguments)
    if options.judge is not None:
        return _judge_again(options.judge)
    if options.prove:
        return prove([options.bug] if options.bug else list(BUGS), options.seed)
    if options.matrix is not None:
        return run_matrix(options.matrix, options.seed, options.seconds, ["--pace", str(options.pace)])
    if argv is None and not options.loopback:
        enter_namespaces("chaos.run", arguments)
    end_what_was_left()
    abilities = find_abilities()
    directory = options.directory or Path(tempfile.mkdtemp(prefix="holdfast-chaos-"))
    directory.mkdir(parents=True, exist_ok=True)
    if any(directory.iterdir()):
        print(f"Expected an empty directory, but there is something in {directory}.", file=sys.stderr)
        return EXIT_NOT_POSSIBLE
    lanes, cannot = choose_steps(options, abilities)
    for name, why in cannot.items():
        print(f"not possible here: {name} {why}", file=sys.stderr)
    if cannot and not any(lanes.values()) and options.fault not in ("none", ""):
        return EXIT_NOT_POSSIBLE
    write_steps(directory / "steps.json", lanes)
    print(f"seed {options.seed}; steps in {directory / 'steps.json'}", file=sys.stderr)
    report = run(options, abilities, lanes, directory)
    report.cannot = [f"{name} {why}" for name, why in cannot.items()]
    write_report(directory, report, {"arguments": describe(options), "steps": lanes})
    _tell(options, report, directory)
    if report.violations or options.keep or options.directory:
        print(f"Report (report.html), history and logs are in {directory}", file=sys.stderr)
    else:
        shutil.rmtree(directory, ignore_errors=True)
    return EXIT_VIOLATION if report.violations else EXIT_OK


def run(options: argparse.Namespace, abilities: Abilities, lanes: dict[str, list[Step]], directory: Path) -> Report:
    """One run, from an empty directory to its verdict."""
    spec = spec_of(options)
    clocks = any(ALL[step.what].clocks for steps in lanes.values() for step in steps)
    if clocks:
        build_clock(directory)
    env: dict[str, str] = {}
    if options.bug:
        env = {"PYTHONPATH": python_path(BUGS_DIR), "CHAOS_BUG": options.bug}
        BUGS[options.bug][0]()  # producers of this process use the library, too
    wanted = Options(first_port=options.first_port, env=env, clocks=clocks)
    system = System(spec, abilities, directory, wanted)
    try:
        system.start()
        setting = Setting(
            History(directory / "history.jsonl"), [system.addresses[name] for name in system.routers], options.seed,
            spec.shards, options.pace,
        )  # fmt: skip
        workloads = make_workloads(options.workload, setting)
        operations = [] if options.schedule is not None else names_of(options.operation, OPERATIONS)
        play = Run(
            system, workloads, setting, lanes, options.seconds, directory, options.drain, options.until, operations
        )
        return asyncio.run(play.play())
    finally:
        if options.keep_data:
            system.keep_data()
        system.close()


def spec_of(options: argparse.Namespace) -> Spec:
    return Spec(
        etcds=options.etcds, brokers=options.brokers, shards=options.shards, routers=options.routers,
        replication=min(options.replication, options.brokers), workers=options.workers,
    )  # fmt: skip


def choose_steps(options: argparse.Namespace, abilities: Abilities) -> tuple[dict[str, list[Step]], dict[str, str]]:
    """By lane; and which faults are not possible here, with the reason."""
    if options.schedule is not None:
        return read_steps(options.schedule), {}
    spec = spec_of(options)
    lanes: dict[str, list[Step]] = {}
    cannot: dict[str, str] = {}
    for lane, text, known in (("faults", options.fault, FAULTS), ("operations", options.operation, OPERATIONS)):
        can, missing = possible(names_of(text, known), spec, abilities)
        cannot |= missing
        kinds = {name: known[name].kind for name in can}
        # Operations are in turn: there is time for few of them, and each must have been.
        in_turn = options.in_turn or lane == "operations"
        lanes[lane] = draw_steps(options.seed, options.seconds, kinds, spec.shards, in_turn=in_turn)
    return lanes, cannot


def describe(options: argparse.Namespace) -> dict[str, object]:
    """What was asked for, to be printed and kept."""
    return {name: str(value) if isinstance(value, Path) else value for name, value in sorted(vars(options).items())}


def _tell(options: argparse.Namespace, report: Report, directory: Path) -> None:
    if options.json:
        asked = {
            name: getattr(options, name)
            for name in ("workload", "fault", "operation", "seed", "seconds", "bug", "until")
        }
        print(json.dumps(asked | report.summary()))
        return
    print(f"{options.workload} × {options.fault}, seed {options.seed}: {report.counts}")
    if report.done:
        print(f"done meanwhile: {', '.join(f'{what} {times}' for what, times in sorted(report.done.items()))}")
    for what in report.skipped:
        print(f"skipped: {what}")
    if report.failovers_s:
        print(f"next acknowledged write after a fault: {report.summary()['next_write_s']}")
    tell_judged(report.verdict)
    tell_violations(report.violations, directory)


def tell_judged(verdict: Verdict) -> None:
    """How much each judge had to judge: whoever had nothing has proven nothing."""
    print("judged: " + ", ".join(f"{kind} {facts}" for kind, facts in sorted(verdict.judged.items()) if facts))
    if verdict.inert:
        print(f"had nothing to judge: {', '.join(verdict.inert)}")


def tell_violations(violations: list[Violation], directory: Path) -> None:
    if not violations:
        print("Every promise held.")
    for violation in violations[:LINES_MAX]:
        print(f"VIOLATION {violation}")
    if violations and violations[0].tasks:
        task = violations[0].tasks[0]
        print(f"The lines of {task}:")
        lines = [line.to_line().strip() for line in read_histories(directory) if line.task == task]
        print("\n".join(lines[:LINES_MAX]))


def _judge_again(directory: Path) -> int:
    story = put_together(read_histories(directory))
    final = read_final(directory / "final.json")
    verdict = judge(story, final)
    write_report(directory, make_report(story, final, verdict, story.begins_ns(), []), {})
    tell_judged(verdict)
    tell_violations(verdict.violations, directory)
    return EXIT_VIOLATION if verdict.violations else EXIT_OK


def parser() -> argparse.ArgumentParser:
    found = argparse.ArgumentParser(
        prog="python -m chaos.run", description="A whole system under load and faults, judged."
    )
    add = found.add_argument
    add("--workload", default="all", help=f"with commas: {', '.join(WORKLOADS)}, all")
    add("--fault", default="kill", help="with commas: names and groups of faults; none")
    add("--operation", default="", help=f"with commas: {', '.join(OPERATIONS)}")
    add("--in-turn", action="store_true", help="one fault after the other in this order, or else drawn each time")
    add("--seconds", type=float, default=60.0, help="how long faults go on")
    add("--drain", type=float, default=90.0, help="seconds in which all queues must become empty")
    add("--seed", type=int, help="of what is sent and of the steps; drawn if missing")
    add("--schedule", type=Path, metavar="FILE", help="these steps (a steps.json) instead of drawn ones")
    add("--etcds", type=int, choices=(1, 3), default=1)
    add("--brokers", type=int, choices=range(1, 8), default=3)
    add("--replication", type=int, choices=(1, 3, 5), default=3)
    add("--shards", type=int, default=8)
    add("--routers", type=int, choices=range(1, 5), default=2)
    add(
        "--workers", type=int, choices=range(1, 9), default=3, help="real workers; every second one goes to the brokers"
    )
    add("--pace", type=float, default=1.0, help="of the load; 2 is half as much")
    add("--bug", choices=sorted(BUGS), help="servers with a deliberate bug, which must be found")
    add("--prove", action="store_true", help="find all deliberate bugs, or that of --bug, and print a table")
    add("--until", default="", metavar="KIND", help="end as soon as a broken promise of this kind is found")
    add("--loopback", action="store_true", help="no namespaces and disks, also where they are possible")
    add("--first-port", type=int, default=28_000, help="where there are no namespaces")
    add("--directory", type=Path, help="where everything is kept; a temporary one if missing")
    add("--keep", action="store_true", help="keep a temporary directory also after a good run")
    add("--keep-data", action="store_true", help="copy what brokers have on their disks there, too")
    add("--judge", type=Path, metavar="DIRECTORY", help="judge a recorded history again")
    add("--matrix", type=Path, metavar="DIRECTORY", help="every workload with every group of faults, kept there")
    add("--json", action="store_true", help="one JSON object on standard output")
    return found


def parse(arguments: list[str]) -> argparse.Namespace:
    command_line = parser()
    options = command_line.parse_args(arguments)
    if options.seed is None:
        options.seed = random.randrange(1_000_000)
    try:
        names_of(options.fault, FAULTS)
        names_of(options.operation, OPERATIONS)
        if options.workload != "all":
            unknown = [name for name in options.workload.split(",") if name not in WORKLOADS]
            if unknown:
                command_line.error(f"Expected workloads of {', '.join(WORKLOADS)}, but got {unknown[0]}.")
    except UnknownFaultError as error:
        command_line.error(str(error))
    return options


if __name__ == "__main__":
    sys.exit(main())
