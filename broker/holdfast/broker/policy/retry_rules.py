"""When a task is tried again, and after which errors it is not. Pure but for the random draw given.

For each part of it a worker has the last word, then the task, then its queue, then the configuration.
"""

from collections.abc import Callable
from dataclasses import dataclass

from holdfast.broker.policy.policies import EffectivePolicy, nearest
from holdfast.broker.policy.retry_delays import EXPONENTIAL, FIXED, LINEAR, RetryDelays
from holdfast.proto.v1 import tasks_pb2 as pb

RETRY_MS_MAX = 10 * 366 * 24 * 60 * 60 * 1000  # as far as a configuration lets tasks be put off

_SHAPES = {
    pb.RETRY_SHAPE_EXPONENTIAL: EXPONENTIAL,
    pb.RETRY_SHAPE_LINEAR: LINEAR,
    pb.RETRY_SHAPE_FIXED: FIXED,
}


@dataclass(frozen=True, slots=True)
class RetryRules:
    """When one task is tried again, and after which errors it is not."""

    delays: RetryDelays
    non_retryable: frozenset[str] = frozenset()

    def forbids(self, error_type: str) -> bool:
        """Whether no attempt can help after such an error: it is listed, with all its name or the last part of it."""
        listed = self.non_retryable
        return bool(listed) and (error_type in listed or error_type.rpartition(".")[2] in listed)

    def retry_at_ms(
        self,
        now_ms: int,
        failures: int,
        draw: Callable[[], float],
        *,
        at_ms: int | None = None,
        delay_ms: int | None = None,
    ) -> int:
        """When a task may be tried again after its `failures`-th failure. `at_ms`, `delay_ms`: as its worker said, if
        it did; what is past is now."""
        if at_ms is not None:
            return max(now_ms, at_ms)
        return now_ms + (self.delays.delay_ms(failures, draw) if delay_ms is None else max(0, delay_ms))


def rules_of(policy: EffectivePolicy, envelope: bytes | None) -> RetryRules:
    """Those of a task: what its envelope says over what its queue says. Without an envelope it says nothing."""
    if envelope is None:
        return RetryRules(policy.retry, policy.non_retryable)
    spec = pb.TaskSpec.FromString(envelope)
    return merge(policy, spec.retry if spec.HasField("retry") else None)


def merge(policy: EffectivePolicy, retry: pb.RetryPolicy | None) -> RetryRules:
    """Errors that either of them lists are listed."""
    plain = policy.retry
    if retry is None:
        return RetryRules(plain, policy.non_retryable)
    delays = RetryDelays(
        int(nearest(retry.base_ms, 0, RETRY_MS_MAX)) if retry.HasField("base_ms") else plain.base_ms,
        nearest(retry.factor, 1.0, 100.0) if retry.HasField("factor") else plain.factor,
        int(nearest(retry.cap_ms, 0, RETRY_MS_MAX)) if retry.HasField("cap_ms") else plain.cap_ms,
        nearest(retry.jitter, 0.0, 1.0) if retry.HasField("jitter") else plain.jitter,
        _SHAPES.get(retry.shape, plain.shape),
    )
    return RetryRules(delays, policy.non_retryable.union(retry.non_retryable))
