"""Calls that one shard gets as they came, in frames from the caller and to the broker: nearly all of those that are
made for every task.

They have no coroutine, no task and no future of their own: what the broker answers is written to the caller where it is
read. Whatever more a call needs it gets after that, as every other: it goes on from the failure of its first attempt.
"""

from collections.abc import Callable, Sequence

from holdfast.router.admission import Admission
from holdfast.router.batches import place
from holdfast.router.callers import Caller
from holdfast.router.forwarding import FirstAttempt, Forwarder
from holdfast.router.leaders import Map
from holdfast.router.methods import Method
from holdfast.router.passing_on import carry_out_for, carrying_out_for
from holdfast.router.releases import Releases
from holdfast.routing.calls import BY_TASK, task_ids_of
from holdfast.routing.placing import shards_of_tasks
from holdfast.routing.sets import visible
from holdfast.serving.request_limits import QUEUES_PER_RESERVE_MAX
from holdfast.serving.served import CompletedCall
from holdfast.transport.channels import OutgoingCall

_ON_TASKS = frozenset({"Ack", "Fail", "Extend", "Release"})
_METHODS = _ON_TASKS | {"Enqueue", "Reserve"}
assert BY_TASK.keys() >= _ON_TASKS


class WholeCalls:
    """Of a router."""

    def __init__(
        self, table: Map, forwarder: Forwarder, releases: Releases, admission: Admission, *,
        check_map: Callable[[], None], call_s_max: float,
    ) -> None:  # fmt: skip
        self.table = table
        self.forwarder = forwarder
        self.releases = releases
        self.budget = admission.working
        self._check_map = check_map
        self._call_s_max = call_s_max
        self._picks = 0

    def takes(self, method: Method) -> bool:
        return method.name in _METHODS

    def begin(self, method: Method, data: bytes, caller: Caller, call: CompletedCall) -> bool:
        """False if it is none of those, or its leader cannot be reached in this way now. May refuse it."""
        if caller.shard is not None or method.name not in _METHODS:
            return False
        self._check_map()
        shards = self._shards_of(method, data, caller)
        if len(shards) != 1 and len(set(shards)) != 1:
            return False
        deadline_s = min(caller.deadline_s, caller.received_s + self._call_s_max)
        return _WholeCall(self, method, shards[0], data, caller, call, deadline_s).begin()

    def _shards_of(self, method: Method, data: bytes, caller: Caller) -> Sequence[int]:
        """None of a call that is not for here."""
        request = method.parse(data)
        if method.name in _ON_TASKS:
            return shards_of_tasks([*task_ids_of(method.name, request)], self.table.shard_count)
        if method.name == "Enqueue":
            self._picks += 1
            placed = place(request, self.table, self._picks, is_first=caller.is_first)
            return () if placed.generations else placed.shards
        if request.wait_ms or request.held_only or len(request.queues) > QUEUES_PER_RESERVE_MAX:
            return ()
        return [shard for queue in request.queues for shard in visible(self.table.route(queue))]


class _WholeCall:
    """One of them."""

    __slots__ = ("_call", "_caller", "_data", "_deadline_s", "_method", "_owner", "_shard")

    def __init__(
        self, owner: WholeCalls, method: Method, shard: int, data: bytes, caller: Caller, call: CompletedCall,
        deadline_s: float,
    ) -> None:  # fmt: skip
        self._owner = owner
        self._method = method
        self._shard = shard
        self._data = data
        self._caller = caller
        self._call = call
        self._deadline_s = deadline_s

    def begin(self) -> bool:
        owner, size = self._owner, len(self._data)
        owner.budget.enter(size)
        has_begun = False
        try:
            if self._caller.identity is None:
                outgoing = self._send()
            else:
                with carrying_out_for(self._caller.identity):
                    outgoing = self._send()
            has_begun = outgoing is not None
        finally:
            if not has_begun:
                owner.budget.leave(size)
        if outgoing is not None and self._method.name != "Reserve":
            self._call.on_cancel(outgoing.cancel)
        elif outgoing is not None:
            self._call.on_cancel(_let_it_end)
        return has_begun

    def _send(self) -> OutgoingCall | None:
        return self._owner.forwarder.begin(
            self._method, self._shard, self._data, self._deadline_s, self._ended, received_s=self._caller.received_s
        )

    def _ended(self, result: bytes | FirstAttempt) -> None:
        self._owner.budget.leave(len(self._data))
        if isinstance(result, bytes):
            self._release_if_lost(result)
            self._call.complete(result)
        elif self._call.done():
            self._call.drop()
        else:
            self._call.begin(self._go_on(result), in_task=True)

    def _release_if_lost(self, answer: bytes) -> None:
        """Claims that reach nobody, and that nobody can ask for again."""
        is_lost = self._method.name == "Reserve" and answer and self._caller.is_gone
        if is_lost and not self._method.may_repeat(self._data):
            self._owner.releases.release(self._shard, answer)

    async def _go_on(self, first: FirstAttempt) -> bytes:
        if self._caller.identity is not None:
            carry_out_for(self._caller.identity)
        owner, size = self._owner, len(self._data)
        owner.budget.enter_again(size)
        try:
            answer = await owner.forwarder.send(
                self._method, self._shard, self._data, self._deadline_s, received_s=self._caller.received_s, first=first
            )
        finally:
            owner.budget.leave(size)
        self._release_if_lost(answer)
        return answer


def _let_it_end() -> None:
    """Of a claim that is under way nobody knows whether it was made: what it brings is given back when it has come."""
