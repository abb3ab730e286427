"""Routers and direct clients on virtual time, over the network's twin: leaders that move, servers that are silent or
gone, answers that are lost. A seed is a history, and what callers were told is compared with what was done.
"""

import asyncio
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Protocol

import pytest

from holdfast.client._direct import Direct
from holdfast.client._leaders import may_have_taken_effect
from holdfast.client._rpc import Connection, method
from holdfast.client.errors import HoldfastError
from holdfast.common.backoff import Backoff
from holdfast.proto.v1 import tasks_pb2 as pb
from holdfast.router.admission import Admission
from holdfast.router.callers import Caller
from holdfast.router.failures import FAILURES
from holdfast.router.forwarding import Forwarder
from holdfast.router.gateway import Gateway
from holdfast.router.leaders import Leaders
from holdfast.router.own import OwnCalls
from holdfast.router.releases import Releases
from holdfast.routing.patience import PART_S, TRY_S_MAX, UNHEALTHY_PART_S, UNSETTLED_S
from holdfast.routing.placing import specs_of
from holdfast.routing.splitting import join, rejections_of
from holdfast.routing.task_ids import later_task_ids
from holdfast.serving.refusals import not_leader
from holdfast.transport.channels import CallFailedError
from tests.long import IS_LONG
from tests.simulation import virtual_time
from tests.simulation.routing_world import QUEUES, SERVERS, SHARDS, RoutingWorld, loop_clock
from tests.unit.router.router_stage import METHODS

TIMEOUT_S = 8.0
TROUBLE_S = 12.0
ATTEMPTS_MAX = 70  # of one call, in its 8 s
SLACK_S = 0.5  # when its time is over, each of the last steps of a direct client is given 0.1 s
SEEDS = 200 if IS_LONG else 2

ENQUEUE = method(pb, "Tasks", "Enqueue", pb.EnqueueRequest, pb.EnqueueResponse)
RESERVE = method(pb, "Tasks", "Reserve", pb.ReserveRequest, pb.ReserveResponse)
ACK = method(pb, "Tasks", "Ack", pb.AckRequest, pb.AckResponse)
# Reasons that say of an item that nothing was done.
NOTHING_DONE = {"NOT_LEADER", "SHUTTING_DOWN", "SHARD_NOT_FOUND", "OVERLOADED"}

FAULTS: dict[str, dict[str, Any]] = {
    "moves": {"moves": True},
    "lost answers": {"moves": True, "lost": 0.1},
    "silence": {"moves": True, "silences": True},
    "everything": {"moves": True, "silences": True, "stops": True, "lost": 0.1},
}
pytestmark = pytest.mark.timeout(300)


@pytest.fixture(autouse=True)
def clock() -> Iterator[None]:
    with loop_clock():
        yield


class Side(Protocol):
    @property
    def failures(self) -> tuple[type[Exception], ...]: ...

    async def enqueue(self, request: pb.EnqueueRequest) -> pb.EnqueueResponse: ...

    async def reserve(self, request: pb.ReserveRequest, attempt: int) -> pb.ReserveResponse: ...

    async def ack(self, request: pb.AckRequest) -> pb.AckResponse: ...

    def is_unknown(self, failure: Exception) -> bool:
        """Whether the call may have taken effect."""
        ...

    async def close(self) -> None: ...


class _Nobody:
    def __getattr__(self, _name: str) -> Any:
        return None


class RouterSide:
    failures: tuple[type[Exception], ...] = FAILURES

    def __init__(self, world: RoutingWorld) -> None:
        self._forwarder = Forwarder(Leaders(world), world.network, Admission(calls_max=100, calls_per_shard_max=50))
        self._releases = Releases(self._forwarder)
        self._gateway = Gateway(
            world, self._forwarder, self._releases, Admission(calls_max=100, calls_per_shard_max=50),
            check_map=lambda: None, own=OwnCalls(_Nobody(), _Nobody(), list), wait_ms_max=60_000,
            call_s_default=TIMEOUT_S, message_bytes_max=1 << 22,
        )  # fmt: skip

    async def enqueue(self, request: pb.EnqueueRequest) -> pb.EnqueueResponse:
        return pb.EnqueueResponse.FromString(await self._call("Enqueue", request, 1, TIMEOUT_S))

    async def reserve(self, request: pb.ReserveRequest, attempt: int) -> pb.ReserveResponse:
        answer = await self._call("Reserve", request, attempt, TIMEOUT_S + request.wait_ms / 1000)
        return pb.ReserveResponse.FromString(answer)

    async def ack(self, request: pb.AckRequest) -> pb.AckResponse:
        return pb.AckResponse.FromString(await self._call("Ack", request, 1, TIMEOUT_S))

    async def _call(self, name: str, request: Any, attempt: int, timeout_s: float) -> bytes:
        caller = Caller(None, attempt, time.monotonic() + timeout_s, lambda: False)
        return await self._gateway.handle(METHODS[name], request.SerializeToString(), caller)

    def is_unknown(self, failure: Exception) -> bool:
        is_fault = isinstance(failure, CallFailedError) and failure.is_unknown
        return is_fault or getattr(failure, "reason", "") == "OUTCOME_UNKNOWN"

    async def close(self) -> None:
        await self._gateway.close()
        await self._releases.close(1.0)
        await self._forwarder.close()


class DirectSide:
    failures: tuple[type[Exception], ...] = (HoldfastError,)

    def __init__(self, world: RoutingWorld) -> None:
        self._connection = Connection(",".join(SERVERS), retry=True, channels=world.network)
        self._direct = Direct(self._connection)

    async def enqueue(self, request: pb.EnqueueRequest) -> pb.EnqueueResponse:
        repeatable = all(spec.request_id for spec in specs_of(request))
        return (await self._direct.call(ENQUEUE, request, timeout_s=TIMEOUT_S, repeatable=repeatable)).message

    async def reserve(self, request: pb.ReserveRequest, attempt: int) -> pb.ReserveResponse:
        reply = await self._direct.call(
            RESERVE, request, wait_ms=request.wait_ms, timeout_s=TIMEOUT_S, repeatable=True, attempt=attempt
        )
        return reply.message

    async def ack(self, request: pb.AckRequest) -> pb.AckResponse:
        return (await self._direct.call(ACK, request, timeout_s=TIMEOUT_S, repeatable=True)).message

    def is_unknown(self, failure: Exception) -> bool:
        assert isinstance(failure, HoldfastError)
        return may_have_taken_effect(failure)

    async def close(self) -> None:
        await self._direct.close()
        await self._connection.close()


SIDES: dict[str, Callable[[RoutingWorld], Side]] = {"router": RouterSide, "direct": DirectSide}


class Producer:
    """Enqueues batches over all shards, some of them in runs, and keeps what it was told of each task."""

    def __init__(self, world: RoutingWorld, side: Side, name: str, *, in_runs: bool = False) -> None:
        self._world = world
        self._side = side
        self._name = name
        self._in_runs = in_runs
        self.accepted: dict[str, str] = {}  # by payload: the task
        self.refused: set[str] = set()  # payloads of which nothing was done

    async def run(self, until_s: float) -> None:
        number = 0
        while time.monotonic() < until_s:
            await self.enqueue(number, self._world.rng.randint(1, 8), has_ids=self._world.rng.random() < 0.7)
            number += 1
            await asyncio.sleep(self._world.rng.uniform(0.0, 0.5))

    async def enqueue(self, number: int, count: int, *, has_ids: bool = True) -> None:
        payloads = [f"{self._name}-{number}-{index}" for index in range(count)]
        request = pb.EnqueueRequest()
        runs = [] if not self._in_runs else [index for index in range(count) if self._world.rng.random() < 0.5]
        lengths = {index: self._world.rng.randint(1, 5) for index in runs}
        for position, payload in enumerate(payloads):
            spec = pb.TaskSpec(queue=QUEUES[position % SHARDS], request_id=payload if has_ids else "")
            if position in lengths:
                names = [f"{payload}.{place}" for place in range(lengths[position])]
                request.runs.add(task=spec, payloads=[name.encode() for name in names])
            else:
                request.tasks.add(payload=payload.encode()).MergeFrom(spec)
        await self._send(request)

    async def _send(self, request: pb.EnqueueRequest) -> None:
        tasks = [[task.payload.decode()] for task in request.tasks]
        runs = [[payload.decode() for payload in run.payloads] for run in request.runs]
        began_s = time.monotonic()
        try:
            response = await self._side.enqueue(request)
        except self._side.failures as failure:
            assert time.monotonic() - began_s <= TIMEOUT_S + SLACK_S
            if not self._side.is_unknown(failure):
                self.refused.update(payload for payloads in (*tasks, *runs) for payload in payloads)
            return
        assert (len(response.outcomes), len(response.runs)) == (len(tasks), len(runs)), "no part is lost"
        for payloads, outcome in zip(tasks, response.outcomes, strict=True):
            self._note(payloads, outcome.accepted.task_id, outcome.rejection)
        for payloads, joined in zip(runs, response.runs, strict=True):
            self._note(payloads, joined.first_task_id, joined.rejection)

    def _note(self, payloads: list[str], first: str, rejection: pb.Rejection) -> None:
        if first:
            self.accepted.update(zip(payloads, later_task_ids(first, len(payloads)), strict=True))
        elif rejection.reason in NOTHING_DONE:
            self.refused.update(payloads)
        else:
            assert rejection.reason == "OUTCOME_UNKNOWN"

    def check(self) -> None:
        applied = self._world.applied
        made = {task for shard in range(SHARDS) for task in self._world.made_by(shard)}
        for payload, task in self.accepted.items():
            assert applied[payload] == 1, f"{payload} was accepted and made {applied[payload]} times"
            assert task in made
            assert self._world.tasks[payload] == task, f"{payload} was told the id of another task"
        assert len(set(self.accepted.values())) == len(self.accepted), "no answer is given to two items"
        for payload in self.refused:
            assert applied[payload] == 0, f"{payload} was made although nothing was to be done"


class Worker:
    """Reserves, and asks for what an unsettled call has claimed. A call that fails is repeated with the same id."""

    def __init__(self, world: RoutingWorld, side: Side, name: str, *, in_runs: bool = False) -> None:
        """`in_runs`: takes runs, and acks what it was given, in ranges where that can be."""
        self._world = world
        self._side = side
        self._name = name
        self._in_runs = in_runs
        self._unacked: list[pb.AckRange] = []
        self.acked: set[str] = set()
        self.got: dict[str, list[str]] = {}  # by claim id, of calls that were answered
        self.repeated: set[str] = set()  # ids of calls of which one failed

    async def run(self, until_s: float) -> None:
        number = 0
        while time.monotonic() < until_s:
            claim_id = f"{self._name}x{number}"
            self.got[claim_id] = await self.reserve(claim_id, wait_ms=self._world.rng.choice([0, 2_000]))
            number += 1
            if self._in_runs and self._world.rng.random() < 0.3:
                await self.ack()

    async def reserve(self, claim_id: str, wait_ms: int) -> list[str]:
        request = pb.ReserveRequest(
            queues=QUEUES, worker=self._name, max_tasks=2, lease_ms=60_000, wait_ms=wait_ms, claim_request_id=claim_id,
            settles_later=self._world.rng.random() < 0.3, takes_runs=self._in_runs,
        )  # fmt: skip
        if self._in_runs:
            request.max_tasks = self._world.rng.randint(1, 6)
        attempt = 1
        got: list[str] = []
        while True:
            began_s = time.monotonic()
            wait_s = request.wait_ms / 1000
            try:
                response = await self._side.reserve(request, attempt)
            except self._side.failures:
                attempt += 1
                self.repeated.add(claim_id)
                await asyncio.sleep(0.1)
            else:
                got += self._receive(response)
                if not response.unsettled_shards:
                    return got
                request.held_only, request.held_at[:], request.wait_ms = True, response.unsettled_shards, 0
            assert time.monotonic() - began_s <= wait_s + TIMEOUT_S + SLACK_S

    def _receive(self, response: pb.ReserveResponse) -> list[str]:
        assert not (response.claims if self._in_runs else response.runs), "claims come as they were asked for"
        for run in response.runs:
            self._unacked.append(pb.AckRange(task_id=run.task_id, token=run.token, count=len(run.payloads)))
        ids = [claim.task_id for claim in response.claims]
        return ids + [task for run in response.runs for task in later_task_ids(run.task_id, len(run.payloads))]

    async def ack(self) -> None:
        """All that was not acked yet, of all shards; what is not known, or not done, the next time."""
        ranges = [item for item in self._unacked if item.count > 1]
        alone = [item for item in self._unacked if item.count == 1]
        items = [pb.AckItem(claim=pb.ClaimRef(task_id=item.task_id, token=item.token)) for item in alone]
        if not self._unacked:
            return
        try:
            response = await self._side.ack(pb.AckRequest(items=items, ranges=ranges))
        except self._side.failures:
            return
        joined = [*response.outcomes, *response.ranges]
        assert (len(response.outcomes), len(response.ranges)) == (len(alone), len(ranges)), "no part is lost"
        self._unacked = []
        for one, outcome in zip([*alone, *ranges], joined, strict=True):
            refused = rejections_of(outcome)
            assert {rejection.reason for rejection in refused} <= {*NOTHING_DONE, "OUTCOME_UNKNOWN"}
            if refused:
                self._unacked.append(one)
            else:
                self.acked.update(later_task_ids(one.task_id, one.count))

    def check(self) -> None:
        assert not self._unacked, "everybody could be told"
        acked = {task for shard in self._world.shards for task in shard.acked}
        assert acked >= self.acked, "what was told to be acked is acked"
        if self._in_runs:
            assert self.acked == {task for tasks in self.got.values() for task in tasks}


async def history(
    seed: int, build: Callable[[RoutingWorld], Side], faults: dict[str, Any], *, in_runs: bool = False
) -> RoutingWorld:
    """`in_runs`: tasks and claims come in runs as well, and are acked."""
    world = RoutingWorld(seed, **faults)
    side = build(world)
    producers = [Producer(world, side, f"p{number}", in_runs=in_runs) for number in range(2)]
    workers = [Worker(world, side, f"w{number}", in_runs=in_runs) for number in range(3)]
    try:
        callers = [*(producer.run(TROUBLE_S) for producer in producers), *(worker.run(TROUBLE_S) for worker in workers)]
        await asyncio.gather(world.make_trouble(TROUBLE_S), *callers)
        await world.heal()
        drain = Worker(world, side, "drain", in_runs=in_runs)
        await drain.run(time.monotonic() + 3.0)
        for worker in (*workers, drain):
            await worker.ack()
            worker.check()
        assert not any(shard.ready for shard in world.shards), "whatever is ready is claimed"
        for producer in producers:
            producer.check()
        # With acks beside them, more answers are lost than a claim can always wait for.
        is_answered = not faults.get("silences") and not faults.get("stops") and not in_runs
        check_claims(world, [*workers, drain], is_answered=is_answered)
        assert max(world.applied.values()) == 1, "nothing is carried out twice"
        assert max(world.attempts.values()) <= ATTEMPTS_MAX
    finally:
        await side.close()
    return world


def check_claims(world: RoutingWorld, workers: list[Worker], *, is_answered: bool) -> None:
    """Whatever was claimed with the id of a call that was answered was given, or came when it was asked for.
    `is_answered`: every shard could be asked what it had claimed before anything was claimed elsewhere."""
    given: set[str] = set()
    for worker in workers:
        for claim_id, tasks in worker.got.items():
            held = world.holders(claim_id)
            claimed = [task for claims in held.values() for task in claims]
            assert set(tasks) <= set(claimed), "what was given was claimed"
            assert len(set(tasks)) == len(tasks), "a task is given once"
            assert not given.intersection(tasks), "a task is given to one worker"
            given.update(tasks)
            assert sorted(claimed) == sorted(tasks), f"{claim_id} has claims that nobody was given: {held}"
            if is_answered and claim_id not in worker.repeated:
                assert len(held) <= 1, f"{claim_id} has claims at shards {list(held)}"


def run(side: str, faults: dict[str, Any], seeds: int = SEEDS) -> None:
    for seed in range(seeds):
        try:
            make = partial(history, seed, SIDES[side], faults, in_runs=seed % 2 == 1)
            world = virtual_time.run(make, seed)
        except AssertionError as problem:
            raise AssertionError(f"seed {seed}: {problem}") from problem
        assert sum(world.applied.values()) > 10, "there was something to be told of"


@pytest.mark.parametrize("faults", FAULTS.values(), ids=list(FAULTS))
@pytest.mark.parametrize("side", SIDES)
def test_what_callers_are_told_is_what_was_done(side: str, faults: dict[str, Any]) -> None:
    run(side, faults)


@pytest.mark.parametrize(("side", "faults", "seed"), [("router", "everything", 19)])
def test_histories_that_were_told_wrong_once(side: str, faults: str, seed: int) -> None:
    virtual_time.run(lambda: history(seed, SIDES[side], FAULTS[faults]), seed)


async def ask_nobody(_self: object, call: Any) -> tuple[list[int], list[int]]:
    call.asks_holders()
    return [], []


def join_backwards(parts: Any, count: int) -> list[Any]:
    answers = [(positions, list(reversed(answers))) for positions, answers in parts]
    return join(answers, count)


# Rules that are left out, and what is seen then.
ABLATIONS: dict[str, tuple[str, str, str, Any, str]] = {
    "everything is repeated": (
        "router", "lost answers", "holdfast.router.methods.Method.may_repeat", lambda *_: True, "made 2 times|twice",
    ),
    "a lost answer is a refusal": (
        "router", "lost answers", "holdfast.router.forwarding.reported",
        lambda _failure, shard, **_: not_leader(shard, 0, None), "although nothing was to be done",
    ),
    "nobody is asked for claims": (
        "direct", "lost answers", "holdfast.transport.reserving.ReserveOverShards.holders", ask_nobody,
        "has claims at shards",
    ),
    "who may hold claims is not named": (
        "router", "everything", "holdfast.routing.reserve_calls.ReserveCall.unsettled_shards", (),
        "has claims that nobody was given",
    ),
    "answers are in another order": (
        "router", "moves", "holdfast.routing.splitting.join", join_backwards, "was told the id of another task",
    ),
    "no pauses": (
        "direct", "lost answers", "holdfast.routing.retries.BACKOFF", Backoff(0.001, 0.001), str(ATTEMPTS_MAX),
    ),
}  # fmt: skip


@pytest.mark.parametrize("ablation", ABLATIONS)
def test_a_rule_that_is_left_out_is_missed(ablation: str, monkeypatch: pytest.MonkeyPatch) -> None:
    side, faults, name, without, seen = ABLATIONS[ablation]
    monkeypatch.setattr(name, without)
    with pytest.raises(AssertionError, match=seen):
        run(side, FAULTS[faults], seeds=50)


@pytest.mark.parametrize("side", SIDES)
def test_the_silence_of_one_shard_delays_no_other(side: str) -> None:
    """Nobody else is elected: the first call waits as long as an election may take, and those after it much less."""

    async def main() -> None:
        world = RoutingWorld(7)
        caller = SIDES[side](world)
        producer, worker = Producer(world, caller, "p"), Worker(world, caller, "w")
        try:
            await producer.enqueue(0, 8)
            assert len(producer.accepted) == 8
            world.network.silence(world.shards[1].leader)
            for number, longest_s in ((1, PART_S), (2, UNHEALTHY_PART_S), (3, UNHEALTHY_PART_S)):
                began_s = time.monotonic()
                await producer.enqueue(number, 8)
                assert time.monotonic() - began_s <= longest_s + SLACK_S
                of_others = [f"p-{number}-{index}" for index in range(8) if world.applied[f"p-{number}-{index}"]]
                assert of_others
                assert producer.accepted.keys() >= set(of_others), "the parts of the others are answered"
            for number, longest_s in enumerate([TRY_S_MAX + UNSETTLED_S, 0.0, 0.0, 0.0]):
                began_s = time.monotonic()
                assert await worker.reserve(f"w{number}", wait_ms=5_000)
                assert time.monotonic() - began_s <= longest_s + SLACK_S
        finally:
            await caller.close()

    virtual_time.run(main, 7)


@pytest.mark.parametrize("side", SIDES)
def test_parts_that_are_not_given_up_are_missed(side: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.transport.parts.Parts.give_up_later", lambda *_: [])
    with pytest.raises(AssertionError, match="longest_s|<="):
        test_the_silence_of_one_shard_delays_no_other(side)
