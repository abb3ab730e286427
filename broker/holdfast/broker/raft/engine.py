"""One replica of a shard: the corrected steps of Raft.

What is different from the library, each because it was shown to lose or invent entries otherwise:
  * a log is cut only where it conflicts, never because an old message came again
  * every reply carries a term, and one of another term is dropped
  * votes are a set of replicas, and a candidate's own counts once it is durable
  * a leader counts an entry of its own only once it is durable
  * what is committed is never more than what was compared with the leader's log
  * nobody is disturbed by a replica that was cut off (pre-vote), and a leader that hears no majority steps down before
    another can be elected
"""

from collections.abc import Callable
from dataclasses import dataclass, field

from holdfast.broker.raft.journal import Journal
from holdfast.broker.raft.library import CANDIDATE, FOLLOWER, LEADER, REGULAR, LibraryRaft, Timing
from holdfast.broker.raft.messages import (
    Append,
    AppendReply,
    Entry,
    Message,
    PreVote,
    PreVoteReply,
    RequestVote,
    TimeoutNow,
    VoteReply,
)

APPEND_BYTES_MAX = 1024 * 1024  # of entries in one message, unless a single one is larger
_SENDINGS_KEPT = 1_000  # without an answer, per replica
_HAND_OVER_ELECTIONS = 2  # how many election times a hand-over may take before the leader serves again


@dataclass(slots=True)
class _Peer:
    """What a leader knows of another replica, beside its indexes."""

    echoed_round: int = 0  # the newest of this leader's sendings that it has answered
    echoed_sent_s: float = 0.0  # when that was sent
    refused_round: int = 0  # refusals of sendings up to this one have been dealt with
    sent_s: dict[int, float] = field(default_factory=dict)  # of the last sendings without an answer yet

    def note_sent(self, number: int, now_s: float) -> None:
        self.sent_s[number] = now_s
        if len(self.sent_s) > _SENDINGS_KEPT:
            del self.sent_s[next(iter(self.sent_s))]

    def note_echo(self, number: int) -> None:
        sent_s = self.sent_s.get(number)
        if sent_s is not None and number > self.echoed_round:
            self.echoed_round, self.echoed_sent_s = number, max(self.echoed_sent_s, sent_s)
            self.sent_s = {later: at for later, at in self.sent_s.items() if later > number}


class ShardRaft(LibraryRaft):
    """A driver calls `receive`, `propose`, `tick`, makes the journal durable and calls `synced`, in rounds.

    After each call it sends what is in `outbox` at once, and what is in `held` after the next `synced`: those messages
    promise something that must be on disk first. Entries up to `commit_index` are to be applied in order.
    """

    def __init__(
        self,
        replica: str,
        voters: set[str],
        journal: Journal,
        *,
        now_s: float,
        applied_index: int = 1,
        timing: Timing,
        append_bytes_max: int = APPEND_BYTES_MAX,
        draw: Callable[[], float],
    ) -> None:
        super().__init__(replica, voters, journal, timing, draw)
        self.outbox: list[tuple[str, Message]] = []
        self.held: list[tuple[str, Message]] = []
        self.durable_index = self.last_index
        self._append_bytes_max = append_bytes_max
        self._now_s = now_s
        self._votes: set[str] = set()
        self._pre_votes: set[str] | None = None  # None unless asking for them
        # As if it had just heard one: before a restart it may have, and that leader still counts on it.
        self._heard_leader_s = now_s
        self._peers: dict[str, _Peer] = {}
        self._round = 0
        self._heartbeat_due_s = now_s
        self._handing_over_to: str | None = None
        self._hand_over_ends_s = 0.0
        self.applied_index = self.commit_index = max(applied_index, self.first_index)
        self._put_off_election()

    # --- what the driver calls --------------------------------------------------------------------------------

    def receive(self, sender: str, message: Message, now_s: float) -> None:
        """One message of a voter; whatever else comes is dropped."""
        self._now_s = now_s
        if sender not in self.others:
            return
        if isinstance(message, RequestVote) and not message.transfer and self._hears_a_leader():
            return  # nor is its term adopted: that alone would unseat the leader
        if message.term > self.term and not isinstance(message, PreVote) and not _is_promise(message):
            self._adopt_term(message.term)
        match message:
            case PreVote():
                self._on_pre_vote(sender, message)
            case PreVoteReply():
                self._on_pre_vote_reply(sender, message)
            case RequestVote():
                self._on_request_vote(sender, message)
            case VoteReply():
                self._on_vote_reply(sender, message)
            case Append():
                self._on_append(sender, message)
            case AppendReply():
                self._on_append_reply(sender, message)
            case TimeoutNow():
                self._on_timeout_now(sender, message)

    def propose(self, command: bytes) -> int | None:
        """The index of the new entry; None if this replica does not lead, or is handing over."""
        if self.role != LEADER or self._handing_over_to is not None:
            return None
        entry = Entry(REGULAR + command, self.last_index + 1, self.term)
        self.append(entry)
        return entry.index

    def tick(self, now_s: float) -> None:
        """Lets time pass: elections, heartbeats, and stepping down."""
        self._now_s = now_s
        if self.role == LEADER:
            self._tick_as_leader()
        elif now_s >= self.election_deadline_s:
            self._ask_for_pre_votes()

    def replicate(self) -> None:
        """Sends entries that the others do not have yet. For the leader, after proposals were taken."""
        if self.role == LEADER:
            for peer in self.others:
                while self.next_index(peer) <= self.last_index and self._send_append(peer):
                    pass

    def synced(self) -> None:
        """Everything in the journal is durable; nothing has entered the engine since that sync began."""
        self.durable_index = self.last_index
        self.outbox += self.held
        self.held.clear()
        if self.role == CANDIDATE and self.voted_for == self.replica:
            self._votes.add(self.replica)
            self._lead_if_elected()
        elif self.role == LEADER:
            self._advance_commit()

    def committed(self, entries_max: int) -> list[Entry]:
        """The next entries to apply, in order."""
        stop = min(self.commit_index, self.applied_index + entries_max)
        return [self.entry_at(index) for index in range(self.applied_index + 1, stop + 1)]

    def applied(self, index: int) -> None:
        self.applied_index = index

    @property
    def serves(self) -> bool:
        """Whether this replica leads and has applied an entry of its own term: only then its term may be used."""
        return self.role == LEADER and self.applied_index >= self.first_own_index

    def hand_over(self, to: str) -> bool:
        """Begins to make another replica the leader; nothing is accepted meanwhile."""
        if self.role != LEADER or to not in self.others:
            return False
        self._handing_over_to = to
        self._hand_over_ends_s = self._now_s + _HAND_OVER_ELECTIONS * self.timing.election_s_max
        self._finish_hand_over()
        return True

    def begin_read(self) -> int | None:
        """A number to ask `may_read` about; None if this replica does not serve."""
        if not self.serves:
            return None
        first = self._round + 1  # whatever is sent from now on
        self._heartbeat()
        return first

    def may_read(self, number: int) -> bool:
        """Whether a majority has answered since: then nobody else led when the read began."""
        echoed = sorted((self._peers[peer].echoed_round for peer in self.others), reverse=True)
        others_needed = self._majority - 1
        return self.serves and (others_needed == 0 or echoed[others_needed - 1] >= number)

    # --- elections --------------------------------------------------------------------------------------------

    @property
    def _majority(self) -> int:
        return (len(self.others) + 1) // 2 + 1

    def _adopt_term(self, term: int) -> None:
        self._enter_term(term, None)
        self._become_follower(None)

    def _enter_term(self, term: int, voted_for: str | None) -> None:
        # What was promised in the old term and has not left yet must not leave: it may not hold any more.
        self.held.clear()
        self.set_term(term, voted_for)

    def _become_follower(self, leader: str | None) -> None:
        if self.role == LEADER:
            self._put_off_election()
        self._votes.clear()
        self._pre_votes = None
        self._handing_over_to = None
        self.follow(leader)

    def _put_off_election(self) -> None:
        self.election_deadline_s = self._now_s + self._SyncObj__generateRaftTimeout()

    def _hears_a_leader(self) -> bool:
        """Whether a leader may still count on this replica: it must not help another one."""
        return self.role == LEADER or self._now_s < self._heard_leader_s + self.timing.election_s_min

    def _is_as_complete(self, last_index: int, last_term: int) -> bool:
        return (last_term, last_index) >= (self.last_term, self.last_index)

    def _ask_for_pre_votes(self) -> None:
        self._put_off_election()
        self._become_follower(None)
        self._pre_votes = {self.replica}
        for peer in self.others:
            self.outbox.append((peer, PreVote(self.term + 1, self.last_index, self.last_term)))
        self._stand_if_promised()

    def _on_pre_vote(self, sender: str, asked: PreVote) -> None:
        granted = (
            asked.term > self.term
            and not self._hears_a_leader()
            and self._is_as_complete(asked.last_index, asked.last_term)
        )
        self.outbox.append((sender, PreVoteReply(asked.term if granted else self.term, granted)))

    def _on_pre_vote_reply(self, sender: str, reply: PreVoteReply) -> None:
        if self._pre_votes is not None and reply.granted and reply.term == self.term + 1:
            self._pre_votes.add(sender)
            self._stand_if_promised()

    def _stand_if_promised(self) -> None:
        if self._pre_votes is not None and len(self._pre_votes) >= self._majority:
            self._stand_for_election(transfer=False)

    def _stand_for_election(self, *, transfer: bool) -> None:
        self._become_follower(None)
        self._put_off_election()
        self.stand()
        self._enter_term(self.term + 1, self.replica)
        for peer in self.others:
            self.held.append((peer, RequestVote(self.term, self.last_index, self.last_term, transfer)))

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
        self.held.append((sender, VoteReply(self.term, granted)))

    def _on_vote_reply(self, sender: str, reply: VoteReply) -> None:
        if self.role == CANDIDATE and reply.granted and reply.term == self.term:
            self._votes.add(sender)
            self._lead_if_elected()

    def _lead_if_elected(self) -> None:
        # Its own vote must be among them: it is only counted once it is durable.
        if self.replica in self._votes and len(self._votes) >= self._majority:
            self.lead()
            self._peers = {peer: _Peer(echoed_sent_s=self._now_s) for peer in self.others}
            self._heartbeat()

    # --- the leader -------------------------------------------------------------------------------------------

    def _tick_as_leader(self) -> None:
        echoed_s = sorted((peer.echoed_sent_s for peer in self._peers.values()), reverse=True)
        others_needed = self._majority - 1
        if others_needed and self._now_s > echoed_s[others_needed - 1] + self.timing.silence_s_max:
            self._become_follower(None)
            return
        if self._handing_over_to is not None and self._now_s >= self._hand_over_ends_s:
            self._handing_over_to = None  # it did not come to an election: serve again
        if self._now_s >= self._heartbeat_due_s:
            self._heartbeat()

    def _heartbeat(self) -> None:
        self._heartbeat_due_s = self._now_s + self.timing.heartbeat_s
        for peer in self.others:
            self._send_append(peer)

    def _send_append(self, peer: str) -> bool:
        """The next entries for a replica, or none of them. False if it needs entries that the log no longer has."""
        first = self.next_index(peer)
        previous_term = self.term_at(first - 1)
        if previous_term is None:
            return False  # behind the start of the log: it needs a snapshot
        entries: list[Entry] = []
        size_bytes = 0
        for index in range(first, self.last_index + 1):
            entry = self.entry_at(index)
            size_bytes += len(entry.command)
            if entries and size_bytes > self._append_bytes_max:
                break
            entries.append(entry)
        self._round += 1
        self._peers[peer].note_sent(self._round, self._now_s)
        message = Append(self.term, first - 1, previous_term, tuple(entries), self.commit_index, self._round)
        self.outbox.append((peer, message))
        # In the hope that it arrives; a refusal sets it back.
        self.set_next_index(peer, first + len(entries))
        return bool(entries)

    def _on_append_reply(self, sender: str, reply: AppendReply) -> None:
        if self.role != LEADER or reply.term != self.term:
            return
        self._peers[sender].note_echo(reply.round)
        if not reply.success:
            self._try_from(sender, reply)
            return
        if reply.index > self.match_index(sender):
            self.set_match_index(sender, reply.index)
            self.set_next_index(sender, max(self.next_index(sender), reply.index + 1))
            self._advance_commit()
        self._finish_hand_over()

    def _try_from(self, sender: str, refusal: AppendReply) -> None:
        """Begins again where the log may agree. All that was sent since was based on the same error: one answer to all
        of those refusals will do, or a network that doubles messages would double them without end."""
        peer = self._peers[sender]
        if refusal.round > peer.refused_round:
            peer.refused_round = self._round
            first = min(refusal.index + 1, self.last_index + 1)
            self.set_next_index(sender, max(self.match_index(sender) + 1, first))
            self._send_append(sender)

    def _advance_commit(self) -> None:
        """What a majority has on disk is committed, if it is of this leader's own term."""
        durable = sorted([self.durable_index, *(self.match_index(peer) for peer in self.others)], reverse=True)
        index = min(durable[self._majority - 1], self.last_index)
        if index > self.commit_index and self.term_at(index) == self.term:
            self.commit_index = index

    def _finish_hand_over(self) -> None:
        to = self._handing_over_to
        if to is not None and self.match_index(to) == self.last_index:
            self.outbox.append((to, TimeoutNow(self.term)))

    # --- followers --------------------------------------------------------------------------------------------

    def _on_append(self, sender: str, message: Append) -> None:
        if message.term < self.term:
            self.outbox.append((sender, AppendReply(self.term, False, self.last_index, message.round)))
            return
        self._heard_leader_s = self._now_s
        self._put_off_election()
        if self.role != FOLLOWER or self.leader != sender:
            assert self.role != LEADER, "two leaders of one term"
            self._become_follower(sender)
        if self.term_at(message.previous_index) != message.previous_term:
            self._refuse(sender, message)
            return
        agreed = self._take(message)
        if message.commit_index > self.commit_index:
            self.commit_index = max(self.commit_index, min(message.commit_index, agreed))
        self.held.append((sender, AppendReply(self.term, True, agreed, message.round)))

    def _refuse(self, sender: str, message: Append) -> None:
        """Tells where to try next: before all of the term that does not fit, but never before what is committed."""
        hint = min(message.previous_index - 1, self.last_index)
        unfit = self.term_at(hint)
        while hint > self.commit_index and self.term_at(hint) == unfit:
            hint -= 1
        self.outbox.append((sender, AppendReply(self.term, False, max(hint, self.commit_index), message.round)))

    def _take(self, message: Append) -> int:
        """Adds what is new; returns up to where the log is now known to agree with the leader's."""
        for place, entry in enumerate(message.entries):
            mine = self.term_at(entry.index)
            if mine == entry.term:
                continue
            if mine is not None:
                assert entry.index > self.commit_index, "a committed entry would be cut"
                self.cut_from(entry.index)
                self.durable_index = min(self.durable_index, entry.index - 1)
            for new in message.entries[place:]:
                self.append(new)
            break
        return message.previous_index + len(message.entries)

    def _on_timeout_now(self, sender: str, message: TimeoutNow) -> None:
        if message.term == self.term and self.role == FOLLOWER and sender == self.leader:
            self._stand_for_election(transfer=True)


def _is_promise(message: Message) -> bool:
    """A granted pre-vote names a term that nobody has yet."""
    return isinstance(message, PreVoteReply) and message.granted
