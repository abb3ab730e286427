"""What tests of a cluster share: raw calls, the command line, and looks at replicas. Everything here blocks."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
from google.protobuf.message import Message
from google.rpc import error_details_pb2, status_pb2

from holdfast.client import Accepted, Client, Membership, NewTask, ReplicaRole
from holdfast.proto.v1 import tasks_pb2 as pb
from tests.integration import preloaded
from tests.integration.cluster import Cluster
from tests.integration.server import DEADLINE_S, wait_until

MIB = 1024 * 1024
# A log that is kept for nobody, in files as small as they may be: who was away needs a snapshot.
NOTHING_KEPT: dict[str, Any] = {
    "segment_bytes": MIB,
    "batch_bytes_max": MIB,
    "log_keep_bytes": 0,
    "state_flush_age_seconds": 0.2,
    "state_flush_log_bytes": 64 * 1024,
}

# --- calls --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Refusal:
    """A refused call, as it is on the wire."""

    code: str
    reason: str
    metadata: dict[str, str]
    retry_after_ms: int


def raw_call(address: str, method: str, request: Message, *, shard: int | None = None) -> bytes | Refusal:
    """One call to one server: no retry, no redirect. Without a shard's number it is about shard 0."""
    metadata = () if shard is None else (("holdfast-shard", str(shard)),)
    with grpc.insecure_channel(address) as channel:
        call: grpc.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(f"/holdfast.proto.v1.{method}")
        try:
            return call(request.SerializeToString(), timeout=DEADLINE_S, wait_for_ready=True, metadata=metadata)
        except grpc.RpcError as error:
            return _refusal(error)


def _refusal(status: Any) -> Refusal:
    info, retry = error_details_pb2.ErrorInfo(), error_details_pb2.RetryInfo()
    for key, value in status.trailing_metadata() or ():
        if key == "grpc-status-details-bin":
            for detail in status_pb2.Status.FromString(value).details:
                detail.Unpack(info)
                detail.Unpack(retry)
    return Refusal(status.code().name, info.reason, dict(info.metadata), retry.retry_delay.ToMilliseconds())


def enqueue_request(queue: str, request_id: str = "") -> pb.EnqueueRequest:
    return pb.EnqueueRequest(tasks=[pb.TaskSpec(queue=queue, type="t", request_id=request_id)])


def holdfast(*arguments: str, exit_code: int = 0, or_exit_code: int | None = None) -> Any:
    """Runs a command and returns what it printed as JSON."""
    done = preloaded.run(*arguments, "--json", timeout_s=DEADLINE_S)
    assert done.returncode in (exit_code, or_exit_code), done.stderr
    return json.loads(done.stdout)


def holdfast_soon(*arguments: str) -> Any:
    """The same, once it succeeds: what shows the state of a cluster does not while a leader is being elected."""
    found: list[Any] = []

    def poll() -> bool:
        done = preloaded.run(*arguments, "--json", timeout_s=DEADLINE_S)
        if done.returncode == 0:
            found.append(json.loads(done.stdout))
        return done.returncode == 0

    wait_until(poll, f"holdfast {' '.join(arguments)} to succeed")
    return found[0]


# --- looks --------------------------------------------------------------------------------------------------------


def membership(cluster: Cluster, shard: int = 0) -> Membership:
    """As the leader has it."""

    def poll() -> list[Membership]:
        return [one.membership for one in cluster.replicas(shard).values() if one.role is ReplicaRole.LEADER]

    return wait_until(poll, f"a leader that says who belongs to shard {shard}")[0]


def identity(cluster: Cluster, name: str) -> str:
    """The identity of a node's replica as its disk has it."""
    node_id = (cluster.nodes[name].data_dir / "NODE_ID").read_text().strip()
    return f"{name}/{node_id}"


def wait_for_members(cluster: Cluster, shards: int = 1) -> None:
    """Returns once the voters are the nodes as they are now, nobody is learning, and all of them have caught up."""
    wanted = tuple(sorted(identity(cluster, name) for name in cluster.names))

    def poll() -> bool:
        now = [membership(cluster, shard) for shard in range(shards)]
        return {(one.voters, one.learners) for one in now} == {(wanted, ())}

    wait_until(poll, "the voters to be the nodes that are there", deadline_s=2 * DEADLINE_S)
    cluster.wait_whole()


def wait_caught_up(cluster: Cluster, name: str) -> None:
    """Returns once a node has applied everything that is committed now."""
    newest = max(one.commit_index for one in cluster.replicas().values())

    def poll() -> bool:
        replica = cluster.replicas().get(name)
        return replica is not None and replica.applied_index >= newest

    wait_until(poll, f"{name} to have applied entry {newest}")


def incoming_bytes(cluster: Cluster, name: str) -> int:
    """How much of a snapshot a node has stored that is still on its way."""
    found = 0
    for directory in cluster.nodes[name].data_dir.glob("state/0/incoming*"):
        for path in directory.rglob("*"):
            try:
                found += path.stat().st_size if path.is_file() else 0
            except FileNotFoundError:
                continue
    return found


# --- damage -------------------------------------------------------------------------------------------------------


def damage(cluster: Cluster, name: str, pattern: str) -> Path:
    """Changes a byte in the first half of the file with the most in it, of those like the pattern; returns the file.

    Not near the end: the end of a log that was not closed may be torn, and is cut off rightly.
    """
    assert not cluster.nodes[name].is_up
    contents = {path: path.read_bytes() for path in cluster.nodes[name].data_dir.glob(pattern)}
    path, data = max(contents.items(), key=lambda item: len(item[1].rstrip(b"\0")))
    offset = next(index for index in range(len(data.rstrip(b"\0")) // 3, len(data)) if data[index])
    with path.open("r+b") as file:
        file.seek(offset)
        file.write(bytes([data[offset] ^ 0x10]))
    return path


# --- work ---------------------------------------------------------------------------------------------------------


def fill(client: Client, queue: str, count: int, size_bytes: int) -> list[str]:
    """Enqueues this many tasks of this size, in batches; returns their ids."""
    batch = max(1, min(count, 256 * 1024 // size_bytes))
    ids: list[str] = []
    for start in range(0, count, batch):
        tasks = [NewTask(queue, "t", bytes(size_bytes)) for _ in range(min(batch, count - start))]
        ids += [outcome.task_id for outcome in client.enqueue_many(tasks) if isinstance(outcome, Accepted)]
    assert len(ids) == count
    return ids
