"""The part of the load that asks for more than to be done: tasks with a unique key, a limit key, a tenant, a time to
live or a timeout, and schedules. All of it is made so that much happens within seconds."""

import random
from dataclasses import replace

from holdfast.client import CatchUp, NewTask, QueuePolicy, RetryPolicy, Schedule, UniqueScope

# One caller each, who sends and claims by turns: so it is known which of its tasks were ready when it asked.
RANKED = ("ranked-1", "ranked-2")
STRICT = QueuePolicy(oldest_share_percent=0)
LIMITED, ONCE, BRIEF, TIMED, TICKS = "limited", "once", "brief", "timed", "ticks"
OPTION_QUEUES = (LIMITED, ONCE, BRIEF, TIMED, TICKS)
# Few keys and small caps, so that each is always wanted by somebody else.
KEYS = 3
KEY_CAPS = {LIMITED: 1}
TENANT_CAPS = {LIMITED: 2}
POLICIES = {LIMITED: QueuePolicy(key_concurrency_max=KEY_CAPS[LIMITED], tenant_concurrency_max=TENANT_CAPS[LIMITED])}
TTL_MS = 1000
BRIEF_EVERY_S = 6  # in the first second of each so many BRIEF is asked for: most of its tasks wait for too long
TIMEOUT_MS = 1000  # less than a lease: whoever says nothing has taken too long
TIMED_BUDGET = 2
IDLE_SHARE = {LIMITED: 0.3, ONCE: 0.3, TIMED: 0.5}  # of claims that nobody ends: they hold up others, or take too long
TICK_EVERY_MS = 1000
# By name. No outage is as long as 60 s, so every tick is made up for, whatever the schedule says about outages.
SCHEDULES = {"every": ("@every 1s", CatchUp.ALL), "cron": ("* * * * * *", CatchUp.ONE)}


def option_task(draw: random.Random, value: str, payload: bytes) -> NewTask:
    """One of these kinds."""
    queue = draw.choice((LIMITED, LIMITED, ONCE, ONCE, BRIEF, BRIEF, TIMED))
    task = NewTask(queue, queue, payload, request_id=value, max_attempts=1000, max_claims=10_000)
    if queue == LIMITED:
        has_key, has_tenant = draw.choice(((True, False), (False, True), (True, True)))
        limit_key, tenant = f"k{draw.randrange(KEYS)}" * has_key, f"t{draw.randrange(KEYS)}" * has_tenant
        return replace(task, limit_key=limit_key, tenant=tenant)
    if queue == ONCE:
        scope = draw.choice((UniqueScope.UNTIL_DONE, UniqueScope.WHILE_WAITING))
        key = f"{scope.value}-{draw.randrange(2)}"
        request_id = draw.choice((value, ""))  # which is looked up first
        return replace(task, request_id=request_id, unique_key=key, unique_scope=scope)
    if queue == BRIEF:
        return replace(task, ttl_ms=TTL_MS)
    return replace(task, timeout_ms=TIMEOUT_MS, max_attempts=TIMED_BUDGET, retry=RetryPolicy(base_ms=20, jitter=0))


def schedules() -> list[Schedule]:
    task = NewTask(TICKS, TICKS)
    return [Schedule(name, when, task, catch_up=catch_up) for name, (when, catch_up) in SCHEDULES.items()]
