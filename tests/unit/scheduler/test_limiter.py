"""What holds tasks back: pause, caps and rates, of a queue, a tenant and a limit key; and what opens them again."""

import random
from collections import Counter
from typing import Any

import pytest

from holdfast.broker.policy.policies import EffectiveTenantPolicy
from holdfast.broker.scheduler import limiter as limiters
from holdfast.broker.scheduler import oldest as ages
from holdfast.broker.scheduler import scheduler as scheduler_module
from holdfast.broker.scheduler import subqueues as subqueues
from holdfast.broker.scheduler import windows
from holdfast.broker.scheduler.limiter import Allowance
from holdfast.limits.buckets import Rate
from holdfast.machine import keys
from holdfast.machine.rows import Bucket as BucketRow
from tests.unit.machine.machine_shard import QUEUE
from tests.unit.scheduler.scheduling_bench import PLENTY, Bench

ONE_PER_SECOND = Rate(1000, 1)

# --- pause --------------------------------------------------------------------------------------------------------


def test_a_paused_queue_gives_nothing_and_offers_nothing() -> None:
    bench = Bench()
    tasks = bench.enqueue(2) + bench.enqueue(2, b"a")
    bench.set_policy(paused=True)
    assert (bench.take(5), bench.available) == ([], 0)
    bench.set_policy(paused=False)
    assert bench.available == 4
    assert sorted(bench.take(5)) == tasks


def test_a_queue_that_was_paused_before_anybody_looked_offers_nothing() -> None:
    bench = Bench()
    bench.enqueue(2)
    bench.set_policy(paused=True)
    bench.start()
    assert bench.available == 0


# --- caps ---------------------------------------------------------------------------------------------------------


def test_a_tenant_at_its_cap_does_not_hold_up_others() -> None:
    bench = Bench(tenant_concurrency_max=1, tenants={b"big": EffectiveTenantPolicy(1, 3, None)})
    for tenant in (b"a", b"b", b"big", b""):
        bench.enqueue(5, tenant)
    assert Counter(bench.subqueues(20)) == {"a": 1, "b": 1, "big": 3, "": 5}
    assert bench.available == 0


@pytest.mark.parametrize("share_percent", [0, 10])
@pytest.mark.parametrize("other", [b"b", b""])
def test_a_subqueue_that_has_tasks_again_is_not_held_up_by_the_cap_of_another(other: bytes, share_percent: int) -> None:
    bench = Bench(key_concurrency_max=1, oldest_share_percent=share_percent)
    bench.enqueue(2, b"t", b"a")
    bench.enqueue(1, b"t", other)
    taken = bench.take() + bench.take()  # the last one of the other sub-queue is among them: it is idle now
    assert bench.pick() is None, "the key is in use, so the tenant is set aside"
    bench.finish(*(task_id for task_id in taken if bench.task(task_id).limit_key == other))
    assert bench.pick() is None
    (task_id,) = bench.enqueue(1, b"t", other)
    assert bench.take() == [task_id]


def test_what_was_on_its_way_before_a_reset_and_is_applied_still_counts() -> None:
    bench = Bench(concurrency_max=2, tenant_concurrency_max=1, key_rate=ONE_PER_SECOND)
    bench.enqueue_all([(b"a", b"x"), (b"b", b"x"), (b"c", b"y"), (b"a", b"z")])
    picked = bench.pick()
    assert picked is not None
    bench.scheduler.reset()
    bench.scheduler.adopt(picked)
    assert bench.subqueues(4) == ["c/y"]
    bench.apply(picked)
    assert bench.pick() is None


def test_a_cap_that_is_raised_opens() -> None:
    bench = Bench(tenant_concurrency_max=1)
    bench.enqueue(5, b"a")
    assert len(bench.take(5)) == 1
    assert bench.available == 0
    bench.set_limits(tenant_concurrency_max=3)
    assert bench.available
    assert len(bench.take(5)) == 2


@pytest.mark.parametrize("limit", ["tenant_concurrency_max", "key_concurrency_max"])
def test_what_was_on_its_way_when_a_cap_was_set_counts(limit: str) -> None:
    bench = Bench()
    bench.enqueue(5, b"a", b"x")
    picked = bench.pick(2)
    assert picked is not None
    bench.set_limits(**{limit: 3})
    assert len(bench.take(5)) == 1
    bench.apply(picked)
    assert bench.pick() is None
    bench.finish(*picked.task_ids)
    assert len(bench.take(5)) == 2


def test_the_oldest_is_taken_though_its_subqueue_was_never_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its place is in the index by age: the sub-queue itself need not be read for it."""
    monkeypatch.setattr(
        scheduler_module, "SUBQUEUES_PAGE", 1
    )  # so that not all sub-queues are read with the first look
    bench = Bench(oldest_share_percent=50)
    low = bench.enqueue(3, b"a", priority=1)
    bench.enqueue(9, b"b", priority=9)
    bench.start()
    first = bench.take(6)
    assert first[1::2] == low
    round_robin = bench.scheduler.windows[QUEUE].level(1).round_robin
    assert round_robin is not None
    assert b"a" not in round_robin.known
    assert sorted([*first, *bench.take_all(2)]) == sorted(bench.enqueued)


def test_the_oldest_that_is_blocked_is_passed_over() -> None:
    bench = Bench(tenant_concurrency_max=1, oldest_share_percent=100)
    bench.enqueue(3, b"a")
    bench.enqueue(2, b"b")
    assert Counter(bench.subqueues(9)) == {"a": 1, "b": 1}


def test_what_passes_an_old_task_that_is_blocked_does_not_pile_up() -> None:
    bench = Bench(tenant_concurrency_max=1, oldest_share_percent=50)
    bench.enqueue(3, b"a")
    assert bench.subqueues() == ["a"]
    for _ in range(20):
        bench.enqueue_all([(b"t%02d" % number, b"") for number in range(50)])
        taken = bench.take_all(10)
        assert len(taken) == 50
        bench.finish(*taken)
    window = bench.scheduler.windows[QUEUE]
    assert len(window.ages.line) <= 2 * ages.HELD_MAX


def test_an_allowance_takes_the_place_of_what_the_policy_says() -> None:
    bench = Bench(concurrency_max=10)
    bench.enqueue(20)
    bench.allowance = Allowance(2, None)
    assert len(bench.take(20)) == 2
    bench.allowance = Allowance(0, None)
    bench.scheduler.limits_changed(QUEUE)
    assert (bench.take(20), bench.available) == ([], 0)
    bench.allowance = Allowance(3, Rate(1000, 5))
    bench.scheduler.limits_changed(QUEUE)
    assert bench.take(20) == [], "a share of a rate begins empty"
    bench.shard.now_ms += 3000
    assert len(bench.take(20)) == 1
    bench.allowance = None
    bench.scheduler.limits_changed(QUEUE)
    assert len(bench.take(20)) == 7


# --- shares of a rate -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("cap", [None, 10])
@pytest.mark.parametrize("waits_without", [False, True])
def test_a_share_of_a_rate_begins_empty_with_a_cap_too(cap: int | None, waits_without: bool) -> None:
    bench = Bench(concurrency_max=cap or 0, rate=Rate(5000, 5))
    bench.enqueue(20)
    if waits_without:
        bench.allowance = Allowance(cap and 0, Rate(0, 0))
        assert (bench.take(20), bench.available) == ([], 0)
        bench.shard.now_ms += 60_000
    bench.allowance = Allowance(cap, Rate(5000, 5))
    bench.scheduler.limits_changed(QUEUE)
    assert bench.take(20) == []
    bench.shard.now_ms += 400
    assert len(bench.take(20)) == 2


def test_a_new_leader_goes_on_with_what_the_share_of_a_rate_had_and_gains_nothing_meanwhile() -> None:
    bench = Bench(rate=Rate(5000, 5))
    bench.enqueue(20)
    bench.allowance = Allowance(None, Rate(5000, 5))
    assert bench.take(20) == []
    bench.shard.now_ms += 800
    assert len(bench.take(2)) == 2
    bench.start()
    bench.shard.now_ms += 60_000
    assert len(bench.take(20)) == 2


def test_a_share_of_a_rate_gains_nothing_while_others_have_it() -> None:
    """Also if nobody asks meanwhile."""
    bench = Bench(rate=Rate(5000, 5))
    bench.enqueue(20)
    bench.allowance = Allowance(None, Rate(5000, 5))
    assert bench.take(20) == []
    for rate, ms in ((Rate(0, 0), 60_000), (Rate(5000, 5), 200)):
        bench.allowance = Allowance(None, rate)
        bench.scheduler.limits_changed(QUEUE)
        bench.shard.now_ms += ms
    assert len(bench.take(20)) == 1


def test_a_hundred_blocked_tenants_cost_a_pick_nothing() -> None:
    bench = Bench(tenant_concurrency_max=1)
    for number in range(100):
        bench.enqueue(2, b"t%03d" % number)
    bench.enqueue(50, b"")
    bench.take(102)
    before = bench.kv.reads
    assert bench.subqueues(times=40) == [""] * 40
    claims_read = 40 * 4  # what the machine itself reads
    assert bench.kv.reads - before < claims_read + 20


def test_a_tenant_that_is_open_among_thousands_that_are_not(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pick looks at a bounded number of sub-queues; what it did not find is found by those that follow."""
    monkeypatch.setattr(scheduler_module, "SCAN_BUDGET", 50)
    monkeypatch.setattr(subqueues, "TENANTS_HELD_MAX", 20)
    monkeypatch.setattr(subqueues, "ASIDE_MAX", 20)
    monkeypatch.setattr(subqueues, "SUBQUEUES_PAGE", 20)
    bench = Bench(tenant_concurrency_max=1, tenants={b"t0999": EffectiveTenantPolicy(1, 0, None)})
    for _ in range(2):
        bench.enqueue_all([(b"t%04d" % number, b"") for number in range(1000)])
    first = bench.take_all(1000)
    assert len(first) == 1001
    assert bench.scheduler.pick(QUEUE, 1, PLENTY) is None
    assert not bench.scheduler.unfinished, "all is known to be blocked"
    bench.enqueue(40, b"t0999")
    scan_budget = 0
    while not (picked := bench.scheduler.pick(QUEUE, 1, PLENTY)):
        before = bench.kv.rows_read
        assert bench.scheduler.unfinished
        assert bench.kv.rows_read - before <= 50 + 20
        scan_budget += 1
        assert scan_budget < 100
    bench.apply(picked)
    assert len(bench.take_all(1)) == 39
    bench.finish(first[500])  # of a tenant that nobody remembers
    assert len(bench.take_all(1)) == 1
    bench.finish(first[700], first[3])
    assert len(bench.take_all(1)) == 2


def test_limit_keys_that_were_forgotten_while_blocked_are_found_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subqueues, "KEYS_HELD_MAX", 2)
    monkeypatch.setattr(subqueues, "KEYS_PAGE", 2)
    monkeypatch.setattr(subqueues, "ASIDE_MAX", 2)
    bench = Bench(key_concurrency_max=1)
    bench.enqueue_all([(b"t%d" % (number % 4), b"k%02d" % (number % 30)) for number in range(120)])
    taken = bench.take_all(7)
    assert len(taken) == 30
    for task_id in taken:
        bench.finish(task_id)
        assert len(bench.take_all(7)) == 1


# --- rates --------------------------------------------------------------------------------------------------------


def test_a_rate_opens_at_the_time_that_was_said() -> None:
    bench = Bench(rate=Rate(2000, 3))
    bench.enqueue(10)
    assert len(bench.take(10)) == 3
    assert (bench.available, bench.wake_ms[-1]) == (0, bench.shard.now_ms + 500)
    bench.pass_ms(499)
    assert (bench.take(10), bench.available) == ([], 0)
    bench.pass_ms(1)
    assert bench.available == 1
    assert len(bench.take(10)) == 1
    bench.pass_ms(10_000)
    assert len(bench.take(10)) == 3


@pytest.mark.parametrize("what", ["tenant_rate", "key_rate"])
def test_a_rate_of_one_does_not_hold_up_others(what: str) -> None:
    limits: dict[str, Any] = {what: ONE_PER_SECOND}
    bench = Bench(**limits)
    bench.enqueue_all([(b"a", b"a"), (b"b", b"b")] * 3)
    bench.enqueue(2)
    assert Counter(bench.subqueues(9)) == {"a/a": 1, "b/b": 1, "": 2}
    assert bench.available == 0
    assert bench.wake_ms[-1] == bench.shard.now_ms + 1000
    bench.pass_ms(1000)
    assert bench.available
    assert Counter(bench.subqueues(9)) == {"a/a": 1, "b/b": 1}


def test_the_next_leader_goes_on_where_the_bucket_was() -> None:
    bench = Bench(rate=Rate(1000, 5), tenant_rate=Rate(1000, 4))
    bench.enqueue(10, b"a")
    assert len(bench.take(3)) == 3
    bench.start()
    assert len(bench.take(10)) == 1
    row = bench.kv.get(keys.bucket(QUEUE, keys.SCOPE_TENANT, b"a"))
    assert row is not None
    level_micro, at_ms, key_expiry_ms = BucketRow.decode(row)
    assert (level_micro, at_ms) == (0, bench.shard.now_ms)
    assert key_expiry_ms % limiters.KEY_EXPIRY_STEP_MS == 0
    assert bench.shard.now_ms + 4000 <= key_expiry_ms < bench.shard.now_ms + 4000 + limiters.KEY_EXPIRY_STEP_MS
    bench.start()
    bench.pass_ms(1000)
    assert len(bench.take(10)) == 1


def test_tokens_of_picks_that_are_given_back_are_not_lost() -> None:
    bench = Bench(rate=Rate(1, 2), tenant_rate=Rate(1, 2), key_rate=Rate(1, 2))
    bench.enqueue(5, b"a", b"x")
    picked = bench.pick(5)
    assert picked is not None
    bench.scheduler.give_back(picked)
    assert len(bench.take(5)) == 2


def test_picks_that_are_dropped_spent_nothing() -> None:
    bench = Bench(rate=Rate(1, 2), tenant_concurrency_max=2)
    bench.enqueue(5, b"a")
    assert bench.pick(5) is not None
    bench.scheduler.reset()
    assert len(bench.take(5)) == 2


def test_limiters_that_are_held_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limiters, "LIMITERS_HELD_MAX", 10)
    bench = Bench(tenant_rate=Rate(1, 1))
    for _ in range(2):
        bench.enqueue_all([(b"t%03d" % number, b"") for number in range(100)])
    assert len(bench.take_all(3)) == 100
    bench.enqueue(1)
    bench.take()
    assert len(bench.scheduler.windows[QUEUE].limiters.tenants) <= 10
    bench.scheduler.limits_changed(QUEUE)
    assert bench.take_all(3) == [], "what is forgotten is in the state"


@pytest.mark.parametrize("seed", range(4))
def test_a_rate_is_never_exceeded_and_is_used_under_load(seed: int) -> None:
    """Over leaders that come and go, claims that are dropped and picks that are given back."""
    draw = random.Random(seed)
    rate, burst = draw.choice([(5_000, 3), (20_000, 20), (700, 1)])
    which = draw.choice(["rate", "tenant_rate", "key_rate"])
    limits: dict[str, Any] = {which: Rate(rate, burst)}
    bench = Bench(oldest_share_percent=draw.choice([0, 10]), **limits)
    bench.enqueue_all([(b"a", b"x")] * 400)
    began_ms = bench.shard.now_ms
    claimed_ms: list[int] = []
    while bench.shard.now_ms < began_ms + 12_000:
        bench.pass_ms(draw.randint(1, 60))
        if draw.random() < 0.05:
            bench.start()
        picked = bench.pick(draw.randint(1, 5))
        if picked is None:
            continue
        if draw.random() < 0.05:
            bench.scheduler.give_back(picked)
        elif draw.random() < 0.05:
            bench.scheduler.reset()  # it was never written
        else:
            bench.apply(picked)
            claimed_ms += [bench.shard.now_ms] * len(picked.ready_refs)
    for first, start_ms in enumerate(claimed_ms):
        for last in range(first, len(claimed_ms)):
            allowed = rate * (claimed_ms[last] - start_ms) / 1_000_000 + burst
            assert last - first + 1 <= allowed + 1e-9
    elapsed_ms = bench.shard.now_ms - began_ms
    assert len(claimed_ms) >= 0.95 * min(400, rate * elapsed_ms / 1_000_000 + burst) - 1


# --- shares by weight ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(2))
def test_shares_are_those_of_the_weights(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten thousand claims, over leaders that come and go; tasks that are finished are replaced, so nobody runs out."""
    monkeypatch.setattr(subqueues, "TENANTS_HELD_MAX", 4 if seed else 1024)
    monkeypatch.setattr(subqueues, "SUBQUEUES_PAGE", 3)
    draw = random.Random(seed)
    of = {b"t%02d" % number: draw.randint(1, 10) for number in range(12)}
    bench = Bench(tenants={name: EffectiveTenantPolicy(weight, 0, None) for name, weight in of.items()})
    for name, weight in of.items():
        bench.enqueue(weight * 4, name)
    counts: Counter[bytes] = Counter()
    total = 0
    while total < 10_000:
        picked = bench.pick(draw.randint(1, 40))
        assert picked is not None
        bench.scheduler.give_back(picked) if draw.random() < 0.02 else counts.update(
            ready_ref[2] for ready_ref in picked.ready_refs
        )
        subqueues_picked = [(ready_ref[2], b"") for ready_ref in picked.ready_refs]
        if picked.window.lines.claiming:
            bench.apply(picked)
            bench.enqueue_all(subqueues_picked)
            total += len(subqueues_picked)
        if draw.random() < 0.002:
            bench.start()
    weight_sum = sum(of.values())
    for name, weight in of.items():
        assert abs(counts[name] / total - weight / weight_sum) <= 0.05 * weight / weight_sum


def test_more_tenants_wait_for_their_rate_than_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scheduler_module, "WAKES_MAX", 5)
    monkeypatch.setattr(subqueues, "TENANTS_HELD_MAX", 8)
    monkeypatch.setattr(subqueues, "ASIDE_MAX", 8)
    monkeypatch.setattr(subqueues, "SUBQUEUES_PAGE", 8)
    bench = Bench(tenant_rate=Rate(10_000, 1))
    for _ in range(3):
        bench.enqueue_all([(b"t%02d" % number, b"") for number in range(40)])
    assert len(bench.take_all(7)) == 40
    assert bench.take_all(7) == []
    for _ in range(2):
        bench.pass_ms(scheduler_module.EVERYTHING_MS)
        assert bench.available
        assert len(bench.take_all(7)) == 40
        assert bench.take_all(7) == []
    assert len(bench.scheduler.wakes) < 50


def test_blocked_limit_keys_of_which_there_are_ever_more_do_not_hold_up_other_tenants(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(scheduler_module, "SCAN_BUDGET", 6)
    monkeypatch.setattr(subqueues, "KEYS_HELD_MAX", 4)
    monkeypatch.setattr(subqueues, "KEYS_PAGE", 4)
    bench = Bench(key_concurrency_max=1)
    for _ in range(2):
        bench.enqueue_all([(b"a", b"k%03d" % number) for number in range(60)])
    assert len(bench.take_all(60)) == 60
    tasks = bench.enqueue(3, b"b")
    taken: list[bytes] = []
    for number in range(200):
        bench.enqueue_all([(b"a", b"k%03d" % (number % 60))])  # of a sub-queue that nobody remembers
        picked = bench.scheduler.pick(QUEUE, 1, PLENTY)
        if picked is not None:
            bench.apply(picked)
            taken += picked.task_ids
    assert taken == tasks


# --- what holds tasks up ------------------------------------------------------------------------------------------


def outlook(bench: Bench) -> tuple[bool, bool, bool]:
    """Whether something is open, and whether slots or the rate were less than was asked for."""
    is_open, slots, rate, *_ = bench.scheduler.outlook(QUEUE)
    return is_open, slots, rate


def test_what_is_open_does_not_depend_on_the_limits_of_the_queue_itself() -> None:
    bench = Bench(concurrency_max=5, rate=ONE_PER_SECOND, key_concurrency_max=1)
    assert outlook(bench) == (False, False, False)
    bench.allowance = Allowance(0, Rate(0, 0))
    bench.enqueue(2, limit_key=b"x")
    assert outlook(bench) == (True, False, False)
    assert bench.take() == []
    assert outlook(bench) == (True, False, True), "more slots alone would not help"
    assert outlook(bench) == (True, False, False), "nobody asked since"
    bench.allowance = Allowance(5, Rate(1_000_000, 5))
    bench.scheduler.limits_changed(QUEUE)
    bench.shard.now_ms += 1000
    (first,) = bench.take(5)
    assert outlook(bench)[0] is False, "its key is at its cap"
    bench.enqueue()
    assert outlook(bench)[0]
    bench.take(5)
    assert outlook(bench) == (False, False, False)
    bench.finish(first)
    assert outlook(bench)[0]
    bench.set_policy(paused=True)
    assert not outlook(bench)[0]


def test_who_is_short_of_what() -> None:
    bench = Bench(concurrency_max=3, rate=Rate(1000, 2))
    bench.enqueue(9)
    assert len(bench.take(5)) == 2
    assert outlook(bench) == (True, False, True)
    bench.shard.now_ms += 2000
    assert len(bench.take(5)) == 1
    assert bench.scheduler.outlook(QUEUE) == (True, True, False, 3, True)


def test_how_much_of_a_cap_was_in_use_at_most() -> None:
    bench = Bench(concurrency_max=5)
    bench.enqueue(9)
    bench.finish(*bench.take(2), *bench.take(2))
    bench.finish(*bench.take(1))
    assert [bench.scheduler.outlook(QUEUE).most_in_use for _ in range(2)] == [4, 0]


def test_a_look_at_what_a_rate_holds_up_notes_when_it_opens() -> None:
    bench = Bench(tenant_rate=ONE_PER_SECOND)
    bench.enqueue(2, b"a")
    bench.take()
    bench.start()
    assert not outlook(bench)[0]
    assert bench.wake_ms == [bench.shard.now_ms + 1000]
    bench.shard.now_ms += 1000
    assert bench.scheduler.open_due() == [QUEUE]
    assert outlook(bench)[0]


def test_where_more_is_blocked_than_is_looked_at_something_may_be_open(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scheduler_module, "SCAN_BUDGET", 4)
    monkeypatch.setattr(windows, "SCANS_OVER_MAX", 4)
    bench = Bench(tenant_concurrency_max=1)
    tenants = [b"t%d" % number for number in range(40)]
    bench.enqueue_all([(tenant, b"") for tenant in tenants] * 2)
    assert len(bench.take_all()) == 40
    bench.start()
    answers = [outlook(bench)[0] for _ in range(40)]
    assert answers[0]
    assert not answers[-1], "each look goes on where the one before stopped"


def test_looks_change_no_turns_of_what_is_open() -> None:
    def taken(*, scan_budget: bool) -> list[str]:
        bench = Bench(tenant_concurrency_max=300, tenants={b"t1": EffectiveTenantPolicy(3, 300, None)})
        names = [(b"t%d" % (number % 3), b"k%d" % (number % 5)) for number in range(90)]
        bench.enqueue_all(names)
        order: list[str] = []
        for count in range(1, 9):
            if scan_budget:
                assert bench.scheduler.outlook(QUEUE).is_open
            order += bench.subqueues(count)
        return order

    assert taken(scan_budget=True) == taken(scan_budget=False)
