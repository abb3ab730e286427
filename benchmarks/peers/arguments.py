"""The command line of the comparison."""

import argparse
import tempfile
from collections.abc import Sequence
from pathlib import Path

from peers.results import WORKLOADS
from peers.rows import NAMES

REPEATS = 3
MINUTES_MAX = 60.0
# Not the usual directory for temporary files: that may be in memory, where a sync costs nothing.
DIRECTORY = Path("/var/tmp")
_WORKLOAD_NAMES = tuple(dict.fromkeys(workload.partition(" ")[0] for workload in WORKLOADS))


def _names(text: str, known: Sequence[str], what: str) -> tuple[str, ...]:
    names = tuple(name.strip() for name in text.split(","))
    unknown = [name for name in names if name not in known]
    if unknown:
        raise argparse.ArgumentTypeError(f"no such {what}: {', '.join(unknown)} (choose from {', '.join(known)})")
    return tuple(name for name in known if name in names)


def _rows(text: str) -> tuple[str, ...]:
    return _names(text, NAMES, "row")


def _workloads(text: str) -> tuple[str, ...]:
    chosen = _names(text.upper(), _WORKLOAD_NAMES, "workload")
    return tuple(workload for workload in WORKLOADS if workload.partition(" ")[0] in chosen)


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError("must be at least 1")
    return number


def _minutes(text: str) -> float:
    number = float(text)
    if not 0 < number <= 24 * 60:
        raise argparse.ArgumentTypeError("must be more than 0 and at most a day")
    return number


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    directory = DIRECTORY if DIRECTORY.is_dir() else Path(tempfile.gettempdir())
    parser = argparse.ArgumentParser(description="Measures Holdfast and other brokers on this machine, in one run.")
    parser.add_argument("--only", type=_rows, default=NAMES, metavar="ROWS", help=f"of {', '.join(NAMES)} (all)")
    parser.add_argument(
        "--workloads", type=_workloads, default=WORKLOADS, metavar="W", help=f"of {', '.join(_WORKLOAD_NAMES)} (all)"
    )
    parser.add_argument("--quick", action="store_true", help="short, and once each: shows that everything works")
    parser.add_argument(
        "--repeat", type=_positive, metavar="N", help=f"how often to measure each; the median counts ({REPEATS})"
    )
    parser.add_argument("--minutes", type=_minutes, default=MINUTES_MAX, metavar="N", help="no row begins later (60)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write everything that was measured to this file")
    parser.add_argument(
        "--dir", type=Path, default=directory, metavar="DIR", help=f"where data is put meanwhile ({directory})"
    )
    parser.add_argument("--no-install", action="store_true", help="leave rows out whose server is missing")
    arguments = parser.parse_args(argv)
    if not arguments.dir.is_dir():
        parser.error(f"--dir: {arguments.dir} is not a directory")
    arguments.repeat = arguments.repeat or (1 if arguments.quick else REPEATS)
    return arguments
