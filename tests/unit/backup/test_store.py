"""What a backup consists of: files by their content, encrypted or not, manifests, and what is deleted when."""

import hashlib
import json
import time
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from holdfast.backup.creating import new_id
from holdfast.backup.encryption import CHUNK_BYTES, Cipher, read_key
from holdfast.backup.errors import BUSY, DAMAGED, FORMAT, KEY, NO_BACKUP, BackupError
from holdfast.backup.manifest import Manifest, ShardCopy, StoredFile
from holdfast.backup.pruning import prune
from holdfast.backup.store import CREATE, PRUNE, RUNNING_SECONDS_MAX, Store
from holdfast.backup.targets import DirectoryTarget

KEYS = bytes(range(32)), bytes(32)


@pytest.fixture(params=["plain", "encrypted"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    target = DirectoryTarget(tmp_path / "target", make=True)
    return Store(target, Cipher(KEYS[0]) if request.param == "encrypted" else None)


def put(store: Store, name: str, content: bytes) -> StoredFile:
    writer = store.writer()
    for index in range(0, len(content), 100_000):
        writer.write(content[index : index + 100_000])
    return writer.finish(name, hashlib.sha256(content).hexdigest())


def path_of(store: Store, file: StoredFile) -> Path:
    return Path(store.target.name) / store.place(file.sha256)


def backup(store: Store, number: int, *contents: bytes) -> Manifest:
    """With a shard of these files."""
    files = tuple(put(store, f"{index:06d}.sst", content) for index, content in enumerate(contents))
    manifest = Manifest(
        id=f"20260101T0000{number:02d}Z-00000000", began_ms=1, finished_ms=2, cluster_id="", cluster_name="",
        replication=1, version="0", state_format=8, shards=(ShardCopy(0, 10, 2, 3, 1, "n1", files),),
        queues=put(store, "queues.json", b"{}"), queues_count=0, key_id=store.key_id,
    )  # fmt: skip
    store.write(manifest)
    return manifest


@pytest.mark.parametrize("size", [0, 1, CHUNK_BYTES - 1, CHUNK_BYTES, CHUNK_BYTES + 1, 3 * CHUNK_BYTES])
def test_files_come_back_as_they_were(store: Store, tmp_path: Path, size: int) -> None:
    content = bytes(n % 251 for n in range(size))
    file = put(store, "000001.sst", content)
    assert (file.size_bytes, b"".join(store.pieces(file))) == (size, content)
    store.fetch(file, tmp_path / "copy")
    assert (tmp_path / "copy").read_bytes() == content
    assert list((Path(store.target.name) / "tmp").iterdir()) == []


def test_the_same_content_is_there_once(store: Store) -> None:
    assert put(store, "000001.sst", b"x" * 1000).sha256 == put(store, "000002.sst", b"x" * 1000).sha256
    assert len(store.places()) == 1


def test_only_the_owner_can_read_a_backup(store: Store) -> None:
    manifest = backup(store, 1, b"a")
    files = [path_of(store, file) for file in manifest.files]
    for path in (*files, Path(store.target.name) / "backups" / f"{manifest.id}.json"):
        assert path.stat().st_mode & 0o077 == 0


@pytest.mark.parametrize("how", ["a byte", "cut", "cut at a chunk", "longer", "exchanged", "gone"])
def test_every_change_of_a_file_is_noticed(store: Store, how: str) -> None:
    file = put(store, "000001.sst", bytes(3 * CHUNK_BYTES))
    path = path_of(store, file)
    content = bytearray(path.read_bytes())
    head = len(content) - 3 * CHUNK_BYTES
    chunk = CHUNK_BYTES if head == 0 else CHUNK_BYTES + 16
    start = len(content) - 3 * chunk
    if how == "a byte":
        content[len(content) // 2] ^= 1
    elif how == "cut":
        del content[-1:]
    elif how == "cut at a chunk":
        del content[-chunk:]
    elif how == "longer":
        content += b"\x00"
    elif how == "exchanged":
        if head == 0:
            content[start] = 1
        content[start : start + 2 * chunk] = content[start + chunk : start + 2 * chunk] + content[start : start + chunk]
    path.write_bytes(content)
    if how == "gone":
        path.unlink()
    with pytest.raises(BackupError) as caught:
        list(store.pieces(file))
    assert caught.value.reason == DAMAGED
    assert "000001.sst" in str(caught.value)


def test_a_file_that_comes_with_another_content_is_not_taken(store: Store) -> None:
    writer = store.writer()
    writer.write(b"x")
    with pytest.raises(BackupError, match="another content"):
        writer.finish("000001.sst", hashlib.sha256(b"y").hexdigest())
    assert store.places() == set()
    assert list((Path(store.target.name) / "tmp").iterdir()) == []


def test_nothing_is_readable_without_the_key(tmp_path: Path) -> None:
    target = DirectoryTarget(tmp_path, make=True)
    secret = b"a secret of which nobody may learn " * 10
    encrypted = Store(target, Cipher(KEYS[0]))
    manifest = backup(encrypted, 1, secret)
    digest = hashlib.sha256(secret).hexdigest()
    for path in tmp_path.rglob("*"):
        assert digest not in path.name, "nor whether a content that it has is among the files"
        assert not path.is_file() or secret[:20] not in path.read_bytes()
    for other in (Store(target), Store(target, Cipher(KEYS[1]))):
        with pytest.raises(BackupError) as caught:
            other.read(manifest.id)
        assert caught.value.reason == KEY, "a wrong key is no damage"
    assert Store(target).peek(manifest.id).key_id == encrypted.key_id, "which key is needed can be seen"


def test_a_manifest_says_what_was_written(store: Store) -> None:
    manifest = backup(store, 1, b"a", b"bc")
    assert store.ids() == [manifest.id]
    assert store.read(manifest.id) == manifest
    assert manifest.size_bytes == 5
    assert store.newest() == manifest.id


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ('"index": 10', '"index": 11', DAMAGED),
        ("000000.sst", "../../x", DAMAGED),
        ('"shard": 0', '"shard": 1', DAMAGED),
        ('"format": 1', '"format": 9', FORMAT),
        ("{", "", DAMAGED),
    ],
)
def test_a_manifest_that_was_changed_is_refused(store: Store, old: str, new: str, reason: str) -> None:
    manifest = backup(store, 1, b"a")
    path = Path(store.target.name) / "backups" / f"{manifest.id}.json"
    path.write_text(path.read_text().replace(old, new, 1))
    with pytest.raises(BackupError) as caught:
        store.read(manifest.id)
    assert caught.value.reason == reason


def test_who_can_write_but_has_no_key_cannot_make_a_manifest(tmp_path: Path) -> None:
    store = Store(DirectoryTarget(tmp_path, make=True), Cipher(KEYS[0]))
    manifest = backup(store, 1, b"a")
    forged = replace(manifest, shards=(replace(manifest.shards[0], index=99),))
    (tmp_path / "backups" / f"{manifest.id}.json").write_bytes(forged.encode(None))
    with pytest.raises(BackupError, match="not what was written"):
        store.read(manifest.id)


def test_pruning_deletes_what_nobody_needs_and_nothing_else(store: Store) -> None:
    manifests = [backup(store, number, b"shared", b"own %d" % number) for number in range(4)]
    orphan = put(store, "000009.sst", b"of a backup that was interrupted")
    left = store.writer()  # of one that was killed
    left.write(b"half of a file")
    would = prune(store, 2, dry_run=True)
    assert len(store.ids()) == 4
    pruned = prune(store, 2, dry_run=False)
    assert pruned == would
    assert pruned.deleted == tuple(manifest.id for manifest in manifests[:2])
    assert pruned.files == 3
    assert store.ids() == list(pruned.kept)
    assert not path_of(store, orphan).exists()
    assert list((Path(store.target.name) / "tmp").iterdir()) == []
    left.drop()
    for manifest in manifests[2:]:
        for file in store.read(manifest.id).files:
            assert list(store.pieces(file)) is not None
    assert prune(store, 2, dry_run=False).files == 0


def test_nothing_is_pruned_while_somebody_makes_a_backup(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    backup(store, 1, b"a")
    put(store, "000009.sst", b"on its way")
    store.announce(CREATE, "x")
    with pytest.raises(BackupError) as caught:
        prune(store, 1, dry_run=False)
    assert caught.value.reason == BUSY
    store.announce(PRUNE, "y")
    with pytest.raises(BackupError):
        store.check_nobody(PRUNE, "Somebody prunes")
    later_s = time.time() + RUNNING_SECONDS_MAX + 1
    monkeypatch.setattr(time, "time", lambda: later_s)
    assert prune(store, 1, dry_run=False).files == 1, "whoever has said nothing for so long is dead"


def test_nothing_is_pruned_if_a_manifest_that_stays_cannot_be_read(store: Store) -> None:
    backup(store, 1, b"a")
    manifest = backup(store, 2, b"b")
    path = Path(store.target.name) / "backups" / f"{manifest.id}.json"
    path.write_text(json.dumps({"format": 1}))
    with pytest.raises(BackupError):
        prune(store, 1, dry_run=False)
    assert len(store.ids()) == 2


def test_keys_are_files_of_hex_digits_or_bytes(tmp_path: Path) -> None:
    path = tmp_path / "key"
    path.write_text(KEYS[0].hex() + "\n")
    of_digits = read_key(path).key_id
    path.write_bytes(KEYS[0])
    assert read_key(path).key_id == of_digits
    path.write_bytes(b"short")
    with pytest.raises(BackupError, match="64 hex digits"):
        read_key(path)
    with pytest.raises(BackupError):
        read_key(tmp_path / "nowhere")


def test_a_target_that_is_not_there_is_said(tmp_path: Path) -> None:
    with pytest.raises(BackupError) as caught:
        DirectoryTarget(tmp_path / "nowhere", make=False)
    assert caught.value.reason == NO_BACKUP
    with pytest.raises(BackupError, match="no backup"):
        Store(DirectoryTarget(tmp_path, make=False)).newest()


def test_ids_of_backups_sort_by_time_also_within_a_second() -> None:
    now = datetime(2026, 1, 2, 3, 4, 5, 999_000, tzinfo=UTC)
    ids = [new_id(now - timedelta(milliseconds=ms)) for ms in (1500, 900, 2, 1, 0)]
    assert ids == sorted(ids)
