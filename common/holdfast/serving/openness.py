"""A server that asks nobody who he is says so, and goes on saying it where others than its own machine can reach it."""

import asyncio
from typing import Final, Protocol

from holdfast.serving.logs import get_logger

REPEAT_SECONDS: Final = 600.0

_log = get_logger(__name__)


class Open(Protocol):
    """Settings of a server that clients call."""

    @property
    def host(self) -> str: ...

    @property
    def knows_callers(self) -> bool: ...

    @property
    def is_closed(self) -> bool: ...

    @property
    def is_exposed(self) -> bool: ...


async def report_openness(server: Open) -> None:
    """For as long as the server runs."""
    if server.is_closed:
        return
    if not server.is_exposed:
        if not server.knows_callers:
            _log.info("open_on_this_machine", detail="whoever is on this machine may call: docs/security.md")
        return
    while True:
        _log.warning(
            "open_to_everybody", host=server.host,
            detail="whoever reaches this server may read, change and delete all that it has: docs/security.md",
        )  # fmt: skip
        await asyncio.sleep(REPEAT_SECONDS)
