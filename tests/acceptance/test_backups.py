"""`holdfast backup` as operators use it: of a single node and of a cluster, under load, restored elsewhere."""

import asyncio
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from holdfast.cli.main import main
from holdfast.client import ClaimedTask, Client, NewTask, Schedule, StaleToken
from holdfast.client._backups import BackupClient, Founder, Point
from tests.acceptance.apps import chores
from tests.acceptance.backup_load import LEASE_MS, BackupLoad
from tests.acceptance.restored_cluster import RestoredCluster
from tests.acceptance.worker_process import WorkerProcess
from tests.integration.cluster import Cluster
from tests.integration.map_cluster import MapCluster
from tests.integration.map_load import claim_all, queues_of_all_shards
from tests.integration.server import DEADLINE_S, ServerProcess
from tests.long import IS_LONG

SHARDS = 4  # more than nodes: some lead two

Run = Callable[..., tuple[int, str]]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    def command(*arguments: object) -> tuple[int, str]:
        """The exit code and all that it said."""
        capsys.readouterr()
        code = main([str(argument) for argument in arguments])
        out, err = capsys.readouterr()
        assert "Traceback" not in err
        return code, out + err

    return command


def done(run: Run, *arguments: object) -> Any:
    code, said = run(*arguments, "--json")
    assert code == 0, said
    return json.loads(said)


def test_a_single_node_is_backed_up_under_load_and_restored(run: Run, tmp_path: Path) -> None:
    target, restored_dir = tmp_path / "backups", tmp_path / "restored"
    load = BackupLoad(["work"], ["after"])
    with ServerProcess(tmp_path) as server, Client(server.start().address) as client:
        client.put_schedule(Schedule("often", "@every 1s", NewTask("ticks", "tick")))
        held = prepare(client)
        with load.running(server.address):
            began_s = time.monotonic()
            created = done(run, "backup", "create", target, "--address", server.address)
            ended_s = time.monotonic()
    assert done(run, "backup", "verify", target)["is_good"]
    assert [backup["id"] for backup in done(run, "backup", "ls", target)["backups"]] == [created["id"]]

    done(run, "backup", "restore", target, "--data-dir", restored_dir)
    assert run("backup", "restore", target, "--data-dir", restored_dir)[0] == 1, "it is not empty any more"
    with ServerProcess(tmp_path, data_dir=restored_dir) as server, Client(server.start().address) as client:
        check_restored(client, held)
        load.check(client, began_s, ended_s)
        assert client.reserve(["ticks"], wait_ms=10_000), "schedules go on"


def prepare(client: Client) -> ClaimedTask:
    """A queue that is paused, and a task that is claimed and has a request id; the claim."""
    client.pause_queue("held")
    client.enqueue(NewTask("held", "h"))
    client.enqueue(NewTask("mine", "m", request_id="once"))
    [held] = client.reserve(["mine"], worker="w", lease_ms=LEASE_MS)
    return held


def check_restored(client: Client, held: ClaimedTask) -> None:
    with pytest.raises(StaleToken):
        client.ack(held)
    [again] = client.reserve(["mine"], worker="w", lease_ms=LEASE_MS)
    assert again.task_id == held.task_id
    assert again.token > held.token
    assert again.claims == 1, "a claim that was given back spends nothing"
    repeated = client.enqueue(NewTask("mine", "m", request_id="once"))
    assert (repeated.duplicate, repeated.task_id) == (True, held.task_id)
    assert client.reserve(["held"]) == [], "it was paused"


def test_what_is_damaged_is_named_and_refused(run: Run, tmp_path: Path) -> None:
    target, elsewhere = tmp_path / "backups", tmp_path / "elsewhere"
    with ServerProcess(tmp_path) as server, Client(server.start().address) as client:
        client.enqueue(NewTask("work", "t"))
        done(run, "backup", "create", target, "--address", server.address)
    [manifest] = (target / "backups").iterdir()
    written = manifest.read_bytes()
    digest = max(json.loads(written)["shards"][0]["files"], key=lambda item: item["size_bytes"])["sha256"]
    file = target / "files" / digest[:2] / digest
    content = file.read_bytes()

    file.write_bytes(bytes([content[0] ^ 1]) + content[1:])
    code, said = run("backup", "verify", target)
    assert code == 1
    assert digest[:12] in said
    code, said = run("backup", "restore", target, "--data-dir", elsewhere)
    assert code == 1
    assert "damaged" in said
    assert not elsewhere.exists()
    file.unlink()
    assert "missing" in run("backup", "verify", target)[1]
    file.write_bytes(content)
    assert run("backup", "verify", target)[0] == 0

    manifest.write_bytes(written.replace(b'"index": ', b'"index": 1'))
    assert run("backup", "verify", target)[0] == 1, "the manifest says another index than was written"
    manifest.write_bytes(written.replace(b'"format": 1', b'"format": 2'))
    code, said = run("backup", "restore", target, "--data-dir", elsewhere)
    assert code == 1
    assert "format 2" in said
    assert run("backup", "verify", tmp_path / "nowhere")[0] == 5


async def copied_apart(client: BackupClient, shard: int, id: int, *, copy: Any = BackupClient.copy_shard) -> Point:
    """Not at the same moment, so that tasks are on their way between shards that are copied and shards that are not."""
    await asyncio.sleep(0.4 * shard)
    point: Point = await copy(client, shard, id)
    return point


def test_a_cluster_is_backed_up_under_load_and_restored_on_other_nodes(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "backups"
    load = BackupLoad(queues_of_all_shards("q", SHARDS), queues_of_all_shards("after", SHARDS))
    monkeypatch.setattr(BackupClient, "copy_shard", copied_apart)
    with MapCluster(tmp_path / "first", shards=SHARDS, size=3).start() as cluster:
        with Client(cluster.address, timeout_s=DEADLINE_S) as client:
            client.set_queue("wide", spread=SHARDS)
            held = prepare(client)
            client.enqueue_many([NewTask("wide", "w", bytes([n])) for n in range(60)])
        with load.running(cluster.address):
            began_s = time.monotonic()
            created = done(run, "backup", "create", target, "--address", cluster.address)
            ended_s = time.monotonic()
    assert len(created["shards"]) == SHARDS
    assert done(run, "backup", "verify", target)["states"] == SHARDS

    def restore(address: str) -> None:
        arguments = ("backup", "restore", target, "--address", address)
        code, said = run(*arguments)
        assert code == 1, said
        assert "NOT_ENOUGH_NODES" in run(*arguments, "--json")[1], "two nodes cannot have three replicas"
        done(run, *arguments, "--replication", "1")
        done(run, *arguments, "--replication", "1")  # again: nothing

    with RestoredCluster(tmp_path / "second", restore, shards=SHARDS, size=2, replication=1).start() as cluster:
        with Client(cluster.address, timeout_s=DEADLINE_S) as client:
            check_restored(client, held)
            assert client.queue_settings("held").policy.paused
            assert len(claim_all(client, ["wide"], 60)) == 60
            load.check(client, began_s, ended_s)
        other = "20260101T000000Z-00000000"
        assert run("backup", "restore", target, other, "--address", cluster.broker_addresses[0])[0] == 5


def test_a_cluster_that_has_something_is_not_restored_over(run: Run, tmp_path: Path) -> None:
    target = tmp_path / "backups"
    with MapCluster(tmp_path / "first", shards=1, size=1, replication=1, routers=1).start() as cluster:
        done(run, "backup", "create", target, "--address", cluster.address)
        code, said = run("backup", "restore", target, "--address", cluster.address, "--json")
        assert code == 1
        assert "CLUSTER_EXISTS" in said


@pytest.mark.skipif(not IS_LONG, reason="takes longer")
def test_leaders_that_change_and_brokers_that_die_meanwhile_cost_only_time(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "backups"
    queues = queues_of_all_shards("q", SHARDS)
    copies: list[int] = []

    async def copied_elsewhere(
        client: BackupClient, shard: int, id: int, *, copy: Any = BackupClient.copy_shard
    ) -> Point:
        """The first time another node has become the leader since the backup began."""
        copies.append(id)
        if len(set(copies)) == 1 and shard == 0:
            leaders = {leader.shard: leader.node for leader in (await client.topology()).leaders}
            await client.transfer(0, "n2" if leaders[0] == "n1" else "n1")
        point: Point = await copy(client, shard, id)
        return point

    with MapCluster(tmp_path / "first", shards=SHARDS, size=3).start() as cluster:
        with Client(cluster.address, timeout_s=DEADLINE_S) as client:
            for queue in queues:
                client.enqueue_many([NewTask(queue, "t", bytes([n])) for n in range(50)])
        monkeypatch.setattr(BackupClient, "copy_shard", copied_elsewhere)
        done(run, "backup", "create", target, "--address", cluster.address)
        assert len(set(copies)) == 2, "all shards were copied anew"
        monkeypatch.undo()
        done(run, "backup", "create", target, "--address", cluster.broker_addresses[0])  # any node knows the others
        assert done(run, "backup", "verify", target)["is_good"]
        assert not list((tmp_path / "first").rglob("outgoing-*")), "copies are deleted"

    brought: list[int] = []
    restored: list[RestoredCluster] = []
    bring = BackupClient.bring_state

    async def interrupted(client: BackupClient, founder: Founder, *arguments: Any) -> tuple[int, int] | None:
        """The command dies with the second shard, and the broker that has the third is killed and comes back."""
        brought.append(founder.shard)
        if len(brought) == 2:
            raise KeyboardInterrupt
        if len(brought) == 4:
            node = restored[0].nodes[founder.node]
            node.kill()
            await asyncio.to_thread(node.start)
        return await bring(client, founder, *arguments)

    def restore(address: str) -> None:
        arguments = ("backup", "restore", target, "--address", address, "--replication", "3")
        monkeypatch.setattr(BackupClient, "bring_state", interrupted)
        assert run(*arguments)[0] == 130
        code, said = run(*arguments, "--incarnation", "9")
        assert code == 1, said
        done(run, *arguments)
        assert len(brought) > SHARDS

    second = RestoredCluster(tmp_path / "second", restore, shards=SHARDS, size=3)
    restored.append(second)
    with second.start() as cluster:
        with Client(cluster.address, timeout_s=DEADLINE_S) as client:
            assert len(claim_all(client, queues, 50 * SHARDS)) == 50 * SHARDS
        cluster.check_hashes()


@pytest.mark.skipif(not IS_LONG, reason="takes longer")
def test_a_static_list_is_restored_on_its_first_node(run: Run, tmp_path: Path) -> None:
    target = tmp_path / "backups"
    with ServerProcess(tmp_path) as server, Client(server.start().address) as client:
        client.enqueue_many([NewTask("work", "t", bytes([n])) for n in range(50)])
        done(run, "backup", "create", target, "--address", server.address)
    (tmp_path / "static").mkdir()
    with Cluster(tmp_path / "static") as cluster:
        done(run, "backup", "restore", target, "--data-dir", cluster.nodes["n1"].data_dir, "--node-name", "n1")
        cluster.start()
        cluster.wait_whole()
        with Client(cluster.address, timeout_s=DEADLINE_S) as client:
            assert len(claim_all(client, ["work"], 50)) == 50
        again = done(run, "backup", "create", target, "--address", cluster.address)
        assert again["shards"][0]["incarnation"] == 2


@pytest.mark.skipif(not IS_LONG, reason="takes longer")
def test_workers_of_the_former_life_go_on_with_what_was_restored(run: Run, tmp_path: Path) -> None:
    """A real worker in the middle of a task, when its cluster is lost and another one has its address."""
    target, gate = tmp_path / "backups", tmp_path / "gate"
    with MapCluster(tmp_path / "first", shards=2, size=3).start() as cluster:
        address, port = cluster.address, cluster.routers[0].port
        worker = WorkerProcess(tmp_path / "worker", address, ["jobs"], command=True).start()
        try:
            with chores.make_app(address) as app:
                slow = app.tasks["wait_at"].options(queue="jobs").enqueue(str(gate))
                worker.wait_for("begin", 1, slow.id)
                later = [app.tasks["echo"].options(queue="jobs", delay=60).enqueue(n) for n in range(5)]
            done(run, "backup", "create", target, "--address", address)
            cluster.close()
            second = RestoredCluster(tmp_path / "second", lambda where: _restore(run, target, where), shards=2, size=3)
            second.routers[0].port = port
            with second.start():
                gate.touch()  # the handler of the former incarnation ends: its report counts for nothing
                worker.wait_for("begin", 2, slow.id)
                with chores.make_app(address) as app:
                    assert app.handle(slow.id).result(timeout=DEADLINE_S) == worker.pid
                    assert [app.handle(item.id).info().state.name for item in later] == ["DELAYED"] * 5
                assert worker.stop().succeeded == 1, "once, as it was accepted once"
        finally:
            worker.close()


def _restore(run: Run, target: Path, address: str) -> None:
    done(run, "backup", "restore", target, "--address", address)
