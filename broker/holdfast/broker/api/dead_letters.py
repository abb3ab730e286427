"""Calls about dead letters. It holds no rules of its own."""

import asyncio
from collections.abc import Callable, Sequence

from holdfast.broker.api.answering import Answering, in_order
from holdfast.broker.api.conversion import discard_message, error_of, task_message
from holdfast.broker.api.validation import PAGE_DEFAULT, PAGE_MAX, Validator
from holdfast.broker.config import BrokerConfig
from holdfast.broker.replica.shard import Shard
from holdfast.machine import rejections
from holdfast.machine.entries import Entry, RetryDead
from holdfast.machine.operator_entries import DiscardDead
from holdfast.machine.outcomes import Moved
from holdfast.machine.reader import TaskView
from holdfast.machine.rows import DEAD, DEAD_REASONS
from holdfast.proto.v1 import tasks_pb2 as pb
from holdfast.serving.refusals import RefusedError

PAGE_BYTES_MAX = 2 * 1024 * 1024
LETTERS_PER_SLICE = 100  # before other work of the loop gets a turn
SCANNED_MAX = 1000  # letters that one call looks at, whether they fit its filter or not


class DeadLetterService:
    """One method per RPC."""

    def __init__(self, shard: Shard, config: BrokerConfig, validator: Validator, answering: Answering) -> None:
        self._shard = shard
        self._config = config
        self._validator = validator
        self._answering = answering

    async def list_dead_letters(self, request: pb.ListDeadLettersRequest) -> pb.ListDeadLettersResponse:
        """A list has what was dead at its first page, by shard time, which the tokens carry on: so whoever retries what
        it lists comes to an end, and no clock but the shard's has a say."""
        queue = self._validator.queue(request.queue)
        limit = self._validator.page_size(request.page_size, PAGE_DEFAULT, PAGE_MAX)
        begun = self._validator.dead_letter_page_token(request.page_token)
        wanted = self._validator.dead_letter_filter(request.filter)
        await self._shard.read_barrier()
        end_ms, after = begun or (self._shard.now_ms() + 1, b"")
        before_ms = min(wanted.died_before_ms or end_ms, end_ms)
        places, more = self._shard.reader.dead(queue, after, SCANNED_MAX, wanted.died_from_ms, before_ms)
        response = pb.ListDeadLettersResponse()
        now_ms = self._shard.now_ms()
        size = 0
        for index, place in enumerate(places):
            if index % LETTERS_PER_SLICE == LETTERS_PER_SLICE - 1:
                await asyncio.sleep(0)
            task = self._shard.reader.task(place[8:], now_ms)
            if task is not None and _fits(task, wanted):
                response.tasks.append(task_message(task, with_payload=False))
            if task is not None:
                size += task.size_bytes  # what was read counts, not only what is sent
            is_last = index == len(places) - 1
            if (is_last and more) or (not is_last and (len(response.tasks) == limit or size > PAGE_BYTES_MAX)):
                response.next_page_token = f"{place.hex()}-{end_ms}"
                break
        return response

    async def get_dead_letter(self, request: pb.GetDeadLetterRequest) -> pb.GetDeadLetterResponse:
        task = await self._shard.current_task(self._validator.task_id(request.task_id))
        if task.execution.state != DEAD:
            rejection = rejections.not_dead(task.execution.state_name)
            raise RefusedError(rejection.code, rejection.message, field="task_id")
        return pb.GetDeadLetterResponse(task=task_message(task))

    async def retry_dead_letters(self, request: pb.RetryDeadLettersRequest) -> pb.RetryDeadLettersResponse:
        response = pb.RetryDeadLettersResponse()
        await self._for_dead(request.task_ids, RetryDead, response.outcomes.add)
        return response

    async def discard_dead_letters(self, request: pb.DiscardDeadLettersRequest) -> pb.DiscardDeadLettersResponse:
        by = self._validator.signature(request.by, "by")
        note = self._validator.signature(request.note, "note")
        keep_ms = self._config.discard_retention_ms
        response = pb.DiscardDeadLettersResponse()
        await self._for_dead(
            request.task_ids,
            lambda now_ms, task_ids: DiscardDead(now_ms, task_ids, keep_ms, by, note),
            response.outcomes.add,
        )
        return response

    async def list_discards(self, request: pb.ListDiscardsRequest) -> pb.ListDiscardsResponse:
        queue = self._validator.queue(request.queue) if request.queue else b""
        limit = self._validator.page_size(request.page_size, PAGE_DEFAULT, PAGE_MAX)
        after = self._validator.page_token(request.page_token)
        await self._shard.read_barrier()
        found, more = self._shard.reader.discards(after, SCANNED_MAX)
        response = pb.ListDiscardsResponse()
        for index, (place, discard) in enumerate(found):
            if not queue or discard.queue == queue:
                response.discards.append(discard_message(place, discard))
            is_last = index == len(found) - 1
            if (is_last and more) or (not is_last and len(response.discards) == limit):
                response.next_page_token = place.hex()
                break
        return response

    async def _for_dead(
        self,
        texts: Sequence[str],
        make_entry: Callable[[int, list[bytes]], Entry],
        add: Callable[[], pb.DeadLetterOutcome],
    ) -> None:
        task_ids, refused = self._answering.validate_ids(texts)
        outcomes = await self._shard.submit(make_entry(self._shard.now_ms(), task_ids)) if task_ids else []
        for index, outcome in in_order(len(texts), outcomes, refused):
            answer = add()
            if isinstance(outcome, Moved):
                answer.done.SetInParent()
            else:
                self._answering.reject(answer, outcome, refused.get(index))


def _fits(task: TaskView, wanted: pb.DeadLetterFilter) -> bool:
    execution = task.execution
    if wanted.type and execution.type.decode() != wanted.type:
        return False
    if wanted.tenant and execution.tenant.decode() != wanted.tenant:
        return False
    if wanted.reason and DEAD_REASONS[execution.dead_reason] != wanted.reason:
        return False
    if wanted.error:
        error = error_of(task) or pb.TaskError()
        sought = wanted.error.casefold()
        return sought in error.type.casefold() or sought in error.message.casefold()
    return True
