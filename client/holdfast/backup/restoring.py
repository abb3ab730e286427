"""Makes a data directory, or a cluster of brokers that have nothing, of a backup.

What is done to the states is the server's part (broker/offline/restoring.py), which is loaded by name.
"""

import asyncio
import hashlib
import json
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from holdfast.backup.errors import DAMAGED, BackupError
from holdfast.backup.manifest import Manifest, ShardCopy
from holdfast.backup.store import Store
from holdfast.client._backups import CHUNK_BYTES, BackupClient, Founder, StateFile
from holdfast.client.errors import ConnectionFailed, DeadlineExceeded, Overloaded, Rejected, Unavailable

INCARNATION_MAX = (1 << 16) - 1
TRIES_SECONDS_MAX = 60.0  # without an answer of a founder
PAUSE_SECONDS = 0.2

Progress = Callable[[str, int], AbstractContextManager[Callable[[int], None]]]
Incarnations = Mapping[int, tuple[int, int]]  # by shard: the incarnation in the backup, and the next one

_NOT_ENOUGH_NODES = "NOT_ENOUGH_NODES"
_LATER = ("NO_RESTORE", "NO_CLUSTER")  # a broker may not have heard of the cluster yet
_NOT_NOW = (ConnectionFailed, DeadlineExceeded, Overloaded, Unavailable)


class Reviving(Protocol):
    """The functions of broker/offline/restoring.py that are used here."""

    def revive_state(self, directory: Path, shard: int, incarnations: Incarnations) -> Any: ...
    def restore_data_dir(
        self, data_dir: Path, node_name: str, states: Mapping[int, Path], incarnations: Mapping[int, int]
    ) -> None: ...


@dataclass(frozen=True, slots=True)
class Restored:
    manifest: Manifest
    incarnations: tuple[int, ...]  # of the shards, in order


def next_incarnations(manifest: Manifest, at_least: int | None) -> Incarnations:
    """Each shard's next incarnation: one more than in the backup, or a larger one that was asked for."""
    incarnations = {
        copy.shard: (copy.incarnation, max(copy.incarnation + 1, at_least or 0)) for copy in manifest.shards
    }
    if any(after > INCARNATION_MAX for _, after in incarnations.values()):
        raise BackupError("USAGE", f"Expected incarnations of at most {INCARNATION_MAX}, but there is a larger one.")
    return incarnations


def restore_data_dir(
    store: Store, manifest: Manifest, reviving: Reviving, data_dir: Path, node_name: str, incarnations: Incarnations,
    progress: Progress,
) -> Restored:  # fmt: skip
    """Blocks. Of a node alone, or of the first node of a static list; it must not be there yet, or be empty."""
    scratch = data_dir.absolute().with_name(f"{data_dir.name}.states")
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir(parents=True)
    try:
        states: dict[int, Path] = {}
        with progress("Restoring", manifest.size_bytes) as advance:
            for copy in manifest.shards:
                states[copy.shard] = scratch / str(copy.shard)
                fetch_state(store, copy, states[copy.shard], advance)
                reviving.revive_state(states[copy.shard], copy.shard, incarnations)
        following = {shard: after for shard, (_, after) in incarnations.items()}
        reviving.restore_data_dir(data_dir, node_name, states, following)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return Restored(manifest, tuple(following[shard] for shard in sorted(following)))


async def restore_cluster(
    client: BackupClient, store: Store, manifest: Manifest, reviving: Reviving, replication: int,
    incarnations: Incarnations, progress: Progress, wait_s: float,
) -> Restored:  # fmt: skip
    """Of brokers that are registered and have nothing, waiting so long for enough of them. May be repeated: shards that
    are founded stay as they are."""
    queues = await asyncio.to_thread(read_queues, store, manifest)
    numbers = [incarnations[shard][1] for shard in sorted(incarnations)]
    founders = await _founders(client, manifest.id, replication, numbers, wait_s)
    await client.restore_queues(manifest.id, queues)  # before anybody serves: a queue that was paused stays so
    with progress("Restoring", manifest.size_bytes) as advance:
        for copy, founder in zip(manifest.shards, founders, strict=True):
            size_bytes = sum(file.size_bytes for file in copy.files)
            if not founder.is_founded:
                with tempfile.TemporaryDirectory(prefix="holdfast-restore-") as scratch:
                    directory = Path(scratch) / "state"
                    await asyncio.to_thread(fetch_state, store, copy, directory, lambda _bytes: None)
                    revived = await asyncio.to_thread(reviving.revive_state, directory, copy.shard, incarnations)
                    await _Bringing(client, manifest.id, founder, directory, revived).run()
            advance(size_bytes)
    return Restored(manifest, tuple(numbers))


async def _founders(
    client: BackupClient, backup_id: str, replication: int, incarnations: Sequence[int], wait_s: float
) -> list[Founder]:
    ends_s = asyncio.get_running_loop().time() + wait_s
    while True:
        try:
            return await client.restore_cluster(backup_id, replication, incarnations)
        except (Rejected, ConnectionFailed, DeadlineExceeded) as error:
            may_pass = not isinstance(error, Rejected) or error.reason == _NOT_ENOUGH_NODES or error.retry_after_ms > 0
            if not may_pass or asyncio.get_running_loop().time() >= ends_s:
                raise
        await asyncio.sleep(PAUSE_SECONDS)


def read_queues(store: Store, manifest: Manifest) -> dict[str, bytes]:
    """Blocks. What is set for queues, as it stands in a map."""
    try:
        content = json.loads(b"".join(store.pieces(manifest.queues)))
        return {name: json.dumps(record).encode() for name, record in content.items()}
    except (ValueError, AttributeError) as error:
        raise BackupError(DAMAGED, f"What was set for queues cannot be read: {error}.") from error


def fetch_state(store: Store, copy: ShardCopy, directory: Path, advance: Callable[[int], None]) -> None:
    """Blocks. The files of a shard's state, checked, in a new directory."""
    directory.mkdir(parents=True)
    for file in copy.files:
        store.fetch(file, directory / file.name)
        advance(file.size_bytes)


class _Bringing:
    """One state on its way to the broker that founds its shard."""

    def __init__(
        self, client: BackupClient, backup_id: str, founder: Founder, directory: Path, revived: Any
    ) -> None:  # fmt: skip
        self._client = client
        self._backup_id = backup_id
        self._founder = founder
        self._directory = directory
        self._revived = revived
        self._files = [StateFile(file.name, file.size_bytes, file.crc32) for file in revived.files]
        # The same for the same backup: a broker takes only the newest of two that are brought to it.
        digest = hashlib.sha256(f"{backup_id}/{founder.shard}".encode()).digest()
        self._id = int.from_bytes(digest[:7], "big")

    async def run(self) -> None:
        wanted = await self._until_answered(None)
        while wanted is not None:
            number, offset = wanted
            if number >= len(self._files):  # all is there, and being looked at
                await asyncio.sleep(PAUSE_SECONDS)
                wanted = await self._until_answered(None)
            else:
                wanted = await self._until_answered((number, offset))

    async def _until_answered(self, place: tuple[int, int] | None) -> tuple[int, int] | None:
        """What is wanted next, after it was sent what is at this place; None: it is founded."""
        loop = asyncio.get_running_loop()
        ends_s = loop.time() + TRIES_SECONDS_MAX
        while True:
            try:
                return await self._send(place)
            except Rejected as error:
                is_later = error.reason == "RESTORE_REFUSED" and error.metadata.get("why") in _LATER
                if not (is_later or isinstance(error, _NOT_NOW)) or loop.time() > ends_s:
                    raise
            except _NOT_NOW:
                if loop.time() > ends_s:
                    raise
            place = None  # whatever it has by now, it says
            await asyncio.sleep(PAUSE_SECONDS)

    async def _send(self, place: tuple[int, int] | None) -> tuple[int, int] | None:
        revived = self._revived
        if place is None:
            return await self._client.announce_state(
                self._founder, self._backup_id, self._id, revived.index, revived.term, self._files
            )
        number, offset = place
        data = await asyncio.to_thread(_piece, self._directory / self._files[number].name, offset)
        return await self._client.bring_state(
            self._founder, self._backup_id, self._id, revived.index, revived.term, number, offset, data
        )


def _piece(path: Path, offset: int) -> bytes:
    with open(path, "rb") as file:
        file.seek(offset)
        return file.read(CHUNK_BYTES)


def check_alone(manifest: Manifest) -> None:
    """A node without a map has one shard: what is set where several shards are is nothing to it."""
    if manifest.cluster_id and len(manifest.shards) > 1:
        raise BackupError(
            "USAGE", f"The backup {manifest.id} has {len(manifest.shards)} shards, but a node without etcd has one.",
            "Restore it into a cluster: start brokers with etcd, and give --address instead of --data-dir.",
        )  # fmt: skip
