"""The key layout of a shard's state: families are what they always were, and byte order is the order a reader wants."""

import re
from collections.abc import Callable

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from holdfast.machine import keys

quick = settings(max_examples=40, deadline=None, print_blob=True)

u64 = st.integers(0, 2**64 - 1)
u16 = st.integers(0, 2**16 - 1)
u8 = st.integers(0, 255)
task_ids = st.binary(min_size=16, max_size=16)
# Short and nested names without NUL, so that those of two places meet.
names = st.sampled_from((b"", b"a", b"a\1", b"aa", b"b", b"\xff"))
queues = names.map(lambda name: name or b"q")
priorities = st.integers(0, 9)

DOCUMENTED = {
    "META": 0x01, "ENVELOPE": 0x02, "EXECUTION": 0x03, "READY": 0x04, "READY_AGE": 0x05, "SUBQUEUE": 0x06,
    "CLAIM_EXPIRY": 0x07, "DUE": 0x08, "DEAD": 0x09, "DEDUP": 0x0A, "KEY_EXPIRY": 0x0B, "RECENT": 0x0C,
    "RETENTION": 0x0D,
    "SCHEDULE": 0x0E, "SETTINGS": 0x0F, "QUEUE": 0x10, "OUTBOX": 0x11, "INBOX": 0x12, "REPORT": 0x13,
    "CLAIM_REQUEST": 0x14, "WORKER": 0x15, "BUCKET": 0x17, "UNIQUE": 0x18, "ATTEMPTS": 0x19,
    "START_BY": 0x1A, "SCHEDULE_DUE": 0x1B, "DISCARD": 0x1C, "SHARE": 0x1D, "SUSPECT": 0x1E, "ALONE": 0x1F,
    "RUN": 0x20, "RUN_PAYLOADS": 0x21,
}  # fmt: skip


def test_the_table_of_families_is_complete_and_its_numbers_are_unique() -> None:
    assert keys.__doc__ is not None
    table = re.findall(r"^    ([A-Z_]+) +\S", keys.__doc__, re.MULTILINE)
    assert table == list(DOCUMENTED)
    assert {name: getattr(keys, name) for name in table} == DOCUMENTED
    assert list(keys.FAMILIES) == list(DOCUMENTED.values())
    assert len(set(keys.FAMILIES)) == len(keys.FAMILIES)


@pytest.mark.parametrize(
    ("family", "key"),
    [
        (keys.META, keys.META_KEY),
        (keys.ENVELOPE, keys.envelope(bytes(16))),
        (keys.EXECUTION, keys.execution(bytes(16))),
        (keys.READY, keys.ready(b"q", 0, 0)),
        (keys.CLAIM_EXPIRY, keys.claim_expiry(0, bytes(16))),
        (keys.DUE, keys.due(0, bytes(16))),
        (keys.DEAD, keys.dead(b"q", 0, bytes(16))),
        (keys.DEDUP, keys.dedup(b"q", b"r")),
        (keys.KEY_EXPIRY, keys.key_expiry(0, b"k")),
        (keys.RECENT, keys.recent(0)),
        (keys.RETENTION, keys.retention(0, bytes(16))),
        (keys.QUEUE, keys.queue(b"q")),
        (keys.REPORT, keys.report(bytes(16))),
        (keys.CLAIM_REQUEST, keys.claim_request(b"w", b"r")),
        (keys.WORKER, keys.worker(b"w")),
        (keys.SETTINGS, keys.settings(b"q")),
        (keys.OUTBOX, keys.outbox(0, 0)),
        (keys.OUTBOX, keys.outbox_end(2**16 - 1)),
        (keys.INBOX, keys.inbox(2**16 - 1, 2**16 - 1)),
        (keys.READY_AGE, keys.ready_age(b"q", 0)),
        (keys.SUBQUEUE, keys.subqueue(b"q", 0, b"t", b"k")),
        (keys.BUCKET, keys.bucket(b"q", keys.SCOPE_KEY, b"k")),
        (keys.UNIQUE, keys.unique(b"q", b"k")),
        (keys.ATTEMPTS, keys.attempts(bytes(16))),
        (keys.START_BY, keys.start_by(0, bytes(16))),
        (keys.SCHEDULE, keys.schedule(b"q", b"n")),
        (keys.SCHEDULE_DUE, keys.schedule_due(0, b"q", b"n")),
        (keys.DISCARD, keys.discard(0, bytes(16))),
        (keys.RUN, keys.run(0)),
        (keys.RUN_PAYLOADS, keys.run_payloads(0)),
        (keys.SHARE, keys.share(b"q", 1, 2**16 - 1)),
    ],
)
def test_a_key_begins_with_its_family(family: int, key: bytes) -> None:
    assert key[0] == family
    assert keys.family_start(family) <= key < keys.family_start(family + 1)


Place = tuple[bytes, int, int, bytes, bytes]
places = st.tuples(queues, priorities, u64, names, names)


@quick
@given(places, places)
def test_a_subqueue_is_ordered_first_in_first_out_and_subqueues_by_priority_tenant_and_key(
    one: Place, other: Place
) -> None:
    _, priority, sequence, tenant, limit_key = other
    neighbour = (one[0], priority, sequence, tenant, limit_key)  # in the same queue
    subqueue_first = (-one[1], one[3], one[4], one[2]) < (-priority, tenant, limit_key, sequence)
    assert (keys.ready(*one) < keys.ready(*neighbour)) == subqueue_first
    assert keys.ready_sequence(keys.ready(*one)) == one[2]
    assert (keys.ready(*one) == keys.ready(*other)) == (one == other)


@quick
@given(places, places)
def test_a_subqueue_and_a_queue_hold_their_own_ready_tasks_only(place: Place, other: Place) -> None:
    queue, priority, _, tenant, limit_key = other
    for prefix, is_inside in (
        (keys.ready_subqueue(queue, priority, tenant, limit_key), place[:2] + place[3:] == other[:2] + other[3:]),
        (keys.ready_queue(queue), place[0] == queue),
    ):
        assert (prefix <= keys.ready(*place) < keys.after_prefix(prefix)) == is_inside


@quick
@given(places, places)
def test_subqueues_of_a_priority_are_ordered_by_tenant_and_key(one: Place, other: Place) -> None:
    subqueue, level = keys.subqueue(*one[:2], *one[3:]), keys.subqueue_level(*other[:2])
    is_inside = one[:2] == other[:2]
    assert (level <= subqueue < keys.after_prefix(level)) == is_inside
    if is_inside:
        assert keys.subqueue_names(subqueue, level) == one[3:]
    neighbour = keys.subqueue(one[0], other[1], *other[3:])
    assert (subqueue < neighbour) == ((-one[1], *one[3:]) < (-other[1], *other[3:]))


@quick
@given(places, places)
def test_pages_of_ages_are_ordered_by_queue_and_number(one: Place, other: Place) -> None:
    assert (keys.ready_age(one[0], one[2]) < keys.ready_age(one[0], other[2])) == (one[2] < other[2])
    assert keys.ready_age_number(keys.ready_age(one[0], one[2])) == one[2]
    prefix = keys.ready_age_queue(other[0])
    assert (prefix <= keys.ready_age(one[0], one[2]) < keys.after_prefix(prefix)) == (one[0] == other[0])


@quick
@given(places, places, u64, u64)
def test_schedules_are_ordered_by_name_and_their_ticks_by_time(one: Place, other: Place, a_ms: int, b_ms: int) -> None:
    (queue, _, _, name, _), (others, _, _, another, _) = one, other
    prefix = keys.schedules_of(others)
    assert (prefix <= keys.schedule(queue, name) < keys.after_prefix(prefix)) == (queue == others)
    assert (keys.schedule(queue, name) < keys.schedule(queue, another)) == (name < another)
    assert keys.schedule_names(keys.schedule(queue, name)[1:]) == (queue, name)
    tick = keys.schedule_due(a_ms, queue, name)
    assert (tick < keys.schedule_due(b_ms, queue, name)) == (a_ms < b_ms)
    assert keys.timed(tick)[0] == a_ms
    assert keys.schedule_names(keys.timed(tick)[1]) == (queue, name)


@quick
@given(st.tuples(queues, u8.filter(lambda what: what < 255), u16), st.tuples(queues, u8, u16))
def test_shares_are_ordered_by_limit_and_shard(one: tuple[bytes, int, int], other: tuple[bytes, int, int]) -> None:
    prefix = keys.shares_of(*one[:2])
    assert (prefix <= keys.share(*other) < keys.after_prefix(prefix)) == (one[:2] == other[:2])
    assert (keys.share(*one) < keys.share(one[0], *other[1:])) == (one[1:] < other[1:])


@quick
@given(st.tuples(queues, u8, names), st.tuples(queues, u8, names))
def test_buckets_and_unique_keys_never_meet(one: tuple[bytes, int, bytes], other: tuple[bytes, int, bytes]) -> None:
    assert (keys.bucket(*one) == keys.bucket(*other)) == (one == other)
    assert (keys.unique(one[0], one[2]) == keys.unique(other[0], other[2])) == (one[::2] == other[::2])


timed_keys: list[Callable[[int, bytes], bytes]] = [
    keys.claim_expiry, keys.due, keys.retention, keys.key_expiry, keys.start_by, keys.discard,
]  # fmt: skip


@pytest.mark.parametrize("make", timed_keys, ids=lambda make: make.__name__)
def test_families_with_a_time_are_ordered_by_it(make: Callable[[int, bytes], bytes]) -> None:
    @quick
    @given(u64, task_ids, u64, task_ids)
    def check(one_ms: int, one: bytes, other_ms: int, other: bytes) -> None:
        assert (make(one_ms, one) < make(other_ms, other)) == ((one_ms, one) < (other_ms, other))
        assert keys.timed(make(one_ms, one)) == (one_ms, one)
        start = keys.timed_from(make(0, b"")[0], other_ms)
        assert (make(one_ms, one) >= start) == (one_ms >= other_ms)

    check()


@quick
@given(st.tuples(queues, u64, task_ids), st.tuples(queues, u64, task_ids))
def test_dead_tasks_of_a_queue_are_ordered_by_their_death(
    one: tuple[bytes, int, bytes], other: tuple[bytes, int, bytes]
) -> None:
    same_queue = (one[0], *other[1:])
    assert (keys.dead(*one) < keys.dead(*same_queue)) == (one[1:] < other[1:])
    prefix = keys.dead_prefix(one[0])
    assert (prefix <= keys.dead(*other) < keys.after_prefix(prefix)) == (one[0] == other[0])


@quick
@given(st.tuples(u16, st.integers(0, 2**63)), st.tuples(u16, st.integers(0, 2**63)))
def test_messages_are_ordered_by_destination_and_number(one: tuple[int, int], other: tuple[int, int]) -> None:
    assert (keys.outbox(*one) < keys.outbox(*other)) == (one < other)
    assert keys.outbox_place(keys.outbox(*one)) == one
    inside = keys.outbox(one[0], 0) <= keys.outbox(*other) < keys.outbox_end(one[0])
    assert inside == (one[0] == other[0])


@quick
@given(st.tuples(queues, names), st.tuples(queues, names))
def test_request_ids_of_different_queues_never_meet(one: tuple[bytes, bytes], other: tuple[bytes, bytes]) -> None:
    assert (keys.dedup(*one) == keys.dedup(*other)) == (one == other)
