"""One wait at a broker for each shard of each queue, shared by all callers that wait here for its tasks.

It begins with the first caller and ends with the last. Its answer says how many tasks there are for this router, and
as many callers are woken (`ready_waiters`). An idle caller costs an entry in a list.
"""

import asyncio
import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

from google.protobuf.message import DecodeError

from holdfast.common.service import Service
from holdfast.common.shared_deadlines import SharedDeadlines
from holdfast.proto.v1 import tasks_pb2 as pb
from holdfast.router.failures import FAILURES, Failure, is_passing, may_pass_if_read
from holdfast.router.forwarding import Forwarder
from holdfast.router.methods import TASKS
from holdfast.router.passing_on import on_own_account
from holdfast.router.ready_waiters import ReadyWaiters, Waiter, WaiterLine
from holdfast.routing.patience import TRY_S_MAX
from holdfast.routing.reserve_calls import AWAY_S, BEATEN, WAITED_S
from holdfast.serving.logs import get_logger
from holdfast.serving.refusals import internal_error, overloaded
from holdfast.transport.giving_up import GivingUp

# After this time brokers are told how many wait here now.
REFRESH_S = 1.0
REFRESH_SHARE = 0.02  # of many, a few more or less are not worth a call: some are always between two polls
TASKS_MAX = 1000  # that a broker is asked for at once

_AWAIT = TASKS["AwaitTasks"]

_log = get_logger(__name__)


class SharedWait:
    """The wait at one shard for the tasks of one queue."""

    def __init__(self, line: WaiterLine, shard: int) -> None:
        self.line = line
        self.shard = shard
        self.task: asyncio.Task[None] | None = None
        self.giving_up = GivingUp()
        self.callers = 0  # as the broker was told
        self.is_refreshed = False  # the call under way was ended to tell the broker of others
        self.failure: Failure | None = None
        self.is_in_vain = False  # whoever was woken last has found nothing, as far as is known
        self._beaten = 0

    def request(self, wait_ms: int) -> bytes:
        self.callers = len(self.line)
        return pb.AwaitTasksRequest(
            queues=[self.line.queue], wait_ms=wait_ms, callers=self.callers,
            max_tasks=min(max(1, self.line.wanted), TASKS_MAX),
        ).SerializeToString()  # fmt: skip

    def pause_s(self, waited_s: float) -> float:
        """Before callers are woken by an answer that took so long."""
        if waited_s > WAITED_S or not self.is_in_vain:
            self._beaten = 0
            return 0.0
        self._beaten += 1
        return BEATEN.longest_s(self._beaten)


class SharedWaits:
    """`waits_max`: how many there may be at brokers. `find_shards`: of a queue, in the newest map."""

    def __init__(
        self,
        forwarder: Forwarder,
        *,
        wait_ms: int,
        waits_max: int,
        find_shards: Callable[[str], Sequence[int]],
        heard: Callable[[int, Failure | None], None],
    ) -> None:
        """`heard`: is told of each answer of a shard, or of its failure."""
        self._forwarder = forwarder
        self._wait_ms = wait_ms
        self.waits_max = waits_max
        self._find_shards = find_shards
        self._heard = heard
        self.waiters = ReadyWaiters()
        self._deadlines: SharedDeadlines[Waiter] = SharedDeadlines(Waiter.give_up)
        self._waits: dict[WaiterLine, dict[int, SharedWait]] = {}
        self._refreshes: dict[WaiterLine, asyncio.TimerHandle] = {}
        self._running = Service()
        self.at_brokers = 0

    @property
    def callers(self) -> int:
        return self.waiters.count

    def is_waiting(self, worker: str) -> bool:
        return worker in self.waiters.workers

    def has_free(self, queue: str) -> bool:
        """Somebody waits there already: nothing is left to take."""
        return self.waiters.has_free(queue)

    @contextmanager
    def join(self, wants: Mapping[str, int], worker: str, *, is_empty_handed: bool = False) -> Iterator[Waiter]:
        """A caller that may `wait`, again and again in the same place, until this ends."""
        waiter = Waiter(wants, worker, is_empty_handed=is_empty_handed)
        try:
            yield waiter
        finally:
            if waiter.future is not None:
                for line in self.waiters.leave(waiter):
                    self._end(line)
                self._changed(waiter)

    async def wait(self, waiter: Waiter, until_s: float) -> int | None:
        """A shard that has something for this caller; None if the time is over."""
        if waiter.future is None:
            self._check_room(waiter)
        for line in self.waiters.enter(waiter):
            self._plan(line)
        self._changed(waiter)
        assert waiter.future is not None
        step = self._deadlines.add(waiter, max(0.0, until_s - time.monotonic()))
        try:
            return await waiter.future
        except asyncio.CancelledError:
            self.pass_on(waiter)  # it has gone before it could claim
            raise
        finally:
            self._deadlines.remove(waiter, step)
            self.waiters.not_free(waiter)

    def pass_on(self, waiter: Waiter) -> None:
        """What it was woken for is for the next in line."""
        if waiter.woken_at is not None:
            self.waiters.offer(*waiter.woken_at, tasks=1)

    def took(self, waiter: Waiter) -> None:
        """What it was woken for was there."""
        if waiter.woken_at is not None:
            line, shard = waiter.woken_at
            wait = self._waits.get(line, {}).get(shard)
            if wait is not None:
                wait.is_in_vain = False

    def of(self, queue: str, shard: int) -> SharedWait | None:
        line = self.waiters.lines.get(queue)
        return None if line is None else self._waits.get(line, {}).get(shard)

    def routes_changed(self, queues: Sequence[str]) -> None:
        """They are on other shards than before."""
        for line in self.waiters.of(queues):
            self._plan(line)

    async def close(self) -> None:
        for line in list(self._waits):
            self._end(line)
        await self._running.stop()

    # --- which waits there are ----------------------------------------------------------------------------------

    def _plan(self, line: WaiterLine) -> None:
        """Begins and ends waits so that there is one at each shard of the queue."""
        waits = self._waits.setdefault(line, {})
        shards = self._find_shards(line.queue)
        for shard in [shard for shard in waits if shard not in shards]:
            self._stop(waits.pop(shard))
        for shard in shards:
            if shard not in waits:
                wait = waits[shard] = SharedWait(line, shard)
                self.at_brokers += 1
                wait.task = self._running.spawn(self._run(wait))

    def _check_room(self, waiter: Waiter) -> None:
        """Refuses a caller whose queues nobody waits for if there would be too many waits at brokers."""
        new = sum(len(self._find_shards(queue)) for queue in waiter.wants if queue not in self.waiters.lines)
        if new and self.at_brokers + new > self.waits_max:
            raise overloaded("waits at brokers, one for each shard of each queue", self.waits_max)

    def _end(self, line: WaiterLine) -> None:
        for wait in self._waits.pop(line, {}).values():
            self._stop(wait)
        timer = self._refreshes.pop(line, None)
        if timer is not None:
            timer.cancel()

    def _stop(self, wait: SharedWait) -> None:
        self.at_brokers -= 1
        if wait.task is not None:
            wait.task.cancel()

    def _changed(self, waiter: Waiter) -> None:
        """Others wait in these lines than before: brokers are told in a while, once for all that changes until then."""
        for line in self.waiters.of(waiter.wants):
            if line not in self._refreshes:
                loop = asyncio.get_running_loop()
                self._refreshes[line] = loop.call_later(REFRESH_S, self._refresh, line)

    def _refresh(self, line: WaiterLine) -> None:
        del self._refreshes[line]
        for wait in self._waits.get(line, {}).values():
            if abs(len(line) - wait.callers) > wait.callers * REFRESH_SHARE:
                wait.is_refreshed = True
                wait.giving_up.give_up()

    # --- one wait -----------------------------------------------------------------------------------------------

    async def _run(self, wait: SharedWait) -> None:
        on_own_account()  # whoever was the first to wait may be gone long before it ends
        while True:
            began_s = time.monotonic()
            try:
                answer = await self._ask(wait, began_s)
            except FAILURES as failure:
                if not wait.is_refreshed:
                    await self._failed(wait, failure)
                continue
            except Exception as error:  # noqa: BLE001 - the callers behind it would wait for nothing
                _log.error("wait_failed", shard=wait.shard, error=type(error).__name__, exc_info=error)
                await self._failed(wait, internal_error())
                continue
            wait.failure = None
            self._heard(wait.shard, None)
            pause_s = wait.pause_s(time.monotonic() - began_s)
            if pause_s:
                await asyncio.sleep(pause_s)
            wait.is_in_vain = True
            if answer.ready:
                self.waiters.offer(wait.line, wait.shard, max(1, answer.tasks), suspects=answer.suspects)

    async def _ask(self, wait: SharedWait, now_s: float) -> pb.AwaitTasksResponse:
        # Not all of them at the same moment.
        wait_ms = int(self._wait_ms * random.uniform(0.8, 1.0))
        wait.giving_up, wait.is_refreshed = GivingUp(), False
        data = wait.request(wait_ms)
        deadline_s = now_s + wait_ms / 1000 + TRY_S_MAX
        try:
            answer = await self._forwarder.send(_AWAIT, wait.shard, data, deadline_s, wait.giving_up)
            return pb.AwaitTasksResponse.FromString(answer)
        except DecodeError:
            raise internal_error() from None

    async def _failed(self, wait: SharedWait, failure: Failure) -> None:
        wait.failure = failure
        self._heard(wait.shard, failure)
        if not is_passing(failure) and not may_pass_if_read(failure):
            self.waiters.refuse(wait.line, failure)
        await asyncio.sleep(max(AWAY_S, failure.retry_after_ms / 1000))
