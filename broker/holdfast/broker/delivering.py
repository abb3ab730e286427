"""The way from one shard to another: tasks that an ack brings with it and that live elsewhere (courier.py), and shares
of limits (share_keeper.py)."""

from collections.abc import Callable, Iterator, Sequence
from typing import Final, TypeVar

from google.protobuf.message import Message

from holdfast.broker.map_surroundings import MapSurroundings
from holdfast.broker.messages import receive_request
from holdfast.broker.peers.identities import name_of
from holdfast.cluster.node_calls import NodeCallError, NodeCalls
from holdfast.machine.rows import Letter
from holdfast.proto.v1 import couriers_pb2 as pb

DELIVER_SECONDS: Final = 5.0

_RECEIVE: Final = "/holdfast.proto.v1.Couriers/ReceiveTasks"
_DEAL: Final = "/holdfast.proto.v1.Couriers/DealShares"
_HOPS_MAX: Final = 3

Answer = TypeVar("Answer", bound=Message)


class Deliveries:
    """Finds the leader of the shard that letters are for. Whatever goes wrong is raised: the courier tries again."""

    def __init__(self, calls: NodeCalls, surroundings: MapSurroundings) -> None:
        self._calls = calls
        self._surroundings = surroundings
        self._answered: dict[int, str] = {}  # by shard: who led it when it was last asked

    async def deliver(
        self, destination: int, source: int, incarnation: int, first_sequence: int, letters: Sequence[Letter]
    ) -> int:
        """Up to which letter the destination has them now."""
        cluster_id = self._surroundings.cluster_id
        request = receive_request(cluster_id, destination, source, incarnation, first_sequence, list(letters))
        answer = await self._ask_leader(destination, _RECEIVE, request, pb.ReceiveTasksResponse.FromString)
        return answer.received

    async def deal(self, destination: int, source: int, reports: Sequence[pb.ShareReport]) -> pb.DealSharesResponse:
        """What the leader of the home shard of queues grants to another shard of them."""
        request = pb.DealSharesRequest(
            cluster_id=self._surroundings.cluster_id,
            destination_shard=destination,
            source_shard=source,
            reports=reports,
        )
        return await self._ask_leader(destination, _DEAL, request, pb.DealSharesResponse.FromString)

    async def _ask_leader(
        self, destination: int, path: str, request: Message, parse: Callable[[bytes], Answer]
    ) -> Answer:
        problem: Exception = LookupError(f"nobody is known to have shard {destination}")
        for address in self._addresses(destination):
            try:
                return await self._ask(address, destination, path, request, parse)
            except NodeCallError as error:
                problem = error
        raise problem

    async def _ask(
        self, address: str, destination: int, path: str, request: Message, parse: Callable[[bytes], Answer]
    ) -> Answer:
        for hop in range(_HOPS_MAX):
            try:
                answer = await self._calls.call(
                    address, path, request, parse, timeout_s=DELIVER_SECONDS, shard=destination
                )
            except NodeCallError as error:
                self._answered.pop(destination, None)
                if not error.leader or hop == _HOPS_MAX - 1:
                    raise
                address = error.leader
            else:
                self._answered[destination] = address
                return answer
        raise AssertionError("the last hop returns or raises")

    def _addresses(self, destination: int) -> Iterator[str]:
        """Who led last, who is said to lead, and then whoever has the shard and may know."""
        at = self._surroundings.map
        hint, record = at.shard_leader(destination), at.shards.get(destination)
        names = [hint.node] if hint is not None else []
        names += [name_of(voter) for voter in record.voters] if record is not None else []
        found = [self._answered.get(destination), *(at.address_of(name) for name in names)]
        yield from dict.fromkeys(address for address in found if address)
