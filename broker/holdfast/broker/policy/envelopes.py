"""What the broker reads in the messages that clients send along with tasks, and keeps of them."""

from holdfast.proto.v1 import tasks_pb2 as pb

BRIEF_CHARACTERS_MAX = 256


def brief_error(error: pb.TaskError) -> bytes:
    """What the list of a task's attempts keeps of an error."""
    return pb.TaskError(type=error.type, message=error.message[:BRIEF_CHARACTERS_MAX]).SerializeToString()


def retry_of(envelope: bytes | None) -> pb.RetryPolicy | None:
    """What a task says itself about being retried."""
    if envelope is None:
        return None
    spec = pb.TaskSpec.FromString(envelope)
    return spec.retry if spec.HasField("retry") else None
