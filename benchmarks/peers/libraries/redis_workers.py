"""Redis and the workers of Celery and Dramatiq."""

from collections.abc import Sequence

from peers.brokers.redis_streams import Redis
from peers.libraries.settings import PROCESSES
from peers.libraries.workers import LibraryPeer

THREADS = 8  # of each process of Dramatiq: what it has by itself


class _RedisWorkers(LibraryPeer, Redis):
    async def empty_queue(self) -> str:
        """A library makes its queue itself: one that is a stream would be in its way."""
        self.flush()
        return self.next_queue()


class CeleryWorkers(_RedisWorkers):
    def worker_commands(self, queue: str) -> Sequence[Sequence[str]]:
        alone = ("--without-gossip", "--without-mingle", "--without-heartbeat")  # nothing but tasks
        options = ("--concurrency", str(PROCESSES), "--queues", queue, "--loglevel", "WARNING", *alone)
        return [["-m", "celery", "--app", "peers.libraries.celery_app", "worker", *options]]


class DramatiqWorkers(_RedisWorkers):
    def worker_commands(self, queue: str) -> Sequence[Sequence[str]]:
        options = ("--processes", str(PROCESSES), "--threads", str(THREADS), "--queues", queue)
        return [["-m", "dramatiq", "peers.libraries.dramatiq_app", *options]]
