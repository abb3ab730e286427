"""An app of Dramatiq over Redis."""

from collections.abc import Sequence

import dramatiq
from dramatiq.brokers.redis import RedisBroker

from peers.libraries import settings
from peers.peer import Client

_target = settings.target()
broker = RedisBroker(url=f"redis://{_target['host']}:{_target['port']}/0")
dramatiq.set_broker(broker)


def _nothing(payload: str) -> None:
    settings.handled(payload)


nothing = dramatiq.actor(_nothing, actor_name="nothing", queue_name=settings.queue())


class DramatiqClient(Client):
    async def open(self) -> None:
        """The broker connects by itself."""

    async def produce(self, payloads: Sequence[bytes]) -> None:
        for payload in payloads:  # it has no call for several
            nothing.send(payload.decode())
