"""What is done to a system, as data: drawn from a seed, printed, and read back from a file. Pure."""

import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

FIRST_S = 2.0  # nothing is struck before
GAP_S = (1.5, 4.0)  # between the end of one step and the beginning of the next


@dataclass(frozen=True, slots=True)
class Step:
    """One fault or operation."""

    at_s: float  # since the beginning of the faults
    what: str  # a name in the catalogue
    target: str = ""  # leader:3, follower:3, any, all, router, worker, etcd, source, destination …
    lasts_s: float = 0.0
    amount: float = 0.0  # percent, kbit/s, milliseconds or seconds, as the fault says


@dataclass(frozen=True, slots=True)
class Kind:
    """What a plan must know of a fault or an operation to draw one."""

    targets: tuple[str, ...]
    lasts_s: tuple[float, float] = (1.0, 4.0)
    amounts: tuple[float, ...] = (0.0,)


def draw_steps(
    seed: int, seconds: float, kinds: Mapping[str, Kind], shards: int, *, in_turn: bool = False
) -> list[Step]:
    """One after the other until the time is over. `in_turn`: in the order of their names, or else drawn each time."""
    draw = random.Random(seed)
    steps: list[Step] = []
    at_s = FIRST_S
    names = list(kinds)
    while names and at_s < seconds:
        name = names[len(steps) % len(names)] if in_turn else draw.choice(names)
        kind = kinds[name]
        target = draw.choice(kind.targets)
        if target in ("leader", "follower", "majority"):
            target = f"{target}:{draw.randrange(shards)}"
        lasts_s = round(draw.uniform(*kind.lasts_s), 2)
        steps.append(Step(round(at_s, 2), name, target, lasts_s, draw.choice(kind.amounts)))
        at_s += lasts_s + draw.uniform(*GAP_S)
    return steps


def write_steps(path: Path, steps: Mapping[str, Sequence[Step]]) -> None:
    """Of each lane: those of one lane follow each other, lanes go on at the same time."""
    lanes = {lane: [asdict(step) for step in its] for lane, its in steps.items()}
    path.write_text(json.dumps(lanes, indent=1) + "\n", encoding="utf-8")


def read_steps(path: Path) -> dict[str, list[Step]]:
    """As they were written."""
    lanes = json.loads(path.read_text(encoding="utf-8"))
    return {lane: [Step(**step) for step in its] for lane, its in lanes.items()}
