"""Right uses of an app; never run, only checked. What must be inferred is asserted."""

from datetime import UTC, datetime, timedelta
from typing import Any, assert_type

from holdfast.client import (
    AsyncHandle,
    AsyncTask,
    Enqueued,
    Handle,
    Holdfast,
    Rejected,
    RunningTask,
    Task,
    TaskInfo,
    TaskState,
    current_task,
)

app = Holdfast("localhost:7400", timeout=5)


@app.task(queue="mail", max_attempts=5, lease=30.0, priority=5)
def send(to: str, subject: str = "hi") -> str:
    assert_type(current_task(), RunningTask)
    return f"{to}: {subject}"


@app.task
def count(numbers: list[int], *, twice: bool = False) -> int:
    return len(numbers) * (2 if twice else 1)


@app.task(lease=timedelta(minutes=5))
async def fetch(url: str) -> bytes | None:
    return url.encode()


@app.task
async def refresh() -> None: ...


def blocking() -> None:
    assert_type(send("ada@example.org"), str)
    assert_type(count([1, 2], twice=True), int)
    handle = assert_type(send.enqueue("ada@example.org", subject="hello"), Handle[str])
    assert_type(handle.id, str)
    assert_type(handle.result(), str)
    assert_type(handle.result(timeout=10), str)
    assert_type(handle.status(), TaskState)
    assert_type(handle.info(), TaskInfo)
    assert_type(handle.cancel(), TaskState)
    assert_type(count.enqueue([1]).result(), int)
    assert_type(fetch.enqueue("http://example.org").result(), bytes | None)
    assert_type(refresh.enqueue(), Handle[None])
    later = send.options(run_at=datetime.now(UTC), request_id="signup-17", headers={"trace": "1"}, tenant="acme")
    assert_type(later.enqueue("ada@example.org").result(), str)
    assert_type(count.options(delay=60, priority=9, queue="slow", max_attempts=3)([1]), int)
    many = assert_type(app.enqueue_many([send.call("a"), send.call("b", "c")]), Enqueued[Handle[str]])
    assert_type(many.handles(), list[Handle[str]])
    assert_type(many.accepted, list[Handle[str]])
    assert_type(many.refused, dict[int, Rejected])
    for outcome in send.enqueue_many(["a", ("b", "c"), {"to": "d"}]):
        assert_type(outcome.reason if isinstance(outcome, Rejected) else outcome.result(), str)
    assert_type(send.options(request_id=str).enqueue("a").id, str)
    assert_type(app.handle("id"), Handle[Any])


async def asynchronous() -> None:
    assert_type(await fetch("http://example.org"), bytes | None)
    handle = assert_type(await send.enqueue_async("ada@example.org"), AsyncHandle[str])
    assert_type(await handle.result(timeout=10), str)
    assert_type(await handle.status(), TaskState)
    assert_type(await handle.info(), TaskInfo)
    assert_type(await handle.cancel(), TaskState)
    assert_type(await (await fetch.enqueue_async("http://example.org")).result(), bytes | None)
    assert_type(await (await fetch.options(delay=1).enqueue_async("http://example.org")).result(), bytes | None)
    assert_type((await app.enqueue_many_async([fetch.call("a")])).handles(), list[AsyncHandle[bytes | None]])
    assert_type(await fetch.enqueue_many_async(["a"]), Enqueued[AsyncHandle[bytes | None]])


def pass_on(some: Task[[str, str], str], other: AsyncTask[[str], bytes]) -> None:
    assert_type(some.enqueue("a", "b").result(), str)
    assert_type(other.enqueue("a").result(), bytes)
