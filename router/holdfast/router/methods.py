"""The calls that a router passes on, as the descriptors know them, and what may be done with each. Pure."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from google.protobuf.message import DecodeError, Message
from google.protobuf.message_factory import GetMessageClass

from holdfast.proto.v1 import backups_pb2, cluster_pb2, queues_pb2, schedules_pb2, shards_pb2
from holdfast.proto.v1 import tasks_pb2 as pb
from holdfast.routing.placing import specs_of
from holdfast.serving.refusals import internal_error
from holdfast.serving.request_limits import parse


@dataclass(frozen=True)
class Method:
    """One call of the wire API."""

    service: str
    name: str
    request: type[Any]
    response: type[Any]
    waits: bool  # its request has a wait_ms
    names_shard: bool  # its request does
    reports_leases: bool  # its response has a routed_ms
    repeats: Callable[[Any], bool]  # whether carrying it out twice does no harm

    @cached_property
    def path(self) -> str:
        return f"/holdfast.proto.v1.{self.service}/{self.name}"

    def parse(self, data: bytes) -> Any:
        return parse(self.request, data)

    def read(self, answer: bytes) -> Any:
        """A broker's answer."""
        try:
            return self.response.FromString(answer)
        except DecodeError:
            raise internal_error() from None

    def may_repeat(self, data: bytes) -> bool:
        """Asked only when something went wrong: the good path never reads a request for this."""
        if self.repeats is _always:
            return True
        try:
            return self.repeats(self.request.FromString(data))
        except DecodeError:
            return True  # the broker refuses it, every time

    def with_wait(self, data: bytes, wait_ms: int) -> bytes:
        """The same request with another wait."""
        request = self.request.FromString(data)
        request.wait_ms = wait_ms
        result: bytes = request.SerializeToString()
        return result

    def with_routed(self, answer: bytes, routed_s: float) -> bytes:
        """A broker's answer, and how long the router had the call before it sent it there. It is not read for that:
        protobuf merges what follows. An answer that says nothing stays empty."""
        routed_ms = int(routed_s * 1000)
        if not answer or routed_ms <= 0 or not self.reports_leases:
            return answer
        added: bytes = self.response(routed_ms=routed_ms).SerializeToString()
        return answer + added

    def wait_ms(self, data: bytes) -> int:
        if not self.waits:
            return 0
        try:
            return int(self.request.FromString(data).wait_ms)
        except DecodeError:
            return 0


def _always(_request: Message) -> bool:
    return True


def _never(_request: Message) -> bool:
    return False


def _enqueue(request: pb.EnqueueRequest) -> bool:
    return all(spec.request_id for spec in specs_of(request))


def _reserve(request: pb.ReserveRequest) -> bool:
    return bool(request.claim_request_id)


def _purge(request: queues_pb2.PurgeQueueRequest) -> bool:
    """The first page says which tasks are meant: a second one would mean those too that have come since."""
    return bool(request.page_token) or request.dry_run


def _put_schedule(request: schedules_pb2.PutScheduleRequest) -> bool:
    """A new one that it made itself would be in its way."""
    return not request.must_be_new


def _trigger(request: schedules_pb2.TriggerScheduleRequest) -> bool:
    return bool(request.request_id)


# All others may be repeated: by their token (Ack, Fail, Extend, Release), because they ask for a state and not for a
# change (Cancel, UpdateTasks, PauseSchedule, the calls to Shards and Backups), or because they only read.
_REPEATS: dict[str, Callable[[Any], bool]] = {
    "Enqueue": _enqueue,
    "Reserve": _reserve,
    "RetryDeadLetters": _never,
    "DiscardDeadLetters": _never,
    "PurgeQueue": _purge,
    "PutSchedule": _put_schedule,
    "DeleteSchedule": _never,
    "TriggerSchedule": _trigger,
}


def _methods(module: Any, service: str) -> dict[str, Method]:
    found = {}
    for method in module.DESCRIPTOR.services_by_name[service].methods:
        request = GetMessageClass(method.input_type)
        response = GetMessageClass(method.output_type)
        asked = method.input_type.fields_by_name
        reports_leases = "routed_ms" in method.output_type.fields_by_name
        repeats = _REPEATS.get(method.name, _always)
        found[method.name] = Method(
            service, method.name, request, response, "wait_ms" in asked, "shard" in asked, reports_leases, repeats
        )
    return found


TASKS = _methods(pb, "Tasks")
DEAD_LETTERS = _methods(pb, "DeadLetters")
QUEUES = _methods(queues_pb2, "Queues")
SCHEDULES = _methods(schedules_pb2, "Schedules")
SHARDS = _methods(shards_pb2, "Shards")
CLUSTER = _methods(cluster_pb2, "Cluster")
BACKUPS = _methods(backups_pb2, "Backups")

ALL = tuple(
    method
    for methods in (TASKS, DEAD_LETTERS, QUEUES, SCHEDULES, SHARDS, CLUSTER, BACKUPS)
    for method in methods.values()
)  # fmt: skip
