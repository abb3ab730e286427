"""The seam between routing and the network: calls to servers, by their addresses, and how they fail. `grpc_channels` is
the real one, for routers and clients; `memory` has a twin without a network.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

from google.protobuf.message import DecodeError
from google.rpc import error_details_pb2, status_pb2

from holdfast.common.metadata import DOMAIN
from holdfast.routing.retries import named_leader

# A server that goes down cancels the calls it still has.
_LOST = frozenset({"UNAVAILABLE", "CANCELLED", "DEADLINE_EXCEEDED"})
_FAULTS = frozenset({"INTERNAL", "UNKNOWN", "ABORTED", "DATA_LOSS"})

Metadata = tuple[tuple[str, str], ...]


class OutgoingCall(Protocol):
    """A call under way to a server."""

    def cancel(self) -> object: ...

    async def answer(self) -> bytes:
        """Raises CallFailedError; also when `cancel` ended it. CancelledError only if the waiting task is."""
        ...

    @property
    def is_unsent(self) -> bool:
        """It still waits for a connection, so nothing of it can have been carried out."""
        ...


class Channels(Protocol):
    """The ways to the servers."""

    def call(
        self, address: str, path: str, data: bytes, metadata: Metadata | None, timeout_s: float
    ) -> OutgoingCall: ...


@dataclass(eq=False)
class CallFailedError(Exception):
    """A call to a server that did not succeed, as its status came."""

    code: str  # the name of a gRPC code
    message: str
    details: bytes | None = None  # a google.rpc.Status
    was_connected: bool = True  # there was a connection that it was sent over
    was_given_up: bool = False  # it was ended here

    @cached_property
    def _info(self) -> tuple[str, dict[str, str], int]:
        """Reason, metadata and retry-after of a typed refusal; no reason if it is none."""
        reason, metadata, retry_after_ms = "", {}, 0
        try:
            details = status_pb2.Status.FromString(self.details).details if self.details else ()
        except DecodeError:
            details = ()
        for detail in details:
            if detail.Is(error_details_pb2.ErrorInfo.DESCRIPTOR):
                info = error_details_pb2.ErrorInfo()
                if detail.Unpack(info) and info.domain == DOMAIN:
                    reason, metadata = info.reason, dict(info.metadata)
            elif detail.Is(error_details_pb2.RetryInfo.DESCRIPTOR):
                retry = error_details_pb2.RetryInfo()
                detail.Unpack(retry)
                retry_after_ms = max(0, retry.retry_delay.ToMilliseconds())
        return reason, metadata, retry_after_ms

    @property
    def reason(self) -> str:
        return self._info[0]

    @property
    def metadata(self) -> dict[str, str]:
        return self._info[1]

    @property
    def retry_after_ms(self) -> int:
        return self._info[2]

    @property
    def never_sent(self) -> bool:
        """With certainty: a call that was sent may have been carried out, whatever became of the connection."""
        return not self.was_connected

    @property
    def is_lost(self) -> bool:
        """The server, or the way to it, has gone or is silent, and nobody knows what became of the call."""
        return not self.reason and self.code in _LOST and not self.never_sent

    @property
    def is_fault(self) -> bool:
        """Of the server, or of something between, without a reason."""
        return not self.reason and self.code in _FAULTS

    @property
    def is_unknown(self) -> bool:
        """The call may have been carried out."""
        return self.reason in ("OUTCOME_UNKNOWN", "INTERNAL") or self.is_lost or self.is_fault

    @property
    def leader(self) -> tuple[str, int] | None:
        """Whom a server that does not lead names, and in which epoch."""
        return named_leader(self.metadata) if self.reason == "NOT_LEADER" else None
