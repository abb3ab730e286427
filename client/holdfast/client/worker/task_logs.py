"""Log lines about tasks: with fields that programs can read, and the traceback of a failed attempt.

The fields are those that lines of handlers get from `TaskLogFilter`, so that one search finds everything about a task.
Never the payload, the result or a token.
"""

import logging

from holdfast.client.context import TASK_FIELDS
from holdfast.client.worker.jobs import AttemptFailed, Job

log = logging.getLogger("holdfast.worker")


def fields_of(job: Job, **more: object) -> dict[str, object]:
    """For the `extra` of a log line."""
    claim = job.claim
    values = claim.task_id, claim.type, claim.queue, claim.attempt
    return dict(zip(TASK_FIELDS, values, strict=True)) | more


def log_started(job: Job) -> None:
    if log.isEnabledFor(logging.DEBUG):
        log.debug("Task %s (%s) begins.", job.claim.task_id, job.claim.type, extra=fields_of(job))


def log_succeeded(job: Job) -> None:
    if log.isEnabledFor(logging.DEBUG):
        more = fields_of(job, duration_ms=_duration_ms(job))
        log.debug("Task %s (%s) has succeeded.", job.claim.task_id, job.claim.type, extra=more)


def log_failed(job: Job, outcome: AttemptFailed, *, with_traceback: bool) -> None:
    """The traceback as the text of the record's exception, which every formatter shows as such."""
    if not log.isEnabledFor(logging.WARNING):
        return
    claim, error = job.claim, outcome.error
    more = fields_of(job, duration_ms=_duration_ms(job), error_type=error.type)
    text = "Task %s (%s), attempt %d: failed with %s. `holdfast task get %s` shows more."
    arguments = (claim.task_id, claim.type, claim.attempt, error.type, claim.task_id)
    record = log.makeRecord(log.name, logging.WARNING, __file__, 0, text, arguments, None, "log_failed", more)
    if with_traceback or log.isEnabledFor(logging.DEBUG):
        record.exc_text = (error.traceback or error.message).rstrip("\n")
    log.handle(record)


def log_dead(job: Job) -> None:
    log.warning("Task %s (%s) is now a dead letter.", job.claim.task_id, job.claim.type, extra=fields_of(job))


def log_late(job: Job, why: str) -> None:
    text = "The outcome of task %s (%s) came too late: %s"
    log.warning(text, job.claim.task_id, job.claim.type, why, extra=fields_of(job))


def _duration_ms(job: Job) -> float:
    """How long the handler ran."""
    return round(job.ran_s * 1000, 1)
