"""Wrong uses of the two clients; never run, only checked: each line marked must be an error, and no other."""

from holdfast.client import AsyncClient, Client, NewTask, QueuePolicy, Schedule


def mistakes(client: Client) -> None:
    Client("localhost:7400", 5)  # type: ignore[call-arg]
    Client(timeout_s="5")  # type: ignore[arg-type]
    NewTask("mail", "welcome", "text")  # type: ignore[arg-type]
    client.enqueue("mail")  # type: ignore[arg-type]
    client.enqueue(NewTask("mail", "welcome"), 5)  # type: ignore[call-arg]
    client.enqueue_many(NewTask("mail", "welcome"))  # type: ignore[arg-type]
    client.reserve(["mail"], max_tasks="1")  # type: ignore[arg-type]
    client.reserve(["mail"], max_tasks_by_queue=["mail"])  # type: ignore[arg-type]
    client.ack("id")  # type: ignore[arg-type]
    client.wait_task(17)  # type: ignore[arg-type]
    client.enqueue(NewTask("mail", "welcome")).task_id = "other"  # type: ignore[misc]
    print(client.enqueue_many([])[0].task_id)  # type: ignore[union-attr]
    client.set_queue("mail", spread="4")  # type: ignore[arg-type]
    client.set_queue("mail", policy={"max_attempts": 3})  # type: ignore[arg-type]
    client.make_plan(True)  # type: ignore[call-arg]
    client.start_plan("p-1")  # type: ignore[arg-type]
    client.no_such_call()  # type: ignore[attr-defined]


def more_mistakes(client: Client) -> None:
    NewTask("mail", "welcome", retry={"base_ms": 1})  # type: ignore[arg-type]
    NewTask("mail", "welcome", unique_scope="until_done")  # type: ignore[arg-type]
    NewTask("mail", "welcome", timeout_ms=1.5)  # type: ignore[arg-type]
    client.update_task("id", 9)  # type: ignore[call-arg]
    client.update_tasks([("id", 9)])  # type: ignore[list-item]
    client.release([])  # type: ignore[arg-type]
    client.purge_queue("mail", progress=lambda: None)  # type: ignore[arg-type, misc]
    client.set_queue("mail", policy=QueuePolicy(tenants={"acme": 3}))  # type: ignore[arg-type]
    client.list_dead_letters("mail", where="welcome")  # type: ignore[arg-type]
    client.retry_dead_letters_where("mail", limit="7")  # type: ignore[arg-type]
    client.put_schedule("nightly", "@daily", NewTask("q", "t"))  # type: ignore[call-arg, arg-type]
    Schedule("nightly", "@daily", "sales")  # type: ignore[arg-type]
    print(client.get_schedule("q", "nightly").next_at_ms + 1)  # type: ignore[operator]


async def asynchronous_mistakes(client: AsyncClient) -> None:
    print(client.enqueue(NewTask("mail", "welcome")).task_id)  # type: ignore[attr-defined]
    await client.queue_stats(["mail"])  # type: ignore[arg-type]
    print(*client.iter_dead_letters("mail"))  # type: ignore[misc]
    with client:  # type: ignore[attr-defined]
        pass
