"""Calls that may be about several shards (`transport.over_shards`), as a router sends them and hears of failures."""

import time
from collections.abc import Sequence
from typing import Any

from google.protobuf.message import DecodeError

from holdfast.proto.v1 import tasks_pb2 as pb
from holdfast.router.batches import fit, has_too_many_follow_ups, tasks_in
from holdfast.router.failures import FAILURES, Failure, is_passing, may_pass_if_read, rejection_of, status_of_failure
from holdfast.router.forwarding import Forwarder
from holdfast.router.methods import Method
from holdfast.routing.calls import BY_TASK, ENQUEUED
from holdfast.routing.pages import PAGE_DEFAULT, PAGE_MAX
from holdfast.serving.refusals import INVALID_FIELD, OUT_OF_RANGE, RefusedError, internal_error
from holdfast.serving.request_limits import ITEMS_MAX, QUEUES_PER_STATS_MAX
from holdfast.transport.giving_up import ENDLESS, Patience
from holdfast.transport.over_shards import LISTS, SplitCall

# Parts must answer before the caller has hung up: then it hears of those that did.
_MARGIN_S_MAX = 0.1
_MARGIN_SHARE = 0.05
_PARTIAL_S_MAX = 4.0
_PARTIAL_SHARE = 0.8  # of the time that the caller has


class RouterSplitCall(SplitCall[bytes]):
    """`data`: the request's bytes, which go on as they came to a single shard."""

    def __init__(
        self, forwarder: Forwarder, method: Method, data: bytes, deadline_s: float, *, answer_bytes_max: int
    ) -> None:
        super().__init__(method.name, method.parse(data), method.response, FAILURES)
        self._forwarder = forwarder
        self._method = method
        self._data = data
        self._deadline_s = deadline_s
        self._answer_bytes_max = answer_bytes_max

    async def send_whole(self, shard: int) -> bytes:
        return await self._forwarder.send(self._method, shard, self._data, self._deadline_s)

    async def send(self, shard: int, request: Any, patience: Patience = ENDLESS) -> Any:
        data = request.SerializeToString()
        answer = await self._forwarder.send(self._method, shard, data, self._part_ends_s(), patience)
        try:
            return self.response.FromString(answer)
        except DecodeError:
            raise internal_error() from None

    def _part_ends_s(self) -> float:
        now_s = time.monotonic()
        left_s = max(0.0, self._deadline_s - now_s)
        if self.name not in LISTS:
            return self._deadline_s - min(_MARGIN_S_MAX, left_s * _MARGIN_SHARE)
        if not getattr(self.request, "partial", False):  # not every list can be
            return self._deadline_s
        # Where some may be missing, those without a leader do not use up the time of the caller, who has to hear of the
        # others.
        return min(now_s, self._deadline_s) + min(_PARTIAL_S_MAX, left_s * _PARTIAL_SHARE)

    def reply(self, response: Any) -> bytes:
        if isinstance(response, pb.WaitTasksResponse):
            fit(response, self._answer_bytes_max)
        result: bytes = response.SerializeToString()
        return result

    def rejection(self, failure: Any) -> pb.Rejection:
        return rejection_of(failure)

    def are_alike(self, failures: Sequence[Failure]) -> bool:
        return len({(status_of_failure(failure)[0], failure.reason) for failure in failures}) == 1

    def malformed(self, _outcomes: int, _items: int) -> Exception:
        return internal_error()

    def may_miss(self, failure: Any) -> bool:
        return is_passing(failure) or may_pass_if_read(failure)

    async def bad_token(self, _shard: int) -> bytes:
        sentence = "Expected {field} as a page returned it, but it is not."
        raise RefusedError(INVALID_FIELD, sentence, "page_token") from None

    def may_split(self) -> bool:
        if self.name == "QueueStats":
            return len(self.request.queues) <= QUEUES_PER_STATS_MAX
        fields = ENQUEUED if self.name == "Enqueue" else [items.field for items in BY_TASK[self.name]]
        return tasks_in(self.request, fields) <= ITEMS_MAX and not has_too_many_follow_ups(self.request)

    def page_size(self) -> int:
        value = self.request.page_size
        if not 0 <= value <= PAGE_MAX:
            sentence = f"Expected {{field}} from 0 to {PAGE_MAX}, but got {value}."
            raise RefusedError(OUT_OF_RANGE, sentence, "page_size", f"0..{PAGE_MAX}")
        return value or PAGE_DEFAULT


def has_answered(answer: Any) -> bool | None:
    """Whether a part's answer, or its failure, shows that its shard answers."""
    if not isinstance(answer, FAILURES):
        return True
    return False if is_passing(answer) or may_pass_if_read(answer) else None
