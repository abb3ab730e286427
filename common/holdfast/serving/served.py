"""What a server answers, over whichever transport a call reaches it."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Protocol

from holdfast.serving.metrics import MethodMetrics
from holdfast.serving.request_limits import RequestLimit

BRINGS_TASKS = frozenset({"Enqueue", "PutSchedule"})


class CallContext(Protocol):
    """What is known of a call before its request has come."""

    def invocation_metadata(self) -> Any:
        """Pairs; None or nothing if there are none."""
        ...

    def time_remaining(self) -> float | None:
        """In seconds; None if the caller waits for as long as it takes."""
        ...

    def done(self) -> bool:
        """Whether it has ended, e.g. because the caller has gone."""
        ...


Answer = Callable[[bytes], Awaitable[bytes]]


@dataclass(frozen=True, slots=True)
class Served:
    """One method: `begin` refuses a call by what it is, or returns what answers it once its request has come."""

    name: str
    limit: RequestLimit
    observed: MethodMetrics
    begin: Callable[[CallContext], Answer]

    @property
    def brings_tasks(self) -> bool:
        return self.name in BRINGS_TASKS


# What a call that failed ends with: the name of its gRPC code, a sentence, and details as they travel.
Refuse = Callable[[str, Exception], tuple[str, str, bytes | None]]
