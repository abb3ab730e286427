"""Two of three nodes are gone for good: `holdfast shard recover` makes the shards of what the third has left."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from holdfast.cli.main import main
from holdfast.client import Client, HoldfastError, NewTask, StaleToken
from tests.integration.cluster import Cluster
from tests.integration.map_cluster import MapCluster
from tests.integration.map_load import claim_all, queues_of_all_shards
from tests.integration.server import DEADLINE_S, ServerProcess, wait_until
from tests.long import IS_LONG

SHARDS = 2
LEASE_MS = 60_000


def recover(shard: int, data_dir: Path, capsys: pytest.CaptureFixture[str], *, accept: bool = True) -> Any:
    capsys.readouterr()
    arguments = ["shard", "recover", str(shard), "--data-dir", str(data_dir), "--json"]
    code = main([*arguments, "--i-accept-data-loss"] if accept else arguments)
    out, err = capsys.readouterr()
    assert ("shard_recovered" in err) == (code == 0), "what was done to data is logged, and nothing else is"
    return json.loads(out) if code == 0 else (code, err)


def test_a_shard_that_lost_its_majority_is_made_of_what_is_left(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    queues = queues_of_all_shards("q", SHARDS)
    with MapCluster(tmp_path, shards=SHARDS, size=3).start() as cluster:
        kept, lost = cluster.nodes["n1"], [cluster.nodes["n2"], cluster.nodes["n3"]]
        with Client(cluster.address, timeout_s=DEADLINE_S) as client:
            for queue in queues:
                client.enqueue_many([NewTask(queue, "t", bytes([n]), request_id=f"{n}") for n in range(20)])
            held = client.reserve(queues[:1], max_tasks=3, worker="w", lease_ms=LEASE_MS)
            cluster.wait_settled()  # all three have all of it
        refused = recover(0, kept.data_dir, capsys)
        assert refused[0] == 1, "the node runs"
        for node in lost:
            node.kill()
            shutil.rmtree(node.data_dir)
        kept.kill()

        assert recover(0, kept.data_dir, capsys, accept=False)[0] == 2
        assert recover(9, kept.data_dir, capsys)[0] == 1
        assert main(["shard", "recover", "0", "--data-dir", str(kept.data_dir), "--dry-run", "--json"]) == 0
        would = json.loads(capsys.readouterr().out)
        reports = [recover(shard, kept.data_dir, capsys) for shard in range(SHARDS)]
        assert [report["incarnation"] for report in reports] == [2, 2]
        assert reports[0] == would | {"dry_run": False}
        assert all(len(report["former_voters"]) == 3 for report in reports)

        kept.start()
        for shard in range(SHARDS):
            wait_until(lambda shard=shard: cluster.leader(shard) == "n1", "n1 to lead alone")  # type: ignore[misc]
        wait_until(lambda: _reclaimed(kept) == set(range(SHARDS)), "n1 to have told the map, and its log")
        with Client(cluster.address, timeout_s=DEADLINE_S) as client:
            wait_until(lambda: _is_refused(client, held[0]), "the old token to be refused by the new leader")
            claims = claim_all(client, queues, 40)
            assert len(claims) == 40
            assert min(claim.token for claim in claims) > max(claim.token for claim in held)
            assert client.enqueue(NewTask(queues[0], "t", bytes([0]), request_id="0")).duplicate
        for node in lost:  # with nothing, as other nodes would come
            node.start()
        cluster.wait_settled()
        cluster.check_hashes()
        assert {shard.group >> 47 & 0xFFFF for shard in cluster.info().shards} == {2}


def _reclaimed(node: ServerProcess) -> set[int]:
    """As its log has it; it may say so more than once."""
    return {event["shard"] for event in node.events("shard_reclaimed")}


def _is_refused(client: Client, claim: Any) -> bool:
    try:
        client.ack(claim, timeout_s=2)
    except StaleToken:
        return True
    except HoldfastError:
        return False  # the router has not heard of the leader yet
    raise AssertionError("Expected a token of the former incarnation to be refused, but it was taken.")


@pytest.mark.skipif(not IS_LONG, reason="takes longer")
def test_without_etcd_the_list_of_nodes_brings_the_others_back(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with Cluster(tmp_path) as cluster:
        cluster.start()
        cluster.wait_whole()
        with Client(cluster.address, timeout_s=DEADLINE_S) as client:
            client.enqueue_many([NewTask("work", "t", bytes([n])) for n in range(20)])
            [held] = client.reserve(["work"], worker="w", lease_ms=LEASE_MS)
        cluster.wait_whole()
        cluster.kill("n1", "n2", "n3")
        shutil.rmtree(cluster.nodes["n1"].data_dir)
        shutil.rmtree(cluster.nodes["n3"].data_dir)
        assert recover(0, cluster.nodes["n2"].data_dir, capsys)["node"] == "n2"
        cluster.start()
        cluster.wait_whole()
        with Client(cluster.address, timeout_s=DEADLINE_S) as client:
            with pytest.raises(StaleToken):
                client.ack(held)
            assert len(claim_all(client, ["work"], 20)) == 20
        assert len({state_hash for _, state_hash in cluster.hashes().values()}) == 1
