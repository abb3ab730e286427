"""Calls about whole queues: their numbers, their workers, and emptying them. It holds no rules of its own."""

import asyncio
from itertools import islice

from holdfast.broker.api.answering import Answering
from holdfast.broker.api.conversion import (
    fill_latencies,
    fill_queue,
    fill_rates,
    task_message,
    wire_worker_state,
    worker_message,
)
from holdfast.broker.api.purging import Purging
from holdfast.broker.api.validation import PAGE_DEFAULT, PAGE_MAX, Validator
from holdfast.broker.config import BrokerConfig
from holdfast.broker.policy.policies import default_policy
from holdfast.broker.replica.shard import Shard
from holdfast.machine.reader import TaskView
from holdfast.machine.rows import NO_TASK, Queue
from holdfast.machine.task_walk import TaskWanted, walk
from holdfast.proto.v1 import queues_pb2 as queues_pb
from holdfast.proto.v1 import tasks_pb2 as pb
from holdfast.serving.refusals import QUEUE_NOT_FOUND, WORKER_NOT_FOUND, RefusedError

QUEUES_PER_SLICE = 50  # how many are looked at before other work of the loop gets a turn
TASKS_PER_SLICE = 64
SCANNED_MAX = 1000  # tasks that one call looks at, whether they fit its filter or not


class QueueService:
    """One method per RPC."""

    def __init__(self, shard: Shard, config: BrokerConfig, validator: Validator) -> None:
        self._shard = shard
        self._validator = validator
        self._default_policy = default_policy(config)
        self._heartbeat_ms = config.worker_heartbeat_ms
        self._purging = Purging(shard, validator, self._default_policy)

    async def queue_stats(self, request: pb.QueueStatsRequest, answering: Answering) -> pb.QueueStatsResponse:
        self._validator.queues(len(request.queues))
        await self._shard.read_barrier()
        response = pb.QueueStatsResponse()
        for index, name in enumerate(request.queues):
            item = response.outcomes.add()
            try:
                queue = self._validator.queue(name, f"queues[{index}]")
                counters = self._shard.queue(queue)
                if counters is None:
                    raise RefusedError(QUEUE_NOT_FOUND, f"Expected a queue named {name}, but it was never used.")
            except RefusedError as error:
                answering.reject(item, None, error)
                continue
            self._fill_counts(item.counts, queue, counters)
            fill_latencies(item.counts, self._shard.stats.latencies_of(queue))
        return response

    async def list_queues(self, request: pb.ListQueuesRequest) -> pb.ListQueuesResponse:
        limit = self._validator.page_size(request.page_size, PAGE_DEFAULT, PAGE_MAX)
        after = self._validator.queue_page_token(request.page_token)
        await self._shard.read_barrier()
        queues, more = self._shard.reader.queues(after, limit)
        response = pb.ListQueuesResponse(next_page_token=queues[-1][0].decode() if more else "")
        for index, (name, counters) in enumerate(queues):
            if index and index % QUEUES_PER_SLICE == 0:
                await asyncio.sleep(0)
            self._fill_counts(response.queues.add(), name, counters)
        return response

    def _fill_counts(self, message: pb.QueueCounts, name: bytes, counters: Queue) -> None:
        fill_queue(message, name.decode(), counters)
        policies = self._shard.policies
        policy = self._default_policy if policies is None else policies.of(name)
        message.oldest_ready_age_ms = self._shard.oldest_ready_age_ms(name, counters)
        message.oldest_claim_age_ms = self._shard.oldest_claim_age_ms(name)
        message.waiting_reserves = self._shard.waiting_for(name)
        message.paused = policy.paused
        message.dead_alert = bool(policy.dead_alert_at) and counters.dead >= policy.dead_alert_at
        fill_rates(message, self._shard.stats.rates.per_second(name))

    async def purge_queue(self, request: queues_pb.PurgeQueueRequest) -> queues_pb.PurgeQueueResponse:
        return await self._purging.purge_page(request)

    async def list_tasks(self, request: queues_pb.ListTasksRequest) -> queues_pb.ListTasksResponse:
        queue = self._validator.queue(request.queue) if request.queue else b""
        limit = self._validator.page_size(request.page_size, PAGE_DEFAULT, PAGE_MAX)
        after = self._validator.task_page_token(request.page_token)
        wanted = TaskWanted(queue, *self._validator.task_filter(request.filter))
        await self._shard.read_barrier()
        places = walk(self._shard.reader, wanted.states, queue, after, self._shard.index_starts())
        response = queues_pb.ListTasksResponse()
        scanned = 0
        while found := list(islice(places, TASKS_PER_SLICE)):
            if scanned:
                await asyncio.sleep(0)
            tasks = self._shard.executions([task_id or NO_TASK for _, task_id in found])
            now_ms = self._shard.now_ms()  # or a refusal: it may lead no more
            for (place, task_id), task in zip(found, tasks, strict=True):
                scanned += 1
                if task is not None and task_id and wanted.fits(task, place, now_ms):
                    view = TaskView.make(task_id, task, now_ms)
                    response.tasks.append(task_message(view, with_payload=False))
                if scanned >= SCANNED_MAX or len(response.tasks) == limit:
                    response.next_page_token = place.hex()
                    return response
        return response

    async def heartbeat(self, request: queues_pb.HeartbeatRequest) -> queues_pb.HeartbeatResponse:
        beat = self._validator.heartbeat(request)
        desired = self._shard.stats.heartbeat(beat, self._shard.now_ms())
        return queues_pb.HeartbeatResponse(desired=wire_worker_state(desired), next_ms=self._heartbeat_ms)

    async def signal_worker(self, request: queues_pb.SignalWorkerRequest) -> queues_pb.SignalWorkerResponse:
        name, desired = self._validator.worker_signal(request)
        state = self._shard.stats.signal(name, desired)
        if state is None:
            sentence = "Expected {field} to be a worker that has heartbeats, but none came in the last minute."
            raise RefusedError(WORKER_NOT_FOUND, sentence, "worker")
        return queues_pb.SignalWorkerResponse(state=wire_worker_state(state))

    async def list_workers(self, request: queues_pb.ListWorkersRequest) -> queues_pb.ListWorkersResponse:
        limit = self._validator.page_size(request.page_size, PAGE_DEFAULT, PAGE_MAX)
        after = self._validator.worker_page_token(request.page_token)
        await self._shard.read_barrier()
        workers, more = self._shard.stats.workers_page(after, limit)
        next_page_token = workers[-1].name.hex() if more else ""
        return queues_pb.ListWorkersResponse(workers=map(worker_message, workers), next_page_token=next_page_token)
