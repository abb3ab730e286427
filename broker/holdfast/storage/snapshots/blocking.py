"""How this package has blocking work done: in a thread, or in a test at once."""

from collections.abc import Awaitable, Callable
from typing import Protocol, TypeVar

Result = TypeVar("Result")


class RunBlocking(Protocol):
    """`asyncio.to_thread` is one."""

    def __call__(self, function: Callable[[], Result], /) -> Awaitable[Result]: ...
