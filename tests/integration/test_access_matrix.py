"""Every method of the wire API, called by everybody who must not: over both transports, at a broker and through a
router.

What is expected is written down here for each method, and not computed from what servers go by.
"""

import asyncio
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest
from google.protobuf.message import Message

from holdfast.access.editing import revoke_token
from holdfast.client import Client, NewTask, Schedule
from holdfast.common.metadata import AUTHORIZATION_KEY, FRAMES_KEY
from holdfast.proto.v1 import backups_pb2, cluster_pb2, queues_pb2, schedules_pb2, shards_pb2
from holdfast.proto.v1 import tasks_pb2 as pb
from holdfast.proto.v1.method_rules import RULES
from holdfast.router.methods import ALL
from holdfast.transport.channels import CallFailedError
from holdfast.transport.grpc_channels import GrpcChannels
from holdfast.transport.negotiated import NegotiatedChannels
from tests.integration.access import Access, close_with, make_secret
from tests.integration.map_cluster import MapCluster
from tests.integration.server import DEADLINE_S, ServerProcess
from tests.long import IS_LONG

METHODS = {f"{method.service}.{method.name}": method for method in ALL}
LOST = ("UNAUTHENTICATED",)
DENIED = ("PERMISSION_DENIED",)
HIDDEN = ("TASK_NOT_FOUND", "SCHEDULE_NOT_FOUND")
NOTHING = "an answer that tells of nothing"
RUNNING = queues_pb2.WORKER_STATE_RUNNING
# Of tokens that nobody is let in with: all of them in `make test-long`.
NO_TOKENS = ["none", "expired", "unknown", "revoked"] if IS_LONG else ["none", "revoked"]

# Who may not do a thing because of a right: by the rights of a worker, and of an operator.
OF_WORKERS = {
    "Tasks.Reserve",
    "Tasks.AwaitTasks",
    "Tasks.Ack",
    "Tasks.Fail",
    "Tasks.Extend",
    "Tasks.Release",
    "Queues.Heartbeat",
}
OF_ANYBODY = {"Shards.FindLeader", "Cluster.GetTopology"}
OF_OPERATORS = {
    "Tasks.Enqueue", "Tasks.Cancel", "Tasks.UpdateTasks", "Tasks.GetTask", "Tasks.WaitTasks", "Tasks.QueueStats",
    "Tasks.ListQueues", "DeadLetters.ListDeadLetters", "DeadLetters.GetDeadLetter", "DeadLetters.RetryDeadLetters",
    "DeadLetters.DiscardDeadLetters", "DeadLetters.ListDiscards", "Queues.PurgeQueue", "Queues.ListWorkers",
    "Queues.SignalWorker", "Queues.ListTasks", "Schedules.PutSchedule", "Schedules.GetSchedule",
    "Schedules.ListSchedules", "Schedules.DeleteSchedule", "Schedules.PauseSchedule", "Schedules.TriggerSchedule",
    "Schedules.PreviewSchedule", "Shards.DescribeNode", "Cluster.DescribeCluster", "Cluster.ListQueueSettings",
    "Cluster.SetQueue",
}  # fmt: skip
OF_ADMINISTRATORS = {
    "Shards.TransferLeadership", "Shards.ProbeShard", "Shards.ReadProbe", "Cluster.InitCluster", "Cluster.DrainNode",
    "Cluster.RemoveNode", "Cluster.HandOverNode", "Cluster.MakePlan", "Cluster.StartPlan", "Cluster.AdvancePlan",
    "Cluster.CancelPlan", "Cluster.SetRebalancing", "Cluster.GetAccess", "Cluster.SetAccess", "Backups.ReadMap",
    "Backups.BeginBackup", "Backups.CopyShard", "Backups.ResumeDeliveries", "Backups.ListBackupFiles",
    "Backups.ReadBackupFile", "Backups.EndBackup", "Backups.RestoreCluster", "Backups.RestoreQueues",
    "Backups.RestoreShard",
}  # fmt: skip
# What a caller hears who may do all but administer, but on another queue, or for another tenant of this one.
BY_ID = {
    "Tasks.Ack", "Tasks.Fail", "Tasks.Extend", "Tasks.Release", "Tasks.Cancel", "Tasks.UpdateTasks", "Tasks.GetTask",
    "Tasks.WaitTasks", "DeadLetters.GetDeadLetter", "DeadLetters.RetryDeadLetters", "DeadLetters.DiscardDeadLetters",
}  # fmt: skip
SCHEDULES = {f"Schedules.{name}Schedule" for name in ("Get", "Delete", "Pause", "Trigger", "Preview")}
LISTS = {"Tasks.ListQueues", "Queues.ListWorkers"}
LISTS_OF_A_QUEUE = {
    "Queues.ListTasks", "DeadLetters.ListDeadLetters", "DeadLetters.ListDiscards", "Schedules.ListSchedules",
}  # fmt: skip


def of_another_queue(name: str) -> object:
    if name in BY_ID:
        return HIDDEN
    return NOTHING if name in LISTS or name == "Shards.FindLeader" else DENIED


def of_another_tenant(name: str) -> object:
    if name in BY_ID | SCHEDULES:
        return HIDDEN
    return NOTHING if name in LISTS | LISTS_OF_A_QUEUE | OF_ANYBODY else DENIED


def test_every_method_is_in_the_matrix() -> None:
    groups = (OF_WORKERS, OF_ANYBODY, OF_OPERATORS, OF_ADMINISTRATORS)
    assert set().union(*groups) == METHODS.keys()
    assert sum(map(len, groups)) == len(METHODS) == len(RULES), "each is in one of them"


class There(NamedTuple):
    """What there is, of tenant acme in queue q: nobody else may hear of it."""

    task_id: str
    claim: pb.ClaimRef

    def request(self, name: str) -> Message:
        made = self._of_tasks(name) or self._of_queues(name) or _of_the_cluster(name)
        return made if made is not None else METHODS[name].request()

    def _of_tasks(self, name: str) -> Message | None:
        ids, ref = [self.task_id], self.claim
        requests: dict[str, Message] = {
            "Tasks.Ack": pb.AckRequest(items=[pb.AckItem(claim=ref)]),
            "Tasks.Fail": pb.FailRequest(items=[pb.FailItem(claim=ref)]),
            "Tasks.Extend": pb.ExtendRequest(items=[pb.ExtendItem(claim=ref, lease_ms=5000)]),
            "Tasks.Release": pb.ReleaseRequest(claims=[ref]),
            "Tasks.Cancel": pb.CancelRequest(task_ids=ids),
            "Tasks.UpdateTasks": pb.UpdateTasksRequest(items=[pb.UpdateItem(task_id=self.task_id, priority=9)]),
            "Tasks.GetTask": pb.GetTaskRequest(task_id=self.task_id),
            "Tasks.WaitTasks": pb.WaitTasksRequest(task_ids=ids),
            "DeadLetters.GetDeadLetter": pb.GetDeadLetterRequest(task_id=self.task_id),
            "DeadLetters.RetryDeadLetters": pb.RetryDeadLettersRequest(task_ids=ids),
            "DeadLetters.DiscardDeadLetters": pb.DiscardDeadLettersRequest(task_ids=ids),
        }
        return requests.get(name)

    @staticmethod
    def _of_queues(name: str) -> Message | None:
        spec = schedules_pb2.ScheduleSpec(expression="@daily", task=pb.TaskSpec(type="t", tenant="acme"))
        requests: dict[str, Message] = {
            "Tasks.Enqueue": pb.EnqueueRequest(tasks=[pb.TaskSpec(queue="q", type="t", tenant="acme")]),
            "Tasks.Reserve": pb.ReserveRequest(queues=["q"], max_tasks=1, lease_ms=5000),
            "Tasks.AwaitTasks": pb.AwaitTasksRequest(queues=["q"]),
            "Tasks.QueueStats": pb.QueueStatsRequest(queues=["q"]),
            "DeadLetters.ListDeadLetters": pb.ListDeadLettersRequest(queue="q"),
            "DeadLetters.ListDiscards": pb.ListDiscardsRequest(queue="q"),
            "Queues.PurgeQueue": queues_pb2.PurgeQueueRequest(queue="q", dry_run=True),
            "Queues.Heartbeat": queues_pb2.HeartbeatRequest(
                worker="w", state=queues_pb2.WORKER_STATE_RUNNING, slots=1, queues=["q"]
            ),
            "Queues.SignalWorker": queues_pb2.SignalWorkerRequest(worker="w", desired=queues_pb2.WORKER_STATE_RUNNING),
            "Queues.ListTasks": queues_pb2.ListTasksRequest(queue="q"),
            "Schedules.PutSchedule": schedules_pb2.PutScheduleRequest(queue="q", name="s", spec=spec),
            "Schedules.GetSchedule": schedules_pb2.GetScheduleRequest(queue="q", name="s"),
            "Schedules.ListSchedules": schedules_pb2.ListSchedulesRequest(queue="q"),
            "Schedules.DeleteSchedule": schedules_pb2.DeleteScheduleRequest(queue="q", name="s"),
            "Schedules.PauseSchedule": schedules_pb2.PauseScheduleRequest(queue="q", name="s"),
            "Schedules.TriggerSchedule": schedules_pb2.TriggerScheduleRequest(queue="q", name="s", request_id="r"),
            "Schedules.PreviewSchedule": schedules_pb2.PreviewScheduleRequest(queue="q", name="s"),
            "Cluster.GetTopology": cluster_pb2.GetTopologyRequest(queues=["q"]),
            "Cluster.ListQueueSettings": cluster_pb2.ListQueueSettingsRequest(queues=["q"]),
            "Cluster.SetQueue": cluster_pb2.SetQueueRequest(queue="q"),
        }
        return requests.get(name)


def _of_the_cluster(name: str) -> Message | None:
    """Such as can do no harm if somebody is let in who should not be."""
    nobody = "nobody"
    requests: dict[str, Message] = {
        "Shards.TransferLeadership": shards_pb2.TransferLeadershipRequest(shard=0, to=nobody),
        "Shards.ReadProbe": shards_pb2.ReadProbeRequest(shard=0, index=1),
        "Cluster.InitCluster": cluster_pb2.InitClusterRequest(shards=7, replication=1),
        "Cluster.DrainNode": cluster_pb2.DrainNodeRequest(node=nobody, drain=True),
        "Cluster.RemoveNode": cluster_pb2.RemoveNodeRequest(node=nobody),
        "Cluster.HandOverNode": cluster_pb2.HandOverNodeRequest(node=nobody),
        "Cluster.MakePlan": cluster_pb2.MakePlanRequest(leaders=True),
        "Cluster.CancelPlan": cluster_pb2.CancelPlanRequest(id=nobody),
        "Cluster.SetAccess": cluster_pb2.SetAccessRequest(rules=b"no rules"),
        "Backups.BeginBackup": backups_pb2.BeginBackupRequest(shard=99, id=1),
    }
    return requests.get(name)


class Server(NamedTuple):
    address: str
    access: Access
    there: There


def prepare(address: str, access: Access) -> Server:
    with Client(address, token=access.tokens["admin"], timeout_s=DEADLINE_S) as admin:
        task_id = admin.enqueue(NewTask("q", "t", b"x", tenant="acme")).task_id
        [claim] = admin.reserve(["q"], lease_ms=600_000, worker="w")
        assert claim.task_id == task_id
        admin.put_schedule(Schedule("s", "@daily", NewTask("q", "t", tenant="acme")))
    token = claim.token
    return Server(
        address, access, There(task_id, pb.ClaimRef(task_id=task_id, token=token >> 64, secret=token & (1 << 64) - 1))
    )


@pytest.fixture(scope="module", params=["broker", "router"])
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    directory = tmp_path_factory.mktemp("matrix")
    access = Access.make(tmp_path_factory.mktemp("matrix-access"))
    access.add("revoked", "admin")
    before = access.policy
    access.policy = revoke_token(before, access.ids["revoked"])
    access.write()
    if request.param == "broker":
        with ServerProcess(directory, access_file=access.path) as process:
            yield prepare(process.start().address, access)
        return
    secret = make_secret(directory)
    with MapCluster(directory, size=1, shards=2, replication=1, router_secret_file=secret) as cluster:
        cluster.routers[0].settings["router_secret_file"] = secret
        cluster.start()
        close_with(cluster, access)
        yield prepare(cluster.address, access)


class Way:
    """A caller at a server, over one transport."""

    def __init__(self, server: Server, token: str | None, transport: str) -> None:
        self._server = server
        self._transport = transport
        self._channels = NegotiatedChannels(
            message_bytes_max=1 << 24, keepalive_s=30, connects_first=True,
            transport="auto" if transport == "frames" else "grpc", token=None if token is None else lambda: token,
        )  # fmt: skip

    async def __aenter__(self) -> "Way":
        if self._transport == "frames":
            # Who is let in learns from an answer where they are; whoever is not is told by somebody else.
            told: list[str] = []
            asks = GrpcChannels(message_bytes_max=1 << 24, keepalive_s=30, connects_first=True)
            metadata = (
                (FRAMES_KEY, "?"), (AUTHORIZATION_KEY, f"Bearer {self._server.access.tokens['admin']}"),
            )  # fmt: skip
            path = METHODS["Tasks.ListQueues"].path
            await asks.call(self._server.address, path, b"", metadata, DEADLINE_S, on_frames=told.append).answer()
            await asks.close()
            self._channels.learn(self._server.address, told[0])
            async with asyncio.timeout(DEADLINE_S):
                while self._channels.link(self._server.address) is None:
                    await asyncio.sleep(0.005)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._channels.close()

    async def call(self, name: str) -> tuple[tuple[str, ...], str]:
        """The reasons of a refusal, of the call or its items, and all that was said."""
        method = METHODS[name]
        if self._transport == "frames":
            assert self._channels.link(self._server.address) is not None
        data = self._server.there.request(name).SerializeToString()
        try:
            answer = await self._channels.call(self._server.address, method.path, data, None, DEADLINE_S).answer()
        except CallFailedError as failed:
            return (failed.reason,), f"{failed.message} {failed.metadata}"
        response: Any = method.response.FromString(answer)
        rejected = [item.rejection for item in getattr(response, "outcomes", ()) if item.HasField("rejection")]
        return tuple(rejection.reason for rejection in rejected), str(response)


@pytest.mark.parametrize("transport", ["grpc", "frames"])
@pytest.mark.parametrize("who", NO_TOKENS)
async def test_nobody_is_let_in_without_a_valid_token(server: Server, who: str, transport: str) -> None:
    token = None if who == "none" else server.access.tokens[who]
    async with Way(server, token, transport) as way:
        assert {name: (await way.call(name))[0] for name in METHODS} == dict.fromkeys(METHODS, LOST)


@pytest.mark.parametrize("transport", ["grpc", "frames"])
@pytest.mark.parametrize(("who", "expected"), [("all-of-other", of_another_queue), ("globex", of_another_tenant)])
async def test_of_other_queues_and_tenants_nothing_is_heard(
    server: Server, who: str, expected: Any, transport: str
) -> None:
    async with Way(server, server.access.tokens[who], transport) as way:
        for name in METHODS:
            reasons, said = await way.call(name)
            wanted = expected(name)
            if wanted is NOTHING:
                assert not reasons, (name, reasons, said)
            else:
                assert len(reasons) == 1, (name, reasons, said)
                assert reasons[0] in wanted, (name, reasons, said)
            named = name in ("Tasks.Enqueue", "Schedules.PutSchedule")  # by the caller itself
            secrets = (server.there.task_id, "@daily", *(() if named else ("acme",)))
            assert not [secret for secret in secrets if secret in said], (name, said)


@pytest.mark.parametrize("transport", ["grpc", "frames"])
@pytest.mark.parametrize(
    ("who", "may"),
    [("worker", OF_WORKERS | OF_ANYBODY), ("operator", OF_OPERATORS | OF_ANYBODY), ("admin", set(METHODS))],
)
async def test_a_right_opens_what_it_is_for_and_nothing_else(
    server: Server, who: str, may: set[str], transport: str
) -> None:
    async with Way(server, server.access.tokens[who], transport) as way:
        for name in METHODS:
            reasons, said = await way.call(name)
            assert not set(reasons) & set(LOST), (name, said)
            assert (DENIED[0] in reasons) is (name not in may), (name, reasons, said)


def test_the_owner_finds_everything(server: Server) -> None:
    """What was hidden from others was there all the time, at least what nobody else has ended."""
    with Client(server.address, token=server.access.tokens["admin"], timeout_s=DEADLINE_S) as admin:
        assert admin.get_task(server.there.task_id).tenant == "acme"
