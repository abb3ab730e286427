"""Writes down what a worker of the library is told, says, and runs: each call of its client, each run of a handler.

The library is not changed: the public methods of its client are wrapped.
"""

import os
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from chaos.calling import NOTHING_DONE, error_text, number_of, value_of
from chaos.history import ACK, CLAIM, END, EXTEND, FAIL, FAIL_TASK, INFO, INVOKE, OK, RELEASE, START, Event, History
from holdfast.client import (
    Ack,
    AsyncClient,
    Extended,
    Extension,
    Failure,
    HoldfastError,
    Rejected,
    current_task,
)

_PROCS_PER_LIFE = 1_000_000
_LIVES_MAX = 1_000
NS = 1_000_000_000


class Recorder:
    """Of one life of one worker."""

    def __init__(self, history: History, worker: str) -> None:
        self._history = history
        self.worker = worker

    def write(self, proc: int, type_: str, f: str, **fields: Any) -> None:
        self._history.write(Event(t_ns=0, proc=proc, type=type_, f=f, worker=self.worker, **fields))

    # --- handlers ---------------------------------------------------------------------------------------------

    def started(self, value: str) -> int:
        """A number to end it with."""
        proc = self._history.new_proc()
        self.write(proc, OK, START, task=current_task().id, value=value)
        return proc

    def ended(self, proc: int, how: str) -> None:
        self.write(proc, OK, END, state=how)

    # --- calls ------------------------------------------------------------------------------------------------

    async def claim(
        self, call: Callable[[], Awaitable[Any]], request_id: str, lease_ms: int, by_type: Mapping[str, int]
    ) -> Any:
        proc = self._history.new_proc()
        self.write(proc, INVOKE, CLAIM, req_id=request_id)
        try:
            claims = await call()
        except BaseException as error:
            self.write(proc, _kind(error), CLAIM, req_id=request_id, err=_text(error))
            raise
        for claim in claims:
            self.write(
                proc, OK, CLAIM, req_id=request_id, queue=claim.queue, task=claim.task_id, token=number_of(claim),
                value=value_of(claim), lease_ms=claim.lease_ms, ends_ns=int(claim.lease_ends_s * NS),
                asked_ms=by_type.get(claim.type, lease_ms), attempt=claim.attempt, nth=claim.claims,
                made_ms=claim.enqueued_at_ms, limit_key=claim.limit_key, tenant=claim.tenant,
            )  # fmt: skip
        if claims.unsettled_shards:
            self.write(proc, INFO, CLAIM, req_id=request_id, err="unsettled")
        elif not claims:
            self.write(proc, OK, CLAIM, req_id=request_id)
        return claims

    async def use(self, f: str, items: Sequence[Event], call: Callable[[], Awaitable[Any]]) -> Any:
        """A call with the tokens of claims."""
        proc = self._history.new_proc()
        lines = [replace(item, proc=proc, worker=self.worker) for item in items]
        for line in lines:
            self._history.write(line)
        try:
            answers = await call()
        except BaseException as error:
            for line in lines:
                self._history.write(replace(line, type=_kind(error), err=_text(error)))
            raise
        for line, answer in zip(lines, answers, strict=True):
            if isinstance(answer, Rejected):
                self._history.write(replace(line, type=_kind(answer), err=error_text(answer)))
            elif isinstance(answer, Extended):
                ends_ns = int(answer.lease_ends_s * NS)
                self._history.write(replace(line, type=OK, lease_ms=answer.lease_ms, ends_ns=ends_ns))
            else:
                self._history.write(replace(line, type=OK))
        return answers


def _kind(error: BaseException) -> str:
    return FAIL if isinstance(error, Rejected) and error.reason in NOTHING_DONE else INFO


def _text(error: BaseException) -> str:
    return error_text(error) if isinstance(error, HoldfastError) else type(error).__name__


def _item(f: str, claim: Any, **fields: Any) -> Event:
    return Event(t_ns=0, proc=0, type=INVOKE, f=f, task=claim.task_id, token=number_of(claim), **fields)


def install() -> Recorder:
    """In a worker process: from now on its client is recorded, as its environment says."""
    name, life = os.environ["CHAOS_WORKER"], int(os.environ["CHAOS_LIFE"])
    number = int(name.removeprefix("w"))
    first_proc = (number * _LIVES_MAX + life % _LIVES_MAX) * _PROCS_PER_LIFE
    history = History(Path(os.environ["CHAOS_HISTORY"]), first_proc=first_proc, keep=False)
    recorder = Recorder(history, f"{name}/{life}")
    reserve, ack_many, fail_many = AsyncClient.reserve, AsyncClient.ack_many, AsyncClient.fail_many
    extend_many, release_many = AsyncClient.extend_many, AsyncClient.release_many

    async def reserve_recorded(self: AsyncClient, queues: Sequence[str], **options: Any) -> Any:
        request_id = options.get("claim_request_id") or f"{recorder.worker}-{time.monotonic_ns()}"
        lease_ms, by_type = options.get("lease_ms", 30_000), options.get("lease_ms_by_type") or {}
        return await recorder.claim(lambda: reserve(self, queues, **options), request_id, lease_ms, by_type)

    async def ack_recorded(self: AsyncClient, items: Sequence[Any], **options: Any) -> Any:
        lines = [
            _item(ACK, item.claim, result=(item.result or b"").decode()) if isinstance(item, Ack) else _item(ACK, item)
            for item in items
        ]
        return await recorder.use(ACK, lines, lambda: ack_many(self, items, **options))

    async def fail_recorded(self: AsyncClient, items: Sequence[Failure], **options: Any) -> Any:
        lines = [_item(FAIL_TASK, item.claim, delay_ms=item.retry_delay_ms or 0) for item in items]
        return await recorder.use(FAIL_TASK, lines, lambda: fail_many(self, items, **options))

    async def extend_recorded(self: AsyncClient, items: Sequence[Extension], **options: Any) -> Any:
        lines = [_item(EXTEND, item.claim, lease_ms=item.lease_ms) for item in items]
        return await recorder.use(EXTEND, lines, lambda: extend_many(self, items, **options))

    async def release_recorded(self: AsyncClient, claims: Sequence[Any], **options: Any) -> Any:
        lines = [_item(RELEASE, claim, delay_ms=options.get("delay_ms", 0)) for claim in claims]
        return await recorder.use(RELEASE, lines, lambda: release_many(self, claims, **options))

    for method, recorded in (
        ("reserve", reserve_recorded), ("ack_many", ack_recorded), ("fail_many", fail_recorded),
        ("extend_many", extend_recorded), ("release_many", release_recorded),
    ):  # fmt: skip
        setattr(AsyncClient, method, recorded)
    return recorder
