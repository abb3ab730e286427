"""Goes through the rows: starts what each needs, measures it, stops it, and removes its data."""

import argparse
import asyncio
import dataclasses
import shutil
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path

from harness.commands import DATE_FORMAT
from harness.machine import look_at_machine
from peers.naming import named
from peers.packages import can_install, install, missing_packages, version_of, why_left_out
from peers.peer import Peer
from peers.results import LIBRARY_WORKLOADS, Cell, Report, RowResult, Sample
from peers.rows import ROWS, Row
from peers.stage import Stage
from peers.workloads import FULL, MEASURES, QUICK, Sizes

SYNCS = 200
START_SECONDS_MAX = 180.0
CELL_SECONDS_MAX = 180.0
SETTLE_SECONDS = 0.3  # after a queue was emptied
LINES_MAX = 3  # of an error
PROBLEM_CHARACTERS_MAX = 400
_SERVERS = "servers"


async def compare(arguments: argparse.Namespace, command: str) -> Report:
    ends_s = time.monotonic() + arguments.minutes * 60
    rows = [row for row in ROWS if row.name in arguments.only]
    problem = await _install_missing(rows, allowed=not arguments.no_install)
    machine = look_at_machine(arguments.dir, syncs=SYNCS)
    report = Report(
        date=datetime.now(UTC).strftime(DATE_FORMAT),
        command=command,
        is_quick=arguments.quick,
        repeats=arguments.repeat,
        machine=dataclasses.asdict(machine),
    )
    for row in rows:
        result = RowResult(name=row.name, confirm=row.confirm, ack=row.ack, compared_with=row.compared_with)
        report.rows.append(result)
        if time.monotonic() > ends_s:
            result.problem = f"not begun within {arguments.minutes:g} minutes"
        else:
            result.problem = why_left_out(row, problem)
        if result.problem:
            _say(f"{row.name}: left out: {result.problem}")
            continue
        result.version = await version_of(row)
        await _measure_row(row, result, arguments)
    return report


async def _install_missing(rows: list[Row], *, allowed: bool) -> str:
    """Returns why packages that are still missing are."""
    missing = missing_packages(rows)
    if not missing:
        return ""
    if not allowed:
        return "--no-install was given"
    if not can_install():
        return f"run `apt-get install --no-install-recommends {' '.join(missing)}` as root"
    _say(f"Installing {', '.join(missing)} …")
    return await install(missing)


async def _measure_row(row: Row, result: RowResult, arguments: argparse.Namespace) -> None:
    sizes = QUICK if arguments.quick else FULL
    workloads = [workload for workload in arguments.workloads if not row.is_library or workload in LIBRARY_WORKLOADS]
    try:
        async with _started(row, arguments.dir) as (peer, directory):
            # In turns, so that a busy moment does not meet all samples of one workload.
            for turn in range(1, arguments.repeat + 1):
                for index, workload in enumerate(workloads):
                    cell = result.cells.setdefault(workload, Cell())
                    if not cell.problem:
                        tally = directory / f"tally-{turn}-{index}"
                        await _add_sample(cell, row, peer, workload, sizes, tally)
    except Exception as error:  # noqa: BLE001 - one row is no reason to stop
        result.problem = _in_short(error)
        result.is_broken = True
        _say(f"{row.name}: broke: {result.problem}")


async def _add_sample(cell: Cell, row: Row, peer: Peer, workload: str, sizes: Sizes, tally: Path) -> None:
    try:
        async with asyncio.timeout(CELL_SECONDS_MAX):
            sample = await _measure(row, peer, workload, sizes, tally)
    except Exception as error:  # noqa: BLE001 - each library has its own, and one cell is no reason to stop
        cell.problem = _in_short(error)
        _say(f"{row.name}, {workload}: broke: {cell.problem}")
        return
    cell.samples.append(sample)
    p50 = "" if sample.p50_ms is None else f", p50 {sample.p50_ms:.2f} ms"
    _say(f"{row.name}, {workload}: {sample.rate_per_s:,.0f} tasks/s{p50}")


async def _measure(row: Row, peer: Peer, workload: str, sizes: Sizes, tally: Path) -> Sample:
    with Stage(row, peer, await peer.empty_queue(), tally) as stage:
        await asyncio.sleep(SETTLE_SECONDS)
        return await MEASURES[workload](stage, sizes)


@asynccontextmanager
async def _started(row: Row, where: Path) -> AsyncIterator[tuple[Peer, Path]]:
    """Its servers on a directory that is gone afterwards."""
    directory = _new_directory(where)
    try:
        own = directory / _SERVERS
        peer: Peer = named(row.peer)(own, row.options)
        try:
            _say(f"{row.name}: starting …")
            async with asyncio.timeout(START_SECONDS_MAX):
                await peer.start()
            yield peer, directory
        finally:
            await peer.stop()
    finally:
        await asyncio.to_thread(shutil.rmtree, directory, ignore_errors=True)


def _new_directory(where: Path) -> Path:
    directory = Path(tempfile.mkdtemp(prefix="holdfast-peers-", dir=where))
    directory.chmod(0o755)  # some servers are another user's
    (directory / _SERVERS).mkdir()
    return directory


def _in_short(error: BaseException) -> str:
    """One line; of several errors that happened together the first, of a traceback what it ends with."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    lines = str(error).split("\n") if str(error) else [type(error).__name__]
    if len(lines) > LINES_MAX:
        lines = [lines[0], lines[-1]]
    return " ".join(" ".join(lines).split())[:PROBLEM_CHARACTERS_MAX]


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
