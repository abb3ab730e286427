"""Asks for tasks as slots become free: one long poll at a time, for as many tasks as there are free slots."""

import asyncio
import contextlib
import itertools
import uuid
from collections.abc import Callable

from holdfast.client._pauses import wished_pause_s
from holdfast.client.aio import AsyncClient
from holdfast.client.errors import HoldfastError
from holdfast.client.models import ClaimedTask, Claims
from holdfast.client.worker.leases import Leases
from holdfast.client.worker.meters import Meter
from holdfast.client.worker.outages import PASSING, Outage
from holdfast.client.worker.slots import Ask, Slots
from holdfast.client.worker.standstill import Standstill

_POLL_MS = 30_000
# The last look for a claim whose answer may have been on its way when the worker stopped asking.
_LAST_LOOK_S_MAX = 2.0


class Claimer:
    """`run` until it is cancelled, then `collect` what the last call may have left behind."""

    def __init__(
        self,
        client: AsyncClient,
        slots: Slots,
        worker: str,
        leases: Leases,
        standstill: Standstill,
        claimed: Callable[[ClaimedTask], None],
        meter: Meter,
        unwanted: Callable[[ClaimedTask], None] = lambda _: None,
    ) -> None:
        """`unwanted` gets what came although nothing is to be claimed any more: it has to go back."""
        self._client = client
        self._slots = slots
        self._worker = worker
        self._leases = leases
        self._claimed = claimed
        self._unwanted = unwanted
        self._meter = meter
        self._outage = Outage("claim tasks", standstill, meter)
        self._room = asyncio.Event()  # set when there may be room for more tasks
        self._reopened = asyncio.Event()  # set when a queue that was at its limit may be asked for again
        self._loop = asyncio.get_running_loop()
        self._dry_until_s: float | None = None  # claims nothing until then, or until nothing is held
        self._asked: Ask | None = None  # what the server has been asked for and has not answered
        # The same id until a call has been answered: whatever an unanswered one claimed comes with the next answer.
        self._request_id = uuid.uuid4().hex

    @property
    def trouble(self) -> str:
        """Why tasks cannot be claimed at the moment; empty if they can."""
        return self._outage.cause

    def slots_changed(self, *, reopened: bool) -> None:
        self._room.set()
        if reopened:
            self._reopened.set()

    async def run(self) -> None:
        while True:
            self._room.clear()
            self._reopened.clear()
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
                await self._outage.pause(error)
                continue
            self._outage.over()
            self._meter.polled(len(claims))
            self._dry_until_s = self._loop.time() + claims.run_dry_s if claims.run_dry_s else None
            for claim in claims:
                self._claimed(claim)

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
        for claim in await self.collect():
            self._unwanted(claim)
        self._asked = None
        self._request_id = uuid.uuid4().hex

    async def _wait_for_room(self) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout_at(self._dry_until_s):
                await self._room.wait()

    async def _poll(self, ask: Ask) -> Claims:
        """One long poll; cut short, with an empty answer, when one more queue may be asked for."""
        self._asked = ask
        poll = asyncio.create_task(self._reserve(ask))
        reopened = asyncio.create_task(self._reopened.wait())
        try:
            await asyncio.wait((poll, reopened), return_when=asyncio.FIRST_COMPLETED)
            if not poll.done():
                return Claims()
            claims = poll.result()
        finally:
            reopened.cancel()
            poll.cancel()
            await asyncio.gather(poll, reopened, return_exceptions=True)
        self._asked = None
        self._request_id = uuid.uuid4().hex
        return claims

    async def _reserve(self, ask: Ask, wait_ms: int = _POLL_MS, timeout_s: float | None = None) -> Claims:
        return await self._client.reserve(
            ask.queues,
            max_tasks=ask.tasks_max,
            max_tasks_by_queue=ask.tasks_max_by_queue,
            lease_ms=self._leases.others_ms,
            lease_ms_by_type=self._leases.by_type,
            wait_ms=0 if ask.suspects_only else wait_ms,
            worker=self._worker,
            claim_request_id=self._request_id,
            empty_handed=ask.empty_handed,
            suspects_only=ask.suspects_only,
            timeout_s=timeout_s,
        )

    async def collect(self) -> list[ClaimedTask]:
        """Claims that the last, unanswered call may have made: nobody would work on them until their leases end."""
        if self._asked is None:
            return []
        # If it made none, this one may: one task is the least that can be asked for.
        ask = Ask(self._asked.queues, 1, {}, self._slots.is_empty_handed)
        try:
            async with asyncio.timeout(_LAST_LOOK_S_MAX):
                for tries in itertools.count():
                    try:
                        return await self._reserve(ask, wait_ms=0, timeout_s=_LAST_LOOK_S_MAX)
                    except PASSING as error:
                        await asyncio.sleep(wished_pause_s(tries, error))
        except (TimeoutError, HoldfastError):
            pass  # their leases will end
        return []
