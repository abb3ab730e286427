"""Carries out a plan: calls on the cluster to go on with it, again and again, until all its steps are done."""

import asyncio
import math
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import TypeVar

from holdfast.cli import calls, health
from holdfast.cli.problems import PASSING, CommandFailed, ExitCode, Problem, problem_of
from holdfast.client import (
    AsyncClient,
    ClusterInfo,
    NotFound,
    Plan,
    PlanProgress,
    PlanStep,
    StepState,
)

PAUSE_S = 0.5
PATIENCE_S = 120.0  # without any answer; what has begun goes on in any case

RESUME_HINT = (
    "What has begun goes on by itself. `holdfast shard apply` resumes the rest, from any machine; "
    "`holdfast shard cancel` gives it up."
)

T = TypeVar("T")

# Called with the plan as it is, and what it waits for beside its steps, if anything.
Show = Callable[[Plan, str], None]


@dataclass(frozen=True, slots=True)
class StepTally:
    """How many steps are how far."""

    steps: int
    done: int
    overtaken: int

    @property
    def left(self) -> int:
        return self.steps - self.done - self.overtaken


def tally(plan: Plan) -> StepTally:
    states = [step.state for step in plan.steps]
    return StepTally(len(states), states.count(StepState.DONE), states.count(StepState.OVERTAKEN))


def follow(address: str, timeout_s: float, plan: Plan, show: Show) -> Plan:
    """Until the plan is done. Ctrl-C, and a cluster that is silent for long, end it with what to do next."""

    async def question(client: AsyncClient, seen: Show) -> Plan:
        latest, is_done = await _advance(client, plan, seen, RESUME_HINT)
        return latest if is_done else await _gone(client, latest)

    return _ask(address, timeout_s, plan, question, show, RESUME_HINT)


def outlast(address: str, timeout_s: float, plan: Plan, wait_s: float, show: Show, hint: str) -> None:
    """Until another one's plan is over, done or given up. It is carried on meanwhile: whoever began it may be gone.

    hint: how to go on after Ctrl-C, or if it takes longer than `wait_s`."""

    async def question(client: AsyncClient, seen: Show) -> None:
        await _advance(client, plan, seen, hint, wait_s)

    _ask(address, timeout_s, plan, question, show, hint)


def _ask(
    address: str, timeout_s: float, plan: Plan, question: Callable[[AsyncClient, Show], Awaitable[T]], show: Show,
    hint: str,
) -> T:  # fmt: skip
    latest = [plan]

    def seen(now: Plan, note: str) -> None:
        latest[0] = now
        show(now, note)

    try:
        return calls.ask(address, timeout_s, lambda client: question(client, seen), retry=True)
    except KeyboardInterrupt:
        done = tally(latest[0])
        message = f"Interrupted: {done.done} of {done.steps} steps of the plan are done."
        raise CommandFailed(Problem(ExitCode.INTERRUPTED, "INTERRUPTED", message, hint)) from None


async def _advance(
    client: AsyncClient, plan: Plan, show: Show, hint: str, wait_s: float = math.inf
) -> tuple[Plan, bool]:  # fmt: skip
    """Until it is over, for at most so long. The last that was seen of it, and whether that was its end."""
    began_s = answered_s = time.monotonic()
    while True:
        try:
            progress: PlanProgress = await client.advance_plan(plan.id)
        except NotFound:
            return plan, False
        except PASSING as error:
            if time.monotonic() - answered_s > PATIENCE_S:
                raise CommandFailed(replace(problem_of(error), hint=hint)) from None
            show(plan, problem_of(error).message)
        else:
            answered_s, plan = time.monotonic(), progress.plan
            show(plan, "")
            if progress.is_done:
                return plan, True
        if time.monotonic() - began_s >= wait_s:
            message = f"Plan {plan.id} is under way still, with {tally(plan).left} of {len(plan.steps)} steps left."
            raise CommandFailed(Problem(ExitCode.UNFINISHED, "PLAN_UNDER_WAY", message, hint))
        await asyncio.sleep(PAUSE_S)


async def _gone(client: AsyncClient, plan: Plan) -> Plan:
    """Nobody carries out this plan any more: somebody else has brought it to its end, or has given it up."""
    ended = judged(plan, await client.describe_cluster())
    left = tally(ended).left
    if left:
        message = f"The plan was given up elsewhere: {left} of {len(plan.steps)} steps are not done."
        hint = "See where things are with `holdfast cluster status`, and make another one with `holdfast shard plan`."
        raise CommandFailed(Problem(ExitCode.REFUSED, "PLAN_NOT_FOUND", message, hint))
    return ended


def judged(plan: Plan, info: ClusterInfo) -> Plan:
    """The plan with the states of its steps as the map shows them, for those that nobody has told."""
    shards = {view.shard: view for view in health.views(info)}

    def state(step: PlanStep) -> StepState:
        view = shards.get(step.shard)
        if step.state.is_final or view is None:
            return step.state
        if step.is_transfer:
            return StepState.DONE if view.leader == step.destination else step.state
        if step.destination not in view.replicas or step.source in view.replicas:
            return step.state  # not begun, or desired otherwise since
        if step.destination not in view.voters:
            return StepState.COPYING
        is_left = step.source not in (*view.voters, *view.learners, *view.leaving)
        return StepState.DONE if is_left else StepState.LEAVING

    return replace(plan, steps=tuple(replace(step, state=state(step)) for step in plan.steps))
