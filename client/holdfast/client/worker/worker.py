"""The worker as its users see it: its settings, its start, and how it is told to stop."""

import asyncio
import logging
import os
import signal
import socket
import threading
import uuid
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager

from holdfast.client._fitting import whole
from holdfast.client._leaders import check_address
from holdfast.client._options import checked_transport, limit_s
from holdfast.client.aio import AsyncClient
from holdfast.client.app import Holdfast
from holdfast.client.tls import Tls, checked_tls
from holdfast.client.worker.ops import OpsServer
from holdfast.client.worker.session import Session, SessionSettings, WorkerReport
from holdfast.client.worker.stopping import StopRequest
from holdfast.common.loop import run

log = logging.getLogger("holdfast.worker")

CONCURRENCY_MAX = 1_000
PORT_MAX = 65_535


class Worker:
    """Runs the tasks of an app until it is stopped.

    `queues` are those of the app's tasks unless named; as a mapping, a number limits how many slots a queue may take at
    once, 1 to 1,000. Queues take turns, so that a long one does not starve the others.

    Blocking handlers run on threads, async ones together on one event loop. Leases are extended while handlers run,
    whatever these do. A task whose lease is lost all the same is not reported any more: an async handler is cancelled,
    a blocking one can see it in `current_task().lease_lost`.

    When it is told to stop it claims nothing more and lets handlers finish; what is not finished when four fifths of
    the `grace` period have passed is interrupted and given back without spending an attempt.

    `address`, `direct`, `transport` and `tls` are those of the app unless given.

    With `ops_port` it shows /livez, /readyz and /metrics over HTTP on `ops_host`; 0 takes a free port. Failed attempts
    are logged with their tracebacks, whose last line is the text of the exception; without `log_tracebacks` only with
    the type of the exception.
    """

    def __init__(
        self,
        app: Holdfast,
        queues: Sequence[str] | Mapping[str, int | None] = (),
        *,
        concurrency: int = 10,
        name: str = "",
        grace: float = 25.0,
        address: str | None = None,
        direct: bool | None = None,
        transport: str | None = None,
        tls: Tls | None = None,
        ops_port: int | None = None,
        ops_host: str = "127.0.0.1",
        log_tracebacks: bool = True,
    ) -> None:
        whole("concurrency", concurrency, 1, CONCURRENCY_MAX)
        grace_s = limit_s("grace", grace)
        if ops_port is not None:
            whole("ops_port", ops_port, 0, PORT_MAX)
        if not app.tasks:
            raise ValueError("Expected an app with tasks, but it has none: decorate a function with @app.task.")
        if isinstance(queues, str):
            raise TypeError("Expected several names of queues, but got one text: put it into a list.")
        limits = dict(queues) if isinstance(queues, Mapping) else dict.fromkeys(queues)
        for queue, limit in limits.items():
            if limit is not None:
                whole(f"queues[{queue!r}]", limit, 1, CONCURRENCY_MAX)
        queues_all: dict[str, int | None] = dict.fromkeys(task.queue for task in app.tasks.values())
        self._settings = SessionSettings(
            # Unique: the server counts claims by it, and answers repeated questions by it.
            name=name or f"{socket.gethostname()}-{os.getpid()}-{uuid.uuid4().hex[:6]}",
            address=check_address(address or app.address),
            queues=limits or queues_all,
            concurrency=concurrency,
            grace_s=grace_s,
            tasks=app.tasks,
            log_tracebacks=log_tracebacks,
        )
        self._ops_host, self._ops_port = ops_host, ops_port
        self._token = app.token
        self._codec = app.codec
        self._direct = app.direct if direct is None else direct
        self.transport = checked_transport(app.transport if transport is None else transport)
        self._tls = checked_tls(app.tls if tls is None else tls)
        self._stop = StopRequest()

    @property
    def name(self) -> str:
        """Who claims, as operators see it."""
        return self._settings.name

    @property
    def queues(self) -> Mapping[str, int | None]:
        """The queues that are served, each with its limit."""
        return self._settings.queues

    @property
    def concurrency(self) -> int:
        return self._settings.concurrency

    @property
    def address(self) -> str:
        return self._settings.address

    def run(self) -> WorkerReport:
        """Works until SIGTERM, SIGINT (in the main thread) or `stop()`; a second one gives everything back at once."""
        return run(self._serve_with_signals())

    async def serve(self) -> WorkerReport:
        """The same as a coroutine, without looking at signals. Cancelling it ends it at once: leases then run out."""
        self._stop.attach(asyncio.get_running_loop())
        settings, direct, transport = self._settings, self._direct, self.transport
        async with AsyncClient(
            settings.address,
            retry=False,
            direct=direct,
            transport=transport,
            token=self._token,
            tls=self._tls,
            codec=self._codec,
        ) as client:
            session = Session(self._settings, client, self._stop)
            async with self._shown(session):
                return await session.run()

    @asynccontextmanager
    async def _shown(self, session: Session) -> AsyncIterator[None]:
        if self._ops_port is None:
            yield
            return
        ops = OpsServer(self._ops_host, self._ops_port, session)
        await ops.start()
        log.info("Worker %s shows its health and metrics on http://%s:%d.", self.name, ops.host, ops.port)
        try:
            yield
        finally:
            await ops.stop()

    def stop(self) -> None:
        """Asks for the warm shutdown, from any thread; the second call asks for a quick one."""
        self._stop.request()

    async def _serve_with_signals(self) -> WorkerReport:
        loop = asyncio.get_running_loop()
        signals = (signal.SIGTERM, signal.SIGINT) if threading.current_thread() is threading.main_thread() else ()
        for number in signals:
            loop.add_signal_handler(number, self.stop)
        try:
            return await self.serve()
        finally:
            for number in signals:
                loop.remove_signal_handler(number)
