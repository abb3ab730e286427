"""Going on through lost connections: pauses with jitter, as long as it takes, and a line at both ends of an outage."""

import asyncio
import logging

from holdfast.client._pauses import asked_pause_s
from holdfast.client.errors import (
    ConnectionFailed,
    DeadlineExceeded,
    HoldfastError,
    OutcomeUnknown,
    Overloaded,
    Rejected,
    ServerError,
    Unauthenticated,
    Unavailable,
    WorkerAtLimit,
)
from holdfast.client.worker.meters import Meter
from holdfast.client.worker.standstill import Standstill

log = logging.getLogger("holdfast.worker")

# All that time can heal. Anything else is a mistake in the set-up that somebody must see.
PASSING_REFUSALS = (Overloaded, Unavailable, OutcomeUnknown, ServerError, WorkerAtLimit)
PASSING = (ConnectionFailed, DeadlineExceeded, *PASSING_REFUSALS)


# As long as an election or a hand-over may take, there is nothing that anybody has to know of.
_LEADER_CHANGE_S = 3.0


class Outage:
    """One kind of call and whether the server answers it at the moment."""

    def __init__(
        self, what: str, standstill: Standstill, meter: Meter, shard: int | None = None, *, has_answered: bool = False
    ) -> None:
        """`shard`: the one that it is about, if it is about one. `has_answered`: the server knew who calls before."""
        self._what = what if shard is None else f"{what} of shard {shard}"
        self._call = what  # e.g. "claim tasks"
        self._standstill = standstill
        self._meter = meter
        self.cause = ""  # while it is worth telling: why there is no answer
        self._failures = 0
        self._has_answered = has_answered
        self._since_s = 0.0
        self._was_reported = False

    async def pause(self, error: HoldfastError) -> None:
        """Waits before the next try; raises the error if waiting cannot help."""
        # A token that was good once is one that somebody replaces: its file is read again until then.
        is_token_replaced = self._has_answered and isinstance(error, Unauthenticated)
        if not isinstance(error, PASSING) and not is_token_replaced:
            raise error
        now_s = asyncio.get_running_loop().time()
        if not self._failures:
            self._since_s = now_s
        leader_moves = isinstance(error, Rejected) and error.reason == "NOT_LEADER"
        # What fails when this process has just stood still may have failed by that: the next try will tell.
        is_likely_over = (leader_moves and now_s < self._since_s + _LEADER_CHANGE_S) or self._standstill.is_recent()
        if not self._was_reported and not is_likely_over:
            self._was_reported = True
            cause = error.reason if isinstance(error, Rejected) else str(error)
            self.cause = cause
            self._meter.outage_began(self._call)
            log.warning("Cannot %s at the moment, and goes on trying: %s", self._what, cause)
        pause_s = asked_pause_s(self._failures, error)
        self._failures += 1
        await asyncio.sleep(pause_s)

    def over(self) -> None:
        """The server has answered."""
        self._has_answered = True
        if self._was_reported:
            log.info("Can %s again, after %d failed tries.", self._what, self._failures)
        self.cause = ""
        self._failures = 0
        self._was_reported = False
