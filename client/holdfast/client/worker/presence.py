"""Says to the servers that this worker is there and what it does, and hears what operators want of it.

It is told at once when that changes, and otherwise as often as the servers ask for it. Nothing depends on it: a worker
that gets no answer goes on.
"""

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from itertools import islice

from holdfast.client._pauses import wished_pause_s
from holdfast.client.aio import AsyncClient
from holdfast.client.errors import HoldfastError, Rejected, UnexpectedAnswer
from holdfast.client.queue_models import HeartbeatAnswer, WorkerState
from holdfast.client.worker.outages import PASSING
from holdfast_queue import version

_CALL_S_MAX = 5.0
_TROUBLE_S = 15.0  # an election and a lost answer are none
_NEXT_S_DEFAULT = 10.0
_NEXT_S_MIN = 0.05  # whatever a server says
_FAREWELL_S_MAX = 1.0
_QUEUES_MAX = 64


class Presence:
    """`run` until it is cancelled, then take `leave`."""

    def __init__(
        self,
        client: AsyncClient,
        worker: str,
        slots: int,
        queues: Sequence[str],
        state: Callable[[], WorkerState],
        desired: Callable[[WorkerState], None],
    ) -> None:
        """`state`: what it does now. `desired` is called with what operators want of it, perhaps more than once."""
        self._client = client
        self._worker = worker
        self._slots = slots
        self._queues = tuple(islice(queues, _QUEUES_MAX))
        self._state = state
        self._desired = desired
        self._loop = asyncio.get_running_loop()
        self._heard_s = self._loop.time()
        self._failures = 0  # since the last answer
        self._cause = ""
        self._changed = asyncio.Event()
        self.was_heard = False  # a server has answered, whatever

    @property
    def trouble(self) -> str:
        """Why no server has answered for a while; empty if one has. The log has no line of it: those who claim and
        report will say it."""
        is_long = self._loop.time() - self._heard_s > _TROUBLE_S
        return self._cause if self._failures and is_long else ""

    def state_changed(self) -> None:
        self._changed.set()

    async def run(self) -> None:
        while True:
            self._changed.clear()
            next_s = _NEXT_S_DEFAULT
            try:
                answer = await self._say(self._state(), _CALL_S_MAX)
            except PASSING as error:
                self._cause = str(error)
                self._failures += 1
                await asyncio.sleep(wished_pause_s(self._failures - 1, error))
                continue
            except (Rejected, UnexpectedAnswer):
                pass  # by one that does not know this call, or will have none of it: an answer, too
            else:
                next_s = max(_NEXT_S_MIN, answer.next_s)
                if answer.desired is not None:
                    self._desired(answer.desired)
            self.was_heard, self._heard_s, self._failures = True, self._loop.time(), 0
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(next_s):
                    await self._changed.wait()

    async def leave(self) -> None:
        """Says that it is gone; if nobody hears that, they will notice."""
        with contextlib.suppress(HoldfastError, TimeoutError):
            async with asyncio.timeout(_FAREWELL_S_MAX):
                await self._say(WorkerState.GONE, _FAREWELL_S_MAX)

    async def _say(self, state: WorkerState, timeout_s: float) -> HeartbeatAnswer:
        return await self._client.heartbeat(
            self._worker,
            state=state,
            slots=self._slots,
            version=version(),
            queues=self._queues,
            timeout_s=timeout_s,
        )
