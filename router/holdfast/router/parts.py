"""The parts of a batch over several shards: sent at the same time, and joined to one answer. The items of a part that
failed, or was given up because its shard does not answer, are refused one by one.
"""

import time
from collections.abc import Callable, Sequence
from typing import Any

from holdfast.router.batches import Part, join_answers
from holdfast.router.failures import FAILURES, Failure, is_passing, may_pass_if_read
from holdfast.router.forwarding import Forwarder
from holdfast.router.methods import Method
from holdfast.routing.patience import Leader
from holdfast.transport import parts as transport
from holdfast.transport.giving_up import GivingUp

# Parts must answer before the caller has hung up: then it hears of those that did.
_MARGIN_S_MAX = 0.1
_MARGIN_SHARE = 0.05


class Parts:
    """Sends them, and remembers which shards did not answer."""

    def __init__(self, forwarder: Forwarder, leader_of: Callable[[int], Leader]) -> None:
        self._forwarder = forwarder
        self._parts = transport.Parts(leader_of, _has_answered)

    async def send(self, method: Method, parts: Sequence[Part], deadline_s: float) -> Any:
        """The joined response. Raises CallFailedError or RefusedError if all parts failed alike."""
        left_s = deadline_s - time.monotonic()
        deadline_s -= min(_MARGIN_S_MAX, max(0.0, left_s) * _MARGIN_SHARE)
        data = {part.shard: part.data for part in parts}

        async def one(shard: int, giving_up: GivingUp) -> bytes | Failure:
            try:
                return await self._forwarder.send(method, shard, data[shard], deadline_s, giving_up)
            except FAILURES as failure:
                return failure

        answers = await self._parts.send(data, one, is_impatient=not method.waits)
        return join_answers(method, parts, [answers[part.shard] for part in parts])


def _has_answered(answer: bytes | Failure) -> bool | None:
    if isinstance(answer, bytes):
        return True
    return False if is_passing(answer) or may_pass_if_read(answer) else None
