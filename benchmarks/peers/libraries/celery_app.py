"""An app of Celery over Redis. Acks come after the task, and nobody keeps results: as the others do it."""

from collections.abc import Sequence

from celery import Celery

from peers.libraries import settings
from peers.peer import Client

_target = settings.target()
app = Celery("peers", broker=f"redis://{_target['host']}:{_target['port']}/0")
app.conf.update(
    task_acks_late=True,
    task_ignore_result=True,
    task_default_queue=settings.queue(),
    worker_prefetch_multiplier=settings.SLOTS,
    worker_hijack_root_logger=False,
    broker_connection_retry_on_startup=True,
)


def _nothing(payload: str) -> None:
    settings.handled(payload)


nothing = app.task(_nothing, name="nothing")


class CeleryClient(Client):
    async def open(self) -> None:
        """The app connects by itself."""

    async def produce(self, payloads: Sequence[bytes]) -> None:
        for payload in payloads:  # it has no call for several
            nothing.apply_async((payload.decode(),))
