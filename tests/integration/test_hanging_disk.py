"""A disk that does not answer any more: the process says so and ends, whatever its threads hang in."""

import json
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest

from holdfast.client import Client, HoldfastError, NewTask
from tests.acceptance.running import REPO, Running, environment, running
from tests.integration.server import DEFAULTS, wait_until


@contextmanager
def server_on(directory: Path, what: str) -> Iterator[tuple[Running, str, str]]:
    """With its addresses for clients and for operators."""
    settings = DEFAULTS | {"state_flush_age_seconds": 1, "data_dir": directory / "data"}
    env = environment({f"HOLDFAST_{name.upper()}": str(value) for name, value in settings.items()})
    program = [sys.executable, "-m", "tests.integration.hanging_disk", str(directory), what]
    command = [*program, "dev", "--port", "0", "--ops-port", "0", "--log-format", "json"]
    with running(command, REPO, directory / "output", env) as server:
        server.wait_for("Holdfast is running.")
        [address] = re.findall(r"gRPC +(\S+)", server.output)
        [ops] = re.findall(r"(http://\S+)/readyz", server.output)
        yield server, address, ops


@pytest.mark.parametrize(
    ("what", "says"), [("sync", "Expected the disk to have written and synced"), ("flush", "Expected to fdatasync")]
)
def test_a_process_whose_disk_hangs_ends(tmp_path: Path, what: str, says: str) -> None:
    with server_on(tmp_path, what) as (server, address, _):
        (tmp_path / "broken").touch()
        with suppress(HoldfastError), Client(address, retry=False, timeout_s=5) as client:
            while True:  # as long as it is served
                client.enqueue(NewTask("q", "t"))
        wait_until(lambda: server.exit_code is not None, "the end of the process")
        assert server.exit_code == 1
        assert says in server.output


@pytest.mark.parametrize("what", ["stall", "stall-in-line"])
def test_who_waits_for_its_disk_is_not_ready(tmp_path: Path, what: str) -> None:
    with server_on(tmp_path, what) as (_, address, ops), Client(address, retry=False, timeout_s=1) as client:
        for _ in range(10):
            client.enqueue(NewTask("q", "t"))
        if what == "stall-in-line":
            assert syncs_in_line(ops) > 0
        assert readiness(ops) == (200, "serving")
        (tmp_path / "broken").touch()
        with suppress(HoldfastError):
            client.enqueue(NewTask("q", "t"))
        wait_until(lambda: readiness(ops)[0] == 503, "a server that says that it is not ready")
        assert "the disk has not answered a sync" in readiness(ops)[1]
        (tmp_path / "broken").unlink()
        wait_until(lambda: readiness(ops) == (200, "serving"), "a server that is ready again")
        client.enqueue(NewTask("q", "t"))


def syncs_in_line(ops: str) -> float:
    with urlopen(f"{ops}/metrics", timeout=5) as answer:
        [line] = re.findall(r"^holdfast_fsyncs_in_line_total (\S+)", answer.read().decode(), re.MULTILINE)
    return float(line)


def readiness(ops: str) -> tuple[int, str]:
    try:
        with urlopen(f"{ops}/readyz", timeout=5) as answer:
            return answer.status, json.load(answer)["reason"]
    except HTTPError as refused:
        with refused:
            return refused.code, json.load(refused)["reason"]
