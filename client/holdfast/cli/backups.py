"""What the commands about backups do. The server's part, which opens states, is loaded by name."""

import importlib
import signal
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from holdfast.backup import checking, creating, errors, pruning, restoring
from holdfast.backup.creating import Created
from holdfast.backup.encryption import read_key
from holdfast.backup.errors import BackupError
from holdfast.backup.manifest import Manifest
from holdfast.backup.pruning import Pruned
from holdfast.backup.restoring import Incarnations, Progress, Restored
from holdfast.backup.store import Store
from holdfast.backup.targets import open_target
from holdfast.cli import calls, connecting
from holdfast.cli.problems import CommandFailed, ExitCode, Problem
from holdfast.client._backups import BackupClient

T = TypeVar("T")

_REVIVING = "holdfast.broker.offline.restoring"
_CODES = {
    "USAGE": ExitCode.USAGE,
    errors.MISSING_EXTRA: ExitCode.MISSING_EXTRA,
    errors.NO_BACKUP: ExitCode.NOT_FOUND,
}


def open_store(target: str, key: Path | None, *, make: bool = False) -> Store:
    with reported():
        return Store(open_target(target, make=make), None if key is None else read_key(key))


def create(
    address: str, timeout_s: float, store: Store, progress: Progress, bytes_per_s: float | None
) -> Created:  # fmt: skip
    with _terminated_like_interrupted():
        return _ask(
            address,
            timeout_s,
            lambda client: creating.create(client, store, progress=progress, bytes_per_s=bytes_per_s),
        )


def listed(store: Store) -> list[Manifest | BackupError]:
    """The oldest first; what is wrong with one that cannot be read stands in its place."""

    def read(id: str) -> Manifest | BackupError:
        try:
            return store.peek(id)
        except BackupError as error:
            return error

    with reported():
        return [read(id) for id in store.ids()]


def find(store: Store, id: str | None) -> Manifest:
    """The backup of this id, or the newest."""
    with reported():
        return store.read(id or store.newest())


def verify(
    store: Store, manifest: Manifest, advance: Callable[[int], None], *, files_only: bool
) -> checking.BackupVerdict:
    check_state: checking.CheckState | None = None
    if not files_only:
        reviving = _load("holdfast backup verify, unless with --files-only,")
        with reported(reviving):
            reviving.check_format(manifest.state_format)

        def check_state(directory: Path) -> Any:
            with reported(reviving):
                return reviving.check_state(directory)

    with reported():
        return checking.verify(store, manifest, advance, check_state)


def restore_data_dir(
    store: Store, manifest: Manifest, data_dir: Path, node_name: str, incarnations: Incarnations, progress: Progress
) -> Restored:  # fmt: skip
    reviving = _load("holdfast backup restore")
    with reported(reviving):
        reviving.check_format(manifest.state_format)
        restoring.check_alone(manifest)
        return restoring.restore_data_dir(store, manifest, reviving, data_dir, node_name, incarnations, progress)


def restore_cluster(
    address: str, timeout_s: float, store: Store, manifest: Manifest, replication: int, incarnations: Incarnations,
    progress: Progress, wait_s: float,
) -> Restored:  # fmt: skip
    reviving = _load("holdfast backup restore")
    with reported(reviving):
        reviving.check_format(manifest.state_format)
        return _ask(
            address,
            timeout_s,
            lambda client: restoring.restore_cluster(
                client, store, manifest, reviving, replication, incarnations, progress, wait_s
            ),
        )  # fmt: skip


def prune(store: Store, keep: int, *, dry_run: bool) -> Pruned:
    with _terminated_like_interrupted(), reported():
        return pruning.prune(store, keep, dry_run=dry_run)


def recover_shard(data_dir: Path, shard: int, *, dry_run: bool) -> Any:
    """What the shard was made of, or would be (broker/offline/restoring.py)."""
    reviving = _load("holdfast shard recover")
    with reported(reviving):
        return (reviving.read_replica if dry_run else reviving.recover_from_replica)(data_dir, shard)


@contextmanager
def reported(reviving: Any = None) -> Iterator[None]:
    """Expected failures become problems of the command."""
    of_server: tuple[type[Exception], ...] = reviving.EXPECTED if reviving is not None else ()
    try:
        yield
    except BackupError as error:
        code = _CODES.get(error.reason, ExitCode.REFUSED)
        raise CommandFailed(Problem(code, error.reason, str(error), error.hint)) from error
    except of_server as error:
        raise CommandFailed(Problem(ExitCode.REFUSED, getattr(error, "reason", "REFUSED"), str(error))) from error
    except OSError as error:
        message = f"{error.filename or 'A file'}: {error.strerror or error}."
        raise CommandFailed(Problem(ExitCode.REFUSED, "DISK", message)) from error


@contextmanager
def _terminated_like_interrupted() -> Iterator[None]:
    """SIGTERM, with which Kubernetes and systemd end a command, is taken for Ctrl-C: what was begun is tidied up, and
    the next one is not kept away. The first process of a container would not even hear it."""
    if threading.current_thread() is not threading.main_thread():
        yield  # signals go to the main thread
        return
    interrupted = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell may have it ignored
    terminated = signal.signal(signal.SIGTERM, lambda _number, _frame: signal.raise_signal(signal.SIGINT))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, terminated)
        signal.signal(signal.SIGINT, interrupted)


def _ask(address: str, timeout_s: float, question: Callable[[BackupClient], Awaitable[T]]) -> T:
    """A backup waits for leaders: nobody sits before it."""

    async def with_client() -> T:
        async with BackupClient(address, timeout_s=timeout_s, retry=True, tls=connecting.tls()) as client:
            return await question(client)

    with reported():
        return calls.run_async(with_client)


def _load(command: str) -> Any:
    try:
        reviving: Any = importlib.import_module(_REVIVING)
        reviving.prepare()
        return reviving
    except ImportError as error:
        if (error.name or "").startswith("holdfast.") and error.name not in (_REVIVING, "holdfast.broker"):
            raise
        message = f"`{command}` needs the server, which is missing: run  pip install 'holdfast-queue[server]'"
        raise CommandFailed(Problem(ExitCode.MISSING_EXTRA, "MISSING_EXTRA", message)) from error
