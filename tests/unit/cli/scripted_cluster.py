"""Three scripted servers that describe themselves as the nodes of a cluster, for tests of what operators ask."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager

from holdfast.proto.v1 import shards_pb2 as pb
from tests.unit.client.scripted_server import ScriptedServer

NODE_IDS = {"n1": "1" * 32, "n2": "2" * 32, "n3": "3" * 32}
VOTERS = [f"{name}/{node_id}" for name, node_id in NODE_IDS.items()]


@contextmanager
def three_servers() -> Iterator[dict[str, ScriptedServer]]:
    with ExitStack() as stack:
        yield {name: stack.enter_context(ScriptedServer()) for name in NODE_IDS}


def replica(shard: int = 0, leader: str = "n1", role: str = "FOLLOWER", **fields: object) -> pb.Replica:
    message = pb.Replica(shard=shard, leader=leader, role=getattr(pb, f"REPLICA_ROLE_{role}"), term=7)
    message.membership.MergeFrom(pb.Membership(version=3, voters=VOTERS))
    for name, value in fields.items():
        setattr(message, name, value)
    return message


def describe(nodes: dict[str, ScriptedServer], name: str, *replicas: pb.Replica) -> pb.DescribeNodeResponse:
    named = [pb.Node(name=node, address=server.address) for node, server in nodes.items()]
    return pb.DescribeNodeResponse(
        name=name, node_id=NODE_IDS[name], version="1.2.3", nodes=named, replicas=replicas or [replica()]
    )


def describe_all(nodes: dict[str, ScriptedServer], shards: Sequence[int] = (0,), leader: str = "n1") -> None:
    for name, server in nodes.items():
        role = "LEADER" if name == leader else "FOLLOWER"
        server.on("DescribeNode", describe(nodes, name, *(replica(shard, leader, role) for shard in shards)))
