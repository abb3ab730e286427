"""A router and two leaders, all scripted, for tests of clients that go straight to the leaders."""

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import grpc

from holdfast.machine.ids import format_task_id, make_task_id
from holdfast.proto.v1 import cluster_pb2
from holdfast.proto.v1 import tasks_pb2 as pb
from holdfast.routing.homes import home_shard
from tests.unit.client.scripted_server import ScriptedServer

SHARDS = 2


class MetadataServer(ScriptedServer):
    """Keeps what each call says about itself beside its request."""

    def __init__(self) -> None:
        super().__init__()
        self.metadata: dict[str, list[dict[str, str]]] = defaultdict(list)  # by method

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> "grpc.RpcMethodHandler[Any, Any] | None":
        metadata = handler_call_details.invocation_metadata or ()
        own = {key: str(value) for key, value in metadata if key.startswith("holdfast-")}
        self.metadata[handler_call_details.method.rpartition("/")[2]].append(own)
        return super().service(handler_call_details)


def task_id(shard: int, number: int = 1) -> str:
    """As a shard makes it."""
    return format_task_id(make_task_id(1_700_000_000_000, shard, number))


def queue_at(home: int) -> str:
    """The name of a queue with this home."""
    return next(name for name in (f"q{number}" for number in range(100)) if home_shard(name, SHARDS) == home)


def spread(queue: str, generation: int = 1, shards: Sequence[int] = (0, 1)) -> cluster_pb2.QueueRoute:
    sets = [cluster_pb2.QueueSet(generation=generation, shards=shards)]
    return cluster_pb2.QueueRoute(queue=queue, home=home_shard(queue, SHARDS), generation=generation, sets=sets)


@dataclass
class Cluster:
    """Shard 0 is led by `leaders[0]`, shard 1 by `leaders[1]`, unless `map_leaders` says otherwise."""

    router: MetadataServer
    leaders: list[MetadataServer]
    routes: dict[str, cluster_pb2.QueueRoute] = field(default_factory=dict)  # of queues that are not only at home
    map_leaders: dict[int, str] = field(default_factory=dict)  # addresses, if the map is wrong
    revision: int = 1
    epoch: int = 1

    def topology(self, request: cluster_pb2.GetTopologyRequest) -> cluster_pb2.GetTopologyResponse:
        response = cluster_pb2.GetTopologyResponse(cluster_id="c", revision=self.revision, shards=SHARDS)
        for shard, leader in enumerate(self.leaders):
            address = self.map_leaders.get(shard, leader.address)
            response.leaders.add(shard=shard, node=f"n{shard}", address=address, epoch=self.epoch)
        for queue in request.queues:
            at_home = cluster_pb2.QueueRoute(queue=queue, home=home_shard(queue, SHARDS))
            response.routes.append(self.routes.get(queue, at_home))
        response.addresses.extend(leader.address for leader in self.leaders)
        return response

    def both(self, method: str, answer: Callable[[int], Callable[[Any], Any]]) -> None:
        """Each leader gets the answer for its shard."""
        for shard, leader in enumerate(self.leaders):
            leader.on(method, answer(shard))

    def sent(self, method: str) -> list[int]:
        """How many calls the router and each leader have got."""
        return [len(server.requests[method]) for server in (self.router, *self.leaders)]

    def shards_named(self, method: str) -> list[list[str]]:
        """In the metadata of the calls that each leader has got."""
        return [[item.get("holdfast-shard", "") for item in leader.metadata[method]] for leader in self.leaders]


@contextmanager
def two_shards() -> Iterator[Cluster]:
    with ExitStack() as stack:
        router, first, second = (stack.enter_context(MetadataServer()) for _ in range(3))
        cluster = Cluster(router, [first, second])
        for server in (router, first, second):
            server.on("GetTopology", cluster.topology)
        yield cluster


def accept(shard: int) -> Callable[[pb.EnqueueRequest], pb.EnqueueResponse]:
    """Accepts tasks; the id of each says which shard it is on and its type."""

    def answer(request: pb.EnqueueRequest) -> pb.EnqueueResponse:
        outcomes = [pb.EnqueueOutcome(accepted=pb.Accepted(task_id=f"{shard}:{task.type}")) for task in request.tasks]
        return pb.EnqueueResponse(outcomes=outcomes)

    return answer
