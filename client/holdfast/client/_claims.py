"""Claims between values and messages: how a worker names one, and the tasks that a run of them is of."""

from collections.abc import Iterator
from dataclasses import fields
from itertools import repeat
from typing import Any

from holdfast.client._coding import AS_IT_IS, Coding
from holdfast.client._fitting import parts
from holdfast.client.errors import UnexpectedAnswer
from holdfast.client.models import Claim, ClaimedTask, Claims
from holdfast.proto.v1 import tasks_pb2 as pb
from holdfast.routing.task_ids import later_task_ids, shard_of_task

SECRET_BITS = 64  # of a token, below its number
_SECRET_MAX = (1 << SECRET_BITS) - 1

# How the fields of a claimed task are set, by their names, and those that each task of a run has of its own.
_PUT = {field.name: ClaimedTask.__dict__[field.name].__set__ for field in fields(ClaimedTask)}
_OWN = frozenset({"task_id", "token", "payload", "headers", "request_id"})


def put_claim(message: pb.ClaimRef | pb.AckRange, claim: Claim) -> None:
    message.task_id = claim.task_id
    token = claim.token
    message.token = token >> SECRET_BITS
    message.secret = token & _SECRET_MAX


def claim_parts(claim: object) -> dict[str, Any]:
    """What names a claim, for `field_misfit`: of a token the half that may not fit."""
    named = parts(claim, "task_id", "token")
    token = named.get("token")
    return named | {"token": token >> SECRET_BITS} if isinstance(token, int) else named


class RunClaims(Claims):
    """Claims as they came."""

    def __init__(self, response: pb.ReserveResponse, sent_s: float, coding: Coding = AS_IT_IS) -> None:
        super().__init__(
            (), response.run_dry_ms / 1000, tuple(response.unsettled_shards), response.suggested_wait_ms
        )  # fmt: skip
        self.runs = response.runs
        answered_s = sent_s + (response.waited_ms + response.routed_ms) / 1000
        count = 0
        for run in self.runs:
            size = len(run.payloads)
            if size != 1 and (not size or shard_of_task(run.task_id) is None):
                raise UnexpectedAnswer("a run of claims that names no tasks")
            if run.request_ids and len(run.request_ids) != size:
                raise UnexpectedAnswer(f"a run of {size} claims with {len(run.request_ids)} request ids")
            count += size
        places = [place for run in self.runs for place in run.at]
        whole = all(len(run.at) == len(run.payloads) for run in self.runs)
        if places and not (whole and sorted(places) == [*range(count)]):
            raise UnexpectedAnswer(f"places that are not those of {count} claims")
        if count:
            self.put_off(count, lambda: self._made(places, answered_s, coding))

    def _made(self, places: list[int], answered_s: float, coding: Coding) -> list[ClaimedTask]:
        claims = _in_order(places, [claim for run in self.runs for claim in claims_of(run, answered_s)])
        return claims if coding.is_off else [*map(coding.claimed, claims)]


def _in_order(places: list[int], claims: list[ClaimedTask]) -> list[ClaimedTask]:
    """`places`: where each belongs; none if they are in order."""
    by_place = dict(zip(places, claims, strict=True)) if places else {}
    return [by_place[place] for place in range(len(claims))] if places else claims


def claims_of(run: pb.ClaimRun, answered_s: float) -> Iterator[ClaimedTask]:
    """`answered_s`: when the broker made its answer, or a moment before."""
    _, *ids = later_task_ids(run.task_id, len(run.payloads))
    first = _first_claimed(run, answered_s)
    yield first
    if not ids:
        return
    shared = [(put, getattr(first, name)) for name, put in _PUT.items() if name not in _OWN]
    token, headers = first.token, first.headers
    request_ids = run.request_ids[1:] or repeat(first.request_id, len(ids))
    for task_id, payload, request_id in zip(ids, run.payloads[1:], request_ids, strict=True):
        token += 1 << SECRET_BITS
        # Half of what it would cost to be made in the usual way, field by field.
        claim = object.__new__(ClaimedTask)
        for put, value in shared:
            put(claim, value)
        _PUT["task_id"](claim, task_id)
        _PUT["token"](claim, token)
        _PUT["payload"](claim, payload)
        _PUT["request_id"](claim, request_id)
        _PUT["headers"](claim, dict(headers))  # whoever changes his own changes no other's
        yield claim


def _first_claimed(run: pb.ClaimRun, answered_s: float) -> ClaimedTask:
    spec = run.task
    return ClaimedTask(
        task_id=run.task_id,
        token=run.token << SECRET_BITS | run.secret,
        queue=spec.queue,
        type=spec.type,
        payload=run.payloads[0],
        headers=dict(spec.headers),
        priority=spec.priority if spec.HasField("priority") else None,
        tenant=spec.tenant,
        request_id=run.request_ids[0] if run.request_ids else spec.request_id,
        attempt=run.attempt,
        claims=run.claims,
        max_attempts=spec.max_attempts if spec.HasField("max_attempts") else None,
        limit_key=spec.limit_key,
        unique_key=spec.unique_key,
        timeout_ms=spec.timeout_ms if spec.HasField("timeout_ms") else None,
        enqueued_at_ms=run.enqueued_at_ms,
        alone=run.alone,
        lease_ms=run.lease_ms,
        lease_ends_s=answered_s + run.lease_ms / 1000,
    )
