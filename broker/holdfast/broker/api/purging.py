"""Emptying a queue: its waiting tasks are cancelled page by page, so that nothing else has to wait for it.

Delayed and retrying tasks go first: whatever becomes ready meanwhile is met among the ready ones, which have rows of
their own or are in those of their sub-queues. Only tasks that were there at the first page count, known by the time in
their ids, so it ends however many are coming.
"""

from holdfast.broker.api.validation import Validator
from holdfast.broker.policy.policies import EffectivePolicy
from holdfast.broker.replica.shard import Shard
from holdfast.machine import keys
from holdfast.machine.entries import ENTRY_ITEMS_MAX, Cancel
from holdfast.machine.ids import later_task_id, task_id_time_ms
from holdfast.machine.outcomes import Moved
from holdfast.machine.ready_rows import SubqueueRow, split_ready_row
from holdfast.machine.rows import CANCELLED
from holdfast.proto.v1 import queues_pb2 as pb

DUE, READY, SUBQUEUES = PHASES = "due", "ready", "subqueues"


class Purging:
    """The purges of one shard; all they know is in the tokens of their pages."""

    def __init__(self, shard: Shard, validator: Validator, default_policy: EffectivePolicy) -> None:
        self._shard = shard
        self._validator = validator
        self._default_policy = default_policy

    async def purge_page(self, request: pb.PurgeQueueRequest) -> pb.PurgeQueueResponse:
        queue = self._validator.queue(request.queue)
        await self._shard.read_barrier()
        phase, until_ms, after = self._validator.purge_page_token(request.page_token) or (
            DUE,
            self._shard.now_ms(),
            b"",
        )
        pages = {DUE: self._due_page, READY: self._ready_page, SUBQUEUES: self._subqueues_page}
        found, last = pages[phase](queue, after)
        task_ids = [task_id for task_id in found if task_id_time_ms(task_id) <= until_ms]
        purged = len(task_ids)
        if task_ids and not request.dry_run:
            purged = await self._cancel(queue, task_ids)
        response = pb.PurgeQueueResponse(purged=purged)
        if last:
            response.next_page_token = f"{phase}-{until_ms}-{last.hex()}"
        elif phase != SUBQUEUES:
            response.next_page_token = f"{PHASES[PHASES.index(phase) + 1]}-{until_ms}-"
        return response

    def _due_page(self, queue: bytes, after: bytes) -> tuple[list[bytes], bytes]:
        """The queue's tasks on one page of all that wait for a time, and the last place unless it is the last page."""
        start = keys.family_start(keys.DUE)
        rows = self._shard.reader.scan(
            start + after + b"\0" if after else start, keys.family_start(keys.DUE + 1), ENTRY_ITEMS_MAX
        )
        task_ids = [keys.timed(key)[1] for key, _ in rows]
        tasks = zip(task_ids, self._shard.reader.executions(task_ids), strict=True)
        found = [task_id for task_id, task in tasks if task is not None and task.queue == queue]
        return found, rows[-1][0][1:] if len(rows) == ENTRY_ITEMS_MAX else b""

    def _ready_page(self, queue: bytes, after: bytes) -> tuple[list[bytes], bytes]:
        prefix = keys.ready_queue(queue)
        start = prefix + after + b"\0" if after else prefix
        rows = self._shard.reader.scan(start, keys.after_prefix(prefix), ENTRY_ITEMS_MAX)
        found: list[bytes] = []
        last = b""
        for key, row in rows:
            first_id, _, count = split_ready_row(row)
            if len(found) + count > ENTRY_ITEMS_MAX:
                return found, last
            found += [later_task_id(first_id, index) for index in range(count)] if count > 1 else [first_id]
            last = key[len(prefix) :]
        return found, last if len(rows) == ENTRY_ITEMS_MAX else b""

    def _subqueues_page(self, queue: bytes, after: bytes) -> tuple[list[bytes], bytes]:
        """As many sub-queues as fit: most have a task or two."""
        prefix = keys.subqueue_queue(queue)
        start = prefix + after + b"\0" if after else prefix
        rows = self._shard.reader.scan(start, keys.after_prefix(prefix), ENTRY_ITEMS_MAX)
        found: list[bytes] = []
        last = b""
        for key, row in rows:
            places = SubqueueRow.decode(row).ready_slices()
            if len(found) + len(places) > ENTRY_ITEMS_MAX:
                return found, last
            found += [task_id for _, task_id, *_ in places]
            last = key[len(prefix) :]
        return found, last if len(rows) == ENTRY_ITEMS_MAX else b""

    async def _cancel(self, queue: bytes, task_ids: list[bytes]) -> int:
        """A task that was claimed since goes on running."""
        policies = self._shard.policies
        policy = self._default_policy if policies is None else policies.of(queue)
        outcomes = await self._shard.submit(
            Cancel(self._shard.now_ms(), policy.finished_retention_ms, task_ids, waiting_only=True)
        )
        return sum(isinstance(outcome, Moved) and outcome.state == CANCELLED for outcome in outcomes)
