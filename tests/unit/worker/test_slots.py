"""Slots: never more at once than allowed, and no queue is forgotten."""

from random import Random

from hypothesis import given
from hypothesis import strategies as st

from holdfast.client.worker.slots import Ask, Slots


def asked(slots: Slots) -> Ask:
    ask = slots.ask()
    assert ask is not None
    return ask


def test_asks_for_what_is_free_and_for_nothing_when_full() -> None:
    slots = Slots(2, {"mail": None})
    ask = asked(slots)
    assert (ask.queues, ask.tasks_max, ask.tasks_max_by_queue) == (["mail"], 2, {})
    slots.take("mail")
    assert asked(slots).tasks_max == 1
    slots.take("mail")
    assert slots.ask() is None


def test_who_holds_nothing_says_so() -> None:
    slots = Slots(2, {"mail": None})
    assert asked(slots).empty_handed
    slots.take("mail")
    assert not asked(slots).empty_handed
    slots.ended("mail")
    assert not slots.is_empty_handed, "its outcome is on its way"
    slots.late = 1
    assert slots.is_empty_handed, "but one that waits for a silent shard may do so for ever"


def test_a_task_that_must_be_alone_is() -> None:
    slots = Slots(5, {"mail": None})
    slots.take("mail", is_alone=True)
    assert slots.ask() is None
    slots.ended("mail")
    assert slots.ask() is None, "its outcome is on its way"
    slots.reported()
    ask = asked(slots)
    assert (ask.tasks_max, ask.empty_handed) == (5, True)


def test_a_queue_at_its_limit_is_left_out_until_one_of_its_handlers_has_ended() -> None:
    slots = Slots(10, {"mail": 1, "reports": None})
    slots.take("mail")
    ask = asked(slots)
    assert (ask.queues, ask.tasks_max_by_queue) == (["reports"], {})
    assert slots.ended("mail"), "the queue was at its limit"
    ask = asked(slots)
    assert (sorted(ask.queues), ask.tasks_max_by_queue) == (["mail", "reports"], {"mail": 1})


def test_queues_take_turns_at_being_first() -> None:
    slots = Slots(1, {"a": None, "b": None, "c": None})
    firsts = []
    for _ in range(6):
        ask = asked(slots)
        firsts.append(ask.queues[0])
        assert sorted(ask.queues) == ["a", "b", "c"]
    assert firsts == ["a", "b", "c"] * 2


def test_what_is_not_reported_yet_bounds_what_is_claimed() -> None:
    slots = Slots(3, {"mail": None})
    for _ in range(6):
        slots.take("mail")
        slots.ended("mail")
    assert slots.running == 0
    assert slots.ask() is None, "six tasks wait for their report: no more until one has gone through"
    slots.reported()
    assert asked(slots).tasks_max == 1


def test_reports_that_wait_for_a_silent_shard_leave_room_for_tasks_of_others_within_a_bound() -> None:
    slots = Slots(3, {"mail": None})
    for _ in range(6):
        slots.take("mail")
        slots.ended("mail")
    slots.late = 6
    assert asked(slots).tasks_max == 3, "all slots"
    for _ in range(5):
        slots.take("mail")
        slots.ended("mail")
    slots.late = 11
    assert asked(slots).tasks_max == 1, "however many shards are silent: four tasks for each slot"
    slots.take("mail")
    slots.ended("mail")
    assert slots.ask() is None


_STEPS = st.lists(st.sampled_from(["claim", "end", "report"]), max_size=200)
_LIMITS = st.dictionaries(st.sampled_from("abcd"), st.none() | st.integers(1, 4), min_size=1)


@given(st.integers(1, 8), _LIMITS, _STEPS, st.randoms(use_true_random=False))
def test_limits_hold_whatever_the_server_gives(
    concurrency: int, limits: dict[str, int | None], steps: list[str], draw: Random
) -> None:
    slots = Slots(concurrency, limits)
    running: list[str] = []
    unreported = 0
    for step in steps:
        if step == "claim" and (ask := slots.ask()) is not None:
            given = dict.fromkeys(ask.queues, 0)
            for _ in range(draw.randint(0, ask.tasks_max)):
                queue = draw.choice(ask.queues)
                if given[queue] < ask.tasks_max_by_queue.get(queue, ask.tasks_max):
                    given[queue] += 1
                    running.append(queue)
                    slots.take(queue)
        elif step == "end" and running:
            slots.ended(running.pop(draw.randrange(len(running))))
            unreported += 1
        elif step == "report" and unreported:
            unreported -= 1
            slots.reported()
        assert slots.running == len(running) <= concurrency
        assert slots.held == len(running) + unreported <= 2 * concurrency
        assert all(limit is None or running.count(queue) <= limit for queue, limit in limits.items())
    # Whatever happened, once all is done there is room for everything again.
    for queue in running:
        slots.ended(queue)
        slots.reported()
    for _ in range(unreported):
        slots.reported()
    ask = asked(slots)
    assert ask.tasks_max == concurrency
    assert set(ask.queues) == set(limits)
