"""What the commands ask the server. Each opens a client, asks, and closes it."""

import asyncio
import json
import signal
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Container, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NoReturn, Protocol, TypeVar

from holdfast.cli import connecting
from holdfast.cli.problems import usage
from holdfast.client import (
    Accepted,
    AsyncClient,
    Cancelled,
    ConnectionFailed,
    DeadLetterFilter,
    Discard,
    HoldfastError,
    NewTask,
    NodeReport,
    NotFound,
    QueueStats,
    Rejected,
    ResultTimeout,
    ShardHash,
    TaskFilter,
    TaskInfo,
    TaskUpdate,
    Transferred,
    Updated,
    WorkerInfo,
    WorkerState,
)

T = TypeVar("T")

BATCH_ITEMS_MAX = 500  # of one call; the server takes 1,000

_PAGE = 1_000  # what the server gives at most
_STATS_MAX = 100  # queues of one call
_COMPLETION_TIMEOUT_S = 0.5
SIGNAL_AGAIN_S = 0.5


def json_arguments(text: str) -> bytes:
    """The bytes of a JSON text as it was written, once it is known to be what a handler can be called with."""
    try:
        value = json.loads(text, parse_constant=_no_constant)
        data = text.strip().encode()
    except RecursionError:
        raise usage("Expected JSON, but it is nested too deeply.") from None
    except UnicodeError:
        raise usage("Expected JSON in UTF-8, but it is in another encoding.") from None
    except ValueError as error:
        raise usage(f"Expected JSON, but it is not: {error}.", "Quote it for the shell: '{\"id\": 1}'.") from None
    if not isinstance(value, list | dict):
        hint = "A single argument goes into an array: '[\"acme\"]'."
        raise usage("Expected a JSON array or object, the arguments of the handler, but it is neither.", hint)
    return data


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON number")


def enqueue(address: str, timeout_s: float, task: NewTask) -> Accepted:
    return ask(address, timeout_s, lambda client: client.enqueue(task))


def queue_stats(address: str, timeout_s: float, queues: Sequence[str]) -> list[QueueStats | Rejected]:
    """Of these queues, in their order. None are all: then without latencies if there are many."""

    async def question(client: AsyncClient) -> list[QueueStats | Rejected]:
        if queues:
            return [stats for batch in batches(queues, _STATS_MAX) for stats in await client.queue_stats_many(batch)]
        listed, _ = await all_queues(client)
        if not listed or len(listed) > _STATS_MAX:
            return list(listed)
        answers = await client.queue_stats_many([summary.queue for summary in listed])
        return [answer for answer in answers if isinstance(answer, QueueStats)]

    return ask(address, timeout_s, question)


def waiting_tasks(address: str, timeout_s: float, queue: str) -> int:
    """How many tasks of the queue could be claimed now or later; `NotFound` if there is no such queue."""
    stats = ask(address, timeout_s, lambda client: client.queue_stats(queue))
    return stats.ready + stats.delayed + stats.retrying


@dataclass(slots=True)
class PurgeProgress:
    """How far it got; filled in as it goes, so that it is right also when it ends early."""

    tasks: int = 0


def purge_queue(
    address: str, timeout_s: float, queue: str, purge: PurgeProgress, advance: Callable[[int], None], *, dry_run: bool
) -> None:
    """`advance` hears how many each page had."""

    def progress(tasks: int) -> None:
        advance(tasks - purge.tasks)
        purge.tasks = tasks

    async def question(client: AsyncClient) -> None:
        purge.tasks = await client.purge_queue(queue, dry_run=dry_run, progress=progress)

    ask(address, timeout_s, question, retry=True)


def list_workers(address: str, timeout_s: float, limit: int) -> tuple[list[WorkerInfo], bool, list[int]]:
    """Those who claim tasks, by name, whether there are more, and which shards did not answer."""

    async def question(client: AsyncClient) -> tuple[list[WorkerInfo], bool, list[int]]:
        workers, token, missing = await read_pages(
            lambda size, token: client.list_workers(page_size=size, page_token=token, partial=True),
            lambda page: page.workers,
            limit,
        )
        return workers, bool(token), missing

    return ask(address, timeout_s, question)


def signal_worker(
    address: str, timeout_s: float, worker: str, desired: WorkerState, until: Container[WorkerState], wait_s: float
) -> bool:
    """Asks again and again until the worker says that it is so, or the wait is over; whether it has. `NotFound` if
    there is no such worker at first; one that was asked to stop may be gone soon."""

    async def question(client: AsyncClient) -> bool:
        ends_s = time.monotonic() + wait_s
        state = await client.signal_worker(worker, desired)
        while state not in until:
            if time.monotonic() >= ends_s:
                return False
            await asyncio.sleep(SIGNAL_AGAIN_S)
            try:
                state = await client.signal_worker(worker, desired)
            except NotFound:
                if desired is WorkerState.STOPPING:
                    return True
                raise
        return True

    return ask(address, timeout_s, question, retry=True)


def list_queues(address: str, timeout_s: float) -> tuple[list[QueueStats], list[int]]:
    """All queues, by name, and the shards that did not answer: what they have is not in the numbers."""
    return ask(address, timeout_s, lambda client: all_queues(client, partial=True))


async def all_queues(
    client: AsyncClient, *, partial: bool = False, page_s: float | None = None
) -> tuple[list[QueueStats], list[int]]:
    """`page_s`: how long each page may take, if that is less than the client's time."""
    queues, _, missing = await read_pages(
        lambda size, token: client.list_queues(page_size=size, page_token=token, partial=partial, timeout_s=page_s),
        lambda page: page.queues,
    )
    return queues, missing


def queue_names(address: str, beginning: str) -> list[str]:
    """For completion: quick, and silent about everything that goes wrong."""
    try:
        queues, _ = list_queues(address, _COMPLETION_TIMEOUT_S)
        return [summary.queue for summary in queues if summary.queue.startswith(beginning)]
    except HoldfastError:
        return []


def get_task(address: str, timeout_s: float, task_id: str) -> TaskInfo:
    return ask(address, timeout_s, lambda client: client.get_task(task_id))


def wait_task(address: str, timeout_s: float, task_id: str, limit_s: float | None) -> TaskInfo:
    """The task once it has finished; `ResultTimeout` if that takes longer than `limit_s`."""
    began_s = time.monotonic()
    # The wait itself goes on through everything; that the server and the task are there at all is found out at once.
    info = get_task(address, timeout_s, task_id)
    if info.state.is_final:
        return info

    async def question(client: AsyncClient) -> TaskInfo:
        left_s = None if limit_s is None else max(0.0, began_s + limit_s - time.monotonic())
        try:
            return await client.wait_task(task_id, timeout_s=left_s)
        except ResultTimeout:
            raise ResultTimeout(task_id, limit_s or 0.0) from None

    return ask(address, timeout_s, question, retry=True)


def cancel(address: str, timeout_s: float, task_ids: Sequence[str]) -> list[Cancelled | Rejected]:
    async def question(client: AsyncClient) -> list[Cancelled | Rejected]:
        return [outcome for batch in batches(task_ids, BATCH_ITEMS_MAX) for outcome in await client.cancel_many(batch)]

    return ask(address, timeout_s, question)


def update(address: str, timeout_s: float, updates: Sequence[TaskUpdate]) -> list[Updated | Rejected]:
    async def question(client: AsyncClient) -> list[Updated | Rejected]:
        return [outcome for batch in batches(updates, BATCH_ITEMS_MAX) for outcome in await client.update_tasks(batch)]

    return ask(address, timeout_s, question)


def list_dead_letters(
    address: str, timeout_s: float, queue: str, where: DeadLetterFilter, limit: int
) -> tuple[list[TaskInfo], bool]:
    """The oldest dead letters of a queue that fit, and whether there are more. `NotFound` if there is no such queue."""

    async def question(client: AsyncClient) -> tuple[list[TaskInfo], bool]:
        letters, token, _ = await read_pages(
            lambda size, token: client.list_dead_letters(queue, where=where, page_size=size, page_token=token),
            lambda page: page.tasks,
            limit,
        )
        if not letters:
            await client.queue_stats(queue)  # the list of an unknown queue is merely empty
        return letters, bool(token)

    return ask(address, timeout_s, question)


def list_tasks(
    address: str, timeout_s: float, queue: str, where: TaskFilter, limit: int, after: str = ""
) -> tuple[list[TaskInfo], str, list[int]]:
    """The first tasks that fit, or those that follow a token, the token of what follows them, if there may be more, and
    which shards did not answer. `NotFound` if there is no such queue."""

    async def question(client: AsyncClient) -> tuple[list[TaskInfo], str, list[int]]:
        tasks, token, missing = await read_pages(
            lambda size, token: client.list_tasks(queue, where=where, page_size=size, page_token=token, partial=True),
            lambda page: page.tasks,
            limit,
            after,
        )
        if queue and not tasks and not missing:
            await client.queue_stats(queue)  # the list of an unknown queue is merely empty
        return tasks, token, missing

    return ask(address, timeout_s, question)


def get_dead_letter(address: str, timeout_s: float, task_id: str) -> TaskInfo:
    return ask(address, timeout_s, lambda client: client.get_dead_letter(task_id))


def list_discards(address: str, timeout_s: float, queue: str, limit: int) -> tuple[list[Discard], bool]:
    """The oldest records of discarded letters, and whether there are more. An empty queue: of all."""

    async def question(client: AsyncClient) -> tuple[list[Discard], bool]:
        discards, token, _ = await read_pages(
            lambda size, token: client.list_discards(queue, page_size=size, page_token=token),
            lambda page: page.discards,
            limit,
        )
        return discards, bool(token)

    return ask(address, timeout_s, question)


def describe_nodes(address: str, timeout_s: float) -> list[NodeReport]:
    """What every node of the cluster says; raises if not one of them answers."""
    reports = ask(address, timeout_s, lambda client: client.describe_nodes())
    if all(report.node is None for report in reports):
        raise nobody(reports)
    return reports


def nobody(reports: Sequence[NodeReport]) -> HoldfastError:
    """How it is told that no node answers."""
    errors = [(report.address, report.error) for report in reports if report.error is not None]
    if len(errors) == 1:
        return errors[0][1]
    causes = [
        f"{address}: {error.cause if isinstance(error, ConnectionFailed) else error}" for address, error in errors
    ]
    return ConnectionFailed(", ".join(address for address, _ in errors), "; ".join(causes))


def shards_of(reports: Sequence[NodeReport]) -> list[int]:
    """The numbers of all shards that some node has a replica of."""
    replicas = (replica for report in reports if report.node is not None for replica in report.node.replicas)
    return sorted({replica.shard for replica in replicas})


def hash_shard(address: str, timeout_s: float, shard: int) -> ShardHash:
    """Waits for a leader, if there is none at the moment; call it only when it is known that nodes answer."""
    return ask(address, timeout_s, lambda client: client.hash_shard(shard), retry=True)


def transfer(address: str, timeout_s: float, shard: int, to: str) -> Transferred:
    return ask(address, timeout_s, lambda client: client.transfer(shard, to))


class _Page(Protocol):
    @property
    def next_page_token(self) -> str: ...


PageT = TypeVar("PageT", bound=_Page)


async def read_pages(
    fetch: Callable[[int, str], Awaitable[PageT]],
    items_of: Callable[[PageT], Sequence[T]],
    limit: int = sys.maxsize,
    token: str = "",
) -> tuple[list[T], str, list[int]]:
    """The first items of a list, or those from a token on; the token of what follows, empty if nothing does; and which
    shards did not answer, where pages say that. `fetch` gets how many items a page is to have at most, and the token
    of it."""
    items: list[T] = []
    missing: set[int] = set()
    while len(items) < limit:
        page = await fetch(min(_PAGE, limit - len(items)), token)
        items += items_of(page)
        missing.update(getattr(page, "missing_shards", ()))
        token = page.next_page_token
        if not token:
            break
    return items, token, sorted(missing)


def is_cluster(address: str) -> bool:
    return "," in address


def batches(items: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    return (items[start : start + size] for start in range(0, len(items), size))


def ask(address: str, timeout_s: float, question: Callable[[AsyncClient], Awaitable[T]], *, retry: bool = False) -> T:
    """Unless told otherwise it says at once that nobody answers, because a person is waiting. A cluster gets the time
    that an election takes."""

    async def with_client() -> T:
        repeats = retry or is_cluster(address)
        async with AsyncClient(address, timeout_s=timeout_s, retry=repeats, tls=connecting.tls()) as client:
            return await question(client)

    return run_async(with_client)


def run_async(make: Callable[[], Coroutine[None, None, T]]) -> T:
    """As asyncio.run, but a Ctrl-C while the event loop is set up or taken down waits until that is done.

    Otherwise half a loop would be left, and complain about it on standard error.
    """
    runner = asyncio.Runner()
    try:
        with _interrupts_put_off():
            runner.get_loop()
        return runner.run(make())
    finally:
        with _interrupts_put_off():
            runner.close()


@contextmanager
def _interrupts_put_off() -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        yield  # signals go to the main thread
        return
    came: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, _frame: came.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.SIG_DFL if before is None else before)
    if came:
        raise KeyboardInterrupt
