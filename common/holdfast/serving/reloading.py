"""Certificates of a server that others replace while it runs."""

import asyncio
from collections.abc import Iterable, Sequence
from math import inf
from typing import Any, Final, TypeVar

from holdfast.common import reloading
from holdfast.common.reloading import POLL_SECONDS
from holdfast.serving.logs import get_logger

__all__ = ["CERTIFICATE_GAUGES", "POLL_SECONDS", "Reloaded", "certificate_gauges", "keep_current"]

# What servers show of theirs: the name of the gauge, and what it is.
CERTIFICATE_GAUGES: Final = {
    "certificates_reloaded": "New certificates that were taken into use since the start",
    "certificates_unusable": "1 while new files of certificates cannot be used, and the former are kept",
    "certificates_expire_timestamp_seconds": "When the first certificate in use ends, since 1970; 0 if there is none",
}

_log = get_logger(__name__)

T = TypeVar("T")


class Reloaded(reloading.Reloaded[T]):
    """Says in the server's log what became of files that have changed."""

    def report(self) -> None:
        if self.problem:
            _log.error("certificates_not_reloaded", what=self.what, error=self.problem)
        else:
            _log.info("certificates_reloaded", what=self.what)


async def keep_current(certificates: Sequence[Reloaded[Any]]) -> None:
    """New connections are made with new certificates; those that are there go on."""
    while True:
        await asyncio.sleep(POLL_SECONDS)
        for one in certificates:
            await asyncio.to_thread(one.poll)


def certificate_gauges(certificates: Iterable[Reloaded[Any] | None]) -> dict[str, float]:
    """Their values. What is made of them knows when the first of them ends (`expires_s`)."""
    there = [one for one in certificates if one is not None]
    ends_s = min((one.current.expires_s for one in there), default=inf)
    return {
        "certificates_reloaded": sum(one.reloads for one in there),
        "certificates_unusable": any(one.problem for one in there),
        "certificates_expire_timestamp_seconds": 0 if ends_s == inf else ends_s,
    }
