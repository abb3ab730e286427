"""Backups in S3-compatible storage, encrypted ones, those that need little because most is there, and slow ones."""

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast.cli.main import main
from holdfast.client import Client, NewTask
from tests.acceptance.s3_server import s3_server
from tests.integration.server import ServerProcess, wait_until

TASKS = 3000


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """With a few thousand tasks, most of them in files that do not change any more."""
    with ServerProcess(tmp_path_factory.mktemp("backups")) as server:
        with Client(server.start().address) as client:
            for index in range(0, TASKS, 500):
                client.enqueue_many([NewTask("work", "t", b"%d " % n * 150) for n in range(index, index + 500)])
        yield server


@pytest.fixture(scope="module")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with s3_server(tmp_path_factory.mktemp("s3"), "company-backups") as endpoint:
        yield endpoint


@pytest.fixture
def credentials(monkeypatch: pytest.MonkeyPatch, s3: str) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", s3)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    monkeypatch.setenv("AWS_REGION", "us-east-1")


@pytest.fixture
def key(tmp_path: Path) -> Path:
    path = tmp_path / "backup.key"
    path.write_text("ab" * 32 + "\n")
    return path


class Commands:
    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys

    def __call__(self, *arguments: object, code: int = 0) -> Any:
        self._capsys.readouterr()
        found = main([*map(str, arguments), "--json"])
        out, err = self._capsys.readouterr()
        assert found == code, out + err
        return json.loads(out if code == 0 else err)


@pytest.fixture
def backup(capsys: pytest.CaptureFixture[str]) -> Commands:
    return Commands(capsys)


def check_restored(directory: Path, expected: int) -> None:
    with ServerProcess(directory.parent, data_dir=directory) as server, Client(server.start().address) as client:
        assert client.queue_stats("work").ready == expected


@pytest.mark.usefixtures("credentials")
def test_an_encrypted_backup_in_s3_is_made_listed_checked_pruned_and_restored(
    backup: Commands, server: ServerProcess, key: Path, tmp_path: Path
) -> None:
    target = "s3://company-backups/queues/holdfast"
    with_key = ("--encrypt", key)
    first = backup("backup", "create", target, *with_key, "--address", server.address)
    with Client(server.address) as client:
        client.enqueue(NewTask("another", "t"))
    second = backup("backup", "create", target, *with_key, "--address", server.address)
    assert second["copied_bytes"] < first["copied_bytes"] / 10
    assert [item["id"] for item in backup("backup", "ls", target)["backups"]] == [first["id"], second["id"]]
    assert backup("backup", "verify", target, first["id"], *with_key)["is_good"]
    assert backup("backup", "verify", target, code=1)["error"]["reason"] == "BACKUP_KEY"
    pruned = backup("backup", "prune", target, "--keep", "1", *with_key)
    assert pruned["deleted"] == [first["id"]]
    assert pruned["files"] > 0
    assert backup("backup", "verify", target, *with_key)["id"] == second["id"]
    backup("backup", "restore", target, *with_key, "--data-dir", tmp_path / "restored")
    check_restored(tmp_path / "restored", TASKS)


@pytest.mark.usefixtures("credentials")
def test_a_bucket_that_is_not_there_is_said(backup: Commands, server: ServerProcess) -> None:
    error = backup("backup", "create", "s3://no-such-bucket/x", "--address", server.address, code=1)["error"]
    assert error["reason"] == "TARGET_FAILED"
    assert "no-such-bucket" in error["message"]


def test_only_what_changed_is_copied_again(backup: Commands, server: ServerProcess, tmp_path: Path) -> None:
    first = backup("backup", "create", tmp_path / "b", "--address", server.address)
    with Client(server.address) as client:
        client.enqueue(NewTask("other", "t"))
    second = backup("backup", "create", tmp_path / "b", "--address", server.address)
    assert second["copied_bytes"] < first["copied_bytes"] / 10
    assert second["bytes"] >= first["bytes"]
    assert backup("backup", "verify", tmp_path / "b")["is_good"]


def test_of_shards_at_rest_nothing_is_copied_again(backup: Commands, server: ServerProcess, tmp_path: Path) -> None:
    """Nothing is written to a shard that is left alone. What was written before may be merged into other files once."""

    def is_nothing_new() -> bool:
        made = backup("backup", "create", tmp_path / "b", "--address", server.address)
        return bool(made["copied_bytes"] == 0 and made["bytes"] > 0)

    wait_until(is_nothing_new, "a backup that copies nothing")


def test_a_backup_takes_no_more_bandwidth_than_it_may(backup: Commands, server: ServerProcess, tmp_path: Path) -> None:
    began_s = time.monotonic()
    made = backup("backup", "create", tmp_path / "b", "--bandwidth", "500KB", "--address", server.address)
    # Of the last piece nobody waits for the end, and the first second's worth may pass at once.
    assert time.monotonic() - began_s > (made["copied_bytes"] - 500_000 - 512 * 1024) / 500_000
    assert made["copied_bytes"] > 1_500_000, "or this says nothing"
    assert backup("backup", "create", tmp_path / "b", "--bandwidth", "much", code=2)["error"]["reason"] == "USAGE"
