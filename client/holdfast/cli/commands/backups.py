"""`holdfast backup …`."""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from holdfast.backup.errors import BackupError
from holdfast.backup.manifest import Manifest
from holdfast.backup.restoring import next_incarnations
from holdfast.backup.store import Store
from holdfast.cli import backups, options, output, records, times
from holdfast.cli.commands.shared import (
    Address,
    DryRun,
    Json,
    epilog,
    group,
    parsed,
    print_problems,
    time_limit_s,
    timeout_option,
)
from holdfast.cli.problems import CommandFailed, ExitCode, Problem, usage
from holdfast.client.aio import DEFAULT_ADDRESS

backup_app = group("Back up a cluster or a node while it works, look after the backups, restore one.")

_TIMEOUT_S = 60.0
_KEEP_MAX = 100_000
_REPLICATION_MAX = 9
_INCARNATION_MAX = (1 << 16) - 1

_Target = Annotated[
    str, typer.Argument(metavar="TARGET", help="A directory, or s3://bucket/prefix.", show_default=False)
]
_Id = Annotated[
    str | None, typer.Argument(metavar="BACKUP", help="Its id; the newest if none is given.", show_default=False)
]
_Key = Annotated[
    Path | None,
    typer.Option("--encrypt", metavar="KEYFILE", help="The key that files are encrypted with: 64 hex digits."),
]
_Timeout = Annotated[float, timeout_option("How long one call may take: 30s, 5m.", shown="1m")]


@backup_app.command(
    "create",
    epilog=epilog(
        "holdfast backup create /backups/holdfast",
        "holdfast backup create s3://company-backups/holdfast --encrypt backup.key --address router:7400",
        "holdfast backup create /backups/holdfast --bandwidth 20MB --json",
    ),
)
def backup_create(
    target: _Target,
    key: _Key = None,
    bandwidth: Annotated[
        str | None, typer.Option("--bandwidth", metavar="BYTES", help="How much to copy in a second: 500KB, 20MB.")
    ] = None,
    address: Address = DEFAULT_ADDRESS,
    timeout_s: _Timeout = _TIMEOUT_S,
    as_json: Json = False,
) -> None:
    """Copy all shards, while they work, to a directory or to S3-compatible storage.

    Every task that was accepted before this command began is in the backup; what comes meanwhile may be.
    Give the address of a router, or of any node. A single node, `holdfast dev` too, is backed up in the same way.
    A file that the target has already is not copied again: of shards at rest nothing is, of busy ones up to all.
    The backup is there once its manifest is, which is written last: one that was interrupted is none.
    """
    bytes_per_s = parsed("--bandwidth", options.size_bytes, bandwidth)
    store = backups.open_store(target, key, make=True)
    created = backups.create(address, timeout_s, store, output.byte_progress, bytes_per_s)
    manifest = created.manifest
    if as_json:
        records.print_json({
            **_summary(manifest), "target": store.target.name, "copied_bytes": created.fetched_bytes,
            "copied_files": created.fetched_files, "seconds": round(created.seconds, 3),
        })  # fmt: skip
        return
    output.print_line(f"Backup {manifest.id} is in {store.target.name}.")
    output.print_rows([
        ("shards", f"{len(manifest.shards)}, each at an entry of its own: see --json"),
        ("holds", f"{output.shown_size(manifest.size_bytes)}, of which {output.shown_size(created.fetched_bytes)} "
         "were copied now"),
        ("all before", times.shown_instant(manifest.began_ms)),
        ("took", f"{created.seconds:.1f} s"),
    ])  # fmt: skip


@backup_app.command(
    "ls", epilog=epilog("holdfast backup ls /backups/holdfast", "holdfast backup ls s3://bucket/holdfast --json")
)
def backup_ls(target: _Target, key: _Key = None, as_json: Json = False) -> int:
    """List the backups of a target, the oldest first.

    all before: everything that was accepted before this moment is in it. Without the key of an encrypted backup its
    manifest can be read, but not whether somebody has changed it.
    """
    store = backups.open_store(target, key)
    found = backups.listed(store)
    good = [backup for backup in found if isinstance(backup, Manifest)]
    bad = [backup for backup in found if isinstance(backup, BackupError)]
    if as_json:
        records.print_json({"target": store.target.name, "backups": [_summary(manifest) for manifest in good]})
    elif not good:
        output.print_line(f"There is no backup in {store.target.name}.")
    else:
        rows = [
            (
                manifest.id,
                times.shown_instant(manifest.began_ms),
                str(len(manifest.shards)),
                output.shown_size(manifest.size_bytes),
                manifest.key_id or "-",
                manifest.cluster_name or "-",
            )
            for manifest in good
        ]
        output.show([output.table(("backup", "all before", "shards", "size", "key", "cluster"), rows, numbers=False)])
    return print_problems([_problem(error) for error in bad], as_json=as_json)


@backup_app.command(
    "verify",
    epilog=epilog(
        "holdfast backup verify /backups/holdfast",
        "holdfast backup verify s3://bucket/holdfast 20261118T013000Z-1f2e3d4c --encrypt backup.key",
    ),
)
def backup_verify(
    target: _Target,
    id: _Id = None,
    key: _Key = None,
    files_only: Annotated[
        bool, typer.Option("--files-only", help="Only compare files with their checksums; open no state.")
    ] = False,
    as_json: Json = False,
) -> int:
    """Read all of a backup, and say by name what is wrong with it.

    Every file is compared with its checksum (and decrypted). Then the state of each shard is opened in a temporary
    directory: its rows are compared with each other, and the tasks on their way between shards are accounted for.
    """
    store = backups.open_store(target, key)
    manifest = backups.find(store, id)
    with output.byte_progress("Reading", manifest.size_bytes) as advance:
        verdict = backups.verify(store, manifest, advance, files_only=files_only)
    if as_json:
        records.print_json({
            **_summary(manifest), "files": verdict.files, "read_bytes": verdict.size_bytes, "states": verdict.states,
            "is_good": not verdict.problems,
        })  # fmt: skip
    elif not verdict.problems:
        states = "" if files_only else f" and {verdict.states} states"
        output.print_line(f"Backup {manifest.id} is good: {verdict.files:,} files{states} are as they were written.")
    problems = [Problem(ExitCode.REFUSED, "BACKUP_DAMAGED", problem) for problem in verdict.problems]
    return print_problems(problems, as_json=as_json)


@backup_app.command(
    "restore",
    epilog=epilog(
        "holdfast backup restore /backups/holdfast --data-dir /var/lib/holdfast",
        "holdfast backup restore s3://bucket/holdfast --encrypt backup.key --address broker-0:7401 --replication 3",
    ),
)
def backup_restore(
    target: _Target,
    id: _Id = None,
    key: _Key = None,
    data_dir: Annotated[
        Path | None,
        typer.Option("--data-dir", metavar="DIR", help="Of a single node that does not run; empty or missing."),
    ] = None,
    node_name: Annotated[
        str, typer.Option("--node-name", metavar="NAME", help="With --data-dir: what the node is called.")
    ] = "n1",
    address: Annotated[
        str | None,
        typer.Option("--address", "-a", metavar="HOST:PORT", help="A broker or router of the cluster that is to be."),
    ] = None,
    replication: Annotated[
        int | None,
        typer.Option(
            "--replication", min=1, max=_REPLICATION_MAX, help="How many replicas each shard has.",
            show_default="as in the backup",
        ),
    ] = None,
    incarnation: Annotated[
        int | None,
        typer.Option(
            "--incarnation", min=2, max=_INCARNATION_MAX, show_default="one more than in the backup",
            help="The incarnation that the shards begin: larger than in any earlier restore of the same backup.",
        ),
    ] = None,
    wait_s: Annotated[
        float | None,
        typer.Option("--wait", parser=time_limit_s, metavar="TIME", help="How long to wait for enough nodes: 30s, 2m."),
    ] = None,
    timeout_s: _Timeout = _TIMEOUT_S,
    as_json: Json = False,
) -> None:  # fmt: skip
    """Make a node or a cluster of a backup: one that has nothing yet.

    --data-dir makes the data directory of a single node; start it afterwards.
    --address makes a cluster of brokers that run, with etcd, and were never initialised: other names and another number
    of nodes are fine, the number of shards is that of the backup. This command must reach the brokers themselves.
    It reads everything before it writes anything, and refuses what is damaged. An interrupted restore of a cluster goes
    on when the same command is given again.
    All claims are given back, and no token of the former incarnation counts any more: workers claim anew.
    """
    if (data_dir is None) == (address is None):
        raise usage("Expected --data-dir or --address, and not both: where the backup is to be restored.")
    store = backups.open_store(target, key)
    manifest = backups.find(store, id)
    with backups.reported():
        incarnations = next_incarnations(manifest, incarnation)
    _refuse_damaged(store, manifest)
    if data_dir is not None:
        restored = backups.restore_data_dir(store, manifest, data_dir, node_name, incarnations, output.byte_progress)
    else:
        wanted = replication or manifest.replication
        restored = backups.restore_cluster(
            address or "", timeout_s, store, manifest, wanted, incarnations, output.byte_progress, wait_s or 0.0
        )
    if as_json:
        records.print_json({**_summary(manifest), "incarnations": list(restored.incarnations)})
    else:
        _print_restored(manifest, data_dir, node_name)


def _refuse_damaged(store: Store, manifest: Manifest) -> None:
    """Everything is read before anything is written."""
    with output.byte_progress("Checking", manifest.size_bytes) as advance:
        verdict = backups.verify(store, manifest, advance, files_only=True)
    if verdict.problems:
        hint = "Restore another one: see `holdfast backup ls` and `holdfast backup verify`."
        message = f"The backup {manifest.id} is damaged: {verdict.problems[0]}"
        raise CommandFailed(Problem(ExitCode.REFUSED, "BACKUP_DAMAGED", message, hint))


def _print_restored(manifest: Manifest, data_dir: Path | None, node_name: str) -> None:
    if data_dir is not None:
        output.print_line(f"Backup {manifest.id} is restored to {data_dir}.")
        output.print_note(f"Start the node:  holdfast broker --node-name {node_name} --data-dir {data_dir}")
    else:
        output.print_line(f"Backup {manifest.id} is restored: {len(manifest.shards):,} shards are founded.")
        output.print_note("They elect their leaders and copy themselves to their other nodes: holdfast cluster status")


@backup_app.command(
    "prune",
    epilog=epilog(
        "holdfast backup prune /backups/holdfast --keep 14", "holdfast backup prune TARGET --keep 3 --dry-run"
    ),
)
def backup_prune(
    target: _Target,
    keep: Annotated[int, typer.Option("--keep", min=1, max=_KEEP_MAX, help="How many of the newest stay.")],
    key: _Key = None,
    dry_run: DryRun = False,
    as_json: Json = False,
) -> None:
    """Delete all backups but the newest, and the files that none of those needs.

    Nothing is deleted while a backup is being made in the same target, nor if a manifest that stays cannot be read.
    A target of encrypted backups needs their key.
    """
    store = backups.open_store(target, key)
    pruned = backups.prune(store, keep, dry_run=dry_run)
    if as_json:
        records.print_json({**asdict(pruned), "dry_run": dry_run})
    else:
        would = "would be " if dry_run else ""
        output.print_line(
            f"{len(pruned.deleted):,} backups and {pruned.files:,} files {would}deleted; {len(pruned.kept):,} stay."
        )


def _problem(error: BackupError) -> Problem:
    return Problem(ExitCode.REFUSED, error.reason, str(error), error.hint)


def _summary(manifest: Manifest) -> dict[str, object]:
    return {
        "id": manifest.id,
        "began_ms": manifest.began_ms,
        "finished_ms": manifest.finished_ms,
        "cluster_id": manifest.cluster_id,
        "cluster_name": manifest.cluster_name,
        "version": manifest.version,
        "key_id": manifest.key_id,
        "bytes": manifest.size_bytes,
        "queues": manifest.queues_count,
        "shards": [
            {
                "shard": copy.shard,
                "index": copy.index,
                "term": copy.term,
                "shard_time_ms": copy.shard_time_ms,
                "incarnation": copy.incarnation,
                "node": copy.node,
                "files": len(copy.files),
            }
            for copy in manifest.shards
        ],
    }


def add_to(app: typer.Typer) -> None:
    examples = ("holdfast backup create /backups/holdfast", "holdfast backup ls /backups/holdfast")
    app.add_typer(backup_app, name="backup", epilog=epilog(*examples))
