"""What callers saw of a server while it was being killed, and whether that can be.

The history is written by the callers and judged without the server's help. A call whose answer did not arrive may or
may not have happened: it is recorded as unknown, and both are allowed.
"""

import time
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise


@dataclass(frozen=True)
class Enqueued:
    """A task that a producer sent, perhaps several times."""

    request_id: str
    payload: bytes
    task_id: str | None  # None: no answer


@dataclass(frozen=True)
class Claimed:
    """A task that a worker was given."""

    asked_s: float
    answered_s: float
    task_id: str
    token: int
    request_id: str
    payload: bytes


@dataclass(frozen=True)
class Settled:
    """A worker's ack, fail or release of a claim."""

    kind: str  # "ack", "fail" or "release"
    asked_s: float
    answered_s: float
    task_id: str
    token: int
    accepted: bool | None  # None: no answer


@dataclass
class History:
    enqueued: list[Enqueued] = field(default_factory=list)
    claimed: list[Claimed] = field(default_factory=list)
    settled: list[Settled] = field(default_factory=list)
    kills_s: list[float] = field(default_factory=list)

    def accepted_ids(self) -> set[str]:
        return {sent.task_id for sent in self.enqueued if sent.task_id is not None}

    def known_ids(self) -> set[str]:
        """All tasks that the server ever told of."""
        return self.accepted_ids() | {claim.task_id for claim in self.claimed}


def now_s() -> float:
    return time.monotonic()


def violations(history: History) -> list[str]:
    """Every promise that the history breaks, after the queue was drained; empty if it can be."""
    return [
        *_lost(history),
        *_unexpected(history),
        *_several_tasks_per_request(history),
        *_tokens_that_do_not_grow(history),
        *_stale_tokens_accepted(history),
        *_handed_out_after_ack(history),
    ]


def _lost(history: History) -> Iterator[str]:
    """Whatever was accepted was handed out, and in the end somebody acked it, perhaps without hearing of it."""
    may_be_acked = {done.task_id for done in history.settled if done.kind == "ack" and done.accepted is not False}
    for task_id in history.known_ids() - may_be_acked:
        yield f"lost: {task_id} was accepted but never acked"


def _unexpected(history: History) -> Iterator[str]:
    payloads = {sent.request_id: sent.payload for sent in history.enqueued}
    for claim in history.claimed:
        if claim.request_id not in payloads:
            yield f"unexpected: {claim.task_id} was handed out but never sent"
        elif payloads[claim.request_id] != claim.payload:
            yield f"unexpected: {claim.task_id} was handed out with another payload than it was sent with"


def _several_tasks_per_request(history: History) -> Iterator[str]:
    tasks: dict[str, set[str]] = defaultdict(set)
    for sent in history.enqueued:
        if sent.task_id is not None:
            tasks[sent.request_id].add(sent.task_id)
    for claim in history.claimed:
        tasks[claim.request_id].add(claim.task_id)
    for request_id, task_ids in tasks.items():
        if len(task_ids) > 1:
            yield f"duplicated: {request_id} made {len(task_ids)} tasks"


def _by_task(claims: Iterable[Claimed]) -> dict[str, list[Claimed]]:
    found: dict[str, list[Claimed]] = defaultdict(list)
    for claim in claims:
        found[claim.task_id].append(claim)
    return found


def _tokens_that_do_not_grow(history: History) -> Iterator[str]:
    tokens = [claim.token for claim in history.claimed]
    if len(set(tokens)) != len(tokens):
        yield "tokens: two claims share one"
    for task_id, claims in _by_task(history.claimed).items():
        claims.sort(key=lambda claim: claim.token)
        for earlier, later in pairwise(claims):
            # The one with the smaller token came first, so its call cannot have begun after the other was answered.
            if earlier.asked_s > later.answered_s:
                yield f"tokens: {task_id} was claimed with a smaller token than before"


def _stale_tokens_accepted(history: History) -> Iterator[str]:
    claims = _by_task(history.claimed)
    acked: dict[str, set[int]] = defaultdict(set)
    for done in history.settled:
        if not done.accepted:
            continue
        if done.kind == "ack":
            acked[done.task_id].add(done.token)
        for claim in claims[done.task_id]:
            if claim.token > done.token and claim.answered_s < done.asked_s:
                yield f"stale: {done.kind} of {done.task_id} was accepted after another worker had claimed it"
    for task_id, tokens in acked.items():
        if len(tokens) > 1:
            yield f"stale: {task_id} was acked under {len(tokens)} tokens"


def _handed_out_after_ack(history: History) -> Iterator[str]:
    """An accepted ack ends a task's life, so no claim of it has a larger token, whenever it was answered."""
    acked = {done.task_id: done.token for done in history.settled if done.kind == "ack" and done.accepted}
    for claim in history.claimed:
        if claim.token > acked.get(claim.task_id, claim.token):
            yield f"zombie: {claim.task_id} was handed out after its ack was accepted"
