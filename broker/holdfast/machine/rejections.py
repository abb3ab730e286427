"""Why the machine refuses: a code for programs and a sentence for people. A refusal changes nothing."""

from typing import NamedTuple

TASK_NOT_FOUND = "TASK_NOT_FOUND"
STALE_TOKEN = "STALE_TOKEN"
TASK_FINISHED = "TASK_FINISHED"
NOT_DEAD = "NOT_DEAD"
NOT_READY = "NOT_READY"
NOT_ALONE = "NOT_ALONE"
NOT_DUE = "NOT_DUE"
NOT_EXPIRED = "NOT_EXPIRED"
KEPT = "KEPT"
OLD_VERSION = "OLD_VERSION"
OLD_LEVEL = "OLD_LEVEL"
OUTBOX_FULL = "OUTBOX_FULL"
NOT_WAITING = "NOT_WAITING"
OUT_OF_ORDER = "OUT_OF_ORDER"
REQUEST_ID_CONFLICT = "REQUEST_ID_CONFLICT"
START_TOO_LATE = "START_TOO_LATE"
TASK_NOT_WAITING = "TASK_NOT_WAITING"
SCHEDULE_NOT_FOUND = "SCHEDULE_NOT_FOUND"
SCHEDULE_EXISTS = "SCHEDULE_EXISTS"
SCHEDULE_CHANGED = "SCHEDULE_CHANGED"


class Rejection(NamedTuple):
    code: str
    message: str
    place: int = 0  # which of an ack's follow-ups is to blame, if one is


def task_not_found() -> Rejection:
    return Rejection(
        TASK_NOT_FOUND, "Expected a task with this id, but this shard has none: it never had, or it was purged."
    )


def stale_token(state: str) -> Rejection:
    return Rejection(
        STALE_TOKEN, f"Expected the token of the current claim, but that claim has ended: the task is {state}."
    )


def task_finished(state: str) -> Rejection:
    return Rejection(TASK_FINISHED, f"Expected a task that is not finished, but it is {state}.")


def not_dead(state: str) -> Rejection:
    return Rejection(NOT_DEAD, f"Expected a dead task, but it is {state}.")


def not_ready(state: str) -> Rejection:
    return Rejection(NOT_READY, f"Expected a ready task, but it is {state}.")


def not_alone() -> Rejection:
    return Rejection(NOT_ALONE, "Expected a suspect to be claimed alone, and only suspects so, but it is otherwise.")


def not_due() -> Rejection:
    return Rejection(NOT_DUE, "Expected a delayed or retrying task whose time has come, but it is not.")


def not_expired() -> Rejection:
    return Rejection(NOT_EXPIRED, "Expected a claim whose lease has run out, but it has not.")


def kept() -> Rejection:
    return Rejection(KEPT, "Expected a row whose retention has passed, but it is still to be kept.")


def old_version(version: int) -> Rejection:
    return Rejection(OLD_VERSION, f"Expected settings newer than version {version}, but they are not.")


def old_level(level: int) -> Rejection:
    return Rejection(OLD_LEVEL, f"Expected a level above {level}, but it is not.")


def outbox_full(destination: int, limit: int) -> Rejection:
    return Rejection(
        OUTBOX_FULL,
        f"Expected fewer than {limit} tasks on their way to shard {destination}, but that shard does not take them; "
        "try again later.",
    )


def not_waiting() -> Rejection:
    return Rejection(NOT_WAITING, "Expected the sequence of a task on its way, but it is none.")


def out_of_order(last: int) -> Rejection:
    return Rejection(OUT_OF_ORDER, f"Expected the task behind number {last} next, but got a later one.")


def request_id_conflict(place: int = 0) -> Rejection:
    return Rejection(
        REQUEST_ID_CONFLICT,
        "Expected the task that this request_id stood for before, but this one has another type, payload, headers, "
        "tenant or key; use another request_id for another task.",
        place,
    )


def start_too_late() -> Rejection:
    return Rejection(START_TOO_LATE, "Expected a task that may still be started, but its time to live has passed.")


def task_not_waiting(state: str) -> Rejection:
    return Rejection(TASK_NOT_WAITING, f"Expected a task that waits, but it is {state}.")


def schedule_not_found() -> Rejection:
    return Rejection(SCHEDULE_NOT_FOUND, "Expected a schedule of this queue and name, but there is none.")


def schedule_exists() -> Rejection:
    return Rejection(SCHEDULE_EXISTS, "Expected no schedule of this queue and name yet, but there is one.")


def schedule_changed(version: int) -> Rejection:
    return Rejection(
        SCHEDULE_CHANGED, f"Expected the schedule as it was read, but it is at version {version}; try again."
    )
