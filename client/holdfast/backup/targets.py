"""Places for backups: the seam, and the one that is a directory.

A target has objects with names like paths. Each is written whole or not at all, and never changed. Everything blocks.
"""

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, Protocol

from holdfast.backup.errors import NO_BACKUP, TARGET, BackupError

S3_SCHEME = "s3://"


class Target(Protocol):
    """Every method raises BackupError for what a person can act on."""

    @property
    def name(self) -> str: ...

    @property
    def spool(self) -> Path:
        """A directory on this machine where files are written before they are put."""
        ...

    def put(self, name: str, path: Path) -> None:
        """Takes a file from the spool; when this returns it is durable."""
        ...

    def put_bytes(self, name: str, data: bytes) -> None: ...

    def open(self, name: str) -> "BinaryIO | None":
        """None if there is no such object. To be closed."""
        ...

    def names(self, prefix: str) -> Iterator[str]:
        """All that begin like this, in no particular order."""
        ...

    def delete(self, name: str) -> None:
        """Missing is fine."""
        ...

    def sweep(self) -> None:
        """Removes what somebody who died has left in the spool; nobody may be at work."""
        ...


def open_target(text: str, *, make: bool = False) -> Target:
    """A directory, or s3://bucket/prefix. `make`: a directory that is missing is made."""
    if text.startswith(S3_SCHEME):
        from holdfast.backup.s3 import S3Target

        return S3Target(text)
    return DirectoryTarget(Path(text.removeprefix("file://")), make=make)


class DirectoryTarget:
    """On a local or mounted file system."""

    def __init__(self, path: Path, *, make: bool) -> None:
        self._path = path.absolute()
        if make:
            with self._failures():
                (self._path / "tmp").mkdir(parents=True, exist_ok=True)
        elif not self._path.is_dir():
            raise BackupError(NO_BACKUP, f"There is no directory {self._path}.")

    @property
    def name(self) -> str:
        return str(self._path)

    @property
    def spool(self) -> Path:
        spool = self._path / "tmp"
        with self._failures():
            spool.mkdir(exist_ok=True)
        return spool

    def put(self, name: str, path: Path) -> None:
        place = self._path / name
        with self._failures():
            place.parent.mkdir(parents=True, exist_ok=True)
            path.chmod(0o600)  # tasks are in it
            _sync(path, os.O_RDONLY)
            os.replace(path, place)
            _sync(place.parent, os.O_RDONLY | os.O_DIRECTORY)
            _sync(place.parent.parent, os.O_RDONLY | os.O_DIRECTORY)

    def put_bytes(self, name: str, data: bytes) -> None:
        path = self.spool / secrets.token_hex(8)
        with self._failures():
            path.write_bytes(data)
        self.put(name, path)

    def open(self, name: str) -> BinaryIO | None:
        with self._failures():
            try:
                return open(self._path / name, "rb")
            except FileNotFoundError:
                return None

    def names(self, prefix: str) -> Iterator[str]:
        with self._failures():
            for directory, _, files in os.walk(self._path / prefix):
                for file in files:
                    yield str((Path(directory) / file).relative_to(self._path))

    def delete(self, name: str) -> None:
        with self._failures():
            (self._path / name).unlink(missing_ok=True)

    def sweep(self) -> None:
        with self._failures():
            for path in self.spool.iterdir():
                path.unlink()

    @contextmanager
    def _failures(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            where = error.filename or self._path
            raise BackupError(TARGET, f"The target failed: {where}: {error.strerror or error}.") from error


def _sync(path: Path, flags: int) -> None:
    handle = os.open(path, flags)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
