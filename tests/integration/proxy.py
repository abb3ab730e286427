"""A TCP proxy between client and server: it can cut connections, swallow answers, and follow a server that moved."""

import asyncio
from types import TracebackType
from typing import Self


class Proxy:
    """Listens on a port of its own that stays the same whatever happens to the server."""

    def __init__(self, port: int) -> None:
        self.target_port = port  # where new connections go
        self.mute = False  # swallow what the server says
        self._links: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None

    @property
    def address(self) -> str:
        assert self._server is not None
        return f"127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        assert self._server is not None
        self._server.close()
        await self.cut()

    async def cut(self) -> None:
        """Ends all connections."""
        links = list(self._links)
        for link in links:
            link.cancel()
        await asyncio.gather(*links, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        link = asyncio.ensure_future(self._serve(reader, writer))
        self._links.add(link)
        link.add_done_callback(self._links.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            from_server, to_server = await asyncio.open_connection("127.0.0.1", self.target_port)
        except OSError:
            writer.transport.abort()
            return
        directions = [
            asyncio.ensure_future(self._pump(reader, to_server, can_mute=False)),
            asyncio.ensure_future(self._pump(from_server, writer, can_mute=True)),
        ]
        try:
            await asyncio.wait(directions, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for direction in directions:
                direction.cancel()
            writer.transport.abort()
            to_server.transport.abort()

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, can_mute: bool) -> None:
        try:
            while data := await reader.read(65_536):
                if can_mute and self.mute:
                    continue
                writer.write(data)
                await writer.drain()
        except OSError:
            return
