"""What the commands about clusters ask. Each opens a client, asks, and closes it."""

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from holdfast.cli import calls, connecting
from holdfast.client import (
    AsyncClient,
    ClusterInfo,
    Conflict,
    ConnectionFailed,
    DeadlineExceeded,
    HandoverProgress,
    HoldfastError,
    MoveWish,
    NodeReport,
    NotFound,
    Plan,
    QueuePolicy,
    QueueSettings,
    QueueStats,
    Rebalancing,
    Rejected,
    Unavailable,
    UnexpectedAnswer,
)

NO_CLUSTER = "NO_CLUSTER"
NOT_ENOUGH_NODES = "NOT_ENOUGH_NODES"

ANSWER_S = 1.0  # of a node that is well: whoever looks at a cluster wants to see at once which is not
_INIT_PAUSE_S = 0.3
_SHARD_FIELD = "holdfast-shard"


@dataclass(frozen=True, slots=True)
class Depth:
    """How many tasks all queues have together."""

    queues: int
    ready: int
    claimed: int
    delayed: int
    retrying: int
    dead: int
    missing_shards: tuple[int, ...] = ()  # that did not answer: their tasks are not among these

    @property
    def unfinished(self) -> int:
        return self.ready + self.claimed + self.delayed + self.retrying


@dataclass(frozen=True, slots=True)
class Overview:
    """A cluster on one screen."""

    info: ClusterInfo
    reports: tuple[NodeReport, ...]  # what the nodes say; empty if none can be asked from here
    depth: Depth | None  # None if it could not be counted
    depth_error: HoldfastError | None = None  # why not; None if only a router could, and a broker was asked

    @property
    def silent(self) -> frozenset[str]:
        """Nodes that hold their lease and do not answer: they may have died a moment ago. None if no node at all can be
        reached from here."""
        if all(report.node is None for report in self.reports):
            return frozenset()
        alive = {node.name for node in self.info.nodes if node.is_alive}
        return frozenset(report.name for report in self.reports if report.node is None and report.name in alive)

    @property
    def has_lost_a_node(self) -> bool:
        """That is enough for shards to be without a leader."""
        return bool(self.silent) or any(node.replicas and not node.is_alive for node in self.info.nodes)

    @property
    def answering(self) -> frozenset[str]:
        """Nodes that answered just now, whatever is known of their leases."""
        return frozenset(report.name for report in self.reports if report.node is not None)


def describe(address: str, timeout_s: float) -> ClusterInfo:
    return calls.ask(address, timeout_s, lambda client: client.describe_cluster())


def init(
    address: str, timeout_s: float, shards: int, replication: int, wait_s: float, on_wait: Callable[[str], None]
) -> tuple[str, bool]:
    """The id of the cluster, and whether it was there before. Waits so long for servers to answer and for enough
    nodes."""

    async def question(client: AsyncClient) -> tuple[str, bool]:
        before = await client.describe_cluster()
        return await client.init_cluster(shards, replication=replication), bool(before.cluster_id)

    ends_s = time.monotonic() + wait_s
    while True:
        try:
            return calls.ask(address, timeout_s, question)
        except (Rejected, ConnectionFailed, DeadlineExceeded) as error:
            may_pass = not isinstance(error, Rejected) or error.reason == NOT_ENOUGH_NODES or error.retry_after_ms > 0
            if not may_pass or time.monotonic() >= ends_s:
                raise
            on_wait(str(error))
        time.sleep(_INIT_PAUSE_S)


def overview(address: str, timeout_s: float) -> Overview:
    async def question(client: AsyncClient) -> Overview:
        info = await client.describe_cluster()
        if not info.cluster_id:
            return Overview(info, (), None)
        answer_s = min(timeout_s, ANSWER_S)
        counted, reports = await asyncio.gather(_stats(client, answer_s), _reports_of(info, answer_s))
        seen = Overview(info, tuple(reports), None)
        if not _is_whole(counted) and not seen.has_lost_a_node:
            counted = await _stats(client, timeout_s)
        if isinstance(counted, HoldfastError):
            return replace(seen, depth_error=None if _is_for_routers(counted) else counted)
        return replace(seen, depth=depth_of(*counted))

    return calls.ask(address, timeout_s, question)


_Counted = tuple[list[QueueStats], list[int]] | HoldfastError


async def _stats(client: AsyncClient, page_s: float) -> _Counted:
    """Who wants to see that a node is lost does not wait for shards that have lost their leader with it."""
    try:
        return await calls.all_queues(client, partial=True, page_s=page_s)
    except HoldfastError as error:
        return error


def _is_whole(counted: _Counted) -> bool:
    return not counted[1] if isinstance(counted, tuple) else _is_for_routers(counted)


def _is_for_routers(error: HoldfastError) -> bool:
    """A broker of a cluster with several shards wants to be told which one is meant."""
    return isinstance(error, Rejected) and (error.reason, error.field) == ("MISSING_FIELD", _SHARD_FIELD)


def depth_of(stats: Sequence[QueueStats], missing: Sequence[int] = ()) -> Depth:
    return Depth(
        queues=len(stats),
        ready=sum(queue.ready for queue in stats),
        claimed=sum(queue.claimed for queue in stats),
        delayed=sum(queue.delayed for queue in stats),
        retrying=sum(queue.retrying for queue in stats),
        dead=sum(queue.dead for queue in stats),
        missing_shards=tuple(missing),
    )


async def _reports_of(info: ClusterInfo, timeout_s: float) -> list[NodeReport]:
    """What the nodes themselves say, if they can be reached from here: routers may be all that can. A node that is
    gone and has nothing is not missed."""
    addresses = [node.address for node in info.nodes if node.address and (node.is_alive or node.replicas)]
    if not addresses:
        return []
    async with AsyncClient(",".join(addresses), timeout_s=timeout_s, retry=False, tls=connecting.tls()) as nodes:
        reports = await nodes.describe_nodes()
    known = {node.name for node in info.nodes if node.is_alive or node.replicas}
    named = {node.address: node.name for node in info.nodes}
    reports = [
        report if report.name else NodeReport(named.get(report.address, ""), report.address, report.node, report.error)
        for report in reports
    ]
    return [report for report in reports if report.name in known]


def replicas(address: str, timeout_s: float) -> tuple[ClusterInfo | None, list[NodeReport]]:
    """The map, if there is one, and what every node says; raises if not one of them answers."""

    async def question(client: AsyncClient) -> tuple[ClusterInfo | None, list[NodeReport]]:
        info, reports = await asyncio.gather(map_if_any(client, timeout_s), client.describe_nodes())
        if info is not None:
            return info, await _reports_of(info, timeout_s)
        return None, reports

    info, reports = calls.ask(address, timeout_s, question)
    if all(report.node is None for report in reports):
        raise calls.nobody(reports)
    return info, reports


async def map_if_any(client: AsyncClient, timeout_s: float) -> ClusterInfo | None:
    """None for nodes that have no etcd, or are of a version that knew none. Who does not answer is told otherwise."""
    try:
        return await client.describe_cluster(timeout_s=timeout_s)
    except Conflict as error:
        if error.reason == NO_CLUSTER:
            return None
        raise
    except (UnexpectedAnswer, ConnectionFailed, DeadlineExceeded, Unavailable):
        return None


def drain(address: str, timeout_s: float, node: str, *, is_on: bool) -> None:
    calls.ask(address, timeout_s, lambda client: client.drain_node(node, drain=is_on))


def hand_over(address: str, timeout_s: float, node: str, *, undo: bool = False) -> HandoverProgress:
    return calls.ask(address, timeout_s, lambda client: client.hand_over_node(node, undo=undo))


def remove(address: str, timeout_s: float, node: str) -> None:
    calls.ask(address, timeout_s, lambda client: client.remove_node(node))


def make_plan(address: str, timeout_s: float, *, leaders: bool = False, move: MoveWish | None = None) -> Plan:
    return calls.ask(address, timeout_s, lambda client: client.make_plan(leaders=leaders, move=move))


def start_plan(address: str, timeout_s: float, plan: Plan) -> Plan:
    return calls.ask(address, timeout_s, lambda client: client.start_plan(plan))


def cancel_plan(address: str, timeout_s: float, plan_id: str) -> None:
    calls.ask(address, timeout_s, lambda client: client.cancel_plan(plan_id))


def set_rebalancing(address: str, timeout_s: float, *, pause: bool, why: str = "") -> Rebalancing:
    return calls.ask(address, timeout_s, lambda client: client.set_rebalancing(pause=pause, why=why))


def queue_settings(address: str, timeout_s: float, queue: str) -> tuple[QueueSettings, ClusterInfo | None]:
    """With the map that they are from, if there is one."""

    async def question(client: AsyncClient) -> tuple[QueueSettings, ClusterInfo | None]:
        return await client.queue_settings(queue), await map_if_any(client, timeout_s)

    return calls.ask(address, timeout_s, question)


def set_queue(
    address: str, timeout_s: float, queue: str, policy: QueuePolicy, clear: Sequence[str], *,
    spread: int | None, pin: Sequence[int] | None, home: bool,
) -> QueueSettings:  # fmt: skip
    return calls.ask(
        address,
        timeout_s,
        lambda client: client.set_queue(queue, policy=policy, clear=clear, spread=spread, pin=pin, home=home),
    )


def pause_queue(address: str, timeout_s: float, queue: str, *, paused: bool) -> tuple[QueueSettings, bool]:
    """The settings after it, and whether the queue has ever had a task: if not, its name may be wrong."""

    async def question(client: AsyncClient) -> tuple[QueueSettings, bool]:
        settings = await (client.pause_queue(queue) if paused else client.resume_queue(queue))
        try:
            await client.queue_stats(queue)
        except NotFound:
            return settings, False
        except HoldfastError:
            pass  # it is paused, which is what was asked for
        return settings, True

    return calls.ask(address, timeout_s, question)
