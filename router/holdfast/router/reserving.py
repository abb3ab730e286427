"""Reserve and AwaitTasks where the queues are on several shards (`transport.reserving`), or callers wait.

A call waits its turn here (`shared_waits`), and claims where it is told that there is something. Where others wait
already nothing is left to take: then it only waits. Claims that reach nobody go back if the request has no id.
"""

import asyncio
import random
import time
from collections.abc import Callable, Mapping, Sequence

from google.protobuf.message import DecodeError

from holdfast.proto.v1 import tasks_pb2 as pb
from holdfast.router.callers import Caller
from holdfast.router.failures import ELSEWHERE, FAILURES, Failure, is_passing, may_pass_if_read
from holdfast.router.forwarding import Forwarder
from holdfast.router.known_requests import KnownRequests
from holdfast.router.methods import TASKS
from holdfast.router.ready_waiters import Waiter
from holdfast.router.releases import Releases
from holdfast.router.shared_waits import TASKS_MAX, SharedWaits
from holdfast.routing.patience import TRY_S_MAX, UNSETTLED_S, Leader
from holdfast.routing.reserve_calls import AWAY_S, FailureMeaning, Places
from holdfast.serving.refusals import NOT_LEADER, OUT_OF_RANGE, RefusedError, outcome_unknown, overloaded
from holdfast.transport.channels import CallFailedError
from holdfast.transport.giving_up import GivingUp
from holdfast.transport.reserving import MARGIN_S, ReserveOverShards, ShardsCall, says_something

# Calls that look at shards before they wait, at a time. When very many workers come at once, the others only join the
# line: what is there is found by the waits that they share. The same for those that ask who holds claims of theirs.
POLLS_MAX = 64
# Idle workers come back when their wait is over, and each time costs about half a millisecond. So the more of them
# wait, the longer they are told to wait: about twenty of them come back in a second.
IDLE_MS_PER_CALLER = 60
IDLE_MS_MIN = 60_000  # shorter than that is not worth telling

# Calls that ask what an unanswered one has claimed, at a time: a shard that does not answer keeps them all waiting.
HELD_ASKED_MAX = 256

_RESERVE = TASKS["Reserve"]
_AWAIT = TASKS["AwaitTasks"]


class _CutOffError(RefusedError):
    """A shard said nothing in the time that it had."""

    def __init__(self) -> None:
        unknown = outcome_unknown()
        super().__init__(unknown.reason, unknown.message, retry_after_ms=unknown.retry_after_ms)


class RouterCall(ShardsCall):
    """A call, who makes it, and its place in the lines."""

    def __init__(
        self, request: pb.ReserveRequest | pb.AwaitTasksRequest, caller: Caller, waiter: Waiter, places: Places,
        ends_s: float, deadline_s: float,
    ) -> None:  # fmt: skip
        super().__init__(request, places, ends_s, deadline_s, attempt=caller.attempt)
        self.caller = caller
        self.waiter = waiter
        self.has_polled_again = False  # for claims of an earlier attempt, while it waited


class Reserving(ReserveOverShards[RouterCall, bytes]):
    """Claims tasks, and gives back what its caller did not wait for."""

    unhealthy_grace_s = 0.2  # what comes later is found by the waits that callers share

    def __init__(
        self,
        forwarder: Forwarder,
        releases: Releases,
        *,
        wait_ms_max: int,
        find_places: Callable[[Sequence[str]], Places],
        leader_of: Callable[[int], Leader],
        waits_max: int = 10_000,
        idle_wait_ms_max: int = 0,
    ) -> None:
        """`find_places`: of some queues, in the newest map; `leader_of`: who leads a shard by that map; `waits_max`:
        how many waits there may be at brokers; `idle_wait_ms_max`: how long callers may be told to wait if very many
        do."""
        super().__init__(FAILURES)
        self._forwarder = forwarder
        self._releases = releases
        self._wait_ms_max = wait_ms_max
        self._idle_wait_ms_max = idle_wait_ms_max
        self._find_places = find_places
        self._leader_of = leader_of
        self._held_asked = 0  # calls that ask what was claimed
        self._known = KnownRequests()
        self._polling = 0
        self._asking = asyncio.Semaphore(POLLS_MAX)
        self.waits = SharedWaits(
            forwarder, wait_ms=wait_ms_max, waits_max=waits_max, find_shards=lambda queue: [*find_places([queue])],
            heard=self._heard_of,
        )  # fmt: skip

    def routes_changed(self, queues: Sequence[str]) -> None:
        """They are on other shards than before: calls that wait for their tasks wait there too."""
        self.waits.routes_changed(queues)

    async def reserve(self, request: pb.ReserveRequest, data: bytes, caller: Caller, deadline_s: float) -> bytes:
        """From all shards that may have tasks of the queues. `data`: the request's bytes."""
        places = self._find_places(request.queues)
        if not request.held_only and (not places or (len(places) == 1 and not request.wait_ms)):
            return await self.claim(next(iter(places), 0), data, caller, deadline_s)
        wait_ms_max = max(self._wait_ms_max, self._idle_wait_ms_max)
        ends_s = 0.0 if request.held_only else _wait_ends_s(request.wait_ms, wait_ms_max, deadline_s)
        is_empty_handed = request.empty_handed or not request.HasField("empty_handed")
        with self.waits.join(_wants(request), request.worker, is_empty_handed=is_empty_handed) as waiter:
            call = RouterCall(request, caller, waiter, places, ends_s, deadline_s)
            if request.held_only:
                return await self._claims_held(call, request.held_at or list(places) or [0])
            return await self.claim_anywhere(call)

    async def _claims_held(self, call: RouterCall, shards: Sequence[int]) -> bytes:
        if self._held_asked >= HELD_ASKED_MAX:
            raise overloaded("calls that ask what was claimed", HELD_ASKED_MAX)
        self._held_asked += 1
        try:
            return await self.claims_held(call, shards)
        finally:
            self._held_asked -= 1

    async def await_tasks(self, request: pb.AwaitTasksRequest, data: bytes, caller: Caller, deadline_s: float) -> bytes:
        """The same without claiming."""
        places = self._find_places(request.queues)
        if not places or (len(places) == 1 and not request.wait_ms):
            return await self._forwarder.send(_AWAIT, next(iter(places), 0), data, deadline_s)
        ends_s = _wait_ends_s(request.wait_ms, self._wait_ms_max, deadline_s)
        with self.waits.join(dict.fromkeys(request.queues, 1), request.worker) as waiter:
            call = RouterCall(request, caller, waiter, places, ends_s, deadline_s)
            ready, held = await self.poll(call, call.to_be_asked(time.monotonic()))
            if not ready and not held and not call.is_over(time.monotonic()):
                shard = await self.waits.wait(waiter, call.ends_s)
                if shard is not None:
                    ready = [shard]
                elif request.claim_request_id:
                    _, held = await self.holders(call)
                self._note_health(call)
        if not ready and not held:
            call.raise_if_nobody_answers()
        return pb.AwaitTasksResponse(
            ready=bool(ready or held), held=bool(held), tasks=int(bool(ready or held))
        ).SerializeToString()

    # --- at one shard -------------------------------------------------------------------------------------------

    async def claim(
        self, shard: int, data: bytes, caller: Caller, deadline_s: float, repeats_until_s: float = float("inf"),
        *, is_settled_later: bool = False,
    ) -> bytes:  # fmt: skip
        """At one shard, which may wait for a task.

        Claims with a claim_request_id are never given back: they are there to be asked for again, and another router
        may have handed them out already to a caller that did.
        """
        giving_up = GivingUp()
        reserve = asyncio.create_task(
            self._forwarder.send(
                _RESERVE, shard, data, deadline_s, giving_up, repeats_until_s=repeats_until_s,
                received_s=caller.received_s,
            )
        )  # fmt: skip
        try:
            await asyncio.wait((reserve,))
        except asyncio.CancelledError:
            if is_settled_later:
                self._releases.forget(reserve)  # what it claims is asked for; cancelled, it would be claimed in vain
            else:
                self._let_go(shard, data, reserve, giving_up)
            raise
        answer = reserve.result()
        if answer and caller.is_gone:
            if not _RESERVE.may_repeat(data):
                self._releases.release(shard, answer)
            raise CallFailedError("CANCELLED", "The caller has gone.")
        return answer

    def _let_go(self, shard: int, data: bytes, reserve: "asyncio.Task[bytes]", giving_up: GivingUp) -> None:
        """Nobody waits for the answer any more."""
        giving_up.give_up()
        if _RESERVE.may_repeat(data):
            self._releases.forget(reserve)
        else:
            self._releases.adopt(shard, reserve)

    # --- at several ---------------------------------------------------------------------------------------------

    async def send_claim(
        self, call: RouterCall, shard: int, request: pb.ReserveRequest, limit_s: float | None, repeats_s: float
    ) -> bytes:
        now_s = time.monotonic()
        ends_s = min(call.deadline_s, now_s + (limit_s or 0.0) + UNSETTLED_S) if call.is_hasty else call.deadline_s
        try:
            async with asyncio.timeout(limit_s):
                return await self.claim(
                    shard, request.SerializeToString(), call.caller, ends_s, now_s + repeats_s,
                    is_settled_later=call.is_hasty,
                )  # fmt: skip
        except TimeoutError:
            raise _CutOffError from None

    async def send_held(self, call: RouterCall, shard: int) -> bytes:
        ends_s = min(call.deadline_s, time.monotonic() + TRY_S_MAX)
        data = call.request.SerializeToString()
        return await self._forwarder.send(_RESERVE, shard, data, ends_s, received_s=call.caller.received_s)

    async def send_poll(
        self, call: RouterCall, shard: int, request: pb.AwaitTasksRequest, wait_s: float
    ) -> pb.AwaitTasksResponse:
        answer_s = UNSETTLED_S if shard in call.unknown_outcomes else TRY_S_MAX
        ends_s = min(call.deadline_s, time.monotonic() + wait_s + answer_s)
        return pb.AwaitTasksResponse.FromString(
            await self._forwarder.send(_AWAIT, shard, request.SerializeToString(), ends_s)
        )

    def judge(self, failure: Exception) -> FailureMeaning:
        assert isinstance(failure, FAILURES)
        is_cut_off = isinstance(failure, _CutOffError)
        return FailureMeaning(
            is_final=not is_passing(failure) and not may_pass_if_read(failure),
            may_have_claimed=not is_passing(failure),
            is_silent=is_cut_off,
            is_cut_off=is_cut_off,
            goes_back=is_cut_off,
            # It does not answer, or nobody leads it; otherwise the refusal is for this caller, or for this moment.
            is_of_shard=failure.reason in ELSEWHERE or may_pass_if_read(failure),
            retry_after_ms=failure.retry_after_ms,
        )

    def silent(self, shard: int) -> RefusedError:
        return RefusedError(
            NOT_LEADER,
            f"Expected the leader of shard {shard} to answer soon, but nobody did; try again in a moment.",
            retry_after_ms=200,
            metadata={"shard": str(shard)},
        )

    def has_something(self, reply: bytes) -> bool:
        try:
            return says_something(pb.ReserveResponse.FromString(reply))
        except DecodeError:
            return True  # the caller will say that it cannot be read

    def unsettled(self, shards: Sequence[int], reply: bytes | None = None) -> bytes:
        # Messages that stand one after the other are one, with the fields of both.
        return (reply or b"") + pb.ReserveResponse(unsettled_shards=shards).SerializeToString()

    def nothing(self, _call: RouterCall) -> bytes:
        idle_ms = min(self.waits.callers * IDLE_MS_PER_CALLER, self._idle_wait_ms_max)
        if idle_ms < IDLE_MS_MIN:
            return b""
        # Not all of them at the same moment.
        return pb.ReserveResponse(suggested_wait_ms=int(idle_ms * random.uniform(0.7, 1.0))).SerializeToString()

    def leader_of(self, shard: int) -> Leader:
        return self._leader_of(shard)

    def leaders(self, call: RouterCall) -> Mapping[int, Leader]:
        return {shard: self._leader_of(shard) for shard in call.places}

    def took(self, call: RouterCall) -> None:
        self.waits.took(call.waiter)

    def got_nothing(self, call: RouterCall) -> None:
        assert isinstance(call.request, pb.ReserveRequest)
        if call.request.wait_ms:
            self._known.add(call.request)

    async def try_each(self, call: RouterCall, order: Sequence[int]) -> bytes | None:
        self._polling += 1
        try:
            return await super().try_each(call, order)
        finally:
            self._polling -= 1

    async def holders(self, call: RouterCall) -> tuple[list[int], list[int]]:
        async with self._asking:
            return await super().holders(call)

    def first_order(self, call: RouterCall) -> list[int]:
        """Where something may be that nobody waits for already. One at least if no broker has seen such a request: it
        says what is wrong with it."""
        assert isinstance(call.request, pb.ReserveRequest)
        order = [shard for shard in self.in_turn(call) if not self.is_unhealthy(shard)]
        if call.is_over(time.monotonic()):
            return order
        if self._polling >= POLLS_MAX:
            return []
        open_ = {index for index, queue in enumerate(call.request.queues) if not self.waits.has_free(queue)}
        tried = [shard for shard in order if not open_.isdisjoint(call.places[shard])]
        return tried or ([] if self._known.has(call.request) else order[:1])

    # --- waiting ------------------------------------------------------------------------------------------------

    async def wait(self, call: RouterCall) -> list[int]:
        """Nowhere also if it is only known that no shard holds claims of a request that was sent before: an attempt
        that nobody waits for any more may claim at a later moment."""
        await self._stand_back(call)
        until_s = call.ends_s
        if call.is_repeated and not call.has_polled_again:
            until_s = min(until_s, time.monotonic() + UNSETTLED_S)
        shard = await self.waits.wait(call.waiter, until_s)
        call.plan(self._find_places(call.request.queues))
        if shard is not None:
            return [shard] if shard in call.places else []
        if call.is_repeated:
            call.has_polled_again = True
            _, held = await self.holders(call)
            if held:
                return held
        if call.is_over(time.monotonic()):
            self._note_health(call)
        return []

    async def _stand_back(self, call: RouterCall) -> None:
        """If a broker does not let this caller have what it was woken for: others may, and it is not in their way."""
        waiter = call.waiter
        failure = None if waiter.woken_at is None else call.failure_of(waiter.woken_at[1])
        if failure is not None and not self.judge(failure).is_of_shard:
            self.waits.pass_on(waiter)
            pause_s = max(AWAY_S, self.judge(failure).retry_after_ms / 1000)
            await asyncio.sleep(max(0.0, min(pause_s, call.ends_s - time.monotonic())))

    def _note_health(self, call: RouterCall) -> None:
        """What the shards have said to the waits that this call shared."""
        now_s = time.monotonic()
        for shard, positions in call.places.items():
            waits = [
                wait for index in positions if (wait := self.waits.of(call.request.queues[index], shard)) is not None
            ]
            failures = [wait.failure for wait in waits if wait.failure is not None]
            own = call.failure_of(shard)
            if own is not None and not self.judge(own).is_of_shard:
                continue  # what the shard says to others is not for this caller
            if shard in self._good and not failures:
                call.answered(shard, now_s, settles=False)
            elif failures:
                call.leave_alone(shard, failures[0], now_s, failures[0].retry_after_ms)

    def _heard_of(self, shard: int, failure: Failure | None) -> None:
        """By a wait that calls share."""
        if failure is None:
            self._good.add(shard)
        else:
            self._note(shard, self.judge(failure))


def _wait_ends_s(wait_ms: int, wait_ms_max: int, deadline_s: float) -> float:
    if not 0 <= wait_ms <= wait_ms_max:
        sentence = f"Expected {{field}} from 0 to {wait_ms_max}, but got {wait_ms}."
        raise RefusedError(OUT_OF_RANGE, sentence, "wait_ms", f"0..{wait_ms_max}")
    return min(time.monotonic() + wait_ms / 1000, deadline_s - MARGIN_S)


def _wants(request: pb.ReserveRequest) -> dict[str, int]:
    """How many tasks of each of its queues the caller would take; 0 in the request sets no limit of its own."""
    limits = request.queue_tasks_max
    most = min(max(1, request.max_tasks), TASKS_MAX)
    if len(limits) != len(request.queues):
        return dict.fromkeys(request.queues, most)
    return {queue: min(limit, most) if limit > 0 else most for queue, limit in zip(request.queues, limits, strict=True)}
