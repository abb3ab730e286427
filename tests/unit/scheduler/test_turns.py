"""Whose turn it is: tenants by weight, limit keys within a tenant, and the oldest of all."""

import gc
from collections import Counter
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from holdfast.broker.policy.policies import EffectiveTenantPolicy
from holdfast.broker.scheduler import lines, scheduler, windows
from holdfast.broker.scheduler import subqueues as subqueues
from holdfast.limits.buckets import Rate
from holdfast.machine import keys
from holdfast.machine.ready_rows import SubqueueRow
from holdfast.machine.rows import PRIORITIES
from tests.unit.machine.machine_shard import QUEUE, use_short_rows
from tests.unit.scheduler.scheduling_bench import Bench, weights


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_tenants_take_turns(bench: Bench) -> None:
    for tenant in (b"a", b"b", b"c"):
        bench.enqueue(3, tenant)
    assert bench.subqueues(9) == ["a", "b", "c"] * 3


def test_a_turn_goes_on_with_the_next_call() -> None:
    bench = Bench(tenants=weights(a=2))
    bench.enqueue(6, b"a")
    bench.enqueue(3, b"b")
    assert bench.subqueues(times=9) == ["a", "a", "b"] * 3


def test_who_gets_its_tasks_one_by_one_does_not_hold_up_others(bench: Bench) -> None:
    """Also not if each is there before the next look: it had its turn."""
    bench.enqueue(20, b"many")
    bench.enqueue(1, b"few")
    bench.enqueue(1, b"keys", b"few")
    bench.enqueue(20, b"keys", b"many")
    taken = []
    for _ in range(24):
        taken += bench.subqueues()
        if taken[-1].endswith("few"):
            bench.enqueue(1, *taken[-1].encode().split(b"/"))
    assert Counter(taken) == {"many": 8, "few": 8, "keys/few": 4, "keys/many": 4}


def test_what_is_left_of_a_turn_is_not_lost_with_the_last_task() -> None:
    bench = Bench(tenants=weights(a=3))
    bench.enqueue(1, b"a")
    bench.enqueue(9, b"b")
    taken = []
    for _ in range(8):
        taken += bench.subqueues()
        if taken[-1] == "a":
            bench.enqueue(1, b"a")
    assert taken == ["a", "a", "a", "b"] * 2


def test_a_new_subqueue_is_not_read(bench: Bench) -> None:
    bench.enqueue(3, b"a", b"x")
    assert len(bench.take(2)) == 2
    bench.enqueue_all([(b"a", b"y"), (b"b", b""), (b"", b"z"), (b"b", b"")])
    before = bench.kv.reads
    picked = bench.pick(5)
    assert picked is not None
    assert len(picked.ready_refs) == 5
    assert bench.kv.reads == before


def test_where_there_are_few_subqueues_all_are_read_with_the_first_look(bench: Bench) -> None:
    """Also those whose turn comes much later: what comes meanwhile is added to them."""
    low = bench.enqueue_all([(b"a", b""), (b"b", b"x")], priority=1)
    high = bench.enqueue(2, b"a", priority=9)
    assert bench.take(1) == high[:1]
    low += bench.enqueue_all([(b"a", b""), (b"c", b"")], priority=1)
    before = bench.kv.rows_read
    picked = bench.pick(9)
    assert picked is not None
    assert picked.task_ids == [high[1], low[0], low[1], low[3], low[2]]
    assert bench.kv.rows_read == before


def test_tasks_without_a_tenant_are_one_tenant() -> None:
    bench = Bench(tenants={**weights(a=1), b"": weights(x=2)[b"x"]})
    bench.enqueue(6)
    bench.enqueue(3, b"a")
    assert Counter(bench.subqueues(6)) == {"": 4, "a": 2}


def test_limit_keys_take_turns_within_their_tenant(bench: Bench) -> None:
    bench.enqueue(4, b"a", b"x")
    bench.enqueue(2, b"a", b"y")
    bench.enqueue(4, b"b")
    assert bench.subqueues(10) == ["a/x", "b", "a/y", "b", "a/x", "b", "a/y", "b", "a/x", "a/x"]


def test_a_turn_goes_on_also_for_one_that_gave_its_last_in_this_round_before() -> None:
    """As when it was forgotten since and met again."""
    bench = Bench(tenants=weights(a=3))
    bench.enqueue(1, b"a")
    bench.enqueue(9, b"b")
    assert bench.subqueues() == ["a"]
    round_robin = bench.scheduler.windows[QUEUE].level(4).round_robin
    assert round_robin is not None
    assert round_robin.holder is round_robin.idle[b"a"]
    round_robin.gone.add(b"a")
    bench.enqueue(1, b"a")
    assert bench.subqueues(2) == ["a", "b"]


def test_limit_keys_without_a_tenant_share_a_turn_with_plain_tasks(bench: Bench) -> None:
    bench.enqueue(2)
    bench.enqueue(2, b"", b"x")
    bench.enqueue(4, b"a")
    taken = bench.subqueues(8)
    assert Counter(taken[:4]) == {"": 1, "/x": 1, "a": 2}
    assert Counter(taken) == {"": 2, "/x": 2, "a": 4}


def test_priorities_come_before_turns(bench: Bench) -> None:
    bench.enqueue(2, b"a", priority=0)
    bench.enqueue(2, b"b", priority=9)
    bench.enqueue(2, priority=5)
    assert bench.subqueues(6) == ["b", "b", "", "", "a", "a"]


def test_who_has_no_more_tasks_is_passed_over_and_comes_back_at_the_end(bench: Bench) -> None:
    bench.enqueue(1, b"a")
    bench.enqueue(5, b"b")
    assert bench.subqueues(times=3) == ["a", "b", "b"]
    bench.enqueue(1, b"a")
    assert "a" in bench.subqueues(times=2)


@pytest.mark.parametrize("held_max", [2, 5, 1000])
@pytest.mark.parametrize("page", [2, 3, 256])
def test_more_tenants_than_are_held_take_turns_alike(monkeypatch: pytest.MonkeyPatch, held_max: int, page: int) -> None:
    monkeypatch.setattr(subqueues, "TENANTS_HELD_MAX", held_max)
    monkeypatch.setattr(subqueues, "SUBQUEUES_PAGE", page)
    bench = Bench(window_tasks_max=4)
    names = [f"t{number:02}" for number in range(20)]
    for name in names:
        bench.enqueue(5, name.encode())
    taken = bench.subqueues(times=100)
    for cycle in range(5):
        assert sorted(taken[cycle * 20 : cycle * 20 + 20]) == names


@pytest.mark.parametrize("keys_max", [2, 256])
@pytest.mark.parametrize("page", [2, 3, 64])
def test_more_limit_keys_than_are_held_take_turns_alike(
    monkeypatch: pytest.MonkeyPatch, keys_max: int, page: int
) -> None:
    monkeypatch.setattr(subqueues, "KEYS_HELD_MAX", keys_max)
    monkeypatch.setattr(subqueues, "KEYS_PAGE", page)
    monkeypatch.setattr(subqueues, "SUBQUEUES_PAGE", page)
    monkeypatch.setattr(subqueues, "SUBQUEUES_PAGE_BEHIND_A_WIDE_ONE", 2)
    monkeypatch.setattr(subqueues, "TENANTS_HELD_MAX", 2)
    bench = Bench(window_tasks_max=4)
    for tenant in (b"a", b"b", b"c", b"d"):
        bench.enqueue_all([(tenant, f"k{number}".encode()) for number in range(8)] * 3)
    bench.start()
    taken = bench.subqueues(times=96)
    assert len(taken) == 96
    for name in "abcd":
        of_tenant = [subqueue for subqueue in taken if subqueue.startswith(name)]
        for cycle in range(3):
            assert len(set(of_tenant[cycle * 8 : cycle * 8 + 8])) == 8, of_tenant
    assert Counter(subqueue[0] for subqueue in taken[:40]) == dict.fromkeys("abcd", 10)


def test_a_new_tenant_waits_at_most_one_cycle(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subqueues, "TENANTS_HELD_MAX", 4)
    monkeypatch.setattr(subqueues, "SUBQUEUES_PAGE", 4)
    bench = Bench()
    for number in range(20):
        bench.enqueue(10, b"t%02d" % number)
    bench.take(13)
    bench.enqueue(1, b"t00a")  # behind the walk
    bench.enqueue(1, b"t15a")  # before it
    taken = bench.subqueues(times=40)
    assert taken.index("t15a") < 20
    assert taken.index("t00a") < 22


def test_a_task_that_comes_back_to_a_subqueue_that_was_empty_is_not_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the walk read of that sub-queue is old by then."""
    monkeypatch.setattr(subqueues, "SUBQUEUES_PAGE", 2)
    monkeypatch.setattr(subqueues, "KEYS_PAGE", 2)
    bench = Bench()
    rest = bench.enqueue(9, b"a", b"x") + bench.enqueue(9, b"a", b"y")
    tasks = bench.enqueue(2, b"a", b"z")
    while tasks[0] not in bench.take():
        pass
    bench.start()
    while tasks[1] not in bench.take():
        pass
    bench.take(3)
    round_robin = bench.scheduler.windows[QUEUE].level(4).round_robin
    assert round_robin is not None
    assert round_robin.subqueue(b"a", b"x") is not None
    assert round_robin.subqueue(b"a", b"z") is None or b"z" in round_robin.known[b"a"].keys.idle
    bench.release(tasks[0])
    left = bench.take_all()
    assert tasks[0] in left
    assert set(left) <= {tasks[0], *rest}


# --- the oldest ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("share_percent", [0, 10, 33, 100])
def test_the_oldest_of_all_subqueues_get_their_share(share_percent: int) -> None:
    bench = Bench(oldest_share_percent=share_percent)
    old = {*bench.enqueue(50, b"a", priority=0), *bench.enqueue(50, b"", b"k", priority=1)}
    bench.enqueue(100, b"b", priority=9)
    assert len(old.intersection(bench.take(100))) == share_percent


def test_with_a_full_share_age_is_all_that_counts() -> None:
    bench = Bench(oldest_share_percent=100)
    tasks = []
    for number in range(60):
        tasks += bench.enqueue(1, b"t%d" % (number * 7 % 5) if number % 3 else b"", priority=number * 3 % 10)
    bench.cancel(tasks.pop(31))
    released = bench.take(20)
    assert released == tasks[:20]
    bench.release(*released[3:9])
    assert bench.take_all(7) == tasks[3:9] + tasks[20:]


_Came = tuple[int, bytes, bytes]  # priority, tenant, limit key
_CAME = st.tuples(
    st.sampled_from([9, 9, 4, 0]), st.sampled_from([b"", b"a", b"b", b"full"]), st.sampled_from([b"", b"x", b"y"])
)
# What happens, again and again: tasks come, so many are picked, and then perhaps another node leads.
_Step = tuple[list[_Came], int, bool]
_STEPS = st.lists(st.tuples(st.lists(_CAME, max_size=4), st.integers(0, 3), st.booleans()), max_size=60)


@pytest.mark.parametrize("share_percent", [1, 10, 33, 50, 100])
@given(steps=_STEPS)
@settings(max_examples=60, deadline=None)
def test_nothing_waits_longer_than_its_bound(share_percent: int, steps: list[_Step]) -> None:
    """A task with n older ones before it is picked within (n + 1) * ceil(100 / share) picks, whatever comes meanwhile
    and whoever leads, while no limit holds it up."""
    bench = Bench(oldest_share_percent=share_percent, tenants={b"full": EffectiveTenantPolicy(1, concurrency_max=1)})
    bench.enqueue(1, b"full")
    assert bench.take()  # and keeps its only slot for ever
    picks_left: dict[bytes, int] = {}  # of the tasks that are open: within how many picks each must be picked
    waiting = 0  # with those that are not
    stride = -(-100 // share_percent)

    def pick(count: int) -> int:
        taken = bench.take(count)
        for index, task_id in enumerate(taken, 1):
            assert index <= picks_left.pop(task_id), "waited too long"
        for task_id in picks_left:
            picks_left[task_id] -= len(taken)
            assert picks_left[task_id] > 0, "waits too long"
        return len(taken)

    for came, count, is_led_anew in steps:
        for priority, tenant, limit_key in came:
            (task_id,) = bench.enqueue(1, tenant, limit_key, priority=priority)
            waiting += 1
            if tenant != b"full":
                picks_left[task_id] = waiting * stride
        waiting -= pick(count) if count else 0
        if is_led_anew:
            bench.start()
    while picks_left:
        assert pick(1), "something is open and not found"


LIMITS_OF_A_KEY = {"cap": {"key_concurrency_max": 1}, "rate": {"key_rate": Rate(1, 1)}}


@pytest.mark.parametrize("limits", LIMITS_OF_A_KEY.values(), ids=LIMITS_OF_A_KEY)
def test_a_blocked_task_does_not_use_up_the_share_of_the_oldest(limits: dict[str, Any]) -> None:
    """A task that waits behind another one of its key is often the oldest of all."""
    bench = Bench(oldest_share_percent=10, **limits)
    bench.enqueue(3, b"", b"busy")
    assert len(bench.take(3)) == 1
    (task,) = bench.enqueue(1, priority=0)
    (later,) = bench.enqueue(1, b"t", priority=0)
    taken: list[bytes] = []
    while task not in taken or later not in taken:
        bench.enqueue(2, b"a", priority=9)
        taken += bench.take()
        assert len(taken) <= 20, "a blocked one is none of those before them"


def test_no_priority_starves_behind_very_many_blocked_ones() -> None:
    bench = Bench(oldest_share_percent=10, key_concurrency_max=1)
    bench.enqueue(3 * windows.OLDEST_MAX, b"", b"busy", priority=5)
    assert len(bench.take(3)) == 1
    (task,) = bench.enqueue(1, b"t", priority=0)
    taken: list[bytes] = []
    while task not in taken:
        bench.enqueue(2, b"a", priority=9)
        taken += bench.take()
        assert len(taken) <= 10 * PRIORITIES


def test_a_burst_of_the_oldest_leaves_the_others_their_shares() -> None:
    """With the usual share of the oldest, all of which belong to one tenant."""
    bench = Bench(oldest_share_percent=10, tenants=weights(burst=2, t1=1, t2=2, t3=3))
    bench.enqueue(9000, b"burst")
    for tenant in (b"t1", b"t2", b"t3"):
        bench.enqueue(60, tenant)
    counts: Counter[str] = Counter()
    while (total := counts.total()) < 10_000:
        taken = bench.subqueues(25)
        counts.update(taken)
        bench.enqueue_all([(name.encode(), b"") for name in taken])
    for name, weight in {"burst": 2, "t1": 1, "t2": 2, "t3": 3}.items():
        assert counts[name] / total == pytest.approx(weight / 8, rel=0.05)


def test_the_oldest_is_none_that_is_on_its_way_already(monkeypatch: pytest.MonkeyPatch) -> None:
    use_short_rows(monkeypatch)
    bench = Bench()
    old = bench.enqueue(2, b"z", priority=0)
    (high,) = bench.enqueue(1, b"a", priority=9)
    (older,), (newer,) = bench.enqueue(1, b"y", priority=0), bench.enqueue(1, b"a", priority=9)
    picked = bench.pick()
    assert picked is not None
    assert picked.task_ids == [high]
    bench.set_policy(oldest_share_percent=100)
    assert bench.take(9) == [*old, older, newer]


def test_the_oldest_is_found_though_its_tenant_is_not_held(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subqueues, "TENANTS_HELD_MAX", 2)
    monkeypatch.setattr(subqueues, "SUBQUEUES_PAGE", 2)
    bench = Bench(oldest_share_percent=50)
    for number in range(12):
        bench.enqueue(5, b"t%02d" % (11 - number))
    assert sorted(bench.take_all(3)) == sorted(bench.enqueued)


def read_oldest(bench: Bench) -> bytes | None:
    return bench.shard.machine.reader.oldest_ready(bench.shard.machine.ready_in_age_page, QUEUE, bench.shard.queue())


def test_the_oldest_ready_task_is_found_from_the_marks(bench: Bench) -> None:
    tasks = [*bench.enqueue(2, b"a", priority=1), *bench.enqueue(1, priority=9), *bench.enqueue(1, b"", b"x")]
    for left in range(4):
        assert read_oldest(bench) == tasks[0]
        row = bench.shard.queue()
        assert row.age_mark <= bench.task(tasks[0]).sequence or left >= 2
        bench.shard.claim(tasks.pop(0))
    assert read_oldest(bench) is None


def test_the_marks_follow_what_is_taken(bench: Bench) -> None:
    """Whoever reads the index after them never walks over what is gone."""
    bench.enqueue(300, b"a")
    bench.enqueue(1, b"b", priority=9)
    (left,) = bench.enqueue(1, b"c", priority=1)
    for _ in range(43):
        bench.take(7)
    assert bench.shard.queue().age_mark == bench.task(left).sequence
    bench.enqueue(5, b"a")
    row = bench.kv.get(keys.subqueue(QUEUE, 4, b"a", b""))
    assert row is not None
    assert SubqueueRow.decode(row).mark > bench.task(left).sequence


# --- what it costs ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("all_held", [True, False])
def test_tenants_that_are_forgotten_do_not_wait_for_the_garbage_collector(
    monkeypatch: pytest.MonkeyPatch, all_held: bool
) -> None:
    """It stops everything while it looks, the longer the more there is."""
    if not all_held:
        monkeypatch.setattr(subqueues, "TENANTS_HELD_MAX", 10)
        monkeypatch.setattr(subqueues, "SUBQUEUES_PAGE", 10)
    monkeypatch.setattr(scheduler, "IDLE_CACHED_MAX", 10)
    bench = Bench()
    for _ in range(2):
        bench.enqueue_all([(b"t%03d" % number, b"") for number in range(200)])
    gc.collect()
    gc.disable()
    try:
        assert len(bench.take_all(3)) == 400
        held = sum(isinstance(item, subqueues.Tenant) for item in gc.get_objects())
    finally:
        gc.enable()
    assert held < 40


def many_subqueues(count: int, tasks: int, *, share_percent: int = 10) -> Bench:
    bench = Bench(oldest_share_percent=share_percent)
    for _ in range(tasks):
        bench.enqueue_all([(b"t%06d" % number, b"") for number in range(count)])
    bench.start()
    return bench


@pytest.mark.parametrize("count", [100, 10_000])
def test_a_pick_reads_as_much_among_ten_thousand_tenants_as_among_a_hundred(count: int) -> None:
    bench = many_subqueues(count, 1 if count > 100 else 20)
    before = bench.kv.reads, bench.kv.rows_read
    first = bench.scheduler.pick(QUEUE, 1, 1 << 40)
    assert first is not None
    assert bench.kv.rows_read - before[1] < 2 * subqueues.SUBQUEUES_PAGE, "the first pick of a leader reads a page"
    for _ in range(1000):
        picked = bench.scheduler.pick(QUEUE, 1, 1 << 40)
        assert picked is not None
    assert (bench.kv.reads - before[0]) / 1000 < 2.5
    assert (bench.kv.rows_read - before[1]) / 1000 < 12


def test_one_tenant_with_a_great_backlog_does_not_hold_up_the_others() -> None:
    bench = Bench(oldest_share_percent=0)
    bench.enqueue(2_000, b"greedy")
    for number in range(10):
        bench.enqueue(5, b"modest%d" % number)
    taken = Counter(subqueue[:6] for subqueue in bench.subqueues(55))
    assert taken == {"greedy": 5, "modest": 50}


def test_tasks_and_subqueues_that_are_held_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subqueues, "SUBQUEUES_HELD_MAX", 40)
    bench = Bench(window_tasks_max=50, oldest_share_percent=10)
    bench.enqueue_all([(b"t%d" % (number % 60), b"k%d" % (number % 5)) for number in range(1200)])
    bench.start()
    for _ in range(1200):
        assert bench.take()
        window = bench.scheduler.windows[QUEUE]
        assert window.lines.size <= 50 + lines.REFILL_TASKS
        round_robin = window.level(4).round_robin
        assert round_robin is None or window.shared_state.subqueues <= 40 + subqueues.KEYS_PAGE + 5
        held = (
            sum(
                len(subqueue.line)
                for tenant in round_robin.known.values()
                for subqueue in tenant.keys.known.values()
                if subqueue.line
            )
            if round_robin
            else 0
        )
        assert held <= window.lines.size
    assert not bench.take()
    window = bench.scheduler.windows[QUEUE]
    assert (window.lines.size, window.shared_state.subqueues, window.round_robins) == (0, 0, 0), "nothing leaks"


def test_a_queue_whose_subqueues_are_empty_goes_back_to_the_fast_path(bench: Bench) -> None:
    bench.enqueue(3, b"a")
    bench.enqueue(30)
    bench.take(10)
    bench.take(1)
    assert bench.scheduler.windows[QUEUE].round_robins == 0
    assert len(bench.take_all()) == 22


def test_tasks_without_a_tenant_get_their_turn_among_more_tenants_than_are_held(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(subqueues, "TENANTS_HELD_MAX", 4)
    monkeypatch.setattr(subqueues, "SUBQUEUES_PAGE", 4)
    bench = Bench()
    for number in range(20):
        bench.enqueue(6, b"t%02d" % number)
    bench.enqueue(6)
    taken = bench.subqueues(times=84)
    assert Counter(taken)[""] == 4
