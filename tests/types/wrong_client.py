"""Wrong uses of the two clients; never run, only checked: each line marked must be an error, and no other."""

from holdfast.client import AsyncClient, Client, NewTask


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


async def asynchronous_mistakes(client: AsyncClient) -> None:
    print(client.enqueue(NewTask("mail", "welcome")).task_id)  # type: ignore[attr-defined]
    await client.queue_stats(["mail"])  # type: ignore[arg-type]
    with client:  # type: ignore[attr-defined]
        pass
