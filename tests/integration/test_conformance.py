"""Every method of the wire API, called over gRPC and in frames with the same requests in the same order: answers and
refusals must be the same. A method without a case fails.
"""

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import grpc.aio
import pytest
from google.protobuf.json_format import MessageToDict
from google.protobuf.message import Message

from holdfast.common.metadata import FRAMES_KEY
from holdfast.frames.codec import Frame, FrameReader
from holdfast.frames.hello import hello, read_welcome
from holdfast.proto.v1 import backups_pb2, cluster_pb2, queues_pb2, schedules_pb2, shards_pb2
from holdfast.proto.v1 import tasks_pb2 as pb
from holdfast.transport.frame_channels import AllRoom
from tests.integration.map_cluster import MapCluster
from tests.integration.server import ServerProcess
from tests.integration.transports import PATHS, RESPONSES, Way

UNKNOWN_TASK = "01984f6e-0000-8000-8000-000000000001"  # well formed, but nobody has it
NOBODY = "nobody"
# What no two runs have in common.
VOLATILE = frozenset(
    {"id", "task_id", "token", "secret", "last_task_id", "next_page_token", "version", "revision", "latencies"}
    | {"index", "commit_index", "applied_index", "last_index", "lag", "log_bytes", "state_bytes", "state_hash"}
)


@dataclass
class Story:
    """One way's own queue, and what it was told of its tasks so far."""

    queue: str
    ids: list[str] = field(default_factory=list)
    claims: list[pb.ClaimRef] = field(default_factory=list)

    def learn(self, answer: Message) -> None:
        if isinstance(answer, pb.EnqueueResponse):
            self.ids += [outcome.accepted.task_id for outcome in answer.outcomes]
        if isinstance(answer, pb.ReserveResponse):
            self.claims += [
                pb.ClaimRef(task_id=claim.task_id, token=claim.token, secret=claim.secret) for claim in answer.claims
            ]

    @property
    def schedule(self) -> dict[str, Any]:
        return {"queue": self.queue, "name": "nightly"}


def spec(story: Story, **fields: Any) -> pb.TaskSpec:
    return pb.TaskSpec(queue=story.queue, type="t", payload=b"{}", **fields)


def reserve(story: Story) -> pb.ReserveRequest:
    return pb.ReserveRequest(queues=[story.queue], max_tasks=1, lease_ms=60_000, wait_ms=5000, worker="w")


def failing(story: Story) -> pb.FailRequest:
    error = pb.TaskError(type="Broken", message="for good")
    return pb.FailRequest(items=[pb.FailItem(claim=story.claims[-1], error=error, dead=True)])


def schedule_of(story: Story) -> schedules_pb2.ScheduleSpec:
    return schedules_pb2.ScheduleSpec(expression="0 3 1 1 *", time_zone="UTC", task=pb.TaskSpec(type="t"))


Make = Callable[[Story], Message]
# The whole of what a queue's users and operators do, in this order, with answers.
LIFE: list[tuple[str, Make]] = [
    ("Enqueue", lambda story: pb.EnqueueRequest(tasks=[spec(story, request_id=f"r{n}") for n in range(4)])),
    ("Enqueue", lambda story: pb.EnqueueRequest(tasks=[spec(story, request_id="r0")])),
    ("GetTask", lambda story: pb.GetTaskRequest(task_id=story.ids[3])),
    ("UpdateTasks", lambda story: pb.UpdateTasksRequest(items=[pb.UpdateItem(task_id=story.ids[3], priority=9)])),
    ("Cancel", lambda story: pb.CancelRequest(task_ids=[story.ids[3], UNKNOWN_TASK, "no id"])),
    ("ListTasks", lambda story: queues_pb2.ListTasksRequest(queue=story.queue)),
    ("AwaitTasks", lambda story: pb.AwaitTasksRequest(queues=[story.queue], wait_ms=5000)),
    ("Reserve", reserve),
    ("Extend", lambda story: pb.ExtendRequest(items=[pb.ExtendItem(claim=story.claims[-1], lease_ms=90_000)])),
    ("Ack", lambda story: pb.AckRequest(items=[pb.AckItem(claim=story.claims[-1], result=b"done")])),
    ("Ack", lambda story: pb.AckRequest(items=[pb.AckItem(claim=pb.ClaimRef(task_id=UNKNOWN_TASK, token=1))])),
    ("WaitTasks", lambda story: pb.WaitTasksRequest(task_ids=[story.ids[0], UNKNOWN_TASK], wait_ms=5000)),
    ("Reserve", reserve),
    ("Release", lambda story: pb.ReleaseRequest(claims=[story.claims[-1]])),
    ("Reserve", reserve),
    ("Fail", failing),
    ("Fail", failing),
    ("ListDeadLetters", lambda story: pb.ListDeadLettersRequest(queue=story.queue)),
    ("GetDeadLetter", lambda story: pb.GetDeadLetterRequest(task_id=story.claims[-1].task_id)),
    ("RetryDeadLetters", lambda story: pb.RetryDeadLettersRequest(task_ids=[story.claims[-1].task_id])),
    ("Reserve", reserve),
    ("Fail", failing),
    (
        "DiscardDeadLetters",
        lambda story: pb.DiscardDeadLettersRequest(task_ids=[story.claims[-1].task_id], by="me", note="why"),
    ),
    ("ListDiscards", lambda story: pb.ListDiscardsRequest(queue=story.queue)),
    ("QueueStats", lambda story: pb.QueueStatsRequest(queues=[story.queue])),
    ("PurgeQueue", lambda story: queues_pb2.PurgeQueueRequest(queue=story.queue)),
    (
        "PutSchedule",
        lambda story: schedules_pb2.PutScheduleRequest(**story.schedule, spec=schedule_of(story), must_be_new=True),
    ),
    ("GetSchedule", lambda story: schedules_pb2.GetScheduleRequest(**story.schedule)),
    ("ListSchedules", lambda story: schedules_pb2.ListSchedulesRequest(queue=story.queue)),
    ("PauseSchedule", lambda story: schedules_pb2.PauseScheduleRequest(**story.schedule, paused=True)),
    ("TriggerSchedule", lambda story: schedules_pb2.TriggerScheduleRequest(**story.schedule, request_id="now")),
    ("PreviewSchedule", lambda _: schedules_pb2.PreviewScheduleRequest(expression="0 3 1 1 *", count=2, after_ms=1)),
    ("DeleteSchedule", lambda story: schedules_pb2.DeleteScheduleRequest(**story.schedule)),
    (
        "Heartbeat",
        lambda story: queues_pb2.HeartbeatRequest(
            worker=f"worker of {story.queue}", state=queues_pb2.WORKER_STATE_RUNNING, slots=3, queues=[story.queue]
        ),
    ),
    (
        "SignalWorker",
        lambda story: queues_pb2.SignalWorkerRequest(
            worker=f"worker of {story.queue}", desired=queues_pb2.WORKER_STATE_QUIET
        ),
    ),
    ("ListQueues", lambda _: pb.ListQueuesRequest(page_size=1, page_token=NOBODY)),
    ("ListWorkers", lambda _: queues_pb2.ListWorkersRequest(page_size=1)),
    ("DescribeNode", lambda _: shards_pb2.DescribeNodeRequest()),
    ("FindLeader", lambda _: shards_pb2.FindLeaderRequest(shard=0)),
    ("ProbeShard", lambda _: shards_pb2.ProbeShardRequest(shard=0)),
    ("GetTopology", lambda _: cluster_pb2.GetTopologyRequest(queues=[NOBODY])),
]
# What would change a cluster for good is asked for in vain; a broker by itself has none. What matters is that both say
# the same, answer or refusal.
OPERATORS: list[tuple[str, Make]] = [
    ("TransferLeadership", lambda _: shards_pb2.TransferLeadershipRequest(shard=0, to=NOBODY)),
    ("ReadProbe", lambda _: shards_pb2.ReadProbeRequest(shard=0, index=1 << 60)),
    ("DescribeCluster", lambda _: cluster_pb2.DescribeClusterRequest()),
    ("InitCluster", lambda _: cluster_pb2.InitClusterRequest(shards=7, replication=1)),
    ("ListQueueSettings", lambda _: cluster_pb2.ListQueueSettingsRequest(queues=["unknown"])),
    (
        "SetQueue",
        lambda _: cluster_pb2.SetQueueRequest(queue=NOBODY, policy=cluster_pb2.QueuePolicy(max_attempts=3)),
    ),
    ("DrainNode", lambda _: cluster_pb2.DrainNodeRequest(node=NOBODY, drain=True)),
    ("RemoveNode", lambda _: cluster_pb2.RemoveNodeRequest(node=NOBODY)),
    ("HandOverNode", lambda _: cluster_pb2.HandOverNodeRequest(node=NOBODY)),
    ("MakePlan", lambda _: cluster_pb2.MakePlanRequest(balance=True)),
    ("StartPlan", lambda _: cluster_pb2.StartPlanRequest()),
    ("AdvancePlan", lambda _: cluster_pb2.AdvancePlanRequest()),
    ("CancelPlan", lambda _: cluster_pb2.CancelPlanRequest()),
    ("SetRebalancing", lambda _: cluster_pb2.SetRebalancingRequest()),
    ("GetAccess", lambda _: cluster_pb2.GetAccessRequest()),
    ("SetAccess", lambda _: cluster_pb2.SetAccessRequest(rules=b"{}")),
    ("ReadMap", lambda _: backups_pb2.ReadMapRequest()),
    ("BeginBackup", lambda _: backups_pb2.BeginBackupRequest(shard=0, id=7)),
    ("CopyShard", lambda _: backups_pb2.CopyShardRequest(shard=0, id=8)),
    ("ResumeDeliveries", lambda _: backups_pb2.ResumeDeliveriesRequest(shard=0, id=8)),
    ("ListBackupFiles", lambda _: backups_pb2.ListBackupFilesRequest(shard=0, id=8)),
    ("ReadBackupFile", lambda _: backups_pb2.ReadBackupFileRequest(shard=0, id=8, name="none", length=1)),
    ("EndBackup", lambda _: backups_pb2.EndBackupRequest(shard=0, id=7)),
    ("RestoreCluster", lambda _: backups_pb2.RestoreClusterRequest()),
    ("RestoreQueues", lambda _: backups_pb2.RestoreQueuesRequest()),
    ("RestoreShard", lambda _: backups_pb2.RestoreShardRequest()),
]


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    process = ServerProcess(tmp_path_factory.mktemp("conformance")).start()
    yield process
    process.close()


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MapCluster]:
    with MapCluster(tmp_path_factory.mktemp("conformance-cluster"), size=1, shards=2, replication=1) as running:
        yield running.start()


@pytest.fixture(params=["broker", "router"])
def address(request: pytest.FixtureRequest) -> str:
    served: ServerProcess | MapCluster = request.getfixturevalue("broker" if request.param == "broker" else "cluster")
    return served.address


def as_told(value: Any, story: Story) -> Any:
    """Without what differs from one run to the next: ids, and moments."""
    if isinstance(value, dict):
        return {
            name: as_told(item, story)
            for name, item in value.items()
            if name not in VOLATILE and not name.endswith(("_ms", "_per_second"))
        }
    if isinstance(value, list):
        return [as_told(item, story) for item in value]
    if isinstance(value, str):
        for task_id in story.ids:
            value = value.replace(task_id, "the task")
        return value.replace(story.queue, "the queue")
    return value


async def tell(way: Way, script: list[tuple[str, Make]]) -> list[tuple[str, Any]]:
    """What each call of the script was answered."""
    story = Story(f"conformance-{way.transport}")
    told: list[tuple[str, Any]] = []
    for method, make in script:
        answer = await way.call(method, make(story))
        if isinstance(answer, bytes):
            message = RESPONSES[method].FromString(answer)
            story.learn(message)
            told.append((method, as_told(MessageToDict(message, preserving_proto_field_name=True), story)))
        else:
            told.append((method, as_told(list(answer), story)))
    return told


async def over_both(address: str, script: list[tuple[str, Make]]) -> list[tuple[str, Any]]:
    told = []
    for transport in ("grpc", "frames"):
        async with Way(address, transport) as way:
            told.append(await tell(way, script))
    for over_grpc, in_frames in zip(*told, strict=True):
        assert in_frames == over_grpc
    return told[1]


async def test_the_life_of_a_queue_is_answered_alike(address: str) -> None:
    told = await over_both(address, LIFE)
    refused = [(method, answer) for method, answer in told if not isinstance(answer, dict)]
    assert not refused


async def test_operators_are_answered_alike(address: str) -> None:
    await over_both(address, OPERATORS)


async def test_every_method_that_a_server_has_in_frames_is_called(address: str) -> None:
    called = {method for method, _ in (*LIFE, *OPERATORS)}
    served = {path.rpartition("/")[2] for path in await methods_of(address)}
    assert called == served


async def test_every_method_of_grpc_is_served_in_frames(address: str) -> None:
    """But for health and reflection, which are not ours."""
    assert set(await methods_of(address)) == set(PATHS.values())


async def methods_of(address: str) -> list[str]:
    """As a server's welcome names them."""
    async with grpc.aio.insecure_channel(address) as channel:
        ask: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(PATHS["ListQueues"])
        call = ask(b"", metadata=((FRAMES_KEY, "?"),))
        await call
        [where] = [value for key, value in await call.trailing_metadata() if key == FRAMES_KEY]
    reader, writer = await asyncio.open_connection("127.0.0.1", int(str(where).split(" ")[0]))
    writer.write(hello("", "test"))
    frames, found = FrameReader(1 << 20, AllRoom()), list[Frame]()
    async with asyncio.timeout(10):
        while not found:
            found = frames.feed(await reader.read(1 << 16))
    writer.close()
    assert found[0].body is not None
    return list(read_welcome(found[0].body, "").methods)
