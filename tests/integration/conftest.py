"""Servers for integration tests. Whatever a test starts is ended after it."""

from collections.abc import AsyncIterator, Callable, Generator, Iterator, Mapping
from pathlib import Path

import pytest

from holdfast.client import AsyncClient
from tests.integration.cluster import Cluster
from tests.integration.faults import Faults, compile_faults
from tests.integration.peer_nodes import Ports
from tests.integration.server import ServerProcess

MakeServer = Callable[..., ServerProcess]

LOG_LINES_SHOWN = 40


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """A test that failed shows what its servers said last: their directories may be gone when somebody reads it."""
    report = yield
    if report.when == "call" and report.failed:
        values = getattr(item, "funcargs", {}).values()
        directories = {value if isinstance(value, Path) else getattr(value, "directory", None) for value in values}
        for log in sorted({log for path in directories if path is not None for log in path.rglob("server.log")}):
            lines = log.read_text(errors="replace").splitlines()[-LOG_LINES_SHOWN:]
            report.sections.append((f"the end of {log.parent.name}/{log.name}", "\n".join(lines)))
    return report


@pytest.fixture
def make_server(tmp_path: Path) -> Iterator[MakeServer]:
    """Makes servers of the test's own, not yet started, with the given settings."""
    made: list[ServerProcess] = []

    def make(**settings: object) -> ServerProcess:
        directory = tmp_path / f"server{len(made)}"
        directory.mkdir()
        made.append(ServerProcess(directory, **settings))  # type: ignore[arg-type]  # settings pass through
        return made[-1]

    yield make
    for server in made:
        server.close()


@pytest.fixture(scope="session")
def shared_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """One server for all tests that need nothing but a queue of their own; they must leave it running."""
    with ServerProcess(tmp_path_factory.mktemp("shared")) as server:
        yield server.start()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """One for all tests of a module; those that need other settings make their own."""
    with ServerProcess(tmp_path_factory.mktemp("server")) as server:
        yield server.start()


@pytest.fixture
async def client(shared_server: ServerProcess) -> AsyncIterator[AsyncClient]:
    """A client of the shared server."""
    async with AsyncClient(shared_server.address) as client:
        yield client


@pytest.fixture
def queue(request: pytest.FixtureRequest) -> str:
    """The name of a queue that no other test uses."""
    name = "".join(letter if letter.isalnum() else "-" for letter in request.node.name)
    return f"{request.node.path.stem}.{name}"[:128]


@pytest.fixture(scope="session")
def faults_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compile_faults(tmp_path_factory.mktemp("faults"))


@pytest.fixture
def faults(faults_library: Path, tmp_path: Path) -> Iterator[Faults]:
    """Faults for a server of the test's own: pass `env=faults.env` to it."""
    faults = Faults(faults_library, tmp_path)
    yield faults
    faults.close()


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """One for all tests of a module; those that need other settings make their own."""
    with Cluster(tmp_path_factory.mktemp("cluster")) as cluster:
        yield cluster.start()


@pytest.fixture
def leader(cluster: Cluster) -> str:
    """Once the cluster is whole."""
    cluster.wait_whole()
    return cluster.wait_for_leader()


@pytest.fixture
def ports() -> Iterator[Mapping[str, int]]:
    """For three nodes that talk to each other."""
    kept = Ports()
    yield kept.of
    kept.close()
