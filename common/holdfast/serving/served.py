"""What a server answers, over whichever transport a call reaches it."""

from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any, Protocol

from holdfast.serving.metrics import MethodMetrics
from holdfast.serving.request_limits import RequestLimit

BRINGS_TASKS = frozenset({"Enqueue", "PutSchedule"})


@dataclass(frozen=True, slots=True)
class ConnectionCredentials:
    """What a connection says of who is at its other end."""

    token: str = field(default="", repr=False)  # of the hello
    certificate_names: tuple[str, ...] = ()  # of a certificate that was checked; the first is what people call it


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


Answer = Callable[[bytes], Coroutine[Any, Any, Any]]


class CompletedCall(CallContext, Protocol):
    """A call whose answer need not come from a coroutine: one of these ends it."""

    def complete(self, response: bytes) -> None: ...

    def refuse(self, error: Exception) -> None: ...

    def drop(self) -> None:
        """The caller waits no longer, so it has no answer."""
        ...

    def begin(self, answered: Coroutine[Any, Any, Any], *, in_task: bool) -> None:
        """It is answered by this coroutine after all."""
        ...

    def on_cancel(self, cancel: Callable[[], object]) -> None:
        """What is to be done once the caller waits no longer. One of the above follows all the same."""
        ...


# Answers a call, or begins to: then it returns nothing, and the call is completed later.
Carried = Callable[[bytes], Coroutine[Any, Any, Any] | None]


class Served:
    """One method: `begin` refuses a call by what it is, or returns what answers it once its request has come."""

    __slots__ = ("begin", "begin_framed", "brings_tasks", "encode", "is_driven", "limit", "name", "observed")

    def __init__(
        self, name: str, limit: RequestLimit, observed: MethodMetrics, begin: Callable[[CallContext], Answer], *,
        encode: Callable[[Any], bytes] = bytes, is_driven: bool = False,
        begin_framed: Callable[[CompletedCall], Carried] | None = None,
    ) -> None:  # fmt: skip
        """`encode`: makes bytes of what answers. `is_driven`: who answers waits for futures only, and needs no task
        around it: no timeout, and nothing else that asks which task it is in. `begin_framed`: the same as `begin` for
        calls that come in frames, if these can be carried out with less."""
        self.name = name
        self.limit = limit
        self.observed = observed
        self.begin = begin
        self.begin_framed: Callable[[CompletedCall], Carried] = begin_framed or begin
        self.encode = encode
        self.is_driven = is_driven
        self.brings_tasks = name in BRINGS_TASKS


# What a call that failed ends with: the name of its gRPC code, a sentence, and details as they travel.
Refuse = Callable[[str, Exception], tuple[str, str, bytes | None]]
