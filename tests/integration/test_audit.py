"""The audit log of a server: what operators did is there, what tasks hold is not."""

import json
from pathlib import Path

import pytest

from holdfast.cli.audit_files import entries, verify
from holdfast.cli.main import main
from holdfast.client import AsyncClient, NewTask, NotFound, PermissionDenied, QueuePolicy, Unauthenticated
from holdfast.proto.v1 import backups_pb2, cluster_pb2, queues_pb2, schedules_pb2, shards_pb2, tasks_pb2
from holdfast.serving.audited import OPERATOR_CALLS
from tests.integration.access import Access
from tests.integration.conftest import MakeServer

SECRET = "ada@example.org"

# Calls of producers, workers and those who look, and steps of operators' calls that are repeated until they are done.
OTHERS = {
    "Backups/ResumeDeliveries", "Backups/ListBackupFiles", "Backups/ReadBackupFile", "Cluster/GetTopology",
    "Cluster/DescribeCluster", "Cluster/ListQueueSettings", "Cluster/MakePlan", "Cluster/AdvancePlan",
    "Cluster/GetAccess", "DeadLetters/ListDeadLetters", "DeadLetters/GetDeadLetter", "DeadLetters/ListDiscards",
    "Queues/ListWorkers", "Queues/Heartbeat", "Queues/ListTasks", "Schedules/GetSchedule", "Schedules/ListSchedules",
    "Schedules/PreviewSchedule", "Shards/DescribeNode", "Shards/FindLeader", "Shards/ProbeShard", "Shards/ReadProbe",
    "Tasks/Enqueue", "Tasks/Reserve", "Tasks/AwaitTasks", "Tasks/Ack", "Tasks/Fail", "Tasks/Extend", "Tasks/Release",
    "Tasks/GetTask", "Tasks/WaitTasks", "Tasks/QueueStats", "Tasks/ListQueues",
}  # fmt: skip


def test_every_call_is_one_that_is_noted_or_one_that_need_not_be() -> None:
    files = (backups_pb2, cluster_pb2, queues_pb2, schedules_pb2, shards_pb2, tasks_pb2)
    known = {
        f"{service.name}/{method.name}"
        for file in files
        for service in file.DESCRIPTOR.services_by_name.values()
        for method in service.methods
    }
    assert known - OPERATOR_CALLS - OTHERS == set(), "say in serving/audited.py whether these are noted"
    assert set() == OPERATOR_CALLS & OTHERS


@pytest.mark.parametrize("transport", ["auto", "grpc"])
async def test_what_operators_do_is_noted(
    make_server: MakeServer, transport: str, capsys: pytest.CaptureFixture[str]
) -> None:
    server = make_server().start()
    async with AsyncClient(server.address, transport=transport) as client:
        tasks = [await client.enqueue(NewTask("mail", "send", SECRET.encode())) for _ in range(3)]
        await client.get_task(tasks[0].task_id)
        policy = QueuePolicy(max_attempts=3, dead_alert_url=f"https://alerts.test/{SECRET}")
        await client.set_queue("mail", policy=policy)
        await client.cancel(tasks[0].task_id)
        await client.purge_queue("mail")
        with pytest.raises(NotFound):
            await client.pause_schedule("mail", "nightly")
    server.stop()
    data_dir = server.data_dir
    capsys.readouterr()
    assert main(["audit", "ls", str(data_dir), "--json"]) == 0
    shown = capsys.readouterr().out
    found = json.loads(shown)["entries"]
    noted = [(entry["what"], entry["on"], entry["result"]) for entry in found]
    assert list(dict.fromkeys(noted)) == [  # a purge is several calls
        ("Cluster/SetQueue", "queue=mail", "OK"),
        ("Tasks/Cancel", f"task_ids={tasks[0].task_id}", "OK"),
        ("Queues/PurgeQueue", "queue=mail", "OK"),
        ("Schedules/PauseSchedule", "queue=mail name=nightly paused=True", "SCHEDULE_NOT_FOUND"),
    ]
    assert {(entry["who"], entry["where"].rpartition(":")[0]) for entry in found} == {("anonymous", "127.0.0.1")}
    assert SECRET not in shown
    assert main(["audit", "ls", str(data_dir)]) == 0
    assert "Queues/PurgeQueue" in capsys.readouterr().out
    assert main(["audit", "verify", str(data_dir), "--json"]) == 0
    verified = json.loads(capsys.readouterr().out)
    assert (verified["entries"], verified["last"], verified["lost"]) == (len(found), len(found), 0)
    assert main(["audit", "verify", str(data_dir / "audit"), "--hash", verified["hash"]]) == 0
    assert main(["audit", "verify", str(data_dir), "--hash", "0" * 64]) == 1
    [file] = (data_dir / "audit").iterdir()
    file.write_text(file.read_text().replace("Queues/PurgeQueue", "Queues/ListTasks "))
    capsys.readouterr()
    assert main(["audit", "verify", str(data_dir)]) == 1
    assert "line 3 is not what was written" in capsys.readouterr().err


async def test_it_can_be_off(make_server: MakeServer, capsys: pytest.CaptureFixture[str]) -> None:
    server = make_server(audit="off").start()
    async with AsyncClient(server.address) as client:
        await client.purge_queue("mail")
    server.stop()
    assert list(server.data_dir.rglob("audit")) == []
    assert main(["audit", "ls", str(server.data_dir)]) == 5
    assert "no audit log" in capsys.readouterr().err


@pytest.mark.parametrize("transport", ["auto", "grpc"])
async def test_who_did_it_and_who_was_refused_is_noted(
    make_server: MakeServer, transport: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    access = Access.make(tmp_path)
    server = make_server(access_file=access.path).start()
    async with (
        AsyncClient(server.address, transport=transport, token=access.tokens["operator"]) as operator,
        AsyncClient(server.address, transport=transport, token=access.tokens["all-of-q"]) as producer,
        AsyncClient(server.address, transport=transport, token=access.tokens["expired"]) as late,
    ):
        for client in (operator, producer):
            await client.topology()  # then its frames are there soon
        await producer.enqueue(NewTask("q", "send", SECRET.encode()))
        await operator.purge_queue("q")
        with pytest.raises(PermissionDenied):
            await producer.purge_queue("other")
        outcomes = await producer.enqueue_many([NewTask("q", "t"), NewTask("other", "t", SECRET.encode())])
        assert [isinstance(outcome, PermissionDenied) for outcome in outcomes] == [False, True]
        with pytest.raises(PermissionDenied):
            await producer.drain_node("n1")
        with pytest.raises(Unauthenticated):
            await late.list_queues()
    server.stop()
    noted = entries(server.data_dir, 99)
    assert list(dict.fromkeys((entry.who, entry.what, entry.on, entry.result) for entry in noted)) == [
        ("token:operator", "Queues/PurgeQueue", "queue=q", "OK"),
        ("token:all-of-q", "Queues/PurgeQueue", "queue=other", "PERMISSION_DENIED"),
        ("token:all-of-q", "Tasks/Enqueue", "queue=other items=1", "PERMISSION_DENIED"),
        ("token:all-of-q", "Cluster/DrainNode", "", "PERMISSION_DENIED"),
        ("unknown", "Tasks/ListQueues", "", "UNAUTHENTICATED"),
    ]
    assert {entry.where.rpartition(":")[0] for entry in noted} == {"127.0.0.1"}
    assert verify(server.data_dir, None).found.entries == len(noted)
    files = "".join(file.read_text() for file in (server.data_dir / "audit").iterdir())
    hidden = (SECRET, *(token.rpartition("_")[2] for token in access.tokens.values()))
    assert not [text for text in hidden if text in files]
