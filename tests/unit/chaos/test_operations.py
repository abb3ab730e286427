"""What operators do in a chaos run: at which nodes faults can be aimed meanwhile, and what counts as done."""

import random
from typing import cast

import pytest

from chaos.faults import operations
from chaos.faults.arena import Arena
from chaos.history import FAULT, History, put_together
from chaos.plan import Step
from chaos.system.system import System
from holdfast.client import AsyncClient, NotFound, Plan, PlanProgress, PlanStep, StepState

KILL = Step(2.0, "kill", "source")


def arena() -> Arena:
    return Arena(cast(System, None), History(), random.Random(1))


def plan(*states: StepState, is_transfer: bool = False) -> Plan:
    return Plan("p", steps=tuple(
        PlanStep(shard=shard, source=f"from{shard}", destination=f"to{shard}", is_transfer=is_transfer, state=state)
        for shard, state in enumerate(states)
    ))  # fmt: skip


@pytest.mark.parametrize(("given", "ends"), [
    (plan(StepState.WAITING, StepState.WAITING), ("from0", "to0")),
    (plan(StepState.WAITING, StepState.COPYING), ("from1", "to1")),
    (plan(StepState.DONE, StepState.OVERTAKEN, StepState.LEAVING), ("from2", "to2")),
    (plan(StepState.DONE), ("", "")),
    (plan(StepState.WAITING, is_transfer=True), ("", "")),
])  # fmt: skip
def test_both_ends_of_a_replica_on_its_way(given: Plan, ends: tuple[str, str]) -> None:
    assert operations.ends_of_move(given) == ends


class Operator:
    """Answers as a cluster that carries a plan out would."""

    def __init__(self, mine: Arena) -> None:
        self._arena = mine
        self._plans = [plan(StepState.COPYING, StepState.WAITING), plan(StepState.DONE, StepState.COPYING)]
        self.seen: list[tuple[str, str]] = []

    async def start_plan(self, given: Plan) -> Plan:
        return given

    async def advance_plan(self, _id: str) -> PlanProgress:
        self.seen.append(self._arena.moving)
        if not self._plans:
            raise NotFound("It is done, and forgotten.", reason="PLAN_NOT_FOUND")
        return PlanProgress(self._plans.pop(0), False)


async def test_faults_can_be_aimed_at_each_move_of_a_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(operations, "AGAIN_S", 0.0)
    mine = arena()
    operator = Operator(mine)
    await operations.apply(mine, cast(AsyncClient, operator), plan(StepState.WAITING, StepState.WAITING))
    assert operator.seen == [("from0", "to0"), ("from0", "to0"), ("from1", "to1")]
    assert mine.moving == ("", ""), "nothing moves any more"


class Planner:
    """Does not know the new node at first."""

    def __init__(self, *plans: Plan) -> None:
        self._plans = list(plans)

    async def make_plan(self) -> Plan:
        return self._plans.pop(0) if len(self._plans) > 1 else self._plans[0]


async def test_a_new_node_is_waited_for_until_plans_know_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(operations, "AGAIN_S", 0.0)
    none, known = Plan("none"), plan(StepState.WAITING)
    planner = cast(AsyncClient, Planner(none, none, known))
    assert await operations.plan_for(planner, "to0") == known
    monkeypatch.setattr(operations, "KNOWN_S_MAX", 0.01)
    assert await operations.plan_for(cast(AsyncClient, Planner(known)), "to9") is None, "others move, it gets nothing"


def test_strikes_at_both_ends_of_a_move_are_counted() -> None:
    mine = arena()
    mine.has_struck(KILL, ["n1"], "1")
    assert not +mine.done
    mine.moving = ("n1", "n2")
    mine.has_struck(KILL, ["n1"], "2")
    mine.has_struck(KILL, ["n1", "n2"], "3")
    mine.has_struck(KILL, ["n3"], "4")
    assert dict(+mine.done) == {"strike at a source": 2, "strike at a destination": 1}


def test_a_change_of_shards_says_whose_they_are() -> None:
    mine = arena()
    mine.has_struck(Step(1.0, "spread", "all", amount=2.0), [], "1", "q")
    [window] = put_together(mine.history.events).windows()
    assert (window.what, window.queue) == ("spread", "q")
    assert [event.queue for event in mine.history.events if event.f == FAULT] == ["q"]
