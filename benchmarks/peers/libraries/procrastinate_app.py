"""An app of Procrastinate over PostgreSQL. Finished jobs are deleted, as the others do it."""

import os
from collections.abc import Mapping, Sequence
from typing import Any

import procrastinate

from peers.libraries import settings
from peers.peer import Client


def make_app(target: Mapping[str, Any]) -> Any:
    return procrastinate.App(connector=procrastinate.PsycopgConnector(conninfo=target["dsn"]))


async def _nothing(payload: str) -> None:
    settings.handled(payload)


if settings.TARGET in os.environ:  # not in the parent, which only makes the tables
    app = make_app(settings.target())
    nothing = app.task(_nothing, name="nothing", queue=settings.queue())


class ProcrastinateClient(Client):
    async def open(self) -> None:
        await app.open_async()

    async def produce(self, payloads: Sequence[bytes]) -> None:
        if len(payloads) == 1:
            await nothing.defer_async(payload=payloads[0].decode())
        else:
            await nothing.batch_defer_async(*[{"payload": payload.decode()} for payload in payloads])
