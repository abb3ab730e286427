"""An app of Holdfast: `holdfast worker` runs it."""

from collections.abc import Sequence

from holdfast.client import Holdfast
from peers.libraries import settings
from peers.peer import Client

app = Holdfast(settings.target()["address"])


@app.task(queue=settings.queue())
async def nothing(payload: str) -> None:
    settings.handled(payload)


class HoldfastAppClient(Client):
    async def open(self) -> None:
        """The app connects by itself."""

    async def produce(self, payloads: Sequence[bytes]) -> None:
        if len(payloads) == 1:
            await nothing.enqueue_async(payloads[0].decode())
        else:
            await app.enqueue_many_async([nothing.call(payload.decode()) for payload in payloads])
