"""The calls of the blocking client about queues, dead letters, schedules and the cluster. `Client` inherits them.

What is called back, e.g. to show progress, is called on the client's own thread, and must make no calls of the client.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from holdfast.client._calls import next_page
from holdfast.client._loop_thread import LoopThread
from holdfast.client.aio import AsyncClient
from holdfast.client.cluster_models import (
    AccessRules,
    ClusterInfo,
    HandoverProgress,
    MoveWish,
    NodeReport,
    Plan,
    PlanProgress,
    QueuePolicy,
    QueueSettings,
    QueueSettingsPage,
    Rebalancing,
    ShardHash,
    Topology,
    Transferred,
)
from holdfast.client.errors import Rejected
from holdfast.client.models import Accepted, TaskInfo
from holdfast.client.queue_models import (
    DeadLetterDone,
    DeadLetterFilter,
    DeadLetterPage,
    DeadLetterProgress,
    DiscardPage,
    HeartbeatAnswer,
    QueuePage,
    QueueStats,
    TaskFilter,
    TaskPage,
    WorkerPage,
    WorkerState,
)
from holdfast.client.schedules import Schedule, ScheduleInfo, SchedulePage


class BlockingCalls:
    """What operators do with queues, schedules and a cluster."""

    _thread: LoopThread[AsyncClient]

    # -------------------------------------------------------------------------------------------------- queues

    def queue_stats(self, queue: str, *, timeout_s: float | None = None) -> QueueStats:
        """How many tasks of the queue are in which state, how many come and go, and how long they take."""
        return self._thread.run(lambda calls: calls.queue_stats(queue, timeout_s=timeout_s))

    def queue_stats_many(self, queues: Sequence[str], *, timeout_s: float | None = None) -> list[QueueStats | Rejected]:
        """The same for many queues."""
        return self._thread.run(lambda calls: calls.queue_stats_many(queues, timeout_s=timeout_s))

    def list_queues(
        self, *, page_size: int = 100, page_token: str = "", partial: bool = False, timeout_s: float | None = None
    ) -> QueuePage:
        """One page of all queues that were ever used, by name; pass on `next_page_token` for the next page.

        If a shard of the cluster does not answer, neither does this; with `partial` it tells what the others know, and
        `missing_shards` says which are missing in the numbers."""
        return self._thread.run(
            lambda calls: calls.list_queues(
                page_size=page_size, page_token=page_token, partial=partial, timeout_s=timeout_s
            )
        )

    def list_tasks(
        self,
        queue: str = "",
        *,
        where: TaskFilter | None = None,
        page_size: int = 100,
        page_token: str = "",
        partial: bool = False,
        timeout_s: float | None = None,
    ) -> TaskPage:
        """One page of the tasks of a queue, or of all, that fit, which may be empty and not the last; see
        `AsyncClient.list_tasks`."""
        return self._thread.run(
            lambda calls: calls.list_tasks(
                queue, where=where, page_size=page_size, page_token=page_token, partial=partial, timeout_s=timeout_s
            )
        )

    def iter_tasks(
        self,
        queue: str = "",
        *,
        where: TaskFilter | None = None,
        page_size: int = 100,
        timeout_s: float | None = None,
    ) -> Iterator[TaskInfo]:
        """All tasks of a queue, or of all, that fit, page by page; `timeout_s` is the time for one page."""
        token = ""
        while True:
            page = self.list_tasks(queue, where=where, page_size=page_size, page_token=token, timeout_s=timeout_s)
            yield from page.tasks
            token = next_page(token, page.next_page_token, len(page.tasks))
            if not token:
                return

    def list_workers(
        self, *, page_size: int = 100, page_token: str = "", partial: bool = False, timeout_s: float | None = None
    ) -> WorkerPage:
        """One page of those who claim tasks, by name; pass on `next_page_token` for the next page. `partial` as in
        `list_queues`."""
        return self._thread.run(
            lambda calls: calls.list_workers(
                page_size=page_size, page_token=page_token, partial=partial, timeout_s=timeout_s
            )
        )

    def heartbeat(
        self,
        worker: str,
        *,
        state: WorkerState = WorkerState.RUNNING,
        slots: int = 0,
        version: str = "",
        queues: Sequence[str] = (),
        timeout_s: float | None = None,
    ) -> HeartbeatAnswer:
        """Says that a worker is there and what it does; see `AsyncClient.heartbeat`."""
        return self._thread.run(
            lambda calls: calls.heartbeat(
                worker, state=state, slots=slots, version=version, queues=queues, timeout_s=timeout_s
            )
        )

    def signal_worker(self, worker: str, desired: WorkerState, *, timeout_s: float | None = None) -> WorkerState:
        """Asks a worker to be quiet, to run or to stop; see `AsyncClient.signal_worker`."""
        return self._thread.run(lambda calls: calls.signal_worker(worker, desired, timeout_s=timeout_s))

    def purge_queue(
        self,
        queue: str,
        *,
        dry_run: bool = False,
        progress: Callable[[int], None] | None = None,
        timeout_s: float | None = None,
    ) -> int:
        """Cancels all waiting tasks of a queue and returns how many; see `AsyncClient.purge_queue`."""
        return self._thread.run(
            lambda calls: calls.purge_queue(queue, dry_run=dry_run, progress=progress, timeout_s=timeout_s)
        )

    # -------------------------------------------------------------------------------------------- dead letters

    def list_dead_letters(
        self,
        queue: str,
        *,
        where: DeadLetterFilter | None = None,
        page_size: int = 100,
        page_token: str = "",
        timeout_s: float | None = None,
    ) -> DeadLetterPage:
        """One page of the dead letters of a queue, oldest first, which may be empty and not the last; see
        `AsyncClient.list_dead_letters`."""
        return self._thread.run(
            lambda calls: calls.list_dead_letters(
                queue, where=where, page_size=page_size, page_token=page_token, timeout_s=timeout_s
            )
        )

    def iter_dead_letters(
        self,
        queue: str,
        *,
        where: DeadLetterFilter | None = None,
        page_size: int = 100,
        timeout_s: float | None = None,
    ) -> Iterator[TaskInfo]:
        """All dead letters of a queue that fit, oldest first, page by page; `timeout_s` is the time for one page."""
        token = ""
        while True:
            page = self.list_dead_letters(
                queue, where=where, page_size=page_size, page_token=token, timeout_s=timeout_s
            )
            yield from page.tasks
            token = next_page(token, page.next_page_token, len(page.tasks))
            if not token:
                return

    def get_dead_letter(self, task_id: str, *, timeout_s: float | None = None) -> TaskInfo:
        """A dead letter with its payload and its last attempts."""
        return self._thread.run(lambda calls: calls.get_dead_letter(task_id, timeout_s=timeout_s))

    def retry_dead_letter(self, task_id: str, *, timeout_s: float | None = None) -> DeadLetterDone:
        """Makes a dead task ready again, with fresh budgets."""
        return self._thread.run(lambda calls: calls.retry_dead_letter(task_id, timeout_s=timeout_s))

    def retry_dead_letters(
        self, task_ids: Sequence[str], *, timeout_s: float | None = None
    ) -> list[DeadLetterDone | Rejected]:
        """Makes many dead tasks ready again."""
        return self._thread.run(lambda calls: calls.retry_dead_letters(task_ids, timeout_s=timeout_s))

    def retry_dead_letters_where(
        self,
        queue: str,
        where: DeadLetterFilter | None = None,
        *,
        limit: int | None = None,
        dry_run: bool = False,
        batch_size: int = 100,
        progress: Callable[[DeadLetterProgress], None] | None = None,
        timeout_s: float | None = None,
    ) -> DeadLetterProgress:
        """Makes all dead letters of a queue that fit ready again; see `AsyncClient.retry_dead_letters_where`."""
        return self._thread.run(
            lambda calls: calls.retry_dead_letters_where(
                queue,
                where,
                limit=limit,
                dry_run=dry_run,
                batch_size=batch_size,
                progress=progress,
                timeout_s=timeout_s,
            )
        )

    def discard_dead_letter(
        self, task_id: str, *, by: str | None = None, note: str = "", timeout_s: float | None = None
    ) -> DeadLetterDone:
        """Deletes a dead task for good, and leaves a record with who discarded it and why: see `list_discards`."""
        return self._thread.run(lambda calls: calls.discard_dead_letter(task_id, by=by, note=note, timeout_s=timeout_s))

    def discard_dead_letters(
        self, task_ids: Sequence[str], *, by: str | None = None, note: str = "", timeout_s: float | None = None
    ) -> list[DeadLetterDone | Rejected]:
        """Deletes many dead tasks for good."""
        return self._thread.run(
            lambda calls: calls.discard_dead_letters(task_ids, by=by, note=note, timeout_s=timeout_s)
        )

    def discard_dead_letters_where(
        self,
        queue: str,
        where: DeadLetterFilter | None = None,
        *,
        by: str | None = None,
        note: str = "",
        limit: int | None = None,
        dry_run: bool = False,
        batch_size: int = 100,
        progress: Callable[[DeadLetterProgress], None] | None = None,
        timeout_s: float | None = None,
    ) -> DeadLetterProgress:
        """Deletes all dead letters of a queue that fit, for good; see `AsyncClient.retry_dead_letters_where`."""
        return self._thread.run(
            lambda calls: calls.discard_dead_letters_where(
                queue,
                where,
                by=by,
                note=note,
                limit=limit,
                dry_run=dry_run,
                batch_size=batch_size,
                progress=progress,
                timeout_s=timeout_s,
            )
        )

    def list_discards(
        self, queue: str = "", *, page_size: int = 100, page_token: str = "", timeout_s: float | None = None
    ) -> DiscardPage:
        """One page of what was discarded, when and by whom, the oldest first; without a queue: of all queues."""
        return self._thread.run(
            lambda calls: calls.list_discards(queue, page_size=page_size, page_token=page_token, timeout_s=timeout_s)
        )

    # ----------------------------------------------------------------------------------------------- schedules

    def put_schedule(
        self,
        schedule: Schedule,
        *,
        must_be_new: bool = False,
        paused: bool = False,
        timeout_s: float | None = None,
    ) -> ScheduleInfo:
        """Makes a schedule, or changes the one of this name; see `AsyncClient.put_schedule`."""
        return self._thread.run(
            lambda calls: calls.put_schedule(schedule, must_be_new=must_be_new, paused=paused, timeout_s=timeout_s)
        )

    def get_schedule(self, queue: str, name: str, *, timeout_s: float | None = None) -> ScheduleInfo:
        """A schedule, and what has come of it; raises `NotFound` if there is none."""
        return self._thread.run(lambda calls: calls.get_schedule(queue, name, timeout_s=timeout_s))

    def list_schedules(
        self, queue: str = "", *, page_size: int = 100, page_token: str = "", timeout_s: float | None = None
    ) -> SchedulePage:
        """One page of the schedules, by queue and name, without the payloads of their tasks. No queue: of all."""
        return self._thread.run(
            lambda calls: calls.list_schedules(queue, page_size=page_size, page_token=page_token, timeout_s=timeout_s)
        )

    def delete_schedule(self, queue: str, name: str, *, timeout_s: float | None = None) -> None:
        """Ends a schedule. The tasks that it made stay."""
        return self._thread.run(lambda calls: calls.delete_schedule(queue, name, timeout_s=timeout_s))

    def pause_schedule(self, queue: str, name: str, *, timeout_s: float | None = None) -> ScheduleInfo:
        """No more tasks until `resume_schedule`. Ticks that pass meanwhile are not made up for."""
        return self._thread.run(lambda calls: calls.pause_schedule(queue, name, timeout_s=timeout_s))

    def resume_schedule(self, queue: str, name: str, *, timeout_s: float | None = None) -> ScheduleInfo:
        """Goes on with the next tick from now on."""
        return self._thread.run(lambda calls: calls.resume_schedule(queue, name, timeout_s=timeout_s))

    def trigger_schedule(
        self, queue: str, name: str, *, request_id: str | None = None, timeout_s: float | None = None
    ) -> Accepted:
        """One task now, whatever the time and the overlap policy; see `AsyncClient.trigger_schedule`."""
        return self._thread.run(
            lambda calls: calls.trigger_schedule(queue, name, request_id=request_id, timeout_s=timeout_s)
        )

    def preview_schedule(
        self,
        expression: str,
        *,
        time_zone: str = "",
        count: int = 5,
        after_ms: int | None = None,
        timeout_s: float | None = None,
    ) -> list[int]:
        """When an expression fires next; changes nothing. See `AsyncClient.preview_schedule`."""
        return self._thread.run(
            lambda calls: calls.preview_schedule(
                expression, time_zone=time_zone, count=count, after_ms=after_ms, timeout_s=timeout_s
            )
        )

    def schedule_times(
        self,
        queue: str,
        name: str,
        *,
        count: int = 5,
        after_ms: int | None = None,
        timeout_s: float | None = None,
    ) -> list[int]:
        """The same for the expression of a schedule that is there."""
        return self._thread.run(
            lambda calls: calls.schedule_times(queue, name, count=count, after_ms=after_ms, timeout_s=timeout_s)
        )

    # --------------------------------------------------------------------------------------------- the cluster

    def describe_cluster(self, *, timeout_s: float | None = None) -> ClusterInfo:
        """Nodes, shards and the plan under way, as the map has them."""
        return self._thread.run(lambda calls: calls.describe_cluster(timeout_s=timeout_s))

    def init_cluster(self, shards: int, *, replication: int = 3, timeout_s: float | None = None) -> str:
        """Makes a cluster of the nodes that are there, once in its life; returns its id."""
        return self._thread.run(lambda calls: calls.init_cluster(shards, replication=replication, timeout_s=timeout_s))

    def topology(self, queues: Sequence[str] = (), *, timeout_s: float | None = None) -> Topology:
        """The leaders of all shards and the routes of these queues, as the server that was asked knows them."""
        return self._thread.run(lambda calls: calls.topology(queues, timeout_s=timeout_s))

    def queue_settings(self, queue: str, *, timeout_s: float | None = None) -> QueueSettings:
        """Where a queue is and what it does in its own way, also if that is nothing."""
        return self._thread.run(lambda calls: calls.queue_settings(queue, timeout_s=timeout_s))

    def list_queue_settings(
        self,
        queues: Sequence[str] = (),
        *,
        page_size: int = 100,
        page_token: str = "",
        timeout_s: float | None = None,
    ) -> QueueSettingsPage:
        """One page of the queues that differ from the default, by name, or of those that are named here."""
        return self._thread.run(
            lambda calls: calls.list_queue_settings(
                queues, page_size=page_size, page_token=page_token, timeout_s=timeout_s
            )
        )

    def set_queue(
        self,
        queue: str,
        *,
        policy: QueuePolicy | None = None,
        clear: Sequence[str] = (),
        spread: int | None = None,
        pin: Sequence[int] | None = None,
        home: bool = False,
        timeout_s: float | None = None,
    ) -> QueueSettings:
        """Changes what is given and leaves the rest as it is; see `AsyncClient.set_queue`."""
        return self._thread.run(
            lambda calls: calls.set_queue(
                queue, policy=policy, clear=clear, spread=spread, pin=pin, home=home, timeout_s=timeout_s
            )
        )

    def pause_queue(self, queue: str, *, timeout_s: float | None = None) -> QueueSettings:
        """Hands out no more tasks of a queue; see `AsyncClient.pause_queue`."""
        return self._thread.run(lambda calls: calls.pause_queue(queue, timeout_s=timeout_s))

    def resume_queue(self, queue: str, *, timeout_s: float | None = None) -> QueueSettings:
        """Takes `pause_queue` back."""
        return self._thread.run(lambda calls: calls.resume_queue(queue, timeout_s=timeout_s))

    def drain_node(self, node: str, *, drain: bool = True, timeout_s: float | None = None) -> None:
        """Marks a node as one that should hold nothing, or takes the mark back. It moves nothing: see `make_plan`."""
        return self._thread.run(lambda calls: calls.drain_node(node, drain=drain, timeout_s=timeout_s))

    def remove_node(self, node: str, *, timeout_s: float | None = None) -> None:
        """Forgets a node that holds nothing; it cannot come back with its present data."""
        return self._thread.run(lambda calls: calls.remove_node(node, timeout_s=timeout_s))

    def hand_over_node(
        self, node: str, *, undo: bool = False, timeout_s: float | None = None
    ) -> HandoverProgress:  # fmt: skip
        """Asks a node that is about to be stopped to hand over what it leads; see `AsyncClient.hand_over_node`."""
        return self._thread.run(lambda calls: calls.hand_over_node(node, undo=undo, timeout_s=timeout_s))

    def make_plan(self, *, leaders: bool = False, move: MoveWish | None = None, timeout_s: float | None = None) -> Plan:
        """What should move and why; changes nothing. See `AsyncClient.make_plan`."""
        return self._thread.run(lambda calls: calls.make_plan(leaders=leaders, move=move, timeout_s=timeout_s))

    def start_plan(self, plan: Plan, *, timeout_s: float | None = None) -> Plan:
        """Makes this plan the one that is carried out, if it fits the map still. The same plan again is a success."""
        return self._thread.run(lambda calls: calls.start_plan(plan, timeout_s=timeout_s))

    def advance_plan(self, plan_id: str = "", *, timeout_s: float | None = None) -> PlanProgress:
        """Begins the steps whose turn it is and tells how far all are; see `AsyncClient.advance_plan`."""
        return self._thread.run(lambda calls: calls.advance_plan(plan_id, timeout_s=timeout_s))

    def cancel_plan(self, plan_id: str, *, timeout_s: float | None = None) -> None:
        """Begins no more steps. What has begun is brought to its end by the shards themselves."""
        return self._thread.run(lambda calls: calls.cancel_plan(plan_id, timeout_s=timeout_s))

    def set_rebalancing(self, *, pause: bool, why: str = "", timeout_s: float | None = None) -> Rebalancing:
        """Pauses or resumes whatever carries out plans by itself; see `AsyncClient.set_rebalancing`."""
        return self._thread.run(lambda calls: calls.set_rebalancing(pause=pause, why=why, timeout_s=timeout_s))

    # ------------------------------------------------------------------------------------------------- access

    def get_access(self, *, timeout_s: float | None = None) -> AccessRules:
        """Who may do what, as the map of the cluster has it."""
        return self._thread.run(lambda calls: calls.get_access(timeout_s=timeout_s))

    def set_access(
        self, rules: Mapping[str, Any] | None, *, version: int, timeout_s: float | None = None
    ) -> int:  # fmt: skip
        """Puts these rules in the place of those of this version; see `AsyncClient.set_access`."""
        return self._thread.run(lambda calls: calls.set_access(rules, version=version, timeout_s=timeout_s))

    # --------------------------------------------------------------------------------------- nodes and shards

    def describe_nodes(self, *, timeout_s: float | None = None) -> list[NodeReport]:
        """Asks every node of the cluster what it is and has; see `AsyncClient.describe_nodes`."""
        return self._thread.run(lambda calls: calls.describe_nodes(timeout_s=timeout_s))

    def hash_shard(self, shard: int, *, timeout_s: float | None = None) -> ShardHash:
        """The hashes of the states of all replicas at one index: they must be equal."""
        return self._thread.run(lambda calls: calls.hash_shard(shard, timeout_s=timeout_s))

    def transfer(self, shard: int, to: str, *, timeout_s: float | None = None) -> Transferred:
        """Makes the node named `to` the leader of a shard, and returns when it is."""
        return self._thread.run(lambda calls: calls.transfer(shard, to, timeout_s=timeout_s))
