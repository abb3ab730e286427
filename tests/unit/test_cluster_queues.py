"""How the settings of a queue change: sets by generations, what drains, and the limits of a policy."""

from dataclasses import replace

import pytest

from holdfast.broker.config import BrokerConfig
from holdfast.broker.policies import ATTEMPTS_MAX, CLAIMS_MAX
from holdfast.cluster.queues import (
    GENERATIONS_MAX,
    POLICY_LIMITS,
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
from holdfast.cluster.records import POLICY_FIELDS, QueuePolicy, QueueRecord
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
    assert OTHERS[0] not in after.drained  # nothing refers to it any more


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


def test_only_what_is_given_changes() -> None:
    record = change_queue("q", None, QueueChange(policy={"max_attempts": 3, "retry_jitter": 0}), SHARDS)
    record = change_queue("q", record, QueueChange(policy={"max_claims": 9}, clear=["max_attempts"]), SHARDS)
    assert record.policy == QueuePolicy(max_claims=9, retry_jitter=0.0)
    assert record.generation == 0


def test_limits_are_those_of_the_brokers() -> None:
    settings = {"result_ttl_ms": "result_ttl_default_ms"}
    assert set(POLICY_LIMITS) == set(POLICY_FIELDS)
    of_a_task = {"max_attempts": (1, ATTEMPTS_MAX), "max_claims": (1, CLAIMS_MAX)}
    assert {name: POLICY_LIMITS[name] for name in of_a_task} == of_a_task
    for name, (low, high) in POLICY_LIMITS.items() - of_a_task.items():
        metadata = BrokerConfig.model_fields[settings.get(name, name)].metadata
        bounds = {key: getattr(item, key) for item in metadata for key in ("ge", "le") if hasattr(item, key)}
        assert bounds == {"ge": low, "le": high}, name


@pytest.mark.parametrize("name", POLICY_FIELDS)
def test_values_outside_the_limits_are_refused(name: str) -> None:
    low, high = POLICY_LIMITS[name]
    for good in (low, high):
        change_queue("q", None, QueueChange(policy={name: good}), SHARDS)
    for bad in (low - 1, high + 1, float("nan")):
        with pytest.raises(RefusedError) as refused:
            change_queue("q", None, QueueChange(policy={name: bad}), SHARDS)
        assert (refused.value.reason, refused.value.field) == (refusals.OUT_OF_RANGE, f"policy.{name}")


@pytest.mark.parametrize(
    "change",
    [
        QueueChange(policy={"retry_base_ms": 10, "retry_cap_ms": 9}),
        QueueChange(policy={"max_attempts": 10, "max_claims": 9}),
        QueueChange(clear=["nonsense"]),
        QueueChange(policy={"max_claims": 9}, clear=["max_claims"]),
    ],
)
def test_contradictions_are_refused(change: QueueChange) -> None:
    with pytest.raises(RefusedError):
        change_queue("q", None, change, SHARDS)


def test_a_contradiction_with_what_was_set_before_is_refused_too() -> None:
    record = change_queue("q", None, QueueChange(policy={"max_claims": 5}), SHARDS)
    with pytest.raises(RefusedError):
        change_queue("q", record, QueueChange(policy={"max_attempts": 6}), SHARDS)


@pytest.mark.parametrize("name", ["", "a/b", "ä", "x" * 129, " q"])
def test_names_that_cannot_be_are_refused(name: str) -> None:
    with pytest.raises(RefusedError):
        check_queue_name(name)
