"""What the handlers wrote down, and the verdict on it. Pure, but for reading the files."""

from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from holdfast.client import QueueStats

_NUMBERS_SHOWN_MAX = 10


@dataclass(frozen=True, slots=True)
class Verdict:
    """What was found. `problems` is empty if every task was completed and none lost."""

    completed: int  # different tasks
    runs: int  # of handlers
    repeated: int  # tasks that ran more than once
    problems: tuple[str, ...]

    @property
    def good(self) -> bool:
        return not self.problems


class Record:
    """The files of all workers. Reads only what is new, so that it can be asked often."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._read: dict[Path, int] = {}
        self.runs: Counter[int] = Counter()  # by task number
        self.runs_by_worker: Counter[str] = Counter()  # by the name of the file
        self.unreadable = 0  # lines that are no number

    def refresh(self) -> int:
        """How many different tasks have run so far."""
        for path in sorted(self._directory.glob("worker-*")):
            with path.open("rb") as file:
                file.seek(self._read.get(path, 0))
                data = file.read()
            whole = data[: data.rfind(b"\n") + 1]  # the rest of a line may still come
            self._read[path] = self._read.get(path, 0) + len(whole)
            for line in whole.splitlines():
                self._note(path.name, line)
        return len(self.runs)

    def _note(self, worker: str, line: bytes) -> None:
        if line.isdigit():
            self.runs[int(line)] += 1
            self.runs_by_worker[worker] += 1
        else:
            self.unreadable += 1


def judge(tasks: int, record: Record, stats: QueueStats) -> Verdict:
    """Compares the record with what was enqueued, and with what the server says."""
    problems: list[str] = []
    missing = [number for number in range(tasks) if number not in record.runs]
    if missing:
        problems.append(f"{len(missing):,} tasks never ran: {_some(missing)}")
    strangers = sorted(number for number in record.runs if number >= tasks)
    if strangers:
        problems.append(f"{len(strangers):,} tasks ran that nobody enqueued: {_some(strangers)}")
    if record.unreadable:
        problems.append(f"{record.unreadable:,} lines of the record are no numbers")
    if stats.succeeded_total != tasks:
        problems.append(f"the server counts {stats.succeeded_total:,} tasks as succeeded instead of {tasks:,}")
    left = {
        "ready": stats.ready,
        "claimed": stats.claimed,
        "delayed": stats.delayed,
        "retrying": stats.retrying,
        "dead": stats.dead,
    }
    problems += [f"the server still has {count:,} tasks that are {state}" for state, count in left.items() if count]
    return Verdict(
        completed=tasks - len(missing),
        runs=record.runs.total(),
        repeated=sum(1 for count in record.runs.values() if count > 1),
        problems=tuple(problems),
    )


def _some(numbers: list[int]) -> str:
    shown = ", ".join(str(number) for number in numbers[:_NUMBERS_SHOWN_MAX])
    return f"{shown}, …" if len(numbers) > _NUMBERS_SHOWN_MAX else shown
