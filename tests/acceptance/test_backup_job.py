"""The CronJob of deploy/k8s: its containers, as they are rendered, back up a cluster through its router; and the Job
that restores one."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.client import Client, NewTask
from tests.acceptance.restored_cluster import RestoredCluster
from tests.acceptance.s3_server import s3_server
from tests.integration.map_cluster import MapCluster
from tests.integration.map_load import queues_of_all_shards
from tests.integration.server import DEADLINE_S, wait_until
from tools.manifests.objects import Container, Manifests, command_of, load
from tools.manifests.rendering import DEPLOY, RENDERED, has_kubectl, render_folder

SHARDS = 4
INTERRUPTED = 130
WITHOUT_TLS = dict.fromkeys(("HOLDFAST_TLS_CA", "HOLDFAST_TLS_CERT", "HOLDFAST_TLS_KEY"), "")  # as the cluster is


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MapCluster]:
    """With a task on each shard."""
    with MapCluster(tmp_path_factory.mktemp("cluster"), size=1, replication=1, shards=SHARDS) as cluster:
        cluster.start()
        with Client(cluster.address) as client:
            client.enqueue_many([NewTask(queue, "t") for queue in queues_of_all_shards("kept", SHARDS)])
        yield cluster


class JobPod:
    """What the kubelet makes of a job: the containers one after the other, each with its mounts and its environment,
    and nothing else."""

    def __init__(self, manifests: Manifests, kind: str, name: str, directory: Path, **settings: str) -> None:
        """`settings`: what differs from the manifests, as in an overlay of one's own."""
        self._manifests = manifests
        job = manifests.find(kind, name)
        assert job is not None
        self.containers = {container.name: container for container in job.containers}
        self._settings = WITHOUT_TLS | settings
        self._directory = directory
        mounts = [mount for container in job.containers for mount in container.body["volumeMounts"]]
        self._places = {mount["mountPath"]: directory / mount["name"] for mount in mounts}
        for place in self._places.values():
            place.mkdir(exist_ok=True)
        (directory / "backup-key" / "key").write_text("ab" * 32)

    def run(self) -> list[dict[str, object]]:
        """What each of them says."""
        return [self.done(container) for container in self.containers]

    def done(self, name: str) -> dict[str, object]:
        process = self.start(self.containers[name])
        out, err = process.communicate(timeout=DEADLINE_S)
        assert process.returncode == 0, out + err
        said: dict[str, object] = json.loads(out)
        return said

    def start(self, container: Container) -> "subprocess.Popen[str]":
        given = self._manifests.environment(container, {}, "secret") | self._settings
        program, *words = command_of(container, given)
        command = [str(Path(sys.executable).with_name(program)), *map(self._here, words)]
        environment = {"PATH": os.environ["PATH"], "TMPDIR": str(self._directory / "tmp"), **given}
        return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def _here(self, word: str) -> str:
        for mounted, place in self._places.items():
            if word.startswith(f"{mounted}/"):
                return f"{place}{word.removeprefix(mounted)}"
        return word


def backup_pod(overlay: str, directory: Path, **settings: str) -> JobPod:
    manifests = load((RENDERED / f"{overlay}.yaml").read_text(encoding="utf-8"))
    return JobPod(manifests, "CronJob", "holdfast-backup", directory, **settings)


def test_each_night_there_is_a_new_backup_on_the_volume_and_the_oldest_goes(
    cluster: MapCluster, tmp_path: Path
) -> None:  # fmt: skip
    pod = backup_pod("production-secrets", tmp_path, HOLDFAST_ADDRESS=cluster.address, BACKUP_KEEP="1")
    nights = [pod.run() for _ in range(2)]
    made = [created["id"] for created, _ in nights]
    created, pruned = nights[-1]
    assert len(created["shards"]) == SHARDS  # type: ignore[arg-type]
    assert (pruned["deleted"], pruned["kept"]) == (made[:1], made[1:])
    target, key = str(tmp_path / "backups" / "backups"), str(tmp_path / "backup-key" / "key")
    verify = [sys.executable, "-m", "holdfast.cli", "backup", "verify", target, "--encrypt", key, "--json"]
    checked = json.loads(subprocess.run(verify, capture_output=True, check=True).stdout)
    assert (checked["id"], checked["is_good"], checked["states"]) == (made[-1], True, SHARDS)


def test_it_goes_to_s3_with_the_credentials_of_its_secret(cluster: MapCluster, tmp_path: Path) -> None:
    with s3_server(tmp_path, "example-backups") as endpoint:
        pod = backup_pod("production", tmp_path, HOLDFAST_ADDRESS=cluster.address, AWS_ENDPOINT_URL=endpoint)
        created, pruned = pod.run()
    assert created["target"] == "s3://example-backups/holdfast"
    assert created["key_id"], "it is encrypted"
    assert (pruned["deleted"], pruned["kept"]) == ([], [created["id"]])


def test_one_that_is_stopped_does_not_keep_the_next_one_away(cluster: MapCluster, tmp_path: Path) -> None:
    """At its deadline, or when its machine is drained."""
    pod = backup_pod("production-secrets", tmp_path, HOLDFAST_ADDRESS=cluster.address, BACKUP_BANDWIDTH="100B")
    target = tmp_path / "backups" / "backups"
    process = pod.start(pod.containers["create"])
    try:
        wait_until(lambda: list(target.glob("files/*/*")), "it to have copied something")
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=DEADLINE_S)
    finally:
        process.kill()
        process.wait()
    assert (process.returncode, out) == (INTERRUPTED, ""), err
    assert "Traceback" not in err
    assert list(target.glob("running/*")) == []
    assert list(target.glob("backups/*")) == []
    assert pod.done("prune")["kept"] == []


RESTORING = """
resources: [../deploy/k8s/overlays/production-secrets]
components: [../deploy/k8s/components/restore-volume]
"""


@pytest.mark.skipif(not has_kubectl(), reason="kubectl is not on PATH")
def test_the_job_that_makes_a_cluster_makes_it_of_a_backup(cluster: MapCluster, tmp_path: Path) -> None:
    [created, _] = backup_pod("production-secrets", tmp_path, HOLDFAST_ADDRESS=cluster.address).run()
    (tmp_path / "deploy").symlink_to(DEPLOY)
    (tmp_path / "restoring").mkdir()
    (tmp_path / "restoring" / "kustomization.yaml").write_text(RESTORING)
    manifests = load(render_folder(tmp_path / "restoring"))
    backups = manifests.find("CronJob", "holdfast-backup")
    assert backups is not None
    assert backups.spec["suspend"], "what is half restored is not backed up"

    def restore(address: str) -> None:
        settings = {"HOLDFAST_ADDRESS": f"localhost:1,{address}", "REPLICATION": "1", "BACKUP_ID": str(created["id"])}
        [restored] = JobPod(manifests, "Job", "holdfast-cluster-init", tmp_path, **settings).run()
        assert restored["id"] == created["id"]

    queues = queues_of_all_shards("kept", SHARDS)
    with (
        RestoredCluster(tmp_path / "anew", restore, size=2, replication=1, shards=SHARDS).start() as anew,
        Client(anew.address, timeout_s=DEADLINE_S) as client,
    ):
        assert [client.queue_stats(queue).ready for queue in queues] == [1] * SHARDS
