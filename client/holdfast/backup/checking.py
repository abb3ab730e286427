"""Looks at a backup, and says what is wrong with it. Blocks."""

import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from holdfast.backup.errors import BackupError
from holdfast.backup.manifest import Manifest, ShardCopy, StoredFile
from holdfast.backup.store import Store


class StateReport(Protocol):
    """What the server's code has found in a state (broker/offline/restoring.py)."""

    @property
    def index(self) -> int: ...
    @property
    def incarnation(self) -> int: ...
    @property
    def problems(self) -> Sequence[str]: ...
    @property
    def sent(self) -> Mapping[int, tuple[int, int]]: ...
    @property
    def received(self) -> Mapping[tuple[int, int], int]: ...


CheckState = Callable[[Path], StateReport]


@dataclass(slots=True)
class BackupVerdict:
    """`problems` is empty if the backup can be restored."""

    manifest: Manifest
    files: int = 0
    size_bytes: int = 0
    states: int = 0  # that were opened
    problems: list[str] = field(default_factory=list)


def verify(
    store: Store, manifest: Manifest, advance: Callable[[int], None], check_state: CheckState | None
) -> BackupVerdict:  # fmt: skip
    """Reads every file, once. `check_state` looks at the state of each shard; None leaves that out."""
    verdict = BackupVerdict(manifest)
    reports: dict[int, StateReport] = {}
    seen: set[str] = set()
    for shard in manifest.shards:
        with tempfile.TemporaryDirectory(prefix="holdfast-verify-") as scratch:
            directory = Path(scratch) / "state"
            directory.mkdir()
            copy_to = None if check_state is None else directory
            are_good = [_read(store, file, verdict, seen, advance, copy_to) for file in shard.files]
            if check_state is not None and all(are_good):
                reports[shard.shard] = report = check_state(directory)
                verdict.states += 1
                verdict.problems += _state_problems(shard, report)
    _read(store, manifest.queues, verdict, seen, advance, None)
    if len(reports) == len(manifest.shards):
        verdict.problems += _message_problems(manifest, reports)
    return verdict


def _read(
    store: Store, file: StoredFile, verdict: BackupVerdict, seen: set[str], advance: Callable[[int], None],
    directory: Path | None,
) -> bool:  # fmt: skip
    """Whether it is as it was written; a copy goes into the directory, if there is one."""
    if file.sha256 in seen and directory is None:
        return True
    try:
        if directory is not None:
            store.fetch(file, directory / file.name)
        else:
            for _piece in store.pieces(file):
                pass
    except BackupError as error:
        verdict.problems.append(str(error))
        return False
    if file.sha256 not in seen:
        seen.add(file.sha256)
        verdict.files += 1
        verdict.size_bytes += file.size_bytes
        advance(file.size_bytes)
    return True


def _state_problems(shard: ShardCopy, report: StateReport) -> list[str]:
    found = [f"Shard {shard.shard}: {problem}." for problem in report.problems]
    if (report.index, report.incarnation) != (shard.index, shard.incarnation):
        found.append(
            f"Shard {shard.shard}: its state ends with entry {report.index} of incarnation {report.incarnation}, but "
            f"the manifest says {shard.index} of {shard.incarnation}."
        )
    return found


def _message_problems(manifest: Manifest, reports: Mapping[int, StateReport]) -> list[str]:
    """Tasks on their way between shards: whatever has left one must have arrived at the other, and nothing may have
    arrived that the first does not know of."""
    found = []
    for shard in manifest.shards:
        for destination, (brought, last) in reports[shard.shard].sent.items():
            received = reports[destination].received.get((shard.shard, shard.incarnation), 0)
            if not brought <= received <= last:
                found.append(
                    f"Shard {shard.shard} had brought {brought} of {last} tasks to shard {destination}, but that has "
                    f"{received}: the copies are not of one moment."
                )
    return found
