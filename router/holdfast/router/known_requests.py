"""Requests that brokers have taken: a caller that waits with one like it need not show it to a broker first. Pure.

An idle worker polls again and again with the same request, but for its claim_request_id. Where others wait for the same
queues it would ask a broker only to hear that its request is well-formed.
"""

import time
from collections.abc import Callable

from holdfast.proto.v1 import tasks_pb2 as pb

KNOWN_S = 300.0  # brokers are to hear of a worker now and then: they tell operators who works here
KNOWN_MAX = 100_000
ID_CHARACTERS_MAX = 64


class KnownRequests:
    """Bounded: what is beyond is forgotten, and shown again."""

    def __init__(self, now_s: Callable[[], float] = time.monotonic) -> None:
        self._now_s = now_s
        self._until_s: dict[int, float] = {}

    def __len__(self) -> int:
        return len(self._until_s)

    def add(self, request: pb.ReserveRequest) -> None:
        """A broker has answered it."""
        if len(self._until_s) >= KNOWN_MAX:
            self._until_s.clear()
        self._until_s[_digest(request)] = self._now_s() + KNOWN_S

    def has(self, request: pb.ReserveRequest) -> bool:
        request_id = request.claim_request_id
        if request_id and not (request_id.isascii() and request_id.isalnum() and len(request_id) <= ID_CHARACTERS_MAX):
            return False
        digest = _digest(request)
        until_s = self._until_s.get(digest, 0.0)
        if until_s > self._now_s():
            return True
        self._until_s.pop(digest, None)
        return False


def _digest(request: pb.ReserveRequest) -> int:
    """Of all that a broker looks at, but for the id, which is another one each time, and the wait."""
    named, wait_ms = request.claim_request_id, request.wait_ms
    request.claim_request_id, request.wait_ms = "", 0
    try:
        return hash(request.SerializeToString(deterministic=True))
    finally:
        request.claim_request_id, request.wait_ms = named, wait_ms
