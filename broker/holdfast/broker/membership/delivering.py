"""The way from one shard to another: tasks that an ack brings with it and that live elsewhere (leader/outbox_relay.py),
and allocations of limits (quota/)."""

from collections.abc import Callable, Iterator, Sequence
from typing import Final, TypeVar

from google.protobuf.message import Message

from holdfast.broker.api.conversion import allocate_request, limit_grants, receive_request
from holdfast.broker.api.internal import ALLOCATE, RECEIVE_TASKS
from holdfast.broker.cluster_view.map_view import MapClusterView
from holdfast.broker.peers.identities import name_of
from holdfast.broker.peers.peer_calls import PeerCallFailedError, PeerCalls
from holdfast.limits.reports import LimitGrant, LimitReport
from holdfast.machine.rows import OutboxMessage
from holdfast.proto.v1 import broker_calls_pb2 as pb
from holdfast.serving.refusals import NOT_LEADER, SHARD_NOT_FOUND, RefusedError

DELIVER_SECONDS: Final = 5.0

_ELSEWHERE: Final = (NOT_LEADER, SHARD_NOT_FOUND)

Answer = TypeVar("Answer", bound=Message)


class Deliveries:
    """Finds the leader of the shard that messages are for. Whatever goes wrong is raised: the relay tries again."""

    def __init__(self, calls: PeerCalls, cluster_view: MapClusterView) -> None:
        self._calls = calls
        self._cluster_view = cluster_view
        self._answered: dict[int, str] = {}  # by shard: which node led it when it was last asked

    async def deliver(
        self, destination: int, source: int, incarnation: int, first_sequence: int, messages: Sequence[OutboxMessage]
    ) -> int:
        """Up to which message the destination has them now."""
        cluster_id = self._cluster_view.cluster_id
        request = receive_request(cluster_id, destination, source, incarnation, first_sequence, list(messages))
        answer = await self._ask_leader(destination, RECEIVE_TASKS, request, pb.ReceiveTasksResponse.FromString)
        return answer.received

    async def allocate(self, destination: int, source: int, reports: Sequence[LimitReport]) -> Sequence[LimitGrant]:
        """What the leader of the home shard of queues grants to another shard of them."""
        request = allocate_request(self._cluster_view.cluster_id, destination, source, reports)
        return limit_grants(await self._ask_leader(destination, ALLOCATE, request, pb.AllocateResponse.FromString))

    async def _ask_leader(
        self, destination: int, method: int, request: Message, parse: Callable[[bytes], Answer]
    ) -> Answer:
        problem: Exception = LookupError(f"nobody is known to have shard {destination}")
        message = request.SerializeToString()
        for node in self._nodes(destination):
            try:
                answer = parse(await self._calls.ask(node, method, destination, message, DELIVER_SECONDS))
            except (PeerCallFailedError, RefusedError) as error:
                self._answered.pop(destination, None)
                if isinstance(error, RefusedError) and error.reason not in _ELSEWHERE:
                    raise
                problem = error
            else:
                self._answered[destination] = node
                return answer
        raise problem

    def _nodes(self, destination: int) -> Iterator[str]:
        """Who led last, who is said to lead, and then whoever has the shard."""
        cluster_map = self._cluster_view.map
        hint, record = cluster_map.shard_leader(destination), cluster_map.shards.get(destination)
        found = [self._answered.get(destination), hint.node if hint is not None else None]
        found += [name_of(voter) for voter in record.voters] if record is not None else []
        yield from dict.fromkeys(name for name in found if name)
