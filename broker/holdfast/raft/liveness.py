"""Who is known to be alive: heartbeats, their echoes, and how long a silence may last.

Signs of life promise nothing about the log. So they do not wait for a sync or for entries that are being applied: while
a round is under way `overhear` takes note of what arrives, and `beat` sends what is due. Neither touches the log, the
term or the vote, or counts anything as durable; the messages themselves are delivered in the next round as ever.
"""

import math

from holdfast.raft.library import FOLLOWER, LEADER, Setup
from holdfast.raft.messages import AppendReply, Sign
from holdfast.raft.sending import SendingRaft

ECHO_ONLY = 0  # as the index of a reply: it was heard, and nothing is said of the log


class AliveRaft(SendingRaft):
    """What a replica knows of the others' lives, and lets them know of its own."""

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        self._durable_term = self.term
        # As if it had just heard one: before a restart it may have, and that leader still counts on it.
        self._heard_leader_s = setup.now_s
        self._heartbeat_due_s = setup.now_s
        # Sendings of the leader, by their numbers: the newest that has arrived, was delivered, was answered.
        self._heard_round = self._taken_round = self._answered_round = 0

    def leader_silent_s(self, now_s: float) -> float:
        """How long ago this replica, as a follower, last heard of a leader."""
        return now_s - self._heard_leader_s

    # --- while a round is under way ---------------------------------------------------------------------------

    def overhear(self, sender: str, sign: Sign, now_s: float) -> None:
        """A message has arrived that will be delivered later. That its sender lives is known from now on."""
        if sign.term != self.term:
            return
        self._now_s = max(self._now_s, now_s)
        if not sign.is_reply:
            if self.role == FOLLOWER and sender == self.leader:
                self._note_leader()
                self._heard_round = max(self._heard_round, sign.round)
        elif self.role == LEADER and sender in self._others and sign.round <= self.newest_round:
            progress = self.progress[sender]
            if sign.round > progress.former_round:
                progress.note_heard(sign.round)

    def beat(self, now_s: float) -> None:
        """Signs of life that are due are ready to leave, whatever the round is busy with."""
        self._now_s = max(self._now_s, now_s)
        if self.role == LEADER:
            if self._heartbeat_due_s <= now_s < self._silence_ends_s():
                self._heartbeat()
        elif self.role == FOLLOWER and self.leader is not None:
            is_due = self._heard_round > self._answered_round
            if is_due and self._durable_term == self.term:
                self._answered_round = self._heard_round
                self.ready.send(self.leader, AppendReply(self.term, True, ECHO_ONLY, self._heard_round))

    def _note_synced(self) -> None:
        """All that was heard in rounds is answered, and the term is durable."""
        self._durable_term = self.term
        self._answered_round = max(self._answered_round, self._taken_round)

    # --- followers --------------------------------------------------------------------------------------------

    def _note_leader(self) -> None:
        self._heard_leader_s = self._now_s
        self._put_off_election()

    def _forget_rounds(self) -> None:
        """Sendings are counted by their leader: another one counts anew."""
        self._heard_round = self._taken_round = self._answered_round = 0

    def draw_election_s(self) -> float:
        """Voters stand in turns, which each term shuffles, with time in between: two that stand at the same moment get
        half of the votes each, and then everybody waits for another election."""
        voters = self.configuration.voters
        if self.replica not in voters:
            return super().draw_election_s()
        turn = (voters.index(self.replica) + self.term) % len(voters)
        least_s, most_s = self.timing.election_s_min, self.timing.election_s_max
        return least_s + (most_s - least_s) * (turn + self.draw() / 2) / len(voters)

    def _put_off_election(self) -> None:
        self.election_deadline_s = self._now_s + self.draw_election_s()

    def _hears_a_leader(self) -> bool:
        """Whether a leader may still count on this replica: it must not help another one."""
        return self.role == LEADER or self._now_s < self._heard_leader_s + self.timing.election_s_min

    # --- the leader -------------------------------------------------------------------------------------------

    def _silence_ends_s(self) -> float:
        """When this leader has heard no majority for too long."""
        if self._others_needed == 0:
            return math.inf
        echoed_s = sorted([self.progress[peer].echoed_sent_s for peer in self._other_voters])
        return echoed_s[-self._others_needed] + self.timing.silence_s_max

    def _heartbeat(self) -> None:
        """To everybody, and without entries: those are sent as far as there is room for them in a round."""
        self._heartbeat_due_s = self._now_s + self.timing.heartbeat_s
        self._send_appends(self.others, heartbeat=True)
