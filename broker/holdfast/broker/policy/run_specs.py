"""What a run of tasks is to be: checked once for all of them, and each payload by itself. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass

from holdfast.broker.policy import fields
from holdfast.broker.policy.policies import Policies
from holdfast.broker.policy.task_specs import TaskSpecs, digests_of
from holdfast.machine.new_runs import NewRun, pack_digests, pack_ids, pack_sizes
from holdfast.machine.new_tasks import NewTask
from holdfast.proto.v1 import tasks_pb2 as pb
from holdfast.routing.sets import is_automatic_key, parse_automatic_key
from holdfast.serving.refusals import INVALID_FIELD, MISSING_FIELD, RefusedError

_OF_ONE_TASK = ("payload", "unique_key")  # in no run, unless it is empty
_MAY_BE_SET = ("ttl_ms", "run_at_ms", "delay_ms")  # in no run, whatever it is
_ANY_ID = "~0.any.0"


@dataclass(frozen=True, slots=True)
class CheckedRun:
    """The tasks of a run that are not refused, and those that are by their places in it."""

    task: NewTask  # what they share: its envelope has no payload
    sizes: list[int]  # of the payloads
    payloads: bytes  # one behind the other
    request_ids: list[bytes]  # their own, if they have any
    digests: list[int]  # of what these stand for; none if they are not compared
    refused: dict[int, RefusedError]
    behind: int | None  # how many of the call's `tasks` come before it; None: all

    @property
    def tasks(self) -> int:
        """How many are not refused."""
        return len(self.sizes)

    def new_run(self) -> NewRun:
        task = self.task
        return NewRun(
            task.queue,
            task.priority,
            b"" if self.request_ids else task.request_id,
            task.dedup_window_ms,
            task.max_attempts,
            task.max_claims,
            task.result_ttl_ms,
            task.type,
            task.flags,
            task.timeout_ms,
            task.envelope,
            pack_sizes(self.sizes),
            self.payloads,
            task.start_by_ms,
            task.tenant,
            task.limit_key,
            pack_ids(self.request_ids),
            pack_digests(self.digests),
        )

    def places(self, count: int) -> Sequence[int]:
        """Where the tasks that are not refused were among so many."""
        return [place for place in range(count) if place not in self.refused] if self.refused else range(count)


class RunSpecs(TaskSpecs):
    """Makes runs of what producers say."""

    def new_run(self, run: pb.TaskRun, now_ms: int, policies: Policies | None = None) -> CheckedRun:
        """Refuses all of it, or only those of its tasks whose payload or own request id is wrong."""
        if not run.payloads:
            raise RefusedError(MISSING_FIELD, "Expected at least one item in {field}, but got none.", "payloads")
        own_ids = [*run.request_ids]
        if own_ids:
            _check_together(own_ids, run)
            run.task.request_id = _ANY_ID  # what is wrong with the first one is its own affair
        try:
            _refuse_of_one_task(run.task)
            task = self.new_task(run.task, now_ms, policies)
        except RefusedError as error:
            raise error.within("task") from None
        if own_ids:
            task = _with_own_ids(run.task, task, own_ids[0])
        payloads, request_ids = list(run.payloads), [own_id.encode() for own_id in own_ids]
        refused = self._refused(payloads, own_ids)
        if refused:
            payloads = [payload for place, payload in enumerate(payloads) if place not in refused]
            request_ids = [request_id for place, request_id in enumerate(request_ids) if place not in refused]
        digests = digests_of(run.task, payloads) if own_ids and not is_automatic_key(own_ids[0]) else []
        behind = run.behind if run.HasField("behind") else None
        return CheckedRun(
            task, list(map(len, payloads)), b"".join(payloads), request_ids, digests, refused, behind
        )  # fmt: skip

    def _refused(self, payloads: Sequence[bytes], own_ids: Sequence[str]) -> dict[int, RefusedError]:
        """Those whose payload is too large, and those whose request id is none, by their places."""
        refused: dict[int, RefusedError] = {}
        if own_ids:
            for index, own_id in enumerate(own_ids):
                try:
                    fields.text(own_id, f"request_ids[{index}]")
                except RefusedError as error:
                    refused[index] = error
        bytes_max = self._config.payload_bytes_max
        if max(map(len, payloads)) > bytes_max:
            for index, payload in enumerate(payloads):
                try:
                    fields.size(len(payload), f"payloads[{index}]", bytes_max)
                except RefusedError as error:
                    refused[index] = error
        return refused


def _with_own_ids(spec: pb.TaskSpec, task: NewTask, first_id: str) -> NewTask:
    """What tasks share whose own request ids begin with this one; `task` was made with another one."""
    spec.ClearField("request_id")
    return task._replace(request_id=first_id.encode(), envelope=spec.SerializeToString())


def _check_together(own_ids: Sequence[str], run: pb.TaskRun) -> None:
    """All go to the shard that the first one goes to."""
    if len(own_ids) != len(run.payloads):
        sentence = f"Expected one of {{field}} for each of {len(run.payloads)} payloads, but got {len(own_ids)}."
        raise RefusedError(INVALID_FIELD, sentence, "request_ids")
    automatic = [parse_automatic_key(own_id) for own_id in own_ids if own_id[:1] == "~"]
    calls = {(key.generation, key.call_key) for key in automatic if key is not None}
    if not all(own_ids) or len(calls) > 1 or (calls and (len(automatic) < len(own_ids) or None in automatic)):
        sentence = "Expected {field} that are all the producers' own, or all made up for one call, but they are not."
        raise RefusedError(INVALID_FIELD, sentence, "request_ids")
    if run.task.request_id != own_ids[0]:
        sentence = "Expected {field} to be the first of request_ids, but it is another one."
        raise RefusedError(INVALID_FIELD, sentence, "task.request_id")


def _refuse_of_one_task(spec: pb.TaskSpec) -> None:
    found = [name for name in _OF_ONE_TASK if getattr(spec, name)]
    found += [name for name in _MAY_BE_SET if spec.HasField(name)]
    if found:
        sentence = "Expected {field} only of a task that is sent by itself, but a run has it."
        raise RefusedError(INVALID_FIELD, sentence, found[0])
    if spec.request_id and not is_automatic_key(spec.request_id):
        sentence = (
            "Expected {field} of a run to be one that clients make up (~0.x.0), or the first of request_ids, but it is "
            "the producer's own."
        )
        raise RefusedError(INVALID_FIELD, sentence, "request_id")
