"""Connections with TLS, read and written so that they cost little more than those without."""

import asyncio
from collections.abc import Callable, Sequence

Write = Callable[[Sequence[bytes]], None]

READ_BYTES = 64 * 1024


def writer_of(transport: asyncio.Transport) -> Write:
    """Takes the parts of what is to be sent. TLS would make a record of each part, so there they become one: a record
    costs more than to copy what is in it."""
    if transport.get_extra_info("ssl_object") is None:
        return transport.writelines
    return lambda parts: transport.write(b"".join(parts))


class SecureReader(asyncio.BufferedProtocol):
    """Stands in front of a protocol. What was decrypted is put into a buffer that stays: otherwise the event loop takes
    a piece of memory of 256 KiB for each read, which the allocator fetches from the system and gives back."""

    def __init__(self, protocol: asyncio.Protocol, buffer: bytearray) -> None:
        """`buffer`: of READ_BYTES. All connections of one event loop may share it: it is emptied before anything else
        happens there."""
        self._view = memoryview(buffer)
        self._received = protocol.data_received
        # What else it hears goes straight to it.
        self.connection_made = protocol.connection_made  # type: ignore[method-assign]
        self.connection_lost = protocol.connection_lost  # type: ignore[method-assign]
        self.pause_writing = protocol.pause_writing  # type: ignore[method-assign]
        self.resume_writing = protocol.resume_writing  # type: ignore[method-assign]
        self.eof_received = protocol.eof_received  # type: ignore[method-assign]

    def get_buffer(self, _size: int) -> memoryview:
        return self._view

    def buffer_updated(self, size: int) -> None:
        self._received(bytes(self._view[:size]))
