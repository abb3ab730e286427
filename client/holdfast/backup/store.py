"""Files by their content and manifests by their ids, in any target. Everything blocks."""

import hashlib
import json
import secrets
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import BinaryIO

from holdfast.backup.encryption import Cipher
from holdfast.backup.errors import BUSY, DAMAGED, NO_BACKUP, BackupError
from holdfast.backup.manifest import BYTES_MAX, Manifest, StoredFile, check_id, is_id, wrong_key
from holdfast.backup.targets import Target

PIECE_BYTES = 1024 * 1024
RUNNING_SECONDS_MAX = 900.0  # after its last word whoever was at work is taken for dead

CREATE = "create"
PRUNE = "prune"

_FILES = "files/"
_BACKUPS = "backups/"
_RUNNING = "running/"


class Store:
    """`cipher`: None leaves files as they are."""

    def __init__(self, target: Target, cipher: Cipher | None = None) -> None:
        self.target = target
        self._cipher = cipher

    @property
    def key_id(self) -> str:
        return self._cipher.key_id if self._cipher is not None else ""

    # --- files ------------------------------------------------------------------------------------------------

    def place(self, sha256: str) -> str:
        """The name of an object; of an encrypted one it tells nothing of its content."""
        address = sha256 if self._cipher is None else self._cipher.address(sha256)
        return f"{_FILES}{address[:2]}/{address}"

    def places(self) -> set[str]:
        """Of all files that are there."""
        return set(self.target.names(_FILES))

    def writer(self) -> "FileWriter":
        return FileWriter(self, self._cipher)

    def pieces(self, file: StoredFile) -> Iterator[bytes]:
        """Its content. Raises if it is missing, or was changed; of what was read before that nothing may be used."""
        source = self.target.open(self.place(file.sha256))
        if source is None:
            raise BackupError(
                DAMAGED, f"The file {file.name} ({file.sha256[:12]}…) is missing from {self.target.name}."
            )
        digest, size_bytes = hashlib.sha256(), 0
        with source:
            for piece in self._plain(file, source):
                digest.update(piece)
                size_bytes += len(piece)
                yield piece
        if size_bytes != file.size_bytes or digest.hexdigest() != file.sha256:
            raise BackupError(
                DAMAGED, f"The file {file.name} ({file.sha256[:12]}…) is damaged: it is not what was written."
            )  # fmt: skip

    def _plain(self, file: StoredFile, source: BinaryIO) -> Iterator[bytes]:
        if self._cipher is not None:
            yield from self._cipher.decrypted(source, f"{file.name} ({file.sha256[:12]}…)")
            return
        while piece := source.read(PIECE_BYTES):
            yield piece

    def fetch(self, file: StoredFile, path: Path) -> None:
        with open(path, "wb") as copy:
            for piece in self.pieces(file):
                copy.write(piece)

    def put_content(self, name: str, data: bytes) -> StoredFile:
        """A small file."""
        writer = self.writer()
        writer.write(data)
        return writer.finish(name, hashlib.sha256(data).hexdigest())

    # --- manifests --------------------------------------------------------------------------------------------

    def ids(self) -> list[str]:
        """Of all backups, the oldest first."""
        names = (name.removeprefix(_BACKUPS).removesuffix(".json") for name in self.target.names(_BACKUPS))
        return sorted(filter(is_id, names))

    def read(self, id: str) -> Manifest:
        """Raises if there is none, it is damaged, or the key is not the one that it was made with."""
        manifest = self.peek(id)
        if manifest.key_id != self.key_id:
            raise wrong_key(manifest, self.key_id)
        return manifest

    def peek(self, id: str) -> Manifest:
        """The same, whatever key it was made with."""
        source = self.target.open(f"{_BACKUPS}{check_id(id)}.json")
        if source is None:
            raise BackupError(NO_BACKUP, f"There is no backup {id} in {self.target.name}.", "See `holdfast backup ls`.")
        with source:
            data = source.read(BYTES_MAX)
        manifest_key = self._cipher.manifest_key if self._cipher is not None else None
        manifest = Manifest.decode(id, data, manifest_key, self.key_id)
        if manifest.id != id:
            raise BackupError(DAMAGED, f"The manifest of {id} is damaged: it is that of {manifest.id}.")
        return manifest

    def newest(self) -> str:
        ids = self.ids()
        if not ids:
            raise BackupError(NO_BACKUP, f"There is no backup in {self.target.name}.")
        return ids[-1]

    def write(self, manifest: Manifest) -> None:
        """From now on the backup is there."""
        key = self._cipher.manifest_key if self._cipher is not None else None
        self.target.put_bytes(f"{_BACKUPS}{manifest.id}.json", manifest.encode(key))

    def delete(self, id: str) -> None:
        self.target.delete(f"{_BACKUPS}{check_id(id)}.json")

    def delete_files(self, places: Iterable[str]) -> None:
        for place in places:
            self.target.delete(place)

    # --- who is at work ---------------------------------------------------------------------------------------

    def announce(self, what: str, id: str) -> None:
        """Says that somebody is at work; to be repeated."""
        self.target.put_bytes(f"{_RUNNING}{what}-{id}.json", json.dumps({"at_s": time.time()}).encode())

    def retire(self, what: str, id: str) -> None:
        self.target.delete(f"{_RUNNING}{what}-{id}.json")

    def check_nobody(self, what: str, why: str) -> None:
        """Refuses while somebody does this. Whoever asks has announced itself before: of two that begin at the same
        moment, at least one sees the other."""
        for name in self.target.names(_RUNNING):
            if name.startswith(f"{_RUNNING}{what}-") and time.time() - self._last_word_s(name) < RUNNING_SECONDS_MAX:
                raise BackupError(
                    BUSY, f"{why} ({name.removeprefix(_RUNNING)} in {self.target.name}).",
                    f"Try again when it is done; one that died counts for {RUNNING_SECONDS_MAX / 60:.0f} minutes.",
                )  # fmt: skip

    def _last_word_s(self, name: str) -> float:
        source = self.target.open(name)
        if source is None:
            return 0.0
        with source:
            try:
                return float(json.loads(source.read(PIECE_BYTES))["at_s"])
            except (ValueError, KeyError, TypeError):
                return time.time()  # somebody's, whoever that is


class FileWriter:
    """One file on its way into the store: `write` all of it, then `finish`, or `drop` it."""

    def __init__(self, store: Store, cipher: Cipher | None) -> None:
        self._store = store
        self._path = store.target.spool / f"hf-{secrets.token_hex(8)}"
        self._digest = hashlib.sha256()
        self._size_bytes = 0
        self._file = open(self._path, "wb")  # noqa: SIM115 - closed by finish or drop
        self._sink = None if cipher is None else cipher.encrypting(self._file)

    def write(self, piece: bytes) -> None:
        self._digest.update(piece)
        self._size_bytes += len(piece)
        if self._sink is None:
            self._file.write(piece)
        else:
            self._sink.write(piece)

    def finish(self, name: str, sha256: str) -> StoredFile:
        """Raises if it is not what it was said to be."""
        try:
            if self._digest.hexdigest() != sha256:
                raise BackupError(DAMAGED, f"The file {name} came with another content than its node had read before.")
            if self._sink is not None:
                self._sink.finish()
            self._file.close()
            self._store.target.put(self._store.place(sha256), self._path)
        except BaseException:
            self.drop()
            raise
        return StoredFile(name, self._size_bytes, sha256)

    def drop(self) -> None:
        self._file.close()
        self._path.unlink(missing_ok=True)
