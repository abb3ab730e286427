"""PostgreSQL and the workers of Procrastinate."""

from collections.abc import Sequence

from peers.brokers.postgres import Postgres
from peers.libraries.procrastinate_app import make_app
from peers.libraries.settings import PROCESSES, SLOTS
from peers.libraries.workers import LibraryPeer


class ProcrastinateWorkers(LibraryPeer, Postgres):
    async def make_tables(self) -> None:
        async with make_app(self.target).open_async() as app:
            await app.schema_manager.apply_schema_async()

    async def empty_queue(self) -> str:
        self.execute("TRUNCATE procrastinate_jobs CASCADE")
        return self.next_queue()

    def worker_commands(self, queue: str) -> Sequence[Sequence[str]]:
        app = ("-m", "procrastinate", "--app", "peers.libraries.procrastinate_app.app")
        options = ("--queues", queue, "--concurrency", str(SLOTS), "--delete-jobs", "always")
        return [[*app, "worker", *options]] * PROCESSES
