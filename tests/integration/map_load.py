"""Producers and workers on a cluster, while something happens to it, and what must hold afterwards.

Every task carries a payload of its own, so that a task that was made twice is seen whatever its ids are.
"""

import itertools
import random
import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

from holdfast.client import (
    Accepted,
    Acked,
    ClaimedTask,
    Client,
    HoldfastError,
    NewTask,
    OutcomeUnknown,
    TaskInfo,
    TaskState,
    Tls,
)
from holdfast.routing.homes import home_shard
from tests.integration.server import DEADLINE_S, wait_until
from tests.long import IS_LONG

BATCH = 4
PAUSE_S = 0.02 if IS_LONG else 0.05  # between calls: the machine is to have time for the cluster
LEASE_MS = 10_000  # also of claims whose answer was lost: that long they are missing


def queues_of_all_shards(prefix: str, shards: int) -> list[str]:
    """One at home on each shard."""
    homes = {home_shard(f"{prefix}{n}", shards): f"{prefix}{n}" for n in range(50 * shards)}
    return [homes[shard] for shard in range(shards)]


def claim_all(client: Client, queues: Sequence[str], count: int) -> list[ClaimedTask]:
    """So many tasks, and one look for more."""
    claims: list[ClaimedTask] = []

    def poll() -> bool:
        claims.extend(client.reserve(queues, max_tasks=count, worker="w", wait_ms=1000))
        return len(claims) >= count

    wait_until(poll, f"{count} tasks")
    return [*claims, *client.reserve(queues, max_tasks=count, worker="w")]


class Loaded(Protocol):
    """A cluster of whichever kind."""

    tls: Tls | None

    @property
    def address(self) -> str: ...

    def check_hashes(self) -> None: ...


@dataclass
class MapLoad:
    """What was sent, accepted, claimed and finished. Payloads are the names of tasks here."""

    queues: Sequence[str]
    accepted: dict[str, str] = field(default_factory=dict)  # payload to task id
    reported: list[tuple[str, str]] = field(default_factory=list)  # the same in order: can be read while it grows
    claimed: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))  # payload to task ids
    acks: Counter[str] = field(default_factory=Counter)  # by task id: how often an ack was accepted
    failures: list[BaseException] = field(default_factory=list)
    working: threading.Event = field(default_factory=threading.Event)  # workers rest while it is not set
    _used: list[NewTask] = field(default_factory=list)  # accepted with request ids of their own
    _numbers: Iterator[int] = field(default_factory=itertools.count)
    _ends: threading.Event = field(default_factory=threading.Event)

    # --- work -------------------------------------------------------------------------------------------------

    def produce(self, client: Client, kind: str) -> None:
        """`kind`: "own" request ids, of which one in four was used before; "automatic" ones; or "none"."""
        chance = random.Random(0)
        while not self._ends.wait(PAUSE_S):
            queue = self.queues[next(self._numbers) % len(self.queues)]
            tasks = [self._task(queue, kind) for _ in range(BATCH)]
            if kind == "own" and self._used:
                tasks[-1] = chance.choice(self._used)
            try:
                outcomes = client.enqueue_many(tasks)
            except OutcomeUnknown:
                if kind != "none":
                    raise
                continue  # a leader was replaced meanwhile, and without an id nothing can be sent again
            for task, outcome in zip(tasks, outcomes, strict=True):
                if isinstance(outcome, Accepted):
                    self._take(task, outcome)
                elif kind != "none" or not isinstance(outcome, OutcomeUnknown):
                    self.failures.append(outcome)

    def _task(self, queue: str, kind: str) -> NewTask:
        payload = f"{kind}-{next(self._numbers)}"
        request_id = {"own": payload, "automatic": None, "none": ""}[kind]
        return NewTask(queue, "t", payload.encode(), request_id=request_id)

    def _take(self, task: NewTask, outcome: Accepted) -> None:
        payload = task.payload.decode()
        first = self.accepted.setdefault(payload, outcome.task_id)
        if not outcome.duplicate:
            self.reported.append((payload, outcome.task_id))
        if first != outcome.task_id:
            self.failures.append(AssertionError(f"{payload} is {first} and {outcome.task_id}"))
        if task.request_id and not outcome.duplicate:
            self._used.append(task)

    def work(self, client: Client) -> None:
        while not self._ends.wait(PAUSE_S):
            if self.working.wait(PAUSE_S):
                self.finish_some(client, wait_ms=200)

    def finish_some(self, client: Client, wait_ms: int = 0) -> int:
        """Claims some and acks them; how many it got."""
        claims = client.reserve(self.queues, max_tasks=20, wait_ms=wait_ms, worker="w", lease_ms=LEASE_MS)
        for claim in claims:
            self.claimed[claim.payload.decode()].add(claim.task_id)
        for claim, outcome in zip(claims, client.ack_many(claims) if claims else [], strict=True):
            # A lease may have run out while nobody led: then the task is claimed and finished once more.
            if isinstance(outcome, Acked):
                self.acks[claim.task_id] += 1
        return len(claims)

    # --- waits ------------------------------------------------------------------------------------------------

    def wait_for(self, more: int, *, finished: bool = True) -> None:
        """Returns after this many more tasks were accepted, and as many finished."""
        sent, done = len(self.accepted) + more, len(self.acks) + more * finished
        wait_until(
            lambda: self.failures or (len(self.accepted) >= sent and len(self.acks) >= done),
            f"{more} more tasks to be accepted and finished",
            deadline_s=2 * DEADLINE_S,
        )
        assert self.failures == [], self.failures

    def stop(self) -> None:
        self._ends.set()
        self.working.set()

    # --- what must hold ---------------------------------------------------------------------------------------

    def check(self, cluster: Loaded) -> None:
        """Nothing accepted is lost, nothing was made twice, all was finished, and replicas hold the same."""
        assert self.failures == [], self.failures
        assert len(self.accepted) > 20
        with Client(cluster.address, timeout_s=DEADLINE_S, tls=cluster.tls) as client:
            wait_until(lambda: self._is_finished(client), "all tasks to be finished", deadline_s=2 * DEADLINE_S)
            ids = list(self.accepted.values())
            found = [
                one
                for index in range(0, len(ids), 500)
                for one in client.wait_tasks(ids[index : index + 500], timeout_s=5)
            ]
        lost = [one for one in found if not isinstance(one, TaskInfo) or one.state is not TaskState.SUCCEEDED]
        assert lost == []
        assert len(set(ids)) == len(ids), "two payloads are one task"
        twice = {payload: ids for payload, ids in self.claimed.items() if len(ids) > 1}
        assert twice == {}, "made twice"
        assert set(self.accepted) <= set(self.claimed), "never handed out"
        assert [task_id for task_id, acks in self.acks.items() if acks > 1] == [], "finished twice"
        cluster.check_hashes()

    def _is_finished(self, client: Client) -> bool:
        while self.finish_some(client):
            pass
        stats = [client.queue_stats(queue) for queue in self.queues]
        return not any(one.ready + one.claimed + one.delayed + one.retrying for one in stats)


@contextmanager
def load_on(
    cluster: Loaded, queues: Sequence[str], *, kinds: Sequence[str] = ("own",), direct_through: str = "",
    has_map: bool = True,
) -> Iterator[MapLoad]:  # fmt: skip
    """A producer of each kind and a worker through the routers, and the same again straight to the brokers; from the
    first accepted tasks on. `direct_through`: who tells the latter where the brokers are, if not the routers. Without a
    map there are no routers, and one client is enough."""
    load = MapLoad(queues)
    load.working.set()
    clients = [Client(cluster.address, timeout_s=DEADLINE_S, tls=cluster.tls)]
    if has_map:
        address = direct_through or cluster.address
        clients.append(Client(address, timeout_s=DEADLINE_S, direct=True, tls=cluster.tls))
    works = [partial(load.work, client) for client in clients]
    works += [partial(load.produce, client, kind) for client in clients for kind in kinds]
    threads = [threading.Thread(target=_guarded, args=(load, work), daemon=True) for work in works]
    for thread in threads:
        thread.start()
    try:
        load.wait_for(len(clients) * BATCH * len(kinds))
        yield load
    finally:
        load.stop()
        for thread in threads:
            thread.join()
        for client in clients:
            client.close()


def _guarded(load: MapLoad, work: Callable[[], None]) -> None:
    try:
        work()
    except HoldfastError as error:
        load.failures.append(error)
