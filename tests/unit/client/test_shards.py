"""What operators ask of a cluster: every node, the hashes of all replicas, another leader."""

from collections.abc import Iterator

import grpc
import pytest

from holdfast.client import (
    AsyncClient,
    Client,
    ConnectionFailed,
    DeadlineExceeded,
    InvalidArgument,
    Membership,
    NodeAddress,
    NotFound,
    ReplicaInfo,
    ReplicaRole,
    Transferred,
    UnexpectedAnswer,
)
from holdfast.proto.v1 import shards_pb2 as pb
from tests.unit.cli.scripted_cluster import NODE_IDS, VOTERS, describe, describe_all, replica, three_servers
from tests.unit.client.scripted_server import Hang, Refusal, ScriptedServer, not_leader

Nodes = dict[str, ScriptedServer]


@pytest.fixture
def nodes() -> Iterator[Nodes]:
    with three_servers() as nodes:
        yield nodes


@pytest.fixture
def server(nodes: Nodes) -> ScriptedServer:
    return nodes["n1"]


# -------------------------------------------------------------------------------------------------- describe_nodes


async def test_one_address_is_enough_to_ask_them_all(nodes: Nodes) -> None:
    describe_all(nodes)
    async with AsyncClient(nodes["n2"].address) as client:
        reports = await client.describe_nodes()
    assert [(report.name, report.address) for report in reports] == [
        (name, server.address) for name, server in nodes.items()
    ]
    assert [len(server.requests["DescribeNode"]) for server in nodes.values()] == [1, 1, 1]
    assert [report.error for report in reports] == [None, None, None]


async def test_a_node_tells_all_about_itself(nodes: Nodes, client: AsyncClient) -> None:
    full = replica(
        shard=2, role="LEARNER", commit_index=100, applied_index=90, last_index=110, lag=10, log_bytes=4096,
        snapshot_age_ms=1500, problem="Entry 91 is damaged.",
    )  # fmt: skip
    full.membership.learners.append("n4/4")
    nodes["n1"].on("DescribeNode", describe(nodes, "n1", full, replica(snapshot_age_ms=-1)))
    [report, *_] = await client.describe_nodes(timeout_s=5)
    assert report.node is not None
    assert (report.node.name, report.node.node_id, report.node.version) == ("n1", NODE_IDS["n1"], "1.2.3")
    assert report.node.nodes[2] == NodeAddress("n3", nodes["n3"].address)
    assert report.node.replicas[0] == ReplicaInfo(
        shard=2, role=ReplicaRole.LEARNER, term=7, leader="n1", commit_index=100, applied_index=90, last_index=110,
        lag=10, log_bytes=4096, snapshot_age_ms=1500, membership=Membership(3, tuple(VOTERS), ("n4/4",)),
        problem="Entry 91 is damaged.",
    )  # fmt: skip
    assert report.node.replicas[1].snapshot_age_ms is None


async def test_nodes_that_do_not_answer_have_their_error(nodes: Nodes) -> None:
    describe_all(nodes)
    nodes["n1"].stop()
    nodes["n3"].instead("DescribeNode", Hang())
    async with AsyncClient(f"{nodes['n1'].address},{nodes['n2'].address}") as client:
        dead, living, silent = await client.describe_nodes(timeout_s=3)
    assert (dead.name, living.name, silent.name) == ("n1", "n2", "n3")
    assert isinstance(dead.error, ConnectionFailed)
    assert isinstance(silent.error, DeadlineExceeded)
    assert living.node is not None


async def test_a_node_that_is_listed_under_another_name_is_told_once(nodes: Nodes) -> None:
    describe_all(nodes)
    alias = nodes["n1"].address.replace("127.0.0.1", "localhost")
    async with AsyncClient(f"{alias},{nodes['n1'].address}") as client:
        reports = await client.describe_nodes()
    assert [report.name for report in reports] == ["n1", "n2", "n3"]


async def test_a_role_of_a_newer_server(nodes: Nodes, client: AsyncClient) -> None:
    newer = replica()
    newer.role = 99  # type: ignore[assignment]
    nodes["n1"].on("DescribeNode", describe({"n1": nodes["n1"]}, "n1", newer))
    [report] = await client.describe_nodes()
    assert report.node is not None
    assert report.node.replicas[0].role is ReplicaRole.UNKNOWN


# ------------------------------------------------------------------------------------------------------ hash_shard


async def test_hashes_are_read_from_every_replica_at_the_index_of_the_probe(nodes: Nodes) -> None:
    describe_all(nodes, leader="n2")
    nodes["n1"].on("ProbeShard", not_leader(nodes["n2"].address, 7))
    nodes["n2"].on("ProbeShard", pb.ProbeShardResponse(index=41))
    for server in nodes.values():
        server.on("ReadProbe", pb.ReadProbeResponse(state_hash=b"\xab\xcd", applied_index=50))
    async with AsyncClient(nodes["n1"].address) as client:
        hashed = await client.hash_shard(0)
    assert (hashed.shard, hashed.index) == (0, 41)
    assert [(item.node, item.state_hash) for item in hashed.replicas] == [(name, "abcd") for name in NODE_IDS]
    assert hashed.complete
    assert not hashed.different
    for server in nodes.values():
        [request] = server.requests["ReadProbe"]
        assert (request.shard, request.index) == (0, 41)
        assert 0 < request.wait_ms <= 10_000


async def test_differences_and_gaps_are_told_apart(nodes: Nodes, client: AsyncClient) -> None:
    describe_all(nodes)
    nodes["n1"].on("ProbeShard", pb.ProbeShardResponse(index=41))
    nodes["n1"].on("ReadProbe", pb.ReadProbeResponse(state_hash=b"a", applied_index=41))
    nodes["n2"].on("ReadProbe", pb.ReadProbeResponse(applied_index=17))
    nodes["n3"].on("ReadProbe", Refusal(grpc.StatusCode.NOT_FOUND, "PROBE_NOT_FOUND"))
    hashed = await client.hash_shard(0)
    assert not hashed.different
    assert not hashed.complete
    _, behind, refused = hashed.replicas
    assert (behind.state_hash, behind.applied_index, behind.error) == (None, 17, None)
    assert isinstance(refused.error, NotFound)
    nodes["n2"].on("ReadProbe", pb.ReadProbeResponse(state_hash=b"b", applied_index=41))
    await client.hash_shard(0)  # the script's last answer stays
    assert (await client.hash_shard(0)).different


async def test_a_member_that_nobody_answers_for_is_missing(nodes: Nodes, client: AsyncClient) -> None:
    """One node is unreachable, one has come back with an empty disk, one member is of no node of the list."""
    lost = describe(nodes, "n3")
    lost.node_id = "f" * 32
    newest = replica()
    newest.membership.version = 4
    newest.membership.voters.append("n9/" + "9" * 32)
    nodes["n1"].on("DescribeNode", describe(nodes, "n1", newest))
    nodes["n1"].on("ProbeShard", pb.ProbeShardResponse(index=41))
    nodes["n1"].on("ReadProbe", pb.ReadProbeResponse(state_hash=b"a"))
    nodes["n2"].stop()
    nodes["n3"].on("DescribeNode", lost)
    hashed = await client.hash_shard(0)
    by_node = {item.node: item for item in hashed.replicas}
    assert by_node["n1"].state_hash == b"a".hex()
    assert isinstance(by_node["n2"].error, ConnectionFailed)
    assert "has lost it" in str(by_node["n3"].error)
    assert "no node names it" in str(by_node["n9"].error)
    assert not hashed.complete


async def test_members_that_nobody_knows_are_an_error(nodes: Nodes, client: AsyncClient) -> None:
    nodes["n1"].on("ProbeShard", pb.ProbeShardResponse(index=41))
    nodes["n1"].on("DescribeNode", describe({"n1": nodes["n1"]}, "n1", replica(shard=5)))
    with pytest.raises(UnexpectedAnswer, match="shard 0"):
        await client.hash_shard(0)


# -------------------------------------------------------------------------------------------------------- transfer


async def test_a_transfer_is_asked_of_the_leader_of_its_shard(nodes: Nodes) -> None:
    """The leader of one shard is not that of another: what is known of one must not steer calls of the other."""
    nodes["n1"].on("TransferLeadership", not_leader(nodes["n3"].address, 4))
    nodes["n3"].on("TransferLeadership", pb.TransferLeadershipResponse(leader="n2", epoch=5))
    nodes["n1"].on("ProbeShard", Refusal(grpc.StatusCode.NOT_FOUND, "SHARD_NOT_FOUND"))
    async with AsyncClient(",".join(server.address for server in nodes.values())) as client:
        assert await client.transfer(3, "n2") == Transferred("n2", 5)
        assert nodes["n3"].requests["TransferLeadership"] == [pb.TransferLeadershipRequest(shard=3, to="n2")]
        with pytest.raises(NotFound):
            await client.hash_shard(0)
    assert len(nodes["n1"].requests["ProbeShard"]) == 1


async def test_what_is_no_shard_is_refused_at_once(nodes: Nodes, client: AsyncClient) -> None:
    for shard in ("x", 2**70, None):
        for call in (client.transfer(shard, "n2"), client.hash_shard(shard)):  # type: ignore[arg-type]
            with pytest.raises(InvalidArgument) as caught:
                await call
            assert caught.value.field == "shard"
    with pytest.raises(InvalidArgument) as caught:
        await client.transfer(0, 7)  # type: ignore[arg-type]
    assert caught.value.field == "to"


def test_the_blocking_client_has_the_same(nodes: Nodes) -> None:
    describe_all(nodes)
    nodes["n1"].on("TransferLeadership", pb.TransferLeadershipResponse(leader="n2", epoch=5))
    with Client(nodes["n1"].address) as client:
        assert len(client.describe_nodes()) == 3
        assert client.transfer(0, "n2").epoch == 5
