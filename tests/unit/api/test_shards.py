"""The operators' side of the wire API: what a node's `ShardAdmin` is asked, and how answers and refusals travel."""

from dataclasses import dataclass, field

import pytest
from google.rpc import error_details_pb2, status_pb2

from holdfast.broker.api.shards import (
    LeaderView,
    NodeView,
    ProbeView,
    ReplicaView,
    Role,
    ShardService,
)
from holdfast.broker.cluster_view.view import NodeAddress
from holdfast.proto.v1 import shards_pb2 as pb
from holdfast.raft.messages import Configuration
from holdfast.serving import refusals
from holdfast.serving.refusals import RefusedError
from holdfast.serving.statuses import status_of

N1, N2 = NodeAddress("n1", "h1:7401"), NodeAddress("n2", "h2:7401")


@dataclass
class Admin:
    """Writes down what it is asked for."""

    view: NodeView = field(default_factory=lambda: NodeView("n1", "1" * 32, "0.1.0", [N1, N2], []))
    leader: LeaderView = field(default_factory=lambda: LeaderView(7, N2))
    probe_view: ProbeView = field(default_factory=lambda: ProbeView(50, b"\x01"))
    asked: list[tuple[object, ...]] = field(default_factory=list)

    def describe(self) -> NodeView:
        return self.view

    def find_leader(self, shard: int) -> LeaderView:
        self.asked.append(("find_leader", shard))
        return self.leader

    async def transfer(self, shard: int, to: str) -> LeaderView:
        self.asked.append(("transfer", shard, to))
        return self.leader

    async def probe(self, shard: int) -> int:
        self.asked.append(("probe", shard))
        return 41

    async def read_probe(self, shard: int, index: int, wait_ms: int) -> ProbeView:
        self.asked.append(("read_probe", shard, index, wait_ms))
        return self.probe_view


@pytest.fixture
def admin() -> Admin:
    return Admin()


@pytest.fixture
def service(admin: Admin) -> ShardService:
    return ShardService(admin)


async def test_describe_node(admin: Admin, service: ShardService) -> None:
    replica = ReplicaView(
        shard=3, role=Role.LEARNER, term=7, leader="n2", commit_index=100, applied_index=90, last_index=110, lag=10,
        log_bytes=4096, snapshot_age_ms=1500, configuration=Configuration(4, ("n1/a", "n2/b"), ("n3/c",)),
        problem="Entry 91 is damaged.",
    )  # fmt: skip
    empty = ReplicaView(
        shard=4, role=Role.BLANK, term=0, leader=None, commit_index=0, applied_index=0, last_index=0, lag=0,
        log_bytes=0, snapshot_age_ms=None, configuration=Configuration(0, ()),
    )  # fmt: skip
    admin.view = NodeView("n1", "1" * 32, "0.1.0", [N1, N2], [replica, empty])
    assert await service.describe_node(pb.DescribeNodeRequest()) == pb.DescribeNodeResponse(
        name="n1",
        node_id="1" * 32,
        version="0.1.0",
        nodes=[pb.Node(name="n1", address="h1:7401"), pb.Node(name="n2", address="h2:7401")],
        replicas=[
            pb.Replica(
                shard=3, role=pb.REPLICA_ROLE_LEARNER, term=7, leader="n2", commit_index=100, applied_index=90,
                last_index=110, lag=10, log_bytes=4096, snapshot_age_ms=1500, problem="Entry 91 is damaged.",
                membership=pb.Membership(version=4, voters=["n1/a", "n2/b"], learners=["n3/c"]),
            ),
            pb.Replica(shard=4, role=pb.REPLICA_ROLE_BLANK, snapshot_age_ms=-1, membership=pb.Membership()),
        ],
    )  # fmt: skip


def test_every_role_of_the_wire_is_known() -> None:
    assert {role.value for role in Role} == set(pb.ReplicaRole.values()) - {pb.REPLICA_ROLE_UNSPECIFIED}
    assert {f"REPLICA_ROLE_{role.name}" for role in Role} < set(pb.ReplicaRole.keys())


async def test_find_leader(admin: Admin, service: ShardService) -> None:
    found = await service.find_leader(pb.FindLeaderRequest(shard=3))
    assert found == pb.FindLeaderResponse(epoch=7, leader="n2", address="h2:7401")
    admin.leader = LeaderView(8, None)
    assert await service.find_leader(pb.FindLeaderRequest()) == pb.FindLeaderResponse(epoch=8)
    assert admin.asked == [("find_leader", 3), ("find_leader", 0)]


async def test_transfer_leadership(admin: Admin, service: ShardService) -> None:
    done = await service.transfer_leadership(pb.TransferLeadershipRequest(shard=3, to="n2"))
    assert done == pb.TransferLeadershipResponse(leader="n2", epoch=7)
    assert admin.asked == [("transfer", 3, "n2")]


async def test_probes(admin: Admin, service: ShardService) -> None:
    assert (await service.probe_shard(pb.ProbeShardRequest(shard=3))).index == 41
    read = pb.ReadProbeRequest(shard=3, index=41, wait_ms=60_000)
    assert await service.read_probe(read) == pb.ReadProbeResponse(state_hash=b"\x01", applied_index=50)
    admin.probe_view = ProbeView(40, None)
    assert await service.read_probe(read) == pb.ReadProbeResponse(applied_index=40)
    assert admin.asked == [("probe", 3), *[("read_probe", 3, 41, 60_000)] * 2]


@pytest.mark.parametrize(
    ("call", "request_", "reason", "named"),
    [
        ("find_leader", pb.FindLeaderRequest(shard=-1), "OUT_OF_RANGE", "shard"),
        ("find_leader", pb.FindLeaderRequest(shard=2**32), "OUT_OF_RANGE", "shard"),
        ("transfer_leadership", pb.TransferLeadershipRequest(shard=-1, to="n2"), "OUT_OF_RANGE", "shard"),
        ("transfer_leadership", pb.TransferLeadershipRequest(), "MISSING_FIELD", "to"),
        ("transfer_leadership", pb.TransferLeadershipRequest(to="n 2"), "INVALID_FIELD", "to"),
        ("transfer_leadership", pb.TransferLeadershipRequest(to="n" * 129), "INVALID_FIELD", "to"),
        ("probe_shard", pb.ProbeShardRequest(shard=-1), "OUT_OF_RANGE", "shard"),
        ("read_probe", pb.ReadProbeRequest(shard=-1, index=1), "OUT_OF_RANGE", "shard"),
        ("read_probe", pb.ReadProbeRequest(), "OUT_OF_RANGE", "index"),
        ("read_probe", pb.ReadProbeRequest(index=1, wait_ms=-1), "OUT_OF_RANGE", "wait_ms"),
        ("read_probe", pb.ReadProbeRequest(index=1, wait_ms=60_001), "OUT_OF_RANGE", "wait_ms"),
    ],
)
async def test_what_cannot_be_meant_is_refused_by_name(
    admin: Admin, service: ShardService, call: str, request_: object, reason: str, named: str
) -> None:
    with pytest.raises(RefusedError) as refused:
        await getattr(service, call)(request_)
    assert (refused.value.reason, refused.value.field) == (reason, named)
    assert named in refused.value.message
    assert admin.asked == []


# --- how refusals travel --------------------------------------------------------------------------------------------


def details_of(refused: RefusedError) -> tuple[str, error_details_pb2.ErrorInfo, int]:
    """The code, the info, and the milliseconds after which to try again."""
    code, data = status_of(refused)
    info, retry = error_details_pb2.ErrorInfo(), error_details_pb2.RetryInfo()
    for detail in status_pb2.Status.FromString(data).details:
        if not detail.Unpack(info):
            detail.Unpack(retry)
    return code, info, retry.retry_delay.ToMilliseconds()


def test_not_the_leader() -> None:
    code, info, retry_ms = details_of(refusals.not_leader(3, 7, "h2:7401"))
    assert (code, info.reason, retry_ms) == ("UNAVAILABLE", "NOT_LEADER", 0)
    assert dict(info.metadata) == {"shard": "3", "epoch": "7", "leader": "h2:7401"}
    code, info, retry_ms = details_of(refusals.not_leader(3, 7, None))
    assert (code, info.reason, retry_ms) == ("UNAVAILABLE", "NOT_LEADER", 100)
    assert dict(info.metadata) == {"shard": "3", "epoch": "7"}


@pytest.mark.parametrize(
    ("refused", "code", "metadata"),
    [
        (refusals.shard_not_found(3), "NOT_FOUND", {"field": "shard"}),
        (refusals.probe_not_found(3, 41), "NOT_FOUND", {"field": "index"}),
        (refusals.change_refused("VERSION", "Expected version 4."), "FAILED_PRECONDITION", {"why": "VERSION"}),
    ],
)
def test_other_refusals(refused: RefusedError, code: str, metadata: dict[str, str]) -> None:
    found, info, _ = details_of(refused)
    assert found == code
    assert dict(info.metadata) == metadata
    assert refused.within("x").metadata == refused.metadata
