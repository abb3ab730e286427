"""How calls to brokers fail, and what the caller hears of it. Pure: statuses are read here, not sent."""

from holdfast.proto.v1 import tasks_pb2 as pb
from holdfast.serving.refusals import (
    INTERNAL,
    NOT_LEADER,
    OUTCOME_UNKNOWN,
    OVERLOADED,
    SHARD_NOT_FOUND,
    SHUTTING_DOWN,
    RefusedError,
    not_leader,
    outcome_unknown,
)
from holdfast.serving.statuses import status_of
from holdfast.transport.channels import CallFailedError

# Another replica may do better. A broker may also have given its replica up before the map says so.
ELSEWHERE = frozenset({NOT_LEADER, SHUTTING_DOWN, SHARD_NOT_FOUND})
# Refusals of one shard that say nothing about the others, and may pass.
PASSING = frozenset({NOT_LEADER, SHUTTING_DOWN, SHARD_NOT_FOUND, OVERLOADED, "WORKER_AT_LIMIT", "DISK_LOW"})


Failure = CallFailedError | RefusedError
FAILURES = (CallFailedError, RefusedError)


def reported(failure: CallFailedError, shard: int, *, is_unknown: bool) -> Failure:
    """What the caller hears in the end. `is_unknown`: an attempt may have been carried out, this one or an earlier.

    Typed refusals pass as they came. But a redirect never does: the caller may have no way to the brokers.
    """
    if is_unknown and not (failure.is_unknown and not failure.is_lost):
        return outcome_unknown()
    if failure.reason == NOT_LEADER:
        epoch = failure.metadata.get("epoch", "0")
        return not_leader(shard, int(epoch) if epoch.isdecimal() else 0, None)
    if failure.never_sent:
        return RefusedError(
            NOT_LEADER,
            f"Expected to reach the leader of shard {shard}, but no connection to its replicas could be made; try "
            "again in a moment.",
            retry_after_ms=200,
            metadata={"shard": str(shard)},
        )
    if failure.code == "RESOURCE_EXHAUSTED" and not failure.reason and "larger than max" not in failure.message:
        # The broker's last bound, which knows no reasons.
        return RefusedError(
            OVERLOADED, f"The broker of shard {shard} has too many calls at once; try again.", retry_after_ms=200
        )
    return failure


def status_of_failure(failure: Failure) -> tuple[str, str, bytes | None]:
    """Code, message and details as they travel."""
    if isinstance(failure, CallFailedError):
        return failure.code, failure.message, failure.details
    code, details = status_of(failure)
    return code, failure.message, details


def rejection_of(failure: Failure) -> pb.Rejection:
    """The same for one item of a batch of which other parts were, or may have been, carried out."""
    if isinstance(failure, RefusedError):
        return pb.Rejection(
            reason=failure.reason, message=failure.message, field=failure.field, retry_after_ms=failure.retry_after_ms
        )
    if failure.reason:
        return pb.Rejection(
            reason=failure.reason, message=failure.message, field=failure.metadata.get("field", ""),
            retry_after_ms=failure.retry_after_ms,
        )  # fmt: skip
    return pb.Rejection(reason=INTERNAL, message=f"The broker failed with {failure.code} and gave no reason.")


def is_passing(failure: Failure) -> bool:
    """Nothing was done, and it is a matter of that one shard now."""
    return failure.reason in PASSING


def may_pass_if_read(failure: Failure) -> bool:
    """Of a call that only reads or waits: whatever became of it, it did no harm."""
    return (isinstance(failure, CallFailedError) and failure.is_unknown) or failure.reason == OUTCOME_UNKNOWN
