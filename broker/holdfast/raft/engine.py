"""One replica of a shard: the corrected steps of Raft.

What is different from the library, each because it was shown to lose or invent entries otherwise:
  * a log is cut only where it conflicts, never because an old message came again
  * every reply carries a term, and one of another term is dropped
  * votes are a set of replicas, and a candidate's own counts once it is durable
  * a leader counts an entry of its own only once it is durable
  * what is committed is never more than what was compared with the leader's log
  * nobody is disturbed by a replica that was cut off (pre-vote), and a leader that hears no majority steps down before
    another can be elected
  * members change one at a time, through the log alone: a configuration counts from when it is appended, and no longer
    when its entry is cut (membership.py)
  * a replica that was deleted and taken back votes as if it still had the log that it had, and what it acknowledged
    before its leader added it again counts for nothing
"""

import math
from collections.abc import Callable

from holdfast.raft.journal import Journal
from holdfast.raft.library import CANDIDATE, FOLLOWER, LEADER, Setup, Timing
from holdfast.raft.liveness import ECHO_ONLY, AliveRaft
from holdfast.raft.messages import (
    Append,
    AppendReply,
    Configuration,
    EntryKind,
    ImpossibleMessageError,
    LogEntry,
    Message,
    PreVote,
    PreVoteReply,
    RequestVote,
    TimeoutNow,
    VoteReply,
)
from holdfast.raft.progress import Progress
from holdfast.raft.sending import APPEND_BYTES_MAX

# Each term takes an election, so no group ever gets this far. If one message could lead there, it could also use up the
# numbers, and nobody would be elected after that. A group that is there nonetheless goes on by small steps.
TERM_LIKELY_MAX = 2**48
TERMS_AHEAD_MAX = 2**32
_HAND_OVER_ELECTIONS = 2  # how many election times a hand-over may take before the leader serves again
_REPLIES = (AppendReply, VoteReply, PreVoteReply)


class ShardRaft(AliveRaft):
    """A driver calls `receive`, `propose`, `tick`, makes the journal durable and calls `synced`, in rounds.

    After each call it sends what is `ready`: promises are, once `synced` says that they are on disk. Entries up to
    `ready_index` are to be applied in order.
    """

    def __init__(
        self,
        replica: str,
        journal: Journal,
        *,
        now_s: float,
        applied_index: int | None = None,
        timing: Timing,
        append_bytes_max: int = APPEND_BYTES_MAX,
        draw: Callable[[], float],
        shard_time_ms: Callable[[], int] = lambda: 0,
    ) -> None:
        """`applied_index` is what the state has; without one it is as old as the start of the log. `shard_time_ms` is
        what a leader tells the others; 0 if it does not know."""
        super().__init__(Setup(replica, journal, timing, draw, now_s, append_bytes_max, shard_time_ms))
        self.is_reluctant = False  # True: leads if it is asked to, but leaves elections to others
        self.may_campaign = True  # False while this node's clock is off: then it neither campaigns nor leads
        self.leader_commit_index = 0  # the newest that a leader has told, whether it is here or not
        self._votes: set[str] = set()
        self._pre_votes: set[str] | None = None  # None unless asking for them
        self._hand_over_ends_s = 0.0
        self._led_term = 0  # the last that it led
        self._begin_at(self.base_index if applied_index is None else applied_index)
        self._put_off_election()
        if self.configuration.voters == (replica,):
            self.election_deadline_s = now_s  # there is nobody to wait for

    def _begin_at(self, applied_index: int) -> None:
        if not self.base_index <= applied_index <= self.last_index:
            raise ValueError(
                f"Expected a state that goes with a log of the entries after {self.base_index} up to "
                f"{self.last_index}, but it ends with entry {applied_index}."
            )
        self.applied_index = self.commit_index = applied_index

    # --- what the driver calls --------------------------------------------------------------------------------

    def receive(self, sender: str, message: Message, now_s: float) -> None:
        """One message. Requests are answered for everybody, because this replica's own configuration may be old;
        replies count only from members. Raises `ImpossibleMessageError`, and then has changed nothing."""
        self._now_s = now_s
        if sender == self.replica or (isinstance(message, _REPLIES) and sender not in self._others):
            return
        if message.term > TERM_LIKELY_MAX:
            self.check_term(message.term)
        if isinstance(message, Append) and message.term >= self.term:
            self._check_append(sender, message)
        if isinstance(message, RequestVote) and not message.transfer and self._hears_a_leader():
            return  # nor is its term adopted: that alone would unseat the leader
        if message.term > self.term and not isinstance(message, PreVote) and not _is_promise(message):
            self._adopt_term(message.term)
        match message:
            case Append():
                self._on_append(sender, message)
            case AppendReply():
                self._on_append_reply(sender, message)
            case PreVote():
                self._on_pre_vote(sender, message)
            case PreVoteReply():
                self._on_pre_vote_reply(sender, message)
            case RequestVote():
                self._on_request_vote(sender, message)
            case VoteReply():
                self._on_vote_reply(sender, message)
            case TimeoutNow():
                self._on_timeout_now(sender, message)

    def propose(self, command: bytes, kind: EntryKind = EntryKind.REGULAR) -> int | None:
        """The index of the new entry; None if this replica does not lead, or is handing over."""
        assert kind != EntryKind.CONFIGURATION, "members change through propose_configuration"
        if not self.accepts:
            return None
        entry = LogEntry(self.last_index + 1, self.term, kind, command)
        self.append(entry)
        return entry.index

    def tick(self, now_s: float) -> None:
        """Lets time pass: elections, heartbeats, and stepping down."""
        self._now_s = now_s
        if self.role == LEADER:
            self._tick_as_leader()
        elif now_s >= self.election_deadline_s:
            if self._may_stand() and not self.is_reluctant:
                self._ask_for_pre_votes()
            else:
                self._put_off_election()
                self._become_follower(self.leader)

    def next_deadline_s(self) -> float:
        """When `tick` has something to do next, if nothing comes before that."""
        if self.role != LEADER:
            return self.election_deadline_s
        ends_s = math.inf if self._handing_over_to is None else self._hand_over_ends_s
        return min(self._heartbeat_due_s, self._silence_ends_s(), ends_s)

    def synced(self) -> None:
        """Everything in the journal is durable; nothing has entered the engine since that sync began."""
        last_index = self.journal.last_index
        has_more = self.durable_index != last_index
        self.durable_index = last_index
        self.ready.synced()
        self._note_synced()
        if self.role == CANDIDATE and self.voted_for == self.replica:
            self._votes.add(self.replica)
            self._lead_if_elected()
        elif self.role == LEADER and has_more:
            self._advance_commit()

    def go_back_to(self, journal: Journal) -> None:
        """The last round never became durable and never will: the log is as it was before, and so is the term. For a
        leader on its own; what others may have been sent cannot be taken back, and another must lead."""
        assert self.role == LEADER
        assert journal.term == self.term
        self.use_journal(journal)
        self.durable_index = self.last_index
        self.ready.drop_all()
        was_alone = self.is_alone
        self._configuration_changed()
        if not (was_alone and self.is_alone):
            self._become_follower(None)

    def committed(self, entries_max: int) -> list[LogEntry]:
        """The next entries to apply, in order; only what is durable here, so that no state is ever ahead of its log."""
        stop = min(self.ready_index, self.applied_index + entries_max)
        entry_at = self.journal.entry_at
        return [entry_at(index) for index in range(self.applied_index + 1, stop + 1)]

    @property
    def ready_index(self) -> int:
        """The newest entry that may be applied."""
        return min(self.commit_index, self.durable_index)

    @property
    def behind(self) -> int:
        """How many entries may be applied and are not."""
        return min(self.commit_index, self.durable_index) - self.applied_index

    def applied(self, index: int) -> None:
        self.applied_index = index

    def hand_over(self, to: str) -> bool:
        """Begins to make another voter the leader; nothing is accepted meanwhile."""
        if self.role != LEADER or to not in self._other_voters:
            return False
        self._handing_over_to = to
        self._hand_over_ends_s = self._now_s + _HAND_OVER_ELECTIONS * self.timing.election_s_max
        self._finish_hand_over()
        return True

    def resign(self) -> None:
        """Leads no more, and never again: its replica is on its way out."""
        self.may_campaign = False
        if self.role != FOLLOWER:
            self._become_follower(None)

    def begin_read(self) -> int | None:
        """A number to ask `may_read` about; None if this replica does not serve."""
        if not self.serves:
            return None
        first = self.newest_round + 1  # whatever is sent from now on
        self._heartbeat()
        return first

    def may_read(self, number: int) -> bool:
        """Whether a majority has answered since: then nobody else led when the read began."""
        if not self.serves or self._others_needed == 0:
            return self.serves
        echoed = sorted([self.progress[peer].echoed_round for peer in self._other_voters])
        return echoed[-self._others_needed] >= number

    # --- what cannot be ---------------------------------------------------------------------------------------

    def check_term(self, term: int) -> None:
        """Raises `ImpossibleMessageError` for a term that no member can have."""
        if self._is_beyond(term):
            raise ImpossibleMessageError(f"term {term}, which is too far ahead of term {self.term}")

    def _is_beyond(self, term: int) -> bool:
        # Who is empty has nothing to compare with.
        return term > TERM_LIKELY_MAX and 0 < self.term < term - TERMS_AHEAD_MAX

    def _check_append(self, sender: str, message: Append) -> None:
        """Of this term or a later one: its leader is one, and has everything that is committed here."""
        leader = self.replica if self._led_term == self.term else self.leader
        if message.term == self.term and leader not in (None, sender):
            raise ImpossibleMessageError(f"entries of term {self.term}, in which {leader} leads")
        base_index, commit_index, previous_index = self.base_index, self.commit_index, message.previous_index
        if message.entries and previous_index < commit_index:
            for entry in message.entries[max(0, base_index - previous_index - 1) : commit_index - previous_index]:
                if self.term_at(entry.index) != entry.term:
                    found = f"entry {entry.index} of term {entry.term}, where another is committed"
                    raise ImpossibleMessageError(found)

    # --- snapshots --------------------------------------------------------------------------------------------

    def wants_snapshot(self) -> list[str]:
        """Who needs entries that this leader's log no longer has."""
        if self.role != LEADER:
            return []
        return [peer for peer in self.others if self.progress[peer].next_index <= self.base_index]

    def compact(self, index: int) -> None:
        """Entries up to this one are no longer needed here: the state has them."""
        assert index <= self.applied_index, "what is not applied would be lost"
        if index > self.base_index:
            self.journal.compact(index)

    def install_snapshot(
        self, sender: str, term: int, index: int, index_term: int, configuration: Configuration
    ) -> bool:
        """Begins anew with a state that has everything up to `index`. False if the log is as good as that.

        `term` is the sender's when it sent the snapshot. What a snapshot has is committed and stays so, therefore one
        that took longer than its sender led is still good; but then it is no sign of a leader.
        """
        if self._is_beyond(term):
            return False
        if term > self.term:
            self._adopt_term(term)
        if term == self.term and self.role != LEADER:
            self._hear_leader(sender)
        if self.role == LEADER or index <= self.commit_index or self.term_at(index) == index_term:
            return False
        self._become_follower(self.leader)
        # Until the next sync a crash brings back the old log, of which only what was committed is sure to stay.
        self.durable_index = min(self.durable_index, self.commit_index)
        self.ready.drop_after_sync()  # of the old log: they have nothing to rest on any more
        self.journal.reset(index, index_term, configuration)
        self.commit_index = self.applied_index = index
        self._configuration_changed()
        if term == self.term:
            self.ready.send_after_sync(sender, AppendReply(self.term, True, index, 0))
        return True

    # --- elections --------------------------------------------------------------------------------------------

    def _may_stand(self) -> bool:
        """Not before it has again what it had in a former incarnation: those who count on that would be betrayed."""
        has_all = (self.last_term, self.last_index) >= self.journal.former_last
        return self.may_campaign and self.replica in self._voters and has_all

    def _adopt_term(self, term: int) -> None:
        self._enter_term(term, None)
        self._become_follower(None)

    def _enter_term(self, term: int, voted_for: str | None) -> None:
        # What was promised in the old term and has not left yet must not leave: it may not hold any more.
        self.ready.drop_after_sync()
        self.set_term(term, voted_for)

    def _become_follower(self, leader: str | None) -> None:
        if self.role == LEADER:
            self._put_off_election()
        self._votes.clear()
        self._pre_votes = None
        self._handing_over_to = None
        self._forget_rounds()
        self.follow(leader)

    def _is_as_complete(self, last_index: int, last_term: int) -> bool:
        return (last_term, last_index) >= max((self.last_term, self.last_index), self.journal.former_last)

    def _ask_for_pre_votes(self) -> None:
        self._put_off_election()
        self._become_follower(None)
        self._pre_votes = {self.replica}
        question = PreVote(self.term + 1, self.last_index, self.last_term)
        for peer in self._other_voters:
            self.ready.send(peer, question)
        self._stand_if_promised()

    def _on_pre_vote(self, sender: str, asked: PreVote) -> None:
        granted = (
            asked.term > self.term
            and not self._hears_a_leader()
            and self._is_as_complete(asked.last_index, asked.last_term)
        )
        self.ready.send(sender, PreVoteReply(asked.term if granted else self.term, granted))

    def _on_pre_vote_reply(self, sender: str, reply: PreVoteReply) -> None:
        if self._pre_votes is None or sender not in self._voters:
            return
        if reply.granted and reply.term == self.term + 1:
            self._pre_votes.add(sender)
            self._stand_if_promised()

    def _stand_if_promised(self) -> None:
        if self._may_stand() and self._pre_votes is not None and len(self._pre_votes) >= self._majority:
            self._stand_for_election(transfer=False)

    def _stand_for_election(self, *, transfer: bool) -> None:
        self._become_follower(None)
        self._put_off_election()
        self.stand()
        self._enter_term(self.term + 1, self.replica)
        request = RequestVote(self.term, self.last_index, self.last_term, transfer)
        for peer in self._other_voters:
            self.ready.send_after_sync(peer, request)

    def _on_request_vote(self, sender: str, asked: RequestVote) -> None:
        granted = (
            asked.term == self.term
            and self.role == FOLLOWER
            and self.voted_for in (None, sender)
            and self._is_as_complete(asked.last_index, asked.last_term)
        )
        if granted:
            self.set_term(self.term, sender)
            self._put_off_election()
        # A refusal tells a candidate of an old term the new one; that is durable at the next sync as well.
        self.ready.send_after_sync(sender, VoteReply(self.term, granted))

    def _on_vote_reply(self, sender: str, reply: VoteReply) -> None:
        # A configuration that comes while it stands ends that: these are the voters of the one it stood with.
        if self.role == CANDIDATE and reply.granted and reply.term == self.term and sender in self._voters:
            self._votes.add(sender)
            self._lead_if_elected()

    def _lead_if_elected(self) -> None:
        # Its own vote must be among them: it is only counted once it is durable.
        if self.replica in self._votes and len(self._votes) >= self._majority:
            first = self.last_index + 1  # the entry that it begins with
            self.progress = {peer: Progress(self._now_s, first) for peer in self.others}
            self.lead()
            self._led_term = self.term
            self._heartbeat_due_s = self._now_s + self.timing.heartbeat_s
            self._send_appends(self.others)

    # --- the leader -------------------------------------------------------------------------------------------

    def _tick_as_leader(self) -> None:
        if self._handing_over_to is not None and self._now_s >= self._hand_over_ends_s:
            self._handing_over_to = None  # it did not come to an election: serve again
        gives_up = not self.may_campaign and self._handing_over_to is None
        if gives_up or self._now_s >= self._silence_ends_s():
            self._become_follower(None)
        elif self._now_s >= self._heartbeat_due_s:
            self._heartbeat()

    def _on_append_reply(self, sender: str, reply: AppendReply) -> None:
        if self.role != LEADER or reply.term != self.term or reply.round > self.newest_round:
            return
        progress = self.progress[sender]
        if reply.round <= progress.former_round:
            return
        progress.note_echo(reply.round)
        if not reply.success:
            self._try_from(sender, reply)
            return
        if reply.index == ECHO_ONLY:
            return
        if progress.note_durable(reply.index, self.journal.last_index) and progress.match_index > self.commit_index:
            self._advance_commit()
        if self._handing_over_to is not None:
            self._finish_hand_over()

    def _try_from(self, sender: str, refusal: AppendReply) -> None:
        """Begins again where the log may agree."""
        progress = self.progress[sender]
        is_new = progress.note_refusal(refusal.round, refusal.index, self.newest_round, self.last_index)
        if is_new and progress.next_index > self.base_index:
            self._send_appends((sender,))

    def _advance_commit(self) -> None:
        """What a majority has on disk is committed, if it is of this leader's own term."""
        if self.is_alone:
            index = self.durable_index
        else:
            durable = [self.progress[peer].match_index for peer in self._other_voters]
            if self.replica in self._voters:
                durable.append(self.durable_index)
            durable.sort()
            index = durable[-self._majority]
        if index > self.commit_index and self.term_at(index) == self.term:
            self.commit_index = index
            if self.configuration_index <= index and self.replica not in self._voters:
                self._become_follower(None)  # its group goes on without it

    def _finish_hand_over(self) -> None:
        to = self._handing_over_to
        if to is not None and self.progress[to].match_index == self.last_index:
            self.ready.send(to, TimeoutNow(self.term))

    # --- followers --------------------------------------------------------------------------------------------

    def _on_append(self, sender: str, message: Append) -> None:
        if message.term < self.term:
            # It tells the newer term, and echoes nothing: the sender may lead again in just that term, with its rounds
            # counted anew.
            self.ready.send(sender, AppendReply(self.term, False, self.last_index, 0))
            return
        self._hear_leader(sender)
        if message.round > self._taken_round:
            self._taken_round = message.round
            self._heard_round = max(self._heard_round, message.round)
        self.leader_commit_index = message.commit_index
        self._note_time(message.now_ms)
        previous_index = message.previous_index
        # What is before the base is committed, so the leader has the same.
        if previous_index >= self.base_index and self.term_at(previous_index) != message.previous_term:
            self._refuse(sender, message)
            return
        agreed = self._take(message) if message.entries else max(previous_index, self.base_index)
        if message.commit_index > self.commit_index:
            self.commit_index = max(self.commit_index, min(message.commit_index, agreed))
        self.ready.send_after_sync(sender, AppendReply(self.term, True, agreed, message.round))

    def _hear_leader(self, leader: str) -> None:
        self._note_leader()
        if self.role != FOLLOWER or self.leader != leader:
            assert self.role != LEADER, "two leaders of one term"
            self._become_follower(leader)

    def _refuse(self, sender: str, message: Append) -> None:
        """Tells where to try next: at the end of this log, or before all of the term that does not fit, but never
        before what is committed."""
        hint = self.last_index
        if hint >= message.previous_index:
            unfit, hint = self.term_at(message.previous_index), message.previous_index - 1
            while hint > self.commit_index and self.term_at(hint) == unfit:
                hint -= 1
        self.ready.send(sender, AppendReply(self.term, False, max(hint, self.commit_index), message.round))

    def _take(self, message: Append) -> int:
        """Adds what is new; returns up to where the log is now known to agree with the leader's."""
        entries, base_index = message.entries, self.base_index
        place = max(0, base_index - message.previous_index)
        while place < len(entries) and self.term_at(entries[place].index) == entries[place].term:
            place += 1
        if place < len(entries):
            index = entries[place].index
            if index <= self.last_index:
                assert index > self.commit_index, "a committed entry would be cut"
                self.cut_from(index)
            for new in entries[place:]:
                self.append(new)
        return max(message.previous_index + len(entries), base_index)

    def _on_timeout_now(self, sender: str, message: TimeoutNow) -> None:
        asked = message.term == self.term and self.role == FOLLOWER and sender == self.leader
        if asked and self._may_stand():
            self._stand_for_election(transfer=True)


def _is_promise(message: Message) -> bool:
    """A granted pre-vote names a term that nobody has yet."""
    return isinstance(message, PreVoteReply) and message.granted
