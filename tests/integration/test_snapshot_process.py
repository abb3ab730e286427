"""A snapshot into a real process, over a real socket, from a state that is written to meanwhile: the process is killed
in the middle of it, several times, and goes on where it was."""

import asyncio
import random
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from holdfast.common.backoff import Backoff
from holdfast.machine import entries
from holdfast.machine.hashing import state_hash
from holdfast.machine.machine import Machine
from holdfast.raft.messages import Configuration
from holdfast.storage.rocksdb import RocksState, StateMemory
from holdfast.storage.snapshots.checkpoint import CheckpointPoint, take_checkpoint
from holdfast.storage.snapshots.directories import StateDirectories
from holdfast.storage.snapshots.messages import SnapshotBegin, SnapshotChunk, SnapshotMessage
from holdfast.storage.snapshots.sending import SendSettings, SnapshotSender
from holdfast.storage.snapshots.throttle import Throttle
from tests.integration.snapshot_process import read_message, write_message
from tests.unit.machine.machine_shard import START_MS, new_task

MIB = 1024 * 1024
REPO = Path(__file__).resolve().parents[2]
REPLICA = "n2/follower"
SETTINGS = SendSettings(chunk_bytes=64 * 1024, ask_again_s=0.1, settle_s=0.1, backoff=Backoff(0.1, 300.0))
KILLS = 4


class Leader:
    """A state that goes on changing, its sender, and the socket."""

    def __init__(self, root: Path) -> None:
        directories = StateDirectories(root, 0)
        self.state = RocksState(directories.create(directories.new_name(0)), memory=StateMemory(MIB, 8 * MIB))
        self.machine = Machine(self.state)
        self.said: list[SnapshotMessage] = []
        self.connections = 0
        self._writer: asyncio.StreamWriter | None = None
        self._draw = random.Random(1)
        self.sender = SnapshotSender(
            directories,
            send=self._send,
            checkpoint=self._copy,
            applied_index=lambda: self.machine.meta.applied_index,
            base_index=lambda: 0,
            configuration_at=lambda index: Configuration(index, ("n1/leader", REPLICA)),
            throttle=Throttle(6.0 * MIB, 64 * 1024),
            slots=asyncio.Semaphore(1),
            settings=SETTINGS,
        )

    def _copy(self, directory: Path) -> CheckpointPoint:
        return take_checkpoint(self.state, directory)

    def write(self, tasks: int) -> None:
        index = self.machine.meta.applied_index + 1
        made = [new_task(envelope=self._draw.randbytes(1000)) for _task in range(tasks)]
        self.machine.apply(index, 1, entries.Enqueue(START_MS, made))
        self.machine.commit()

    def _send(self, _replica: str, message: SnapshotMessage) -> None:
        self.said.append(message)
        if self._writer is not None and not self._writer.is_closing():
            write_message(self._writer, message)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writer = writer
        self.connections += 1
        try:
            while True:
                self.sender.handle(REPLICA, await read_message(reader))
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()


@contextmanager
def follower(port: int, state_dir: Path) -> Iterator[subprocess.Popen[bytes]]:
    command = [sys.executable, "-m", "tests.integration.snapshot_process", str(port), str(state_dir)]
    process = subprocess.Popen(command, cwd=REPO)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


@pytest.mark.timeout(100)
async def test_a_process_that_is_killed_again_and_again_gets_the_whole_snapshot_once(tmp_path: Path) -> None:
    leader = Leader(tmp_path / "leader")
    for _entry in range(80):
        leader.write(100)
    server = await asyncio.start_server(leader.serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    state_dir = tmp_path / "follower"
    state_dir.mkdir()

    async def until_acked(acked_bytes: int) -> None:
        """Or until all is there."""
        async with asyncio.timeout(60):
            while not (state_dir / "NAME").exists():
                leader.write(1)
                leader.sender.wanted([REPLICA], 1)
                if leader.sender.progress.get(REPLICA, (0, 0))[0] >= acked_bytes:
                    break
                await asyncio.sleep(0.01)

    with ExitStack() as processes:
        for kill in range(1, KILLS + 1):
            process = processes.enter_context(follower(port, state_dir))
            await until_acked(kill * 3 * MIB // 2)
            process.kill()
            assert not (state_dir / "NAME").exists()
        processes.enter_context(follower(port, state_dir))
        await until_acked(1 << 60)
    await leader.sender.close()
    server.close()

    assert leader.connections == KILLS + 1
    begins = {message.id: message for message in leader.said if isinstance(message, SnapshotBegin)}
    [begin] = begins.values()
    whole_bytes = sum(file.size_bytes for file in begin.files)
    assert whole_bytes > 8 * MIB
    sent_bytes = sum(len(message.data) for message in leader.said if isinstance(message, SnapshotChunk))
    # Each kill costs no more than what was under way to a process that is not there.
    assert sent_bytes <= whole_bytes + KILLS * 2 * SETTINGS.window_chunks * SETTINGS.chunk_bytes

    directories = StateDirectories(state_dir, 0)
    name = (state_dir / "NAME").read_text()
    assert directories.states() == [name]
    assert directories.incoming_paths() == []
    received = RocksState(directories.state(name), memory=StateMemory(MIB, MIB))
    machine = Machine(received)
    assert machine.meta.applied_index == begin.index
    # The leader has moved on: replaying its later entries must lead to the leader's state.
    replayed = random.Random(1)
    for index in range(1, leader.machine.meta.applied_index + 1):
        tasks = [new_task(envelope=replayed.randbytes(1000)) for _task in range(100 if index <= 80 else 1)]
        if index > begin.index:
            machine.apply(index, 1, entries.Enqueue(START_MS, tasks))
            machine.commit()
    assert state_hash(received) == state_hash(leader.state)
    received.close()
    leader.state.close()
