"""A data directory that must not be used is refused, with a message that says what to do, and left as it is."""

import asyncio
import shutil
from pathlib import Path

import pytest

from holdfast.client import AsyncClient, NewTask
from tests.integration.conftest import MakeServer
from tests.integration.server import ServerProcess

BLOCK_BYTES = 4096


@pytest.fixture(scope="module")
def used_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The data directory of a server that was killed, with some tasks in it. Tests work on copies."""
    server = ServerProcess(tmp_path_factory.mktemp("used"), segment_bytes=4 * 1024 * 1024).start()

    async def fill() -> None:
        async with AsyncClient(server.address) as client:
            for number in range(20):
                await client.enqueue(NewTask("work", "t", b"x" * 1000, request_id=str(number)))

    try:
        asyncio.run(fill())
    finally:
        server.close()
    return server.data_dir


@pytest.fixture
def copy(used_directory: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(used_directory, tmp_path / "data"))


def contents(directory: Path) -> dict[str, bytes]:
    """All that a node must not lose; the lock file and the state, which is a cache, may change."""
    files = [*directory.glob("log/*"), directory / "FORMAT", directory / "NODE_ID"]
    return {str(path): path.read_bytes() for path in files}


def refused(server: ServerProcess) -> str:
    """Starts it, expects that it ends by itself, and returns what it said."""
    server.launch()
    assert server.wait_for_exit() == 1
    assert "Traceback" not in server.log_text
    [said] = [line for line in server.log_text.splitlines() if line.startswith("holdfast cannot start: ")]
    assert not server.events("serving")
    return said


def test_a_second_server_on_the_same_directory_is_refused(make_server: MakeServer) -> None:
    first = make_server().start()
    second = make_server(data_dir=first.data_dir)
    said = refused(second)
    assert str(first.data_dir) in said
    assert f"in use by process {first.pid}" in said
    assert "choose another data directory" in said
    # The first one did not even notice.
    assert first.get("/readyz")[0] == 200
    first.kill()
    second.start()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (b"holdfast-data 2\n", "has format 2, but this version reads format 1. Use the newer version"),
        (b"garbage", "FORMAT is damaged"),
    ],
    ids=["newer", "garbled"],
)
def test_another_format_is_refused(copy: Path, make_server: MakeServer, text: bytes, expected: str) -> None:
    (copy / "FORMAT").write_bytes(text)
    before = contents(copy)
    assert expected in refused(make_server(data_dir=copy))
    assert contents(copy) == before


def test_damage_in_the_middle_of_the_log_is_refused_and_named(copy: Path, make_server: MakeServer) -> None:
    [segment] = sorted((copy / "log").iterdir())[:1]
    # One bit in the third round: behind it are rounds that were acknowledged.
    offset = 3 * BLOCK_BYTES
    with segment.open("r+b") as file:
        file.seek(offset + 200)
        byte = file.read(1)[0]
        file.seek(offset + 200)
        file.write(bytes([byte ^ 0x10]))
    before = contents(copy)
    said = refused(make_server(data_dir=copy))
    assert segment.name in said
    assert f"damaged at byte {offset}" in said
    assert contents(copy) == before, "what a person may still need was changed"


def test_a_torn_tail_is_cut(copy: Path, make_server: MakeServer) -> None:
    """The last round was being written when the power went: it was never acknowledged, and what is before it counts."""
    segment = sorted((copy / "log").iterdir())[0]
    data = bytearray(segment.read_bytes())
    last = max(at for at in range(BLOCK_BYTES, len(data), BLOCK_BYTES) if data[at : at + 4] == b"HFRD")
    data[last + 600 : last + 700] = bytes(100)
    segment.write_bytes(data)
    server = make_server(data_dir=copy).start()

    async def count() -> int:
        async with AsyncClient(server.address) as client:
            return (await client.queue_stats("work")).ready

    assert asyncio.run(count()) == 19


def test_a_directory_of_something_else_is_refused(tmp_path: Path, make_server: MakeServer) -> None:
    directory = tmp_path / "photos"
    directory.mkdir()
    (directory / "cat.jpg").write_bytes(b"meow")
    said = refused(make_server(data_dir=directory))
    assert "not a Holdfast data directory" in said
    assert [path.name for path in directory.iterdir()] == ["cat.jpg"]


def test_bad_configuration_is_refused_with_the_name_of_the_field(make_server: MakeServer) -> None:
    server = make_server(lease_ms_min="soon")
    server.launch()
    assert server.wait_for_exit() == 2
    assert "lease_ms_min: got 'soon' (from environment HOLDFAST_LEASE_MS_MIN)" in server.log_text
