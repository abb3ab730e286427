"""Workers without work: hundreds of polls that wait at the routers for queues that are empty. They must not keep
anybody from reporting or handing over what there is."""

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

from chaos.workloads.base import Expected, Setting
from holdfast.client import AsyncClient, HoldfastError

QUEUES = ("idle-0", "idle-1", "idle-2", "idle-3")
POLLS = 300  # at each router: more than it takes of other calls
CLIENTS = 4  # for each router
WAIT_MS = 15_000


@dataclass
class Idlers:
    """Nothing is ever sent to these queues, and nothing is written down: there is nothing to be seen."""

    setting: Setting
    producing: bool = True
    working: bool = True
    queues: Sequence[str] = ()
    worker_queues: Sequence[str] = ()
    spreadable: Sequence[str] = ()
    has_gaps: bool = False

    async def prepare(self, client: AsyncClient) -> None:
        await client.set_queue(QUEUES[0], spread=min(4, self.setting.shards))

    async def run(self) -> None:
        clients = [AsyncClient(address, retry=False) for address in self.setting.addresses for _ in range(CLIENTS)]
        polls = [
            asyncio.create_task(self._poll(client, f"idler-{index}-{number}"))
            for index, client in enumerate(clients)
            for number in range(POLLS // CLIENTS)
        ]
        try:
            while self.producing:
                await asyncio.wait(polls, timeout=0.5)
        finally:
            for poll in polls:
                poll.cancel()
            await asyncio.gather(*polls, return_exceptions=True)
            for client in clients:
                await client.close()

    async def _poll(self, client: AsyncClient, name: str) -> None:
        while self.producing:
            with suppress(HoldfastError):
                await client.reserve(QUEUES, wait_ms=WAIT_MS, worker=name)
            await asyncio.sleep(0.5)

    async def finish(self, client: AsyncClient) -> list[str]:
        return []

    def expected(self) -> Expected:
        return Expected()
