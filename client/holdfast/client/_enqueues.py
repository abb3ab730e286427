"""Enqueues: the ids that make them repeatable, the shortest way of single ones, and what is learned from answers."""

import time
from collections.abc import Awaitable, Callable, Sequence

from holdfast.client._direct import Direct
from holdfast.client._leaders import takes_other_ids
from holdfast.client._memory import Generations
from holdfast.client._request_ids import automatic_key_ttl_ms, is_without_key, new_key
from holdfast.client._rpc import Connection, FirstAttempt, Reply, method
from holdfast.client._runs import EnqueueBatch
from holdfast.client._single_enqueues import Sent, SingleEnqueue
from holdfast.client.errors import STALE_MAP, HoldfastError, InvalidArgument, Rejected, Unavailable
from holdfast.client.models import Accepted, NewTask
from holdfast.proto.v1 import tasks_pb2 as pb
from holdfast.routing.sets import automatic_key

_ENQUEUE = method(pb, "Tasks", "Enqueue", pb.EnqueueRequest, pb.EnqueueResponse)


class Enqueues:
    """The enqueues of one client."""

    def __init__(self, connection: Connection, direct: Direct | None) -> None:
        self._connection = connection
        self._direct = direct
        self._generations = Generations()

    async def singles(self, tasks: Sequence[NewTask], timeout_s: float, kept: Sequence[str]) -> Sent:
        batch = EnqueueBatch(tasks, in_runs=False)
        return await self.until_answered(batch, timeout_s, kept), batch.request_ids

    def begin_singles(
        self,
        items: Sequence[SingleEnqueue],
        timeout_s: float,
        end: Callable[[list[Accepted] | Awaitable[Sent]], None],
    ) -> bool:
        """The shortest way, and in the usual case all of it: one attempt, all accepted."""
        if self._direct is not None or not self._connection.retries:
            return False
        call_key, ttl_ms, is_first = new_key(), automatic_key_ttl_ms(timeout_s), True
        for place, item in enumerate(items):
            spec = item.spec
            if item.request_id:
                is_first = False  # the last attempt was refused, perhaps in the place of one that was not
                spec.request_id = item.request_id
            elif is_without_key(item.task):
                spec.request_id = automatic_key(self._generations.of(spec.queue), call_key, place)
                spec.request_id_ttl_ms = ttl_ms
            elif not spec.request_id:
                return False
        request = pb.EnqueueRequest(tasks=[item.spec for item in items])

        def ended(result: "Reply[pb.EnqueueResponse] | FirstAttempt | HoldfastError") -> None:
            if isinstance(result, Reply) and (accepted := _all_new(result.message, len(items))):
                if result.message.generations:
                    self._generations.learn(result.message.generations)
                end(accepted)
            else:
                end(self._finish_singles(items, request, timeout_s, result))

        return self._connection.begin_call(
            _ENQUEUE, request, timeout_s, repeatable=True, is_first=is_first, on_end=ended
        )

    async def _finish_singles(
        self,
        items: Sequence[SingleEnqueue],
        request: pb.EnqueueRequest,
        timeout_s: float,
        result: Reply[pb.EnqueueResponse] | FirstAttempt | HoldfastError,
    ) -> Sent:
        batch = EnqueueBatch.of_request([item.task for item in items], request)
        if isinstance(result, HoldfastError):
            raise result
        if isinstance(result, Reply):
            return self._outcomes(batch, result.message), batch.request_ids
        kept = [item.request_id for item in items]
        return await self.until_answered(batch, timeout_s, kept, result), batch.request_ids

    async def until_answered(
        self, batch: EnqueueBatch, timeout_s: float, kept: Sequence[str] = (), first: FirstAttempt | None = None
    ) -> list[Accepted | Rejected]:
        """`kept`: the automatic idempotency keys that they had before. `first`: the first attempt, if it was made."""
        ends_s = timeout_s + (time.monotonic() if first is None else first.begun_s)
        while True:
            try:
                return await self._once(batch, timeout_s, kept, first)
            except InvalidArgument as error:
                raise batch.named(error) from None
            except Unavailable as error:
                # Raised only if no attempt did anything: so the tasks may get other ids, of a set the server knows.
                # If the server may yet hear of the set that they name, the call has waited for that until its end.
                is_new = self._learn_generations(error) and takes_other_ids(error)
                timeout_s, first = ends_s - time.monotonic(), None
                if not is_new or not self._connection.retries or timeout_s <= 0:
                    raise

    async def _once(
        self, batch: EnqueueBatch, timeout_s: float, kept: Sequence[str], first: FirstAttempt | None
    ) -> list[Accepted | Rejected]:
        if self._connection.retries and first is None:
            if self._direct is not None:  # their sets are named in the ids
                await self._direct.learn_of(batch.queues, timeout_s)
            batch.add_automatic_keys(automatic_key_ttl_ms(timeout_s), self._generation_of, kept)
        request, is_first = batch.request, not any(kept)
        if self._direct is not None:
            reply = await self._direct.call(
                _ENQUEUE, request, timeout_s=timeout_s, repeatable=batch.is_repeatable, is_first=is_first
            )
        else:
            reply = await self._connection.call(
                _ENQUEUE, request, timeout_s=timeout_s, repeatable=batch.is_repeatable, is_first=is_first, first=first
            )
        return self._outcomes(batch, reply.message)

    def _outcomes(self, batch: EnqueueBatch, response: pb.EnqueueResponse) -> list[Accepted | Rejected]:
        if response.generations:
            self._generations.learn(response.generations)
        return batch.outcomes(response)

    def _generation_of(self, queue: str) -> int:
        # Straight to the leaders only what is on the map counts: with an id of a newer set there would be no way.
        return self._generations.of(queue) if self._direct is None else self._direct.generation_of(queue)

    def _learn_generations(self, error: Rejected) -> bool:
        """From a server that does not know the set that an automatic idempotency key names, or knows a newer one.
        Whether the next keys are others."""
        queue, newest = error.metadata.get("queue", ""), error.metadata.get("generation", "")
        if error.reason != STALE_MAP or not newest.isdecimal():
            return False
        for name, _, generation in (other.partition("=") for other in error.metadata.get("others", "").split(",")):
            if generation.isdecimal():
                self._generations.replace(name, int(generation))
        return self._generations.replace(queue, int(newest))


def _all_new(response: pb.EnqueueResponse, asked: int) -> list[Accepted] | None:
    """The ids of tasks that were all accepted now; None if anything is to be said about any of them."""
    found = []
    for outcome in response.outcomes:
        accepted = outcome.accepted
        if accepted.duplicate or not accepted.task_id:
            return None
        found.append(Accepted(accepted.task_id))
    return found if len(found) == asked else None
