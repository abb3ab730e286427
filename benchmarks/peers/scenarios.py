"""Figures of `make bench` as tables of Markdown: what it has written with --json is read here."""

from collections.abc import Mapping, Sequence
from typing import Any

from peers.tables import NOT_MEASURED, number, percents, table

Scenario = Mapping[str, Any]

# Of what each part of the page consists.
STAGES = ("enqueue", "lifecycle", "replicated-enqueue", "replicated-lifecycle", "worker", "caller")
BACKLOG = ("backlog", "single-backlog")
BATCHES = ("batch-sizes",)
PAYLOADS = ("payloads",)
SHARDS = ("shards-replicas",)
ALL = (*STAGES, *BACKLOG, *BATCHES, *PAYLOADS, *SHARDS)


def origin(content: Mapping[str, Any]) -> str:
    machine = content["machine"]
    kind = "Quick run, which only shows that everything works. " if content["quick"] else ""
    return (
        f"{kind}{content['date']}, {machine['cores']} shared cores ({machine['cpu']}), Linux {machine['kernel']}, "
        f"Python {machine['python']}, load average {machine['load_average']:.1f} before. "
        f"Command: `{content['command']}`."
    )


def stages_table(scenarios: Mapping[str, Scenario]) -> str:
    """What is not in the targets: CPU of each process and group of threads, and the stages of the servers."""
    rows: list[list[str]] = []
    for name in STAGES:
        scenario = scenarios.get(name)
        if scenario is None or scenario["broken"]:
            rows.append([name, "", NOT_MEASURED, "", ""])
            continue
        cpu = {f"{where}, CPU µs per task": spread for where, spread in scenario["cpu_us"].items()}
        for where, spread in {**cpu, **scenario["stages"]}.items():
            rows.append([name, where, *_cells(spread), _others(scenario)])
    return table(("scenario", "where", "median", "lowest to highest", "load of others"), rows, words=2)


def figures_table(scenarios: Mapping[str, Scenario], names: Sequence[str]) -> str:
    rows: list[list[str]] = []
    for name in names:
        scenario = scenarios.get(name)
        if scenario is None or scenario["broken"]:
            rows.append([name, NOT_MEASURED, "", ""])
            continue
        for figure in scenario["figures"]:
            unit = f", {figure['unit']}" if figure["unit"] else ""
            which = f"{name}: " if len(names) > 1 else ""
            rows.append([f"{which}{figure['name']}{unit}", *_cells(figure["reached"]), _others(scenario)])
    return table(("what", "median", "lowest to highest", "load of others"), rows)


def _cells(spread: Mapping[str, float]) -> tuple[str, str]:
    if spread["samples"] < 2:
        return number(spread["median"]), "one sample"
    return number(spread["median"]), f"{number(spread['low'])} to {number(spread['high'])}"


def _others(scenario: Scenario) -> str:
    spread = scenario["others_percent"]
    return percents(spread["low"], spread["high"]) if spread else NOT_MEASURED
