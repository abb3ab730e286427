"""Right uses of the two clients; never run, only checked. What must be inferred is asserted."""

from typing import assert_type

from holdfast.client import (
    Accepted,
    Ack,
    Acked,
    AsyncClient,
    Attempt,
    Cancelled,
    CatchUp,
    ClaimRef,
    Claims,
    Client,
    ClusterInfo,
    ClusterNode,
    DeadLetterDone,
    DeadLetterFilter,
    DeadLetterPage,
    DeadLetterProgress,
    Extended,
    Failed,
    HandoverProgress,
    MoveWish,
    NewTask,
    Overlap,
    Plan,
    PlanProgress,
    PlanStep,
    QueuePolicy,
    QueueSettings,
    QueueStats,
    Rejected,
    Released,
    RetryPolicy,
    RetryShape,
    Schedule,
    ScheduleInfo,
    TaskFilter,
    TaskInfo,
    TaskState,
    TaskUpdate,
    TenantPolicy,
    Topology,
    UniqueScope,
    Updated,
    WorkerInfo,
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
    tasks = assert_type(client.reserve(["mail"], max_tasks=10, max_tasks_by_queue={"mail": 2}), Claims)
    assert_type(client.ack(tasks[0], result=b"done", follow_ups=[NewTask("mail", "next")]), Acked)
    assert_type(client.ack_many([tasks[0], Ack(tasks[1], b"done"), ClaimRef("id", 1)]), list[Acked | Rejected])
    assert_type(client.extend(tasks[0], 30_000), Extended)


async def asynchronously() -> None:
    async with AsyncClient() as client:
        assert_type(client, AsyncClient)
        assert_type(await client.enqueue(NewTask("mail", "welcome")), Accepted)
        assert_type(await client.enqueue_many([NewTask("mail", "welcome")]), list[Accepted | Rejected])
        assert_type(await client.reserve(["mail"], wait_ms=1_000), Claims)
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
        assert_type(client.hand_over_node("n1"), HandoverProgress)


def ask_for_more(client: Client) -> None:
    retry = RetryPolicy(shape=RetryShape.FIXED, base_ms=500, jitter=0.1, non_retryable=["PaymentRefused"])
    task = NewTask(
        "mail",
        "welcome",
        retry=retry,
        unique_key="k",
        unique_scope=UniqueScope.WHILE_WAITING,
        limit_key="l",
        timeout_ms=1_000,
        ttl_ms=1_000,
    )
    assert_type(client.enqueue(task).state, TaskState | None)
    claim = ClaimRef("id", 1)
    assert_type(client.fail(claim, retry_at_ms=17), Failed)
    assert_type(client.release(claim, delay_ms=60_000), Released)
    assert_type(client.update_task("id", priority=9, delay_ms=0), Updated)
    assert_type(client.update_tasks([TaskUpdate("id", run_at_ms=17)]), list[Updated | Rejected])
    assert_type(client.get_task("id").attempts, tuple[Attempt, ...])


def look_after_queues(client: Client) -> None:
    stats = client.queue_stats("mail")
    assert_type(stats.latencies[0].claim_to_ack.quantile_ms(0.99), float | None)
    found = client.list_tasks("mail", where=TaskFilter(states=[TaskState.READY], min_age_ms=17))
    assert_type(found.tasks, tuple[TaskInfo, ...])
    for task in client.iter_tasks():
        assert_type(task, TaskInfo)
    assert_type(client.list_workers().workers, tuple[WorkerInfo, ...])
    assert_type(client.purge_queue("mail", dry_run=True, progress=lambda purged: print(purged + 1)), int)
    policy = QueuePolicy(rate_per_second=5, non_retryable=("A",), tenants=[TenantPolicy("acme", weight=3)])
    assert_type(client.set_queue("mail", policy=policy, clear=["tenants.acme"]), QueueSettings)
    assert_type(client.pause_queue("mail"), QueueSettings)
    assert_type(client.resume_queue("mail"), QueueSettings)
    where = DeadLetterFilter(type="welcome", died_from_ms=17)
    assert_type(client.list_dead_letters("mail", where=where).tasks, tuple[TaskInfo, ...])
    for letter in client.iter_dead_letters("mail", where=where):
        assert_type(letter, TaskInfo)
    reported = client.retry_dead_letters_where(
        "mail", where, limit=7, progress=lambda progress: print(progress.done + 1)
    )
    assert_type(reported, DeadLetterProgress)
    assert_type(client.discard_dead_letters_where("mail", by="ada", note="old"), DeadLetterProgress)
    assert_type(client.discard_dead_letter("id", by="ada"), DeadLetterDone)
    assert_type(client.list_discards().discards[0].discarded_at_ms, int)


def schedule(client: Client) -> None:
    nightly = Schedule("nightly", "@daily", NewTask("q", "t"), catch_up=CatchUp.ALL, overlap=Overlap.SKIP)
    assert_type(client.put_schedule(nightly, must_be_new=True), ScheduleInfo)
    assert_type(client.get_schedule("q", "nightly").next_at_ms, int | None)
    assert_type(client.list_schedules().schedules, tuple[ScheduleInfo, ...])
    assert_type(client.pause_schedule("q", "nightly"), ScheduleInfo)
    assert_type(client.resume_schedule("q", "nightly"), ScheduleInfo)
    assert_type(client.trigger_schedule("q", "nightly", request_id="r-1"), Accepted)
    assert_type(client.preview_schedule("@daily", count=3), list[int])
    assert_type(client.schedule_times("q", "nightly", after_ms=17), list[int])
    client.delete_schedule("q", "nightly")


async def look_asynchronously(client: AsyncClient) -> None:
    async for letter in client.iter_dead_letters("mail"):
        assert_type(letter, TaskInfo)
    assert_type(await client.purge_queue("mail"), int)
    assert_type(await client.retry_dead_letters_where("mail"), DeadLetterProgress)
    assert_type(await client.trigger_schedule("q", "nightly"), Accepted)


async def operate_asynchronously(client: AsyncClient) -> None:
    assert_type(await client.describe_cluster(), ClusterInfo)
    assert_type(await client.make_plan(leaders=True), Plan)
    assert_type(await client.remove_node("n1"), None)
