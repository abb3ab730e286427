"""What is kept about connections: limits, counters for the metrics, and warnings that do not repeat themselves."""

import math
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from holdfast.broker.peers.reasons import SENTENCES, Reason
from holdfast.serving.logs import Logger

_MIB: Final = 1024 * 1024


@dataclass(frozen=True, slots=True)
class PeerLimits:
    body_bytes_max: int = 8 * _MIB  # of one frame; above that its connection is dropped
    outgoing_bytes_max: int = 32 * _MIB  # waiting for one peer, beside one large frame; above that frames are dropped
    half_open_max: int = 32  # connections without a hello; one more pushes the oldest out
    hello_seconds_max: float = 5.0  # TLS and hello together
    connect_seconds_max: float = 2.0  # to a host that does not answer; the next attempt sends a new SYN
    # Data that nobody has acknowledged for so long ends the connection, and so does a frame of which nothing more came.
    dead_seconds: float = 5.0
    redial_seconds_min: float = 0.05
    redial_seconds_max: float = 1.0
    lasting_seconds: float = 2.0  # a connection that lived so long was a good one: redialling begins quickly again

    def __post_init__(self) -> None:
        for name in self.__slots__:
            if getattr(self, name) <= 0:
                raise ValueError(f"Expected {name} above 0, but it is {getattr(self, name)}.")


@dataclass(frozen=True, slots=True)
class OwnSide:
    """What a node says of itself when somebody does not fit it."""

    name: str
    node_list: str  # how many nodes, and the beginning of the list's digest


@dataclass(slots=True)
class PeerCounters:
    """Only ever grow. Bytes include the heads of frames, not hellos."""

    frames_sent: int = 0  # taken by a connection; they may be lost with it
    bytes_sent: int = 0
    frames_received: int = 0
    bytes_received: int = 0
    frames_dropped_full: int = 0  # too much waited for that peer already
    frames_dropped_unconnected: int = 0  # no connection to that very identity
    connections_made: int = 0  # with a welcome hello, both directions
    dials_failed: int = 0  # nobody answered, or no hello came back
    refused: Counter[Reason] = field(default_factory=Counter)  # by this node, before or with the hello
    refused_by_peers: Counter[Reason] = field(default_factory=Counter)  # what other nodes refused this one for
    broken: Counter[Reason] = field(default_factory=Counter)  # dropped by this node after a welcome hello


class Warnings:
    """Warnings at most once per `every_seconds` for the same facts, then with how many were left out.

    Somebody who makes up ever new facts must fill neither the memory nor the log, so both have a bound of their own.
    """

    KINDS_MAX: Final = 64  # different facts per `every_seconds`

    def __init__(
        self, log: Logger, *, every_seconds: float = 30.0, now_s: Callable[[], float] = time.monotonic
    ) -> None:
        self._log = log
        self._every_seconds = every_seconds
        self._now_s = now_s
        self._since_s = -math.inf
        self._left_out: Counter[tuple[str, ...]] = Counter()  # how often, in this period; 0: said once
        self._left_out_before: Counter[tuple[str, ...]] = Counter()  # in the last one

    def say(self, event: str, *, found: str = "", **facts: str) -> None:
        """`found` is said along and does not count as a fact."""
        key = (event, *facts.values())
        now_s = self._now_s()
        if now_s - self._since_s >= self._every_seconds:
            self._since_s = now_s
            self._left_out_before, self._left_out = self._left_out, Counter()
        if key in self._left_out:
            self._left_out[key] += 1
            return
        if len(self._left_out) >= self.KINDS_MAX:
            return
        self._left_out[key] = 0
        extra: dict[str, str | int] = {"found": found} if found else {}
        if left_out := self._left_out_before[key]:
            extra["left_out"] = left_out
        self._log.warning(event, **facts, **extra)

    def closed(self, event: str, reason: Reason, *, found: str = "", **facts: str) -> None:
        """A connection was refused or dropped for this reason."""
        self.say(event, found=found, reason=reason.name, detail=SENTENCES[reason], **facts)
