"""What a shard has only while this node leads it: its clock, its scheduler, those who wait, and its housekeeping.

All of it is soft state. It is thrown away when leadership is lost, and made anew, empty, when it is won: the scheduler
fills its windows as tasks are asked for, so a fail-over does not get slower with the backlog.
"""

from collections.abc import Iterator, Sequence

from holdfast.broker.leader.alerts import Alerts
from holdfast.broker.leader.claim_ages import ClaimAges
from holdfast.broker.leader.clock import ShardClock
from holdfast.broker.leader.outbox_relay import OutboxRelay
from holdfast.broker.leader.reserver import Applied, Reserver
from holdfast.broker.leader.result_waiters import ResultWaiters
from holdfast.broker.leader.roles import NodeContext, Proposer
from holdfast.broker.leader.schedule_manager import ScheduleManager
from holdfast.broker.leader.stats import Stats
from holdfast.broker.leader.timers import Timers
from holdfast.broker.leader.watermarks import WatermarkManager
from holdfast.broker.policy.policies import Policies
from holdfast.broker.policy.settings_guard import SettingsGuard
from holdfast.broker.quota.allocation_manager import AllocationManager
from holdfast.broker.quota.coordinator import QuotaCoordinator
from holdfast.broker.scheduler.allocation_use import Outlook
from holdfast.broker.scheduler.limiter import OWN_LIMITS, Allowance
from holdfast.common.service import Service
from holdfast.limits.reports import LimitGrant, LimitReport
from holdfast.machine import keys
from holdfast.machine.effects import Effects
from holdfast.machine.machine import Machine


def _own_limits(_queue: bytes) -> Allowance:
    return OWN_LIMITS


class Leadership:
    """One term of leading one shard."""

    def __init__(
        self, term: int, machine: Machine, clock: ShardClock, proposer: Proposer, context: NodeContext
    ) -> None:
        config, metrics, view = context.config, context.metrics, context.cluster_view
        self.term = term
        self.clock = clock
        self.is_open = False  # its first entry is applied: it may serve
        self.has_ended = False
        self.policies = Policies(machine.reader, config, view.has_policy)
        self.settings = self._settings_guard(machine.meta.shard, context)
        self.coordinator = QuotaCoordinator(
            machine, self.policies, now_ms=clock.now_ms, submit=proposer.submit, settings=self.settings
        )
        self.allocations = self._allocations(machine, context)
        self.reserver = Reserver(
            machine, clock, config, proposer, self.policies,
            allowance=_own_limits if self.allocations is None else self.allocations.allowance,
        )  # fmt: skip
        self.result_waiters = ResultWaiters(
            machine.reader.executions,
            watched_tasks_max=config.watched_tasks_max,
            calls_max=config.waiters_max,
        )
        self.housekeeping = Timers(machine, config, metrics, self.policies, clock, proposer)
        self.marks = WatermarkManager(machine, clock, proposer, passed=self.reserver.pass_over)
        self.schedules = ScheduleManager(machine.reader, config, metrics, self.policies, clock, proposer)
        self.alerts = Alerts(machine, self.policies, now_ms=clock.now_ms, notifier=context.notifier)
        self.stats = Stats(machine, now_ms=clock.now_ms, on_sample=self.alerts.poll)
        self.claim_ages = ClaimAges(
            machine, now_ms=clock.now_ms, first_claim=lambda: self.housekeeping.starts()[keys.CLAIM_EXPIRY]
        )
        self.relay = self._outbox_relay(machine, proposer, context)

    def _outbox_relay(self, machine: Machine, proposer: Proposer, context: NodeContext) -> OutboxRelay | None:
        """None: there is no other shard."""
        if context.others is None:
            return None
        return OutboxRelay(
            machine.reader, machine.meta.shard, machine.meta.incarnation, context.others.deliver,
            now_ms=self.clock.now_ms, submit=proposer.submit_housekeeping,
        )  # fmt: skip

    def _settings_guard(self, shard: int, context: NodeContext) -> SettingsGuard | None:
        """None: there is no other shard."""
        if context.others is None:
            return None
        return SettingsGuard(shard, context.cluster_view, context.others, self.limits_changed)

    def _allocations(self, machine: Machine, context: NodeContext) -> AllocationManager | None:
        """None: no queue is spread, for there is no other shard."""
        if context.others is None:
            return None
        return AllocationManager(
            self.term, machine, self.policies, self.coordinator,
            view=context.cluster_view, others=context.others, handing_out=self, settings=self.settings,
        )  # fmt: skip

    async def allocate(self, shard: int, reports: Sequence[LimitReport]) -> list[LimitGrant]:
        """Answers another shard about limits of queues whose home is here. Raises what the log raises."""
        return await self.coordinator.allocate(shard, reports, self.allocations)

    # --- what allocations ask of what hands out -----------------------------------------------------------------

    def limits_changed(self, queue: bytes) -> None:
        self.reserver.limits_changed(queue)

    def coming(self, queue: bytes) -> int:
        return self.reserver.coming(queue)

    def outlook(self, queue: bytes) -> Outlook:
        return self.reserver.outlook(queue)

    # --- life ---------------------------------------------------------------------------------------------------

    def open(self) -> None:
        self.is_open = True
        for part in self.parts():
            part.start()
        self.alerts.poll()

    def follow(self, effects: Effects, applied: Applied) -> None:
        """Takes note of what was applied, and answers."""
        if effects.settings:
            self.policies.changed(effects.settings)
        self.reserver.follow(effects, applied)
        self.housekeeping.arm(effects)
        if effects.withdrawn:
            self.marks.follow(effects)
        if effects.schedule_ms:
            self.schedules.arm(effects)
        self.stats.follow(effects)
        if self.allocations is not None and self.allocations.has_allocations and (effects.ready or effects.freed):
            self.allocations.follow({task.queue for task in effects.ready} | effects.freed.keys())
        if effects.died or effects.settings:
            self.alerts.follow({*effects.died, *effects.settings})
        if self.result_waiters.watched:
            self.result_waiters.follow(effects.finished, effects.finished_ranges)
        if effects.outbox and self.relay is not None:
            self.relay.wake(effects.outbox)
        for proposal, outcomes in applied:
            proposal.resolve(self.reserver.answer(proposal, outcomes) if proposal.picks else outcomes)

    async def hold_outbox(self) -> "OutboxHold":
        if self.relay is not None:
            await self.relay.hold()
        return OutboxHold(self)

    def drain(self) -> None:
        """The node stops: waiters are cancelled."""
        self.reserver.drain()
        self.result_waiters.drain()

    def end(self, error: Exception) -> None:
        """Leadership was lost: waiters get the error."""
        self.has_ended = True
        self.reserver.dismiss(error)
        self.result_waiters.dismiss(error)
        for part in self.parts():
            part.cancel()

    async def stop(self) -> None:
        for part in self.parts():
            await part.stop()

    def failed(self) -> BaseException | None:
        """The error that ended a part of it, if one did: a bug that must stop the node."""
        return next((error for part in self.parts() if (error := part.failed()) is not None), None)

    def time_was_moved(self) -> None:
        """Shard time was moved: what was far away may be due."""
        self.housekeeping.time_was_moved()
        self.schedules.time_was_moved()

    def parts(self) -> Iterator[Service]:
        """What goes on by itself."""
        yield from (self.housekeeping, self.marks, self.schedules, self.stats, self.claim_ages)
        if self.relay is not None:
            yield self.relay
        if self.settings is not None:
            yield self.settings
        if self.allocations is not None:
            yield self.allocations


class OutboxHold:
    """Nothing is brought to other shards, for as long as the same leader holds it."""

    def __init__(self, leading: Leadership) -> None:
        self._leading = leading
        self._is_released = False

    @property
    def is_intact(self) -> bool:
        return not self._is_released and not self._leading.has_ended

    def release(self) -> None:
        """May be called twice."""
        if not self._is_released:
            self._is_released = True
            if self._leading.relay is not None:
                self._leading.relay.let_go()
