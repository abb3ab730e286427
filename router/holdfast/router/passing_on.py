"""For whom a router calls brokers: the caller of the call that it carries out, or itself for what it does on its own
account, such as the waits that callers share. Brokers decide again, and so have to know.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import lru_cache

from holdfast.access.identities import Identity
from holdfast.common.metadata import CALLER_KEY, SHARD_KEY
from holdfast.serving.access_rules import AccessRules
from holdfast.transport.channels import Metadata

ROUTER = Identity("router", "router")

# Of the call that this task carries out, and all tasks that it begins. What goes on for others once that call has ended
# says so (`on_own_account`). None: nobody has said; then brokers are told of nobody, and refuse it.
_caller: ContextVar[Identity | None] = ContextVar("caller", default=None)


def carry_out_for(identity: Identity) -> None:
    """From now on, in this task."""
    _caller.set(identity)


@contextmanager
def carrying_out_for(identity: Identity | None) -> Iterator[None]:
    """For what is done at once and in no task of its own."""
    before = _caller.set(identity)
    try:
        yield
    finally:
        _caller.reset(before)


def on_own_account() -> None:
    """From now on, in this task."""
    _caller.set(ROUTER)


class PassingOn:
    """Says it in the metadata of calls, where anybody is asked."""

    def __init__(self, access: AccessRules) -> None:
        self._access = access

    def metadata(self, shard: int, *, as_router: bool = False) -> Metadata:
        """One object for each shard and caller, as long as what it says does not change: it goes with every call."""
        if not self._access.is_asked:
            return metadata_of(shard)
        identity = ROUTER if as_router else _caller.get()
        return metadata_of(shard) if identity is None else _metadata_with(shard, self._access.words.word(identity))


@lru_cache(4096)
def metadata_of(shard: int) -> Metadata:
    return ((SHARD_KEY, str(shard)),)


@lru_cache(4096)
def _metadata_with(shard: int, word: str) -> Metadata:
    return ((SHARD_KEY, str(shard)), (CALLER_KEY, word))
