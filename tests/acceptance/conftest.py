"""One server for all acceptance tests of the app and the worker, and workers that are ended after their test."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from holdfast.client import Holdfast
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
    try:
        worker.start()
        app.tasks["echo"].enqueue().result(timeout=30)
        yield worker
    finally:
        worker.close()


@pytest.fixture
def make_worker(shared_server: ServerProcess, tmp_path: Path) -> Iterator[MakeWorker]:
    """Starts workers of the test's own: `make_worker([queue], concurrency=2)`."""
    made: list[WorkerProcess] = []

    def make(queues: object, *, address: str = shared_server.address, **settings: object) -> WorkerProcess:
        directory = tmp_path / f"worker{len(made)}"
        made.append(WorkerProcess(directory, address, queues, **settings))  # type: ignore[arg-type]  # passed through
        return made[-1].start()

    yield make
    for worker in made:
        worker.close()
