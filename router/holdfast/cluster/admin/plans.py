"""Plans as operators make and carry them out. All that is remembered is in etcd, so any server can go on with a plan,
and several may at the same time."""

import asyncio
import random
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import Protocol, TypeVar

from holdfast.cluster.admin.conversion import plan_message, steps_of
from holdfast.cluster.map.follower import MapFollower
from holdfast.cluster.map.partition_map import PartitionMap
from holdfast.cluster.map.records import PlanRecord, ShardRecord
from holdfast.cluster.map.store import MapStore
from holdfast.cluster.plans.plans import (
    STEPS_MAX,
    check_plan,
    kind_of,
    plan_balance,
    plan_id,
    plan_leaders,
    plan_move,
)
from holdfast.cluster.plans.steps import (
    BusyNodes,
    StepState,
    StepView,
    transfers_due,
    view_steps,
    why_not_now,
)
from holdfast.proto.v1 import cluster_pb2 as pb
from holdfast.serving.logs import get_logger
from holdfast.serving.refusals import (
    INVALID_FIELD,
    MISSING_FIELD,
    RefusedError,
    etcd_unavailable,
    plan_not_found,
)

_log = get_logger(__name__)

MAP_WAIT_S = 1.0  # for the map to have what etcd has
ASK_S = 3.0  # one node, for sizes and lags
TRANSFER_S = 10.0
_AT_ONCE = 16
_TRANSFERS_AT_ONCE = 8
_SUMMARY_CHARS_MAX = 1000

T = TypeVar("T")


class Nodes(Protocol):
    """What only the nodes know or can do. They may raise anything. `NodeAnswers` asks them."""

    async def state_bytes(self, shard: int) -> int:
        """About what a new replica has to copy; -1 if that is not known."""
        ...

    async def lag(self, shard: int, node: str) -> int:
        """Entries that the replica on this node lacks; -1 if that is not known."""
        ...

    async def transfer(self, shard: int, to: str) -> None:
        """Returns once that node leads."""
        ...


class PlanAdmin:
    """MakePlan, StartPlan, AdvancePlan and CancelPlan."""

    def __init__(self, store: MapStore, follower: MapFollower, nodes: Nodes) -> None:
        self._store = store
        self._follower = follower
        self._nodes = nodes

    async def make(self, request: pb.MakePlanRequest, *, must_empty: bool = True) -> pb.Plan:
        """must_empty: see `plan_balance`. Refused unless etcd confirms the map now: a node that has died would seem
        alive, and nothing would seem to be left to do."""
        if not await self._follower.confirm():
            trouble = self._follower.trouble or "etcd does not answer"
            raise etcd_unavailable(f"no plan is made of a map that is not current: {trouble}")
        found = self._map()
        goal = request.WhichOneof("goal")
        if goal == "move":
            desired = request.move
            plan = plan_move(found, desired.shard, desired.source, desired.destination)
        elif goal is not None and getattr(request, goal):
            # Off the loop: with many shards it takes a while, and the map does not change under it.
            balance = partial(plan_balance, must_empty=must_empty)
            plan = await asyncio.to_thread(balance if goal == "balance" else plan_leaders, found)
        else:
            raise RefusedError(MISSING_FIELD, "Expected {field} to be balance, leaders or move.", "goal")
        sizes = await _ask_all({step.shard for step in plan.steps if not step.is_transfer}, self._nodes.state_bytes)
        sized = (step if step.is_transfer else replace(step, state_bytes=sizes[step.shard]) for step in plan.steps)
        return plan_message(replace(plan, steps=tuple(sized)))

    async def start(self, request: pb.StartPlanRequest) -> pb.Plan:
        steps = steps_of(request.plan, STEPS_MAX)
        if request.plan.id != plan_id(steps, request.plan.revision):
            raise RefusedError(
                INVALID_FIELD, "Expected a plan as it was made, but its steps do not fit its {field}.", "plan.id"
            )
        under_way = await self._store.read_plan()
        if under_way is None:  # otherwise it is this one, which fits as far as it has not begun, or refused anyway
            check_plan(self._map(), steps)
        plan = PlanRecord(
            plan_id=request.plan.id,
            revision=request.plan.revision,
            kind=kind_of(steps),
            summary=request.plan.summary[:_SUMMARY_CHARS_MAX],
            steps=steps,
        )
        started = await self._store.start_plan(plan)
        _log.info("plan_started", plan=started.plan_id, steps=len(steps))
        return plan_message(started, view_steps(self._map(), started))

    async def cancel(self, plan_id: str) -> None:
        if not plan_id:
            raise RefusedError(MISSING_FIELD, "Expected the id of a plan ({field}), but it is empty.", "id")
        if not await self._store.finish_plan(plan_id):
            raise plan_not_found(plan_id)
        _log.info("plan_cancelled", plan=plan_id)

    async def advance(self, plan_id: str) -> tuple[pb.Plan, bool]:
        """Begins what may begin. The plan as it is then, and whether it is done, and so forgotten."""
        plan = await self._read(plan_id)
        plan, reasons = await self._begin_moves(plan)
        plan = await self._hand_over(plan, reasons)
        views = view_steps(self._map(), plan)
        for number, reason in reasons.items():
            if views[number].state is StepState.WAITING:
                views[number] = StepView(StepState.WAITING, reason)
        is_done = all(view.is_over for view in views)
        if is_done:
            await self._store.finish_plan(plan.plan_id)
            _log.info("plan_done", plan=plan.plan_id, steps=len(plan.steps))
        return plan_message(plan, views, await self._lags(plan, views)), is_done

    async def _read(self, plan_id: str) -> PlanRecord:
        """The plan as etcd has it, and a map that is at least as new: by an older one, steps could seem overtaken."""
        found = await self._store.read_plan()
        if found is None or plan_id not in ("", found[0].plan_id):
            raise plan_not_found(plan_id)
        plan, revision = found
        try:
            await self._follower.wait_until(lambda known: known.revision >= revision, MAP_WAIT_S)
        except TimeoutError:
            raise etcd_unavailable("the map of this server is behind") from None
        return plan

    async def _begin_moves(self, plan: PlanRecord) -> tuple[PlanRecord, dict[int, str]]:
        """One after the other, each if its nodes are free; why the others did not begin, by number."""
        reasons: dict[int, str] = {}
        found, known = self._map(), frozenset(plan.began)
        views = view_steps(found, plan)
        busy = BusyNodes(found, plan, views)

        def may_begin(newest: PlanRecord, number: int, shard: ShardRecord) -> str:
            """Asked with the newest records: another operator may have begun a step in this very moment."""
            for other in frozenset(newest.began) - known:
                busy.add(newest.steps[other])
            step = newest.steps[number]
            return busy.holds_up(step, shard) or why_not_now(found, step, shard)

        for number, (step, view) in enumerate(zip(plan.steps, views, strict=True)):
            if step.is_transfer or view.state is not StepState.WAITING:
                continue
            why = busy.holds_up(step, found.shards[step.shard])
            if not why:
                plan, why = await self._store.begin_move(plan.plan_id, number, may_begin)
            if why:
                reasons[number] = why
                continue
            busy.add(step)
            _log.info("step_began", plan=plan.plan_id, shard=step.shard, source=step.source, to=step.destination)
        return plan, reasons

    async def _hand_over(self, plan: PlanRecord, reasons: dict[int, str]) -> PlanRecord:
        """Ask for some of the transfers that are due; any of them, so that those that fail do not hold up the rest."""
        all_due = transfers_due(plan, view_steps(self._map(), plan))
        due = random.sample(all_due, min(len(all_due), _TRANSFERS_AT_ONCE))
        problems = await asyncio.gather(
            *(self._transfer_one(plan.steps[number].shard, plan.steps[number].destination) for number in due)
        )
        reasons.update((number, problem) for number, problem in zip(due, problems, strict=True) if problem)
        done = [number for number, problem in zip(due, problems, strict=True) if not problem]
        return await self._store.begin_steps(plan.plan_id, done) if done else plan

    async def _transfer_one(self, shard: int, to: str) -> str:
        try:
            async with asyncio.timeout(TRANSFER_S):
                await self._nodes.transfer(shard, to)
        except TimeoutError:
            return "no answer in time"
        except Exception as error:  # noqa: BLE001 - whatever it is, the step waits and tells why
            _log.info("transfer_failed", shard=shard, to=to, error=str(error))
            return str(error)
        return ""

    async def _lags(self, plan: PlanRecord, views: Sequence[StepView]) -> dict[int, int]:
        copying = [number for number, view in enumerate(views) if view.state is StepState.COPYING]
        steps = plan.steps
        return await _ask_all(copying, lambda number: self._nodes.lag(steps[number].shard, steps[number].destination))

    def _map(self) -> PartitionMap:
        if self._follower.map.cluster is None:
            raise self._follower.map.refusal_without_cluster()
        return self._follower.map


async def _ask_all(keys: Iterable[T], ask: Callable[[T], Awaitable[int]]) -> dict[T, int]:
    """Numbers for people: whatever cannot be had in time is -1."""
    limit = asyncio.Semaphore(_AT_ONCE)

    async def one(key: T) -> int:
        try:
            async with limit, asyncio.timeout(ASK_S):
                return await ask(key)
        except Exception as error:  # noqa: BLE001 - a plan is worth more than its sizes
            _log.debug("node_did_not_report", error=str(error))
            return -1

    ordered = list(keys)
    return dict(zip(ordered, await asyncio.gather(*map(one, ordered)), strict=True))
