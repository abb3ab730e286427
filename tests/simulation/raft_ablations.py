"""Engines with one correction taken back each: the simulation must find out every one of them."""

from collections.abc import Iterable
from dataclasses import replace

from holdfast.raft.engine import ShardRaft
from holdfast.raft.library import CANDIDATE, LEADER
from holdfast.raft.messages import Append, AppendReply, Message, RequestVote, VoteReply


def counted(engine: ShardRaft, voters: Iterable[str]) -> int:
    """What a majority of these has on disk, as a leader knows it."""
    known = [engine.progress[voter].match_index for voter in voters if voter in engine.others]
    durable = sorted([engine.durable_index, *known])
    return min(durable[-(len(durable) // 2 + 1)], engine.last_index)


class CutsWhatFits(ShardRaft):
    """Deletes everything behind the previous entry, also what is the same."""

    def _take(self, message: Append) -> int:
        first = max(message.previous_index, self.base_index) + 1
        if first <= self.last_index:
            self.cut_from(first)
        for entry in message.entries:
            if entry.index >= first:
                self.append(entry)
        return max(message.previous_index + len(message.entries), self.base_index)


class TakesOldReplies(ShardRaft):
    """Replies of an earlier term count."""

    def _on_append_reply(self, sender: str, reply: AppendReply) -> None:
        super()._on_append_reply(sender, replace(reply, term=self.term, round=min(reply.round, self._round)))


class CountsVotesTwice(ShardRaft):
    """Votes are counted, not collected."""

    def _on_vote_reply(self, sender: str, reply: VoteReply) -> None:
        if self.role == CANDIDATE and reply.granted and reply.term == self.term:
            self._votes.add(f"{sender} {len(self._votes)}")
            self._lead_if_elected()


class CountsWhatIsNotDurable(ShardRaft):
    """The leader counts its own entries before they are on its disk."""

    def _advance_commit(self) -> None:
        self.durable_index = self.last_index
        super()._advance_commit()


class PromisesAtOnce(ShardRaft):
    """Votes and acks leave before they are durable."""

    def receive(self, sender: str, message: Message, now_s: float) -> None:
        super().receive(sender, message, now_s)
        self.ready.synced()


class KeepsOldPromises(ShardRaft):
    """What was held in an old term leaves in the new one."""

    def _enter_term(self, term: int, voted_for: str | None) -> None:
        self.set_term(term, voted_for)


class CommitsWhatWasNotCompared(ShardRaft):
    """Takes the leader's commit index for the whole log."""

    def _on_append(self, sender: str, message: Append) -> None:
        super()._on_append(sender, message)
        if message.term == self.term and self.term_at(message.previous_index) == message.previous_term:
            self.commit_index = max(self.commit_index, min(message.commit_index, self.last_index))


class CommitsOldTerms(ShardRaft):
    """An entry of an earlier term is committed by counting copies."""

    def _advance_commit(self) -> None:
        self.commit_index = max(self.commit_index, counted(self, self.configuration.voters))


class VotesForAnyone(ShardRaft):
    """Votes without looking at the candidate's log."""

    def _is_as_complete(self, last_index: int, last_term: int) -> bool:
        return True


class VotesTwice(ShardRaft):
    """Forgets whom it voted for."""

    def _on_request_vote(self, sender: str, asked: RequestVote) -> None:
        if asked.term == self.term and self.role not in (LEADER, CANDIDATE):
            self.set_term(self.term, None)
        super()._on_request_vote(sender, asked)
