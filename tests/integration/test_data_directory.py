"""A data directory that must not be used is refused, with a message that says what to do, and left as it is."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.client import Client, NewTask
from tests.integration.conftest import MakeServer
from tests.integration.server import DEADLINE_S, ServerProcess

BLOCK_BYTES = 4096


@pytest.fixture(scope="module")
def used_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The data directory of a server that was killed, with some tasks in it. Tests work on copies."""
    used = ServerProcess(tmp_path_factory.mktemp("used"), segment_bytes=4 * 1024 * 1024)
    with used, Client(used.start().address) as client:
        for number in range(20):
            client.enqueue(NewTask("work", "t", b"x" * 1000, request_id=str(number)))
    return used.data_dir


@pytest.fixture
def copy(used_directory: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(used_directory, tmp_path / "data"))


def contents(directory: Path) -> dict[str, bytes]:
    """All that a node must not lose; the lock file and the state, which is a cache, may change."""
    files = [*directory.glob("log/*"), directory / "FORMAT", directory / "NODE_ID"]
    return {str(path): path.read_bytes() for path in files}


def refusal(server: ServerProcess) -> str:
    """Waits for a server that cannot start to end by itself, and returns what it said."""
    assert server.wait_for_exit() == 1
    assert "Traceback" not in server.log_text
    [said] = [line for line in server.log_text.splitlines() if line.startswith("holdfast cannot start: ")]
    assert not server.events("serving")
    return said


def test_a_second_server_on_the_same_directory_is_refused(make_server: MakeServer) -> None:
    first = make_server().start()
    second = make_server(data_dir=first.data_dir)
    second.launch()
    said = refusal(second)
    assert str(first.data_dir) in said
    assert f"in use by process {first.pid}" in said
    assert "choose another data directory" in said
    # The first one did not even notice.
    assert first.get("/readyz")[0] == 200


def test_another_format_is_refused(used_directory: Path, tmp_path: Path, make_server: MakeServer) -> None:
    cases = {
        b"holdfast-data 11\n": "has format 11, but this version reads format 10. Use the newer version",
        b"holdfast-data 1\n": "has format 1, but this version reads format 10. Use the older version",
        b"garbage": "FORMAT is damaged: it contains b'garbage'",
    }
    servers = {}
    for text in cases:
        copy = Path(shutil.copytree(used_directory, tmp_path / text.hex()))
        (copy / "FORMAT").write_bytes(text)
        servers[text] = make_server(data_dir=copy)
    before = {text: contents(server.data_dir) for text, server in servers.items()}
    for server in servers.values():
        server.launch()
    for text, expected in cases.items():
        assert expected in refusal(servers[text])
        assert contents(servers[text].data_dir) == before[text]


def test_damage_in_the_middle_of_the_log_is_refused_and_named(copy: Path, make_server: MakeServer) -> None:
    [segment] = sorted((copy / "log").iterdir())[:1]
    # One bit in the third round: behind it are rounds that were acknowledged.
    offset = 3 * BLOCK_BYTES
    with segment.open("r+b") as file:
        file.seek(offset + 30)
        byte = file.read(1)[0]
        file.seek(offset + 30)
        file.write(bytes([byte ^ 0x10]))
    before = contents(copy)
    server = make_server(data_dir=copy)
    server.launch()
    said = refusal(server)
    assert segment.name in said
    assert f"damaged at byte {offset}" in said
    assert "holdfast backup restore" in said
    assert "--rebuild" not in said, "a node alone has nobody to get anything from"
    assert contents(copy) == before, "what a person may still need was changed"


def test_a_torn_tail_is_cut(copy: Path, make_server: MakeServer) -> None:
    """The last round was being written when the power went: it was never acknowledged, and what is before it counts."""
    segment = sorted((copy / "log").iterdir())[0]
    data = bytearray(segment.read_bytes())
    last = max(index for index in range(BLOCK_BYTES, len(data), BLOCK_BYTES) if data[index : index + 4] == b"HFRD")
    data[last + 600 : last + 700] = bytes(100)
    segment.write_bytes(data)
    with Client(make_server(data_dir=copy).start().address) as client:
        assert client.queue_stats("work").ready == 19


def test_a_node_whose_log_is_gone_does_not_forget_and_go_on(copy: Path, make_server: MakeServer) -> None:
    """The state is written later than the log, so it may know of nothing yet."""
    shutil.rmtree(copy / "log")
    server = make_server(data_dir=copy)
    server.launch()
    said = refusal(server)
    assert "it was lost" in said
    assert "holdfast backup restore" in said


def test_a_directory_that_is_deleted_under_a_running_server_stops_it(make_server: MakeServer) -> None:
    server = make_server().start()
    shutil.rmtree(server.data_dir)
    assert server.wait_for_exit() == 1
    assert f"holdfast stopped: Expected {server.data_dir} to stay in place" in server.log_text
    assert "Traceback" not in server.log_text


@pytest.mark.parametrize("pattern", ["log/*", "state/*/*/CURRENT"], ids=["log", "state"])
def test_files_that_are_deleted_under_a_running_server_stop_it(make_server: MakeServer, pattern: str) -> None:
    """The directories stay, and what is open can still be written: the next start would not find it."""
    server = make_server().start()
    [deleted] = server.data_dir.glob(pattern)
    deleted.unlink()
    assert server.wait_for_exit() == 1
    assert (
        f"holdfast stopped: Expected {deleted} to stay in place while the node runs, but it is gone" in server.log_text
    )
    assert "Traceback" not in server.log_text


CLOCK_THAT_HANGS = """
import asyncio, sys
from pathlib import Path
from holdfast.broker.main import run_dev
from holdfast.broker.replica.shard import Shard

async def hang(shard):
    print("follows", flush=True)
    await asyncio.Event().wait()

Shard.follow_clock = hang
sys.exit(run_dev(None, {"data_dir": Path(sys.argv[1]), "port": 0, "ops_port": 0}))
"""


def test_the_disk_is_watched_while_a_step_of_shard_time_waits_for_it(tmp_path: Path) -> None:
    """A disk that hangs keeps the entry of the step from being agreed on, and must be noticed all the same."""
    command = [sys.executable, "-c", CLOCK_THAT_HANGS, str(tmp_path / "data")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "follows\n"
            shutil.rmtree(tmp_path / "data")
            _, said = process.communicate(timeout=DEADLINE_S)
        finally:
            process.kill()
    assert process.returncode == 1
    assert "to stay in place while the node runs" in said
