"""All replicas of this node: opens them at start, founds or joins groups, and knows who leads elsewhere."""

import asyncio
import random
import secrets
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeVar

from holdfast.broker import failpoints
from holdfast.broker.leader.clock import ShardClock, TimeSource, carried_on
from holdfast.broker.leader.clock_evidence import ClockEvidence, ClockFitness, GroupEvidence
from holdfast.broker.leader.roles import NodeContext
from holdfast.broker.peers.identities import identity_of, name_of
from holdfast.broker.replica.commit_loop import CommitLoop, Message
from holdfast.broker.replica.member_plan import MemberChange, Step
from holdfast.broker.replica.probes import Probes
from holdfast.broker.replica.replica import Replica
from holdfast.broker.replica.shard import Shard
from holdfast.broker.replica.snapshot_transfers import SENDING_AT_ONCE_MAX, SnapshotTransfers
from holdfast.broker.replica.successors import hand_over, is_reluctant
from holdfast.machine.machine import Machine
from holdfast.raft.engine import ShardRaft
from holdfast.raft.journal import found
from holdfast.raft.library import LEADER, Timing
from holdfast.raft.node_journal import NodeJournal, tombstone_of
from holdfast.serving.logs import get_logger
from holdfast.serving.open_files import allow_many_files, files_per_state
from holdfast.serving.refusals import OutcomeUnknownError, RefusedError, not_leader, shard_not_found
from holdfast.storage.data_dir import DataDir
from holdfast.storage.rocksdb import RocksState, StateDamagedError, StateError, StateMemory
from holdfast.storage.snapshots.directories import StateDirectories
from holdfast.storage.snapshots.throttle import Throttle
from holdfast.storage.startup_checks import RecoveryError, recover_shard
from holdfast.wal.node_log import NodeLog

GROUP_BITS = 63  # of a group that a node draws; see routing/groups.py
CHANGE_SECONDS_MAX = 10.0  # for a change of leader or members to come about
PINNED_BYTES_MAX = 1024 * 1024 * 1024  # of log that is kept for a snapshot on its way
SILENCE_SHARE = 0.9  # of the shortest election time: a leader steps down before another can be elected

Result = TypeVar("Result")

_log = get_logger(__name__)


SHARDS_EXPECTED = 64  # while the map of the cluster is not known


class HostListener:
    """Hears of what happens to the replicas of a node. Whoever needs some of it overrides that."""

    def replica_polled(self, replica: Replica) -> None:
        """A few times a second, in a round of the replica."""

    def state_replaced(self, number: int) -> None:
        """The state that a shard had is not there any more."""

    def leaders_changed(self) -> None:
        """This node leads one shard more, or one less."""


@dataclass(slots=True)
class _Clock:
    """This node's clock in the eyes of the voters of one shard."""

    evidence: GroupEvidence
    fitness: ClockFitness
    off_by_ms: float = 0.0  # how far it is off, if too far to lead


class Host:
    """The replicas of a node, by the number of their shard."""

    def __init__(
        self,
        context: NodeContext,
        data_dir: DataDir,
        log: NodeLog,
        commit_loop: CommitLoop,
        source: TimeSource,
        evidence: ClockEvidence,
    ) -> None:
        config, cluster_view = context.config, context.cluster_view
        self.me = identity_of(config.node_name, data_dir.node_id)
        self._context = context
        self._config = config
        self._state_dir = data_dir.state_dir
        self._log = log
        self._commit_loop = commit_loop
        self._source = source
        self._cluster_view = cluster_view
        self._evidence = evidence  # what is known of the others' clocks
        self._memory = StateMemory(
            config.state_block_cache_bytes,
            4 * config.state_write_buffer_bytes,
            open_files_max=files_per_state(cluster_view.shard_count or SHARDS_EXPECTED, allow_many_files()),
        )
        election_s = config.election_ms / 1000
        self.timing = Timing(config.heartbeat_ms / 1000, election_s, 2 * election_s, SILENCE_SHARE * election_s)
        self.throttle = Throttle(config.snapshot_bytes_per_second, config.snapshot_bytes_per_second // 32)
        self._sending_slots = asyncio.Semaphore(SENDING_AT_ONCE_MAX)
        self.replicas: dict[int, Replica] = {}
        self.transfers: dict[int, SnapshotTransfers] = {}
        self.probes: dict[int, Probes] = {}
        self._hashing = asyncio.Lock()  # one state at a time
        self._clocks: dict[int, _Clock] = {}
        self._listeners: list[HostListener] = []
        self.damage: StateDamagedError | None = None  # found while something was read; the node must stop
        self.is_stopping = False
        self.is_handing_over = False  # about to be stopped: it leads only what nobody else does
        self._dropping: set[int] = set()  # shards whose replica is being deleted
        self._other_groups: set[tuple[str, int]] = set()  # those that were logged
        self.leaders_changed = asyncio.Event()  # set whenever this node begins or ceases to lead

    def listen(self, listener: HostListener) -> None:
        self._listeners.append(listener)

    # --- life -------------------------------------------------------------------------------------------------

    def open(self) -> None:
        """Opens every replica that the log knows. Blocks."""
        self._check_log_is_there()
        for number in sorted(self._log.hard_states):
            journal = NodeJournal.load(self._log, number)
            if journal is None:
                # It has left: what is there of a state is of its deletion, or of a return that came to nothing.
                self.directories_of(number).clean(None)
                continue
            self._check_identity(journal)
            self._open(number, journal)

    def _check_log_is_there(self) -> None:
        """A state without its log: a node that begins anew with it would forget what it has promised."""
        for path in sorted(self._state_dir.iterdir()):
            if not path.name.isdigit() or int(path.name) in self._log.hard_states:
                continue
            directories = StateDirectories(self._state_dir, int(path.name))
            for name in directories.states():
                state = self.open_state(directories, name)
                applied_index = Machine(state).meta.applied_index
                state.close()
                if applied_index:
                    raise RecoveryError(
                        f"Expected the log to know shard {path.name}, of which the state has applied {applied_index} "
                        "entries, but it does not: the log directory was lost or belongs to another node."
                    )
            directories.clean(None)

    def _check_identity(self, journal: NodeJournal) -> None:
        """A node that changed its name would be unknown in its own group, and one without its list finds nobody."""
        _index, configuration = journal.configurations[-1] if journal.configurations else (0, None)
        mine = self.me.partition("/")[2]
        for member in configuration.members if configuration else ():
            name, _, node_id = member.partition("/")
            if node_id == mine and name != self._config.node_name:
                raise StateError(
                    f"This data directory belongs to the node {name!r}, but node_name is {self._config.node_name!r}; "
                    f'set node_name = "{name}", or choose the data directory of {self._config.node_name!r}.'
                )
        others = (
            sorted({name_of(member) for member in configuration.members if member != self.me}) if configuration else []
        )
        if others and self._cluster_view.is_alone:
            raise StateError(
                f"This data directory belongs to a node of a cluster with {', '.join(others)}, but the configuration "
                "names neither nodes nor etcd; start it with the configuration file of the cluster."
            )

    @property
    def is_empty(self) -> bool:
        """Whether this node has nothing yet: no log, no vote, no promise."""
        return not self.replicas and not self._log.hard_states

    def has_had(self, number: int, group: int) -> bool:
        """Whether this node had a replica of this group and has deleted it."""
        gone = tombstone_of(self._log, number)
        return gone is not None and gone.group == group

    def found(self, number: int, group: int, voters: Sequence[str]) -> None:
        """Begins a shard, once in its life."""
        journal = self._create(number, group)
        found(journal, voters)
        self._attach(self._open(number, journal))
        _log.info("founded", shard=number, voters=list(voters))

    def found_all(self, voters: Sequence[str]) -> None:
        """Begins all shards of a cluster without a map."""
        for number in range(self._cluster_view.shard_count):
            self.found(number, secrets.randbits(GROUP_BITS), voters)

    def await_state(self, number: int, group: int) -> SnapshotTransfers:
        """Has a replica of a shard that begins with a state: it is empty until it is given that state."""
        if number in self._dropping:
            raise shard_not_found(number)
        if number not in self.replicas:
            self._attach(self._open(number, self._create(number, group)))
            _log.info("awaiting_state", shard=number)
        return self.transfers[number]

    def join(self, sender: str, message: Message) -> Replica | None:
        """Another node speaks of a shard that this one has no replica of: it becomes a member, empty as yet."""
        number, group, _data = message
        if number in self._dropping or not self._cluster_view.admits(sender, number, group):
            return None
        _log.info("joining", shard=number, sender=sender)
        replica = self._open(number, self._create(number, group))
        self._attach(replica)
        failpoints.reached("host:joined")
        return replica

    async def drop(self, replica: Replica) -> None:
        """Deletes a replica that has left its group. The log keeps what it has promised."""
        number = replica.number
        self._dropping.add(number)
        try:
            await self._commit_loop.forget(replica)
            await replica.shard.stop()
            await self.transfers.pop(number).close()
            del self.replicas[number], self.probes[number], self._clocks[number]
            self._forget_state(number)
            await asyncio.to_thread(self._delete, number, _state_of(replica))
        finally:
            self._dropping.discard(number)

    def _delete(self, number: int, state: RocksState) -> None:
        """Blocks."""
        try:
            state.close()
        except StateError as error:
            _log.warning("state_not_flushed", error=str(error))
        self.directories_of(number).clean(None)

    def _create(self, number: int, group: int) -> NodeJournal:
        directories = self.directories_of(number)
        name = directories.new_name(0)
        directories.create(name)
        return NodeJournal.create(self._log, number, group=group, state_name=name)

    def _open(self, number: int, journal: NodeJournal) -> Replica:
        directories = self.directories_of(number)
        directories.clean(journal.state_name)
        state = self.open_state(directories, journal.state_name)
        machine = recover_shard(journal, self._log, state, number)
        replica = Replica(number, self._log, journal, state, machine, self)
        self.replicas[number] = replica
        return replica

    def directories_of(self, number: int) -> StateDirectories:
        return StateDirectories(self._state_dir, number)

    def open_state(self, directories: StateDirectories, name: str) -> RocksState:
        return RocksState(directories.state(name), memory=self._memory)

    def attach_all(self) -> None:
        """Lets the commit loop drive what was opened."""
        for replica in self.replicas.values():
            self._attach(replica)

    def _attach(self, replica: Replica) -> None:
        """Gives a replica what needs the event loop, and lets the commit loop drive it."""
        number = replica.number
        self.transfers[number] = SnapshotTransfers(
            replica, self.directories_of(number), self, disk=self._context.disk, throttle=self.throttle,
            slots=self._sending_slots,
        )  # fmt: skip
        self.probes[number] = Probes(lambda: _state_of(replica).view(), self.note_damage, self._hashing)
        self._clocks[number] = _Clock(self._group_evidence(replica), ClockFitness(self._source))
        self._commit_loop.attach(replica)

    def _poll_clock(self, replica: Replica, may_lead: bool) -> None:
        """A node whose clock is off neither campaigns nor leads; whoever leads hands over first."""
        raft = replica.raft
        if not may_lead and raft.may_campaign:
            _log.warning("clock_is_off", shard=replica.number, leads=raft.role == LEADER)
            self._hand_over(replica)  # if nobody is there, it leads no more from its next tick on
        is_staying = replica.is_alone or not self.is_stopping
        raft.may_campaign = may_lead and is_staying and not self.problem_of(replica.number)
        raft.is_reluctant = is_reluctant(raft, time.monotonic(), is_handing_over=self.is_handing_over)

    async def in_round(self, replica: Replica, act: Callable[[], Result]) -> Result:
        """Has something done with an engine, in the next round."""
        done: asyncio.Future[Result] = asyncio.get_running_loop().create_future()

        def act_once() -> None:
            if done.cancelled():
                return
            try:
                done.set_result(act())
            except Exception as error:  # noqa: BLE001 - it is the caller's, and must not end the commit loop
                done.set_exception(error)

        replica.request(act_once)
        self._commit_loop.wake(replica.number)
        return await done

    async def change_members(self, replica: Replica, change: MemberChange, expected_version: int) -> None:
        """Changes the members of a shard that this node leads; returns once that is committed. Raises
        `ChangeRefusedError`, or `OutcomeUnknownError` if it leads no more."""

        def begin() -> tuple[int, int]:
            raft = replica.raft  # of this round: another may have taken its place
            steps = {Step.ADD: raft.add_member, Step.PROMOTE: raft.promote, Step.REMOVE: raft.remove}
            return steps[change.step](change.replica, expected_version), raft.term

        index, term = await self.in_round(replica, begin)
        await committed(replica, index, term)

    def settings_reported(self, number: int, queue: bytes, version: int) -> None:
        """Another node knows this version of the settings of a queue: see settings_news.py."""
        replica = self.replicas.get(number)
        if replica is not None and replica.shard.serves:
            replica.shard.settings_reported(queue, version)

    async def hand_over_all(self) -> None:
        """Makes others lead what this node leads, if they can, so that nobody has to wait for an election."""
        self.is_stopping = True
        grouped = [replica for replica in self.replicas.values() if not replica.is_alone]
        led = [replica for replica in grouped if replica.shard.serves]
        for replica in grouped:
            if replica not in led:
                replica.raft.may_campaign = False  # or another that stops might hand over to this one
        for replica, is_done in zip(led, await asyncio.gather(*map(self.hand_over, led)), strict=True):
            if not is_done:
                _log.warning("not_handed_over", shard=replica.number)

    async def hand_over(self, replica: Replica, among: Collection[str] | None = None) -> bool:
        """Makes whoever has the most, of these or of all voters that are not about to be stopped, lead a shard instead
        of this node. False if this node still leads it: nobody answers, or whoever did has not taken over in time."""
        try:
            async with asyncio.timeout(2 * self.timing.election_s_max):
                if await self.in_round(replica, partial(self._hand_over, replica, among)):
                    while replica.shard.serves:
                        await replica.next_round()
        except TimeoutError:
            pass
        return not replica.shard.serves

    def _hand_over(self, replica: Replica, among: Collection[str] | None = None) -> bool:
        """Begins to; False if there is nobody to hand over to."""
        raft, now_s = replica.raft, time.monotonic()
        return hand_over(raft, now_s, self._cluster_view, is_stopping=self.is_stopping, among=among)

    def note_other_group(self, sender: str, number: int) -> None:
        """Two nodes of one list have a shard of the same number from different foundings: one is in the wrong place."""
        if (sender, number) not in self._other_groups:
            self._other_groups.add((sender, number))
            _log.error(
                "another_group", shard=number, sender=sender, serves=not self.problem_of(number),
                advice="one of the two has data of another cluster; save what you need of it, start it with --rebuild",
            )  # fmt: skip

    def problem_of(self, number: int) -> str:
        """Why a replica must not be led or served from here, if there is a reason."""
        replica = self.replicas.get(number)
        if replica is None:
            return ""
        others = sorted(sender for sender, shard in self._other_groups if shard == number)
        voters = replica.raft.configuration.voters
        return self._cluster_view.objection(number, replica.group, voters, others)

    def clock_problem(self, number: int) -> str:
        """What is wrong with this node's clock, in the eyes of the voters of a shard; empty if nothing is."""
        clock = self._clocks.get(number)
        off_by_ms = 0.0 if clock is None else clock.off_by_ms
        if not off_by_ms:
            return ""
        side = "ahead of" if off_by_ms > 0 else "behind"
        return (
            f"the clock of this node is {abs(off_by_ms) / 1000:.1f} s {side} the others', so it does not lead: set it"
        )

    def note_damage(self, error: Exception) -> None:
        """Somebody could not read a state. If that is because a file is damaged, no replica of it may go on: neither
        answer, nor vote for or become a leader."""
        if isinstance(error, StateDamagedError) and self.damage is None:
            self.damage = error
            _log.error("state_damaged", error=str(error))

    async def stop(self) -> None:
        for transfers in self.transfers.values():
            await transfers.close()

    def close(self) -> None:
        for replica in self.replicas.values():
            try:
                _state_of(replica).close()
            except StateError as error:
                _log.warning("state_not_flushed", error=str(error))

    # --- parts ------------------------------------------------------------------------------------------------

    def make_engine(self, journal: NodeJournal, applied_index: int, shard_time_ms: Callable[[], int]) -> ShardRaft:
        return ShardRaft(
            self.me,
            journal,
            now_s=time.monotonic(),
            applied_index=applied_index,
            timing=self.timing,
            draw=random.random,
            shard_time_ms=shard_time_ms,
        )

    def _group_evidence(self, replica: Replica) -> GroupEvidence:
        return GroupEvidence(self._evidence, lambda: replica.raft.configuration.voters, self.me)

    def make_shard(self, raft: ShardRaft, machine: Machine) -> Shard:
        return Shard(machine, raft, self, self._context)

    # --- what a replica needs ---------------------------------------------------------------------------------

    def replica_polled(self, number: int, now_s: float) -> None:
        replica, clock = self.replicas[number], self._clocks[number]
        self.transfers[number].step(now_s)
        off_by_ms = clock.evidence.off_by_ms()
        may_lead = clock.fitness.may_lead(off_by_ms)
        if may_lead:
            clock.off_by_ms = 0.0
        elif off_by_ms:  # what the others' clocks say may be missing for a while: then the last word counts
            clock.off_by_ms = off_by_ms
        self._poll_clock(replica, may_lead)
        for listener in self._listeners:
            listener.replica_polled(replica)

    def snapshot_message(self, number: int, sender: str, data: bytes) -> None:
        self.transfers[number].handle(sender, data)

    def log_needed_after(self, number: int) -> int | None:
        """The end of a snapshot that is on its way. One that takes too long must not fill this node's disk: then its
        receiver needs another."""
        held_index = self.transfers[number].sender.held_index
        if held_index is None or self._log.bytes_after(number, held_index) > PINNED_BYTES_MAX:
            return None
        return held_index

    def send_snapshot_message(self, to: str, message: Message) -> None:
        self._commit_loop.wire.send((to,), [message])

    def state_replaced(self, number: int) -> None:
        """A snapshot took the place of a state."""
        self.probes[number].passed()
        self._forget_state(number)

    def _forget_state(self, number: int) -> None:
        for listener in self._listeners:
            listener.state_replaced(number)

    # --- what a shard needs -----------------------------------------------------------------------------------

    def make_clock(self, number: int, last_applied_ms: int) -> ShardClock:
        replica = self.replicas[number]
        heard_ms_ago = max(0.0, time.monotonic() - replica.raft.leader_time_heard_s) * 1000
        return ShardClock(
            self._source,
            last_applied_ms,
            continued=carried_on(replica.raft.leader_time_ms, heard_ms_ago),
            witnesses=self._group_evidence(replica),
        )

    def wake(self, number: int) -> None:
        self._commit_loop.wake(number)

    def leading_changed(self, number: int, leads: bool) -> None:
        self.leaders_changed.set()
        for listener in self._listeners:
            listener.leaders_changed()
        raft = self.replicas[number].raft
        _log.info("leading" if leads else "leading_no_more", shard=number, term=raft.term, leader=raft.leader)

    def probe_reached(self, number: int, index: int) -> None:
        self.probes[number].reached(index)

    def redirect(self, number: int) -> RefusedError:
        """Tells a caller who leads, as far as this node knows."""
        raft = self.find(number).raft
        leader = None if raft.leader == self.me else raft.leader
        return not_leader(number, raft.term, self.address_of(leader))

    # --- looks ------------------------------------------------------------------------------------------------

    def find_to_serve(self, number: int) -> Replica:
        """For callers with work: a node that waits for its replicas sends them elsewhere."""
        if number not in self.replicas and not self._cluster_view.is_alone and self._is_of_the_cluster(number):
            raise not_leader(number, 0, None)
        return self.find(number)

    def _is_of_the_cluster(self, number: int) -> bool:
        return number < self._cluster_view.shard_count

    def find_leading(self, number: int) -> Replica:
        """For what only a leader can do: elsewhere the caller is told who leads."""
        replica = self.find_to_serve(number)
        if not replica.shard.serves:
            raise self.redirect(number)
        return replica

    def find(self, number: int) -> Replica:
        replica = self.replicas.get(number)
        if replica is None:
            raise shard_not_found(number)
        return replica

    @property
    def shards(self) -> list[Shard]:
        return [replica.shard for replica in self.replicas.values()]

    def address_of(self, identity: str | None) -> str | None:
        """Where clients find a node."""
        return None if identity is None else self._cluster_view.address_of(name_of(identity))

    def all_served(self) -> bool:
        """Whether each shard has a leader that this node knows of."""
        return all(
            replica.shard.serves or replica.raft.leader not in (None, self.me) for replica in self.replicas.values()
        )

    def state_bytes(self, number: int) -> int:
        """About what a replica's state takes on disk."""
        return _state_of(self.replicas[number]).size_bytes

    def lost_file(self) -> Path | None:
        """Of a state, that somebody else has deleted; None if all are in place."""
        states = map(_state_of, self.replicas.values())
        return next((lost for state in states if (lost := state.lost_file()) is not None), None)

    def kept(self) -> Iterable["Replica"]:
        return list(self.replicas.values())


async def committed(replica: Replica, index: int, term: int) -> None:
    """Waits until an entry of this leader is applied; if it leads no more, nobody here knows what becomes of it: in
    its place another leader's entry may be applied by now."""
    try:
        async with asyncio.timeout(CHANGE_SECONDS_MAX):
            while replica.raft.term == term and replica.raft.role == LEADER:
                if replica.applied_index >= index:
                    return
                await replica.next_round()
    except TimeoutError:
        pass
    raise OutcomeUnknownError


def _state_of(replica: Replica) -> RocksState:
    state = replica.state
    assert isinstance(state, RocksState)
    return state
