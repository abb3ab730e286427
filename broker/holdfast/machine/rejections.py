"""Why the machine refuses: a code for programs and a sentence for people. A refusal changes nothing."""

from typing import NamedTuple

TASK_NOT_FOUND = "TASK_NOT_FOUND"
STALE_TOKEN = "STALE_TOKEN"
TASK_FINISHED = "TASK_FINISHED"
NOT_DEAD = "NOT_DEAD"
NOT_READY = "NOT_READY"
NOT_DUE = "NOT_DUE"
NOT_EXPIRED = "NOT_EXPIRED"
KEPT = "KEPT"
OLD_VERSION = "OLD_VERSION"
OLD_LEVEL = "OLD_LEVEL"
OUTBOX_FULL = "OUTBOX_FULL"
NOT_WAITING = "NOT_WAITING"
OUT_OF_ORDER = "OUT_OF_ORDER"


class Rejection(NamedTuple):
    code: str
    message: str


def task_not_found() -> Rejection:
    return Rejection(TASK_NOT_FOUND, "Expected a task with this id, but there is none: it never existed or was purged.")


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
