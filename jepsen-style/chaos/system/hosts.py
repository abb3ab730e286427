"""A host: where processes run, and where others find them."""

import socket
from collections.abc import Iterator
from dataclasses import dataclass

LOOPBACK = "127.0.0.1"


@dataclass(frozen=True)
class Host:
    """With a namespace it has an address of its own; without one it is this machine, and ports tell hosts apart."""

    name: str
    address: str = LOOPBACK
    namespace: str = ""

    def command(self, *arguments: str) -> list[str]:
        """The same command, on this host."""
        if not self.namespace:
            return list(arguments)
        return ["nsenter", f"--net=/run/netns/{self.namespace}", "--", *arguments]

    def at(self, port: int) -> str:
        return f"{self.address}:{port}"


class Ports:
    """Ports of hosts that share one address: each is given once."""

    def __init__(self, first: int) -> None:
        self._ports = self._free(first)

    def next(self) -> int:
        return next(self._ports)

    @staticmethod
    def _free(first: int) -> Iterator[int]:
        for port in range(first, 65_536):
            with socket.socket() as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                try:
                    probe.bind((LOOPBACK, port))
                except OSError:
                    continue
            yield port
        raise OSError(f"Expected a free port from {first} on, but there is none.")
