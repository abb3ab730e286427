"""The calls about queues and those who work on their tasks. `AsyncClient` inherits them."""

from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import replace

from holdfast.client import _queues_wire
from holdfast.client._calls import Calls, next_page
from holdfast.client._fitting import only
from holdfast.client._rpc import method
from holdfast.client.errors import Rejected
from holdfast.client.models import TaskInfo
from holdfast.client.queue_models import (
    HeartbeatAnswer,
    QueuePage,
    QueueStats,
    TaskFilter,
    TaskPage,
    WorkerPage,
    WorkerState,
)
from holdfast.proto.v1 import queues_pb2
from holdfast.proto.v1 import tasks_pb2 as pb

_LIST_QUEUES = method(pb, "Tasks", "ListQueues", pb.ListQueuesRequest, pb.ListQueuesResponse)
_QUEUE_STATS = method(pb, "Tasks", "QueueStats", pb.QueueStatsRequest, pb.QueueStatsResponse)
_PURGE = method(queues_pb2, "Queues", "PurgeQueue", queues_pb2.PurgeQueueRequest, queues_pb2.PurgeQueueResponse)
_LIST_TASKS = method(queues_pb2, "Queues", "ListTasks", queues_pb2.ListTasksRequest, queues_pb2.ListTasksResponse)
_HEARTBEAT = method(queues_pb2, "Queues", "Heartbeat", queues_pb2.HeartbeatRequest, queues_pb2.HeartbeatResponse)
_SIGNAL_WORKER = method(
    queues_pb2, "Queues", "SignalWorker", queues_pb2.SignalWorkerRequest, queues_pb2.SignalWorkerResponse
)
_LIST_WORKERS = method(
    queues_pb2, "Queues", "ListWorkers", queues_pb2.ListWorkersRequest, queues_pb2.ListWorkersResponse
)


class QueueCalls(Calls):
    """What is in queues, and who takes it out."""

    async def queue_stats(self, queue: str, *, timeout_s: float | None = None) -> QueueStats:
        """How many tasks of the queue are in which state, how many come and go, and how long they take.

        >>> import asyncio
        >>> async def main() -> None:
        ...     async with AsyncClient() as client:
        ...         stats = await client.queue_stats("mail")
        ...         print(stats.ready, [(row.type, row.claim_to_ack.quantile_ms(0.5)) for row in stats.latencies])
        >>> asyncio.run(main())
        3 [('welcome', 3.5)]
        """
        return only(await self.queue_stats_many([queue], timeout_s=timeout_s))

    async def queue_stats_many(
        self, queues: Sequence[str], *, timeout_s: float | None = None
    ) -> list[QueueStats | Rejected]:
        """The same for many queues."""
        if not queues:
            return []
        request = _queues_wire.queue_stats_request(queues)
        response = await self._call(_QUEUE_STATS, request, timeout_s, repeatable=True)
        return _queues_wire.queue_stats_outcomes(response, len(queues))

    async def list_queues(
        self, *, page_size: int = 100, page_token: str = "", partial: bool = False, timeout_s: float | None = None
    ) -> QueuePage:
        """One page of all queues that were ever used, by name; pass on `next_page_token` for the next page.

        If a shard of the cluster does not answer, neither does this; with `partial` it tells what the others know, and
        `missing_shards` says which are missing in the numbers."""
        request = _queues_wire.list_queues_request(page_size, page_token, partial=partial)
        return _queues_wire.queue_page(await self._call(_LIST_QUEUES, request, timeout_s, repeatable=True))

    async def list_tasks(
        self,
        queue: str = "",
        *,
        where: TaskFilter | None = None,
        page_size: int = 100,
        page_token: str = "",
        partial: bool = False,
        timeout_s: float | None = None,
    ) -> TaskPage:
        """One page of the tasks of a queue, or of all, that fit; pass on `next_page_token` for the next page.

        Ready tasks come first, in the order of their lines; then claimed ones by the end of their lease, delayed and
        retrying ones by when they are due, dead ones, and finished ones. In a cluster, shard by shard. A page may be
        empty and not the last: a call looks at a bounded number of tasks, whether they fit or not. A task that changes
        its state meanwhile may come twice, or not at all.

        If a shard of the cluster does not answer, neither does this; with `partial` the shard is passed over, and
        `missing_shards` of the page names it. If it is the only one of the queue, it is an error all the same.
        """
        request = _queues_wire.list_tasks_request(queue, where, page_size, page_token, partial=partial)
        page = _queues_wire.task_page(await self._call(_LIST_TASKS, request, timeout_s, repeatable=True))
        return replace(page, tasks=self._coding.infos(page.tasks))

    async def iter_tasks(
        self,
        queue: str = "",
        *,
        where: TaskFilter | None = None,
        page_size: int = 100,
        timeout_s: float | None = None,
    ) -> AsyncIterator[TaskInfo]:
        """All tasks of a queue, or of all, that fit, page by page; `timeout_s` is the time for one page.

        >>> import asyncio
        >>> async def main() -> None:
        ...     async with AsyncClient() as client:
        ...         async for task in client.iter_tasks("mail", where=TaskFilter(states=[TaskState.CLAIMED])):
        ...             print(task.task_id, task.worker)
        >>> asyncio.run(main())
        the-id host-1
        """
        token = ""
        while True:
            page = await self.list_tasks(queue, where=where, page_size=page_size, page_token=token, timeout_s=timeout_s)
            for task in page.tasks:
                yield task
            token = next_page(token, page.next_page_token, len(page.tasks))
            if not token:
                return

    async def list_workers(
        self, *, page_size: int = 100, page_token: str = "", partial: bool = False, timeout_s: float | None = None
    ) -> WorkerPage:
        """One page of those who claim tasks, by name; pass on `next_page_token` for the next page. `partial` as in
        `list_queues`."""
        request = _queues_wire.list_workers_request(page_size, page_token, partial=partial)
        return _queues_wire.worker_page(await self._call(_LIST_WORKERS, request, timeout_s, repeatable=True))

    async def heartbeat(
        self,
        worker: str,
        *,
        state: WorkerState = WorkerState.RUNNING,
        slots: int = 0,
        version: str = "",
        queues: Sequence[str] = (),
        timeout_s: float | None = None,
    ) -> HeartbeatAnswer:
        """Says that a worker is there and what it does; returns what operators want of it, and when to do so again.

        `Worker` does it by itself. A worker of your own making that has heartbeats is listed with its state, leaves the
        list a minute after the last one, or with the state `GONE` at once, and can be asked to be quiet or to stop."""
        request = _queues_wire.heartbeat_request(worker, state, slots, version, queues)
        return _queues_wire.heartbeat_answer(await self._call(_HEARTBEAT, request, timeout_s, repeatable=True))

    async def signal_worker(self, worker: str, desired: WorkerState, *, timeout_s: float | None = None) -> WorkerState:
        """Asks a worker to claim no more tasks (`QUIET`), to claim some again (`RUNNING`) or to stop (`STOPPING`).

        It hears of it with its next heartbeat, 10 s from now at most unless the server says otherwise. Returns what its
        last one said: call this again until it is so. `NotFound` if it has no heartbeats, or has ended."""
        request = _queues_wire.signal_worker_request(worker, desired)
        return _queues_wire.signalled(await self._call(_SIGNAL_WORKER, request, timeout_s, repeatable=True))

    async def purge_queue(
        self,
        queue: str,
        *,
        dry_run: bool = False,
        progress: Callable[[int], None] | None = None,
        timeout_s: float | None = None,
    ) -> int:
        """Cancels all waiting tasks of a queue, page by page, and returns how many; those that come after the first
        page stay. With `dry_run` they are counted only.

        `progress` is called after each page with the number so far. `timeout_s` is the time for one page. A page whose
        answer was lost is asked for again, and what the first attempt has cancelled is missing in the number.

        >>> import asyncio
        >>> async def main() -> None:
        ...     async with AsyncClient() as client:
        ...         print(await client.purge_queue("mail", progress=print), "tasks cancelled")
        >>> asyncio.run(main())
        1000
        1007
        1007 tasks cancelled
        """
        request = _queues_wire.purge_request(queue, dry_run=dry_run)
        purged = 0
        while True:
            page = await self._call(_PURGE, request, timeout_s, repeatable=True)
            purged += page.purged
            if progress is not None:
                progress(purged)
            request.page_token = next_page(request.page_token, page.next_page_token, page.purged)
            if not request.page_token:
                return purged
