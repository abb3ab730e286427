"""What commands are tried with: a wide terminal without settings of its own, and a scripted server."""

from collections.abc import Iterator

import pytest

from tests.unit.cli.cli_runner import Cli
from tests.unit.client.scripted_server import ScriptedServer


@pytest.fixture(autouse=True)
def quiet_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.delenv("HOLDFAST_ADDRESS", raising=False)
    monkeypatch.setattr("holdfast.cli.plans.PAUSE_S", 0.01)
    monkeypatch.setattr("holdfast.cli.handovers.PAUSE_S", 0.01)


@pytest.fixture
def server() -> Iterator[ScriptedServer]:
    with ScriptedServer() as server:
        yield server


@pytest.fixture
def cli(server: ScriptedServer, capsys: pytest.CaptureFixture[str]) -> Cli:
    return Cli(server, capsys)
