"""Errors of tasks as they are kept: the whole of one, and what the list of a task's attempts keeps of it."""

from holdfast.proto.v1 import tasks_pb2 as pb

BRIEF_CHARACTERS_MAX = 256


def brief_error(error: pb.TaskError) -> bytes:
    """What the list of a task's attempts keeps of an error."""
    return pb.TaskError(type=error.type, message=error.message[:BRIEF_CHARACTERS_MAX]).SerializeToString()


def broker_error(error_type: str, message: str) -> tuple[bytes, bytes]:
    """One that the broker itself found, and what the list of attempts keeps of it."""
    error = pb.TaskError(type=error_type, message=message)
    return error.SerializeToString(), brief_error(error)
