"""Records of the map: what is written can be read, a newer version's fields are passed over, wrong types are named."""

import json

import pytest

from holdfast.cluster.map.fields import encode
from holdfast.cluster.map.keys import MapKeys
from holdfast.cluster.map.policy import TenantRecord
from holdfast.cluster.map.records import (
    ClusterRecord,
    LeaderRecord,
    Members,
    NodeRecord,
    PlanRecord,
    PolicyRecord,
    QueueRecord,
    RecordError,
    ShardRecord,
    StepRecord,
)
from holdfast.routing.groups import mapped_group
from tests.unit.cluster.cluster_stage import identity, node

SHARD = ShardRecord(
    group=mapped_group(3, 12345),
    replicas=("a", "b", "c"),
    founders=(identity("a"), identity("b")),
    is_founded=True,
    members=Members(7, (identity("a"), identity("b")), (identity("c"),)),
    leaving=(identity("d"),),
)
QUEUE = QueueRecord(
    generation=2,
    sets=((1, (3, 4)), (2, (3,))),
    draining=(4,),
    drained=(9,),
    policy=PolicyRecord(max_attempts=3, retry_factor=1.5),
)
FULL = QueueRecord(
    policy=PolicyRecord(
        retry_shape="linear",
        non_retryable=("BadInput", "app.Größe"),
        paused=True,
        rate_per_second=0.5,
        rate_burst=3,
        dead_alert_url="",
        tenants=(TenantRecord(tenant="ä", weight=3), TenantRecord(tenant="b", rate_per_second=1.0)),
    )
)
PLAN = PlanRecord(
    plan_id="p1",
    revision=12,
    kind="balance",
    summary="One replica moves.",
    steps=(
        StepRecord(shard=1, source="a", destination="b", is_transfer=False, why="a drains", state_bytes=77),
        StepRecord(shard=1, source="b", destination="c", is_transfer=True),
    ),
    began=(1,),
)
LEADER = LeaderRecord("a", mapped_group(1, 5), 9)


@pytest.mark.parametrize("record", [SHARD, QUEUE, FULL, PLAN, LEADER, ClusterRecord("ab" * 16, 8, 3)])
def test_what_is_written_is_read_again(record: ShardRecord | QueueRecord | PlanRecord | LeaderRecord) -> None:
    value = record.encode()
    assert type(record).decode("k", value) == record
    assert encode(json.loads(value)) == value  # compact, with keys in order
    more = encode(json.loads(value) | {"of_a_newer_version": [1]})
    assert type(record).decode("k", more) == record


def test_a_node_has_its_name_from_the_key() -> None:
    record = node("n1", zone="z", capacity=7)
    assert "name" not in json.loads(record.encode())
    assert NodeRecord.decode("k", record.encode(), "n1") == record
    assert record.identity == f"n1/{record.node_id}"


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("group", "7"),
        ("group", True),
        ("replicas", "a"),
        ("replicas", [1]),
        ("founders", ["a"]),
        ("is_founded", 1),
        ("members", []),
        ("members", {"version": -1, "voters": [], "learners": []}),
        ("leaving", None),
    ],
)
def test_a_field_of_another_type_is_named(field: str, value: object) -> None:
    bad = encode(json.loads(SHARD.encode()) | {field: value})
    with pytest.raises(RecordError) as caught:
        ShardRecord.decode("holdfast/x/shards/00001", bad)
    assert caught.value.field.split(".")[0] == field
    assert "holdfast/x/shards/00001" in str(caught.value)


@pytest.mark.parametrize("field", ["group", "replicas", "founders", "is_founded", "members", "leaving"])
def test_a_missing_field_is_named(field: str) -> None:
    values = json.loads(SHARD.encode())
    del values[field]
    with pytest.raises(RecordError, match=field):
        ShardRecord.decode("k", encode(values))


@pytest.mark.parametrize("value", [b"", b"{", b"[1]", b"null", b"\xff", b"[" * 100_000])
def test_what_is_no_object_is_refused(value: bytes) -> None:
    with pytest.raises(RecordError):
        ClusterRecord.decode("k", value)


def test_the_record_of_a_later_format_is_refused() -> None:
    value = encode(json.loads(ClusterRecord("ab" * 16, 8, 3).encode()) | {"format": 2})
    with pytest.raises(RecordError, match="format"):
        ClusterRecord.decode("k", value)


@pytest.mark.parametrize("sets", [[[1, [2]], [5, [3]]], [], [[2]], [["2", [1]]], [[2, [-1]]], [[2, [4096]]]])
def test_sets_that_do_not_fit_the_generation_are_refused(sets: object) -> None:
    with pytest.raises(RecordError):
        QueueRecord.decode("k", encode(json.loads(QUEUE.encode()) | {"sets": sets}))


def test_a_policy_has_only_what_is_set() -> None:
    assert json.loads(QUEUE.encode())["policy"] == {"max_attempts": 3, "retry_factor": 1.5}
    assert json.loads(FULL.encode())["policy"] == {
        "retry_shape": "linear",
        "non_retryable": ["BadInput", "app.Größe"],
        "paused": True,
        "rate_per_second": 0.5,
        "rate_burst": 3,
        "dead_alert_url": "",
        "tenants": [{"tenant": "ä", "weight": 3}, {"tenant": "b", "rate_per_second": 1.0}],
    }


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("max_claims", "2"),
        ("concurrency_max", 1.5),
        ("rate_per_second", "1"),
        ("rate_per_second", True),
        ("retry_shape", 1),
        ("paused", 1),
        ("non_retryable", "BadInput"),
        ("non_retryable", [1]),
        ("tenants", {"a": {}}),
        ("tenants", [{"weight": 1}]),
        ("tenants", [{"tenant": "a", "weight": "1"}]),
        ("tenants", ["a"]),
    ],
)
def test_a_field_of_a_policy_of_another_type_is_named(field: str, value: object) -> None:
    with pytest.raises(RecordError, match=f"policy.{field}"):
        QueueRecord.decode("k", encode(json.loads(QUEUE.encode()) | {"policy": {field: value}}))


def test_a_policy_of_a_newer_version_is_read() -> None:
    """Nothing that it says beyond this version, or that this one would not take, makes the record unreadable."""
    policy = {"max_attempts": 10**6, "retry_shape": "fibonacci", "of_a_newer_version": {"a": 1}}
    policy |= {"tenants": [{"tenant": "a", "weight": 10**6, "of_a_newer_version": 1}]}
    found = QueueRecord.decode("k", encode(json.loads(QUEUE.encode()) | {"policy": policy})).policy
    assert found == PolicyRecord(
        max_attempts=10**6, retry_shape="fibonacci", tenants=(TenantRecord(tenant="a", weight=10**6),)
    )
    older = json.loads(QUEUE.encode())
    del older["policy"]
    assert QueueRecord.decode("k", encode(older)).policy == PolicyRecord()


def test_leaders_are_ordered_by_incarnation_then_epoch() -> None:
    old, new = mapped_group(1, 2**47 - 1), mapped_group(2, 0)
    assert LeaderRecord("a", old, 99).order < LeaderRecord("b", new, 1).order < LeaderRecord("a", new, 2).order


def test_keys_are_parsed_as_they_are_made() -> None:
    keys = MapKeys("prod")
    assert keys.shard(7) == b"holdfast/prod/shards/00007"
    assert keys.parse(keys.shard(4095)) == ("shards", "04095")
    assert keys.parse(keys.queue("a.b-c_d")) == ("queues", "a.b-c_d")
    assert keys.parse(keys.plan) == ("plan", "")
    for strange in (b"shards/7", b"shards/x", b"queues/", b"queues/a/b", b"later/x", b"plan/x", b"queues/\xff", b""):
        assert keys.parse(keys.prefix + strange) is None
    with pytest.raises(ValueError, match="name of a cluster"):
        MapKeys("a/b")
