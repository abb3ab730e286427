"""What a run of tasks is to be: checked once for all of them, and each payload by itself. Pure."""

from dataclasses import dataclass

from holdfast.broker.policy import fields
from holdfast.broker.policy.policies import Policies
from holdfast.broker.policy.task_specs import TaskSpecs
from holdfast.machine.new_runs import NewRun, pack_sizes
from holdfast.machine.new_tasks import NewTask
from holdfast.proto.v1 import tasks_pb2 as pb
from holdfast.routing.sets import is_automatic_key
from holdfast.serving.refusals import INVALID_FIELD, MISSING_FIELD, RefusedError

_OF_ONE_TASK = ("payload", "tenant", "limit_key", "unique_key")  # in no run, unless it is empty
_MAY_BE_SET = ("ttl_ms", "run_at_ms", "delay_ms")  # in no run, whatever it is


@dataclass(frozen=True, slots=True)
class CheckedRun:
    """The tasks of a run that are not refused, and those that are by their places in it."""

    task: NewTask  # what they share: its envelope has no payload
    sizes: list[int]  # of the payloads
    payloads: bytes  # one behind the other
    refused: dict[int, RefusedError]

    @property
    def tasks(self) -> int:
        """How many are not refused."""
        return len(self.sizes)

    def new_run(self) -> NewRun:
        task = self.task
        return NewRun(
            task.queue,
            task.priority,
            task.request_id,
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
        )


class RunSpecs(TaskSpecs):
    """Makes runs of what producers say."""

    def new_run(self, run: pb.TaskRun, now_ms: int, policies: Policies | None = None) -> CheckedRun:
        """Refuses all of it, or only those of its payloads that are too large."""
        if not run.payloads:
            raise RefusedError(MISSING_FIELD, "Expected at least one item in {field}, but got none.", "payloads")
        try:
            _refuse_of_one_task(run.task)
            task = self.new_task(run.task, now_ms, policies)
        except RefusedError as error:
            raise error.within("task") from None
        payloads = list(run.payloads)
        sizes = list(map(len, payloads))
        refused: dict[int, RefusedError] = {}
        if max(sizes) > self._config.payload_bytes_max:
            payloads, refused = self._sort_out(payloads)
            sizes = list(map(len, payloads))
        return CheckedRun(task, sizes, b"".join(payloads), refused)

    def _sort_out(self, payloads: list[bytes]) -> tuple[list[bytes], dict[int, RefusedError]]:
        """Those that are not too large, and the others by their places."""
        fitting: list[bytes] = []
        refused: dict[int, RefusedError] = {}
        for index, payload in enumerate(payloads):
            try:
                fields.size(len(payload), f"payloads[{index}]", self._config.payload_bytes_max)
            except RefusedError as error:
                refused[index] = error
            else:
                fitting.append(payload)
        return fitting, refused


def _refuse_of_one_task(spec: pb.TaskSpec) -> None:
    found = [name for name in _OF_ONE_TASK if getattr(spec, name)]
    found += [name for name in _MAY_BE_SET if spec.HasField(name)]
    if found:
        sentence = "Expected {field} only of a task that is sent by itself, but a run has it."
        raise RefusedError(INVALID_FIELD, sentence, found[0])
    if spec.request_id and not is_automatic_key(spec.request_id):
        sentence = "Expected {field} of a run to be one that clients make up (~0.x.0), but it is the producer's own."
        raise RefusedError(INVALID_FIELD, sentence, "request_id")
