"""Numbers that make no sense are refused by the name of their field: by the client if they cannot be sent at all, by
the server otherwise."""

import asyncio
import math
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

import pytest

from holdfast.client import (
    AsyncClient,
    ClaimedTask,
    DeadLetterFilter,
    InvalidArgument,
    NewTask,
    QueuePolicy,
    RetryPolicy,
    TaskFilter,
    TenantPolicy,
)

VALUES = {
    "negative": -1, "zero": 0, "huge": 2**70, "nan": math.nan, "infinite": math.inf, "a half": 0.5,
    "true": True, "false": False,
}  # fmt: skip


class Case(NamedTuple):
    call: Callable[[AsyncClient, str, Any], Awaitable[Any]]  # of a client, a queue and the number
    field: str
    good: tuple[str, ...] = ()  # the values that are meant


def enqueue(name: str) -> Callable[[AsyncClient, str, Any], Awaitable[Any]]:
    return lambda client, queue, value: client.enqueue(NewTask(queue, "t", request_id="r", **{name: value}))


def retry(name: str) -> Callable[[AsyncClient, str, Any], Awaitable[Any]]:
    return lambda client, queue, value: client.enqueue(NewTask(queue, "t", retry=RetryPolicy(**{name: value})))


def policy(name: str) -> Callable[[AsyncClient, str, Any], Awaitable[Any]]:
    return lambda client, queue, value: client.set_queue(queue, policy=QueuePolicy(**{name: value}))


def tenant(name: str) -> Callable[[AsyncClient, str, Any], Awaitable[Any]]:
    return lambda client, queue, value: client.set_queue(
        queue, policy=QueuePolicy(tenants=(TenantPolicy("acme", **{name: value}),))
    )


def reserve(name: str) -> Callable[[AsyncClient, str, Any], Awaitable[Any]]:
    return lambda client, queue, value: client.reserve([queue], **{name: value})


def page(name: str, *args: Any) -> Callable[[AsyncClient, str, Any], Awaitable[Any]]:
    return lambda client, _queue, value: getattr(client, name)(*args, page_size=value)


def dead(where: bool, name: str) -> Callable[[AsyncClient, str, Any], Awaitable[Any]]:
    if where:
        return lambda client, queue, value: client.list_dead_letters(queue, where=DeadLetterFilter(**{name: value}))
    return lambda client, queue, value: client.retry_dead_letters_where(queue, **{name: value})


def of_claim(call: Callable[[AsyncClient, ClaimedTask, Any], Awaitable[Any]]) -> Any:
    async def claim_and_call(client: AsyncClient, queue: str, value: Any) -> None:
        await client.enqueue(NewTask(queue, "t"))
        [claim] = await client.reserve([queue], worker="w")
        await call(client, claim, value)

    return claim_and_call


def of_task(name: str) -> Any:
    async def enqueue_and_change(client: AsyncClient, queue: str, value: Any) -> None:
        accepted = await client.enqueue(NewTask(queue, "t", delay_ms=3_600_000))
        await client.update_task(accepted.task_id, **{name: value})

    return enqueue_and_change


NO_END = ("zero", "huge", "infinite", "a half")  # of times that a call may take

CASES = {
    "enqueue priority": Case(enqueue("priority"), "tasks[0].priority", ("zero",)),
    "enqueue delay_ms": Case(enqueue("delay_ms"), "tasks[0].delay_ms", ("zero",)),
    "enqueue run_at_ms": Case(enqueue("run_at_ms"), "tasks[0].run_at_ms", ("zero",)),
    "enqueue request_id_ttl_ms": Case(enqueue("request_id_ttl_ms"), "tasks[0].request_id_ttl_ms"),
    "enqueue max_attempts": Case(enqueue("max_attempts"), "tasks[0].max_attempts"),
    "enqueue max_claims": Case(enqueue("max_claims"), "tasks[0].max_claims"),
    "enqueue result_ttl_ms": Case(enqueue("result_ttl_ms"), "tasks[0].result_ttl_ms", ("zero",)),
    "enqueue timeout_ms": Case(enqueue("timeout_ms"), "tasks[0].timeout_ms"),
    "enqueue ttl_ms": Case(enqueue("ttl_ms"), "tasks[0].ttl_ms"),
    "retry base_ms": Case(retry("base_ms"), "tasks[0].retry.base_ms", ("zero",)),
    "retry factor": Case(retry("factor"), "tasks[0].retry.factor"),
    "retry cap_ms": Case(retry("cap_ms"), "tasks[0].retry.cap_ms", ("zero",)),
    "retry jitter": Case(retry("jitter"), "tasks[0].retry.jitter", ("zero", "a half")),
    "reserve max_tasks": Case(reserve("max_tasks"), "max_tasks"),
    "reserve lease_ms": Case(reserve("lease_ms"), "lease_ms"),
    "reserve wait_ms": Case(reserve("wait_ms"), "wait_ms", ("zero",)),
    "reserve max_tasks_by_queue": Case(
        lambda client, queue, value: client.reserve([queue], max_tasks_by_queue={queue: value}), "max_tasks_by_queue"
    ),
    "extend lease_ms": Case(of_claim(lambda client, claim, value: client.extend(claim, value)), "items[0].lease_ms"),
    "fail retry_delay_ms": Case(
        of_claim(lambda client, claim, value: client.fail(claim, retry_delay_ms=value)),
        "items[0].retry_delay_ms", ("zero",),
    ),
    "fail retry_at_ms": Case(
        of_claim(lambda client, claim, value: client.fail(claim, retry_at_ms=value)),
        "items[0].retry_at_ms", ("zero",),
    ),
    "release delay_ms": Case(
        of_claim(lambda client, claim, value: client.release(claim, delay_ms=value)), "delay_ms", ("zero",)
    ),
    "ack follow-up": Case(
        of_claim(lambda client, claim, value: client.ack(claim, follow_ups=[NewTask("q", "t", max_attempts=value)])),
        "items[0].follow_ups[0].max_attempts",
    ),
    "update priority": Case(of_task("priority"), "items[0].priority", ("zero",)),
    "update run_at_ms": Case(of_task("run_at_ms"), "items[0].run_at_ms", ("zero",)),
    "update delay_ms": Case(of_task("delay_ms"), "items[0].delay_ms", ("zero",)),
    "list_queues": Case(page("list_queues"), "page_size", ("zero",)),
    "list_workers": Case(page("list_workers"), "page_size", ("zero",)),
    "list_dead_letters": Case(page("list_dead_letters", "q"), "page_size", ("zero",)),
    "list_discards": Case(page("list_discards", "q"), "page_size", ("zero",)),
    "list_tasks": Case(page("list_tasks", "q"), "page_size", ("zero",)),
    "tasks min_age_ms": Case(
        lambda client, queue, value: client.list_tasks(queue, where=TaskFilter(min_age_ms=value)),
        "filter.min_age_ms", ("zero",),
    ),
    "list_schedules": Case(page("list_schedules"), "page_size", ("zero",)),
    "list_queue_settings": Case(page("list_queue_settings"), "page_size", ("zero",)),
    "letters died_from_ms": Case(dead(True, "died_from_ms"), "filter.died_from_ms", ("zero",)),
    "letters died_before_ms": Case(dead(True, "died_before_ms"), "filter.died_before_ms", ("zero",)),
    "letters limit": Case(dead(False, "limit"), "limit", ("huge",)),
    "letters batch_size": Case(dead(False, "batch_size"), "batch_size"),
    "preview count": Case(lambda client, _, value: client.preview_schedule("@daily", count=value), "count"),
    "preview after_ms": Case(
        lambda client, _, value: client.preview_schedule("@daily", after_ms=value), "after_ms", ("zero",)
    ),
    "policy max_attempts": Case(policy("max_attempts"), "policy.max_attempts"),
    "policy retry_base_ms": Case(policy("retry_base_ms"), "policy.retry_base_ms", ("zero",)),
    "policy retry_factor": Case(policy("retry_factor"), "policy.retry_factor"),
    "policy retry_jitter": Case(policy("retry_jitter"), "policy.retry_jitter", ("zero", "a half")),
    "policy timeout_ms": Case(policy("timeout_ms"), "policy.timeout_ms"),
    "policy ttl_ms": Case(policy("ttl_ms"), "policy.ttl_ms"),
    **{f"policy {name}": Case(policy(name), f"policy.{name}")
       for name in ("concurrency_max", "tenant_concurrency_max", "key_concurrency_max")},
    **{f"policy {name}": Case(policy(name), f"policy.{name}", ("a half",))
       for name in ("rate_per_second", "tenant_rate_per_second", "key_rate_per_second")},
    "policy dead_alert_at": Case(policy("dead_alert_at"), "policy.dead_alert_at"),
    "policy oldest_share_percent": Case(policy("oldest_share_percent"), "policy.oldest_share_percent", ("zero",)),
    "tenant weight": Case(tenant("weight"), "policy.tenants[0].weight"),
    "tenant concurrency_max": Case(tenant("concurrency_max"), "policy.tenants[0].concurrency_max"),
    "tenant rate_per_second": Case(tenant("rate_per_second"), "policy.tenants[0].rate_per_second", ("a half",)),
    "set_queue spread": Case(  # where there is no cluster, other refusals come first
        lambda client, queue, value: client.set_queue(queue, spread=value), "spread", ("negative", "zero")
    ),
    "call timeout_s": Case(lambda client, _, value: client.list_queues(timeout_s=value), "timeout_s", NO_END),
    "enqueue timeout_s": Case(
        lambda client, queue, value: client.enqueue(NewTask(queue, "t"), timeout_s=value), "timeout_s", NO_END
    ),
    "wait_task timeout_s": Case(lambda client, _, value: client.wait_task("a", timeout_s=value), "timeout_s", NO_END),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
async def test_a_number_that_makes_no_sense_is_refused_by_the_name_of_its_field(
    client: AsyncClient, queue: str, name: str
) -> None:
    case = CASES[name]
    reported: dict[str, object] = {}
    for kind, value in VALUES.items():
        if kind in case.good:
            continue
        try:
            reported[kind] = await case.call(client, queue, value)
        except InvalidArgument as refused:
            reported[kind] = refused.field
            assert refused.field in str(refused)
        except Exception as other:  # noqa: BLE001 - to be shown with all others of the case
            reported[kind] = other
    assert reported == {kind: case.field for kind in VALUES if kind not in case.good}


async def test_a_limit_without_an_end_is_as_good_as_any(client: AsyncClient) -> None:
    """Such calls used to hang for ever: here that is a failure of this test, not of the whole run."""
    for timeout_s in (math.inf, 2**70, 10**400, 1e12):
        async with asyncio.timeout(30):
            assert await client.list_queues(timeout_s=timeout_s) is not None
