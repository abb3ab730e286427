"""The servers of a row with a library: those of its broker, and the library's own worker processes."""

import sys
from abc import abstractmethod
from collections.abc import Sequence
from pathlib import Path

from peers.libraries.settings import environment
from peers.peer import Peer
from peers.processes import Processes

ROOT = Path(__file__).resolve().parents[2]  # the folder that `peers` is imported from


class LibraryPeer(Peer):
    """Mixed into the broker that the library uses."""

    _workers: Processes | None = None

    @abstractmethod
    def worker_commands(self, queue: str) -> Sequence[Sequence[str]]:
        """What starts `PROCESSES` processes that run tasks: arguments of Python."""

    async def start_workers(self, queue: str, tally: Path) -> None:
        self._workers = Processes(self.directory)
        env = environment(self.target, queue, tally) | {"PYTHONPATH": str(ROOT)}
        for command in self.worker_commands(queue):
            await self._workers.start(sys.executable, *command, env=env)

    async def stop_workers(self) -> None:
        if self._workers is not None:
            await self._workers.stop()

    @property
    def worker_pids(self) -> list[int]:
        return self._workers.pids if self._workers is not None else []

    async def stop(self) -> None:
        await self.stop_workers()
        await super().stop()
