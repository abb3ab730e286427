"""Asks for tasks as slots become free: one long poll at a time, for as many tasks as there are free slots.

A poll that met a shard which does not answer is left unsettled, with or without claims of others: the next one goes to
the other shards, and what the first may have claimed is asked for beside it.
"""

import asyncio
import contextlib
import itertools
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from holdfast.client._pauses import asked_pause_s, growing_pause_s
from holdfast.client._request_ids import new_key
from holdfast.client.aio import AsyncClient
from holdfast.client.errors import HoldfastError, InvalidArgument
from holdfast.client.models import ClaimedTask, Claims
from holdfast.client.worker.leases import Leases
from holdfast.client.worker.meters import Meter
from holdfast.client.worker.outages import PASSING, Outage
from holdfast.client.worker.slots import Ask, Slots
from holdfast.client.worker.standstill import Standstill
from holdfast.common.service import Service

_POLL_MS = 30_000
# The last look for a claim whose answer may have been on its way when the worker stopped asking.
_LAST_POLL_S_MAX = 2.0
# Polls that are left unsettled at a time. With so many the next ones wait some seconds for their shards.
_UNSETTLED_MAX = 4
# If shards do not answer then either, what further polls may have claimed is left to the end of its lease.
_SETTLED_MAX = 32

log = logging.getLogger("holdfast.worker")


class Claimer(Service):
    """Until it is stopped; then `collect` what the last call may have left behind."""

    def __init__(
        self,
        client: AsyncClient,
        slots: Slots,
        worker: str,
        leases: Leases,
        standstill: Standstill,
        claimed: Callable[[ClaimedTask], None],
        give_back: Callable[[ClaimedTask], None],
        meter: Meter,
    ) -> None:
        """`claimed` begins with a task, `give_back` does not."""
        super().__init__(self._run)
        self._client = client
        self._slots = slots
        self._worker = worker
        self._leases = leases
        self._claimed = claimed
        self._give_back = give_back
        self._meter = meter
        self._outage = Outage("claim tasks", standstill, meter)
        self._room = asyncio.Event()  # set when there may be room for more tasks
        self._open_poll: asyncio.Timeout | None = None  # ends when a queue that was at its limit may be asked for again
        self._loop = asyncio.get_running_loop()
        self._dry_until_s: float | None = None  # claims nothing until then, or until nothing is held
        self._poll_ms = _POLL_MS
        self._asked: Ask | None = None  # what the server has been asked for and has not answered
        # The same id until a call has been answered: whatever an unanswered one claimed comes with the next answer.
        self._request_id = new_key()
        self._unsettled: dict[str, _Unsettled] = {}  # by their ids
        self._unsettled_in_a_row = 0

    @property
    def trouble(self) -> str:
        """Why tasks cannot be claimed at the moment; empty if they can."""
        return self._outage.cause

    def slots_changed(self, *, reopened: bool) -> None:
        self._room.set()
        if reopened and self._open_poll is not None:
            self._open_poll.reschedule(self._loop.time())
            self._open_poll = None

    async def _run(self) -> None:
        while True:
            self._room.clear()
            ask = self._next_ask()
            if ask is None:
                if self._slots.is_quiet and self._asked is not None:
                    await self._give_back_the_last()
                await self._wait_for_room()
                continue
            try:
                claims = await self._poll(ask)
            except HoldfastError as error:
                self._meter.poll_failed()
                is_of_wait = isinstance(error, InvalidArgument) and error.field == "wait_ms"
                if not is_of_wait or self._poll_ms == _POLL_MS:
                    await self._outage.pause(error)
                self._poll_ms = _POLL_MS  # what one server suggests another one may not allow
                continue
            self._outage.over()
            self._poll_ms = max(_POLL_MS, claims.suggested_wait_ms)
            self._meter.polled(len(claims))
            self._dry_until_s = self._loop.time() + claims.run_dry_s if claims.run_dry_s else None
            self._receive(claims)
            await self._pause_if_unsettled(claims)

    async def _pause_if_unsettled(self, claims: Claims) -> None:
        """Where one poll after the other fails in that way, each costs the shards more than it brings."""
        self._unsettled_in_a_row = self._unsettled_in_a_row + 1 if claims.unsettled_shards and not claims else 0
        if self._unsettled_in_a_row > 1:
            await asyncio.sleep(growing_pause_s(self._unsettled_in_a_row - 2))

    def _receive(self, claims: Claims) -> None:
        """What an earlier call claimed may have come meanwhile, and taken the room that there was."""
        for claim in claims:
            if self._slots.has_room_for(claim.queue, is_alone=claim.alone):
                self._claimed(claim)
            else:
                self._give_back(claim)

    def _next_ask(self) -> Ask | None:
        """None if there is no room, if it is quiet, or while it runs dry for a suspect."""
        if self._slots.is_quiet:
            self._dry_until_s = None  # it runs dry anyway, and for as long as it is so
            return None
        if self._dry_until_s is not None:
            if self._slots.is_empty_handed:
                self._dry_until_s = None
                return self._slots.ask_for_suspect()
            if self._loop.time() < self._dry_until_s:
                return None
            self._dry_until_s = None  # asks whether that is still wanted
        return self._slots.ask()

    async def _give_back_the_last(self) -> None:
        """The poll was cut short: what it may have claimed must not wait for the end of its lease."""
        assert self._asked is not None
        await self._ask_for(self._request_id, _Unsettled(self._asked), _LAST_POLL_S_MAX, self._give_all_back)
        self._asked = None
        self._request_id = new_key()

    def _give_all_back(self, claims: Claims) -> None:
        for claim in claims:
            self._give_back(claim)

    async def _wait_for_room(self) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout_at(self._dry_until_s):
                await self._room.wait()

    async def _poll(self, ask: Ask) -> Claims:
        """One long poll; cut short, with an empty answer, when one more queue may be asked for."""
        self._asked = ask
        try:
            async with asyncio.timeout(None) as self._open_poll:
                claims = await self._reserve(ask, self._poll_ms)
        except TimeoutError:
            return Claims()  # what it has claimed all the same is asked for with its id
        finally:
            self._open_poll = None
        if claims.unsettled_shards:
            self._settle_later(self._request_id, ask, claims.unsettled_shards)
        self._asked = None
        self._request_id = new_key()
        return claims

    async def _reserve(
        self, ask: Ask, wait_ms: int, *, unsettled_id: str = "", unsettled_shards: Sequence[int] = ()
    ) -> Claims:
        """`unsettled_id`: only what an earlier call with this id has claimed, at these shards or at any."""
        return await self._client.reserve(
            ask.queues,
            max_tasks=ask.tasks_max,
            max_tasks_by_queue=ask.tasks_max_by_queue,
            lease_ms=self._leases.others_ms,
            lease_ms_by_type=self._leases.by_type,
            wait_ms=0 if ask.suspects_only else wait_ms,
            worker=self._worker,
            claim_request_id=unsettled_id or self._request_id,
            empty_handed=ask.empty_handed,
            suspects_only=ask.suspects_only,
            settles_later=not unsettled_id and len(self._unsettled) < _UNSETTLED_MAX,
            held_only=bool(unsettled_id),
            held_at=unsettled_shards,
        )

    # --- calls that may have claimed ----------------------------------------------------------------------------

    def _settle_later(self, request_id: str, ask: Ask, shards: Sequence[int]) -> None:
        if len(self._unsettled) < _SETTLED_MAX:
            self._unsettled[request_id] = _Unsettled(ask, shards)
            self.spawn(self._settle(request_id))

    async def _settle(self, request_id: str) -> None:
        """After the longest lease there is nothing to be had."""
        await self._ask_for(request_id, self._unsettled[request_id], self._leases.longest_ms / 1000, self._receive)
        del self._unsettled[request_id]

    async def _ask_for(
        self, request_id: str, call: "_Unsettled", limit_s: float, receive: Callable[[Claims], None]
    ) -> None:
        """What an unanswered call has claimed. A shard that does not say so keeps nothing of the others waiting; if it
        does not in time, its leases end."""
        ends_s = self._loop.time() + limit_s
        while True:
            claims = await self._claims_of(request_id, call, ends_s)
            call.shards = claims.unsettled_shards
            receive(claims)
            if not call.shards:
                return

    async def _claims_of(self, request_id: str, call: "_Unsettled", ends_s: float) -> Claims:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout_at(ends_s):
                for tries in itertools.count():
                    try:
                        return await self._reserve(call.ask, 0, unsettled_id=request_id, unsettled_shards=call.shards)
                    except PASSING as error:
                        await asyncio.sleep(asked_pause_s(tries, error))
                    except HoldfastError as error:
                        log.warning("Cannot ask for claims of an earlier call: %s", error)
                        break
        return Claims()

    async def collect(self) -> list[ClaimedTask]:
        """Claims that unanswered calls may have made: nobody would work on them until their leases end."""
        asked = dict(self._unsettled)
        if self._asked is not None:
            asked[self._request_id] = _Unsettled(self._asked)
        found: list[ClaimedTask] = []
        await asyncio.gather(
            *(self._ask_for(request_id, call, _LAST_POLL_S_MAX, found.extend) for request_id, call in asked.items())
        )
        return found


@dataclass(slots=True)
class _Unsettled:
    """A call that may have claimed."""

    ask: Ask
    shards: Sequence[int] = ()  # that may hold its claims; empty: any
