"""Tasks and their options, without a server."""

import doctest
import functools
import json
import math
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest

from holdfast.client import (
    AsyncClient,
    AsyncTask,
    Client,
    Holdfast,
    InvalidAddress,
    InvalidArgument,
    Task,
    Worker,
    _options,
)
from holdfast.client._options import Retry
from holdfast.client.models import RetryPolicy, RetryShape, UniqueScope


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

    wrong: list[tuple[Any, str, str]] = [
        (lambda: send.options(delay=1, run_at=datetime.now(UTC)), "delay", "at most one of delay and run_at"),
        (lambda: send.options(run_at=datetime(2030, 1, 1)), "run_at", "time zone"),
        (lambda: send.options(run_at=5), "run_at", "run_at to be a datetime, but got int"),  # type: ignore[arg-type]
        (lambda: send.options(request_id=""), "request_id", "request_id to be a text, but it is empty"),
        (lambda: send.options(request_id=5), "request_id", "request_id to be a text or a plain function"),  # type: ignore[arg-type]
        (lambda: send.options(request_id="r" * 257), "request_id", "request_id of at most 256 bytes"),
        (lambda: send.options(retry=RetryPolicy(base_ms=10, cap_ms=5)), "retry.base_ms", r"at most cap_ms \(5\)"),
        (lambda: app.task(retry=RetryPolicy(base_ms=10, cap_ms=5)), "retry.base_ms", r"at most cap_ms \(5\)"),
        (lambda: app.task(lease=0), "lease", "lease of more than 0"),
        (lambda: app.task(name=5)(send.function), "name", "a task with a name"),  # type: ignore[call-overload]
    ]
    for call, field, problem in wrong:
        with pytest.raises(InvalidArgument, match=problem) as refused:
            call()
        assert refused.value.field == field


def test_examples_of_the_options_run() -> None:
    results = doctest.testmod(_options)
    assert results.attempted
    assert not results.failed


def test_what_tasks_of_a_function_need_goes_with_every_call(app: Holdfast) -> None:
    @app.task(
        retry=Retry(shape="linear", base=5, cap=timedelta(minutes=1), jitter=0, non_retryable=[KeyError, "Refused"]),
        max_claims=7, timeout=timedelta(seconds=90), ttl=3_600,
        unique_key=lambda order, shop: f"order-{order}-{shop}", unique_scope="while-waiting", limit_key="printer",
        tenant=lambda _, shop: shop,
    )  # fmt: skip
    def pack(order: int, shop: str = "main") -> None: ...

    new = pack.call(7, shop="acme").new_task
    assert new.retry == RetryPolicy(
        shape=RetryShape.LINEAR, base_ms=5_000, cap_ms=60_000, jitter=0, non_retryable=("KeyError", "Refused")
    )
    assert (new.max_claims, new.timeout_ms, new.ttl_ms) == (7, 90_000, 3_600_000)
    assert (new.unique_key, new.unique_scope) == ("order-7-acme", UniqueScope.WHILE_WAITING)
    assert (new.limit_key, new.tenant) == ("printer", "acme")
    written = (pack.call(8), pack.call(8, "main"), pack.call(shop="main", order=8))
    assert {call.new_task.unique_key for call in written} == {"order-8-main"}, "however the call is written"
    assert json.loads(pack.call(8).new_task.payload) == [8], "defaults do not travel"

    other = pack.options(
        retry=Retry(base=1), timeout=2, ttl=3, unique_key="", unique_scope="until_done", limit_key="b", tenant="c"
    )
    new = other.call(7).new_task
    assert new.retry == RetryPolicy(base_ms=1_000), "as a whole"
    assert (new.timeout_ms, new.ttl_ms, new.max_claims) == (2_000, 3_000, 7)
    assert (new.unique_key, new.unique_scope) == ("", UniqueScope.UNTIL_DONE)
    assert (new.limit_key, new.tenant) == ("b", "c")
    assert pack.options(retry=RetryPolicy(base_ms=3)).call(7).new_task.retry == RetryPolicy(base_ms=3)
    assert pack.call(7, "acme").new_task.timeout_ms == 90_000, "options change a copy"


def test_a_plain_task_leaves_everything_to_its_queue(app: Holdfast) -> None:
    @app.task
    def send() -> None: ...

    new = send.call().new_task
    assert (new.retry, new.max_claims, new.timeout_ms, new.ttl_ms, new.priority) == (None, None, None, None, None)
    assert (new.unique_key, new.limit_key, new.tenant) == ("", "", "")


class LateError(Exception):
    pass


def test_exceptions_that_are_not_retried_are_known_by_their_names() -> None:
    assert Retry(non_retryable=(LateError,)).policy().non_retryable == (f"{__name__}.LateError",)
    assert Retry(non_retryable=iter([KeyError, KeyError])).policy().non_retryable == ("KeyError",)
    # Run as a script the producer would call it __main__.Late, and its workers, which import it, something else.
    late = type("Late", (Exception,), {"__module__": "__main__"})
    assert Retry(non_retryable=[late]).policy().non_retryable == ("Late",)


def coroutine_key() -> Any:
    async def key() -> str:
        return ""

    return key


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"priority": 10}, "priority from 0 to 9"),
        ({"priority": 1.5}, "priority to be a whole number"),
        ({"max_attempts": 0}, "max_attempts from 1"),
        ({"max_claims": 0}, "max_claims from 1"),
        ({"max_attempts": True}, "max_attempts to be a number"),
        ({"timeout": 0.5}, "timeout from 1 to"),
        ({"timeout": float("nan")}, "timeout from 1 to"),
        ({"timeout": timedelta(days=31)}, "timeout from 1 to"),
        ({"timeout": "5"}, "timeout to be a number"),
        ({"ttl": -1}, "ttl from 1 to"),
        ({"ttl": float("inf")}, "ttl from 1 to"),
        ({"retry": 5}, "retry to be a Retry"),
        ({"unique_key": 5}, "unique_key to be a text or a plain function"),
        ({"unique_key": coroutine_key()}, "unique_key to be a text or a plain function"),
        ({"unique_key": "x" * 257}, "unique_key of at most 256 bytes"),
        ({"unique_scope": "for ever"}, "unique_scope to be one of until_done, while_waiting, but got 'for ever'"),
        ({"unique_scope": "unknown"}, "unique_scope to be one of"),
        ({"limit_key": b"k"}, "limit_key to be a text or a plain function"),
        ({"tenant": "ä" * 129}, "tenant of at most 256 bytes"),
    ],
)
def test_an_option_that_no_server_would_take_is_refused_by_its_name(
    app: Holdfast, options: dict[str, Any], problem: str
) -> None:
    with pytest.raises(InvalidArgument, match=problem) as refused:
        app.task(**options)
    assert [refused.value.field] == list(options)

    @app.task
    def send() -> None: ...

    with pytest.raises(InvalidArgument, match=problem) as refused:
        send.options(**options)
    assert [refused.value.field] == list(options)


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"shape": "wild"}, "retry.shape to be one of exponential, linear, fixed"),
        ({"base": -1}, "retry.base from 0 to"),
        ({"base": "1"}, "retry.base to be a number"),
        ({"cap": float("nan")}, "retry.cap from 0 to"),
        ({"base": 2, "cap": 1}, "retry.base of at most retry.cap"),
        ({"factor": 0.5}, "retry.factor from 1 to 100"),
        ({"jitter": 1.1}, "retry.jitter from 0 to 1"),
        ({"non_retryable": KeyError}, "put it into a list"),
        ({"non_retryable": "KeyError"}, "put it into a list"),
        ({"non_retryable": 5}, "several exceptions"),
        ({"non_retryable": [int]}, "exceptions or their names"),
        ({"non_retryable": [""]}, "names of 1 to 256 bytes"),
        ({"non_retryable": [str(number) for number in range(65)]}, "at most 64 exceptions"),
    ],
)
def test_a_retry_policy_that_no_server_would_take_is_refused_by_name(options: dict[str, Any], problem: str) -> None:
    with pytest.raises(InvalidArgument, match=problem) as refused:
        Retry(**options)
    assert refused.value.field == f"retry.{next(iter(options))}"


def test_a_key_that_is_no_text_is_refused_when_the_call_is_made(app: Holdfast) -> None:
    @app.task(unique_key=lambda number: number)
    def count(number: int) -> None: ...
    @app.task(limit_key=lambda number: "k" * number)
    def other(number: int) -> None: ...

    with pytest.raises(InvalidArgument, match="unique_key to be a text, but got int"):
        count.call(1)
    with pytest.raises(InvalidArgument, match="limit_key of at most 256 bytes"):
        other.call(257)


def test_a_request_id_may_be_made_of_the_arguments(app: Holdfast) -> None:
    @app.task
    def greet(name: str, mark: str = "!") -> None: ...

    once = greet.options(request_id=lambda name, mark: name and name + mark)
    assert once.call("Ada").new_task.request_id == "Ada!"
    assert once.options(request_id="own").call("Ada").new_task.request_id == "own"
    with pytest.raises(InvalidArgument, match="it is empty") as refused:
        once.call("")
    assert refused.value.field == "request_id"


def test_a_key_that_cannot_be_made_is_refused_by_its_name(app: Holdfast) -> None:
    """With its cause, but without the words of that, which may show an argument."""

    @app.task(unique_key=lambda order: order["a secret"])
    def ship(order: dict[str, str]) -> None: ...

    with pytest.raises(InvalidArgument, match="unique_key to be made of .* raised KeyError") as refused:
        ship.call({})
    assert refused.value.field == "unique_key"
    assert isinstance(refused.value.__cause__, KeyError)
    assert "secret" not in str(refused.value)


def test_two_tasks_of_one_name_and_tasks_without_a_name_are_refused(app: Holdfast) -> None:
    @app.task
    def send() -> None: ...

    with pytest.raises(InvalidArgument, match="one task named send"):
        app.task(send.function)
    with pytest.raises(InvalidArgument, match="a task with a name"):
        app.task(lambda: None)
    with pytest.raises(InvalidArgument, match="a task with a name"):
        app.task(functools.partial(send.function))
    assert app.task(name="other")(send.function).name == "other"


def test_generators_are_no_tasks(app: Holdfast) -> None:
    def numbers() -> Iterator[int]:
        yield 1

    async def numbers_async() -> AsyncIterator[int]:
        yield 1

    for function in (numbers, numbers_async):
        with pytest.raises(InvalidArgument, match="is a generator"):
            app.task(function)


def test_the_address_comes_from_the_environment_unless_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_ADDRESS", "queue.internal:7400")
    assert Holdfast().address == "queue.internal:7400"
    assert Holdfast("localhost:1").address == "localhost:1"
    monkeypatch.delenv("HOLDFAST_ADDRESS")
    assert Holdfast().address == "localhost:7400"
    with pytest.raises(InvalidAddress):
        Holdfast("no port")


def test_the_transport_comes_from_the_environment_unless_given(monkeypatch: pytest.MonkeyPatch) -> None:
    assert Holdfast().transport == "auto"
    monkeypatch.setenv("HOLDFAST_TRANSPORT", "grpc")
    assert Holdfast().transport == "grpc"
    assert Holdfast(transport="auto").transport == "auto"
    for make in (Holdfast, AsyncClient, Client):
        with pytest.raises(
            InvalidArgument, match="Expected transport to be one of auto, grpc, but got 'udp'."
        ) as caught:
            make("localhost:1", transport="udp")
        assert caught.value.field == "transport"
    app = Holdfast()
    app.task(name="t")(lambda: None)
    assert Worker(app).transport == "grpc"
    with pytest.raises(InvalidArgument, match="'udp'"):
        Worker(app, transport="udp")


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ({"concurrency": 0}, "Expected concurrency to be from 1 to 1000"),
        ({"concurrency": 1_001}, "Expected concurrency to be from 1 to 1000"),
        ({"grace": -1}, "Expected grace of at least 0 seconds"),
        ({"grace": math.nan}, "Expected grace of at least 0 seconds"),
        ({"queues": {"mail": 0}}, r"Expected queues\['mail'\] to be from 1 to 1000"),
        ({"queues": {"mail": 1_001}}, r"Expected queues\['mail'\] to be from 1 to 1000"),
    ],
)
def test_wrong_settings_of_a_worker_are_refused(app: Holdfast, arguments: dict[str, Any], problem: str) -> None:
    @app.task(queue="mail")
    def send() -> None: ...

    with pytest.raises(InvalidArgument, match=problem) as refused:
        Worker(app, **arguments)
    assert refused.value.field.partition("[")[0] in arguments


@pytest.mark.parametrize("value", [math.nan, 1.5, "3", True, math.inf])
def test_how_much_a_worker_does_at_once_is_a_whole_number(app: Holdfast, value: Any) -> None:
    @app.task(queue="mail")
    def send() -> None: ...

    with pytest.raises(InvalidArgument, match="a whole number") as refused:
        Worker(app, concurrency=value)
    assert refused.value.field == "concurrency"
    with pytest.raises(InvalidArgument, match="a whole number") as refused:
        Worker(app, {"reports": None, "mail": value})
    assert refused.value.field == "queues['mail']"


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
    with pytest.raises(InvalidAddress, match="host:port"):
        Worker(app, address="nowhere")
    assert Worker(app).name != Worker(app).name
    assert Worker(app, name="me").name == "me"
