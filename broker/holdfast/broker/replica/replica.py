"""One replica of a shard on this node: its journal, its engine and its state, and what a round does with them."""

import asyncio
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from holdfast.broker.leader.clock import carried_on
from holdfast.broker.replica.shard import Shard
from holdfast.broker.round_budget import RoundBudget
from holdfast.machine.kv import OrderedKV
from holdfast.machine.machine import Machine
from holdfast.raft.codec import Buffer, decode, encode_each, peek
from holdfast.raft.engine import ShardRaft
from holdfast.raft.journal import NOTHING, found
from holdfast.raft.library import FOLLOWER, LEADER
from holdfast.raft.messages import Append, Configuration
from holdfast.raft.node_journal import NodeJournal
from holdfast.serving.refusals import RefusedError, shard_not_found
from holdfast.storage.checkpoints import Flushable
from holdfast.storage.snapshots.codec import is_snapshot_message
from holdfast.wal.node_log import NodeLog

TIME_SECONDS = 0.05  # between looks at shard time for the others: until the next one it is told as too slow by 10 %
POLL_SECONDS = 0.5  # between looks at what changes slowly: clocks, members, who needs a snapshot

# A follower answers nobody. What is committed waits until there is so much of it, or for so long: to apply it together
# costs less, and whoever leads next has little to catch up with.
BEHIND_ENTRIES = 32
BEHIND_BYTES = 512 * 1024
BEHIND_SECONDS = 0.05


@dataclass(frozen=True, slots=True)
class NewState:
    """A state that came as a snapshot, open and complete, and what the log must say of it."""

    sender: str
    term: int
    index: int
    index_term: int
    configuration: Configuration
    name: str  # of its directory
    state: OrderedKV
    machine: Machine
    ended: Callable[[bool, OrderedKV], None]  # whether it was taken, durably, and the state that is not needed any more


class ReplicaHost(Protocol):
    """The node that a replica is on."""

    def make_engine(self, journal: NodeJournal, applied_index: int, shard_time_ms: Callable[[], int]) -> ShardRaft: ...

    def make_shard(self, raft: ShardRaft, machine: Machine) -> Shard: ...

    def replica_polled(self, number: int, now_s: float) -> None:
        """A few times a second, inside a round: what changes slowly is looked at."""
        ...

    def snapshot_message(self, number: int, sender: str, data: bytes) -> None:
        """Raises as `Replica.deliver` does."""
        ...

    def log_needed_after(self, number: int) -> int | None:
        """Entries after this one are still needed: somebody is sent a snapshot that ends with it."""
        ...


class Replica:
    """What `CommitLoop` drives. `shard` serves, `raft` agrees, `journal` remembers."""

    def __init__(
        self, number: int, log: NodeLog, journal: NodeJournal, state: OrderedKV, machine: Machine, host: ReplicaHost
    ) -> None:
        self.number = number
        self.journal = journal
        self._log = log
        self._state = state
        self._host = host
        self.raft = host.make_engine(journal, machine.meta.applied_index, self._reported_time_ms)
        self.shard = host.make_shard(self.raft, machine)
        self._led_term = 0  # as the shard knows it; 0: it does not lead
        self.durable_base_index = journal.base_index
        self._poll_due_s = 0.0
        self._apply_due_s = math.inf  # for a follower
        self._now_s = 0.0
        self._time_ms = 0  # shard time as of the last look; 0: it does not serve
        self._time_read_s = 0.0
        self._compact_to = 0
        self._requests: list[Callable[[], None]] = []  # of operators: what they want done with the engine
        self._watchers: list[asyncio.Future[None]] = []
        self._new_state: NewState | None = None  # waits for the next round
        self._replaced: tuple[NewState, OrderedKV, Machine] | None = None  # until the log says so durably
        self.is_detached = False  # nobody drives it any more
        # For the rounds: when it last had its turn, among all replicas of the node.
        self.staged_turn = 0
        self.sent_turn = 0
        self.applied_turn = 0

    @property
    def group(self) -> int:
        return self.journal.group

    # --- a round ----------------------------------------------------------------------------------------------

    def deliver(self, sender: str, data: Buffer, now_s: float) -> None:
        """One message of another replica. Raises `FrameError` for bytes that are none and `ImpossibleMessageError` for
        what no correct member sends; then nothing has changed."""
        if is_snapshot_message(data):
            self._host.snapshot_message(self.number, sender, bytes(data))
        else:
            message = decode(data)
            if isinstance(message, Append):
                self.shard.entries.check(message.entries)
            self.raft.receive(sender, message, now_s)

    def overhear(self, sender: str, data: Buffer, now_s: float) -> None:
        """A message has come that will be delivered later; until then nothing but its sender's life is known of it."""
        sign = peek(data)
        if sign is not None:
            self.raft.overhear(sender, sign, now_s)

    def step(self, now_s: float, budget: RoundBudget | None = None) -> int:
        """Lets time pass and takes proposals; returns how many entries were staged."""
        budget = budget or RoundBudget()
        self._now_s = now_s
        is_poll_due = now_s >= self._poll_due_s
        if not self.shard.serves:
            self._time_ms = 0
        elif now_s >= self._time_read_s + TIME_SECONDS or not self._time_ms:
            # From the first moment on: whoever leads next begins with what it heard.
            self._time_ms, self._time_read_s = self.shard.time_ms(), now_s
        if is_poll_due:
            self._poll_due_s = now_s + POLL_SECONDS
        self.raft.tick(now_s)
        if self._new_state is not None:
            self._take_new_state(self._new_state)
        if self._compact_to > self.journal.base_index:
            needed_after = self._host.log_needed_after(self.number)
            keep_after = self._compact_to if needed_after is None else min(self._compact_to, needed_after)
            self.raft.compact(min(keep_after, self.shard.applied_index))
        if self._requests:
            requests, self._requests = self._requests, []
            for act in requests:
                act()
        if is_poll_due:
            self._host.replica_polled(self.number, now_s)
        self._follow_role()
        return self.shard.stage(budget)

    @property
    def has_to_step(self) -> bool:
        """Whether what was delivered leaves more to do than to apply, now that nothing else has asked for a round."""
        is_asked = bool(self.raft.ready.after_sync or self._requests or self._new_state)
        return is_asked or self._led_term != self.raft.serving_term or self._is_to_go_on()

    def _follow_role(self) -> None:
        """Tells the shard of leadership won or lost, wherever the engine may have come to that: in a message or with
        time, with a sync that made it elected, or with the first entry of its term that is applied."""
        term = self.raft.serving_term
        if term != self._led_term:
            self._led_term = term
            self.shard.role_changed(term)

    def replicate(self, budget: RoundBudget) -> int:
        """Sends what the others lack; returns how many bytes."""
        sent_bytes = self.raft.replicate(budget.send_bytes_each)
        budget.send_bytes -= sent_bytes
        return sent_bytes

    def beat(self, now_s: float) -> None:
        """A round takes long: what the others are to hear in time does not wait for its end."""
        self._now_s = now_s
        self.raft.beat(now_s)

    def _reported_time_ms(self) -> int:
        """Shard time for heartbeats: what time it is at least. The next leader begins as late as this is, and one that
        finds itself far behind moves time at once: were it late, leases would end early after a few leaders."""
        return carried_on(self._time_ms, (self._now_s - self._time_read_s) * 1000).least_ms

    @property
    def has_outgoing(self) -> bool:
        return bool(self.raft.ready.messages)

    def take_outgoing(self) -> list[tuple[str, bytes]]:
        return encode_each(self.raft.ready.take())

    def synced(self) -> None:
        """What was staged before the sync that just ended is durable on this node."""
        self.journal.synced()
        self.durable_base_index = self.journal.base_index
        self.raft.synced()
        self._follow_role()
        self._end_replaced()

    def _end_replaced(self) -> None:
        if self._replaced is not None:
            (taken, old, _machine), self._replaced = self._replaced, None
            taken.ended(True, old)

    @property
    def is_awaited(self) -> bool:
        """Whether somebody may wait for what it applies."""
        return self.raft.role != FOLLOWER

    @property
    def has_to_apply(self) -> bool:
        behind = self.raft.behind
        return behind > 0 and (
            self.raft.role != FOLLOWER
            or behind >= BEHIND_ENTRIES
            or self._now_s >= self._apply_due_s
            or self.shard.entries.size_bytes >= BEHIND_BYTES
        )

    async def apply(self, *, callers_first: bool) -> bool:
        """One turn. Returns whether it got on and there is more."""
        before = self.shard.applied_index
        await self.shard.apply_committed(callers_first=callers_first)
        self._follow_role()
        return self.has_to_apply and self.shard.applied_index > before

    def end_round(self) -> None:
        """Tells those who wait for something to happen."""
        if self.raft.role != FOLLOWER:
            self._apply_due_s = math.inf
            self.shard.step_reads()
        elif not self.raft.behind:
            self._apply_due_s = math.inf
        elif not self._now_s < self._apply_due_s < math.inf:
            self._apply_due_s = self._now_s + BEHIND_SECONDS
        if self._watchers:
            self._notify_watchers()

    def next_deadline_s(self) -> float:
        """When it has something to do next, if nothing comes before that."""
        return min(self._apply_due_s, self.raft.next_deadline_s())

    def _notify_watchers(self) -> None:
        watchers, self._watchers = self._watchers, []
        for watcher in watchers:
            if not watcher.done():
                watcher.set_result(None)

    async def next_round(self) -> None:
        """Returns after a round in which something happened to this replica."""
        if self.is_detached:
            raise shard_not_found(self.number)
        watcher = asyncio.get_running_loop().create_future()
        self._watchers.append(watcher)
        await watcher

    @property
    def is_unfinished(self) -> bool:
        """Whether there is something to do that no event will announce."""
        return self.has_to_apply or self._is_to_go_on()

    def _is_to_go_on(self) -> bool:
        is_changed = not self.journal.is_durable or bool(self.raft.ready.messages)
        return is_changed or self.shard.has_work or self.raft.has_to_send

    def dropped(self, refused: RefusedError) -> None:
        """There was no room for the round: what was staged is gone, here. Others may have been sent it.

        A group of one goes on as if the round had never been. Any other replica goes on as if it had crashed and come
        back: it knows what is in the log, and leads nobody.
        """
        if self.journal.is_durable:
            return
        self._compact_to = 0
        self.journal = NodeJournal.load(self._log, self.number) or self._begin_again(self.journal)
        if self._replaced is not None:
            (refused_state, old, machine), self._replaced = self._replaced, None
            self._replace_state(old, machine)
            refused_state.ended(False, refused_state.state)
        leads = self.raft.is_alone and self.raft.role == LEADER and self.journal.term == self.raft.term
        if leads and self.journal.last_index >= self.raft.first_own_index:
            self.raft.go_back_to(self.journal)
        else:
            self.raft = self._host.make_engine(self.journal, self.shard.applied_index, self._reported_time_ms)
            self.shard.replace_replicator(self.raft)
        # First: what was sent to others before the sync may be committed by them, so its callers are told neither yes
        # nor no. In a group of one nothing was sent, it still leads, and all of it is refused.
        self._follow_role()
        self.shard.aborted(refused, self.journal.last_index)

    def _begin_again(self, lost: NodeJournal) -> NodeJournal:
        """Not even the first round of this replica had room: it is empty, or founds the group that it was to found."""
        journal = NodeJournal.create(self._log, self.number, group=lost.group, state_name=lost.state_name)
        # What a snapshot brought, or comes later in the log, is not what the group began with.
        is_first = bool(lost.configurations) and lost.configurations[0][0] == 1 and not lost.base_index
        if is_first and lost.former_last == NOTHING:
            found(journal, lost.configurations[0][1].voters)
        return journal

    # --- its end ----------------------------------------------------------------------------------------------

    def detach(self) -> None:
        """Nobody drives it any more, and whoever waits for something is told: it leads nobody and takes no snapshot."""
        if self.is_detached:
            return
        self.is_detached = True
        self.raft.resign()
        self._follow_role()
        requests, self._requests = self._requests, []
        for act in requests:
            act()  # refused by an engine that leads nobody
        new, self._new_state = self._new_state, None
        if new is not None:
            new.ended(False, new.state)
        self._notify_watchers()

    def forgotten(self) -> None:
        """The log says durably that it is gone, so it names no state of it any more."""
        self._end_replaced()

    # --- state and log ----------------------------------------------------------------------------------------

    @property
    def applied_index(self) -> int:
        return self.shard.applied_index

    @property
    def lag(self) -> int:
        """Entries that are committed, as far as is known here, and not applied yet."""
        return max(0, max(self.raft.commit_index, self.raft.leader_commit_index) - self.shard.applied_index)

    @property
    def is_alone(self) -> bool:
        return len(self.raft.configuration.members) == 1

    @property
    def state(self) -> Flushable:
        """As it is now: a snapshot may have taken the place of the one that was opened."""
        assert isinstance(self._state, Flushable)
        return self._state

    def _replace_state(self, state: OrderedKV, machine: Machine) -> None:
        self._state = state
        self.shard.replace_state(machine)

    def compact(self, index: int) -> None:
        """Lets the log begin after this entry, with the next round."""
        self._compact_to = index

    def request(self, act: Callable[[], None]) -> None:
        """Has something done in the next round, when nothing is frozen."""
        if self.is_detached:
            raise shard_not_found(self.number)
        self._requests.append(act)

    def offer_state(self, new: NewState) -> None:
        """A snapshot is here; the next round decides whether it is still needed."""
        assert self._new_state is None, "one at a time"
        if self.is_detached:
            new.ended(False, new.state)
        else:
            self._new_state = new

    def _take_new_state(self, new: NewState) -> None:
        self._new_state = None
        self.journal.next_state_name = new.name
        if not self.raft.install_snapshot(new.sender, new.term, new.index, new.index_term, new.configuration):
            new.ended(False, new.state)
            return
        # The old state stays until the log says durably that there is a new one.
        self._replaced = (new, self._state, self.shard.machine)
        self._follow_role()
        self._replace_state(new.state, new.machine)
