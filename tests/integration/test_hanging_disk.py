"""A disk that does not answer any more: the process says so and ends, whatever its threads hang in."""

import re
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from holdfast.client import Client, HoldfastError, NewTask
from tests.acceptance.running import REPO, environment, running
from tests.integration.server import DEFAULTS, wait_until


@pytest.mark.parametrize(
    ("what", "says"), [("sync", "Expected the disk to have written and synced"), ("flush", "Expected to fdatasync")]
)
def test_a_process_whose_disk_hangs_ends(tmp_path: Path, what: str, says: str) -> None:
    settings = DEFAULTS | {"state_flush_age_seconds": 1, "data_dir": tmp_path / "data"}
    env = environment({f"HOLDFAST_{name.upper()}": str(value) for name, value in settings.items()})
    program = [sys.executable, "-m", "tests.integration.hanging_disk", str(tmp_path), what]
    command = [*program, "dev", "--port", "0", "--ops-port", "0", "--log-format", "json"]
    with running(command, REPO, tmp_path / "output", env) as server:
        server.wait_for("Holdfast is running.")
        [address] = re.findall(r"gRPC +(\S+)", server.output)
        (tmp_path / "broken").touch()
        with suppress(HoldfastError), Client(address, retry=False, timeout_s=5) as client:
            while True:  # as long as it is served
                client.enqueue(NewTask("q", "t"))
        wait_until(lambda: server.exit_code is not None, "the end of the process")
        assert server.exit_code == 1
        assert says in server.output
