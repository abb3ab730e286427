"""Brings tasks to the shards that they belong to: what is in the outbox, in order, again and again until it is there.

Soft state of the leader: a new one begins with what the state says is not delivered. A message may be brought twice;
the destination knows it by its number. One destination that does not answer holds up no other.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable, Iterable

from holdfast.common.backoff import Backoff
from holdfast.common.service import Service
from holdfast.machine.entries import Delivered, Entry
from holdfast.machine.outcomes import Outcome
from holdfast.machine.reader import Reader
from holdfast.machine.rows import OutboxMessage
from holdfast.serving.logs import get_logger
from holdfast.serving.refusals import OutcomeUnknownError, RefusedError

CALLS_MAX = 16  # at the same time, for one shard
BATCH_MESSAGES_MAX = 500
BATCH_BYTES_MAX = 1024 * 1024  # of all messages behind the first
BACKOFF = Backoff(first_s=0.05, max_s=5.0)

_log = get_logger(__name__)

# Takes destination, source shard, source incarnation, the first message's sequence and the messages; returns the
# sequence of the newest message that the destination has. Raises what it likes: it is called again.
Deliver = Callable[[int, int, int, int, list[OutboxMessage]], Awaitable[int]]
Submit = Callable[[Entry], Awaitable[list[Outcome]]]


class OutboxRelay(Service):
    """The outbox of one shard. `submit` writes an entry behind client traffic."""

    def __init__(
        self,
        reader: Reader,
        shard: int,
        incarnation: int,
        deliver: Deliver,
        *,
        now_ms: Callable[[], int],
        submit: Submit,
        draw: Callable[[], float] = random.random,
    ) -> None:
        super().__init__()
        self._reader = reader
        self._shard = shard
        self._incarnation = incarnation
        self._deliver = deliver
        self._now_ms = now_ms
        self._submit = submit
        self._draw = draw
        self._is_started = False
        self._slots = asyncio.Semaphore(CALLS_MAX)
        self._destinations: set[int] = set()  # while there is something for them
        self._holds = 0
        self._may_bring = asyncio.Event()  # nobody holds the outbox
        self._may_bring.set()
        self._bringing = 0
        self._is_at_rest = asyncio.Event()  # nothing is being brought
        self._is_at_rest.set()

    def start(self) -> None:
        """Takes up what is in the outbox."""
        self._is_started = True
        self.wake(destination for destination, box in self._reader.outboxes() if box.waiting)

    def wake(self, destinations: Iterable[int]) -> None:
        """There is something new for these."""
        if self._is_started:
            for destination in destinations:
                if destination not in self._destinations:
                    self._destinations.add(destination)
                    self.spawn(self._carry(destination))

    async def hold(self) -> None:
        """Until `let_go` nothing is brought, and what was being brought has ended when this returns. So whenever the
        shards are copied meanwhile, no copy lacks what another one has sent, or has what another one will send."""
        self._holds += 1
        self._may_bring.clear()
        try:
            await self._is_at_rest.wait()
        except BaseException:  # whoever wanted it has gone
            self.let_go()
            raise

    def let_go(self) -> None:
        self._holds -= 1
        if not self._holds:
            self._may_bring.set()

    def cancel(self) -> None:
        self._is_started = False
        super().cancel()

    async def _carry(self, destination: int) -> None:
        """Delivers until nothing is left for this destination. Looking and leaving are one step of the event loop, so
        nothing can come into the outbox between them unseen."""
        failures = 0
        while True:
            # Fewer each time: one message always fits, whatever was wrong with the many.
            messages_max = max(1, BATCH_MESSAGES_MAX >> failures)
            first, messages = self._reader.outbox_messages(destination, messages_max, BATCH_BYTES_MAX)
            if not messages:
                self._destinations.discard(destination)
                return
            if await self._bring(destination, first, messages, failures):
                failures = 0
            else:
                failures += 1
                await asyncio.sleep(BACKOFF.pause_s(failures, self._draw))

    async def _bring(self, destination: int, first: int, messages: list[OutboxMessage], failures: int) -> bool:
        """Whether the destination has some of the messages, and the state says so."""
        await self._may_bring.wait()
        self._bringing += 1
        self._is_at_rest.clear()
        try:
            return await self._bring_now(destination, first, messages, failures)
        finally:
            self._bringing -= 1
            if not self._bringing:
                self._is_at_rest.set()

    async def _bring_now(self, destination: int, first: int, messages: list[OutboxMessage], failures: int) -> bool:
        try:
            async with self._slots:
                received = await self._deliver(destination, self._shard, self._incarnation, first, messages)
        except Exception as error:  # noqa: BLE001 - however it failed, it is tried again, and said
            if not failures:
                _log.warning(
                    "not_delivered", shard=self._shard, destination=destination, first_sequence=first, error=str(error)
                )
            return False
        delivered = min(received, first + len(messages) - 1)
        if delivered < first:
            if not failures:
                _log.error(
                    "not_received", shard=self._shard, destination=destination, first_sequence=first, received=received
                )
            return False
        try:
            await self._submit(Delivered(self._now_ms(), destination, delivered))
        except (RefusedError, OutcomeUnknownError):
            return False
        return True
