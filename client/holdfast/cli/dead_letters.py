"""Retry or discard many dead letters, in batches.

All of a queue, or all that fit a filter, means those that are dead when it begins. Their ids are read first, as many as
the queue has, oldest first; only then is the first one touched. So a task that is retried and dies again meanwhile is
not retried again.
"""

import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum

from holdfast.cli import calls
from holdfast.client import AsyncClient, DeadLetterFilter, HoldfastError, OutcomeUnknown, Rejected, ServerError

_PAGE = 1_000
_FAILURES_KEPT_MAX = 20
_ID_BYTES = 16

Advance = Callable[[int], None]


class Verb(Enum):
    """What is done with a dead letter; the value is how it is said afterwards."""

    RETRY = "retried"
    DISCARD = "discarded"


@dataclass(slots=True)
class LetterTally:
    """How far it got; filled in as it goes, so that it is right also when it ends early."""

    done: int = 0
    failed: int = 0
    unknown: int = 0  # sent, but no answer came: they may be done or not
    failures: list[tuple[str, Rejected]] = field(default_factory=list)  # the first few: task id, and why
    stopped_by: HoldfastError | None = None  # what kept the rest from being tried

    def count(self, task_id: str, refusal: Rejected | None) -> None:
        if refusal is None:
            self.done += 1
            return
        self.failed += 1
        if len(self.failures) < _FAILURES_KEPT_MAX:
            self.failures.append((task_id, refusal))


@dataclass(frozen=True, slots=True)
class LetterAction:
    """What is to be done with letters, and what is written down about it."""

    verb: Verb
    by: str | None = ""  # of a discard: who; None: user@host
    note: str = ""  # and why


def count(address: str, timeout_s: float, queue: str) -> int:
    """How many dead letters the queue has; `NotFound` if there is no such queue."""
    return calls.ask(address, timeout_s, lambda client: client.queue_stats(queue)).dead


def act_on(address: str, timeout_s: float, action: LetterAction, task_ids: Sequence[str], report: LetterTally) -> None:
    """Named letters. Raises if the first call already fails."""

    async def act(client: AsyncClient) -> None:
        for batch in calls.batches(task_ids, calls.BATCH_ITEMS_MAX):
            try:
                await _act_on_batch(client, action, batch, report)
            except HoldfastError as error:
                if not report.done + report.failed:
                    raise
                report.stopped_by = error
                return

    calls.ask(address, timeout_s, act)


def check_dead_letters(address: str, timeout_s: float, task_ids: Sequence[str], report: LetterTally) -> None:
    """Counts as done those that are dead letters, and changes nothing."""

    async def check(client: AsyncClient) -> None:
        for task_id in task_ids:
            try:
                await client.get_dead_letter(task_id)
            except Rejected as error:
                report.count(task_id, error)
            else:
                report.count(task_id, None)

    calls.ask(address, timeout_s, check)


def find(
    address: str, timeout_s: float, queue: str, where: DeadLetterFilter, letters_max: int, advance: Advance
) -> bytes:
    """The packed ids of the `letters_max` oldest letters that fit; `advance` hears of each."""
    return bytes(
        calls.ask(address, timeout_s, lambda client: _ids(client, queue, where, letters_max, advance), retry=True)
    )


def found_count(packed: bytes) -> int:
    return len(packed) // _ID_BYTES


def act_on_found(
    address: str, timeout_s: float, action: LetterAction, packed: bytes, report: LetterTally, advance: Advance
) -> None:
    """What `find` has found; `advance` hears of each when it is done."""

    async def act(client: AsyncClient) -> None:
        try:
            size = calls.BATCH_ITEMS_MAX * _ID_BYTES
            for start in range(0, len(packed), size):
                batch = _unpack(packed[start : start + size])
                await _act_on_batch(client, action, batch, report)
                advance(len(batch))
        except HoldfastError as error:
            report.stopped_by = error

    calls.ask(address, timeout_s, act, retry=True)


async def _act_on_batch(
    client: AsyncClient, action: LetterAction, task_ids: Sequence[str], report: LetterTally
) -> None:
    report.unknown = len(task_ids)  # until the answer is here
    try:
        if action.verb is Verb.RETRY:
            outcomes = await client.retry_dead_letters(task_ids)
        else:
            outcomes = await client.discard_dead_letters(task_ids, by=action.by, note=action.note)
    except Rejected as error:
        if not isinstance(error, OutcomeUnknown | ServerError):
            report.unknown = 0
        raise
    report.unknown = 0
    for task_id, outcome in zip(task_ids, outcomes, strict=True):
        report.count(task_id, outcome if isinstance(outcome, Rejected) else None)


async def _ids(
    client: AsyncClient, queue: str, where: DeadLetterFilter, letters_max: int, advance: Advance
) -> bytearray:
    """The ids of the oldest letters: 16 bytes each, because there may be millions."""
    packed = bytearray()
    token = ""
    while len(packed) < letters_max * _ID_BYTES:
        size = min(_PAGE, letters_max - len(packed) // _ID_BYTES)
        page = await client.list_dead_letters(queue, where=where, page_size=size, page_token=token)
        for letter in page.tasks:
            packed += uuid.UUID(letter.task_id).bytes
        advance(len(page.tasks))
        token = page.next_page_token
        if not token:
            break
    return packed


def _unpack(packed: bytes | bytearray) -> list[str]:
    parts = (packed[start : start + _ID_BYTES] for start in range(0, len(packed), _ID_BYTES))
    return [str(uuid.UUID(bytes=bytes(part))) for part in parts]
