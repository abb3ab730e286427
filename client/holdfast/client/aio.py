"""The asynchronous client: one method per call of the wire API, typed values in and out. Here are the calls on tasks;
`_queues`, `_dead_letters`, `_schedules` and `_cluster` have the others.

A call on one item raises the typed error if the server refuses it. A call on many returns one result per item, in
order, with a `Rejected` (not raised) in the place of each refused item; it raises only if the whole call failed.
"""

import math
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self, TypeVar

from holdfast.client import _wire
from holdfast.client._batches import ack_parts
from holdfast.client._claims import RunClaims
from holdfast.client._cluster import OperatorCalls
from holdfast.client._coalescing import Coalescer
from holdfast.client._coding import Coding, coding_of
from holdfast.client._dead_letters import DeadLetterCalls
from holdfast.client._direct import Direct
from holdfast.client._direct_reserve import RESERVE
from holdfast.client._enqueues import Enqueues
from holdfast.client._fitting import at_place, only
from holdfast.client._memory import Unanswered
from holdfast.client._options import call_limit_s, checked_transport, limit_s
from holdfast.client._queues import QueueCalls
from holdfast.client._ranges import AckBatch
from holdfast.client._request_ids import new_key
from holdfast.client._rpc import Connection, OwnWay, method
from holdfast.client._runs import EnqueueBatch
from holdfast.client._schedules import ScheduleCalls
from holdfast.client._single_enqueues import SingleEnqueue, SingleEnqueues
from holdfast.client.codec import Codec
from holdfast.client.errors import (
    ConnectionFailed,
    DeadlineExceeded,
    InvalidArgument,
    OutcomeUnknown,
    Overloaded,
    Rejected,
    ResultTimeout,
    Unavailable,
    UnexpectedAnswer,
)
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
from holdfast.client.tls import CurrentTls, Tls, checked_tls
from holdfast.client.tokens import Token, token_source
from holdfast.proto.v1 import tasks_pb2 as pb

DEFAULT_ADDRESS = "localhost:7400"
DEFAULT_TIMEOUT_S = 10.0
# Of single enqueues that share a request: well below what the server takes, so that none waits for a huge one.
_SHARED_TASKS_MAX = 200
_SHARED_BYTES_MAX = 1024 * 1024
WAIT_TASKS_MAX = 1000  # tasks of one call that waits

_NO_ANSWER = (ConnectionFailed, DeadlineExceeded, OutcomeUnknown, Overloaded, Unavailable)

_ACK = method(pb, "Tasks", "Ack", pb.AckRequest, pb.AckResponse)
_FAIL = method(pb, "Tasks", "Fail", pb.FailRequest, pb.FailResponse)
_EXTEND = method(pb, "Tasks", "Extend", pb.ExtendRequest, pb.ExtendResponse)
_RELEASE = method(pb, "Tasks", "Release", pb.ReleaseRequest, pb.ReleaseResponse)
_CANCEL = method(pb, "Tasks", "Cancel", pb.CancelRequest, pb.CancelResponse)
_UPDATE = method(pb, "Tasks", "UpdateTasks", pb.UpdateTasksRequest, pb.UpdateTasksResponse)
_GET_TASK = method(pb, "Tasks", "GetTask", pb.GetTaskRequest, pb.GetTaskResponse)
_WAIT_TASKS = method(pb, "Tasks", "WaitTasks", pb.WaitTasksRequest, pb.WaitTasksResponse)

T = TypeVar("T")


class AsyncClient(QueueCalls, DeadLetterCalls, ScheduleCalls, OperatorCalls):
    """A client of one server or one cluster, for producers, workers and operators. Any number of calls may run at once.

    The address is host:port, or several with commas between them: "h1:7401,h2:7401,h3:7401". Calls go to the server
    that leads; the others say where it is, and when it fails or falls silent the next leader is found by itself.

    Every call ends within `timeout_s` (a reserve or a wait: within its wait plus that), whatever the network does.
    Until then, a call that does no harm when carried out twice is repeated if the connection fails: all but
    dead-letter retry and discard, an enqueue in which a task has an empty `request_id`, and of schedules deleting one,
    making one that must be new, and triggering one with an empty `request_id`. What a server refused because it is
    overloaded, shutting down or not the leader is repeated too. With `retry=False` nothing is waited for: each server
    is asked at most once.

    With `direct=True` a client of a cluster goes straight to the leaders of the shards: one hop less than through a
    router. It learns from any address that it is given, of a router or a broker, where queues and shards are, and goes
    back to that address for what a leader does not take, e.g. because only the router can be reached from here.
    Without it, the address of a cluster with several shards must be that of a router.

    `tls` says whom to trust and what to show: see `Tls`. Without it nothing is encrypted.

    `transport` is how calls travel: `"auto"` takes frames, a faster way on a port of their own, where the server has
    them and that port can be reached, and gRPC everywhere else; `"grpc"` takes gRPC only.

    `token` is what calls go with where servers ask who calls: a text, or a function that returns one and is asked again
    while calls are made, at most once a second; it must not block. `token_file` is read again in the same way, so a
    token that is replaced takes effect without a failed call. Without either, the environment says it (HOLDFAST_TOKEN,
    HOLDFAST_TOKEN_FILE).

    `codec` compresses and encrypts payloads and results, so that servers see neither: see `Codec`. What it cannot read
    raises `Unreadable` when it is looked at: the `payload` of a claim, the `result` of a task.

    >>> import asyncio
    >>> async def main() -> None:
    ...     async with AsyncClient("localhost:7400") as client:
    ...         accepted = await client.enqueue(NewTask("mail", "welcome", b"ada@example.org", request_id="signup-17"))
    ...         [task] = await client.reserve(["mail"], wait_ms=5_000)
    ...         print(task.type, task.payload, task.task_id == accepted.task_id)
    ...         await client.ack(task)
    >>> asyncio.run(main())
    welcome b'ada@example.org' True
    >>> async def straight_to_the_leaders() -> None:
    ...     async with AsyncClient("localhost:7400", direct=True) as client:
    ...         print((await client.enqueue(NewTask("mail", "welcome"))).duplicate)
    >>> asyncio.run(straight_to_the_leaders())
    False
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
        Nothing is sent before the first call."""
        timeout_s = limit_s("timeout_s", timeout_s)
        source = token_source(token, token_file)
        files = checked_tls(tls)
        current = None if files is None else CurrentTls(files)
        connection = Connection(address, retry=retry, transport=checked_transport(transport), token=source, tls=current)
        self._use(connection, Direct(connection) if direct else None, timeout_s, coding_of(codec))

    def _use(self, connection: Connection, direct: Direct | None, timeout_s: float, coding: Coding) -> None:
        self._timeout_s = timeout_s
        self._coding = coding
        self._connection = connection
        self._direct = direct
        self._calls: Connection | Direct = direct or connection
        self._reserves = Unanswered()
        self._enqueues = Enqueues(self._connection, self._direct)
        singles = SingleEnqueues(self._enqueues.singles, self._enqueues.begin_singles)
        self._single_enqueues = Coalescer(singles, _SHARED_TASKS_MAX, _SHARED_BYTES_MAX, singles.begin)

    @property
    def address(self) -> str:
        return self._connection.address

    def _own_way(self) -> OwnWay | None:
        """For a thread that makes calls by itself. Straight to the leaders there is none: each shard has its own."""
        return None if self._direct is not None else self._connection.own_way()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Closes the connection. Calls that are still running end with `ClientClosed`."""
        if self._direct is not None:
            await self._direct.close()
        await self._connection.close()
        await self._single_enqueues.drain()

    # ------------------------------------------------------------------------------------------ producers

    async def enqueue(self, task: NewTask, *, timeout_s: float | None = None) -> Accepted:
        """Hands over one task. When this returns, the task is durable. Calls made at the same time share a request."""
        task = self._coding.task(task)
        # A task that must not be repeated would take that from its neighbours, and a deadline of its own as well.
        if timeout_s is not None or task.request_id == "":
            return only(await self._enqueue_many([task], timeout_s))
        return await self._put_single(SingleEnqueue(task), self._timeout_s)

    async def _put_single(self, item: SingleEnqueue, left_s: float) -> Accepted:
        try:
            outcome = await self._single_enqueues.put(item, item.size_bytes, left_s)
        except TimeoutError:
            raise DeadlineExceeded(self.address, self._timeout_s) from None
        if isinstance(outcome, Rejected):
            raise at_place(outcome, 0)
        return outcome

    async def enqueue_many(
        self, tasks: Sequence[NewTask], *, timeout_s: float | None = None
    ) -> list[Accepted | Rejected]:
        """Hands over many tasks in one call: by far the cheapest way, up to 1,000 tasks or 4 MiB at a time.

        A task that no request can hold is refused in its place like one that the server refuses; the others are sent.

        >>> import asyncio
        >>> async def main() -> None:
        ...     async with AsyncClient() as client:
        ...         tasks = [NewTask("mail", "welcome", str(n).encode(), priority=n * 2**62) for n in range(3)]
        ...         for outcome in await client.enqueue_many(tasks):
        ...             print(f"refused: {outcome.field}" if isinstance(outcome, Rejected) else "accepted")
        >>> asyncio.run(main())
        accepted
        accepted
        refused: tasks[2].priority
        """
        return await self._enqueue_many(self._coding.tasks(tasks), timeout_s) if tasks else []

    async def _enqueue_many(self, tasks: Sequence[NewTask], timeout_s: float | None) -> list[Accepted | Rejected]:
        if not tasks:
            return []
        try:
            return await self._enqueues.until_answered(EnqueueBatch(tasks), call_limit_s(timeout_s, self._timeout_s))
        except InvalidArgument:
            misfits = _misfits(tasks)
            if not misfits:
                raise
        # Nothing was sent yet: what does not fit is refused by itself, and the others go without it.
        places = [place for place in range(len(tasks)) if place not in misfits]
        outcomes: dict[int, Accepted | Rejected] = dict(misfits)
        sent = await self._enqueue_many([tasks[place] for place in places], timeout_s)
        for place, outcome in zip(places, sent, strict=True):
            outcomes[place] = at_place(outcome, place) if isinstance(outcome, Rejected) else outcome
        return [outcomes[place] for place in range(len(tasks))]

    async def enqueue_run(
        self, task: NewTask, payloads: Sequence[bytes], *, timeout_s: float | None = None
    ) -> list[Accepted | Rejected]:
        """Hands over one task for each payload, all else being as in `task`: the same as `enqueue_many` with many such
        tasks, for those who have only payloads.

        >>> import asyncio
        >>> async def main() -> None:
        ...     async with AsyncClient() as client:
        ...         addresses = [b"ada@example.org", b"bob@example.org"]
        ...         outcomes = await client.enqueue_run(NewTask("mail", "welcome", priority=7), addresses)
        ...         print(["refused" if isinstance(outcome, Rejected) else "accepted" for outcome in outcomes])
        >>> asyncio.run(main())
        ['accepted', 'accepted']
        """
        batch = EnqueueBatch.of_payloads(task, self._coding.payloads(task, payloads))
        return (
            await self._enqueues.until_answered(batch, call_limit_s(timeout_s, self._timeout_s))
            if len(payloads)
            else []
        )

    # -------------------------------------------------------------------------------------------- workers

    async def reserve(
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
        """Claims up to `max_tasks` tasks, the queues tried in order, waiting up to `wait_ms` for the first task.

        `max_tasks_by_queue` limits single queues further: {"reports": 2} takes at most two of that queue.
        `lease_ms_by_type` has the types of tasks that are claimed for another time than `lease_ms`, 100 at most.
        An empty list means that there was none. Repeating a call whose answer was lost with its `claim_request_id`
        returns the claims it made; this method draws a new one unless it is given one.

        Tasks whose worker fell silent are suspects: they are claimed one at a time, by workers that hold nothing else.
        `empty_handed` says whether this worker does, here and at other shards; if it is not given, the server goes by
        what it has given to a worker of this name. Who says False may be asked to run dry: see `Claims`.
        `suspects_only` asks for a suspect or nothing.

        A shard that may have claimed and does not answer is waited for, for some seconds, before others are asked; the
        answer names it then (see `Claims`). `settles_later` says that this caller would rather hear at once that its
        call is unsettled. Either way it is settled with `held_only`: that claims nothing new, and returns what was
        claimed with this `claim_request_id`, by the shards in `held_at`, or by any if it is empty.
        """
        request = _wire.reserve_request(
            queues,
            max_tasks=max_tasks,
            max_tasks_by_queue=max_tasks_by_queue,
            lease_ms=lease_ms,
            lease_ms_by_type=lease_ms_by_type,
            wait_ms=wait_ms,
            claim_request_id=new_key() if claim_request_id is None else claim_request_id,
            worker=worker,
            empty_handed=empty_handed,
            suspects_only=suspects_only,
            settles_later=settles_later,
            held_only=held_only,
            held_at=held_at,
        )
        reply = await self._calls.call(
            RESERVE,
            request,
            wait_ms=request.wait_ms,
            timeout_s=call_limit_s(timeout_s, self._timeout_s),
            repeatable=bool(request.claim_request_id),
            attempt=self._reserves.begin(request.claim_request_id),
        )
        self._reserves.answered(request.claim_request_id)
        return RunClaims(reply.message, reply.sent_s, self._coding)

    async def ack(
        self,
        claim: Claim,
        *,
        result: bytes | None = None,
        follow_ups: Sequence[NewTask] = (),
        timeout_s: float | None = None,
    ) -> Acked:
        """Finishes a task, and hands over its follow-ups together with that or not at all."""
        return only(await self.ack_many([Ack(claim, result, follow_ups)], timeout_s=timeout_s))

    async def ack_many(self, items: Sequence[Claim | Ack], *, timeout_s: float | None = None) -> list[Acked | Rejected]:
        """Finishes many tasks: claims as they are, or an `Ack` where there is a result or a follow-up. With more than
        1,000 follow-ups in all these are several calls, one after the other; if one fails, do the same again."""
        if not items:
            return []
        items = self._coding.acks(items)
        timeout_s = call_limit_s(timeout_s, self._timeout_s)
        ends_s = time.monotonic() + timeout_s
        outcomes: list[Acked | Rejected] = []
        # An ack whose answer was lost is answered as the first time, so all of it can be repeated.
        for part in [AckBatch(items, part) for part in ack_parts(items)]:
            left_s = ends_s - time.monotonic()
            if left_s <= 0 and outcomes:
                raise DeadlineExceeded(self.address, timeout_s)
            try:
                outcomes += part.outcomes(await self._call(_ACK, part.request, left_s, repeatable=True))
            except InvalidArgument as error:
                raise part.named(error) from None
        return outcomes

    async def fail(
        self,
        claim: Claim,
        error: TaskError | None = None,
        *,
        retry_delay_ms: int | None = None,
        retry_at_ms: int | None = None,
        dead: bool = False,
        timeout_s: float | None = None,
    ) -> Failed:
        """Reports a failed attempt; the answer says whether there will be another. `retry_delay_ms` and `retry_at_ms`
        say when instead of the server's back-off; `dead` says that there should be none."""
        failure = Failure(claim, error or TaskError(), retry_delay_ms, dead, retry_at_ms)
        return only(await self.fail_many([failure], timeout_s=timeout_s))

    async def fail_many(self, items: Sequence[Failure], *, timeout_s: float | None = None) -> list[Failed | Rejected]:
        """Reports many failed attempts."""
        if not items:
            return []
        response = await self._call(_FAIL, _wire.fail_request(self._coding.failures(items)), timeout_s, repeatable=True)
        return _wire.fail_outcomes(response, len(items))

    async def extend(self, claim: Claim, lease_ms: int, *, timeout_s: float | None = None) -> Extended:
        """Prolongs a lease; the answer says whether the task is to be cancelled."""
        return only(await self.extend_many([Extension(claim, lease_ms)], timeout_s=timeout_s))

    async def extend_many(
        self, items: Sequence[Extension], *, timeout_s: float | None = None
    ) -> list[Extended | Rejected]:
        """Prolongs many leases."""
        if not items:
            return []
        timeout_s = call_limit_s(timeout_s, self._timeout_s)
        reply = await self._calls.call(_EXTEND, _wire.extend_request(items), timeout_s=timeout_s, repeatable=True)
        return _wire.extend_outcomes(reply.message, len(items), reply.sent_s)

    async def release(self, claim: Claim, *, delay_ms: int = 0, timeout_s: float | None = None) -> Released:
        """Hands a task back to its old place without spending an attempt; with `delay_ms` it is snoozed: it waits so
        long before it is ready again."""
        return only(await self.release_many([claim], delay_ms=delay_ms, timeout_s=timeout_s))

    async def release_many(
        self, claims: Sequence[Claim], *, delay_ms: int = 0, timeout_s: float | None = None
    ) -> list[Released | Rejected]:
        """Hands many tasks back."""
        if not claims:
            return []
        response = await self._call(_RELEASE, _wire.release_request(claims, delay_ms), timeout_s, repeatable=True)
        return _wire.release_outcomes(response, len(claims))

    # ------------------------------------------------------------------------------------ looking and acting

    async def cancel(self, task_id: str, *, timeout_s: float | None = None) -> Cancelled:
        """Cancels a task: a waiting one at once, a running one through its worker's next extend."""
        return only(await self.cancel_many([task_id], timeout_s=timeout_s))

    async def cancel_many(
        self, task_ids: Sequence[str], *, timeout_s: float | None = None
    ) -> list[Cancelled | Rejected]:
        """Cancels many tasks."""
        if not task_ids:
            return []
        response = await self._call(_CANCEL, _wire.cancel_request(task_ids), timeout_s, repeatable=True)
        return _wire.cancel_outcomes(response, len(task_ids))

    async def update_task(
        self,
        task_id: str,
        *,
        priority: int | None = None,
        run_at_ms: int | None = None,
        delay_ms: int | None = None,
        timeout_s: float | None = None,
    ) -> Updated:
        """Changes the priority of a waiting task, or when it may start; what is not given stays as it is. Raises
        `Conflict` if the task does not wait any more.

        >>> import asyncio
        >>> async def main() -> None:
        ...     async with AsyncClient() as client:
        ...         accepted = await client.enqueue(NewTask("mail", "welcome", delay_ms=3_600_000))
        ...         print((await client.update_task(accepted.task_id, priority=9, delay_ms=0)).state)
        >>> asyncio.run(main())
        READY
        """
        update = TaskUpdate(task_id, priority=priority, run_at_ms=run_at_ms, delay_ms=delay_ms)
        return only(await self.update_tasks([update], timeout_s=timeout_s))

    async def update_tasks(
        self, items: Sequence[TaskUpdate], *, timeout_s: float | None = None
    ) -> list[Updated | Rejected]:
        """The same for many tasks."""
        if not items:
            return []
        response = await self._call(_UPDATE, _wire.update_request(items), timeout_s, repeatable=True)
        return _wire.update_outcomes(response, len(items))

    async def get_task(self, task_id: str, *, timeout_s: float | None = None) -> TaskInfo:
        """All that the server knows about a task; raises `NotFound` if it knows none."""
        response = await self._call(_GET_TASK, _wire.get_task_request(task_id), timeout_s, repeatable=True)
        return self._coding.info(_wire.task_info(response))

    async def wait_task(self, task_id: str, *, timeout_s: float | None = None) -> TaskInfo:
        """Returns when the task has finished: succeeded, dead or cancelled. Raises `ResultTimeout` when `timeout_s` is
        over (None waits for ever), and `NotFound` if the server knows no such task.

        The wait goes on through lost connections, restarts and overload of the server. What the producer handed over
        and tracebacks are left out: `get_task` has them.
        """
        try:
            task = only(await self.wait_tasks([task_id], timeout_s=timeout_s))
        except _NO_ANSWER as error:
            if timeout_s is None or not self._connection.retries:
                raise
            raise ResultTimeout(task_id, timeout_s) from error
        if not task.state.is_final:
            raise ResultTimeout(task_id, timeout_s or 0.0)
        return task

    async def wait_tasks(self, task_ids: Sequence[str], *, timeout_s: float | None = None) -> list[TaskInfo | Rejected]:
        """Returns when all tasks have finished or `timeout_s` is over (None waits for ever): then some have not, as
        their `state` says. A task that the server does not know is a `NotFound` in its place. Any number of tasks.
        """
        ends_s = time.monotonic() + call_limit_s(timeout_s, math.inf)
        tasks: list[TaskInfo | Rejected] = []
        # One after the other, so that a long list does not take all the room that the server has for those who wait.
        checked = _wire.checked_task_ids(task_ids)
        for first in range(0, len(checked), WAIT_TASKS_MAX):
            tasks += await self._wait_tasks(checked[first : first + WAIT_TASKS_MAX], ends_s)
        return tasks

    async def _wait_tasks(self, task_ids: list[str], ends_s: float) -> list[TaskInfo | Rejected]:
        known: dict[str, TaskInfo | Rejected] = {}
        unfinished = task_ids
        while unfinished:
            try:
                omitted = await self._poll_tasks(unfinished, ends_s, known)
            except _NO_ANSWER:
                if not known or not self._connection.retries:
                    raise
                break  # the time is over, and what the tasks were when the server last answered is known
            while omitted:  # what did not fit into the answer is there to be asked for at once
                still_omitted = await self._poll_tasks(omitted, ends_s, known)
                if len(still_omitted) >= len(omitted):
                    raise UnexpectedAnswer("a result was left out that would have fitted", self.address)
                omitted = still_omitted
            if time.monotonic() >= ends_s:
                break
            unfinished = [task_id for task_id in unfinished if _is_unfinished(known[task_id])]
        return [known[task_id] for task_id in task_ids]

    async def _poll_tasks(self, task_ids: list[str], ends_s: float, known: dict[str, TaskInfo | Rejected]) -> list[str]:
        """Asks once for tasks, puts what they are into `known`, returns those whose results were left out."""
        reply = await self._calls.poll(
            _WAIT_TASKS,
            _wire.wait_tasks_request(task_ids),
            ends_s=ends_s,
            answer_s=self._timeout_s,
        )
        omitted = []
        for task_id, outcome in zip(task_ids, _wire.wait_outcomes(reply.message, len(task_ids)), strict=True):
            if isinstance(outcome, Rejected):
                known[task_id] = outcome
                continue
            task, is_omitted = outcome
            known[task_id] = self._coding.info(task)
            if is_omitted:
                omitted.append(task_id)
        return omitted


def _misfits(tasks: Sequence[NewTask]) -> dict[int, InvalidArgument]:
    """The tasks that no request can hold, by their places, and why."""
    found: dict[int, InvalidArgument] = {}
    for place, task in enumerate(tasks):
        try:
            _wire.enqueue_request([task])
        except InvalidArgument as refused:
            found[place] = at_place(refused, place)
    return found


def _is_unfinished(task: TaskInfo | Rejected) -> bool:
    return isinstance(task, TaskInfo) and not task.state.is_final
