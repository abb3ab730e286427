"""What a client that goes straight to the leaders knows of the cluster: its shards, who leads them, where queues are.

It comes from any router or broker (GetTopology). A call waits for it only the first time that a queue is used; after
that what is known is used, and renewed in the background every few seconds while there are calls. What is known may be
old: a broker that does not lead names the one that does, and a task that was handed over by an old route is found all
the same, because every server sees to it that the shards of older routes stay visible until they are empty.
"""

import asyncio
import re
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager

from holdfast.client._cluster import GET_TOPOLOGY
from holdfast.client._rpc import Connection
from holdfast.client.errors import (
    ClientClosed,
    Conflict,
    HoldfastError,
    InvalidArgument,
    Overloaded,
    Rejected,
    UnexpectedAnswer,
)
from holdfast.common.service import end_tasks
from holdfast.proto.v1 import cluster_pb2 as pb
from holdfast.routing.homes import home_shard
from holdfast.routing.sets import QueueRoute

REFRESH_S = 5.0
ROUTE_S_MAX = 10.0  # the age of a route from which on it is asked for anew before it is used
QUEUES_MAX = 10_000  # routes that are remembered
_ASK_AGAIN_S = 30.0  # after a server has said that there is no map
_REFRESH_S_MIN = 0.5  # however often servers hint at news
_REFRESH_TIMEOUT_S = 5.0
_RENEW_TIMEOUT_S = 1.0  # for a route that is old: then it is used as it is
_BEHIND_S_MAX = 30.0  # no server lags behind the others for so long: then it is the map that was set back
_QUEUES_PER_CALL = 1_000
_BROKERS_MAX = 8  # of those that may know who leads a shard when its leader is gone
_QUEUE_NAME = re.compile(r"[A-Za-z0-9._-]{1,128}")  # what else is asked for makes a server refuse the whole question


class TopologyCache:
    """Routes of queues and leaders of shards."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self.shards = 0  # how many there are; 0 if that is not known
        self._cluster_id = ""
        self._revision = 0
        self._behind_since_s: float | None = None  # from when on all answers have been older than what is known
        self._leaders: dict[int, tuple[str, int]] = {}  # by shard: the address, and the epoch
        self._brokers: tuple[str, ...] = ()
        self._routes: dict[str, QueueRoute] = {}  # by queue, those that were used last at the end
        self._reported_s: dict[str, float] = {}  # by queue: when its route was last told
        self._used: set[str] = set()  # since the last refresh
        self._answers = 0  # how many have been taken in
        self._aimed: dict[int, int] = {}  # by shard: the answer from which the connection knows its leader
        self._refreshed_s = 0.0  # when the last refresh began
        self._no_map_until_s = 0.0
        self._one_at_a_time = asyncio.Lock()
        self._refresh: asyncio.Task[None] | None = None
        self._closed = False

    async def close(self) -> None:
        self._closed = True
        if self._refresh is not None:
            await end_tasks([self._refresh])

    async def routes(self, queues: Iterable[str], timeout_s: float) -> dict[str, QueueRoute] | None:
        """Where these queues are; None if the servers have no map: then any of them takes the calls."""
        names = set(queues)
        if not self.shards or self._old(names):
            is_known = bool(self.shards) and names <= self._routes.keys()
            try:
                if not await self._learn(names, min(timeout_s, _RENEW_TIMEOUT_S) if is_known else timeout_s):
                    return None
            except HoldfastError:
                if not self.shards:
                    raise
                # At its home a queue is always visible, so this is at worst not the best place.
        elif time.monotonic() >= self._refreshed_s + REFRESH_S:
            self._begin_refresh()
        self._used |= names
        return {name: self._routes.get(name) or self._at_home(name) for name in names}

    def _old(self, names: Iterable[str]) -> list[str]:
        """Those whose route nobody has told, or not for a while: it may have changed without anybody saying so."""
        since_s = time.monotonic() - ROUTE_S_MAX
        return [
            name for name in names if self._reported_s.get(name, float("-inf")) < since_s or name not in self._routes
        ]

    def aim(self, shard: int) -> int:
        """Makes the connection know who leads the shard. Returns it, or some shard in place of one that is not there:
        its leader says what is wrong with a task id that names such a one."""
        if not 0 <= shard < self.shards:
            shard = 0
        if self._aimed.get(shard) != self._answers:
            self._aimed[shard] = self._answers
            leader, epoch = self._leaders.get(shard, ("", 0))
            self._connection.learn(shard, self._others(shard, leader), leader, epoch)
        return shard

    def leader_of(self, shard: int) -> tuple[str, int] | None:
        """Its address and epoch, as the map has it."""
        return self._leaders.get(shard)

    @property
    def leaders(self) -> Mapping[int, tuple[str, int]]:
        """The same of all shards whose leader the map has."""
        return self._leaders

    def generation_of(self, queue: str) -> int:
        route = self._routes.get(queue)
        return 0 if route is None else route.generation

    def heard_of(self, queue: str, generation: int) -> None:
        """A server named the present generation of a queue."""
        route = self._routes.get(queue)
        if route is not None and route.generation < generation:
            self.request_refresh()

    def request_refresh_after(self, error: HoldfastError) -> None:
        """The same if this is what a call meets that was sent to the wrong place."""
        if not isinstance(error, InvalidArgument | Conflict | Overloaded | ClientClosed):
            self.request_refresh()

    @contextmanager
    def refreshing_after_errors(self) -> Iterator[None]:
        """The same for calls within."""
        try:
            yield
        except HoldfastError as error:
            self.request_refresh_after(error)
            raise

    def request_refresh(self) -> None:
        """Something is not where it was said to be."""
        if time.monotonic() >= self._refreshed_s + _REFRESH_S_MIN:
            self._begin_refresh()

    def _others(self, shard: int, leader: str) -> tuple[str, ...]:
        """Who takes the calls of a shard if its leader does not: first the servers that the user named."""
        start = shard % max(1, len(self._brokers))  # so that not all shards turn to the same ones
        brokers = [broker for broker in (*self._brokers[start:], *self._brokers[:start]) if broker != leader]
        named = [address for address in self._connection.addresses if address != leader]
        return tuple(dict.fromkeys((*named, *brokers[:_BROKERS_MAX]))) or self._connection.addresses

    def _at_home(self, queue: str) -> QueueRoute:
        return QueueRoute(queue, home_shard(queue, self.shards))

    # ---------------------------------------------------------------------------------------------- asking

    async def _learn(self, names: set[str], timeout_s: float) -> bool:
        """Asks for what is not known; False if there is no map to be had."""
        ends_s = time.monotonic() + timeout_s
        async with self._one_at_a_time:  # many calls at once need the same
            now_s = time.monotonic()
            if now_s < self._no_map_until_s:
                return False
            unknown = [name for name in self._old(names) if _QUEUE_NAME.fullmatch(name)]
            if self.shards and not unknown:
                return True
            if not self.shards:
                self._refreshed_s = now_s
            try:
                # Half of the time, so that there is some left for the call itself.
                await self._ask(unknown, max(0.1, (ends_s - now_s) / 2))
            except (Rejected, UnexpectedAnswer) as error:
                if isinstance(error, Rejected) and error.reason != "NO_CLUSTER":
                    raise
                # A broker by itself, or an older server. It may become part of a cluster.
                self._no_map_until_s = time.monotonic() + _ASK_AGAIN_S
                return False
            return True

    def _begin_refresh(self) -> None:
        if not self._closed and (self._refresh is None or self._refresh.done()):
            self._refreshed_s = time.monotonic()
            self._refresh = asyncio.create_task(self._ask_in_background())

    async def _ask_in_background(self) -> None:
        used, self._used = self._used, set()  # the routes of all others stay as they are until somebody needs them
        try:
            await self._ask([name for name in used if _QUEUE_NAME.fullmatch(name)], _REFRESH_TIMEOUT_S)
        except HoldfastError:
            self._used |= used  # what is known goes on being used

    async def _ask(self, queues: Sequence[str], timeout_s: float) -> None:
        for some in _chunks(queues, _QUEUES_PER_CALL):
            request = pb.GetTopologyRequest(queues=some)
            self._take(await self._connection.ask_any(GET_TOPOLOGY, request, timeout_s=timeout_s, repeatable=True))

    def _take(self, answer: pb.GetTopologyResponse) -> None:
        if not answer.shards:
            raise UnexpectedAnswer("a map without shards", self._connection.address)
        is_another = answer.cluster_id != self._cluster_id or self._is_set_back(answer.revision)
        if is_another:
            self._routes.clear()
            self._reported_s.clear()
        if is_another or answer.revision >= self._revision:  # servers may lag behind each other
            self._behind_since_s = None
            self._cluster_id, self._revision, self.shards = answer.cluster_id, answer.revision, answer.shards
            self._leaders = {leader.shard: (leader.address, leader.epoch) for leader in answer.leaders}
            self._brokers = tuple(answer.addresses)
            self._answers += 1
            self._connection.may_ask(self._brokers[:_BROKERS_MAX])
        now_s = time.monotonic()
        for message in answer.routes:
            route = _route(message)
            self._reported_s[route.queue] = now_s
            known = self._routes.pop(route.queue, None)
            self._routes[route.queue] = route if known is None or known.generation <= route.generation else known
        while len(self._routes) > QUEUES_MAX:
            dropped = next(iter(self._routes))
            del self._routes[dropped]
            self._reported_s.pop(dropped, None)

    def _is_set_back(self, revision: int) -> bool:
        """Whether the servers have had only older maps for too long, e.g. because theirs was restored from a backup."""
        if revision >= self._revision:
            return False
        now_s = time.monotonic()
        if self._behind_since_s is None:
            self._behind_since_s = now_s
        return now_s >= self._behind_since_s + _BEHIND_S_MAX


def _route(message: pb.QueueRoute) -> QueueRoute:
    sets = tuple((queue_set.generation, tuple(queue_set.shards)) for queue_set in message.sets)
    return QueueRoute(
        message.queue, message.home, message.generation, sets, tuple(message.draining), tuple(message.drained)
    )


def _chunks(queues: Sequence[str], size: int) -> Iterator[Sequence[str]]:
    """At least one, which may be empty."""
    for first in range(0, max(1, len(queues)), size):
        yield queues[first : first + size]
