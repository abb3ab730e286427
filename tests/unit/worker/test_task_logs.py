"""Log lines about tasks: their fields, and what they never show."""

import logging
import time

import pytest

from holdfast.client import ClaimedTask, TaskError
from holdfast.client.worker.jobs import AttemptFailed, Job, new_job
from holdfast.client.worker.task_logs import log_failed, log_started, log_succeeded

FIELDS = {"task_id": "t-1", "task_type": "send", "queue": "mail", "attempt": 2}
FAILED = AttemptFailed(TaskError("ValueError", "no acme", "Traceback …\nValueError: no acme\n"))


@pytest.fixture
def job() -> Job:
    claim = ClaimedTask(
        task_id="t-1", token=77, queue="mail", type="send", payload=b"the-payload", lease_ms=1000, attempt=2,
        claims=1, enqueued_at_ms=0, lease_ends_s=time.monotonic() + 1,
    )  # fmt: skip
    made = new_job(claim, 1000, 1000)
    made.ran_s = 1.2345
    return made


def fields(record: logging.LogRecord) -> dict[str, object]:
    return {name: vars(record)[name] for name in (*FIELDS, "duration_ms") if name in vars(record)}


@pytest.mark.parametrize("level", [logging.DEBUG, logging.INFO, logging.ERROR])
@pytest.mark.parametrize("with_traceback", [False, True])
def test_a_failed_attempt(job: Job, level: int, with_traceback: bool, caplog: pytest.LogCaptureFixture) -> None:
    """Its text may hold what the task was about: it is shown with the traceback only, and to those who debug."""
    caplog.set_level(level, "holdfast.worker")
    log_failed(job, FAILED, with_traceback=with_traceback)
    if level == logging.ERROR:
        assert caplog.records == []
        return
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert fields(record) == FIELDS | {"duration_ms": 1234.5}
    assert vars(record)["error_type"] == "ValueError"
    is_shown = with_traceback or level == logging.DEBUG
    assert ("no acme" in logging.Formatter().format(record)) is is_shown
    assert "the-payload" not in caplog.text


def test_tasks_that_go_well_are_for_those_who_debug(job: Job, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "holdfast.worker")
    log_started(job)
    log_succeeded(job)
    assert caplog.records == []
    caplog.set_level(logging.DEBUG, "holdfast.worker")
    log_started(job)
    log_succeeded(job)
    began, ended = caplog.records
    assert fields(began) == FIELDS
    assert fields(ended) == FIELDS | {"duration_ms": 1234.5}
    assert "the-payload" not in caplog.text
    assert "77" not in caplog.text
