"""Engines and worlds without one rule about members, snapshots, elections or reads each: the simulation must find out
every one of them."""

from holdfast.raft.engine import ShardRaft
from holdfast.raft.library import LEADER
from holdfast.raft.messages import Append, AppendReply, Configuration
from tests.simulation.raft_ablations import counted
from tests.simulation.raft_process import Process
from tests.simulation.raft_world import World


class CountsOldVoters(ShardRaft):
    """A configuration counts only once it is committed."""

    def _advance_commit(self) -> None:
        known = self.journal.configurations
        committed = [item for index, item in known if index <= self.commit_index] or [known[0][1]]
        index = counted(self, committed[-1].voters)
        if index > self.commit_index and self.term_at(index) == self.term:
            self.commit_index = index


class CountsLearners(ShardRaft):
    """Learners count as voters do."""

    def _configuration_changed(self) -> None:
        super()._configuration_changed()
        self._voters = frozenset(self.configuration.members)
        self._other_voters = tuple(self.others)
        self._majority = len(self._voters) // 2 + 1
        self._others_needed = self._majority - (self.replica in self._voters)


class ChangesTwiceAtOnce(ShardRaft):
    """A change may begin while another one is not committed."""

    def propose_configuration(self, new: Configuration, expected_version: int) -> int:
        kept, self.configuration_index = self.configuration_index, 0
        try:
            return super().propose_configuration(new, expected_version)
        finally:
            self.configuration_index = self.configuration_index or kept


class ChangesTooEarly(ShardRaft):
    """A change may begin before an entry of the leader's own term is committed."""

    _is_changing = False

    @property
    def serves(self) -> bool:
        return self.role == LEADER and (self._is_changing or self.applied_index >= self.first_own_index)

    def propose_configuration(self, new: Configuration, expected_version: int) -> int:
        self._is_changing = True
        try:
            return super().propose_configuration(new, expected_version)
        finally:
            self._is_changing = False


class KeepsWhatWasCut(ShardRaft):
    """A configuration still counts when its entry is cut."""

    def cut_from(self, index: int) -> None:
        kept, self.configuration_index = self.configuration_index, 0
        super().cut_from(index)
        self.configuration_index = kept


class StandsWithoutBelonging(ShardRaft):
    """Empty replicas, learners and those who were removed stand for election."""

    def _may_stand(self) -> bool:
        return self.may_campaign


class InstallsWhatIsOld(ShardRaft):
    """A snapshot is installed though the log is further."""

    def install_snapshot(
        self, sender: str, term: int, index: int, index_term: int, configuration: Configuration
    ) -> bool:
        if self.role == LEADER:
            return False
        self.commit_index = self.applied_index = index - 1
        return super().install_snapshot(sender, term, index, index_term, configuration)


class InstallsOverWhatFits(ShardRaft):
    """A snapshot takes the place of a log that has its last entry, and more."""

    def install_snapshot(
        self, sender: str, term: int, index: int, index_term: int, configuration: Configuration
    ) -> bool:
        return super().install_snapshot(sender, term, index, index_term, configuration) or self._install_anyway(
            index, index_term, configuration
        )

    def _install_anyway(self, index: int, index_term: int, configuration: Configuration) -> bool:
        if self.role == LEADER or index <= self.commit_index:
            return False
        self.journal.reset(index, index_term, configuration)
        self.commit_index = self.applied_index = index
        self._configuration_changed()
        return True


class AcknowledgesSnapshotsAtOnce(ShardRaft):
    """A leader hears of an installed snapshot before it is durable."""

    def install_snapshot(
        self, sender: str, term: int, index: int, index_term: int, configuration: Configuration
    ) -> bool:
        installed = super().install_snapshot(sender, term, index, index_term, configuration)
        self.ready.synced()
        return installed


class StandsWithoutAsking(ShardRaft):
    """No pre-vote."""

    def _ask_for_pre_votes(self) -> None:
        self._stand_for_election(transfer=False)


class LeadsWithoutAnswers(ShardRaft):
    """A leader that hears nobody goes on."""

    def _silence_ends_s(self) -> float:
        return float("inf")


class ReadsWithoutAsking(ShardRaft):
    """A leader takes it for granted that it still is one."""

    def may_read(self, number: int) -> bool:
        return self.serves


class EchoesOldTerms(ShardRaft):
    """The answer to what was sent in an old term counts as one to what is sent in this one."""

    def _on_append(self, sender: str, message: Append) -> None:
        if message.term < self.term:
            self.ready.send(sender, AppendReply(self.term, False, self.last_index, message.round))
            return
        super()._on_append(sender, message)

    def _on_append_reply(self, sender: str, reply: AppendReply) -> None:
        if self.role == LEADER and reply.term == self.term:
            self.progress[sender].note_echo(reply.round)  # also if it has not sent that yet
        super()._on_append_reply(sender, reply)


class CreditsTombstones(ShardRaft):
    """Who was removed and added again counts with what it acknowledged before."""

    def _follow_members(self) -> None:
        super()._follow_members()
        for peer in self.progress.values():
            peer.former_round = -1


class ForgetsItsFormerLog(ShardRaft):
    """Who was deleted and taken back votes, and stands, as if it had never acknowledged anything."""

    def _may_stand(self) -> bool:
        return self.may_campaign and self.replica in self._voters

    def _is_as_complete(self, last_index: int, last_term: int) -> bool:
        return (last_term, last_index) >= (self.last_term, self.last_index)


class KeepsItsIdentity(World):
    """A replica that lost its disk comes back under its old name."""

    def lose_disk(self, name: str) -> Process:
        self.processes.pop(name).crash()
        return self.add_process(name, identity=name)


class ForgetsItsVote(World):
    """A replica that is deleted keeps neither its term nor its vote."""

    def wipe(self, name: str) -> Process:
        process = super().wipe(name)
        process.disk.journal.set_term(0, None)
        process.disk.end_sync()
        return process
