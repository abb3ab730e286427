"""Holdfast and its peers in one run: `make bench-peers`, or `python benchmarks/compare.py --help`.

Each row's servers are started on this machine, on data directories that are removed afterwards, and loaded from
separate processes. A row whose server or library is missing is left out and says why. The exit code tells only
whether a row broke.
"""

import asyncio
import signal
import sys
from collections.abc import Sequence

from harness.commands import as_typed
from peers.arguments import parse
from peers.comparison import compare
from peers.results import Report, write_report
from peers.tables import as_text

EXIT_OK = 0
EXIT_BROKEN = 1


async def _run(argv: Sequence[str]) -> Report:
    """Ctrl-C and a polite end also end the processes and remove the data; impatience cannot hinder that."""
    arguments = parse(argv)
    task = asyncio.current_task()
    assert task is not None
    loop = asyncio.get_running_loop()

    def end() -> None:
        for signum in signals:
            loop.add_signal_handler(signum, lambda: None)
        task.cancel()

    signals = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    for signum in signals:
        loop.add_signal_handler(signum, end)
    report = await compare(arguments, as_typed("bench-peers", argv))
    if arguments.json:
        write_report(report, arguments.json)
    return report


def main(argv: Sequence[str]) -> int:
    try:
        report = asyncio.run(_run(argv))
    except (KeyboardInterrupt, asyncio.CancelledError):
        return EXIT_BROKEN
    print(as_text(report))
    broken = any(cell.problem for row in report.rows for cell in row.cells.values())
    return EXIT_BROKEN if broken or any(row.is_broken for row in report.rows) else EXIT_OK


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
