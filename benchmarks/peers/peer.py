"""What a row has: servers, which the parent starts, and clients, one in each load process."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from peers.processes import Processes

Target = dict[str, Any]  # where the servers are, as their clients need it; it travels as JSON


class Peer(ABC):
    """The servers of a row. Whoever starts them stops them."""

    def __init__(self, directory: Path, options: Mapping[str, Any]) -> None:
        self.directory = directory
        self.options = options
        self.processes = Processes(directory)
        self.target: Target = {}
        self._queues = 0

    @abstractmethod
    async def start(self) -> None:
        """Returns once they serve."""

    @abstractmethod
    async def empty_queue(self) -> str:
        """Makes an empty queue, deletes earlier ones as far as there is a way, and returns its name."""

    async def stop(self) -> None:
        await self.processes.stop()

    @property
    def pids(self) -> list[int]:
        """Of the servers; what descends from them belongs to them."""
        return self.processes.pids

    def next_queue(self) -> str:
        self._queues += 1
        return f"q{self._queues}"


class Client(ABC):
    """One client, in a process of its own."""

    def __init__(self, target: Target, queue: str) -> None:
        self.target = target
        self.queue = queue

    @abstractmethod
    async def open(self) -> None: ...

    @abstractmethod
    async def produce(self, payloads: Sequence[bytes]) -> None:
        """Hands over all of them and returns once all are confirmed."""

    # A client of a library has neither: its own workers do that.

    async def claim(self, tasks_max: int, wait_s: float) -> tuple[Sequence[bytes], Any]:
        """Payloads, and what acks all of them; none after the wait."""
        raise NotImplementedError

    async def ack(self, handle: Any) -> None:
        raise NotImplementedError
