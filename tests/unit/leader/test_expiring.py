"""What becomes of a claim that ran out: its lease ended, or the task had its time."""

from typing import Any

import pytest

from holdfast.broker.config import BrokerConfig
from holdfast.broker.leader.expiring import CLAIMS_SPENT, TASK_TIMEOUT, Expiries
from holdfast.broker.policy.policies import Policies
from holdfast.machine import rows
from holdfast.machine.entries import ExpireItem
from holdfast.machine.kv import MemoryKV
from holdfast.machine.reader import Reader
from holdfast.proto.v1 import tasks_pb2 as pb

CONFIG = BrokerConfig(retry_jitter=0, retry_base_ms=700)
TASK_ID = bytes(16)
CLAIMED_MS = 10_000


def claimed(**changes: Any) -> rows.Execution:
    fields: dict[str, Any] = {
        "queue": b"mail", "tenant": b"", "request_id": b"", "type": b"t", "limit_key": b"", "unique_key": b"",
        "worker": b"w1", "state": rows.CLAIMED, "priority": 5, "flags": 0, "dead_reason": 0, "sequence": 1, "token": 9,
        "timer_ms": CLAIMED_MS + 2000, "start_by_ms": 0, "enqueued_ms": 1, "changed_ms": CLAIMED_MS,
        "ready_since_ms": 1, "result_ttl_ms": 0, "claims": 1, "failures": 0, "max_attempts": 2, "max_claims": 3,
        "size_bytes": 1, "timeout_ms": 0,
    }  # fmt: skip
    return rows.Execution(**fields | changes)


def expire(expiries: Expiries, task: rows.Execution, now_ms: int) -> ExpireItem:
    (item,) = expiries.items([(TASK_ID, task)], now_ms)
    return item


@pytest.fixture
def expiries() -> Expiries:
    reader = Reader(MemoryKV())
    return Expiries(reader, Policies(reader, CONFIG), lambda: 0.5)


def test_a_lease_that_ended_is_no_failure(expiries: Expiries) -> None:
    item = expire(expiries, claimed(), CLAIMED_MS + 2000)
    assert (item.how, item.dead_reason, item.retry_at_ms, item.error) == (rows.ATTEMPT_LEASE_EXPIRED, 0, 0, b"")


def test_the_last_claim_says_why_the_task_is_dead(expiries: Expiries) -> None:
    item = expire(expiries, claimed(claims=3, failures=1, flags=rows.SUSPECT), CLAIMED_MS + 2000)
    assert item.dead_reason == rows.CLAIMS_SPENT
    error = pb.TaskError.FromString(item.error)
    assert error.type == CLAIMS_SPENT
    assert "died or stood still 2 times while this task ran alone" in error.message
    assert "worker w1" in error.message
    in_company = expire(expiries, claimed(claims=3), CLAIMED_MS + 2000)
    assert (in_company.dead_reason, in_company.error) == (rows.NOT_DEAD, b"")


def test_a_task_that_had_its_time_has_failed(expiries: Expiries) -> None:
    now_ms = CLAIMED_MS + 2000
    item = expire(expiries, claimed(timeout_ms=2000), now_ms)
    assert (item.how, item.dead_reason, item.retry_at_ms) == (rows.ATTEMPT_TIMED_OUT, 0, now_ms + 700)
    assert pb.TaskError.FromString(item.error).type == TASK_TIMEOUT
    last = expire(expiries, claimed(timeout_ms=2000, failures=1), now_ms)
    assert (last.dead_reason, last.retry_at_ms) == (rows.ATTEMPTS_SPENT, 0)


def test_a_lease_that_ended_long_ago_is_no_timeout(expiries: Expiries) -> None:
    """Nobody looked for a while: still it was the lease that ended, and the task had not had all its time."""
    item = expire(expiries, claimed(timeout_ms=60_000), CLAIMED_MS + 3_600_000)
    assert item.how == rows.ATTEMPT_LEASE_EXPIRED
