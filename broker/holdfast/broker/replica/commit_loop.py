"""The node's rounds: everything that arrived or waits is dealt with, with one shared write and sync for all shards.

    deliver → tick → take proposals → send entries → write and sync, in a thread → send promises → apply → answer

While the sync of a round runs nothing enters an engine: frames and proposals queue up for the next round, so nothing
that was staged after the sync began can be counted as durable. What earlier rounds have committed is applied meanwhile.
For a fast disk the loop then waits in line, because to come back to it costs more (sync_mode.py), but never for long.

A round must not grow with the number of busy shards. What it delivers, stages and sends is bounded for the node
(round_budget.py), and so is the time for which it applies; who was served longest ago goes first. If a round takes long
nonetheless, for a disk is slow, signs of life leave and are heard in the middle of it.
"""

import asyncio
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, Protocol

from holdfast.broker.leader.roles import WriteGuard
from holdfast.broker.metrics import Metrics
from holdfast.broker.replica.deadlines import Deadlines
from holdfast.broker.replica.replica import Replica
from holdfast.broker.replica.sync_mode import SLOW_SECONDS, SyncMode
from holdfast.broker.round_budget import RoundBudget
from holdfast.raft.codec import Buffer, FrameError
from holdfast.raft.messages import ImpossibleMessageError
from holdfast.raft.node_journal import NodeJournal
from holdfast.serving.logs import get_logger
from holdfast.wal.errors import DiskFullError
from holdfast.wal.node_log import Flush, NodeLog

Message = tuple[int, int, Buffer]  # shard, group, bytes

ROUND_MESSAGES_MAX = 1024  # delivered in one round; the rest waits for the next
ROUND_RECEIVED_BYTES_MAX = 4 * 1024 * 1024  # likewise
DELIVER_SECONDS_MAX = 0.01
APPLY_SECONDS_MAX = 0.02  # after the sync, for all shards; beside the sync they apply until it ends
BEAT_SECONDS = 0.05  # into a round, and again: the others hear signs of life that are due
# A round that takes longer than this has a disk that may never answer: somebody else must lead then.
BEATS_SECONDS_MAX = 1.5
INBOX_BYTES_MAX = 32 * 1024 * 1024  # beyond it nothing more is read from the other nodes
INBOX_BYTES_LOW = INBOX_BYTES_MAX // 2
FULL_SECONDS = 0.1  # between rounds when the disk has no room
TIMER_SECONDS = 0.001  # what timers are exact to
EARLY_SECONDS_MAX = 0.0001  # of a round that begins before anybody is due
IDLE_SECONDS_MAX = 1.0  # between rounds when no replica has a deadline

_REFUSED = (FrameError, ImpossibleMessageError)  # what no correct member sends

_log = get_logger(__name__)


@dataclass(slots=True)
class _Leaving:
    """A replica of which the log does not say durably yet that it is gone."""

    replica: Replica
    journal: NodeJournal
    done: asyncio.Future[None]
    is_staged: bool = False


class Sync(Protocol):
    """One that is under way in a thread."""

    def done(self) -> bool: ...

    def wait(self, seconds_max: float) -> None:
        """Blocks until it is done, or for so long."""
        ...

    def __await__(self) -> Generator[Any, None, float]:
        """How many seconds it took."""
        ...

    def cancel(self) -> None:
        """Need not be begun any more."""
        ...


class Wire(Protocol):
    """The way to the other nodes."""

    def send(self, identities: Sequence[str], messages: list[Message]) -> None:
        """To each of them the same, in one frame; whatever cannot be sent is lost."""
        ...

    def drop(self, identity: str, detail: str) -> None:
        """What this node sent is not to be trusted: its connection ends. It may come again."""
        ...

    def pause_reading(self) -> None: ...
    def resume_reading(self) -> None: ...


class Newcomers(Protocol):
    """Decides about shards that others speak of."""

    def join(self, sender: str, message: Message) -> Replica | None:
        """This node has no replica of the shard: the one that it has from now on, or None."""
        ...

    def note_other_group(self, sender: str, number: int) -> None:
        """It has one, of another founding than the sender's."""
        ...


class NoWire:
    """A node alone."""

    def send(self, identities: Sequence[str], messages: list[Message]) -> None:
        """Nobody is there."""

    def drop(self, identity: str, detail: str) -> None:
        """Nobody is there."""

    def pause_reading(self) -> None:
        """Nobody says anything."""

    def resume_reading(self) -> None:
        """Nobody says anything."""


class CommitLoop:
    """Drives all replicas of a node over its one log."""

    def __init__(
        self,
        log: NodeLog,
        metrics: Metrics,
        *,
        begin_sync: Callable[[Callable[[], None]], Sync],
        disk: WriteGuard,
        on_first_sync: Callable[[], None] = lambda: None,
        wire: Wire | None = None,
        sync_mode: SyncMode | None = None,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._log = log
        self._metrics = metrics
        self._begin_sync = begin_sync  # has a blocking function run off the event loop
        self._sync_mode = sync_mode or SyncMode()
        self._disk = disk
        self.wire: Wire = wire or NoWire()
        self._monotonic = monotonic
        self._replicas: dict[int, Replica] = {}
        self._deadlines = Deadlines()
        self._active: dict[int, Replica] = {}  # those with something to do in the next round
        self._leaving: dict[int, _Leaving] = {}
        self._delivered: dict[int, Replica] = {}  # those who were told something since the last round
        self._inbox: deque[tuple[str, Message]] = deque()
        self._inbox_bytes = 0
        self._is_paused = False
        self._turns = 0  # that replicas have had
        self._began_s = 0.0  # the newest round
        self._beats: asyncio.TimerHandle | None = None
        self._beats_of_s = 0.0  # the round for which that is set
        self._is_wanted = False  # a round, though no replica is active and nothing has come
        self._waiting: asyncio.Future[None] | None = None  # for something to do
        self._deadline: asyncio.TimerHandle | None = None  # of the replica that is due first, or a little before
        self._deadline_s = 0.0
        self._newcomers: Newcomers | None = None  # None: there are no others
        self._stopping = False
        self._has_synced = False
        self._on_first_sync = on_first_sync  # before anybody is told of what is durable

    def attach(self, replica: Replica) -> None:
        self._replicas[replica.number] = replica
        self.wake(replica.number)

    def detach(self, replica: Replica) -> None:
        """Ceases to drive a replica, at once. What comes for it is of an unknown sender again."""
        number = replica.number
        assert self._replicas.get(number) is replica, "only what was attached can be detached"
        del self._replicas[number]
        self._active.pop(number, None)
        self._delivered.pop(number, None)
        self._deadlines.drop(number)
        replica.detach()

    async def forget(self, replica: Replica) -> None:
        """Detaches a replica that is no member any more, and has the log keep nothing but what it has promised.

        When this returns that is durable, and no round uses the replica: only then its state may be closed and deleted.
        Until then nobody joins this shard. Cancelled, if the node stops before.
        """
        self.detach(replica)
        done = asyncio.get_running_loop().create_future()
        self._leaving[replica.number] = _Leaving(replica, replica.journal, done)
        self._want_round()
        await asyncio.shield(done)

    @property
    def replicas(self) -> Iterable[Replica]:
        return self._replicas.values()

    def wake(self, number: int) -> None:
        """A replica has something for a round."""
        if number in self._replicas:  # somebody may not have heard yet that it was detached
            self._active[number] = self._replicas[number]
            self._end_wait()

    def receive(self, sender: str, messages: list[Message]) -> None:
        """What another node says. Between two rounds it is delivered at once, until something of it asks for a round;
        the answers of those who are not needed for a majority do not. The rest is for the next round, and as that may
        have to wait, it is known at once that the other lives."""
        now_s = self._monotonic()
        for message in messages:
            if self._is_idle and not self._inbox:
                if not self._receive_between(sender, message, now_s):
                    return
                continue
            number, group, data = message
            self._inbox.append((sender, message))
            self._inbox_bytes += len(data)
            replica = self._replicas.get(number)
            if replica is not None and replica.group == group:
                replica.overhear(sender, data, now_s)
        if self._inbox:
            if self._inbox_bytes > INBOX_BYTES_MAX and not self._is_paused:
                self._is_paused = True
                self.wire.pause_reading()
            self._end_wait()

    @property
    def _is_idle(self) -> bool:
        """Whether no round is under way, and none has been asked for."""
        return self._waiting is not None and not self._waiting.done()

    def _receive_between(self, sender: str, message: Message, now_s: float) -> bool:
        """False if nothing else that it says counts."""
        assert self._waiting is not None
        try:
            replica = self._deliver(sender, message, now_s)
        except _REFUSED as error:
            self._refuse(sender, message, error)
            return False
        except Exception as error:  # noqa: BLE001 - a bug: it ends the node, as in a round
            self._waiting.set_exception(error)
            return False
        if replica is not None:
            if replica.has_to_step or replica.has_to_apply:
                self._delivered[replica.number] = replica
                self._end_wait()
            else:
                replica.end_round()
        return True

    async def run(self, newcomers: Newcomers | None = None) -> None:
        """Works until stopped and nothing waits. Raises DiskFailedError when the disk fails: that must end the node."""
        self._newcomers = newcomers
        try:
            while await self._round_and_wait():
                pass
        finally:
            for timer in (self._beats, self._deadline):
                if timer is not None:
                    timer.cancel()

    async def _round_and_wait(self) -> bool:
        """Whether there is to be another round."""
        self._began_s = began_s = self._monotonic()
        self._is_wanted = False
        if self._beats is None:
            self._watch_beats(BEAT_SECONDS)
        has_synced = await self._round(began_s)
        self._metrics.round_seconds.observe(self._monotonic() - began_s)
        if self._stopping and not has_synced and not self._active:
            await asyncio.sleep(0)  # the callers get their turn
            if not self._active:
                self._leave_the_rest()
                return False
        await self._wait()
        return True

    async def _round(self, now_s: float) -> bool:
        """Returns whether there was anything to sync."""
        delivered = self.deliver(now_s)
        active = self._take_active(delivered, now_s)
        applying = list((delivered | {replica.number: replica for replica in active}).values())
        flush = None
        if active or self._leaving or self._log.staged_bytes:
            entries = self.step(active, now_s)
            self._send(active)
            self._stage_leaving()
            flush = self._log.begin_flush()
            if flush is not None:
                await self.sync(flush, active, applying)
                self._metrics.round_entries.observe(entries)
            else:
                self._finish(active)
        await self.apply(applying, callers_first=True)
        self._end_round(active, applying)
        return flush is not None

    def _end_round(self, active: list[Replica], applying: list[Replica]) -> None:
        for replica in applying:
            if not replica.is_detached:
                replica.end_round()
                if replica.is_unfinished:
                    self._active[replica.number] = replica
        for replica in active:
            if not replica.is_detached:
                self._deadlines.put(replica.number, replica.next_deadline_s())

    def step(self, active: list[Replica], now_s: float) -> int:
        """Returns how many entries were staged. Whoever had to wait goes first the next time, with its callers and with
        what others lack each for itself: a shard whose housekeeping was taken, but not its callers, has waited."""
        budget = RoundBudget(busy=sum([replica.shard.has_work for replica in active]))
        entries = 0
        for replica in _in_turn(active, _STAGED_TURN):
            left = budget.entries
            entries += replica.step(now_s, budget)
            if budget.entries < left or not replica.shard.callers_wait:
                replica.staged_turn = self._next_turn()
        for replica in _in_turn(active, _SENT_TURN):
            if replica.replicate(budget):
                replica.sent_turn = self._next_turn()
        return entries

    def _next_turn(self) -> int:
        self._turns += 1
        return self._turns

    def _beat(self) -> None:
        """In the middle of a round: the engines are frozen or busy, but their heartbeats and echoes promise nothing.

        The timer outlives rounds that are short; the next one begins it anew where it ended between two."""
        self._beats = None
        if self._waiting is not None:
            return
        now_s = self._monotonic()
        lasts_s = now_s - self._began_s
        if lasts_s > BEATS_SECONDS_MAX:
            return
        if self._beats_of_s != self._began_s:  # that one has ended
            self._watch_beats(max(0.0, BEAT_SECONDS - lasts_s))
            return
        self._watch_beats(BEAT_SECONDS)
        for replica in self._replicas.values():
            replica.beat(now_s)
        self._send(self._replicas.values())

    def _watch_beats(self, pause_s: float) -> None:
        self._beats_of_s = self._began_s
        self._beats = asyncio.get_running_loop().call_later(pause_s, self._beat)

    def _take_active(self, delivered: dict[int, Replica], now_s: float) -> list[Replica]:
        """Those with something to do before they apply. After an answer of a follower, say, there is nothing."""
        active, self._active = self._active, {}
        for number in self._deadlines.take_due(now_s):
            active[number] = self._replicas[number]
        for number, replica in delivered.items():
            if number not in active and replica.has_to_step:
                active[number] = replica
        return list(active.values())

    def deliver(self, now_s: float) -> dict[int, Replica]:
        """Returns those who were told something, by their numbers."""
        delivered, self._delivered = self._delivered, {}
        if not self._inbox:
            return delivered
        left_bytes, ends_s = ROUND_RECEIVED_BYTES_MAX, now_s + DELIVER_SECONDS_MAX
        for _ in range(ROUND_MESSAGES_MAX):
            if not self._inbox or left_bytes <= 0 or self._monotonic() > ends_s:
                break
            sender, message = self._inbox.popleft()
            size = len(message[2])
            self._inbox_bytes -= size
            left_bytes -= size
            try:
                replica = self._deliver(sender, message, now_s)
            except _REFUSED as error:
                self._refuse(sender, message, error)
                continue
            if replica is not None:
                delivered[replica.number] = replica
        if self._is_paused and self._inbox_bytes < INBOX_BYTES_LOW:
            self._is_paused = False
            self.wire.resume_reading()
        return delivered

    def _deliver(self, sender: str, message: Message, now_s: float) -> Replica | None:
        """Returns who was told something. Raises one of `_REFUSED`."""
        number, group, data = message
        if number in self._leaving:
            return None
        replica = self._replicas.get(number) or self._join(sender, message)
        if replica is None:
            return None
        if replica.group != group:
            if self._newcomers is not None:
                self._newcomers.note_other_group(sender, number)
            return None
        replica.deliver(sender, data, now_s)
        return replica

    def _join(self, sender: str, message: Message) -> Replica | None:
        return None if self._newcomers is None else self._newcomers.join(sender, message)

    def _refuse(self, sender: str, message: Message, error: Exception) -> None:
        """The frame was whole, so it is a fault of the sender's program, and must not end this one. Nothing else that
        it said counts either: it goes with the connection."""
        _log.warning("message_refused", sender=sender, shard=message[0], error=str(error))
        self._inbox = deque(received for received in self._inbox if received[0] != sender)
        self._inbox_bytes = sum(len(message[2]) for _, message in self._inbox)
        self.wire.drop(sender, str(error))

    def _send(self, active: Iterable[Replica]) -> None:
        """One frame for each node, with what all shards have to say to it. Those who hear the same share it."""
        outgoing: dict[str, list[Message]] = {}
        for replica in active:
            if replica.has_outgoing and not replica.is_detached:
                number, group = replica.number, replica.group
                for to, data in replica.take_outgoing():
                    outgoing.setdefault(to, []).append((number, group, data))
        together: dict[tuple[int, ...], list[str]] = {}
        for to, messages in outgoing.items():
            together.setdefault(tuple([id(data) for _, _, data in messages]), []).append(to)
        for identities in together.values():
            self.wire.send(identities, outgoing[identities[0]])

    async def sync(self, flush: Flush, active: list[Replica], applying: list[Replica]) -> None:
        """Makes a round durable, or drops it if there is no room for it. `applying`: those who may have to apply."""
        in_line = self._sync_mode.is_in_line(flush.size_bytes)
        syncing = self._begin_sync(flush.run)
        try:
            beside = [replica for replica in applying if replica.is_awaited] if in_line else applying
            await self.apply(beside, callers_first=False, syncing=syncing)  # what earlier rounds have committed
            if in_line:
                syncing.wait(SLOW_SECONDS)
            seconds = await syncing
        except DiskFullError:
            flush.abort()
            refused = self._disk.found_full()
            # All of them: who was elected at the end of the last round has staged something since.
            for replica in self._replicas.values():
                replica.dropped(refused)
            self._leave_again()
            await asyncio.sleep(FULL_SECONDS)  # elections and first entries try again at once, and again
            return
        finally:
            syncing.cancel()  # of a node that ends; otherwise it is done
        self._sync_mode.took(seconds, flush.size_bytes)
        self._metrics.fsync_seconds.observe(seconds)
        self._metrics.fsyncs_in_line.inc(in_line)
        flush.done()
        self._left()
        if not self._has_synced:
            self._has_synced = True
            self._on_first_sync()
        self._finish(active)

    def _finish(self, active: list[Replica]) -> None:
        """What was staged is durable: promises may leave."""
        for replica in active:
            if not replica.is_detached:
                replica.synced()
        self._send(active)

    async def apply(self, active: list[Replica], *, callers_first: bool, syncing: Sync | None = None) -> None:
        """Replicas apply in turns: at least one turn beside a sync, and as many as there are until it ends; after it
        for a bounded time. Who gets no turn goes first the next time.

        While a sync runs nothing is left out. After it housekeeping yields to callers of all shards: the sync of those
        who came meanwhile begins at once, and housekeeping is applied beside it.
        """
        wanting = [replica for replica in active if not replica.is_detached and replica.has_to_apply]
        if not wanting:
            return
        ends_s = self._monotonic() + APPLY_SECONDS_MAX
        wanting = _in_turn(wanting, _APPLIED_TURN)
        line = deque(_in_turn(wanting, _ONLY_HOUSEKEEPING) if callers_first else wanting)
        while line:
            replica = line.popleft()
            if replica.is_detached or (callers_first and self._yields(replica)):
                continue
            has_more = await replica.apply(callers_first=callers_first)
            replica.applied_turn = self._next_turn()
            if has_more:
                line.append(replica)
            if line:
                await asyncio.sleep(0)
            if self._monotonic() >= ends_s if syncing is None else syncing.done():
                break

    def _yields(self, replica: Replica) -> bool:
        if not replica.shard.only_housekeeping_is_left:
            return False
        return any(other.shard.callers_wait for other in self._replicas.values())

    # --- those who leave --------------------------------------------------------------------------------------

    def _stage_leaving(self) -> None:
        for leaving in self._leaving.values():
            if not leaving.is_staged and not self._stopping:
                leaving.journal.forget()
                leaving.is_staged = True

    def _left(self) -> None:
        """A round is durable. What was staged since it began belongs to the next: nobody leaves in between."""
        for number, leaving in list(self._leaving.items()):
            if leaving.is_staged:
                del self._leaving[number]
                leaving.replica.forgotten()
                _settle(leaving.done)

    def _leave_again(self) -> None:
        """The round was dropped. What the log has of a replica is all that it ever promised."""
        for number, leaving in list(self._leaving.items()):
            journal = NodeJournal.load(self._log, number)
            if journal is None:  # it never had a round, or a later one was dropped
                del self._leaving[number]
                leaving.replica.forgotten()
                _settle(leaving.done)
                continue
            leaving.journal, leaving.is_staged = journal, False
            self._want_round()

    def _leave_the_rest(self) -> None:
        """The node stops; it finds them again when it starts."""
        for leaving in self._leaving.values():
            leaving.done.cancel()
        self._leaving.clear()

    async def _wait(self) -> None:
        """Until something is to be done, or a deadline has come. The network and the callers get their turn in any
        case."""
        if self._active or self._inbox or self._stopping or self._is_wanted:
            await asyncio.sleep(0)
            return
        self._watch_deadlines()
        self._waiting = asyncio.get_running_loop().create_future()
        try:
            await self._waiting
        finally:
            self._waiting = None

    def _end_wait(self) -> None:
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)

    def _want_round(self) -> None:
        self._is_wanted = True
        self._end_wait()

    def _watch_deadlines(self, pause_s: float = 0.0) -> None:
        """A round begins when the first replica is due. The timer stays where it is when deadlines move away, and looks
        anew when it ends."""
        due_s = min(self._deadlines.earliest_s, self._monotonic() + IDLE_SECONDS_MAX)
        if self._deadline is not None:
            if self._deadline_s <= due_s:
                return
            self._deadline.cancel()
        delay_s = max(pause_s, due_s - self._monotonic())
        self._deadline_s = due_s
        self._deadline = asyncio.get_running_loop().call_later(delay_s, self._deadline_came)

    def _deadline_came(self) -> None:
        self._deadline = None
        if self._waiting is None:
            return  # a round is under way: it sees what is due, and so does the next wait
        earliest_s = self._deadlines.look()
        if earliest_s > self._deadline_s:
            self._watch_deadlines()
        elif earliest_s > self._monotonic() + EARLY_SECONDS_MAX:
            self._watch_deadlines(TIMER_SECONDS)  # this event loop rounds, and would do so again
        else:
            self._end_wait()

    def stop(self) -> None:
        """Ends `run` once nothing waits any more."""
        self._stopping = True
        self._end_wait()


_STAGED_TURN = attrgetter("staged_turn")
_SENT_TURN = attrgetter("sent_turn")
_APPLIED_TURN = attrgetter("applied_turn")
_ONLY_HOUSEKEEPING = attrgetter("shard.only_housekeeping_is_left")


def _in_turn(replicas: list[Replica], turn: Callable[[Replica], int]) -> list[Replica]:
    """Whoever had its turn longest ago goes first."""
    return replicas if len(replicas) < 2 else sorted(replicas, key=turn)


def _settle(done: asyncio.Future[None]) -> None:
    if not done.done():
        done.set_result(None)
