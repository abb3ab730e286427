"""How the settings of a queue change: sets by generations, what drains, and the limits of a policy."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from holdfast.broker.config import BrokerConfig
from holdfast.broker.policy import policies
from holdfast.cluster.admin.conversion import policy_message, queue_settings
from holdfast.cluster.map.policy import (
    NO_POLICY,
    POLICY_BYTES_MAX,
    POLICY_FIELDS,
    POLICY_LIMITS,
    TENANT_LIMITS,
    TENANTS_MAX,
    PolicyRecord,
    TenantRecord,
)
from holdfast.cluster.map.queues import (
    GENERATIONS_MAX,
    Home,
    Pin,
    Placement,
    QueueChange,
    Spread,
    change_queue,
    check_queue_name,
    note_drained,
    note_draining,
)
from holdfast.cluster.map.records import QueueRecord
from holdfast.proto.v1 import cluster_pb2 as pb
from holdfast.routing.homes import home_shard, spread_shards
from holdfast.serving import refusals
from holdfast.serving.refusals import RefusedError

SHARDS = 16
HOME = home_shard("q", SHARDS)
OTHERS = tuple(shard for shard in range(SHARDS) if shard != HOME)


def placed(record: QueueRecord | None, placement: Placement) -> QueueRecord:
    return change_queue("q", record, QueueChange(placement), SHARDS)


def test_a_spread_takes_the_home_and_grows_by_its_own_order() -> None:
    two, four = placed(None, Spread(2)), placed(None, Spread(4))
    assert two.newest[0] == HOME
    assert four.newest[:2] == two.newest
    assert four.newest == spread_shards("q", SHARDS, 4)
    assert two.draining == ()


def test_the_same_set_makes_no_generation() -> None:
    assert placed(None, Home()) == placed(None, Spread(1)) == placed(None, Pin((HOME,))) == QueueRecord()
    four = placed(None, Spread(4))
    assert placed(four, Spread(4)) is four
    assert placed(four, Pin(four.newest[::-1])) is four


def test_what_new_tasks_leave_drains_but_never_the_home() -> None:
    pinned = placed(placed(None, Spread(4)), Pin(OTHERS[:2]))
    before = spread_shards("q", SHARDS, 4)
    assert pinned.generation == 2
    assert set(pinned.draining) == set(before) - {HOME} - set(OTHERS[:2])
    back = placed(pinned, Home())
    assert set(back.draining) == (set(before) | set(OTHERS[:2])) - {HOME}
    again = placed(back, Spread(SHARDS))
    assert again.draining == ()
    assert [generation for generation, _ in again.sets] == [1, 2, 3, 4]


def test_drained_shards_are_written_down_until_they_are_used_again() -> None:
    record = placed(placed(None, Pin(OTHERS[:3])), Home())
    drained = note_drained("q", record, OTHERS[0], SHARDS)
    assert drained is not None
    assert (drained.draining, drained.drained) == (OTHERS[1:3], OTHERS[:1])
    assert note_drained("q", drained, OTHERS[0], SHARDS) is None
    late = note_draining("q", drained, OTHERS[0], SHARDS)
    assert late is not None
    assert (late.draining, late.drained) == (OTHERS[:3], ())
    assert note_draining("q", late, OTHERS[0], SHARDS) is None
    used = placed(drained, Pin(OTHERS[:1]))
    assert OTHERS[0] not in used.draining + used.drained


def test_shards_in_use_never_drain() -> None:
    record = placed(None, Pin(OTHERS[:2]))
    for shard in (HOME, OTHERS[0]):
        assert note_draining("q", record, shard, SHARDS) is None
        assert note_drained("q", replace(record, draining=(shard,)), shard, SHARDS) is None
    assert note_draining("q", None, HOME, SHARDS) is None
    assert note_drained("q", None, OTHERS[0], SHARDS) is None


def test_a_shard_with_tasks_of_a_queue_without_a_record_makes_it_visible() -> None:
    assert note_draining("q", None, OTHERS[0], SHARDS) == QueueRecord(draining=OTHERS[:1])


def test_old_generations_are_forgotten_once_they_have_drained() -> None:
    record = placed(None, Pin(OTHERS[:1]))
    for number in range(GENERATIONS_MAX - 1):
        record = placed(record, Pin(OTHERS[1 + number % 2 : 2 + number % 2]))
    assert len(record.sets) == GENERATIONS_MAX
    assert OTHERS[0] in record.draining
    with pytest.raises(RefusedError) as refused:
        placed(record, Pin(OTHERS[5:6]))
    assert refused.value.metadata["why"] == "draining"
    drained = note_drained("q", record, OTHERS[0], SHARDS)
    assert drained is not None
    after = placed(drained, Pin(OTHERS[5:6]))
    assert len(after.sets) == GENERATIONS_MAX
    assert after.sets[0][0] == 2
    assert after.generation == GENERATIONS_MAX + 1
    assert OTHERS[0] in after.drained, "it has counted tasks of the queue"


@pytest.mark.parametrize(
    ("placement", "reason"),
    [
        (Spread(0), refusals.OUT_OF_RANGE),
        (Spread(SHARDS + 1), refusals.OUT_OF_RANGE),
        (Pin(()), refusals.MISSING_FIELD),
        (Pin((SHARDS,)), refusals.SHARD_NOT_FOUND),
        (Pin((-1,)), refusals.SHARD_NOT_FOUND),
    ],
)
def test_placements_that_cannot_be_are_refused(placement: Placement, reason: str) -> None:
    with pytest.raises(RefusedError) as refused:
        placed(None, placement)
    assert refused.value.reason == reason


# Policy


def changed(policy: PolicyRecord = NO_POLICY, clear: Sequence[str] = (), **given: Any) -> PolicyRecord:
    record = change_queue("q", QueueRecord(policy=policy), QueueChange(policy=given, clear=clear), SHARDS)
    return record.policy


def refused(policy: PolicyRecord = NO_POLICY, clear: Sequence[str] = (), **given: Any) -> tuple[str, str, str]:
    with pytest.raises(RefusedError) as caught:
        changed(policy, clear, **given)
    assert caught.value.field in caught.value.message or caught.value.field == "clear"
    return caught.value.reason, caught.value.field, caught.value.limit


def tenant(name: str = "a", **given: float) -> TenantRecord:
    return TenantRecord(tenant=name, **given)  # type: ignore[arg-type]


def test_only_what_is_given_changes() -> None:
    policy = changed(max_attempts=3, retry_jitter=0)
    policy = changed(policy, ["max_attempts"], max_claims=9)
    assert policy == PolicyRecord(max_claims=9, retry_jitter=0.0)


def test_the_same_again_changes_nothing() -> None:
    given: dict[str, Any] = {"max_attempts": 3, "paused": True, "tenants": (tenant(weight=2),)}
    policy = changed(**given)
    assert changed(policy, **given) is policy
    record = QueueRecord(policy=policy)
    assert change_queue("q", record, QueueChange(policy=given), SHARDS) is record


def test_limits_are_those_of_the_brokers() -> None:
    """A default of the configuration, or the limits at which a leader moves what makes no sense."""
    settings = {"result_ttl_ms": "result_ttl_default_ms"}
    of_a_leader = {
        "max_attempts": (1, policies.ATTEMPTS_MAX),
        "max_claims": (1, policies.CLAIMS_MAX),
        "timeout_ms": (policies.TIMEOUT_MS_MIN, policies.TIMEOUT_MS_MAX),
        "ttl_ms": (policies.TTL_MS_MIN, policies.TTL_MS_MAX),
        "dead_alert_at": (1, policies.ALERT_MAX),
    }
    of_a_leader |= {
        name: (1, policies.CAP_MAX) for name in POLICY_LIMITS if name.endswith(("concurrency_max", "_burst"))
    }
    for name, limits in POLICY_LIMITS.items():
        if name.endswith("rate_per_second"):
            assert limits == (0.001, policies.RATE_MILLI_MAX / 1000), name
        elif name in of_a_leader:
            assert limits == of_a_leader[name], name
        else:
            metadata = BrokerConfig.model_fields[settings.get(name, name)].metadata
            bounds = {key: getattr(item, key) for item in metadata for key in ("ge", "le") if hasattr(item, key)}
            assert bounds == {"ge": limits[0], "le": limits[1]}, name
    assert policies.POLICY_BYTES_MAX == POLICY_BYTES_MAX
    assert TENANT_LIMITS["weight"] == (1, policies.WEIGHT_MAX)


def test_every_field_of_the_wire_can_be_set() -> None:
    assert set(POLICY_FIELDS) == {field.name for field in pb.QueuePolicy.DESCRIPTOR.fields}
    others = {"retry_shape", "non_retryable", "paused", "dead_alert_url", "tenants"}
    assert set(POLICY_FIELDS) == set(POLICY_LIMITS) | others
    assert {"tenant", *TENANT_LIMITS} == {field.name for field in pb.TenantPolicy.DESCRIPTOR.fields}


def rate_for(name: str) -> dict[str, Any]:
    """A burst needs its rate."""
    return {name.replace("burst", "per_second"): 1.0} if name.endswith("burst") else {}


def too_far(low: float, high: float) -> list[float]:
    return [low - (0.0001 if low == 0.001 else 1), -1, high + 1, 2**63 - 1, -(2**63), *NO_NUMBERS]


NO_NUMBERS = [float("nan"), float("inf"), float("-inf")]


@pytest.mark.parametrize("name", POLICY_LIMITS)
def test_values_outside_the_limits_are_refused(name: str) -> None:
    low, high = POLICY_LIMITS[name]
    for good in (low, high):
        assert getattr(changed(**{name: good} | rate_for(name)), name) == good
    for bad in too_far(low, high):
        assert refused(**{name: bad} | rate_for(name)) == (refusals.OUT_OF_RANGE, f"policy.{name}", f"{low}..{high}")


@pytest.mark.parametrize("name", TENANT_LIMITS)
def test_values_of_a_tenant_outside_the_limits_are_refused(name: str) -> None:
    low, high = TENANT_LIMITS[name]
    more = rate_for(name)
    for good in (low, high):
        assert changed(tenants=[tenant(**{name: good} | more)]).tenants[0] == tenant(**{name: good} | more)
    for bad in too_far(low, high):
        found = refused(tenants=[tenant("first", weight=1), tenant(**{name: bad} | more)])
        assert found == (refusals.OUT_OF_RANGE, f"policy.tenants[1].{name}", f"{low}..{high}")


@pytest.mark.parametrize(
    ("given", "reason", "field"),
    [
        ({"max_attempts": 2.5}, refusals.OUT_OF_RANGE, "policy.max_attempts"),
        ({"retry_shape": "square"}, refusals.INVALID_FIELD, "policy.retry_shape"),
        ({"retry_shape": ""}, refusals.INVALID_FIELD, "policy.retry_shape"),
        ({"dead_alert_url": "ftp://host/x"}, refusals.INVALID_FIELD, "policy.dead_alert_url"),
        ({"dead_alert_url": "http://"}, refusals.INVALID_FIELD, "policy.dead_alert_url"),
        ({"dead_alert_url": "http:///path"}, refusals.INVALID_FIELD, "policy.dead_alert_url"),
        ({"dead_alert_url": "http://host/a b"}, refusals.INVALID_FIELD, "policy.dead_alert_url"),
        ({"dead_alert_url": "http://host/\n"}, refusals.INVALID_FIELD, "policy.dead_alert_url"),
        ({"dead_alert_url": "http://höst/"}, refusals.INVALID_FIELD, "policy.dead_alert_url"),
        ({"dead_alert_url": "http://host:99999/"}, refusals.INVALID_FIELD, "policy.dead_alert_url"),
        ({"dead_alert_url": "http://[::1/"}, refusals.INVALID_FIELD, "policy.dead_alert_url"),
        ({"dead_alert_url": "https://host/" + "x" * 500}, refusals.TOO_LARGE, "policy.dead_alert_url"),
        ({"non_retryable": ["x"] * 65}, refusals.TOO_LARGE, "policy.non_retryable"),
        ({"non_retryable": ["x", ""]}, refusals.MISSING_FIELD, "policy.non_retryable[1]"),
        ({"non_retryable": ["x", "y" * 257]}, refusals.TOO_LARGE, "policy.non_retryable[1]"),
        ({"non_retryable": ["a\tb"]}, refusals.INVALID_FIELD, "policy.non_retryable[0]"),
        ({"tenants": [tenant(str(index), weight=1) for index in range(257)]}, refusals.TOO_LARGE, "policy.tenants"),
        ({"tenants": [tenant("", weight=1)]}, refusals.MISSING_FIELD, "policy.tenants[0].tenant"),
        ({"tenants": [tenant("ä" * 129, weight=1)]}, refusals.TOO_LARGE, "policy.tenants[0].tenant"),
        ({"tenants": [tenant("a\0", weight=1)]}, refusals.INVALID_FIELD, "policy.tenants[0].tenant"),
        ({"tenants": [tenant("a")]}, refusals.MISSING_FIELD, "policy.tenants[0]"),
        ({"tenants": [tenant(weight=1), tenant(weight=2)]}, refusals.INVALID_FIELD, "policy.tenants[1].tenant"),
        ({"tenants": [tenant(rate_burst=1)]}, refusals.INVALID_FIELD, "policy.tenants[0].rate_burst"),
        ({"rate_burst": 1}, refusals.INVALID_FIELD, "policy.rate_burst"),
        ({"tenant_rate_burst": 1, "rate_per_second": 1.0}, refusals.INVALID_FIELD, "policy.tenant_rate_burst"),
        ({"key_rate_burst": 1}, refusals.INVALID_FIELD, "policy.key_rate_burst"),
        ({"retry_base_ms": 10, "retry_cap_ms": 9}, refusals.OUT_OF_RANGE, "policy.retry_base_ms"),
        ({"max_attempts": 10, "max_claims": 9}, refusals.OUT_OF_RANGE, "policy.max_attempts"),
        ({"nonsense": 1}, refusals.INVALID_FIELD, "policy.nonsense"),
    ],
)
def test_values_that_cannot_be_are_refused(given: dict[str, Any], reason: str, field: str) -> None:
    assert refused(**given)[:2] == (reason, field)


@pytest.mark.parametrize(
    "url", ["http://h", "https://host:8080/x?y=%20&z", "http://[::1]:80/", "http://10.0.0.1/a", ""]
)
def test_urls_that_can_be_called_are_taken(url: str) -> None:
    assert changed(dead_alert_url=url).dead_alert_url == url


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("http://h", "http://h"),
        ("https://host:8080/", "https://host:8080/"),
        ("https://host:8080/x?key=secret", "https://host:8080/…"),
        ("https://host?key=secret", "https://host/…"),
        ("https://host#secret", "https://host/…"),
        ("https://user:secret@host/", "https://host/…"),
        ("https://secret@[::1]:80", "https://[::1]:80/…"),
    ],
)
def test_of_urls_only_the_host_is_shown(url: str, expected: str) -> None:
    shown = queue_settings("mail", QueueRecord(policy=PolicyRecord(dead_alert_url=url)), 1, 1)
    assert shown.policy.dead_alert_url == expected
    if expected.endswith("…"):
        assert refused(dead_alert_url=expected)[1] == "policy.dead_alert_url", "nobody sets it by mistake"


def test_what_a_list_has_twice_counts_once_and_a_new_list_replaces_it() -> None:
    policy = changed(non_retryable=["b", "a", "b"])
    assert policy.non_retryable == ("b", "a")
    assert changed(policy, non_retryable=["c"]).non_retryable == ("c",)
    assert changed(policy, ["non_retryable"]) == NO_POLICY


def test_a_queue_that_goes_on_has_nothing_to_write_down() -> None:
    assert changed(paused=False) == NO_POLICY
    assert changed(changed(paused=True), paused=False) == NO_POLICY


def test_tenants_change_each_for_itself() -> None:
    policy = changed(tenants=[tenant("b", weight=2), tenant("a.b", concurrency_max=4, weight=3)])
    assert [item.tenant for item in policy.tenants] == ["a.b", "b"]
    more = changed(policy, tenants=[tenant("c", weight=9), tenant("a.b", weight=1)])
    assert more.tenants == (
        tenant("a.b", concurrency_max=4, weight=1), tenant("b", weight=2), tenant("c", weight=9)
    )  # fmt: skip
    less = changed(more, ["tenants.a.b", "tenants.nobody"])
    assert [item.tenant for item in less.tenants] == ["b", "c"]
    assert changed(more, ["tenants"]) == NO_POLICY
    assert changed(more, ["tenants"], tenants=[tenant("d", weight=2)]).tenants == (tenant("d", weight=2),)


def test_what_is_not_given_of_a_tenant_stays() -> None:
    policy = changed(tenants=[tenant("a", weight=3, rate_per_second=5.0, rate_burst=9)])
    policy = changed(policy, tenants=[tenant("a", concurrency_max=5, rate_per_second=6.0)])
    assert policy.tenants == (tenant("a", weight=3, concurrency_max=5, rate_per_second=6.0, rate_burst=9),)
    assert changed(policy, tenants=[tenant("a", concurrency_max=5)]) is policy


def test_a_burst_of_a_tenant_needs_a_rate_that_is_there() -> None:
    policy = changed(tenants=[tenant("a", rate_per_second=5.0), tenant("b", weight=2)])
    burst = tenant("a", rate_burst=9)
    assert changed(policy, tenants=[burst]).tenants[0] == tenant("a", rate_per_second=5.0, rate_burst=9)
    wrong = [tenant("a", weight=1), tenant("b", rate_burst=9)]
    assert refused(policy, tenants=wrong)[:2] == (refusals.INVALID_FIELD, "policy.tenants[1].rate_burst")
    assert refused(policy, ["tenant_rate_per_second.a"], tenants=[burst])[1] == "policy.tenants[0].rate_burst"
    assert refused(policy, ["tenants.a"], tenants=[burst])[1] == "policy.tenants[0].rate_burst"


def test_single_fields_of_a_tenant_are_cleared() -> None:
    full = tenant("a.b", weight=3, concurrency_max=5, rate_per_second=6.0, rate_burst=9)
    policy = changed(tenants=[full, tenant("c", weight=2)], tenant_concurrency_max=7)
    less = changed(policy, ["tenant_weight.a.b", "tenant_rate_burst.a.b", "tenant_weight.nobody"])
    assert less.tenants == (tenant("a.b", concurrency_max=5, rate_per_second=6.0), tenant("c", weight=2))
    without_rate = changed(policy, ["tenant_rate_per_second.a.b"]).tenants[0]
    assert without_rate == tenant("a.b", weight=3, concurrency_max=5), "a burst goes with its rate"
    assert changed(policy, ["tenant_concurrency_max"]).tenants == policy.tenants, "that of each tenant"
    assert changed(policy, ["tenant_concurrency_max.a.b"]).tenant_concurrency_max == 7


def test_a_tenant_of_which_everything_is_cleared_is_forgotten() -> None:
    policy = changed(tenants=[tenant("a", weight=3)])
    assert changed(policy, ["tenant_weight.a"]) == NO_POLICY


def test_a_tenant_that_is_cleared_and_set_has_only_what_is_set() -> None:
    policy = changed(tenants=[tenant("a", weight=3, concurrency_max=5), tenant("b", weight=2)])
    anew = changed(policy, ["tenants.a"], tenants=[tenant("a", concurrency_max=6)])
    assert anew.tenants == (tenant("a", concurrency_max=6), tenant("b", weight=2))


def test_a_tenant_may_be_called_like_a_field() -> None:
    policy = changed(max_attempts=2, tenants=[tenant("max_attempts", weight=2)])
    assert changed(policy, ["max_attempts"]).tenants == policy.tenants
    assert changed(policy, ["tenants.max_attempts"]) == PolicyRecord(max_attempts=2)


def test_tenants_are_counted_with_those_that_were_there() -> None:
    policy = changed(tenants=[tenant(f"{index}", weight=1) for index in range(TENANTS_MAX)])
    assert refused(policy, tenants=[tenant("one more", weight=1)]) == (refusals.TOO_LARGE, "policy.tenants", "256")
    changed(policy, ["tenants.7"], tenants=[tenant("one more", weight=1)])


def test_a_policy_that_no_log_would_take_is_refused() -> None:
    many = [tenant(f"{index:0256}", weight=1) for index in range(TENANTS_MAX)]
    assert refused(tenants=many) == (refusals.TOO_LARGE, "policy", str(POLICY_BYTES_MAX))
    largest = changed(tenants=many[:200])
    assert policy_message(largest).ByteSize() < POLICY_BYTES_MAX


def test_a_burst_goes_with_its_rate() -> None:
    policy = changed(rate_per_second=5.0, rate_burst=9, key_rate_per_second=1.0, key_rate_burst=2)
    assert changed(policy, ["rate_per_second"]) == PolicyRecord(key_rate_per_second=1.0, key_rate_burst=2)
    assert changed(policy, ["rate_burst"]).rate_per_second == 5.0
    assert refused(policy, ["rate_per_second"], rate_burst=1)[:2] == (refusals.INVALID_FIELD, "policy.rate_burst")


@pytest.mark.parametrize(
    "name",
    ["nonsense", "tenants.", "tenant", "policy.max_claims", "", "tenant_weight", "tenant_weight.", "weight.a",
     "max_claims.a"],
)  # fmt: skip
def test_what_cannot_be_cleared_is_refused(name: str) -> None:
    assert refused(clear=[name])[:2] == (refusals.INVALID_FIELD, "clear")


def test_what_is_set_and_cleared_is_refused() -> None:
    assert refused(clear=["max_claims"], max_claims=9)[1] == "clear"
    assert refused(clear=["tenant_weight.a"], tenants=[tenant("a", weight=1)])[1] == "clear"
    assert changed(clear=["tenant_rate_burst.a"], tenants=[tenant("a", weight=1)]).tenants


def test_a_contradiction_with_what_was_set_before_is_refused_too() -> None:
    policy = changed(max_claims=5)
    assert refused(policy, max_attempts=6) == (refusals.OUT_OF_RANGE, "policy.max_attempts", "5")


@pytest.mark.parametrize("name", ["", "a/b", "ä", "x" * 129, " q"])
def test_names_that_cannot_be_are_refused(name: str) -> None:
    with pytest.raises(RefusedError):
        check_queue_name(name)
