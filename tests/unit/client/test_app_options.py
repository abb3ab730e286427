"""Options of a task and of a wait that cannot be meant, refused by their names before anything is sent."""

import asyncio
import math
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest

from holdfast.client import Holdfast, InvalidArgument


@pytest.fixture
def app() -> Iterator[Holdfast]:
    with Holdfast("localhost:1") as app:
        yield app


@pytest.mark.parametrize("option", ["delay", "request_id_ttl", "result_ttl"])
@pytest.mark.parametrize("value", [math.nan, math.inf, -1, timedelta(seconds=-1), "5", True])
def test_a_duration_that_is_none_is_refused_by_the_name_of_its_option(app: Holdfast, option: str, value: Any) -> None:
    @app.task
    def send() -> None: ...

    options: dict[str, Any] = {option: value}
    with pytest.raises(InvalidArgument, match=f"Expected {option} ") as refused:
        send.options(**options)
    assert refused.value.field == option
    with pytest.raises(InvalidArgument, match="Expected lease ") as refused:
        app.task(lease=value)
    assert refused.value.field == "lease"


@pytest.mark.parametrize("headers", [{"a": 1}, {1: "a"}, ["a"], "a"])
def test_headers_of_another_type_are_refused(app: Holdfast, headers: Any) -> None:
    @app.task
    def send() -> None: ...

    with pytest.raises(InvalidArgument, match="Expected headers to .* texts to texts, but got (int|list|str)"):
        send.options(headers=headers)


@pytest.mark.parametrize("timeout", [math.nan, -1, timedelta(seconds=-1)])
def test_a_wait_for_a_result_needs_a_time_that_can_be_over(app: Holdfast, timeout: Any) -> None:
    async def wait() -> None:
        async with asyncio.timeout(10):
            await app.handle_async("id").result(timeout=timeout)

    with pytest.raises(ValueError, match="Expected timeout of at least 0 seconds, but got "):
        app.handle("id").result(timeout=timeout)
    with pytest.raises(ValueError, match="Expected timeout of at least 0 seconds, but got "):
        asyncio.run(wait())
    with pytest.raises(ValueError, match="Expected timeout of at least 0 seconds, but got "):
        Holdfast("localhost:1", timeout=timeout)
