"""The judge of caps, and the one that asks whether a run did what it is for: histories of queues on several shards,
made by hand."""

import pytest

from chaos.cap_checkers import cap
from chaos.checkers import idle
from chaos.history import ACK, FAULT, HEAL, INFO, RELEASE, Call, Claim, Event
from chaos.verdicts import Checker, Final, Violation
from holdfast.routing.task_ids import shard_of_task
from tests.unit.chaos.chaos_parts import S, claimed, sent, story, task_on, used

ONE, FOUR = task_on(1), task_on(4)
CAP_1 = Final(caps={"q": 1})
NUMBER = 0x1000000000001  # the first token of every shard


def holder(task: str, at: float = 1, lease_s: float = 5, **more: str) -> Claim:
    return claimed(NUMBER, at, task=task, lease_s=lease_s, **more)  # type: ignore[arg-type]


def spread(at: float, to: float, queue: str = "q", what: str = "spread", number: str = "1") -> list[Event]:
    """A change of a queue's shards; or any other step."""
    return [
        Event(t_ns=int(at * S), proc=-1, type=INFO, f=FAULT, value=what, req_id=number, queue=queue),
        Event(t_ns=int(to * S), proc=-1, type=INFO, f=HEAL, value=what, req_id=number),
    ]


def found(checker: Checker, final: Final, *parts: Call | Claim, faults: list[Event] | None = None) -> list[str]:
    recorded = story(*parts)
    recorded.faults = faults or []
    return [str(violation) for violation in checker(recorded, final) if isinstance(violation, Violation)]


def test_ids_of_tasks_say_their_shard() -> None:
    assert [shard_of_task(task_on(shard)) for shard in (0, 1, 4, 17, 63)] == [0, 1, 4, 17, 63]


def test_two_shards_give_out_the_same_number_and_both_count() -> None:
    [recorded] = found(cap, CAP_1, holder(ONE), holder(FOUR, 2))
    assert recorded == "cap: 2 tasks of q were held at 2500 ms, where 1 may be"


def test_the_same_number_on_two_shards_one_after_the_other() -> None:
    assert found(cap, CAP_1, holder(ONE, 1, 2), holder(FOUR, 4)) == []
    assert found(cap, CAP_1, holder(ONE), used(ACK, NUMBER, 2, task=ONE), holder(FOUR, 3)) == []
    of_another = used(RELEASE, NUMBER, 2, task=task_on(5))
    assert found(cap, CAP_1, holder(ONE), of_another, holder(FOUR, 3)), "neither was given back"


def test_the_key_of_a_queue_is_held_once_over_all_shards() -> None:
    final = Final(key_caps={"q": 1})
    assert found(cap, final, holder(ONE, limit_key="k"), holder(FOUR, 2, limit_key="k"))
    assert found(cap, final, holder(ONE, limit_key="k"), holder(FOUR, 2, limit_key="other")) == []
    assert found(cap, final, holder(ONE), holder(FOUR, 2)) == [], "without a key"


def test_a_tenant_may_have_one_task_on_each_shard() -> None:
    """Its cap is split, and each shard lets one through at least."""
    final = Final(tenant_caps={"q": 2})
    held = [holder(task_on(shard), tenant="t") for shard in (1, 4, 5)]
    second = claimed(NUMBER + 1, 2, task=task_on(1, 2), lease_s=5, tenant="t")
    assert found(cap, final, *held) == []
    assert found(cap, final, held[0], second) == []
    [recorded] = found(cap, final, *held, second)
    assert "4 tasks of q of tenant t" in recorded
    assert "where 3 may be" in recorded


# --- queues that get other shards -------------------------------------------------------------------------------------


def test_what_is_there_when_a_queue_gets_other_shards_goes_on() -> None:
    there, later = holder(ONE, 1, 20), holder(FOUR, 8, 20)
    assert found(cap, CAP_1, there, later)
    assert found(cap, CAP_1, there, later, faults=spread(4, 5)) == []
    assert found(cap, CAP_1, there, later, faults=spread(4, 5, "another"))
    assert found(cap, CAP_1, there, later, faults=spread(4, 5, what="move"))


def test_two_that_were_claimed_after_the_change_are_too_many() -> None:
    both = (holder(ONE, 7.5, 20), holder(FOUR, 8, 20))
    assert found(cap, CAP_1, *both, faults=spread(4, 5))
    assert found(cap, CAP_1, *both, faults=spread(6, 7)) == [], "not every shard has heard of it"


def test_two_that_were_held_before_the_change_are_too_many() -> None:
    assert found(cap, CAP_1, holder(ONE, 1, 20), holder(FOUR, 2, 20), faults=spread(4, 5))


def test_a_change_that_etcd_does_not_tell_takes_longer() -> None:
    both = (holder(ONE, 10, 20), holder(FOUR, 11, 20))
    silence = spread(3, 9, "", "cut-from-etcd", "2")
    assert found(cap, CAP_1, *both, faults=[*spread(4, 5), *silence]) == []
    assert found(cap, CAP_1, *both, faults=[*spread(14, 15), *silence]) != [], "before the change"


def test_a_key_is_held_once_while_the_shards_change() -> None:
    both = (holder(ONE, 1, 20, limit_key="k"), holder(FOUR, 8, 20, limit_key="k"))
    assert found(cap, Final(key_caps={"q": 1}), *both, faults=spread(4, 5))


# --- runs that did not do what they are for ---------------------------------------------------------------------------


@pytest.mark.parametrize(("tasks", "said"), [
    ([ONE, FOUR], ""), ([ONE, task_on(1, 2)], "q was to be spread, but had tasks on shard 1 only"),
    ([], "q was to be spread, but had tasks on no shard only"),
])  # fmt: skip
def test_a_spread_queue_has_tasks_on_several_shards(tasks: list[str], said: str) -> None:
    final = Final(spread=["q"])
    expected = [f"idle: {said}"] if said else []
    assert found(idle, final, *(sent(task, task) for task in tasks)) == expected
    assert found(idle, final, *(claimed(task=task) for task in tasks)) == expected
    assert found(idle, Final(), *(sent(task, task) for task in tasks)) == []


def test_an_operation_that_was_asked_for_was_done() -> None:
    assert found(idle, Final(operations={"move": 3})) == []
    assert found(idle, Final(operations={"move": 3, "drain": 0})) == [
        "idle: the operation drain was asked for, but was never done"
    ]
