"""What a scenario aims at, what one repetition of it measured, and what came out of all repetitions."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from harness.numbers import median


class BrokenRunError(RuntimeError):
    """A run whose figures mean nothing: wrong counts, refused tasks, a process that died."""


def reasons(group: BaseExceptionGroup[Exception]) -> str:
    """What several things that failed together say, each once."""
    reported: dict[str, None] = {}
    for error in group.exceptions:
        text = reasons(error) if isinstance(error, BaseExceptionGroup) else str(error) or type(error).__name__
        reported[text] = None
    return "; ".join(reported)


def expect(what: str, got: int, wanted: int) -> None:
    """Counts must be exact: a fast run that lost a task is no result."""
    if got != wanted:
        raise BrokenRunError(f"expected {what} to be {wanted:,}, but it is {got:,}")


@dataclass(frozen=True, slots=True)
class Target:
    """What a figure should reach. A missed one is reported, never an error."""

    limit: float
    at_least: bool = False  # or at most

    def is_met(self, value: float) -> bool:
        return value >= self.limit if self.at_least else value <= self.limit

    def text(self, unit: str) -> str:
        return f"{'≥' if self.at_least else '≤'} {self.limit:,.6g} {unit}".rstrip()


@dataclass(frozen=True, slots=True)
class Aim:
    """One figure of a scenario."""

    name: str
    unit: str
    target: Target | None = None  # None: for information
    more_is_better: bool = False


@dataclass(slots=True)
class Measured:
    """One repetition, or several parts of one. A value may have several samples."""

    figures: dict[str, list[float]] = field(default_factory=dict)  # by the name of the aim
    cpu_us: dict[str, list[float]] = field(default_factory=dict)  # CPU µs per task, by process or group of threads
    stages: dict[str, list[float]] = field(default_factory=dict)  # of the server, from its metrics
    others_percent: list[float] = field(default_factory=list)  # of the machine, used by others meanwhile
    calibration_ms: list[float] = field(default_factory=list)  # CPU time of a fixed work, before and after
    counts: dict[str, int] = field(default_factory=dict)  # tasks that were counted and found right

    def add(self, other: "Measured") -> None:
        for mine, theirs in (
            (self.figures, other.figures),
            (self.cpu_us, other.cpu_us),
            (self.stages, other.stages),
        ):
            for name, values in theirs.items():
                mine.setdefault(name, []).extend(values)
        self.others_percent += other.others_percent
        self.calibration_ms += other.calibration_ms
        for name, count in other.counts.items():
            self.counts[name] = self.counts.get(name, 0) + count


@dataclass(frozen=True, slots=True)
class Spread:
    """Several samples of one value, in short."""

    median: float
    low: float
    high: float
    samples: int

    @staticmethod
    def of(values: Sequence[float]) -> "Spread":
        return Spread(median(values), min(values), max(values), len(values))


@dataclass(frozen=True, slots=True)
class Figure:
    """One line of the report."""

    name: str
    unit: str
    target: str  # in words; empty: for information
    reached: Spread
    best: float
    met: bool | None  # by the median; None without a target

    @staticmethod
    def of(aim: Aim, values: Sequence[float]) -> "Figure":
        reached = Spread.of(values)
        target = aim.target
        upwards = target.at_least if target is not None else aim.more_is_better
        return Figure(
            aim.name,
            aim.unit,
            target.text(aim.unit) if target is not None else "",
            reached,
            reached.high if upwards else reached.low,
            target.is_met(reached.median) if target is not None else None,
        )


@dataclass(slots=True)
class Outcome:
    """One scenario, all repetitions."""

    name: str
    title: str
    figures: list[Figure] = field(default_factory=list)
    cpu_us: dict[str, Spread] = field(default_factory=dict)
    stages: dict[str, Spread] = field(default_factory=dict)
    others_percent: Spread | None = None
    calibration_ms: Spread | None = None
    counts: dict[str, int] = field(default_factory=dict)
    broken: str = ""  # why the figures mean nothing; empty if they do

    @staticmethod
    def of(name: str, title: str, aims: Sequence[Aim], measured: Measured) -> "Outcome":
        def spread(groups: dict[str, list[float]]) -> dict[str, Spread]:
            return {label: Spread.of(values) for label, values in groups.items()}

        return Outcome(
            name,
            title,
            [Figure.of(aim, measured.figures[aim.name]) for aim in aims if measured.figures.get(aim.name)],
            spread(measured.cpu_us),
            spread(measured.stages),
            Spread.of(measured.others_percent) if measured.others_percent else None,
            Spread.of(measured.calibration_ms) if measured.calibration_ms else None,
            dict(measured.counts),
        )
