"""What a worker counts, and how Prometheus reads it. Pure: no clock, no I/O.

The text is written here and not by the library of Prometheus: that is one of the server's dependencies, and all that a
worker shows are counters, gauges and one histogram, of which the format needs a dozen lines.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Literal

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
OTHER_TYPES = "(other)"  # of tasks that the app does not know: whoever enqueues can make up any number of them
DURATION_BOUNDS_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 900.0, 3600.0)

# What is true at the moment of a scrape, each with a sentence.
GAUGES = {
    "slots": "How many tasks may run at once.",
    "running": "Handlers that run now.",
    "held": "Tasks that are claimed and not yet reported.",
    "ready": "1 while it claims tasks.",
}

TaskOutcome = Literal["succeeded", "failed", "released", "lost"]
OUTCOMES: tuple[TaskOutcome, ...] = ("succeeded", "failed", "released", "lost")
PollResult = Literal["tasks", "empty", "failed"]
POLL_RESULTS: tuple[PollResult, ...] = ("tasks", "empty", "failed")

_Labels = Mapping[str, str]


class Meter:
    """The counts of one worker. All methods are called on its loop."""

    def __init__(self, types: Iterable[str]) -> None:
        """`types`: those that are told apart."""
        self._types = (*sorted(types), OTHER_TYPES)
        self._tasks: Counter[tuple[str, TaskOutcome]] = Counter()
        self._durations = {name: [0] * (len(DURATION_BOUNDS_S) + 1) for name in self._types}
        self._seconds = dict.fromkeys(self._types, 0.0)
        self._polls: Counter[PollResult] = Counter()
        self._claimed = 0
        self._outages: Counter[str] = Counter()  # by what could not be done

    def settled(self, name: str, outcome: TaskOutcome) -> None:
        """The last word on a task was said."""
        self._tasks[self._known(name), outcome] += 1

    def ran(self, name: str, seconds: float) -> None:
        """A handler has ended."""
        name = self._known(name)
        self._durations[name][bisect_left(DURATION_BOUNDS_S, seconds)] += 1
        self._seconds[name] += seconds

    def polled(self, tasks: int) -> None:
        """The server has answered a question for tasks."""
        self._polls["tasks" if tasks else "empty"] += 1
        self._claimed += tasks

    @property
    def has_polled(self) -> bool:
        """Whether such an answer ever came."""
        return bool(self._polls["tasks"] or self._polls["empty"])

    def poll_failed(self) -> None:
        self._polls["failed"] += 1

    def outage_began(self, what: str) -> None:
        self._outages[what] += 1

    def _known(self, name: str) -> str:
        return name if name in self._durations else OTHER_TYPES

    def text(self, gauges: Mapping[str, float], info: _Labels) -> str:
        """What is shown. `gauges`: the values of GAUGES."""
        return "\n".join(self._lines(gauges, info)) + "\n"

    def _lines(self, gauges: Mapping[str, float], info: _Labels) -> Iterator[str]:
        yield from _family("info", "gauge", "Which worker this is.", [(info, 1)])
        for name, sentence in GAUGES.items():
            yield from _family(name, "gauge", sentence, [({}, gauges[name])])
        tasks = [
            ({"type": name, "outcome": outcome}, self._tasks[name, outcome])
            for name in self._types
            for outcome in OUTCOMES
        ]
        yield from _family("tasks_total", "counter", "Tasks that this worker is done with.", tasks)
        lost = sum(count for (_, outcome), count in self._tasks.items() if outcome == "lost")
        yield from _family("leases_lost_total", "counter", "Tasks whose lease ended first.", [({}, lost)])
        yield from _family("tasks_claimed_total", "counter", "Tasks that the server gave.", [({}, self._claimed)])
        polls = [({"result": result}, self._polls[result]) for result in POLL_RESULTS]
        yield from _family("polls_total", "counter", "Questions for tasks, by what came of them.", polls)
        outages = [({"call": what}, count) for what, count in sorted(self._outages.items())]
        yield from _family("outages_total", "counter", "Times at which a kind of call got no answer.", outages)
        yield from self._histogram()

    def _histogram(self) -> Iterator[str]:
        name = "task_duration_seconds"
        yield from _family(name, "histogram", "How long handlers ran.", [])
        for task_type, counts in self._durations.items():
            total = 0
            for bound, count in zip((*map(str, DURATION_BOUNDS_S), "+Inf"), counts, strict=True):
                total += count
                yield _sample(f"{name}_bucket", {"type": task_type, "le": bound}, total)
            yield _sample(f"{name}_sum", {"type": task_type}, self._seconds[task_type])
            yield _sample(f"{name}_count", {"type": task_type}, total)


def _family(name: str, kind: str, sentence: str, samples: Iterable[tuple[_Labels, float]]) -> Iterator[str]:
    yield f"# HELP holdfast_worker_{name} {sentence}"
    yield f"# TYPE holdfast_worker_{name} {kind}"
    for labels, value in samples:
        yield _sample(name, labels, value)


def _sample(name: str, labels: _Labels, value: float) -> str:
    inner = ",".join(f'{key}="{_escaped(text)}"' for key, text in labels.items())
    return f"holdfast_worker_{name}{f'{{{inner}}}' if inner else ''} {value!r}"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')
