"""Shards with leaders that move, behind the network's twin in memory, for routers and direct clients on virtual time.

A shard's state is one, as replication makes it; who leads it, and who knows of that, is what changes. Everything that
is done is written down, so that callers' answers can be compared with it.
"""

import asyncio
import random
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from holdfast.common.metadata import SHARD_KEY
from holdfast.proto.v1 import cluster_pb2, shards_pb2
from holdfast.proto.v1 import tasks_pb2 as pb
from holdfast.routing.sets import QueueRoute
from holdfast.routing.task_ids import later_task_ids
from holdfast.serving.refusals import RefusedError, no_such_shard, not_leader
from holdfast.serving.statuses import status_of
from holdfast.transport.channels import CallFailedError, Metadata
from holdfast.transport.in_memory import MemoryNetwork
from tests.unit.router.router_stage import METHODS, task_id

SHARDS = 3
QUEUES = tuple(f"q{shard}" for shard in range(SHARDS))  # each is at home on the shard of its number
SERVERS = ("a:1", "b:1", "c:1")
ELECTION_S = (0.8, 2.5)
NEWS_S = (0.01, 1.0)  # until others know of a leader


@dataclass
class SimShard:
    number: int
    leader: str = ""  # empty: nobody
    epoch: int = 1
    ids: dict[str, str] = field(default_factory=dict)  # by request id: the task, or the first of a run
    made: set[str] = field(default_factory=set)
    acked: set[str] = field(default_factory=set)
    tokens: dict[str, int] = field(default_factory=dict)  # by task, of those that were claimed
    ready: list[str] = field(default_factory=list)
    claims: dict[str, list[str]] = field(default_factory=dict)  # by claim_request_id
    changed: asyncio.Event = field(default_factory=asyncio.Event)


class RoutingWorld:
    """`moves`, `silences`, `stops`: whether there are such faults; `lost`: the share of answers that do not arrive."""

    def __init__(
        self, seed: int, *, moves: bool = False, silences: bool = False, stops: bool = False, lost: float = 0.0
    ) -> None:
        self.rng = random.Random(seed)
        random.seed(seed)  # the pauses of the code under test
        self.is_faulty = True
        self._faults = [
            fault for fault, is_on in ((self._move, moves), (self._silence, silences), (self._stop, stops)) if is_on
        ]
        self.network = MemoryNetwork(
            lambda: self.rng.uniform(0.0001, 0.005), lambda: self.is_faulty and self.rng.random() < lost
        )
        self.shards = [SimShard(number, SERVERS[number % len(SERVERS)]) for number in range(SHARDS)]
        self.applied: Counter[str] = Counter()  # by payload: how often a task was made
        self.applied_s: dict[str, float] = {}
        self.tasks: dict[str, str] = {}  # by payload
        self.attempts: Counter[str] = Counter()  # by the first payload, or the claim id: how often servers got the call
        self._believed = {server: {item.number: (item.leader, 1) for item in self.shards} for server in SERVERS}
        self._map = {item.number: (item.leader, 1) for item in self.shards}
        self._made = 0
        self._done_by: dict[str, Callable[[SimShard, Any], Any]] = {
            "Enqueue": self._enqueue,
            "Reserve": self._reserve,
            "Ack": self._ack,
        }
        for server in SERVERS:
            self.network.add(server, self._server(server))
        self._tasks: set[asyncio.Task[None]] = set()

    # --- what servers do ----------------------------------------------------------------------------------------

    def _server(self, address: str) -> Any:
        def serve(path: str, data: bytes, metadata: Metadata) -> bytes | Awaitable[bytes]:
            name = path.rpartition("/")[2]
            request = METHODS[name].request.FromString(data)
            if name == "GetTopology":
                return self._topology(request).SerializeToString()
            if name == "FindLeader" and request.shard not in range(SHARDS):
                raise refusal(no_such_shard(request.shard, SHARDS))
            if name == "FindLeader":
                found, epoch = self._believed[address][request.shard]
                return shards_pb2.FindLeaderResponse(address=found, epoch=epoch).SerializeToString()
            shard = self.shards[int(dict(metadata).get(SHARD_KEY, "0"))]
            self._count(name, request)
            if shard.leader != address:
                believed, epoch = self._believed[address][shard.number]
                raise refusal(not_leader(shard.number, epoch, believed if believed not in ("", address) else None))
            if name == "AwaitTasks":
                return self._await_tasks(shard, address, request)
            answer: bytes = self._done_by[name](shard, request).SerializeToString()
            return answer

        return serve

    def _count(self, name: str, request: Any) -> None:
        if name == "Enqueue":
            self.attempts.update(task.payload.decode() for task in request.tasks)
            self.attempts.update(payload.decode() for run in request.runs for payload in run.payloads)

    def _enqueue(self, shard: SimShard, request: pb.EnqueueRequest) -> pb.EnqueueResponse:
        response = pb.EnqueueResponse()
        for task in request.tasks:
            response.outcomes.add().accepted.task_id = self._make(shard, task.request_id, [task.payload])
        for run in request.runs:
            response.runs.add(first_task_id=self._make(shard, run.task.request_id, run.payloads))
        return response

    def _make(self, shard: SimShard, request_id: str, payloads: Sequence[bytes]) -> str:
        """The first of these tasks, unless they are there already."""
        if request_id in shard.ids:
            return shard.ids[request_id]
        ids = later_task_ids(task_id(shard.number, self._made + 1), len(payloads))
        self._made += len(ids)
        shard.ids[request_id or ids[0]] = ids[0]
        shard.made.update(ids)
        shard.ready += ids
        shard.changed.set()
        for found, payload in zip(ids, map(bytes.decode, payloads), strict=True):
            self.applied[payload] += 1
            self.applied_s.setdefault(payload, time.monotonic())
            self.tasks[payload] = found
        return ids[0]

    def _reserve(self, shard: SimShard, request: pb.ReserveRequest) -> pb.ReserveResponse:
        named = request.claim_request_id
        if named not in shard.claims and not request.held_only and shard.ready:
            count = max(1, request.max_tasks)
            shard.claims[named], shard.ready = shard.ready[:count], shard.ready[count:]
            for claimed in shard.claims[named]:
                shard.tokens[claimed] = len(shard.tokens) + 1
        response = pb.ReserveResponse()
        for claimed in shard.claims.get(named, ()):
            if request.takes_runs:
                _add_to_runs(response, claimed, shard.tokens[claimed])
            else:
                response.claims.add(task_id=claimed, token=shard.tokens[claimed])
        return response

    def _ack(self, shard: SimShard, request: pb.AckRequest) -> pb.AckResponse:
        response = pb.AckResponse()
        stale = pb.Rejection(reason="STALE_TOKEN")
        for item in request.items:
            is_acked = self._ack_one(shard, item.claim.task_id, item.claim.token)
            response.outcomes.append(pb.AckOutcome(acked=pb.Acked()) if is_acked else pb.AckOutcome(rejection=stale))
        for claim_range in request.ranges:
            outcome = response.ranges.add()
            for index, task in enumerate(later_task_ids(claim_range.task_id, claim_range.count)):
                if not self._ack_one(shard, task, claim_range.token + index):
                    outcome.refused.add(at=index, rejection=stale)
        return response

    def _ack_one(self, shard: SimShard, task: str, token: int) -> bool:
        if shard.tokens.get(task) != token:
            return False
        shard.acked.add(task)
        return True

    async def _await_tasks(self, shard: SimShard, address: str, request: pb.AwaitTasksRequest) -> bytes:
        ends_s = time.monotonic() + request.wait_ms / 1000
        while True:
            if shard.leader != address:
                raise refusal(not_leader(shard.number, shard.epoch, None))
            held = bool(request.claim_request_id) and request.claim_request_id in shard.claims
            if held or shard.ready or time.monotonic() >= ends_s:
                tasks = len(shard.ready)
                return pb.AwaitTasksResponse(ready=bool(tasks or held), held=held, tasks=tasks).SerializeToString()
            shard.changed.clear()
            try:
                async with asyncio.timeout(ends_s - time.monotonic()):
                    await shard.changed.wait()
            except TimeoutError:
                continue

    def _topology(self, request: cluster_pb2.GetTopologyRequest) -> cluster_pb2.GetTopologyResponse:
        response = cluster_pb2.GetTopologyResponse(cluster_id="c", revision=1, shards=SHARDS, addresses=SERVERS)
        for shard, (address, epoch) in self._map.items():
            if address:
                response.leaders.add(shard=shard, node=address, address=address, epoch=epoch)
        for queue in request.queues:
            response.routes.append(cluster_pb2.QueueRoute(queue=queue, home=QUEUES.index(queue)))
        return response

    # --- the map, as a router sees it ---------------------------------------------------------------------------

    shard_count = SHARDS

    def route(self, queue: str) -> QueueRoute:
        return QueueRoute(queue, QUEUES.index(queue))

    def leader_hint(self, shard: int) -> tuple[str, int] | None:
        address, epoch = self._map[shard]
        return (address, epoch) if address else None

    def replica_addresses(self, _shard: int) -> list[str]:
        return list(SERVERS)

    # --- faults -------------------------------------------------------------------------------------------------

    async def make_trouble(self, for_s: float) -> None:
        ends_s = time.monotonic() + for_s
        while self._faults and time.monotonic() < ends_s:
            await asyncio.sleep(self.rng.uniform(0.1, 1.5))
            self._begin(self.rng.choice(self._faults)())

    async def heal(self) -> None:
        """No more faults, and time for everybody to notice."""
        while self._tasks:
            await asyncio.gather(*self._tasks)
        self.is_faulty = False
        await asyncio.sleep(max(NEWS_S))

    def _begin(self, work: Any) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _move(self) -> None:
        """One shard is led by somebody else, in between perhaps by nobody."""
        shard = self.rng.choice(self.shards)
        if shard.leader:
            await self._elect(shard, self.rng.choice([0.0, self.rng.uniform(0.0, 1.0)]), set())

    async def _silence(self) -> None:
        """A server takes calls and says nothing. After an election others lead its shards, or it was back before."""
        await self._lose(self.network.silence, self.network.resume)

    async def _stop(self) -> None:
        await self._lose(self.network.stop, self.network.start)

    async def _lose(self, begin: Any, end: Any) -> None:
        address = self.rng.choice(SERVERS)
        begin(address)
        lasts_s = self.rng.choice([self.rng.uniform(0.05, 1.0), self.rng.uniform(2.0, 8.0)])
        elections = []
        for shard in self.shards:
            election_s = self.rng.uniform(*ELECTION_S)
            if shard.leader == address and election_s < lasts_s:
                elections.append(self._elect(shard, election_s, {address}))
        await asyncio.gather(asyncio.sleep(lasts_s), *elections)
        end(address)

    async def _elect(self, shard: SimShard, after_s: float, without: set[str]) -> None:
        if not without:
            shard.leader = ""
        await asyncio.sleep(after_s)
        while not (
            electable := [server for server in SERVERS if server not in without and self.network.is_well(server)]
        ):
            await asyncio.sleep(ELECTION_S[0])  # who is silent wins no votes
        shard.leader = self.rng.choice(electable)
        shard.epoch += 1
        shard.changed.set()
        named = (shard.leader, shard.epoch)
        self._believed[shard.leader][shard.number] = named
        for known in (*self._believed.values(), self._map):
            self._begin(self._tell(known, shard.number, named))

    async def _tell(self, known: dict[int, tuple[str, int]], shard: int, named: tuple[str, int]) -> None:
        await asyncio.sleep(self.rng.uniform(*NEWS_S))
        if known[shard][1] < named[1]:
            known[shard] = named

    # --- checks -------------------------------------------------------------------------------------------------

    def holders(self, claim_id: str) -> Mapping[int, list[str]]:
        return {shard.number: shard.claims[claim_id] for shard in self.shards if claim_id in shard.claims}

    def made_by(self, shard: int) -> set[str]:
        return self.shards[shard].made


def _add_to_runs(response: pb.ReserveResponse, claimed: str, token: int) -> None:
    """To the last run if it follows there, as in a broker."""
    if response.runs:
        last = response.runs[-1]
        count = len(last.payloads)
        if token == last.token + count and claimed == later_task_ids(last.task_id, count + 1)[count]:
            last.payloads.append(b"")
            return
    response.runs.add(task_id=claimed, token=token, payloads=[b""])


def refusal(refused: RefusedError) -> CallFailedError:
    code, details = status_of(refused)
    return CallFailedError(code, refused.message, details)


@contextmanager
def loop_clock() -> Iterator[None]:
    """time.monotonic() is the time of the event loop that runs, as it is with a real one."""
    real = time.monotonic

    def monotonic() -> float:
        try:
            return asyncio.get_running_loop().time()
        except RuntimeError:
            return real()

    time.monotonic = monotonic
    try:
        yield
    finally:
        time.monotonic = real
