"""The statement of what one backup contains: JSON, with a checksum of itself. Pure.

Whoever can change the target can change it and its checksum; one of an encrypted backup has a code that only the key
makes instead.
"""

import hashlib
import hmac
import json
import re
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from holdfast.backup.errors import DAMAGED, FORMAT, KEY, BackupError

MANIFEST_FORMAT = 1
BYTES_MAX = 256 * 1024 * 1024

_ID = re.compile(r"[0-9]{8}T[0-9]{6}([0-9]{3})?Z-[0-9a-f]{8}")
_SHA256 = re.compile(r"[0-9a-f]{64}")
# As the brokers have them: a name from a target becomes a path.
_FILE_NAME = re.compile(
    r"[0-9]{6,20}\.(?:sst|blob|log)|MANIFEST-[0-9]{6,20}|OPTIONS-[0-9]{6,20}|CURRENT|IDENTITY|rocksdict-config\.json"
)


@dataclass(frozen=True, slots=True)
class StoredFile:
    """A file of a backup; where it is follows from its digest."""

    name: str
    size_bytes: int
    sha256: str


@dataclass(frozen=True, slots=True)
class ShardCopy:
    """A shard as it was at one entry of its log: all up to it is in the copy, and nothing after it."""

    shard: int
    index: int
    term: int
    shard_time_ms: int
    incarnation: int
    node: str
    files: tuple[StoredFile, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """Everything that was acknowledged before `began_ms` is in it, and nothing that came after `finished_ms`."""

    id: str
    began_ms: int
    finished_ms: int
    cluster_id: str  # empty: a node alone, or a static list of nodes
    cluster_name: str
    replication: int
    version: str  # of Holdfast
    state_format: int
    shards: tuple[ShardCopy, ...]
    queues: StoredFile  # what is set for queues in the map
    queues_count: int
    key_id: str = ""  # of the key that encrypts the files; empty: they are not encrypted

    @property
    def files(self) -> Iterator[StoredFile]:
        """All, also those that several shards have."""
        for shard in self.shards:
            yield from shard.files
        yield self.queues

    @property
    def size_bytes(self) -> int:
        return sum(file.size_bytes for file in self.files)

    @property
    def digests(self) -> set[str]:
        return {file.sha256 for file in self.files}

    def encode(self, key: bytes | None) -> bytes:
        """`key`: of its code, if the backup is encrypted."""
        content = {"format": MANIFEST_FORMAT, **asdict(self)}
        content["check"] = _check(content, key)
        return json.dumps(content, indent=1).encode() + b"\n"

    @classmethod
    def decode(cls, name: str, data: bytes, key: bytes | None = None, key_id: str = "") -> "Manifest":
        """`key`, `key_id`: if one is known. The code of a manifest of another key is not looked at."""
        try:
            content = json.loads(data)
            found_format = content["format"]
            if found_format != MANIFEST_FORMAT:
                raise BackupError(
                    FORMAT, f"The backup {name} has format {found_format}, but this version reads {MANIFEST_FORMAT}.",
                    "Use the version of Holdfast that wrote it.",
                )  # fmt: skip
            check = content.pop("check")
            manifest = _manifest(content)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise BackupError(DAMAGED, f"The manifest of {name} is damaged: {error!r}.") from error
        if manifest.key_id and (key is None or manifest.key_id != key_id):
            return manifest
        if not hmac.compare_digest(str(check), _check(content, key if manifest.key_id else None)):
            raise BackupError(DAMAGED, f"The manifest of {name} is damaged: it is not what was written.")
        return manifest


def check_id(text: str) -> str:
    if not _ID.fullmatch(text):
        raise BackupError("USAGE", f"Expected the id of a backup, as `holdfast backup ls` shows it, but got {text!r}.")
    return text


def is_id(text: str) -> bool:
    return _ID.fullmatch(text) is not None


def _check(content: dict[str, Any], key: bytes | None) -> str:
    data = json.dumps(content, sort_keys=True, separators=(",", ":")).encode()
    return hashlib.sha256(data).hexdigest() if key is None else hmac.digest(key, data, "sha256").hex()


def _manifest(content: dict[str, Any]) -> Manifest:
    fields = {name: value for name, value in content.items() if name != "format"}
    shards = tuple(
        ShardCopy(**{**shard, "files": tuple(_state_file(file) for file in shard["files"])})
        for shard in fields.pop("shards")
    )
    manifest = Manifest(shards=shards, queues=_file(fields.pop("queues")), **fields)
    if [shard.shard for shard in shards] != list(range(len(shards))) or not shards:
        raise ValueError("shards that are not all of a cluster")
    check_id(manifest.id)
    return manifest


def _file(content: dict[str, Any]) -> StoredFile:
    file = StoredFile(**content)
    if not _SHA256.fullmatch(file.sha256) or file.size_bytes < 0:
        raise ValueError("a file without a digest")
    return file


def _state_file(content: dict[str, Any]) -> StoredFile:
    file = _file(content)
    if not _FILE_NAME.fullmatch(file.name):
        raise ValueError(f"a file that no state has: {file.name!r}")
    return file


def wrong_key(manifest: Manifest, given: str) -> BackupError:
    which = f"the one given is {given}" if given else "none was given"
    return BackupError(
        KEY, f"The backup {manifest.id} is encrypted with the key {manifest.key_id}, but {which}.",
        "Give the key that it was made with: --encrypt KEYFILE.",
    )  # fmt: skip
