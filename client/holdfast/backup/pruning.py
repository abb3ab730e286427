"""Deletes old backups, and the files that no backup needs any more. Blocks."""

import secrets
from dataclasses import dataclass

from holdfast.backup.manifest import Manifest
from holdfast.backup.store import CREATE, PRUNE, Store


@dataclass(frozen=True, slots=True)
class Pruned:
    deleted: tuple[str, ...]  # ids of backups
    kept: tuple[str, ...]
    files: int  # that nobody needed any more


def prune(store: Store, keep: int, *, dry_run: bool) -> Pruned:
    """Keeps the newest ones. Nothing is deleted while a backup is being made, nor unless all manifests that stay can be
    read: what they need would not be known. Interrupted, it leaves files that the next one deletes."""
    id = secrets.token_hex(4)
    store.announce(PRUNE, id)
    try:
        store.check_nobody(CREATE, "A backup is being made there at the moment")
        ids = store.ids()
        kept, deleted = ids[-keep:], ids[:-keep]
        needed = {place for backup_id in kept for place in _places(store, store.read(backup_id))}
        unneeded = sorted(store.places() - needed)
        if not dry_run:
            for backup_id in deleted:
                store.delete(backup_id)
            store.delete_files(unneeded)
            store.target.sweep()
        return Pruned(tuple(deleted), tuple(kept), len(unneeded))
    finally:
        store.retire(PRUNE, id)


def _places(store: Store, manifest: Manifest) -> set[str]:
    return {store.place(digest) for digest in manifest.digests}
