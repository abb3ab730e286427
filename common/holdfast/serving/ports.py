"""The port on which a server is called."""

import socket
from typing import Any, Protocol


class PortError(RuntimeError):
    """The port could not be had."""


class _Listener(Protocol):
    def add_insecure_port(self, address: str) -> int: ...

    def add_secure_port(self, address: str, server_credentials: Any) -> int: ...


def listening_socket(host: str, port: int, backlog: int) -> socket.socket:
    """Raises OSError."""
    bare = host.strip("[]")
    family = socket.AF_INET6 if ":" in bare else socket.AF_INET
    return socket.create_server((bare, port), family=family, backlog=backlog)


def listen(server: _Listener, host: str, port: int, credentials: Any = None) -> int:
    """Has a gRPC server listen; returns the port, which is chosen by the system if `port` is 0. `credentials`: gRPC's,
    of TLS."""
    try:
        if credentials is not None:
            return server.add_secure_port(f"{host}:{port}", credentials)
        return server.add_insecure_port(f"{host}:{port}")
    except RuntimeError as error:
        raise PortError(
            f"Expected to listen on {host}:{port}, but it cannot be had: is another server running there? Choose "
            "another with --port."
        ) from error
