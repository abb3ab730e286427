"""The dialling side: one task per peer that keeps one connection to it, for as long as the node runs.

After a failure it waits 50 ms, then twice as long each time up to a second, each with jitter, so that nodes which lost
each other at one moment do not come back at one moment. A connection that lasted sets the wait back. A peer that
dialled *this* node is up: `hurry` ends the wait.
"""

import asyncio
import random
import socket
import ssl
from functools import partial
from typing import Any, Protocol

from holdfast.broker.peers.connections import OutgoingConnection, Owner, tune
from holdfast.broker.peers.opening import TLS_CLOSE_S, open_connection
from holdfast.broker.peers.reasons import Reason
from holdfast.common.backoff import Backoff


class DiallingOwner(Owner, Protocol):
    def dialling_context(self) -> ssl.SSLContext | None:
        """Of the next attempt."""
        ...


class Dialler:
    """Keeps a connection to one peer. `run` ends only when it is cancelled."""

    def __init__(self, name: str, address: tuple[str, int], owner: DiallingOwner) -> None:
        self._name = name
        self._address = address
        self._limits = owner.limits
        self._counters = owner.counters
        self._warnings = owner.warnings
        self._connection = partial(OutgoingConnection, owner, name, address)
        self._context = owner.dialling_context
        self._backoff = Backoff(self._limits.redial_seconds_min, self._limits.redial_seconds_max)
        self._failures = 0  # and connections that did not last, in a row
        self._hurried = asyncio.Event()

    def hurry(self) -> None:
        """The peer was heard of: do not wait before the next attempt."""
        self._hurried.set()

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            self._hurried.clear()
            connection = await self._attempt()
            if connection is not None:
                since_s = loop.time()
                await connection.lost.wait()
                if loop.time() - since_s >= self._limits.lasting_seconds:
                    self._failures = 0
            self._failures += 1
            try:
                async with asyncio.timeout(self._backoff.pause_s(self._failures, random.random)):
                    await self._hurried.wait()
            except TimeoutError:
                pass

    async def _attempt(self) -> OutgoingConnection | None:
        """A connection whose hello is welcome on both sides, or None."""
        connection: OutgoingConnection | None = None
        try:
            sock = await self._open_socket()
            async with asyncio.timeout(self._limits.hello_seconds_max):
                connection = await self._connect(sock)
                await connection.settled.wait()
                if connection.hello is None:
                    await connection.lost.wait()  # a refusal has time to leave
                if connection.hello is None and not connection.was_judged:
                    raise connection.error or ConnectionError("the connection ended before a hello came")
        except TimeoutError:
            self._failed("no answer in time", None if connection is None else Reason.HELLO_LATE)
        except ssl.SSLError as error:  # before OSError, which it is as well
            self._failed(str(error), Reason.TLS_FAILED)
        except (OSError, UnicodeError) as error:  # the latter for what cannot be the name of a host
            self._failed(str(error), None)
        finally:
            if connection is not None and connection.hello is None:
                connection.abort()
                await connection.lost.wait()
        return connection if connection is not None and connection.hello is not None else None

    async def _open_socket(self) -> socket.socket:
        """Connected to the first of the peer's addresses that answers."""
        loop = asyncio.get_running_loop()
        failure: Exception = OSError(f"no address for {self._address[0]}")
        for family, kind, protocol, _, address in await loop.getaddrinfo(*self._address, type=socket.SOCK_STREAM):
            sock = socket.socket(family, kind, protocol)
            try:
                sock.setblocking(False)
                tune(sock, self._limits.dead_seconds)
                async with asyncio.timeout(self._limits.connect_seconds_max):
                    await loop.sock_connect(sock, address)
            except OSError as error:  # a timeout is one too
                sock.close()
                failure = error
            except BaseException:
                sock.close()
                raise
            else:
                return sock
        raise failure

    async def _connect(self, sock: socket.socket) -> OutgoingConnection:
        loop = asyncio.get_running_loop()
        context = self._context()
        secure: dict[str, Any] = {}
        if context is not None:  # without a host name: what the certificate must name is the node
            secure = {"ssl": context, "server_hostname": "", "ssl_shutdown_timeout": TLS_CLOSE_S}
        return await open_connection(
            sock, self._connection, lambda make: loop.create_connection(make, sock=sock, **secure)
        )

    def _failed(self, error: str, reason: Reason | None) -> None:
        self._counters.dials_failed += 1
        if reason is not None:
            self._counters.refused[reason] += 1
        address = f"{self._address[0]}:{self._address[1]}"
        self._warnings.say("cannot reach a node", node=self._name, address=address, found=error)
