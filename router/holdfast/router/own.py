"""Calls that a router answers itself: what it is, the service Cluster, and what of backups is about the map."""

import re
from collections.abc import Awaitable, Callable
from typing import Any

from google.protobuf.message import Message

from holdfast.proto.v1 import backups_pb2, shards_pb2
from holdfast.router.methods import CLUSTER
from holdfast.serving.refusals import SHARD_NOT_FOUND, RefusedError
from holdfast_queue import version

NAME = "router"

_OF_BACKUPS = ("ReadMap", "RestoreCluster", "RestoreQueues")

_Method = Callable[[Any], Awaitable[Any]]


class OwnCalls:
    """`find` has the method of a call, or None if it is about a shard."""

    def __init__(self, admin: object, backups: object, nodes: Callable[[], list[tuple[str, str]]]) -> None:
        """`admin` has a method for each call of the service Cluster, `backups` for some of Backups; `nodes` are names
        and addresses of brokers."""
        self._nodes = nodes
        self._version = version()  # reads a file
        self._methods: dict[str, _Method] = {name: getattr(admin, _snake_case(name)) for name in CLUSTER}
        self._methods |= {name: getattr(backups, _snake_case(name)) for name in _OF_BACKUPS}
        self._methods |= {
            "DescribeNode": self._describe_node,
            "ReadProbe": self._ask_nodes,
            "RestoreShard": self._ask_nodes,
        }

    def find(self, name: str) -> _Method | None:
        return self._methods.get(name)

    async def _describe_node(self, _request: shards_pb2.DescribeNodeRequest) -> shards_pb2.DescribeNodeResponse:
        """A node without replicas that knows all others: whoever wants to see replicas goes on to them."""
        response = shards_pb2.DescribeNodeResponse(name=NAME, version=self._version)
        for name, address in self._nodes():
            response.nodes.add(name=name, address=address)
        return response

    async def _ask_nodes(self, request: shards_pb2.ReadProbeRequest | backups_pb2.RestoreShardRequest) -> Message:
        raise RefusedError(
            SHARD_NOT_FOUND,
            f"Expected a replica of shard {request.shard}, but this is a router, which has none; ask the nodes that "
            "DescribeNode names.",
            field="shard",
        )


def _snake_case(name: str) -> str:
    return re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower()
