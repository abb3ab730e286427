"""Claims that reached nobody: they go back, so that another worker need not wait for their leases to end."""

import asyncio
import time
from collections.abc import Iterator
from contextlib import suppress

from google.protobuf.message import DecodeError

from holdfast.common.service import Service, Work, end_tasks, report_bug
from holdfast.proto.v1 import tasks_pb2 as pb
from holdfast.router.failures import FAILURES
from holdfast.router.forwarding import Forwarder
from holdfast.router.methods import TASKS
from holdfast.router.passing_on import on_own_account
from holdfast.routing.task_ids import later_task_ids
from holdfast.serving.logs import get_logger

RELEASES_MAX = 256
RELEASE_S = 10.0

_RELEASE = TASKS["Release"]

_log = get_logger(__name__)


class Releases:
    """Works in the background, within bounds: what is beyond them is left to its lease."""

    def __init__(self, forwarder: Forwarder) -> None:
        self._forwarder = forwarder
        self._releasing = Service(on_error=report_bug)
        self.forgotten: set[asyncio.Task[bytes]] = set()  # kept until they end: the event loop does not
        self.released = 0
        self.given_up = 0

    def adopt(self, shard: int, reserve: "asyncio.Task[bytes]") -> None:
        """The caller of this Reserve has gone. It was told to stop, but may have claimed something all the same."""
        if not self._begin(self._when_done(shard, reserve)):
            reserve.add_done_callback(_ignore)

    def forget(self, reserve: "asyncio.Task[bytes]") -> None:
        """The same, but what it claimed stays claimed."""
        self.forgotten.add(reserve)
        reserve.add_done_callback(self.forgotten.discard)
        reserve.add_done_callback(_ignore)

    def release(self, shard: int, answer: bytes) -> None:
        """The claims in the answer to a Reserve that nobody takes."""
        request = _request_of(answer)
        if request is not None:
            self._begin(self._release(shard, request))

    async def close(self, grace_s: float) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(grace_s):
                await self._releasing.ended()
        await self._releasing.stop()
        await end_tasks(self.forgotten)

    def _begin(self, work: Work) -> bool:
        if self._releasing.under_way >= RELEASES_MAX:
            work.close()
            self.given_up += 1
            return False
        self._releasing.spawn(work)
        return True

    async def _when_done(self, shard: int, reserve: "asyncio.Task[bytes]") -> None:
        try:
            request = _request_of(await reserve)
        except FAILURES:
            return
        if request is not None:
            await self._release(shard, request)

    async def _release(self, shard: int, request: pb.ReleaseRequest) -> None:
        on_own_account()
        claims = len(request.claims)
        try:
            await self._forwarder.send(_RELEASE, shard, request.SerializeToString(), time.monotonic() + RELEASE_S)
        except FAILURES as error:
            self.given_up += claims
            _log.warning("claims_not_released", shard=shard, claims=claims, reason=error.reason)
            return
        self.released += claims
        _log.info("claims_released", shard=shard, claims=claims, because="their caller had gone")


def _request_of(answer: bytes) -> pb.ReleaseRequest | None:
    try:
        response = pb.ReserveResponse.FromString(answer)
        request = pb.ReleaseRequest()
        for claim in response.claims:
            request.claims.add(task_id=claim.task_id, token=claim.token, secret=claim.secret)
        for run in response.runs:
            request.claims.extend(_claims_of(run))
    except (DecodeError, ValueError):  # it cannot be read, or names no tasks
        return None
    return request if request.claims else None


def _claims_of(run: pb.ClaimRun) -> Iterator[pb.ClaimRef]:
    """Of its tasks, one by one: what is given back does something of its own."""
    for index, task_id in enumerate(later_task_ids(run.task_id, len(run.payloads))):
        yield pb.ClaimRef(task_id=task_id, token=run.token + index, secret=run.secret)


def _ignore(reserve: "asyncio.Task[bytes]") -> None:
    if not reserve.cancelled():
        reserve.exception()
