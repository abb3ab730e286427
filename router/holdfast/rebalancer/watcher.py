"""Looks at the cluster again and again and does what is next. All that must outlive the process is in etcd."""

import asyncio
import time
from collections.abc import Callable, Set
from contextlib import suppress
from dataclasses import replace
from typing import Final

from holdfast.cluster.admin.plans import PlanAdmin
from holdfast.cluster.etcd.api import EtcdError
from holdfast.cluster.map.fields import RecordError
from holdfast.cluster.map.follower import MapFollower
from holdfast.cluster.map.partition_map import PartitionMap
from holdfast.cluster.map.records import RebalancingRecord
from holdfast.cluster.map.store import MapStore
from holdfast.proto.v1 import cluster_pb2 as pb
from holdfast.rebalancer.config import RebalancerConfig
from holdfast.rebalancer.decisions import Action, ActionKind, absent, next_action
from holdfast.rebalancer.election import Election
from holdfast.rebalancer.metrics import Metrics
from holdfast.serving.logs import get_logger
from holdfast.serving.refusals import ETCD_UNAVAILABLE, RefusedError

SAVE_SECONDS: Final = 15.0  # between two writes of how long nodes have been away

# Those that begin something: not before the nodes have been the same for a while.
_BEGINNINGS: Final = frozenset((ActionKind.GIVE_UP, ActionKind.BALANCE))

_log = get_logger(__name__)


class Watcher:
    """`run` until cancelled."""

    def __init__(
        self,
        config: RebalancerConfig,
        store: MapStore,
        follower: MapFollower,
        plans: PlanAdmin,
        election: Election,
        metrics: Metrics,
        *,
        dry_run: bool = False,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._config = config
        self._store = store
        self._follower = follower
        self._plans = plans
        self._election = election
        self._metrics = metrics
        self._dry_run = dry_run  # only say what would be done: whoever is active, and without a trace in etcd
        self._now_s = now_s
        self._absences = _Absences(now_s)
        self._nodes: tuple[Set[str], Set[str]] = (frozenset(), frozenset())  # that are alive, and that drain
        self._nodes_since_s = now_s()
        self._progress: tuple[object, ...] = ()  # of the plan under way, as it was when it last went on
        self._progress_since_s = now_s()
        self._nothing_at = -1  # the revision of a map in which nothing had to move
        self.reported = ""  # the last thing that was said, once
        self.steps_left = 0

    async def run(self) -> None:
        while True:
            try:
                await self.poll()
            except RefusedError as refused:
                self._metrics.refused(refused.reason)
                self._report("put_off", error=refused.message)
            except (EtcdError, RecordError) as error:
                self._metrics.refused(ETCD_UNAVAILABLE)
                self._report("put_off", error=str(error))
            await asyncio.sleep(self._config.poll_seconds)

    async def poll(self) -> None:
        """Once. Does at most one thing."""
        found = self._follower.map
        may_decide = self._election.is_active or self._dry_run  # who only says what it would do is in nobody's way
        if not (may_decide and self._follower.is_current) or found.cluster is None:
            self._absences.forget()  # what happened meanwhile was not seen
            return
        record = await self._remember(found)
        if record.is_paused:
            self._report("paused", why=record.why)
            return
        action = next_action(found, record, self._config.gone_after_seconds)
        if action.kind in _BEGINNINGS and not self._is_settled(found):
            return
        if action.kind is ActionKind.WAIT:
            self._report("waits", node=action.node, why=action.why)
        elif self._dry_run:
            await self._say_only(found, action)
        else:
            await self._do(found, action)

    # --- what is remembered -----------------------------------------------------------------------------------

    async def _remember(self, found: PartitionMap) -> RebalancingRecord:
        """The record as it is, with who is away brought up to date if that is worth a write."""
        known = found.rebalancing or RebalancingRecord()
        gone = self._absences.count(absent(found), dict(known.gone))
        if not self._absences.is_news or self._dry_run:
            return replace(known, gone=gone)
        for name in sorted({name for name, _ in gone} - {name for name, _ in known.gone}):
            _log.warning("node_away", node=name, given_up_after_seconds=self._config.gone_after_seconds)
        changed = await self._store.change_rebalancing(lambda record: replace(record, gone=gone))
        self._absences.saved()
        return changed

    def _is_settled(self, found: PartitionMap) -> bool:
        nodes = found.nodes.keys() | set(), found.drains.keys() | set()
        if nodes != self._nodes:
            self._nodes, self._nodes_since_s = nodes, self._now_s()
        return self._now_s() - self._nodes_since_s >= self._config.settle_seconds

    # --- what is done -----------------------------------------------------------------------------------------

    async def _do(self, found: PartitionMap, action: Action) -> None:
        if action.kind is ActionKind.ADVANCE:
            await self._advance(found)
            return
        if action.kind is ActionKind.BALANCE:
            await self._balance(found)
            return
        self._say(action)
        self._metrics.did(action.kind)
        if action.kind is ActionKind.CANCEL and found.plan is not None:
            await self._plans.cancel(found.plan.plan_id)
        elif action.kind is ActionKind.GIVE_UP:
            # In this order: a node that is marked and not remembered would stay marked when it comes back.
            await self._change_given_up(lambda names: {*names, action.node})
            await self._store.drain_node(action.node)
        elif action.kind is ActionKind.TAKE_BACK:
            await self._store.undrain_node(action.node)
            await self._change_given_up(lambda names: names - {action.node})
        elif action.kind is ActionKind.FORGET:
            await self._change_given_up(lambda names: names - {action.node})
        await self._caught_up()

    async def _change_given_up(self, change: Callable[[Set[str]], Set[str]]) -> None:
        await self._store.change_rebalancing(
            lambda record: replace(record, given_up=tuple(sorted(change(frozenset(record.given_up)))))
        )

    async def _caught_up(self) -> None:
        """The next poll is to see what was written."""
        revision = (await self._store.etcd.read(self._store.keys.rebalancing)).revision
        with suppress(TimeoutError):
            await self._follower.wait_until(lambda found: found.revision >= revision, self._config.poll_seconds)

    async def _advance(self, found: PartitionMap) -> None:
        assert found.plan is not None
        plan, is_done = await self._plans.advance(found.plan.plan_id)
        final = (pb.STEP_STATE_DONE, pb.STEP_STATE_OVERTAKEN)
        self.steps_left = sum(step.state not in final for step in plan.steps)
        if is_done:
            self._metrics.did("plan_done")
            self.reported, self.steps_left = "", 0
            return
        progress = (plan.id, *((step.state, step.lag) for step in plan.steps))
        if progress != self._progress:
            self._progress, self._progress_since_s = progress, self._now_s()
        elif self._now_s() - self._progress_since_s >= self._config.stuck_seconds:
            _log.warning("plan_stuck", plan=plan.id, seconds=self._config.stuck_seconds, left=self.steps_left)
            self._metrics.did(ActionKind.CANCEL)
            await self._plans.cancel(plan.id)

    async def _balance(self, found: PartitionMap) -> None:
        if found.revision == self._nothing_at:
            return
        plan = await self._make()
        if not plan.steps:
            self._nothing_at = found.revision
            self._report("nothing_to_do")
            return
        _log.info("rebalance", kind=str(ActionKind.BALANCE), plan=plan.id, steps=len(plan.steps), summary=plan.summary)
        self._metrics.did(ActionKind.BALANCE)
        self.reported = ""
        await self._plans.start(pb.StartPlanRequest(plan=plan))
        await self._caught_up()

    async def _make(self) -> pb.Plan:
        """Of what can move: that one shard has lost its majority must not keep the others from being made whole."""
        return await self._plans.make(pb.MakePlanRequest(balance=True), must_empty=False)

    async def _say_only(self, found: PartitionMap, action: Action) -> None:
        """A dry run."""
        if action.kind is not ActionKind.BALANCE:
            self._report("would", kind=str(action.kind), node=action.node, why=action.why)
            return
        if found.revision != self._nothing_at:
            plan = await self._make()
            self._nothing_at = found.revision
            self._report("would", kind=str(action.kind), steps=len(plan.steps), summary=plan.summary)

    # --- what is said -----------------------------------------------------------------------------------------

    def _say(self, action: Action) -> None:
        self.reported = ""
        _log.warning("rebalance", kind=str(action.kind), node=action.node, why=action.why)

    def _report(self, event: str, **values: object) -> None:
        """Once, until something else is told."""
        said = f"{event} {values}"
        if said != self.reported:
            self.reported = said
            _log.info("rebalancing", state=event, **values)


class _Absences:
    """For how long nodes have been away. Only time in which this process looked counts, and what its predecessors wrote
    down: clocks of different machines are never compared, so nobody is given up too early because one is wrong."""

    def __init__(self, now_s: Callable[[], float]) -> None:
        self._now_s = now_s
        self._polled_s: float | None = None
        self._saved_s = now_s()
        self._gone_s: dict[str, float] = {}
        self.is_news = False

    def forget(self) -> None:
        self._polled_s, self._gone_s = None, {}

    def saved(self) -> None:
        self._saved_s, self.is_news = self._now_s(), False

    def count(self, away: Set[str], known: dict[str, int]) -> tuple[tuple[str, int], ...]:
        now_s = self._now_s()
        passed_s = 0.0 if self._polled_s is None else now_s - self._polled_s
        self._polled_s = now_s
        before, self._gone_s = self._gone_s, {}
        for name in away:
            self._gone_s[name] = before[name] + passed_s if name in before else known.get(name, 0)
        is_due = bool(away) and now_s - self._saved_s >= SAVE_SECONDS
        self.is_news = away != known.keys() or is_due
        return tuple((name, int(seconds)) for name, seconds in sorted(self._gone_s.items()))
