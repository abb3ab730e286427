"""Every limit at its edge; a refusal says which field, why, and what is allowed."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given

from holdfast.broker.api.validation import Validator
from holdfast.broker.config import BrokerConfig
from holdfast.broker.policy import task_specs
from holdfast.broker.policy.policies import default_policy
from holdfast.machine.ids import TIME_MS_MAX, format_task_id, make_task_id
from holdfast.proto.v1 import tasks_pb2 as pb
from holdfast.serving.refusals import (
    BATCH_TOO_LARGE,
    INVALID_FIELD,
    MISSING_FIELD,
    OUT_OF_RANGE,
    TOO_LARGE,
    RefusedError,
)

NOW_MS = 1_700_000_000_000
CONFIG = BrokerConfig(
    payload_bytes_max=100, result_bytes_max=50, batch_bytes_max=2000, batch_tasks_max=10, delay_ms_max=4_000_000,
    lease_ms_min=1000, lease_ms_max=5000, wait_ms_max=700, result_ttl_default_ms=77, max_attempts_default=4,
    max_claims_default=9,
)  # fmt: skip
TASK_ID = format_task_id(make_task_id(NOW_MS, 3, 9))


@pytest.fixture
def validator() -> Validator:
    return Validator(CONFIG)


def spec(**changes: Any) -> pb.TaskSpec:
    return pb.TaskSpec(**({"queue": "mail", "type": "send"} | changes))


def refusal(call: Callable[[], object]) -> tuple[str, str, str]:
    """Reason, field and limit."""
    with pytest.raises(RefusedError) as refused:
        call()
    assert refused.value.field in refused.value.message
    assert "{" not in refused.value.message
    return refused.value.reason, refused.value.field, refused.value.limit


def headers(count: int, size_bytes: int = 2) -> dict[str, str]:
    """Entries of `size_bytes` together, names of two bytes each."""
    names = [f"{index:02}" for index in range(count)]
    return dict.fromkeys(names, "") | {names[0]: "v" * (size_bytes - 2 * count)}


FITTING: list[dict[str, Any]] = [
    {"queue": "a"},
    {"queue": "aZ09._-" + "q" * 121},
    {"type": "t" * 256},
    {"type": "é" * 128},
    {"payload": b""},
    {"payload": bytes(100)},
    {"headers": headers(64, 128)},
    {"headers": headers(1, 16 * 1024)},
    {"priority": 0},
    {"priority": 9},
    {"tenant": "t" * 256},
    {"request_id": "r" * 256},
    {"run_at_ms": 0},
    {"run_at_ms": NOW_MS + 4_000_000},
    {"delay_ms": 0},
    {"delay_ms": 4_000_000},
    {"max_attempts": 1},
    {"max_attempts": 1000},
    {"max_claims": 1},
    {"max_claims": 10_000},
    {"result_ttl_ms": 0},
    {"result_ttl_ms": 4_000_000},
]
QUEUE_LIMIT = "1-128 of [A-Za-z0-9._-]"
RUN_AT_LIMIT = f"0..{NOW_MS + 4_000_000}"
REFUSED: list[tuple[dict[str, Any], str, str]] = [
    ({"queue": ""}, MISSING_FIELD, ""),
    ({"queue": "q" * 129}, INVALID_FIELD, QUEUE_LIMIT),
    ({"queue": "a b"}, INVALID_FIELD, QUEUE_LIMIT),
    ({"queue": "mail\n"}, INVALID_FIELD, QUEUE_LIMIT),
    ({"queue": "é"}, INVALID_FIELD, QUEUE_LIMIT),
    ({"queue": "a\0"}, INVALID_FIELD, QUEUE_LIMIT),
    ({"type": ""}, MISSING_FIELD, ""),
    ({"type": "t" * 257}, TOO_LARGE, "256"),
    ({"type": "é" * 129}, TOO_LARGE, "256"),
    ({"type": "a\tb"}, INVALID_FIELD, ""),
    ({"payload": bytes(101)}, TOO_LARGE, "100"),
    ({"headers": headers(65, 130)}, TOO_LARGE, "64"),
    ({"headers": headers(1, 16 * 1024 + 1)}, TOO_LARGE, "16384"),
    ({"priority": -1}, OUT_OF_RANGE, "0..9"),
    ({"priority": 10}, OUT_OF_RANGE, "0..9"),
    ({"tenant": "t" * 257}, TOO_LARGE, "256"),
    ({"tenant": "a\0b"}, INVALID_FIELD, ""),
    ({"request_id": "r" * 257}, TOO_LARGE, "256"),
    ({"request_id": "\x7f"}, INVALID_FIELD, ""),
    ({"run_at_ms": -1}, OUT_OF_RANGE, RUN_AT_LIMIT),
    ({"run_at_ms": NOW_MS + 4_000_001}, OUT_OF_RANGE, RUN_AT_LIMIT),
    ({"delay_ms": -1}, OUT_OF_RANGE, "0..4000000"),
    ({"delay_ms": 4_000_001}, OUT_OF_RANGE, "0..4000000"),
    ({"max_attempts": 0}, OUT_OF_RANGE, "1..1000"),
    ({"max_attempts": 1001}, OUT_OF_RANGE, "1..1000"),
    ({"max_claims": 0}, OUT_OF_RANGE, "1..10000"),
    ({"max_claims": 10_001}, OUT_OF_RANGE, "1..10000"),
    ({"result_ttl_ms": -1}, OUT_OF_RANGE, "0..4000000"),
    ({"result_ttl_ms": 4_000_001}, OUT_OF_RANGE, "0..4000000"),
]


@pytest.mark.parametrize("changes", FITTING, ids=lambda changes: "-".join(changes))
def test_a_task_at_a_limit_fits(validator: Validator, changes: dict[str, Any]) -> None:
    wanted = spec(**changes)
    assert pb.TaskSpec.FromString(validator.new_task(wanted, NOW_MS).envelope) == wanted


@pytest.mark.parametrize(("changes", "reason", "limit"), REFUSED)
def test_a_task_beyond_a_limit_is_refused(
    validator: Validator, changes: dict[str, Any], reason: str, limit: str
) -> None:
    (field,) = changes
    for _ in range(2):  # what is remembered of good names must not let a bad one in
        assert refusal(lambda: validator.new_task(spec(**changes), NOW_MS)) == (reason, field, limit)
    item = pb.AckItem(follow_ups=[spec(), spec(**changes)])
    assert refusal(lambda: validator.follow_ups(item, NOW_MS)) == (reason, f"follow_ups[1].{field}", limit)


@pytest.mark.parametrize("changes", FITTING, ids=lambda changes: "-".join(changes))
def test_what_is_remembered_of_a_task_makes_the_same_of_the_next_one(
    validator: Validator, changes: dict[str, Any]
) -> None:
    """Tasks with ids that clients make up, as nearly all have."""
    for index in range(3):
        own = {"payload": b"%d" % index, "request_id": f"~0.k.{index}", **changes}
        now_ms = NOW_MS + index
        assert validator.new_task(spec(**own), now_ms) == Validator(CONFIG).new_task(spec(**own), now_ms)
        envelope = validator.new_task(spec(**own), now_ms).envelope
        assert pb.TaskSpec.FromString(envelope) == spec(**own)


def test_what_is_remembered_of_a_task_is_of_its_policy(validator: Validator) -> None:
    policies = {b"mail": replace(default_policy(CONFIG), max_attempts=7)}
    known: Any = SimpleNamespace(of=lambda queue: policies[queue])
    own = {"request_id": "~0.k.0"}
    for _ in range(2):
        assert validator.new_task(spec(**own), NOW_MS).max_attempts == CONFIG.max_attempts_default
        assert validator.new_task(spec(**own), NOW_MS, known).max_attempts == 7
    policies[b"mail"] = replace(default_policy(CONFIG), ttl_ms=1000, max_attempts=8)
    for later_ms in range(2):
        new = validator.new_task(spec(**own), NOW_MS + later_ms, known)
        assert (new.max_attempts, new.start_by_ms) == (8, NOW_MS + later_ms + 1000)


def test_what_is_remembered_of_a_task_lets_no_large_payload_in(validator: Validator) -> None:
    for size in (1, CONFIG.payload_bytes_max, 1):
        assert validator.new_task(spec(request_id="~0.k.0", payload=bytes(size)), NOW_MS)
    large = spec(request_id="~0.k.0", payload=bytes(CONFIG.payload_bytes_max + 1))
    assert refusal(lambda: validator.new_task(large, NOW_MS))[:2] == (TOO_LARGE, "payload")


def test_what_is_not_given_has_defaults(validator: Validator) -> None:
    new = validator.new_task(spec(), NOW_MS)
    assert new[:9] == (b"mail", 5, b"", b"", 0, 0, 4, 9, 77)
    assert new[10:] == (b"send", b"", b"", 0, 0, 0, 0)
    assert validator.new_task(spec(request_id="r"), NOW_MS).dedup_window_ms == CONFIG.dedup_window_ms


def test_what_is_given_is_taken(validator: Validator) -> None:
    wanted = spec(
        priority=0, tenant="t", request_id="r", request_id_ttl_ms=1000, delay_ms=5, max_attempts=2, max_claims=3,
        result_ttl_ms=0,
    )  # fmt: skip
    assert validator.new_task(wanted, NOW_MS)[:9] == (b"mail", 0, b"t", b"r", 1000, NOW_MS + 5, 2, 3, 0)
    assert validator.new_task(spec(run_at_ms=5), NOW_MS).run_at_ms == 5
    assert validator.new_task(spec(delay_ms=0), NOW_MS).run_at_ms == 0


def test_how_long_a_request_id_is_remembered(validator: Validator) -> None:
    year_ms = 366 * 24 * 3600 * 1000
    for fitting in (1000, year_ms):
        wanted = spec(request_id="r", request_id_ttl_ms=fitting)
        assert validator.new_task(wanted, NOW_MS).dedup_window_ms == fitting
    for bad in (999, 0, -1, year_ms + 1):
        wanted = spec(request_id="r", request_id_ttl_ms=bad)
        assert refusal(partial(validator.new_task, wanted, NOW_MS)) == (
            OUT_OF_RANGE, "request_id_ttl_ms", f"1000..{year_ms}",
        )  # fmt: skip
    alone = spec(request_id_ttl_ms=1000)
    assert refusal(lambda: validator.new_task(alone, NOW_MS)) == (INVALID_FIELD, "request_id_ttl_ms", "")


@pytest.mark.parametrize(("max_attempts", "max_claims"), [(1, 9), (4, 9), (5, 10), (1000, 2000)])
def test_the_default_limit_on_claims_leaves_room_for_every_attempt(
    validator: Validator, max_attempts: int, max_claims: int
) -> None:
    assert validator.new_task(spec(max_attempts=max_attempts), NOW_MS).max_claims == max_claims


def test_a_refusal_within_a_batch_names_the_whole_path(validator: Validator) -> None:
    item = pb.AckItem(follow_ups=[spec(), spec(priority=10)])
    with pytest.raises(RefusedError) as refused:
        validator.follow_ups(item, NOW_MS)
    inner = refused.value.within("items[3]")
    assert inner.field == "items[3].follow_ups[1].priority"
    assert inner.message == "Expected items[3].follow_ups[1].priority from 0 to 9, but got 10."
    assert str(inner) == inner.message


def test_the_number_of_follow_ups_of_all_acks_together() -> None:
    many = Validator(BrokerConfig())
    hundred = pb.AckItem(follow_ups=[spec()] * 100)
    many.all_follow_ups([hundred] * 10)
    found = refusal(lambda: many.all_follow_ups([hundred] * 10 + [pb.AckItem(follow_ups=[spec()])]))
    assert found == ("BATCH_TOO_LARGE", "items.follow_ups", "1000")
    few = Validator(BrokerConfig(batch_tasks_max=10))
    few.all_follow_ups([hundred])  # one ack may have as many as ever
    assert refusal(lambda: few.all_follow_ups([hundred, hundred]))[2] == "100"


def test_the_number_of_follow_ups(validator: Validator) -> None:
    assert validator.follow_ups(pb.AckItem(), NOW_MS) == ()
    assert len(validator.follow_ups(pb.AckItem(follow_ups=[spec()] * 100), NOW_MS)) == 100
    too_many = pb.AckItem(follow_ups=[spec()] * 101)
    assert refusal(lambda: validator.follow_ups(too_many, NOW_MS)) == (BATCH_TOO_LARGE, "follow_ups", "100")


def test_the_size_of_a_call(validator: Validator) -> None:
    validator.batch(1, "tasks")
    validator.batch(10, "tasks")
    assert refusal(lambda: validator.batch(0, "tasks")) == (MISSING_FIELD, "tasks", "")
    assert refusal(lambda: validator.batch(11, "tasks")) == (BATCH_TOO_LARGE, "tasks", "10")


RESERVE: dict[str, Any] = {"queues": ["mail"], "max_tasks": 1, "lease_ms": 1000}


@pytest.mark.parametrize(
    "changes",
    [
        {"queues": [f"q{index}" for index in range(64)]}, {"max_tasks": 10}, {"lease_ms": 5000}, {"wait_ms": 0},
        {"wait_ms": 700}, {"worker": "w" * 256}, {"claim_request_id": "c" * 256}, {"queue_tasks_max": [0]},
        {"queue_tasks_max": [10]}, {"type_lease_ms": {f"t{index}": 1000 + index for index in range(100)}},
        {"type_lease_ms": {"t" * 256: 5000}},
    ],
)  # fmt: skip
def test_a_reserve_at_a_limit_fits(validator: Validator, changes: dict[str, Any]) -> None:
    wanted = validator.reserve(pb.ReserveRequest(**(RESERVE | changes)))
    assert len(wanted.queues) == len((RESERVE | changes)["queues"])


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"queues": []}, (MISSING_FIELD, "queues", "")),
        ({"queues": ["q"] * 65}, (BATCH_TOO_LARGE, "queues", "64")),
        ({"queues": ["a", "b c"]}, (INVALID_FIELD, "queues[1]", QUEUE_LIMIT)),
        ({"queues": ["a", ""]}, (MISSING_FIELD, "queues[1]", "")),
        ({"max_tasks": 0}, (OUT_OF_RANGE, "max_tasks", "1..10")),
        ({"max_tasks": 11}, (OUT_OF_RANGE, "max_tasks", "1..10")),
        ({"lease_ms": 999}, (OUT_OF_RANGE, "lease_ms", "1000..5000")),
        ({"lease_ms": 5001}, (OUT_OF_RANGE, "lease_ms", "1000..5000")),
        ({"wait_ms": -1}, (OUT_OF_RANGE, "wait_ms", "0..700")),
        ({"wait_ms": 701}, (OUT_OF_RANGE, "wait_ms", "0..700")),
        ({"worker": "w" * 257}, (TOO_LARGE, "worker", "256")),
        ({"worker": "a\nb"}, (INVALID_FIELD, "worker", "")),
        ({"claim_request_id": "c" * 257}, (TOO_LARGE, "claim_request_id", "256")),
        ({"queue_tasks_max": [1, 1]}, (INVALID_FIELD, "queue_tasks_max", "1")),
        ({"queues": ["a", "b"], "queue_tasks_max": [1]}, (INVALID_FIELD, "queue_tasks_max", "2")),
        ({"queues": ["a", "b"], "queue_tasks_max": [1, -1]}, (OUT_OF_RANGE, "queue_tasks_max[1]", "0..10")),
        ({"queue_tasks_max": [11]}, (OUT_OF_RANGE, "queue_tasks_max[0]", "0..10")),
        ({"type_lease_ms": {f"t{index}": 1000 for index in range(101)}}, (BATCH_TOO_LARGE, "type_lease_ms", "100")),
        ({"type_lease_ms": {"t": 999}}, (OUT_OF_RANGE, "type_lease_ms", "1000..5000")),
        ({"type_lease_ms": {"t": 5001}}, (OUT_OF_RANGE, "type_lease_ms", "1000..5000")),
        ({"type_lease_ms": {"t" * 257: 1000}}, (TOO_LARGE, "type_lease_ms", "256")),
        ({"type_lease_ms": {"a\nb": 1000}}, (INVALID_FIELD, "type_lease_ms", "")),
    ],
)
def test_a_reserve_beyond_a_limit_is_refused(
    validator: Validator, changes: dict[str, Any], expected: tuple[str, str, str]
) -> None:
    assert refusal(lambda: validator.reserve(pb.ReserveRequest(**(RESERVE | changes)))) == expected


def test_a_queue_named_twice_counts_once(validator: Validator) -> None:
    wanted = validator.reserve(pb.ReserveRequest(**(RESERVE | {"queues": ["b", "a", "b"]})))
    assert wanted.queues == [b"b", b"a"]


def test_limits_of_single_queues(validator: Validator) -> None:
    def limits(queues: list[str], numbers: list[int]) -> dict[bytes, int]:
        changes = {"queues": queues, "queue_tasks_max": numbers}
        return validator.reserve(pb.ReserveRequest(**(RESERVE | changes))).queue_tasks_max

    assert limits(["a", "b"], []) == {}
    assert limits(["a", "b", "c"], [0, 3, 1]) == {b"b": 3, b"c": 1}
    assert limits(["a", "a", "a"], [3, 0, 2]) == {b"a": 2}


def test_claim_refs(validator: Validator) -> None:
    whole = pb.ClaimRef(task_id=TASK_ID, token=1, secret=2)
    assert validator.claim_ref(whole) == (make_task_id(NOW_MS, 3, 9), 1 << 64 | 2)
    assert refusal(lambda: validator.claim_ref(pb.ClaimRef(task_id=TASK_ID, token=1))) == (MISSING_FIELD, "secret", "")
    assert refusal(lambda: validator.claim_ref(pb.ClaimRef(task_id=TASK_ID))) == (MISSING_FIELD, "token", "")
    assert refusal(lambda: validator.claim_ref(pb.ClaimRef(token=1))) == (MISSING_FIELD, "task_id", "")


@pytest.mark.parametrize("text", [TASK_ID[:-1], TASK_ID + "0", TASK_ID.replace("-", ""), "x" + TASK_ID[1:]])
def test_what_is_no_task_id(validator: Validator, text: str) -> None:
    assert refusal(lambda: validator.task_id(text)) == (INVALID_FIELD, "task_id", "")


def test_results_and_errors(validator: Validator) -> None:
    assert validator.result(bytes(50)) == bytes(50)
    assert refusal(lambda: validator.result(bytes(51))) == (TOO_LARGE, "result", "50")
    fitting = pb.TaskError(type="t" * 256, message="m" * 16_384, traceback="b" * 16_384)
    assert pb.TaskError.FromString(validator.error(fitting)) == fitting
    for field, limit in (("type", 256), ("message", 16_384), ("traceback", 16_384)):
        error = pb.TaskError(**{field: "é" * (limit // 2) + "x"})
        assert refusal(partial(validator.error, error)) == (TOO_LARGE, f"error.{field}", str(limit))


def test_a_first_pause_is_at_most_the_longest(validator: Validator) -> None:
    retry = pb.RetryPolicy(base_ms=10, cap_ms=5)
    assert refusal(lambda: validator.new_task(spec(retry=retry), NOW_MS)) == (OUT_OF_RANGE, "retry.base_ms", "0..5")
    for fine in (pb.RetryPolicy(base_ms=5, cap_ms=5), pb.RetryPolicy(base_ms=10), pb.RetryPolicy(cap_ms=5)):
        assert validator.new_task(spec(retry=fine), NOW_MS)


def test_retry_delays(validator: Validator) -> None:
    assert validator.retry_delay_ms(pb.FailItem()) is None
    assert validator.retry_delay_ms(pb.FailItem(retry_delay_ms=0)) == 0
    assert validator.retry_delay_ms(pb.FailItem(retry_delay_ms=4_000_000)) == 4_000_000
    for bad in (-1, 4_000_001):
        item = pb.FailItem(retry_delay_ms=bad)
        assert refusal(partial(validator.retry_delay_ms, item)) == (
            OUT_OF_RANGE, "retry_delay_ms", "0..4000000",
        )  # fmt: skip


@pytest.mark.parametrize("field", ["died_from_ms", "died_before_ms"])
def test_times_of_dead_letters(validator: Validator, field: str) -> None:
    for fine in (0, TIME_MS_MAX):
        wanted = pb.DeadLetterFilter(**{field: fine})  # type: ignore[arg-type]  # a time, whichever of them
        assert validator.dead_letter_filter(wanted) == wanted
    for bad in (-1, TIME_MS_MAX + 1):
        wanted = pb.DeadLetterFilter(**{field: bad})  # type: ignore[arg-type]
        assert refusal(partial(validator.dead_letter_filter, wanted)) == (
            OUT_OF_RANGE, f"filter.{field}", f"0..{TIME_MS_MAX}",
        )  # fmt: skip


def test_pages(validator: Validator) -> None:
    assert [validator.page_size(value, 20, 100) for value in (0, 1, 100)] == [20, 1, 100]
    for bad in (-1, 101):
        assert refusal(partial(validator.page_size, bad, 20, 100)) == (OUT_OF_RANGE, "page_size", "0..100")
    assert validator.page_token("") == b""
    assert validator.page_token("0a" * 24) == b"\x0a" * 24
    for text in ("0a" * 23, "0A" * 24, "0a" * 24 + "\n", "zz" * 24):
        assert refusal(partial(validator.page_token, text)) == (INVALID_FIELD, "page_token", "")


def test_pages_of_queues(validator: Validator) -> None:
    assert validator.queue_page_token("") == b""
    assert validator.queue_page_token("mail.slow") == b"mail.slow"
    for text in ("a b", "q" * 129, "mail\n", "größe"):
        assert refusal(partial(validator.queue_page_token, text)) == (INVALID_FIELD, "page_token", "")


def test_names_are_remembered_up_to_a_bound(validator: Validator, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(task_specs, "TEXTS_KNOWN_MAX", 2)
    for index in range(5):
        new = validator.new_task(spec(queue=f"q{index}", type=f"t{index}"), NOW_MS)
        assert new.queue == b"q%d" % index
    assert refusal(lambda: validator.queue("q 1"))[0] == INVALID_FIELD


def test_headers_are_remembered_up_to_a_bound(validator: Validator, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(task_specs, "HEADERS_KNOWN_MAX", 2)
    for index in range(5):
        new = validator.new_task(spec(tenant=f"t{index}", request_id="~0.k.0"), NOW_MS)
        assert (new.tenant, new.request_id) == (b"t%d" % index, b"~0.k.0")


@given(st.text(max_size=140))
def test_a_queue_name_is_taken_whole_or_refused(name: str) -> None:
    allowed = 1 <= len(name) <= 128 and all(char.isascii() and (char.isalnum() or char in "._-") for char in name)
    try:
        taken = Validator(CONFIG).queue(name)
    except RefusedError as refused:
        assert not allowed
        assert refused.reason == (INVALID_FIELD if name else MISSING_FIELD)
    else:
        assert allowed
        assert taken == name.encode()


def test_a_letter_is_not_held_against_limits_of_time_here(validator: Validator) -> None:
    """Another node accepted it, perhaps under other limits: refused again and again it would hold up all behind it."""
    long_ms = CONFIG.delay_ms_max + 1
    letter = spec(retry=pb.RetryPolicy(base_ms=long_ms, cap_ms=long_ms))
    assert validator.received_task(letter, NOW_MS, 0, None).flags
    assert refusal(lambda: validator.new_task(letter, NOW_MS))[1] == "retry.base_ms"


def test_what_a_request_id_stands_for_is_the_same_whoever_brings_it(validator: Validator) -> None:
    wanted = spec(payload=b"p", headers={"b": "1", "a": "2"}, tenant="t", request_id="r", priority=3)
    enqueued = validator.new_task(wanted, NOW_MS).digest
    (follow_up,) = validator.follow_ups(pb.AckItem(follow_ups=[wanted]), NOW_MS)
    letter = pb.TaskSpec.FromString(wanted.SerializeToString())
    assert enqueued
    assert enqueued == follow_up.digest == validator.received_task(letter, NOW_MS, 0, None).digest
    other = spec(payload=b"p", headers={"b": "2", "a": "1"}, tenant="t", request_id="r")
    assert validator.new_task(other, NOW_MS).digest not in (0, enqueued)


@pytest.mark.parametrize("request_id", ["", "~0.x.0", "~12.a-b_c.345"])
def test_without_an_id_of_the_producers_own_nothing_is_compared(validator: Validator, request_id: str) -> None:
    assert validator.new_task(spec(request_id=request_id), NOW_MS).digest == 0
    assert validator.received_task(spec(request_id=request_id), NOW_MS, 0, None).digest == 0


@pytest.mark.parametrize("request_id", ["~", "~order-17", "~01.x.0", "~0.x"])
def test_an_id_that_only_looks_automatic_is_compared(validator: Validator, request_id: str) -> None:
    assert validator.new_task(spec(request_id=request_id), NOW_MS).digest
    validator.own_request_id(request_id)


def test_an_automatic_key_is_not_taken_for_ones_own(validator: Validator) -> None:
    assert refusal(lambda: validator.own_request_id("~0.x.0"))[:2] == (INVALID_FIELD, "request_id")


def test_follow_ups_of_one_ack_are_compared_wherever_they_go(validator: Validator) -> None:
    one, other = spec(request_id="r"), spec(request_id="r", payload=b"other")
    with pytest.raises(RefusedError) as refused:
        validator.follow_ups(pb.AckItem(follow_ups=[one, one, other]), NOW_MS)
    assert (refused.value.reason, refused.value.field) == ("REQUEST_ID_CONFLICT", "follow_ups[2].request_id")
    unlike = [one, spec(queue="q", request_id="r", payload=b"other"), spec(), spec(payload=b"other")]
    assert len(validator.follow_ups(pb.AckItem(follow_ups=unlike), NOW_MS)) == 4
