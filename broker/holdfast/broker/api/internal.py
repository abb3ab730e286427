"""What a broker does for other brokers of its cluster: takes in what their shards bring, allocates limits, and says
which settings of queues it knows.

Who asks is known (peers/), and may speak only for shards that it has, as far as the map goes.
"""

import time
from collections.abc import Awaitable, Callable
from typing import Any, Final, NamedTuple, Protocol

from google.protobuf.message import Message

from holdfast.broker.api.shard_services import ShardServices
from holdfast.broker.api.tasks import TaskService
from holdfast.broker.metrics import Metrics
from holdfast.proto.v1 import broker_calls_pb2 as pb
from holdfast.serving.refusals import INVALID_FIELD, OutcomeUnknownError, RefusedError, outcome_unknown
from holdfast.serving.request_limits import RequestLimit, parse, request_limit
from holdfast.storage.rocksdb import StateDamagedError

RECEIVE_TASKS: Final = 1
ALLOCATE: Final = 2
SETTINGS_NEWS: Final = 3
MESSAGES_BYTES_MAX: Final = 4 * 1024 * 1024  # what is brought at once, beside one task of any size


class Senders(Protocol):
    """What is known of who calls, and of what it asks about."""

    def may_speak_for(self, node: str, shard: int, incarnation: int) -> bool:
        """Whether a node of this name has a replica of the shard, or is to have one. `incarnation`: of the shard, 0 if
        any will do; one that nobody has heard of yet is refused."""
        ...

    def settings_news(self, cluster_id: str, after_version: int) -> list[tuple[str, int]]:
        """Queues of newer settings, and their versions."""
        ...


class _Method(NamedTuple):
    name: str
    request: type[Message]
    limit: RequestLimit
    call: Callable[[str, int, Any], Awaitable[Message]]  # of a sender, to a shard


class InternalService:
    """Answers calls for the shards of this node."""

    def __init__(
        self,
        shards: ShardServices,
        senders: Senders,
        metrics: Metrics,
        *,
        batch_bytes_max: int,
    ) -> None:
        self._shards = shards
        self._senders = senders
        self._metrics = metrics
        # It was accepted long ago: it must be taken in, whatever clients may send at once.
        bytes_max = batch_bytes_max + MESSAGES_BYTES_MAX

        def method(
            name: str, request: type[Message], call: Callable[[str, int, Any], Awaitable[Message]]
        ) -> _Method:  # fmt: skip
            return _Method(name, request, request_limit(name, request, large_bytes_max=bytes_max), call)

        self._methods = {
            RECEIVE_TASKS: method("ReceiveTasks", pb.ReceiveTasksRequest, self._of_shard(TaskService.receive_tasks)),
            ALLOCATE: method("Allocate", pb.AllocateRequest, self._of_shard(TaskService.allocate)),
            SETTINGS_NEWS: method("SettingsNews", pb.SettingsNewsRequest, self._settings_news),
        }

    async def answer(self, sender: str, method: int, shard: int, message: bytes) -> bytes:
        known = self._methods.get(method)
        if known is None:
            raise RefusedError(INVALID_FIELD, f"Expected a call that this version knows, but got {method}.", "method")
        started, code = time.perf_counter(), "OK"
        try:
            known.limit.check(message)
            request = parse(known.request, message)
            response = await known.call(sender, shard, request)
            return response.SerializeToString()
        except RefusedError as refused:
            code = refused.reason
            self._metrics.rejected(refused.reason).inc()
            raise
        except (OutcomeUnknownError, StateDamagedError) as error:
            code = "UNKNOWN"
            if isinstance(error, StateDamagedError):
                self._shards.note_damage(error)
            raise outcome_unknown() from None
        finally:
            self._metrics.rpc(known.name).observe(code, time.perf_counter() - started)

    def _of_shard(
        self, call: Callable[[TaskService, Any], Awaitable[Message]]
    ) -> Callable[[str, int, Any], Awaitable[Message]]:
        async def checked(sender: str, shard: int, request: Any) -> Message:
            self._check_source(sender, request)
            return await call(self._shards.find(shard), request)

        return checked

    async def _settings_news(self, _sender: str, _shard: int, request: pb.SettingsNewsRequest) -> Message:
        newer = self._senders.settings_news(request.cluster_id, request.after_version)
        return pb.SettingsNewsResponse(queues=[pb.QueueVersion(queue=name, version=version) for name, version in newer])

    def _check_source(self, sender: str, request: Any) -> None:
        incarnation = getattr(request, "source_incarnation", 0)
        if not self._senders.may_speak_for(sender, request.source_shard, incarnation):
            raise RefusedError(
                INVALID_FIELD,
                f"Expected a call for shard {request.source_shard} from a node that has it, but {sender} is not known "
                "to; try again when the map is up to date.",
                "source_shard",
            )
