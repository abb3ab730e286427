"""Says to the servers that this worker is there and what it does, and hears what operators want of it.

It is told at once when that changes, and otherwise as often as the servers ask for it. Nothing depends on it: a worker
that gets no answer goes on.
"""

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from itertools import islice

from holdfast.client._pauses import asked_pause_s
from holdfast.client.aio import AsyncClient
from holdfast.client.errors import HoldfastError, Rejected, UnexpectedAnswer
from holdfast.client.queue_models import HeartbeatAnswer, WorkerState
from holdfast.client.worker.outages import PASSING
from holdfast_queue import version

_CALL_S_MAX = 5.0
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
        self._changed = asyncio.Event()
        self.was_heard = False  # a server has answered, whatever

    def state_changed(self) -> None:
        self._changed.set()

    async def run(self) -> None:
        """The log has no line of outages: those who claim and report will say it."""
        failures = 0  # since the last answer
        while True:
            self._changed.clear()
            next_s = _NEXT_S_DEFAULT
            try:
                answer = await self._say(self._state(), _CALL_S_MAX)
            except PASSING as error:
                self.was_heard = self.was_heard or isinstance(error, Rejected)
                await asyncio.sleep(asked_pause_s(failures, error))
                failures += 1
                continue
            except (Rejected, UnexpectedAnswer):
                pass  # by one that does not know this call, or will have none of it: an answer, too
            else:
                next_s = max(_NEXT_S_MIN, answer.next_s)
                if answer.desired is not None:
                    self._desired(answer.desired)
            self.was_heard, failures = True, 0
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
