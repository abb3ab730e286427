"""A process that receives snapshots over a socket: a replica without anything else. Killed and started by its test.

    python -m tests.integration.snapshot_process PORT STATE_DIR

Frames: length (4 bytes), then a message. The file NAME stands for the record of the log that names the state.
"""

import asyncio
import os
import sys
from pathlib import Path

from holdfast.raft.messages import Configuration
from holdfast.storage.snapshots.codec import decode, encode
from holdfast.storage.snapshots.directories import StateDirectories
from holdfast.storage.snapshots.messages import SnapshotMessage
from holdfast.storage.snapshots.receiving import SnapshotReceiver

LENGTH_BYTES = 4


async def read_message(reader: asyncio.StreamReader) -> SnapshotMessage:
    length = int.from_bytes(await reader.readexactly(LENGTH_BYTES), "big")
    return decode(await reader.readexactly(length))


def write_message(writer: asyncio.StreamWriter, message: SnapshotMessage) -> None:
    data = encode(message)
    writer.write(len(data).to_bytes(LENGTH_BYTES, "big") + data)


async def main(port: int, state_dir: Path) -> None:
    directories = StateDirectories(state_dir, 0)
    record = state_dir / "NAME"
    directories.clean(record.read_text() if record.exists() else None)
    reader, writer = await asyncio.open_connection("127.0.0.1", port)

    def name_state(directory: Path, index: int) -> None:
        name = directories.new_name(index)
        directories.adopt(directory, name)
        (state_dir / "NAME.tmp").write_text(name)
        os.rename(state_dir / "NAME.tmp", record)

    async def install(directory: Path, index: int, _index_term: int, _configuration: Configuration) -> bool:
        await asyncio.to_thread(name_state, directory, index)
        return True

    receiver = SnapshotReceiver(
        directories,
        send=lambda _replica, message: write_message(writer, message),
        install=install,
        is_needed=lambda _index, _term: not record.exists(),
        may_take=lambda _bytes: True,
        current_term=lambda: 0,
    )
    while True:
        receiver.handle("leader", await read_message(reader))


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]), Path(sys.argv[2])))
