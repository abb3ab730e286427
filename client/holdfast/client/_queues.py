"""The calls about queues and those who work on their tasks. `AsyncClient` inherits them."""

from collections.abc import Callable, Sequence

from holdfast.client import _queues_wire
from holdfast.client._calls import Calls, next_page
from holdfast.client._fitting import only
from holdfast.client._rpc import method
from holdfast.client.errors import Rejected
from holdfast.client.queue_models import QueuePage, QueueStats, WorkerPage
from holdfast.proto.v1 import queues_pb2
from holdfast.proto.v1 import tasks_pb2 as pb

_LIST_QUEUES = method(pb, "Tasks", "ListQueues", pb.ListQueuesRequest, pb.ListQueuesResponse)
_QUEUE_STATS = method(pb, "Tasks", "QueueStats", pb.QueueStatsRequest, pb.QueueStatsResponse)
_PURGE = method(queues_pb2, "Queues", "PurgeQueue", queues_pb2.PurgeQueueRequest, queues_pb2.PurgeQueueResponse)
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
        ...         print(stats.ready, [(each.type, each.claim_to_ack.quantile_ms(0.5)) for each in stats.latencies])
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

    async def list_workers(
        self, *, page_size: int = 100, page_token: str = "", partial: bool = False, timeout_s: float | None = None
    ) -> WorkerPage:
        """One page of those who claim tasks, by name; pass on `next_page_token` for the next page. `partial` as in
        `list_queues`."""
        request = _queues_wire.list_workers_request(page_size, page_token, partial=partial)
        return _queues_wire.worker_page(await self._call(_LIST_WORKERS, request, timeout_s, repeatable=True))

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
