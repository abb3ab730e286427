"""Channels that use frames where a server has them and its port for them can be reached, and gRPC everywhere else.

A call over gRPC asks the server where its frames are. From then on calls go there; if that connection is lost, over
gRPC again, which knows how to find a server that comes back, until it says once more where the frames are.
"""

import logging
import time
from collections.abc import Callable, Collection
from typing import Literal

from holdfast.common.backoff import Backoff
from holdfast.common.metadata import AUTHORIZATION_KEY, FRAMES_KEY
from holdfast.common.service import Service
from holdfast.transport.channels import Metadata, OutgoingCall
from holdfast.transport.frame_channels import FrameCall, FrameLink, FramesAddress, NoFramesError, OnEnd, connect
from holdfast.transport.grpc_channels import UNUSED_S, GrpcChannels

BACKOFF = Backoff(first_s=1.0, max_s=60.0)
STEADY_S = 10.0  # a connection that is lost sooner counts as one that could not be made
_NONE_S = 5.0  # so long a server that named no frames is not asked again
_ASKS = (FRAMES_KEY, "?")

Transport = Literal["auto", "grpc"]
TRANSPORTS: tuple[Transport, ...] = ("auto", "grpc")

log = logging.getLogger("holdfast.transport")


class ServerFrames:
    """What is known of the frames of one server."""

    def __init__(self) -> None:
        self.link: FrameLink | None = None
        self.is_connecting = False
        self.failures = 0
        self.not_before_s = 0.0
        self.was_reported = False
        self.at: FramesAddress | None = None  # where a connection could be made

    @property
    def is_open(self) -> bool:
        return self.link is not None and self.link.is_open

    def failed(self) -> None:
        self.at = None
        self.failures += 1
        self.not_before_s = time.monotonic() + BACKOFF.longest_s(self.failures)

    def may_ask(self, now_s: float) -> bool:
        """Whether the server's next answer over gRPC is to say where its frames are."""
        link = self.link
        if link is not None and link.ended_s is not None:
            self.link = None
            if link.ended_s - link.opened_s < STEADY_S:
                self.failed()
            else:
                self.failures = 0
        return not self.is_connecting and now_s >= self.not_before_s


class NegotiatedChannels:
    """To each server that is needed."""

    def __init__(
        self, *, message_bytes_max: int, keepalive_s: int, connects_first: bool, transport: Transport = "auto",
        caller: str = "", check: Callable[[], None] = lambda: None, token: Callable[[], str] | None = None,
    ) -> None:  # fmt: skip
        """`transport`: `grpc` for gRPC alone. `caller`: who this is, for people who read a server's log. `token`: what
        calls go with at the moment; a connection is another one's when it changes. The others as of `GrpcChannels`."""
        self._grpc = GrpcChannels(
            message_bytes_max=message_bytes_max, keepalive_s=keepalive_s, connects_first=connects_first, check=check
        )
        self._message_bytes_max = message_bytes_max
        self._keepalive_s = keepalive_s
        self._uses_frames = transport == "auto"
        self._caller = caller
        self._check = check
        self._token = token
        self.frames: dict[str, ServerFrames] = {}  # by address
        self._leaving: set[FrameLink] = set()  # that take no more calls, and have some under way
        self._is_closed = False
        self._connecting = Service()

    def __len__(self) -> int:
        return len(self.frames.keys() | self._grpc.addresses)

    def __contains__(self, address: str) -> bool:
        return address in self._grpc or self.link(address) is not None

    @property
    def calls_under_way(self) -> int:
        links = (frames.link for frames in self.frames.values())
        under_way = sum(link.calls_under_way for link in (*links, *self._leaving) if link is not None)
        return self._grpc.calls_under_way + under_way

    def call(self, address: str, path: str, data: bytes, metadata: Metadata | None, timeout_s: float) -> OutgoingCall:
        link = self.link(address)
        if link is not None and link.takes(path):
            self._check()
            return link.call(path, data, metadata, timeout_s)
        if self._token is not None:
            metadata = (*(metadata or ()), (AUTHORIZATION_KEY, f"Bearer {self._token()}"))
        if not self.asks(address):
            return self._grpc.call(address, path, data, metadata, timeout_s)
        return self._grpc.call(
            address,
            path,
            data,
            (*(metadata or ()), _ASKS),
            timeout_s,
            on_frames=lambda announced: self.learn(address, announced),
        )

    def begin(
        self, address: str, path: str, data: bytes, metadata: Metadata | None, timeout_s: float, on_end: OnEnd
    ) -> FrameCall | None:
        """A call for whose end nobody waits: `on_end` hears of it, later. None if there are no frames at the moment, or
        the call is not for them."""
        link = self.link(address)
        if link is None or not link.takes(path) or len(data) > self._message_bytes_max:
            return None
        self._check()
        return link.call(path, data, metadata, timeout_s, on_end)

    def frames_at(self, address: str) -> FramesAddress | None:
        """For a connection of the caller's own; None if none could be made to it lately."""
        frames = self.frames.get(address)
        return None if frames is None else frames.at

    def is_connected(self, address: str) -> bool:
        return self.link(address) is not None or self._grpc.is_connected(address)

    async def connect(self, address: str, timeout_s: float) -> bool:
        """Whether there is a connection, within this time at the latest."""
        return self.link(address) is not None or await self._grpc.connect(address, timeout_s)

    async def keep(self, addresses: Collection[str]) -> None:
        """Closes the connections to all others, but for those with calls under way."""
        self._keep_links(addresses)
        await self._grpc.keep(addresses)

    async def close_unused(self, now_s: float) -> None:
        """Those that carried nothing for a while. The channel beside frames that are in use goes by itself. How often
        there were none to be had is known for longer than until the next try: its pause grows with that."""
        self._keep_links(
            [
                address
                for address, frames in self.frames.items()
                if now_s <= max(frames.not_before_s, frames.link.used_s if frames.link else 0.0) + UNUSED_S
            ]
        )
        await self._grpc.close_unused(now_s)

    async def close(self) -> None:
        self._is_closed = True
        await self._connecting.stop()
        for link in (*(frames.link for frames in self.frames.values()), *self._leaving):
            if link is not None:
                link.close()
        self.frames.clear()
        self._leaving.clear()
        await self._grpc.close()

    # --- frames -------------------------------------------------------------------------------------------------

    def _keep_links(self, addresses: Collection[str]) -> None:
        for address, frames in list(self.frames.items()):
            link = frames.link
            if address not in addresses and not frames.is_connecting and (link is None or not link.calls_under_way):
                del self.frames[address]
                if link is not None:
                    link.close()
        self._leaving = {link for link in self._leaving if link.ended_s is None}

    def link(self, address: str) -> FrameLink | None:
        """One that takes calls."""
        frames = self.frames.get(address)
        link = None if frames is None else frames.link
        if link is None or not link.is_open:
            return None
        if self._token is not None and link.token != self._token():
            link.leave()  # what is under way ends there; the next call brings the other token
            self._leaving.add(link)
            self.frames[address] = ServerFrames()
            return None
        return link

    def asks(self, address: str) -> bool:
        if not self._uses_frames:
            return False
        frames = self.frames.get(address)
        return frames is None or frames.may_ask(time.monotonic())

    def learn(self, address: str, announced: str) -> None:
        """Where a server says that its frames are: the port, and who the server is. Nothing, if it has none."""
        if self._is_closed:
            return
        frames = self.frames.setdefault(address, ServerFrames())
        if frames.is_connecting or frames.is_open:
            return
        port, _, name = announced.partition(" ")
        if port.isascii() and port.isdigit() and 0 < int(port[:6]) < 65_536:
            frames.is_connecting = True
            self._connecting.spawn(self._connect(address, frames, int(port), name))
        else:
            frames.not_before_s = time.monotonic() + _NONE_S

    async def _connect(self, address: str, frames: ServerFrames, port: int, name: str) -> None:
        host = address.rpartition(":")[0].strip("[]")
        token = "" if self._token is None else self._token()
        try:
            link = await connect(
                host, port, lambda: FrameLink(name, self._caller, self._message_bytes_max, self._keepalive_s, token)
            )
        except NoFramesError as error:
            frames.failed()
            if not frames.was_reported:
                frames.was_reported = True
                log.info("No frames at %s port %s, so calls go over gRPC: %s", host, port, error)
        else:
            if frames.link is not None and frames.link.ended_s is None:
                self._leaving = {link for link in self._leaving if link.ended_s is None} | {frames.link}
            frames.link = link
            frames.at = FramesAddress(host, port, name)
            frames.was_reported = False
        finally:
            frames.is_connecting = False
