"""What a shard has only while this node leads it: its clock, its scheduler, those who wait, and its housekeeping.

All of it is soft state. It is thrown away when leadership is lost, and made anew, empty, when it is won: the scheduler
fills its windows as tasks are asked for, so a fail-over does not get slower with the backlog.
"""

from collections.abc import Awaitable, Callable

from holdfast.broker.clock import ShardClock
from holdfast.broker.config import BrokerConfig
from holdfast.broker.courier import Courier, Deliver
from holdfast.broker.finishing import Finishing
from holdfast.broker.housekeeping import Housekeeping
from holdfast.broker.metrics import Metrics
from holdfast.broker.policies import Policies
from holdfast.broker.proposals import Proposal
from holdfast.broker.reserving import Applied, Reserver
from holdfast.broker.views import read_executions
from holdfast.machine.effects import Effects
from holdfast.machine.entries import Entry
from holdfast.machine.kv import OrderedKV
from holdfast.machine.machine import Machine
from holdfast.machine.outcomes import Outcome


class Leadership:
    """One term of leading one shard."""

    def __init__(
        self,
        term: int,
        kv: OrderedKV,
        machine: Machine,
        clock: ShardClock,
        config: BrokerConfig,
        metrics: Metrics,
        *,
        propose: Callable[[Proposal], None],
        submit_housekeeping: Callable[[Entry], Awaitable[list[Outcome]]],
        check_open: Callable[[Entry], None],
        check_room: Callable[[Entry], None],
        check_written: Callable[[], None],
        deliver: Deliver | None,
    ) -> None:
        self.term = term
        self.clock = clock
        self.is_open = False  # its first entry is applied: it may serve
        self.policies = Policies(kv, config)
        self.reserver = Reserver(
            kv,
            machine,
            clock,
            config,
            propose=propose,
            check=check_open,
            check_disk=check_room,
            check_written=check_written,
            policies=self.policies,
        )
        self.finishing = Finishing(
            lambda task_ids: read_executions(kv, task_ids),
            watched_tasks_max=config.watched_tasks_max,
            calls_max=config.waiters_max,
        )
        self.housekeeping = Housekeeping(
            kv, machine, config, metrics, self.policies, now_ms=clock.now_ms, submit=submit_housekeeping
        )
        self.courier: Courier | None = None  # None: there is no other shard
        if deliver is not None:
            meta = machine.meta
            self.courier = Courier(
                kv, meta.shard, meta.incarnation, deliver, now_ms=clock.now_ms, submit=submit_housekeeping
            )

    def open(self) -> None:
        self.is_open = True
        self.housekeeping.start()
        if self.courier is not None:
            self.courier.start()

    def follow(self, effects: Effects, applied: Applied) -> None:
        """Takes note of what was applied, and answers."""
        if effects.settings:
            self.policies.changed(effects.settings)
        self.reserver.follow(effects, applied)
        self.housekeeping.arm(effects)
        self.finishing.follow(effects.finished)
        if effects.outbox and self.courier is not None:
            self.courier.wake(effects.outbox)
        for proposal, outcomes in applied:
            proposal.resolve(self.reserver.answer(proposal, outcomes) if proposal.picks else outcomes)

    def drain(self) -> None:
        """The node stops: sends everyone who waits home."""
        self.reserver.drain()
        self.finishing.drain()

    def end(self, error: Exception) -> None:
        """Leadership was lost: everyone who waits is told."""
        self.reserver.dismiss(error)
        self.finishing.dismiss(error)
        self.housekeeping.cancel()
        if self.courier is not None:
            self.courier.cancel()

    async def stop(self) -> None:
        await self.housekeeping.stop()
        if self.courier is not None:
            await self.courier.stop()

    def failed(self) -> BaseException | None:
        """The error that ended a part of it, if one did: a bug that must stop the node."""
        return self.housekeeping.failed() or (None if self.courier is None else self.courier.failed())
