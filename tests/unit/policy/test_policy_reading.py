"""How a leader reads the policy of a queue, and that it means to it what was said to the server."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings
from pydantic import ValidationError

from holdfast.broker.config import BrokerConfig
from holdfast.broker.policy.policies import EffectivePolicy, EffectiveTenantPolicy, Limits, default_policy, parse_policy
from holdfast.broker.policy.retry_delays import RetryDelays
from holdfast.cluster.admin.conversion import policy_message, policy_of, queue_change
from holdfast.cluster.map.policy import (
    FRACTIONS,
    NO_POLICY,
    POLICY_FIELDS,
    POLICY_LIMITS,
    RETRY_SHAPES,
    TENANT_LIMITS,
    PolicyRecord,
    TenantRecord,
    change_policy,
)
from holdfast.cluster.map.records import QueueRecord
from holdfast.limits.buckets import Rate
from holdfast.proto.v1.cluster_pb2 import QueuePolicy as PolicyMessage
from holdfast.proto.v1.cluster_pb2 import SetQueueRequest
from holdfast.proto.v1.cluster_pb2 import TenantPolicy as TenantMessage
from holdfast.serving.refusals import RefusedError
from tests.unit.policy import own_policy
from tests.unit.policy.own_policy import CONFIG, HOUR_MS, MINUTE_MS, PLAIN

OWN = own_policy.OWN | {
    "retry_shape": "linear",
    "non_retryable": ["BadInput", "app.Gone"],
    "oldest_share_percent": 50,
    "paused": True,
    "timeout_ms": 2 * MINUTE_MS,
    "ttl_ms": 4 * HOUR_MS,
    "concurrency_max": 11,
    "tenant_concurrency_max": 12,
    "key_concurrency_max": 13,
    "rate_per_second": 2.5,
    "rate_burst": 21,
    "tenant_rate_per_second": 3.5,
    "tenant_rate_burst": 22,
    "key_rate_per_second": 4.5,
    "key_rate_burst": 23,
    "dead_alert_at": 99,
    "dead_alert_url": "http://alerts.test/x",
    "tenants": [TenantMessage(tenant="big", weight=9, concurrency_max=14, rate_per_second=5.5, rate_burst=24)],
}


def parse(**fields: Any) -> EffectivePolicy:
    return parse_policy(PolicyMessage(**fields).SerializeToString(), PLAIN, CONFIG.delay_ms_max)


def test_what_a_policy_leaves_out_is_as_the_configuration_says() -> None:
    assert parse() == PLAIN
    retry = RetryDelays(CONFIG.retry_base_ms, CONFIG.retry_factor, 9, CONFIG.retry_jitter, CONFIG.retry_shape)
    assert parse(max_attempts=7, retry_cap_ms=9) == replace(PLAIN, max_attempts=7, retry=retry)
    reported = default_policy(
        BrokerConfig(retry_shape="fixed", oldest_share_percent=7, dead_alert_url="http://a.test/")
    )
    assert (reported.retry.shape, reported.oldest_share_percent, reported.dead_alert_url) == (
        "fixed",
        7,
        "http://a.test/",
    )
    own = PolicyMessage(dead_alert_url="", oldest_share_percent=0, retry_shape="of a newer version")
    found = parse_policy(own.SerializeToString(), reported, CONFIG.delay_ms_max)
    assert (found.retry.shape, found.oldest_share_percent, found.dead_alert_url) == ("fixed", 0, "")


def test_the_url_of_the_configuration_is_checked_and_not_shown() -> None:
    """Who knows such a URL may often post there."""
    shown = BrokerConfig(dead_alert_url="https://alerts.test/secret").describe()
    assert (shown["dead_alert_url"], CONFIG.describe()["dead_alert_url"]) == ("(set)", "")
    for bad in ("ftp://a", "alerts.test", "http://", "http:///x", "http://a b", "http://a/" + "x" * 510):
        with pytest.raises(ValidationError, match="dead_alert_url"):
            BrokerConfig(dead_alert_url=bad)


def test_every_field_counts() -> None:
    assert {field.name for field in PolicyMessage.DESCRIPTOR.fields} == set(OWN)
    assert parse(**OWN) == EffectivePolicy(
        max_attempts=2,
        max_claims=3,
        retry=RetryDelays(70, 3.0, 200, 0.0, "linear"),
        non_retryable=frozenset(("BadInput", "app.Gone")),
        dedup_window_ms=5000,
        result_ttl_ms=2 * HOUR_MS,
        finished_retention_ms=HOUR_MS,
        dead_retention_ms=3 * HOUR_MS,
        oldest_share_percent=50,
        paused=True,
        timeout_ms=2 * MINUTE_MS,
        ttl_ms=4 * HOUR_MS,
        limits=Limits(
            11, 12, 13, Rate(2500, 21), Rate(3500, 22), Rate(4500, 23),
            {b"big": EffectiveTenantPolicy(9, 14, Rate(5500, 24))},
        ),
        dead_alert_at=99,
        dead_alert_url="http://alerts.test/x",
    )  # fmt: skip


# --- limits -----------------------------------------------------------------------------------------------------------


def test_a_tenant_has_what_it_does_not_say_from_the_queue() -> None:
    tenants = [TenantMessage(tenant="ä", weight=5), TenantMessage(tenant="slow", rate_per_second=0.5)]
    limits = parse(tenant_concurrency_max=7, tenant_rate_per_second=20, tenants=tenants).limits
    assert limits.tenant("ä".encode()) == (5, 7, Rate(20_000, 20))
    assert limits.tenant(b"slow") == (1, 7, Rate(500, 1))
    assert limits.tenant(b"") == limits.tenant(b"nobody") == (1, 7, Rate(20_000, 20))
    assert PLAIN.limits.tenant(b"x") == (1, 0, None)


@pytest.mark.parametrize(
    ("per_second", "rate"),
    [
        (1, Rate(1000, 1)),
        (0.001, Rate(1, 1)),
        (0.0019, Rate(1, 1)),  # never more than was said
        (1.001, Rate(1001, 2)),  # in binary fractions that is less
        (2.5, Rate(2500, 3)),
        (1e6, Rate(10**9, 10**6)),
        (1e300, Rate(10**9, 10**6)),
        (0, Rate(1, 1)),
        (-5, Rate(1, 1)),
        (float("nan"), Rate(1, 1)),
    ],
)
def test_a_rate_has_a_burst_of_one_second(per_second: float, rate: Rate) -> None:
    limits = parse(rate_per_second=per_second, rate_burst=0).limits
    assert limits.rate == Rate(rate.per_second_milli, 1)
    assert parse(rate_per_second=per_second).limits.rate == rate
    assert parse(rate_burst=5).limits.rate is None


@pytest.mark.parametrize(
    "name",
    [name for name in OWN if "concurrency" in name or name.endswith("per_second") or name == "tenants"],
)
def test_each_limit_is_looked_at(name: str) -> None:
    assert parse(**{name: OWN[name]}).has_limits


def test_without_limits_there_is_nothing_to_look_at() -> None:
    assert not PLAIN.has_limits
    assert not parse(**own_policy.OWN, paused=True, timeout_ms=5000, rate_burst=5, dead_alert_at=3).has_limits


# --- from the map to the leader ---------------------------------------------------------------------------------------


def numbers(limits: Mapping[str, tuple[float, float]], name: str) -> st.SearchStrategy[float]:
    low, high = limits[name]
    return st.floats(low, high) if name in FRACTIONS else st.integers(int(low), int(high))


def some_of(limits: Mapping[str, tuple[float, float]]) -> st.SearchStrategy[dict[str, Any]]:
    """A few fields, and no burst without its rate."""
    found: st.SearchStrategy[dict[str, Any]] = st.fixed_dictionaries(
        {}, optional={name: numbers(limits, name) for name in limits}
    )
    return found.map(
        lambda given: {
            name: value
            for name, value in given.items()
            if not name.endswith("burst") or name.replace("burst", "per_second") in given
        }
    )


NAMES = st.text(st.characters(exclude_categories=("Cc", "Cs")), min_size=1, max_size=40)
TENANTS = st.builds(
    lambda name, given: TenantRecord(tenant=name, **given), NAMES, some_of(TENANT_LIMITS).filter(bool)
)  # fmt: skip
CHANGES = st.builds(
    lambda plain, more: plain | more,
    some_of(POLICY_LIMITS),
    st.fixed_dictionaries(
        {},
        optional={
            "retry_shape": st.sampled_from(RETRY_SHAPES),
            "paused": st.booleans(),
            "non_retryable": st.lists(NAMES, min_size=1, max_size=5),
            "dead_alert_url": st.sampled_from(("", "http://a.test", "https://b.test:1/x")),
            "tenants": st.lists(TENANTS, min_size=1, max_size=4, unique_by=lambda item: item.tenant),
        },
    ),
)
CLEARS = st.sets(st.sampled_from([*POLICY_FIELDS, "tenants.a"]), max_size=5)


def message_of(given: Mapping[str, Any]) -> PolicyMessage:
    """What a client sends, made by hand."""
    sent = dict(given)
    if "tenants" in sent:
        sent["tenants"] = [TenantMessage(**tenant.given()) for tenant in sent["tenants"]]
    return PolicyMessage(**sent)


@settings(max_examples=60, deadline=None)
@given(CHANGES, CHANGES, CLEARS)
def test_a_policy_comes_from_the_wire_to_the_leader_as_it_was_said(
    first: dict[str, Any], second: dict[str, Any], clear: set[str]
) -> None:
    record = NO_POLICY
    for wanted, cleared in ((first, ()), (second, clear - second.keys())):
        change = queue_change(SetQueueRequest(policy=message_of(wanted), clear=sorted(cleared)))
        try:
            record = change_policy(record, change.policy or {}, change.clear)
        except RefusedError:  # they contradict each other
            continue
        assert change_policy(record, change.policy or {}, change.clear) is record
    stored = QueueRecord.decode("k", QueueRecord(policy=record).encode()).policy
    assert stored == record
    message = policy_message(record)
    assert policy_of(PolicyMessage.FromString(message.SerializeToString())) == record
    found = parse_policy(message.SerializeToString(), PLAIN, CONFIG.delay_ms_max)
    retentions = "dedup_window_ms", "finished_retention_ms", "result_ttl_ms", "dead_retention_ms"
    for name in ("max_attempts", "oldest_share_percent", *retentions):
        said = getattr(record, name)
        assert getattr(found, name) == (getattr(PLAIN, name) if said is None else said), name
    for name in ("max_claims", "timeout_ms", "ttl_ms", "dead_alert_at", "dead_alert_url"):
        assert (getattr(found, name) or None) == (getattr(record, name) or None), name
    assert found.paused == bool(record.paused)
    assert found.non_retryable == set(record.non_retryable)
    for name in ("base_ms", "factor", "cap_ms", "jitter", "shape"):
        said = getattr(record, f"retry_{name}")
        assert getattr(found.retry, name) == (getattr(PLAIN.retry, name) if said is None else said), name
    check_limits(record, found.limits)


def check_limits(record: PolicyRecord, limits: Limits) -> None:
    for name in ("concurrency_max", "tenant_concurrency_max", "key_concurrency_max"):
        assert getattr(limits, name) == (getattr(record, name) or 0)
    for name in ("rate", "tenant_rate", "key_rate"):
        check_rate(getattr(record, f"{name}_per_second"), getattr(record, f"{name}_burst"), getattr(limits, name))
    assert set(limits.tenants) == {item.tenant.encode() for item in record.tenants}
    for tenant in record.tenants:
        weight, concurrency_max, rate = limits.tenant(tenant.tenant.encode())
        assert weight == (tenant.weight or 1)
        assert concurrency_max == (tenant.concurrency_max or limits.tenant_concurrency_max)
        if tenant.rate_per_second is None:
            assert rate == limits.tenant_rate
        else:
            check_rate(tenant.rate_per_second, tenant.rate_burst, rate)


def check_rate(per_second: float | None, burst: int | None, rate: Rate | None) -> None:
    assert (rate is None) == (per_second is None)
    if rate is not None and per_second is not None:
        assert rate.per_second_milli <= per_second * 1000 + 1e-5
        assert rate.per_second_milli > per_second * 1000 - 1.001
        assert burst is None or rate.burst == burst
        assert rate.burst >= 1


# --- what makes no sense ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("extreme", [-(2**63), -1, 0, 2**63 - 1])
def test_a_number_without_sense_is_moved_to_the_nearest_with_one(extreme: int) -> None:
    whole = {name: extreme for name, value in OWN.items() if type(value) is int}
    policy = parse(**whole, retry_factor=float(extreme), retry_jitter=float(extreme))
    assert 1 <= policy.max_attempts <= 1000
    assert policy.max_claims is not None
    assert 1 <= policy.max_claims <= 10_000
    assert 0 <= policy.retry.delay_ms(5, lambda: 0.5) <= CONFIG.delay_ms_max
    assert 0 <= policy.oldest_share_percent <= 100
    assert 1000 <= policy.timeout_ms <= 30 * 24 * HOUR_MS
    assert 1000 <= policy.ttl_ms <= 366 * 24 * HOUR_MS
    assert 1 <= policy.limits.concurrency_max <= 10**6
    assert policy.dead_alert_at >= 1
    assert policy.finished_retention_ms >= 10 * MINUTE_MS, "a repeated ack must not meet a forgotten task"
    assert min(policy.dedup_window_ms, policy.dead_retention_ms) >= 1
    assert policy.result_ttl_ms >= 0
    assert parse(retry_factor=float("nan"), retry_jitter=float("nan")).retry.delay_ms(3, lambda: 0.9) > 0
