"""A server of frames on a loopback socket, and a caller that writes its own frames."""

import asyncio
from typing import Any, Self

from holdfast.frames import codec
from holdfast.frames.codec import Frame, FrameReader, Refusal, decode_refusal
from holdfast.frames.hello import hello, read_welcome
from holdfast.frames.metadata import encode_metadata
from holdfast.router.metrics import Metrics as RouterMetrics
from holdfast.router.wire import RouterServer
from holdfast.serving.call_server import FramesAt
from holdfast.serving.grpc_server import ServerLimits
from holdfast.serving.refusals import overloaded
from holdfast.serving.tls import Listening
from holdfast.transport.frame_channels import AllRoom

ENQUEUE = "/holdfast.proto.v1.Tasks/Enqueue"
ACK = "/holdfast.proto.v1.Tasks/Ack"
GET_TASK = "/holdfast.proto.v1.Tasks/GetTask"
NAME = "the server"
MIB = 1024 * 1024
DEADLINE_S = 20.0


class Owner:
    """Of a server: what it answers is up to the test."""

    def __init__(self) -> None:
        self.is_open = True
        self.name = NAME
        self.requests: list[bytes] = []
        self.arrived = asyncio.Event()
        self.go_on: asyncio.Event | None = None  # without it calls are answered at once
        self.may_end: asyncio.Event | None = None  # with it calls that are cancelled take their time
        self.ended = 0
        self.answer = b"answer"
        self.metrics = RouterMetrics()

    def check(self, _method: object = None) -> None:
        if not self.is_open:
            raise overloaded("calls", 0)

    async def handle(self, _method: object, data: bytes, _caller: object) -> bytes:
        self.requests.append(data)
        self.arrived.set()
        try:
            if self.go_on is not None:
                await self.go_on.wait()
        except asyncio.CancelledError:
            if self.may_end is not None:
                await self.may_end.wait()
            raise
        finally:
            self.ended += 1
        return self.answer

    def serve(self, *, frames_port: int | None = 0, tls: Listening | None = None, **limits: int) -> RouterServer:
        bounds: dict[str, Any] = {"message_bytes_max": 4 * MIB, "bytes_max": 8 * MIB, "calls_max": 10_000} | limits
        where = None if frames_port is None else FramesAt(frames_port, lambda: self.name)
        return RouterServer(
            self, self.metrics, ServerLimits(**bounds), batch_bytes_max=4 * MIB, readiness=lambda: (True, ""),
            frames_at=where, tls=tls,
        )  # fmt: skip


class RawCaller:
    """One connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self.methods: list[str] = []
        self._frames = FrameReader(64 * MIB, AllRoom())
        self._come: list[Frame] = []

    @classmethod
    async def connect(cls, port: int, *, greets: bool = True) -> Self:
        caller = cls(*await asyncio.open_connection("127.0.0.1", port))
        if greets:
            caller.send(hello(NAME, "test"))
            answer = await caller.next()
            assert (answer.kind, answer.body is not None) == (codec.WELCOME, True)
            caller.methods = list(read_welcome(answer.body or b"", NAME).methods)
        return caller

    def send(self, data: bytes) -> None:
        self.writer.write(data)

    def call(self, number: int, path: str, data: bytes = b"", *, timeout_ms: int = 0, shard: str = "") -> bytes:
        metadata = encode_metadata((("holdfast-shard", shard),)) if shard else b""
        return codec.encode_call(number, self.methods.index(path), timeout_ms, metadata, len(data)) + data

    async def next(self) -> Frame:
        async with asyncio.timeout(DEADLINE_S):
            while not self._come:
                data = await self.reader.read(64 * 1024)
                if not data:
                    raise EOFError
                self._come.extend(self._frames.feed(data))
        return self._come.pop(0)

    async def answer(self, number: int) -> bytes | Refusal:
        """The next frame, which must be about this call."""
        frame = await self.next()
        assert frame.call == number, frame
        assert frame.body is not None
        if frame.kind == codec.ANSWER:
            return frame.body
        assert frame.kind == codec.REFUSAL, frame
        return decode_refusal(frame.body)

    async def is_ended(self) -> str:
        """By the server; returns what it said."""
        try:
            frame = await self.next()
        except (EOFError, ConnectionError):
            await self.close()
            return ""
        assert frame.kind == codec.END, frame
        said = decode_refusal(frame.body or b"").message
        assert not await self.is_ended()
        return said

    async def close(self) -> None:
        self.writer.close()
        try:
            await self.writer.wait_closed()
        except ConnectionError:
            pass


def frames_of(server: RouterServer) -> Any:
    """The part of it that a test looks into."""
    return server.frames


async def until(is_so: Any) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while not is_so():
            await asyncio.sleep(0.002)
