"""Refusals as gRPC statuses: google.rpc.ErrorInfo with a machine-readable reason, RetryInfo where waiting can help."""

from google.rpc import code_pb2, error_details_pb2, status_pb2

from holdfast.common.metadata import DOMAIN
from holdfast.serving import refusals
from holdfast.serving.refusals import RefusedError

_CODES = {
    refusals.MALFORMED_REQUEST: "INVALID_ARGUMENT",
    refusals.MISSING_FIELD: "INVALID_ARGUMENT",
    refusals.INVALID_FIELD: "INVALID_ARGUMENT",
    refusals.OUT_OF_RANGE: "INVALID_ARGUMENT",
    refusals.TOO_LARGE: "INVALID_ARGUMENT",
    refusals.BATCH_TOO_LARGE: "INVALID_ARGUMENT",
    refusals.QUEUE_NOT_FOUND: "NOT_FOUND",
    refusals.WORKER_NOT_FOUND: "NOT_FOUND",
    refusals.SHARD_NOT_FOUND: "NOT_FOUND",
    refusals.PROBE_NOT_FOUND: "NOT_FOUND",
    refusals.BACKUP_NOT_FOUND: "NOT_FOUND",
    refusals.RESTORE_REFUSED: "FAILED_PRECONDITION",
    refusals.CHANGE_REFUSED: "FAILED_PRECONDITION",
    refusals.OVERLOADED: "RESOURCE_EXHAUSTED",
    refusals.DISK_LOW: "RESOURCE_EXHAUSTED",
    refusals.WORKER_AT_LIMIT: "RESOURCE_EXHAUSTED",
    refusals.NOT_LEADER: "UNAVAILABLE",
    refusals.SHUTTING_DOWN: "UNAVAILABLE",
    refusals.STALE_MAP: "UNAVAILABLE",
    refusals.WRONG_SHARD: "UNAVAILABLE",
    refusals.OUTCOME_UNKNOWN: "UNAVAILABLE",
    refusals.NO_CLUSTER: "FAILED_PRECONDITION",
    refusals.VERSION_TOO_OLD: "FAILED_PRECONDITION",
    refusals.BAD_RECORD: "FAILED_PRECONDITION",
    refusals.CLUSTER_EXISTS: "ALREADY_EXISTS",
    refusals.NOT_ENOUGH_NODES: "FAILED_PRECONDITION",
    refusals.NODE_NOT_FOUND: "NOT_FOUND",
    refusals.PLAN_NOT_FOUND: "NOT_FOUND",
    refusals.PLAN_REFUSED: "FAILED_PRECONDITION",
    refusals.PLAN_UNDER_WAY: "FAILED_PRECONDITION",
    refusals.ETCD_UNAVAILABLE: "UNAVAILABLE",
    refusals.CONFLICT: "ABORTED",
    refusals.INTERNAL: "INTERNAL",
    refusals.UNAUTHENTICATED: "UNAUTHENTICATED",
    refusals.PERMISSION_DENIED: "PERMISSION_DENIED",
    # Of the machine, which this does not know.
    "TASK_NOT_FOUND": "NOT_FOUND",
    "NOT_DEAD": "FAILED_PRECONDITION",
    "SCHEDULE_NOT_FOUND": "NOT_FOUND",
    "SCHEDULE_EXISTS": "ALREADY_EXISTS",
    "REQUEST_ID_CONFLICT": "FAILED_PRECONDITION",
}


def status_of(refused: RefusedError) -> tuple[str, bytes]:
    """The name of a refusal's gRPC code, and its details as they travel in the trailing metadata."""
    code = _CODES[refused.reason]
    status = status_pb2.Status(code=code_pb2.Code.Value(code), message=refused.message)
    metadata = {**refused.metadata, "field": refused.field, "limit": refused.limit}
    info = error_details_pb2.ErrorInfo(
        reason=refused.reason, domain=DOMAIN, metadata={name: value for name, value in metadata.items() if value}
    )
    status.details.add().Pack(info)
    if refused.field:
        violation = error_details_pb2.BadRequest.FieldViolation(field=refused.field, description=refused.message)
        status.details.add().Pack(error_details_pb2.BadRequest(field_violations=[violation]))
    if refused.retry_after_ms:
        retry = error_details_pb2.RetryInfo()
        retry.retry_delay.FromMilliseconds(refused.retry_after_ms)
        status.details.add().Pack(retry)
    return code, status.SerializeToString()
