"""One server for all acceptance tests of the app and the worker, and workers that are ended after their test."""

import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from holdfast.client import Handle, Holdfast, QueueStats
from tests.acceptance.apps import chores
from tests.acceptance.worker_process import WorkerProcess
from tests.integration.server import ServerProcess

MakeWorker = Callable[..., WorkerProcess]


@pytest.fixture(scope="session")
def shared_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """Retries soon, so that tests need not wait. Tests must leave it running."""
    with ServerProcess(tmp_path_factory.mktemp("server"), retry_base_ms=100) as server:
        yield server.start()


@pytest.fixture
def queue(request: pytest.FixtureRequest) -> str:
    """The name of a queue that no other test uses."""
    name = "".join(letter if letter.isalnum() else "-" for letter in request.node.name)
    return f"{request.node.path.stem}.{name}"[:120]


@pytest.fixture(scope="session")
def app(shared_server: ServerProcess) -> Iterator[Holdfast]:
    """The chores as their producers see them."""
    with chores.make_app(shared_server.address) as app:
        yield app


@pytest.fixture(scope="session")
def everyday_worker(app: Holdfast, tmp_path_factory: pytest.TempPathFactory) -> Iterator[WorkerProcess]:
    """Serves the queue `default` for all tests that only need somebody to do their tasks."""
    # A lease that outlasts a moment in which the machine is busy, and soon hears of a cancellation.
    worker = WorkerProcess(tmp_path_factory.mktemp("workers") / "everyday", app.address, ["default"], lease=6)
    with worker:
        worker.start()
        app.tasks["echo"].enqueue().result(timeout=30)
        yield worker


@pytest.fixture
def make_worker(shared_server: ServerProcess, tmp_path: Path) -> Iterator[MakeWorker]:
    """Starts workers of the test's own: `make_worker([queue], concurrency=2)`."""
    with ExitStack() as made:

        def make(queues: Any, *, address: str = shared_server.address, **settings: Any) -> WorkerProcess:
            directory = tmp_path / f"worker-{uuid.uuid4().hex}"
            return made.enter_context(WorkerProcess(directory, address, queues, **settings)).start()

        yield make


@pytest.fixture
def gate(tmp_path: Path) -> Path:
    """Handlers wait for this file: `gate.touch()` lets them go on."""
    return tmp_path / "gate"


def stats(app: Holdfast, queue: str) -> QueueStats:
    return app.run(lambda client: client.queue_stats(queue))


def results(handles: list[Handle[Any]]) -> list[Any]:
    return [handle.result(timeout=30) for handle in handles]
