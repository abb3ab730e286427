"""A server of frames that says what a test wants it to say."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from google.protobuf.message import Message

from holdfast.frames import codec
from holdfast.frames.codec import Frame, FrameReader
from holdfast.proto.v1.frames_pb2 import Welcome
from holdfast.transport.frame_channels import AllRoom, FrameLink, connect

PATH = "/a/B"
NAME = "twin"


class Twin:
    """With one connection."""

    def __init__(self) -> None:
        self.port = 0
        self.writer: asyncio.StreamWriter | None = None
        self.frames: asyncio.Queue[Frame | None] = asyncio.Queue()  # None: the end of the connection
        self.reads = asyncio.Event()
        self.reads.set()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.writer = writer
        frames = FrameReader(1 << 26, AllRoom())
        try:
            while await self.reads.wait() and (data := await reader.read(1 << 16)):
                for frame in frames.feed(data):
                    self.frames.put_nowait(frame)
        except ConnectionError:
            pass
        self.frames.put_nowait(None)
        writer.close()

    async def next(self) -> Frame | None:
        async with asyncio.timeout(20):
            return await self.frames.get()

    async def call(self) -> Frame:
        frame = await self.next()
        assert frame is not None
        assert frame.kind == codec.CALL, frame
        return frame

    def say(self, data: bytes) -> None:
        assert self.writer is not None
        self.writer.write(data)

    async def link(
        self,
        *,
        window_bytes: int = 1000,
        calls_max: int = 10,
        keepalive_s: float = 30.0,
        welcome: Message | None = None,
    ) -> FrameLink:
        connecting = asyncio.create_task(
            connect("127.0.0.1", self.port, lambda: FrameLink(NAME, "test", 100_000_000, keepalive_s))
        )
        greeting = await self.next()
        assert greeting is not None
        assert greeting.kind == codec.HELLO
        answer = welcome or Welcome(
            version=1, server=NAME, methods=[PATH], frame_bytes_max=1 << 26, window_bytes=window_bytes,
            calls_max=calls_max,
        )  # fmt: skip
        self.say(codec.encode(codec.WELCOME, 0, answer.SerializeToString()))
        return await connecting


@asynccontextmanager
async def twin() -> AsyncIterator[Twin]:
    served = Twin()
    server = await asyncio.start_server(served.serve, "127.0.0.1", 0)
    served.port = server.sockets[0].getsockname()[1]
    try:
        yield served
    finally:
        server.close()
        if served.writer is not None:
            served.writer.close()
        served.reads.set()
