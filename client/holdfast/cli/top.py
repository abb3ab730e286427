"""`holdfast top`: all that goes on, at one look. Asks, sorts and adds up; what it looks like is in top_output.py."""

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass

from holdfast.cli import calls, cluster_calls, health
from holdfast.client import AsyncClient, ClusterInfo, QueueStats, WorkerInfo

WORKERS_READ_MAX = 1_000
_COUNTED = ("ready", "claimed", "delayed", "retrying", "dead")
_RATES = ("enqueued_per_second", "claimed_per_second", "succeeded_per_second", "failed_per_second")

# By what queues can be sorted, the largest first.
SORTS: dict[str, Callable[[QueueStats], float]] = {
    "busy": lambda queue: queue.ready + queue.claimed,
    "oldest": lambda queue: max(queue.oldest_ready_age_ms, queue.oldest_claim_age_ms),
    "rate": lambda queue: queue.succeeded_per_second,
    "dead": lambda queue: queue.dead,
    "name": lambda _: 0,
}


@dataclass(frozen=True, slots=True)
class TopView:
    """What there is at one moment."""

    at_ms: int
    queues: Sequence[QueueStats]
    workers: Sequence[WorkerInfo]
    more_workers: bool  # there are more than were read
    cluster: ClusterInfo | None  # None: there is no map
    missing_shards: Sequence[int]  # that did not answer: what they have is not in the numbers

    @property
    def totals(self) -> dict[str, float]:
        return {name: sum(getattr(queue, name) for queue in self.queues) for name in (*_COUNTED, *_RATES)}

    @property
    def oldest_ready_age_ms(self) -> int:
        return max((queue.oldest_ready_age_ms for queue in self.queues), default=0)

    @property
    def oldest_claim_age_ms(self) -> int:
        return max((queue.oldest_claim_age_ms for queue in self.queues), default=0)

    @property
    def worker_states(self) -> dict[str, int]:
        """How many workers are in which state."""
        return dict(Counter(str(worker.state) for worker in self.workers))

    @property
    def shard_problems(self) -> list[tuple[int, str]]:
        """What is wrong with shards, as far as the map knows."""
        views = health.views(self.cluster) if self.cluster is not None else []
        return [(view.shard, view.problem) for view in views if view.problem]

    def sorted_queues(self, by: str) -> list[QueueStats]:
        return sorted(self.queues, key=lambda queue: (-SORTS[by](queue), queue.queue))


def read_view(address: str, timeout_s: float) -> TopView:
    async def question(client: AsyncClient) -> TopView:
        queues, workers, info = await asyncio.gather(
            calls.all_queues(client, partial=True),
            client.list_workers(page_size=WORKERS_READ_MAX, partial=True),
            cluster_calls.map_if_any(client, timeout_s),
        )
        missing = sorted({*queues[1], *workers.missing_shards})
        has_map = info is not None and bool(info.cluster_id)
        return TopView(
            time.time_ns() // 1_000_000, queues[0], workers.workers, bool(workers.next_page_token),
            info if has_map else None, missing,
        )  # fmt: skip

    return calls.ask(address, timeout_s, question)


def view_json(seen: TopView, by: str, limit: int) -> dict[str, object]:
    cluster = None
    if seen.cluster is not None:
        problems = [{"shard": shard, "problem": problem} for shard, problem in seen.shard_problems]
        cluster = {
            "is_last_known": not seen.cluster.etcd_answers,
            "age_ms": seen.cluster.age_ms,
            "nodes": len(seen.cluster.nodes),
            "nodes_alive": sum(node.is_alive for node in seen.cluster.nodes),
            "shards": len(seen.cluster.shards),
            "problems": problems,
        }
    queues = seen.sorted_queues(by)
    return {
        "at_ms": seen.at_ms,
        "totals": seen.totals | {"queues": len(queues)},
        "oldest_ready_age_ms": seen.oldest_ready_age_ms,
        "oldest_claim_age_ms": seen.oldest_claim_age_ms,
        "queues": [_queue_json(queue) for queue in queues[:limit]],
        "workers": {
            "count": len(seen.workers),
            "more": seen.more_workers,
            "states": seen.worker_states,
            "slots": sum(worker.slots for worker in seen.workers),
            "claims": sum(worker.claims for worker in seen.workers),
        },
        "cluster": cluster,
        "missing_shards": list(seen.missing_shards),
    }


def _queue_json(stats: QueueStats) -> dict[str, object]:
    """As in `queue ls`; latencies are known to `queue stats` alone."""
    return {name: value for name, value in asdict(stats).items() if name != "latencies"}
