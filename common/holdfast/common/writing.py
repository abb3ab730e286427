"""How a connection is written to."""

import asyncio
from collections.abc import Callable, Sequence

Write = Callable[[Sequence[bytes]], None]


def writer_of(transport: asyncio.Transport) -> Write:
    """Takes the parts of what is to be sent. TLS would make a record of each part, so there they become one: a record
    costs more than to copy what is in it."""
    if transport.get_extra_info("ssl_object") is None:
        return transport.writelines
    return lambda parts: transport.write(b"".join(parts))
