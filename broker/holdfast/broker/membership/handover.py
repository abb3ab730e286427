"""A node that is about to be stopped: it hands over what it leads, and says when it may go.

Whoever wants to stop it asks again and again (`ask`); two minutes after the last time it takes all back by itself.
That it was asked, and that it may go, stands in its own record in the map: other nodes hand nothing over to it, and let
nobody go by counting on it. The rules are in cluster/admin/handovers.py.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Final, Protocol

from holdfast.broker.cluster_view.map_view import MapClusterView
from holdfast.broker.peers.identities import identity_of, name_of
from holdfast.broker.replica.host import Host
from holdfast.broker.replica.replica import Replica
from holdfast.broker.replica.successors import caught_up
from holdfast.cluster.admin.handovers import HandoverView, NodeSight, ShardSight, view_handover
from holdfast.cluster.etcd.api import EtcdError, Unchanged
from holdfast.cluster.map.records import Handover, NodeRecord
from holdfast.cluster.map.store import MapStore
from holdfast.common.service import end_tasks
from holdfast.proto.v1 import shards_pb2 as pb
from holdfast.raft.library import LEADER
from holdfast.serving.logs import get_logger
from holdfast.serving.refusals import etcd_unavailable

HOLD_SECONDS: Final = 120.0  # after it was last asked
ASK_SECONDS: Final = 1.0  # another node
ANSWER_SECONDS: Final = 5.0  # whoever asked
AGAIN_SECONDS: Final = 1.0

_log = get_logger(__name__)


class AskNode(Protocol):
    """What another node says of itself; None if it does not answer."""

    async def __call__(self, node: str, timeout_s: float) -> pb.DescribeNodeResponse | None: ...


@dataclass(slots=True)
class OwnRecord:
    """What this node registers in the map, now and whenever it has lost its lease."""

    record: NodeRecord | None = None  # until it is known where the node listens


class NodeHandover:
    """Of this node. `run` beside `ask`."""

    def __init__(
        self,
        host: Host,
        store: MapStore,
        cluster_view: MapClusterView,
        own: OwnRecord,
        ask_node: AskNode,
        *,
        now_s: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
    ) -> None:
        self._host = host
        self._store = store
        self._cluster_view = cluster_view
        self._own = own
        self._ask_node = ask_node
        self._now_s = now_s
        self._sleep = sleep
        self._ends_s = 0.0
        self._asked = asyncio.Event()
        self._polling: asyncio.Task[HandoverView] | None = None

    async def ask(self) -> HandoverView:
        """Hands over what can be, and tells whether the node may stop now."""
        self._ends_s = self._now_s() + HOLD_SECONDS
        self._asked.set()
        self._host.is_handing_over = True
        if self._own.record is not None and self._own.record.handover is Handover.NONE:
            self._set(Handover.ASKED)
            _log.info("handover_asked", leads=len(self._led()))
        if self._polling is None or self._polling.done():
            self._polling = asyncio.create_task(self._poll(), name="handover")
            self._polling.add_done_callback(_seen)
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                return await asyncio.shield(self._polling)
        except TimeoutError:
            led = self._led()
            return HandoverView(len(led), {replica.number: "it is being handed over" for replica in led})

    async def undo(self) -> None:
        """The node stays, and may lead again."""
        self._asked.clear()
        self._host.is_handing_over = False
        if self._polling is not None:
            await end_tasks([self._polling])
        if self._set(Handover.NONE):
            _log.info("handover_taken_back")
        if self._own.record is not None and not await self._store.note_handover(self._own.record):
            raise etcd_unavailable("this node is not registered at the moment")

    async def run(self) -> None:
        """Takes it back when nobody asks any more. A node that stops stays let go to its end."""
        while True:
            await self._asked.wait()
            await self._sleep(max(AGAIN_SECONDS, self._ends_s - self._now_s()))
            if self._now_s() < self._ends_s or self._host.is_stopping:
                continue  # it was asked again meanwhile, or is on its way out
            try:
                if self._asked.is_set():
                    await self.undo()
            except Exception as error:  # noqa: BLE001 - whatever it is, it is tried again
                _log.warning("handover_not_taken_back", error=str(error))
                self._asked.set()

    # --- looks ------------------------------------------------------------------------------------------------

    async def _poll(self) -> HandoverView:
        if self._own.record is None or not await self._store.note_handover(self._own.record):
            raise etcd_unavailable("this node is not registered at the moment")
        await asyncio.gather(*map(self._host.hand_over, self._led()))
        view, turn, nodes = await self._view()
        if view.led and len(view.led) == len(view.held_back) and await self._hand_over_at_need(view, nodes):
            view, turn, nodes = await self._view()
        if not view.may_stop or self._own.record.handover is Handover.GRANTED:
            return view
        return await self._take_turn(view, turn)

    async def _view(self) -> tuple[HandoverView, Unchanged, Mapping[str, NodeRecord]]:
        turn = await self._store.read_turn()  # before anything that is counted on
        nodes = await self._store.read_nodes()
        answers = await self._answers(name for name in self._fellows() if name in nodes)
        return view_handover(self._host.me, list(self._sights(answers)), nodes, _sights_of(answers)), turn, nodes

    async def _hand_over_at_need(self, view: HandoverView, nodes: Mapping[str, NodeRecord]) -> bool:
        """Nothing but what it leads keeps this node here, and nobody who stays can take it. So others who are to be
        stopped do, but only those whose names come later: otherwise they would hand it back, and nobody could go."""
        waiting = {
            node.identity
            for node in nodes.values()
            if node.handover is Handover.ASKED and node.name > name_of(self._host.me)
        }
        replicas = [self._host.replicas[shard] for shard in view.led if shard in self._host.replicas]
        able = [replica for replica in replicas if waiting & set(replica.raft.configuration.voters)]
        done = await asyncio.gather(*(self._host.hand_over(shard, waiting) for shard in able))
        return len(done) == len(view.led) and all(done)

    async def _take_turn(self, view: HandoverView, turn: Unchanged) -> HandoverView:
        self._set(Handover.GRANTED)  # first: it is on the safe side to be thought of as gone
        try:
            is_granted = self._own.record is not None and await self._store.note_handover(self._own.record, turn)
        except EtcdError:
            self._set(Handover.ASKED)
            raise
        if is_granted:
            _log.info("handover_granted", single=list(view.single))
            return view
        self._set(Handover.ASKED)
        voted = (replica.number for replica in self._host.replicas.values() if self._votes(replica))
        return replace(view, may_stop=False, held_back=dict.fromkeys(voted, "another node was let go at this moment"))

    def _set(self, handover: Handover) -> bool:
        """In the record that is registered; False if it was so already."""
        before = self._own.record
        if before is None or before.handover is handover:
            return False
        self._own.record = replace(before, handover=handover)
        return True

    def _led(self) -> list[Replica]:
        return [replica for replica in self._host.replicas.values() if not replica.is_alone and replica.shard.serves]

    def _votes(self, replica: Replica) -> bool:
        return self._host.me in replica.raft.configuration.voters

    def _shards(self) -> set[int]:
        """Those that this node votes in, by what it or the map knows."""
        own = (number for number, replica in self._host.replicas.items() if self._votes(replica))
        shards = self._cluster_view.map.shards
        return {*own, *(number for number, record in shards.items() if self._host.me in record.voters)}

    def _fellows(self) -> set[str]:
        """Nodes that have a replica of such a shard."""
        shards = self._cluster_view.map.shards
        known = {name_of(voter) for number in self._shards() if number in shards for voter in shards[number].voters}
        for number in self._shards() & self._host.replicas.keys():
            known.update(map(name_of, self._host.replicas[number].raft.configuration.voters))
        return known - {name_of(self._host.me)}

    async def _answers(self, names: Iterable[str]) -> dict[str, pb.DescribeNodeResponse]:
        asked = list(names)
        found = await asyncio.gather(*(self._ask_node(name, ASK_SECONDS) for name in asked))
        return {name: answer for name, answer in zip(asked, found, strict=True) if answer is not None}

    def _sights(self, answers: Mapping[str, pb.DescribeNodeResponse]) -> Iterable[ShardSight]:
        """Of each shard what its leader of the newest term says."""
        reported: dict[int, tuple[int, ShardSight]] = {}
        for name, answer in answers.items():
            for one in answer.replicas:
                if one.caught_up:  # only who leads, and serves, says so
                    leader = identity_of(name, answer.node_id)
                    sight = ShardSight(one.shard, leader, tuple(one.membership.voters), tuple(one.caught_up))
                    reported[one.shard] = max(reported.get(one.shard, (0, sight)), (one.term, sight), key=_term)
        for number, replica in self._host.replicas.items():
            if replica.raft.role == LEADER and replica.shard.serves:
                raft = replica.raft
                ready = caught_up(raft, self._now_s())
                sight = ShardSight(number, self._host.me, raft.configuration.voters, ready)
                reported[number] = max(reported.get(number, (0, sight)), (raft.term, sight), key=_term)
        for number in sorted(self._shards()):
            yield reported[number][1] if number in reported else ShardSight(number)


def _seen(polled: asyncio.Task[HandoverView]) -> None:
    """Whoever asked may have gone: then nobody else wants to know what went wrong."""
    if not polled.cancelled():
        polled.exception()


def _term(reported: tuple[int, ShardSight]) -> int:
    return reported[0]


def _sights_of(answers: Mapping[str, pb.DescribeNodeResponse]) -> dict[str, NodeSight]:
    return {
        name: NodeSight(identity_of(name, answer.node_id), answer.is_stopping) for name, answer in answers.items()
    }  # fmt: skip
