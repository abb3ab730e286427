"""The port on which a server is called."""

from typing import Protocol


class PortError(RuntimeError):
    """The port could not be had."""


class _Listener(Protocol):
    def add_insecure_port(self, address: str) -> int: ...


def listen(server: _Listener, host: str, port: int) -> int:
    """Has a gRPC server listen; returns the port, which is chosen by the system if `port` is 0."""
    try:
        return server.add_insecure_port(f"{host}:{port}")
    except RuntimeError as error:
        raise PortError(
            f"Expected to listen on {host}:{port}, but it cannot be had: is another server running there? Choose "
            "another with --port."
        ) from error
