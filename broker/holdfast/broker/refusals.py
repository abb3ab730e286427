"""Why a call or an item is refused before it reaches the log.

RefusedError            a typed refusal: code, reason, sentence, field, retry-after
OutcomeUnknownError     the write was handed to the log, but its fate is not known here
"""

from dataclasses import dataclass, replace

# Reasons. They are part of the wire API (ErrorInfo.reason, Rejection.reason) and never change their meaning.
MALFORMED_REQUEST = "MALFORMED_REQUEST"
MISSING_FIELD = "MISSING_FIELD"
INVALID_FIELD = "INVALID_FIELD"
OUT_OF_RANGE = "OUT_OF_RANGE"
TOO_LARGE = "TOO_LARGE"
BATCH_TOO_LARGE = "BATCH_TOO_LARGE"
QUEUE_NOT_FOUND = "QUEUE_NOT_FOUND"
OVERLOADED = "OVERLOADED"
DISK_LOW = "DISK_LOW"
WORKER_AT_LIMIT = "WORKER_AT_LIMIT"
SHUTTING_DOWN = "SHUTTING_DOWN"
OUTCOME_UNKNOWN = "OUTCOME_UNKNOWN"
INTERNAL = "INTERNAL"


@dataclass(eq=False)
class RefusedError(Exception):
    """Nothing was changed. `field` names the offending field of bad input; `limit` says what is allowed.

    Checks name a field by itself; only when one fails does the caller say where in the request it stands. So the good
    path never builds a field's full name. A `{field}` in the sentence stands for it.
    """

    reason: str
    sentence: str
    field: str = ""
    limit: str = ""
    retry_after_ms: int = 0

    @property
    def message(self) -> str:
        return self.sentence.replace("{field}", self.field)

    def within(self, parent: str) -> "RefusedError":
        """The same refusal, of a field inside `parent`."""
        return replace(self, field=f"{parent}.{self.field}" if self.field else parent)

    def __str__(self) -> str:
        return self.message


class OutcomeUnknownError(Exception):
    """The write may or may not have happened: repeat it with the same request id to find out."""


def overloaded(what: str, limit: int) -> RefusedError:
    return RefusedError(
        OVERLOADED,
        f"Expected fewer than {limit} {what}, but that many are waiting already; back off and try again.",
        limit=str(limit),
        retry_after_ms=200,
    )


def disk_low(free_bytes: int, free_bytes_min: int) -> RefusedError:
    return RefusedError(
        DISK_LOW,
        f"Expected at least {free_bytes_min} bytes of free disk, but {free_bytes} are left; free some space, service "
        "resumes by itself.",
        limit=str(free_bytes_min),
        retry_after_ms=5000,
    )


def worker_at_limit(limit: int) -> RefusedError:
    return RefusedError(
        WORKER_AT_LIMIT,
        f"Expected the worker to hold fewer than {limit} claims, but it does not; settle some first.",
        field="worker",
        limit=str(limit),
        retry_after_ms=1000,
    )


def shutting_down() -> RefusedError:
    return RefusedError(SHUTTING_DOWN, "This broker is shutting down; try again in a moment.", retry_after_ms=1000)


def outcome_unknown() -> RefusedError:
    return RefusedError(
        OUTCOME_UNKNOWN,
        "The write was on its way when this broker stopped, so it may or may not have happened; repeat it with the "
        "same request id.",
        retry_after_ms=1000,
    )


def internal_error() -> RefusedError:
    return RefusedError(INTERNAL, "Expected to answer, but the broker failed; its log has the details.")
