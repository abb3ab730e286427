"""The attempts of a call: what is sent each time, and how long there is for it."""

import time
from typing import Any, Protocol

from google.protobuf.message import Message

from holdfast.client.errors import InvalidArgument

MESSAGE_BYTES_MAX = 16 * 1024 * 1024
# With less time left another attempt would only be cut off, and make of a refusal an unknown outcome.
ATTEMPT_S_MIN = 0.1
POLL_S_MAX = 30.0  # short enough for whatever sits between client and server and cuts silent connections


class CallAttempts(Protocol):
    """The attempts of a call: what to send each time, and how long there is for it."""

    timeout_s: float  # of the whole call; of a poll: of the attempt under way
    wait_s: float  # how long the server is asked to wait in the attempt under way

    def next(self, now_s: float) -> tuple[bytes, float]:
        """What to send, and how long to wait for the answer."""
        ...

    def pause_s(self, asked_s: float) -> float | None:
        """How long to pause before the next attempt; None if there is none."""
        ...


class OneCall:
    """All within one deadline. If the server is asked to wait, then only for what is left of that."""

    def __init__(
        self, request: Message, timeout_s: float, *, wait_ms: int = 0, repeats_s: float = float("inf"),
        begun_s: float | None = None,
    ) -> None:  # fmt: skip
        """`wait_ms`: as the request has it; `timeout_s`: beyond it. `repeats_s`: no attempt but the first begins later
        than that, so that the last one is not cut off. `begun_s`: when the first one was made, if it was."""
        self._request: Any = request
        self._wait_ms = wait_ms
        now_s = time.monotonic() if begun_s is None else begun_s
        self._repeats_until_s = now_s + repeats_s
        self._ends_s = now_s + wait_ms / 1000
        self.timeout_s = max(0, wait_ms) / 1000 + timeout_s
        self._deadline_s = now_s + self.timeout_s
        self.wait_s = max(0, wait_ms) / 1000
        self._first = begun_s is None

    def next(self, now_s: float) -> tuple[bytes, float]:
        if self._wait_ms and not self._first:
            self._request.wait_ms = max(0, int((self._ends_s - now_s) * 1000))
            self.wait_s = self._request.wait_ms / 1000
        self._first = False
        return checked(self._request.SerializeToString()), self._deadline_s - now_s

    def pause_s(self, asked_s: float) -> float | None:
        begins_s = time.monotonic() + asked_s
        is_late = begins_s >= min(self._deadline_s - ATTEMPT_S_MIN, self._repeats_until_s)
        return None if is_late else asked_s


class Poll:
    """A long poll: each attempt waits for as long as is left, and the last one begins when nothing is."""

    def __init__(self, request: Message, ends_s: float, answer_s: float) -> None:
        self._request: Any = request
        self._ends_s = ends_s
        self._answer_s = answer_s
        self.timeout_s = answer_s
        self.wait_s = 0.0

    def next(self, now_s: float) -> tuple[bytes, float]:
        self.wait_s = min(POLL_S_MAX, max(0.0, self._ends_s - now_s))
        self.timeout_s = self.wait_s + self._answer_s
        self._request.wait_ms = int(self.wait_s * 1000)
        return self._request.SerializeToString(), self.timeout_s

    def pause_s(self, asked_s: float) -> float | None:
        if not asked_s:
            return 0.0  # a redirect: still the same attempt
        left_s = self._ends_s - time.monotonic()
        return min(asked_s, left_s) if left_s > 0 else None


def checked(data: bytes) -> bytes:
    if len(data) > MESSAGE_BYTES_MAX:
        raise InvalidArgument(
            f"Expected a request of at most {MESSAGE_BYTES_MAX} bytes, but it has {len(data)}.",
            reason="BATCH_TOO_LARGE",
        )
    return data
