"""Who calls a router, and how long it waits for the answer."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from holdfast.access.identities import Identity
from holdfast.serving.refusals import INVALID_FIELD, RefusedError


@dataclass(slots=True)  # not frozen, which would make it three times as dear: there is one for each call
class Caller:
    """What came with a call beside its request."""

    shard: int | None  # that it names
    attempt: int
    deadline_s: float  # on time.monotonic(); infinite if it set none
    has_left: Callable[[], bool]  # it has hung up
    is_first: bool = False  # it says that it was never sent before
    received_s: float = field(default_factory=time.monotonic)  # when its call came
    identity: Identity | None = None  # where callers are asked

    @property
    def is_gone(self) -> bool:
        """An answer would reach nobody."""
        return self.has_left() or time.monotonic() >= self.deadline_s


def number_of(key: str, value: object) -> int:
    """A number in the metadata of a call."""
    if not (isinstance(value, str) and value.isascii() and value.isdigit() and len(value) <= 5):
        raise RefusedError(INVALID_FIELD, f"Expected a number in the metadata {key}.", field=key)
    return int(value)
