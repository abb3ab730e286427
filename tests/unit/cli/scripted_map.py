"""Scripted answers of a server that knows the map of a cluster, for tests of the commands about clusters."""

from typing import Any

import grpc

from holdfast.proto.v1 import cluster_pb2 as pb
from tests.unit.client.scripted_server import Refusal, ScriptedServer

IDS = {f"n{number}": f"n{number}/{str(number) * 32}" for number in range(1, 5)}


def node(name: str, **fields: Any) -> pb.ClusterNode:
    values = {"is_alive": True, "zone": "a", "capacity": 100, "version": "1.2.3", "replicas": 2, "leaders": 1}
    return pb.ClusterNode(name=name, **{**values, **fields})


def shard(number: int = 0, *, on: str = "n1 n2 n3", desired: str = "", leader: str = "n1", **fields: Any) -> Any:
    voters = [IDS[name] for name in on.split()]
    return pb.ClusterShard(
        shard=number, replicas=(desired or on).split(), voters=voters, leader=leader, epoch=7, version=1, **fields
    )


def cluster(*shards: pb.ClusterShard, nodes: list[pb.ClusterNode] | None = None, **fields: Any) -> Any:
    return pb.DescribeClusterResponse(
        cluster_id="c" * 32, name="local", shards_count=len(shards), replication=3, revision=9,
        nodes=[node("n1"), node("n2"), node("n3")] if nodes is None else nodes, shards=shards,
        **{"etcd_answers": True, **fields},
    )  # fmt: skip


def move(number: int = 0, source: str = "n1", destination: str = "n4", state: str = "WAITING", **fields: Any) -> Any:
    values = {"state_bytes": 3 * 1024 * 1024, "why": "n1 drains", "lag": -1, **fields}
    return pb.PlanStep(
        shard=number, source=source, destination=destination, state=getattr(pb, f"STEP_STATE_{state}"), **values
    )


def plan(*steps: pb.PlanStep) -> pb.Plan:
    return pb.Plan(id="p1", revision=9, steps=steps, summary="Node n1 drains." if steps else "All is even.")


def carried_out(server: ScriptedServer, *, under_way: pb.Plan | None = None) -> None:
    """A plan of one step that takes two looks."""
    server.on("DescribeCluster", cluster(shard(), plan=under_way) if under_way else cluster(shard()))
    server.on("MakePlan", pb.MakePlanResponse(plan=plan(move())))
    server.on("StartPlan", pb.StartPlanResponse(plan=plan(move())))
    server.on(
        "AdvancePlan",
        pb.AdvancePlanResponse(plan=plan(move(state="COPYING", lag=12))),
        pb.AdvancePlanResponse(plan=plan(move(state="DONE")), is_done=True),
    )


def refusal(code: str, reason: str, message: str = "No.", **more: Any) -> Refusal:
    return Refusal(getattr(grpc.StatusCode, code), reason, message, **more)
