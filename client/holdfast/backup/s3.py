"""Backups in S3-compatible storage. The only file that knows obstore.

Credentials, region and endpoint come from the usual places: AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_REGION,
AWS_ENDPOINT_URL, or the role of the machine.
"""

import io
import os
import shutil
import tempfile
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, cast

from holdfast.backup.errors import MISSING_EXTRA, TARGET, BackupError

try:
    import obstore
    from obstore.exceptions import BaseError
    from obstore.store import S3Store
except ImportError as error:
    raise BackupError(
        MISSING_EXTRA,
        "Backups in S3 need the package 'obstore', which is missing: run  pip install 'holdfast-queue[backup]'",
    ) from error

_SCHEME = "s3://"
_HINT = "Credentials and endpoint come from AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_REGION and AWS_ENDPOINT_URL."


class S3Target:
    """`s3://bucket/prefix`. An object is there whole or not at all, for everybody at once."""

    def __init__(self, url: str) -> None:
        bucket, _, prefix = url.removeprefix(_SCHEME).partition("/")
        if not bucket:
            raise BackupError("USAGE", f"Expected s3://bucket/prefix, but got {url!r}.")
        self.name = url
        endpoint = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL") or ""
        with self._failures():
            self._store = S3Store(
                bucket,
                prefix=prefix.strip("/") or None,
                client_options={"allow_http": endpoint.startswith("http://")},
                config={"endpoint": endpoint} if endpoint else None,
            )
        self.spool = Path(tempfile.mkdtemp(prefix="holdfast-backup-"))
        weakref.finalize(self, shutil.rmtree, self.spool, ignore_errors=True)

    def put(self, name: str, path: Path) -> None:
        with self._failures():
            obstore.put(self._store, name, path)
        path.unlink()

    def put_bytes(self, name: str, data: bytes) -> None:
        with self._failures():
            obstore.put(self._store, name, data)

    def open(self, name: str) -> BinaryIO | None:
        with self._failures():
            try:
                found = obstore.get(self._store, name)
            except FileNotFoundError:
                return None
        return io.BufferedReader(cast(io.RawIOBase, _Pieces(self, found)), 1024 * 1024)

    def names(self, prefix: str) -> Iterator[str]:
        with self._failures():
            for page in obstore.list(self._store, prefix.rstrip("/")):
                for found in page:
                    yield found["path"]

    def delete(self, name: str) -> None:
        with self._failures():
            try:
                obstore.delete(self._store, name)
            except FileNotFoundError:
                return

    def sweep(self) -> None:
        """Each process has a spool of its own."""

    @contextmanager
    def _failures(self) -> Iterator[None]:
        try:
            yield
        except (BaseError, OSError, ValueError) as error:  # OSError: no such bucket
            first = str(error).splitlines()[0] if str(error) else type(error).__name__
            raise BackupError(TARGET, f"The target {self.name} failed: {first}", _HINT) from error


class _Pieces(io.RawIOBase):
    """An object as it comes, read like a file."""

    def __init__(self, target: S3Target, found: "obstore.GetResult") -> None:
        self._target = target
        self._pieces = iter(found)
        self._rest = b""

    def readable(self) -> bool:
        return True

    def readinto(self, into: Any) -> int:  # whatever has a buffer
        with self._target._failures():
            while not self._rest:
                piece = next(self._pieces, None)
                if piece is None:
                    return 0
                self._rest = bytes(piece)
        view = memoryview(into)
        length = min(len(view), len(self._rest))
        view[:length] = self._rest[:length]
        self._rest = self._rest[length:]
        return length
