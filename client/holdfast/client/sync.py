"""The blocking client: every call of `AsyncClient` under the same name, for programs without an event loop.

There is one implementation, `AsyncClient`; this one runs it on a thread of its own and waits for the results.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from types import TracebackType
from typing import Self

from holdfast.client._loop_thread import LoopThread
from holdfast.client.aio import DEFAULT_ADDRESS, DEFAULT_TIMEOUT_S, AsyncClient
from holdfast.client.errors import Rejected
from holdfast.client.models import (
    Accepted,
    Ack,
    Acked,
    Cancelled,
    Claim,
    ClaimedTask,
    ClusterInfo,
    DeadLetterDone,
    DeadLetterPage,
    Extended,
    Extension,
    Failed,
    Failure,
    MoveWish,
    NewTask,
    NodeReport,
    Plan,
    PlanProgress,
    QueuePage,
    QueuePolicy,
    QueueSettings,
    QueueSettingsPage,
    QueueStats,
    Released,
    ShardHash,
    TaskError,
    TaskInfo,
    Topology,
    Transferred,
)


class Client:
    """The blocking twin of `AsyncClient`: the same calls with the same arguments, results, errors and deadlines.

    Any number of threads may use one client at the same time. Ctrl-C ends a waiting call. In a coroutine use
    `AsyncClient`: a call of this one would stop the whole event loop until it is done.

    It works on both sides of a fork, unless a long call (or an `AsyncClient`) is under way at that moment: gRPC is of
    no use in such a child, and calls raise `ClientForked` there.

    >>> with Client("localhost:7400") as client:
    ...     accepted = client.enqueue(NewTask("mail", "welcome", b"ada@example.org", request_id="signup-17"))
    ...     [task] = client.reserve(["mail"], wait_ms=5_000)
    ...     print(task.type, task.payload, task.task_id == accepted.task_id)
    ...     acked = client.ack(task)
    welcome b'ada@example.org' True
    """

    def __init__(
        self,
        address: str = DEFAULT_ADDRESS,
        *,
        timeout_s: float = DEFAULT_TIMEOUT_S,
        retry: bool = True,
        direct: bool = False,
    ) -> None:
        """Raises `InvalidAddress` if an address is not host:port. Nothing is sent or started before the first call."""
        make = partial(AsyncClient, address, timeout_s=timeout_s, retry=retry, direct=direct)
        self._address = make().address
        self._thread = LoopThread("holdfast-client", make)

    @property
    def address(self) -> str:
        return self._address

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Closes the connection and ends the thread. Calls that are still running end with `ClientClosed`."""
        self._thread.close()

    # ------------------------------------------------------------------------------------------ producers

    def enqueue(self, task: NewTask, *, timeout_s: float | None = None) -> Accepted:
        """Hands over one task. When this returns, the task is durable."""
        return self._thread.run(lambda calls: calls.enqueue(task, timeout_s=timeout_s))

    def enqueue_many(self, tasks: Sequence[NewTask], *, timeout_s: float | None = None) -> list[Accepted | Rejected]:
        """Hands over many tasks in one call: by far the cheapest way, up to 1,000 tasks or 4 MiB at a time."""
        return self._thread.run(lambda calls: calls.enqueue_many(tasks, timeout_s=timeout_s))

    # -------------------------------------------------------------------------------------------- workers

    def reserve(
        self,
        queues: Sequence[str],
        *,
        max_tasks: int = 1,
        max_tasks_by_queue: Mapping[str, int] | None = None,
        lease_ms: int = 30_000,
        wait_ms: int = 0,
        worker: str = "",
        claim_request_id: str | None = None,
        timeout_s: float | None = None,
    ) -> list[ClaimedTask]:
        """Claims up to `max_tasks` tasks; see `AsyncClient.reserve`."""
        return self._thread.run(
            lambda calls: calls.reserve(
                queues,
                max_tasks=max_tasks,
                max_tasks_by_queue=max_tasks_by_queue,
                lease_ms=lease_ms,
                wait_ms=wait_ms,
                worker=worker,
                claim_request_id=claim_request_id,
                timeout_s=timeout_s,
            )
        )

    def ack(
        self,
        claim: Claim,
        *,
        result: bytes | None = None,
        follow_ups: Sequence[NewTask] = (),
        timeout_s: float | None = None,
    ) -> Acked:
        """Finishes a task, and hands over its follow-ups together with that or not at all."""
        return self._thread.run(
            lambda calls: calls.ack(claim, result=result, follow_ups=follow_ups, timeout_s=timeout_s)
        )

    def ack_many(self, items: Sequence[Claim | Ack], *, timeout_s: float | None = None) -> list[Acked | Rejected]:
        """Finishes many tasks: claims as they are, or an `Ack` where there is a result or a follow-up."""
        return self._thread.run(lambda calls: calls.ack_many(items, timeout_s=timeout_s))

    def fail(
        self,
        claim: Claim,
        error: TaskError | None = None,
        *,
        retry_delay_ms: int | None = None,
        dead: bool = False,
        timeout_s: float | None = None,
    ) -> Failed:
        """Reports a failed attempt; the answer says whether there will be another."""
        return self._thread.run(
            lambda calls: calls.fail(claim, error, retry_delay_ms=retry_delay_ms, dead=dead, timeout_s=timeout_s)
        )

    def fail_many(self, items: Sequence[Failure], *, timeout_s: float | None = None) -> list[Failed | Rejected]:
        """Reports many failed attempts."""
        return self._thread.run(lambda calls: calls.fail_many(items, timeout_s=timeout_s))

    def extend(self, claim: Claim, lease_ms: int, *, timeout_s: float | None = None) -> Extended:
        """Prolongs a lease; the answer says whether the task is to be cancelled."""
        return self._thread.run(lambda calls: calls.extend(claim, lease_ms, timeout_s=timeout_s))

    def extend_many(self, items: Sequence[Extension], *, timeout_s: float | None = None) -> list[Extended | Rejected]:
        """Prolongs many leases."""
        return self._thread.run(lambda calls: calls.extend_many(items, timeout_s=timeout_s))

    def release(self, claim: Claim, *, timeout_s: float | None = None) -> Released:
        """Hands a task back to its old place without spending an attempt."""
        return self._thread.run(lambda calls: calls.release(claim, timeout_s=timeout_s))

    def release_many(self, claims: Sequence[Claim], *, timeout_s: float | None = None) -> list[Released | Rejected]:
        """Hands many tasks back."""
        return self._thread.run(lambda calls: calls.release_many(claims, timeout_s=timeout_s))

    # ------------------------------------------------------------------------------------ looking and acting

    def cancel(self, task_id: str, *, timeout_s: float | None = None) -> Cancelled:
        """Cancels a task: a waiting one at once, a running one through its worker's next extend."""
        return self._thread.run(lambda calls: calls.cancel(task_id, timeout_s=timeout_s))

    def cancel_many(self, task_ids: Sequence[str], *, timeout_s: float | None = None) -> list[Cancelled | Rejected]:
        """Cancels many tasks."""
        return self._thread.run(lambda calls: calls.cancel_many(task_ids, timeout_s=timeout_s))

    def get_task(self, task_id: str, *, timeout_s: float | None = None) -> TaskInfo:
        """All that the server knows about a task; raises `NotFound` if it knows none."""
        return self._thread.run(lambda calls: calls.get_task(task_id, timeout_s=timeout_s))

    def wait_task(self, task_id: str, *, timeout_s: float | None = None) -> TaskInfo:
        """Returns when the task has finished; raises `ResultTimeout` when `timeout_s` is over; None waits for ever."""
        return self._thread.run(lambda calls: calls.wait_task(task_id, timeout_s=timeout_s))

    def wait_tasks(self, task_ids: Sequence[str], *, timeout_s: float | None = None) -> list[TaskInfo | Rejected]:
        """Returns when all tasks have finished or `timeout_s` is over; see `AsyncClient.wait_tasks`."""
        return self._thread.run(lambda calls: calls.wait_tasks(task_ids, timeout_s=timeout_s))

    def queue_stats(self, queue: str, *, timeout_s: float | None = None) -> QueueStats:
        """How many tasks of the queue are in which state."""
        return self._thread.run(lambda calls: calls.queue_stats(queue, timeout_s=timeout_s))

    def queue_stats_many(self, queues: Sequence[str], *, timeout_s: float | None = None) -> list[QueueStats | Rejected]:
        """The same for many queues."""
        return self._thread.run(lambda calls: calls.queue_stats_many(queues, timeout_s=timeout_s))

    def list_queues(self, *, page_size: int = 100, page_token: str = "", timeout_s: float | None = None) -> QueuePage:
        """One page of all queues that were ever used, by name; pass on `next_page_token` for the next page."""
        return self._thread.run(
            lambda calls: calls.list_queues(page_size=page_size, page_token=page_token, timeout_s=timeout_s)
        )

    # ---------------------------------------------------------------------------------------- dead letters

    def list_dead_letters(
        self, queue: str, *, page_size: int = 100, page_token: str = "", timeout_s: float | None = None
    ) -> DeadLetterPage:
        """One page of the dead letters of a queue, oldest first; pass on `next_page_token` for the next page."""
        return self._thread.run(
            lambda calls: calls.list_dead_letters(
                queue, page_size=page_size, page_token=page_token, timeout_s=timeout_s
            )
        )

    def get_dead_letter(self, task_id: str, *, timeout_s: float | None = None) -> TaskInfo:
        """A dead letter with its payload."""
        return self._thread.run(lambda calls: calls.get_dead_letter(task_id, timeout_s=timeout_s))

    def retry_dead_letter(self, task_id: str, *, timeout_s: float | None = None) -> DeadLetterDone:
        """Makes a dead task ready again, with fresh budgets."""
        return self._thread.run(lambda calls: calls.retry_dead_letter(task_id, timeout_s=timeout_s))

    def retry_dead_letters(
        self, task_ids: Sequence[str], *, timeout_s: float | None = None
    ) -> list[DeadLetterDone | Rejected]:
        """Makes many dead tasks ready again."""
        return self._thread.run(lambda calls: calls.retry_dead_letters(task_ids, timeout_s=timeout_s))

    def discard_dead_letter(self, task_id: str, *, timeout_s: float | None = None) -> DeadLetterDone:
        """Deletes a dead task for good."""
        return self._thread.run(lambda calls: calls.discard_dead_letter(task_id, timeout_s=timeout_s))

    def discard_dead_letters(
        self, task_ids: Sequence[str], *, timeout_s: float | None = None
    ) -> list[DeadLetterDone | Rejected]:
        """Deletes many dead tasks for good."""
        return self._thread.run(lambda calls: calls.discard_dead_letters(task_ids, timeout_s=timeout_s))

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

    def drain_node(self, node: str, *, drain: bool = True, timeout_s: float | None = None) -> None:
        """Marks a node as one that should hold nothing, or takes the mark back. It moves nothing: see `make_plan`."""
        return self._thread.run(lambda calls: calls.drain_node(node, drain=drain, timeout_s=timeout_s))

    def remove_node(self, node: str, *, timeout_s: float | None = None) -> None:
        """Forgets a node that holds nothing; it cannot come back with its present data."""
        return self._thread.run(lambda calls: calls.remove_node(node, timeout_s=timeout_s))

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
