"""A gRPC server on a loopback socket that gives scripted answers, for tests of the client and the command line.

It runs in threads of its own, so that it serves asynchronous tests and commands with their own event loop alike.
"""

from collections import defaultdict, deque
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from threading import Event
from types import TracebackType
from typing import Any, Self, TypeVar

import grpc
import pytest
from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass
from google.rpc import error_details_pb2, status_pb2

from holdfast.client import HoldfastError, InvalidArgument
from holdfast.proto.v1 import cluster_pb2, queues_pb2, schedules_pb2, shards_pb2, tasks_pb2


@dataclass(frozen=True)
class Refusal:
    """A whole call refused, as a Holdfast server does it. Without a reason: as anything else does it."""

    code: grpc.StatusCode
    reason: str = ""
    message: str = "No."
    retry_after_ms: int = 0
    metadata: dict[str, str] = field(default_factory=dict)
    domain: str = "holdfast"

    def trailing_metadata(self) -> tuple[tuple[str, bytes], ...]:
        if not self.reason:
            return ()
        status = status_pb2.Status(code=self.code.value[0], message=self.message)
        info = error_details_pb2.ErrorInfo(reason=self.reason, domain=self.domain, metadata=self.metadata)
        status.details.add().Pack(info)
        if self.retry_after_ms:
            delay = Duration()
            delay.FromMilliseconds(self.retry_after_ms)
            status.details.add().Pack(error_details_pb2.RetryInfo(retry_delay=delay))
        return (("grpc-status-details-bin", status.SerializeToString()),)


LOST = Refusal(grpc.StatusCode.UNAVAILABLE)  # as when the connection breaks


class Hang:
    """Never answers: the call ends when its caller gives up or the server stops."""

    def __init__(self) -> None:
        self.arrived = Event()

    def wait(self, context: grpc.ServicerContext) -> None:
        ended = Event()
        if context.add_callback(ended.set):  # False if the call has ended already
            self.arrived.set()
            ended.wait()


def not_leader(leader: str | None, epoch: int) -> Refusal:
    """As a server does it that does not lead shard 0."""
    metadata = {"shard": "0", "epoch": str(epoch)}
    if leader is None:
        return Refusal(grpc.StatusCode.UNAVAILABLE, "NOT_LEADER", "Nobody leads.", 100, metadata)
    return Refusal(grpc.StatusCode.UNAVAILABLE, "NOT_LEADER", "Not here.", metadata={**metadata, "leader": leader})


FIRST_ID = "0198f3c2-7a1b-8000-8000-000000000001"  # as shard 0 makes it

# A message, a refusal, raw bytes, silence, or a function of the request that returns one of these.
Answer = Message | Refusal | bytes | Hang | Callable[[Any], Any]


class ScriptedServer(grpc.GenericRpcHandler):
    """Answers each call with the next answer of its method's script; the last one is repeated."""

    def __init__(self) -> None:
        self.requests: dict[str, list[Any]] = defaultdict(list)  # what arrived, by method
        self.tokens: list[str] = []  # of the calls that brought one
        self.deadlines_s: dict[str, list[float | None]] = defaultdict(list)  # how long each caller would wait
        self._script: dict[str, deque[Answer]] = defaultdict(deque)
        self._types = {
            f"/{service.full_name}/{method.name}": (method.name, GetMessageClass(method.input_type))
            for module in (tasks_pb2, shards_pb2, cluster_pb2, queues_pb2, schedules_pb2)
            for service in module.DESCRIPTOR.services_by_name.values()
            for method in service.methods
        }
        self.port = 0
        self._server: grpc.Server | None = None

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def on(self, method: str, *answers: Answer) -> None:
        self._script[method].extend(answers)

    def first(self, method: str, *answers: Answer) -> None:
        """Before what it would answer."""
        self._script[method].extendleft(reversed(answers))

    def instead(self, method: str, *answers: Answer) -> None:
        """Of all that it would answer."""
        self._script[method] = deque(answers)

    def start(self) -> None:
        """Listens on a free port, or on the same one as before."""
        # Without SO_REUSEPORT, so that no other server of this machine can share the port by accident.
        self._server = grpc.server(ThreadPoolExecutor(max_workers=8), options=[("grpc.so_reuseport", 0)])
        self._server.add_generic_rpc_handlers((self,))
        self.port = self._server.add_insecure_port(self.address)
        self._server.start()

    def stop(self) -> None:
        """Cuts off the calls under way."""
        if self._server is not None:
            self._server.stop(grace=None).wait()
            self._server = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> "grpc.RpcMethodHandler[Any, Any] | None":
        known = self._types.get(handler_call_details.method)
        if known is None or known[0] not in self._script:
            return None
        name, request_type = known

        def handle(data: bytes, context: grpc.ServicerContext) -> bytes:
            request = request_type.FromString(data)
            self.requests[name].append(request)
            metadata = context.invocation_metadata() or ()
            self.tokens += [str(value) for key, value in metadata if key == "authorization"]
            self.deadlines_s[name].append(context.time_remaining())
            script = self._script[name]
            answer = script.popleft() if len(script) > 1 else script[0]
            if callable(answer):
                answer = answer(request)
            if isinstance(request, tasks_pb2.ReserveRequest) and isinstance(answer, tasks_pb2.ReserveResponse):
                answer = in_runs(answer) if request.takes_runs else answer
            if isinstance(answer, Hang):
                answer.wait(context)
                return b""
            if isinstance(answer, Refusal):
                context.set_trailing_metadata(answer.trailing_metadata())
                context.abort(answer.code, answer.message)
            return answer if isinstance(answer, bytes) else answer.SerializeToString()

        return grpc.unary_unary_rpc_method_handler(handle)


def in_runs(response: tasks_pb2.ReserveResponse) -> tasks_pb2.ReserveResponse:
    """The same claims for a caller that takes runs: each is a run of one."""
    runs = tasks_pb2.ReserveResponse()
    runs.CopyFrom(response)
    runs.ClearField("claims")
    for claim in response.claims:
        run = runs.runs.add(payloads=[claim.task.payload])
        for described, value in claim.ListFields():
            if described.message_type is None:
                setattr(run, described.name, value)
        run.task.CopyFrom(claim.task)
        run.task.ClearField("payload")
    return runs


ErrorT = TypeVar("ErrorT", bound=HoldfastError)


async def error_of(call: Awaitable[object], kind: type[ErrorT]) -> ErrorT:
    with pytest.raises(kind) as raised:
        await call
    return raised.value


async def refused_field(call: Awaitable[object]) -> str:
    """By whose name an argument of the call is refused."""
    return (await error_of(call, InvalidArgument)).field


def ack_all(request: tasks_pb2.AckRequest) -> tasks_pb2.AckResponse:
    return tasks_pb2.AckResponse(
        outcomes=[tasks_pb2.AckOutcome(acked=tasks_pb2.Acked()) for _ in request.items],
        ranges=[tasks_pb2.RangeOutcome() for _ in request.ranges],
    )


def hand_out_what_is_enqueued(server: ScriptedServer) -> None:
    """For examples: the first task, as often as one is wanted."""
    taken: list[tasks_pb2.TaskSpec] = []

    def accept(request: tasks_pb2.EnqueueRequest) -> tasks_pb2.EnqueueResponse:
        taken.extend(request.tasks)
        accepted = tasks_pb2.Accepted(task_id="the-id")
        return tasks_pb2.EnqueueResponse(
            outcomes=[tasks_pb2.EnqueueOutcome(accepted=accepted) for _ in request.tasks],
            runs=[tasks_pb2.RunOutcome(first_task_id=FIRST_ID) for _ in request.runs],
        )

    def hand_out(request: tasks_pb2.ReserveRequest) -> tasks_pb2.ReserveResponse:
        return tasks_pb2.ReserveResponse(claims=[tasks_pb2.Claim(task_id="the-id", token=1, task=taken[0])])

    server.on("Enqueue", accept)
    server.on("Reserve", hand_out)
    server.on("Ack", tasks_pb2.AckResponse(outcomes=[tasks_pb2.AckOutcome(acked=tasks_pb2.Acked())]))
