"""Right uses of the two clients; never run, only checked. What must be inferred is asserted."""

from typing import assert_type

from holdfast.client import (
    Accepted,
    Ack,
    Acked,
    AsyncClient,
    Cancelled,
    ClaimedTask,
    ClaimRef,
    Client,
    ClusterInfo,
    ClusterNode,
    DeadLetterPage,
    Extended,
    MoveWish,
    NewTask,
    Plan,
    PlanProgress,
    PlanStep,
    QueuePolicy,
    QueueSettings,
    QueueStats,
    Rejected,
    TaskInfo,
    TaskState,
    Topology,
)


def produce() -> None:
    with Client("localhost:7400", timeout_s=5) as client:
        assert_type(client, Client)
        accepted = assert_type(client.enqueue(NewTask("mail", "welcome", b"ada")), Accepted)
        assert_type(accepted.task_id, str)
        for outcome in assert_type(client.enqueue_many([NewTask("mail", "welcome")]), list[Accepted | Rejected]):
            if isinstance(outcome, Rejected):
                assert_type(outcome.reason, str)
            else:
                assert_type(outcome, Accepted)
        assert_type(client.wait_task(accepted.task_id, timeout_s=1.5), TaskInfo)
        assert_type(client.wait_tasks([accepted.task_id]), list[TaskInfo | Rejected])
        assert_type(client.get_task(accepted.task_id).state, TaskState)
        assert_type(client.cancel(accepted.task_id), Cancelled)
        assert_type(client.queue_stats("mail"), QueueStats)
        assert_type(client.list_queues().queues, tuple[QueueStats, ...])
        assert_type(client.list_dead_letters("mail"), DeadLetterPage)
    assert_type(client.close(), None)


def work(client: Client) -> None:
    tasks = assert_type(client.reserve(["mail"], max_tasks=10, max_tasks_by_queue={"mail": 2}), list[ClaimedTask])
    assert_type(client.ack(tasks[0], result=b"done", follow_ups=[NewTask("mail", "next")]), Acked)
    assert_type(client.ack_many([tasks[0], Ack(tasks[1], b"done"), ClaimRef("id", 1)]), list[Acked | Rejected])
    assert_type(client.extend(tasks[0], 30_000), Extended)


async def asynchronously() -> None:
    async with AsyncClient() as client:
        assert_type(client, AsyncClient)
        assert_type(await client.enqueue(NewTask("mail", "welcome")), Accepted)
        assert_type(await client.enqueue_many([NewTask("mail", "welcome")]), list[Accepted | Rejected])
        assert_type(await client.reserve(["mail"], wait_ms=1_000), list[ClaimedTask])
        assert_type(await client.wait_task("id"), TaskInfo)
        assert_type(await client.wait_tasks(["id"]), list[TaskInfo | Rejected])
        assert_type((await client.list_queues()).next_page_token, str)


def operate() -> None:
    with Client("localhost:7400", direct=True) as client:
        assert_type(client.init_cluster(16, replication=3), str)
        info = assert_type(client.describe_cluster(), ClusterInfo)
        assert_type(info.nodes, tuple[ClusterNode, ...])
        assert_type(info.plan, Plan | None)
        assert_type(client.topology(["mail"]), Topology)
        policy = QueuePolicy(max_attempts=3, retry_factor=1.5)
        settings = assert_type(client.set_queue("mail", policy=policy, clear=["max_claims"], spread=4), QueueSettings)
        assert_type(settings.route.shards, tuple[int, ...])
        client.set_queue("mail", pin=[1, 2])
        plan = assert_type(client.make_plan(move=MoveWish(3, "n1", "n2")), Plan)
        assert_type(plan.steps, tuple[PlanStep, ...])
        assert_type(client.start_plan(plan), Plan)
        assert_type(client.advance_plan(plan.id), PlanProgress)
        client.cancel_plan(plan.id)
        client.drain_node("n1", drain=False)
        client.remove_node("n1")


async def operate_asynchronously(client: AsyncClient) -> None:
    assert_type(await client.describe_cluster(), ClusterInfo)
    assert_type(await client.make_plan(leaders=True), Plan)
    assert_type(await client.remove_node("n1"), None)
