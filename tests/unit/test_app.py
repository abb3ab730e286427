"""Tasks and their options, without a server."""

import functools
import json
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest

from holdfast.client import AsyncTask, Holdfast, InvalidAddress, Task, Worker


@pytest.fixture
def app() -> Iterator[Holdfast]:
    with Holdfast("localhost:1") as app:
        yield app


def test_a_task_is_still_its_function(app: Holdfast) -> None:
    @app.task(queue="mail", max_attempts=3, lease=timedelta(minutes=1), priority=7)
    def send(to: str, subject: str = "-") -> str:
        """Sends it."""
        return f"{to}: {subject}"

    assert send("ada", subject="hi") == "ada: hi"
    assert (send.__name__, send.__doc__, send.__module__) == ("send", "Sends it.", __name__)
    assert (send.name, send.queue, send.lease_ms) == ("send", "mail", 60_000)
    assert isinstance(send, Task)
    assert app.tasks == {"send": send}


async def test_an_async_function_stays_one(app: Holdfast) -> None:
    @app.task
    async def send(to: str) -> str:
        return to

    assert isinstance(send, AsyncTask)
    assert await send("ada") == "ada"


def test_a_call_carries_the_options_of_its_task(app: Holdfast) -> None:
    @app.task(queue="mail", max_attempts=3, priority=7)
    def send(to: str) -> None: ...

    new = send.call("ada").new_task
    assert (new.queue, new.type, new.max_attempts, new.priority) == ("mail", "send", 3, 7)
    assert json.loads(new.payload) == ["ada"]
    assert new.headers == {"content-type": "application/json"}
    assert new.request_id is None, "the client makes one up"


def test_options_change_a_copy(app: Holdfast) -> None:
    @app.task(queue="mail")
    def send(to: str) -> None: ...

    noon = datetime(2030, 1, 2, 12, tzinfo=timezone(timedelta(hours=1)))
    later = send.options(run_at=noon, request_id="r", tenant="acme", priority=0, headers={"trace": "1"}, result_ttl=60)
    new = later.call("ada").new_task
    assert new.run_at_ms == datetime(2030, 1, 2, 11, tzinfo=UTC).timestamp() * 1000
    assert (new.request_id, new.tenant, new.priority, new.result_ttl_ms) == ("r", "acme", 0, 60_000)
    assert new.headers == {"content-type": "application/json", "trace": "1"}
    assert send.call("ada").new_task.request_id is None
    assert later.options(queue="other").call("ada").new_task.request_id == "r", "options add up"
    assert send.options(request_id="r", request_id_ttl=60).call("ada").new_task.request_id_ttl_ms == 60_000
    assert send.options(delay=1.5).call("ada").new_task.delay_ms == 1_500


def test_wrong_options_are_refused(app: Holdfast) -> None:
    @app.task
    def send() -> None: ...

    with pytest.raises(ValueError, match="at most one of delay and run_at"):
        send.options(delay=1, run_at=datetime.now(UTC))
    with pytest.raises(ValueError, match="time zone"):
        send.options(run_at=datetime(2030, 1, 1))
    with pytest.raises(ValueError, match="lease of more than 0"):
        app.task(lease=0)


def test_two_tasks_of_one_name_and_tasks_without_a_name_are_refused(app: Holdfast) -> None:
    @app.task
    def send() -> None: ...

    with pytest.raises(ValueError, match="one task named send"):
        app.task(send.function)
    with pytest.raises(ValueError, match="a task with a name"):
        app.task(lambda: None)
    with pytest.raises(ValueError, match="a task with a name"):
        app.task(functools.partial(send.function))
    assert app.task(name="other")(send.function).name == "other"


def test_generators_are_no_tasks(app: Holdfast) -> None:
    def numbers() -> Iterator[int]:
        yield 1

    async def numbers_async() -> AsyncIterator[int]:
        yield 1

    for function in (numbers, numbers_async):
        with pytest.raises(TypeError, match="is a generator"):
            app.task(function)


def test_the_address_comes_from_the_environment_unless_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_ADDRESS", "queue.internal:7400")
    assert Holdfast().address == "queue.internal:7400"
    assert Holdfast("localhost:1").address == "localhost:1"
    monkeypatch.delenv("HOLDFAST_ADDRESS")
    assert Holdfast().address == "localhost:7400"
    with pytest.raises(InvalidAddress):
        Holdfast("no port")


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ({"concurrency": 0}, "concurrency from 1 to"),
        ({"concurrency": 1_001}, "concurrency from 1 to"),
        ({"grace": -1}, "grace period"),
        ({"queues": {"mail": 0}}, "limit of at least 1 for queue mail"),
        ({"address": "nowhere"}, "host:port"),
    ],
)
def test_wrong_settings_of_a_worker_are_refused(app: Holdfast, arguments: dict[str, Any], problem: str) -> None:
    @app.task(queue="mail")
    def send() -> None: ...

    with pytest.raises(ValueError, match=problem):
        Worker(app, **arguments)


def test_a_worker_serves_the_queues_of_its_tasks_unless_told_otherwise(app: Holdfast) -> None:
    with pytest.raises(ValueError, match="an app with tasks"):
        Worker(app)

    @app.task(queue="mail")
    def send() -> None: ...
    @app.task
    def other() -> None: ...

    assert Worker(app).queues == {"mail": None, "default": None}
    assert Worker(app, ["reports"]).queues == {"reports": None}
    assert Worker(app, {"reports": 2, "mail": None}).queues == {"reports": 2, "mail": None}
    with pytest.raises(TypeError, match="put it into a list"):
        Worker(app, "mail")
    assert Worker(app).name != Worker(app).name
    assert Worker(app, name="me").name == "me"
