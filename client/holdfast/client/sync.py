"""The blocking client: every call of `AsyncClient` under the same name, for programs without an event loop.

There is one implementation, `AsyncClient`; this one runs it on a thread of its own and waits for the results. Here are
the calls on tasks; `_sync_operators` has the others.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Self

from holdfast.client._loop_thread import LoopThread
from holdfast.client._short_calls import ShortCalls
from holdfast.client._sync_operators import BlockingCalls
from holdfast.client.aio import DEFAULT_ADDRESS, DEFAULT_TIMEOUT_S, AsyncClient
from holdfast.client.codec import Codec
from holdfast.client.errors import Rejected
from holdfast.client.models import (
    Accepted,
    Ack,
    Acked,
    Cancelled,
    Claim,
    Claims,
    Extended,
    Extension,
    Failed,
    Failure,
    NewTask,
    Released,
    TaskError,
    TaskInfo,
    TaskUpdate,
    Updated,
)
from holdfast.client.tls import Tls
from holdfast.client.tokens import Token


class Client(BlockingCalls):
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
        transport: str = "auto",
        token: Token | None = None,
        token_file: str | Path | None = None,
        tls: Tls | None = None,
        codec: Codec | None = None,
    ) -> None:
        """Raises `InvalidAddress` if an address is not host:port, `InvalidArgument` if files of `tls` are of no use.
        Nothing is sent or started before the first call."""
        make = partial(
            AsyncClient, address, timeout_s=timeout_s, retry=retry, direct=direct, transport=transport, token=token,
            token_file=token_file, tls=tls, codec=codec,
        )  # fmt: skip
        self._address = make().address
        self._thread = LoopThread("holdfast-client", make)
        self._short = ShortCalls(self._thread)

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
        self._short.close()

    # ------------------------------------------------------------------------------------------ producers

    def enqueue(self, task: NewTask, *, timeout_s: float | None = None) -> Accepted:
        """Hands over one task. When this returns, the task is durable."""
        return self._short.run(lambda calls: calls.enqueue(task, timeout_s=timeout_s))

    def enqueue_many(self, tasks: Sequence[NewTask], *, timeout_s: float | None = None) -> list[Accepted | Rejected]:
        """Hands over many tasks in one call: by far the cheapest way, up to 1,000 tasks or 4 MiB at a time."""
        return self._short.run(lambda calls: calls.enqueue_many(tasks, timeout_s=timeout_s))

    def enqueue_run(
        self, task: NewTask, payloads: Sequence[bytes], *, timeout_s: float | None = None
    ) -> list[Accepted | Rejected]:
        """Hands over one task for each payload, all else being as in `task`; see `AsyncClient.enqueue_run`."""
        return self._short.run(lambda calls: calls.enqueue_run(task, payloads, timeout_s=timeout_s))

    # -------------------------------------------------------------------------------------------- workers

    def reserve(
        self,
        queues: Sequence[str],
        *,
        max_tasks: int = 1,
        max_tasks_by_queue: Mapping[str, int] | None = None,
        lease_ms: int = 30_000,
        lease_ms_by_type: Mapping[str, int] | None = None,
        wait_ms: int = 0,
        worker: str = "",
        claim_request_id: str | None = None,
        empty_handed: bool | None = None,
        suspects_only: bool = False,
        settles_later: bool = False,
        held_only: bool = False,
        held_at: Sequence[int] = (),
        timeout_s: float | None = None,
    ) -> Claims:
        """Claims up to `max_tasks` tasks; see `AsyncClient.reserve`."""
        # An earlier call with this id may have gone the other way, and how often it was sent is known there.
        run = self._short.run if claim_request_id is None else self._thread.run
        return run(
            lambda calls: calls.reserve(
                queues,
                max_tasks=max_tasks,
                max_tasks_by_queue=max_tasks_by_queue,
                lease_ms=lease_ms,
                lease_ms_by_type=lease_ms_by_type,
                wait_ms=wait_ms,
                worker=worker,
                claim_request_id=claim_request_id,
                empty_handed=empty_handed,
                suspects_only=suspects_only,
                settles_later=settles_later,
                held_only=held_only,
                held_at=held_at,
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
        return self._short.run(
            lambda calls: calls.ack(claim, result=result, follow_ups=follow_ups, timeout_s=timeout_s)
        )

    def ack_many(self, items: Sequence[Claim | Ack], *, timeout_s: float | None = None) -> list[Acked | Rejected]:
        """Finishes many tasks: claims as they are, or an `Ack` where there is a result or a follow-up."""
        return self._short.run(lambda calls: calls.ack_many(items, timeout_s=timeout_s))

    def fail(
        self,
        claim: Claim,
        error: TaskError | None = None,
        *,
        retry_delay_ms: int | None = None,
        retry_at_ms: int | None = None,
        dead: bool = False,
        timeout_s: float | None = None,
    ) -> Failed:
        """Reports a failed attempt; the answer says whether there will be another."""
        return self._short.run(
            lambda calls: calls.fail(
                claim, error, retry_delay_ms=retry_delay_ms, retry_at_ms=retry_at_ms, dead=dead, timeout_s=timeout_s
            )
        )

    def fail_many(self, items: Sequence[Failure], *, timeout_s: float | None = None) -> list[Failed | Rejected]:
        """Reports many failed attempts."""
        return self._short.run(lambda calls: calls.fail_many(items, timeout_s=timeout_s))

    def extend(self, claim: Claim, lease_ms: int, *, timeout_s: float | None = None) -> Extended:
        """Prolongs a lease; the answer says whether the task is to be cancelled."""
        return self._short.run(lambda calls: calls.extend(claim, lease_ms, timeout_s=timeout_s))

    def extend_many(self, items: Sequence[Extension], *, timeout_s: float | None = None) -> list[Extended | Rejected]:
        """Prolongs many leases."""
        return self._short.run(lambda calls: calls.extend_many(items, timeout_s=timeout_s))

    def release(self, claim: Claim, *, delay_ms: int = 0, timeout_s: float | None = None) -> Released:
        """Hands a task back without spending an attempt: to its old place, or to wait for `delay_ms`."""
        return self._short.run(lambda calls: calls.release(claim, delay_ms=delay_ms, timeout_s=timeout_s))

    def release_many(
        self, claims: Sequence[Claim], *, delay_ms: int = 0, timeout_s: float | None = None
    ) -> list[Released | Rejected]:
        """Hands many tasks back."""
        return self._short.run(lambda calls: calls.release_many(claims, delay_ms=delay_ms, timeout_s=timeout_s))

    # ------------------------------------------------------------------------------------ looking and acting

    def cancel(self, task_id: str, *, timeout_s: float | None = None) -> Cancelled:
        """Cancels a task: a waiting one at once, a running one through its worker's next extend."""
        return self._short.run(lambda calls: calls.cancel(task_id, timeout_s=timeout_s))

    def cancel_many(self, task_ids: Sequence[str], *, timeout_s: float | None = None) -> list[Cancelled | Rejected]:
        """Cancels many tasks."""
        return self._short.run(lambda calls: calls.cancel_many(task_ids, timeout_s=timeout_s))

    def update_task(
        self,
        task_id: str,
        *,
        priority: int | None = None,
        run_at_ms: int | None = None,
        delay_ms: int | None = None,
        timeout_s: float | None = None,
    ) -> Updated:
        """Changes the priority of a waiting task, or when it may start; see `AsyncClient.update_task`."""
        return self._short.run(
            lambda calls: calls.update_task(
                task_id, priority=priority, run_at_ms=run_at_ms, delay_ms=delay_ms, timeout_s=timeout_s
            )
        )

    def update_tasks(self, items: Sequence[TaskUpdate], *, timeout_s: float | None = None) -> list[Updated | Rejected]:
        """The same for many tasks."""
        return self._short.run(lambda calls: calls.update_tasks(items, timeout_s=timeout_s))

    def get_task(self, task_id: str, *, timeout_s: float | None = None) -> TaskInfo:
        """All that the server knows about a task; raises `NotFound` if it knows none."""
        return self._short.run(lambda calls: calls.get_task(task_id, timeout_s=timeout_s))

    def wait_task(self, task_id: str, *, timeout_s: float | None = None) -> TaskInfo:
        """Returns when the task has finished; raises `ResultTimeout` when `timeout_s` is over; None waits for ever."""
        return self._thread.run(lambda calls: calls.wait_task(task_id, timeout_s=timeout_s))

    def wait_tasks(self, task_ids: Sequence[str], *, timeout_s: float | None = None) -> list[TaskInfo | Rejected]:
        """Returns when all tasks have finished or `timeout_s` is over; see `AsyncClient.wait_tasks`."""
        return self._thread.run(lambda calls: calls.wait_tasks(task_ids, timeout_s=timeout_s))
