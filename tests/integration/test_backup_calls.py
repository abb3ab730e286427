"""The calls that backups are made of, as a hostile or clumsy caller would make them."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.client import Client, NewTask
from holdfast.proto.v1 import backups_pb2 as pb
from tests.integration.cluster_tools import Refusal, raw_call
from tests.integration.server import ServerProcess, wait_until

ID = 77
TOO_LONG = 1024 * 1024 + 1


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with ServerProcess(tmp_path_factory.mktemp("server")) as server:
        with Client(server.start().address) as client:
            client.enqueue(NewTask("work", "t"))
        yield server


@pytest.fixture
def copied(server: ServerProcess) -> Iterator[list[str]]:
    """Names of the files of a copy, which is deleted afterwards."""
    raw_call(server.address, "Backups/BeginBackup", pb.BeginBackupRequest(id=ID))
    raw_call(server.address, "Backups/CopyShard", pb.CopyShardRequest(id=ID))
    found = raw_call(server.address, "Backups/ListBackupFiles", pb.ListBackupFilesRequest(id=ID, wait_ms=30_000))
    assert isinstance(found, bytes)
    yield [file.name for file in pb.ListBackupFilesResponse.FromString(found).files]
    raw_call(server.address, "Backups/EndBackup", pb.EndBackupRequest(id=ID))


def reason(answer: bytes | Refusal) -> str:
    return answer.reason if isinstance(answer, Refusal) else ""


def test_what_cannot_be_is_refused_by_name(server: ServerProcess, copied: list[str]) -> None:
    name = copied[0]
    for method, request, expected in (
        ("BeginBackup", pb.BeginBackupRequest(shard=-1, id=1), "OUT_OF_RANGE"),
        ("BeginBackup", pb.BeginBackupRequest(shard=5, id=1), "SHARD_NOT_FOUND"),
        ("BeginBackup", pb.BeginBackupRequest(id=2**63), "OUT_OF_RANGE"),
        ("CopyShard", pb.CopyShardRequest(id=1), "BACKUP_NOT_FOUND"),
        ("CopyShard", pb.CopyShardRequest(shard=1, id=ID), "BACKUP_NOT_FOUND"),
        ("ResumeDeliveries", pb.ResumeDeliveriesRequest(id=1), "BACKUP_NOT_FOUND"),
        ("ListBackupFiles", pb.ListBackupFilesRequest(id=1), "BACKUP_NOT_FOUND"),
        ("ListBackupFiles", pb.ListBackupFilesRequest(id=ID, wait_ms=31_000), "OUT_OF_RANGE"),
        ("ReadBackupFile", pb.ReadBackupFileRequest(id=ID, name="../../NODE_ID", length=9), "BACKUP_NOT_FOUND"),
        ("ReadBackupFile", pb.ReadBackupFileRequest(id=ID, name="999999.sst", length=9), "BACKUP_NOT_FOUND"),
        ("ReadBackupFile", pb.ReadBackupFileRequest(id=ID, name=name, offset=-1, length=9), "OUT_OF_RANGE"),
        ("ReadBackupFile", pb.ReadBackupFileRequest(id=ID, name=name, length=TOO_LONG), "OUT_OF_RANGE"),
        ("RestoreCluster", pb.RestoreClusterRequest(backup_id="x"), "NO_CLUSTER"),
        ("RestoreQueues", pb.RestoreQueuesRequest(), "NO_CLUSTER"),
        ("RestoreShard", pb.RestoreShardRequest(), "NO_CLUSTER"),
    ):
        assert reason(raw_call(server.address, f"Backups/{method}", request)) == expected, request


def test_calls_may_be_repeated(server: ServerProcess, copied: list[str]) -> None:
    request = pb.CopyShardRequest(id=ID)
    first = raw_call(server.address, "Backups/CopyShard", request)
    with Client(server.address) as client:
        client.enqueue(NewTask("work", "t"))
    assert raw_call(server.address, "Backups/CopyShard", request) == first, "the same copy"
    assert raw_call(server.address, "Backups/BeginBackup", pb.BeginBackupRequest(id=ID)) == b""
    held = raw_call(server.address, "Backups/ResumeDeliveries", pb.ResumeDeliveriesRequest(id=ID))
    assert held == pb.ResumeDeliveriesResponse(were_held=True).SerializeToString()
    again = raw_call(server.address, "Backups/ResumeDeliveries", pb.ResumeDeliveriesRequest(id=ID))
    assert again == b"", "not held any more"
    assert reason(raw_call(server.address, "Backups/BeginBackup", pb.BeginBackupRequest(id=ID))) == "BACKUP_NOT_FOUND"
    for _ in range(2):
        assert raw_call(server.address, "Backups/EndBackup", pb.EndBackupRequest(id=ID)) == b""
    assert reason(raw_call(server.address, "Backups/CopyShard", request)) == "BACKUP_NOT_FOUND"


def test_there_are_only_so_many_at_a_time(server: ServerProcess) -> None:
    begun = [
        reason(raw_call(server.address, "Backups/BeginBackup", pb.BeginBackupRequest(id=number)))
        for number in range(1, 6)
    ]
    assert begun == ["", "", "", "", "OVERLOADED"]
    for number in range(1, 6):
        raw_call(server.address, "Backups/EndBackup", pb.EndBackupRequest(id=number))


def test_copies_are_deleted_when_they_end_and_when_the_node_does(tmp_path: Path) -> None:
    with ServerProcess(tmp_path) as server:
        server.start()
        for number in (1, 2):
            raw_call(server.address, "Backups/BeginBackup", pb.BeginBackupRequest(id=number))
            raw_call(server.address, "Backups/CopyShard", pb.CopyShardRequest(id=number))
        assert len(copies_of(server)) == 2
        raw_call(server.address, "Backups/EndBackup", pb.EndBackupRequest(id=1))
        wait_until(lambda: len(copies_of(server)) == 1, "the copy to be deleted")
        server.kill()
        server.start()
        assert copies_of(server) == []


def copies_of(server: ServerProcess) -> list[Path]:
    """Looks into none of them, since one may be deleted at this moment."""
    return list(server.data_dir.glob("state/*/outgoing-*"))
