"""Who belongs to the group, as one replica knows it: the newest configuration in its log, committed or not.

A configuration counts from when it is appended, because then a majority of it may decide; and no longer when its entry
is cut. Everything that is counted is counted over its voters.
"""

from holdfast.raft.codec import configuration_entry
from holdfast.raft.library import LEADER, LibraryRaft, Setup
from holdfast.raft.membership import (
    CHANGE_UNDER_WAY,
    NOT_CAUGHT_UP,
    NOT_LEADER,
    PROMOTE_LAG_ENTRIES_MAX,
    ChangeRefusedError,
    check_change,
    with_learner,
    with_voter,
    without,
)
from holdfast.raft.messages import NO_CONFIGURATION, Configuration, EntryKind, LogEntry
from holdfast.raft.progress import Progress


class GroupRaft(LibraryRaft):
    """A replica's members, and what it knows of each while it leads."""

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        self._handing_over_to: str | None = None
        self.durable_index = self.last_index  # what this replica has on disk
        self._now_s = setup.now_s
        self.progress: dict[str, Progress] = {}  # of the others; of a replica that does not lead, what it knew last
        self.newest_round = 0  # the number of the newest sending
        self._configuration_changed()

    # --- what this replica may do -----------------------------------------------------------------------------

    @property
    def serves(self) -> bool:
        """Whether this replica leads and has applied an entry of its own term: only then its term may be used."""
        return self.role == LEADER and self.applied_index >= self.first_own_index

    @property
    def serving_term(self) -> int:
        """The term in which it serves; 0 if it does not."""
        return self.term if self.role == LEADER and self.applied_index >= self.first_own_index else 0

    @property
    def accepts(self) -> bool:
        """Whether proposals are taken."""
        return self.role == LEADER and self._handing_over_to is None

    # --- what is known of the others --------------------------------------------------------------------------

    def peer_lag(self, peer: str) -> int:
        """How many entries another replica lacks, as far as this leader knows."""
        return self.last_index - self.progress[peer].match_index

    def peer_heard_s(self, peer: str) -> float | None:
        """When the newest message was sent that another replica has answered to this leader; None if it has none."""
        known = self.progress.get(peer)
        return known.echoed_sent_s if known is not None and known.echoed_round else None

    # --- changes ----------------------------------------------------------------------------------------------

    def add_member(self, replica: str, expected_version: int) -> int:
        """Adds a learner. As the others here, it returns the index of the change's entry or raises
        `ChangeRefusedError`; the change counts from now on, and stays once that entry is committed."""
        return self.propose_configuration(with_learner(self.configuration, replica), expected_version)

    def promote(self, replica: str, expected_version: int) -> int:
        """Makes a learner a voter."""
        return self.propose_configuration(with_voter(self.configuration, replica), expected_version)

    def remove(self, replica: str, expected_version: int) -> int:
        """Removes a voter or a learner."""
        return self.propose_configuration(without(self.configuration, replica), expected_version)

    def propose_configuration(self, new: Configuration, expected_version: int) -> int:
        """Changes the members, by one."""
        # An entry of its own term is committed when it serves. Before, a change of an earlier leader that is not in
        # this log may still win, and two changes away from the same configuration need not share a majority.
        if not self.serves or not self.accepts:
            raise ChangeRefusedError(NOT_LEADER, "Expected the change at the leader, but this replica does not serve.")
        if self.configuration_index > self.commit_index:
            raise ChangeRefusedError(
                CHANGE_UNDER_WAY, f"Expected one change at a time, but {self.configuration.version} is not committed."
            )
        check_change(self.configuration, new, expected_version, self.replica)
        for replica in new.voters:
            if replica not in self._voters and not self.has_caught_up(replica):
                raise ChangeRefusedError(
                    NOT_CAUGHT_UP,
                    f"Expected {replica} to have caught up, but it lacks {self.peer_lag(replica)} entries.",
                )
        entry = configuration_entry(self.last_index + 1, self.term, new)
        self.append(entry)
        return entry.index

    def has_caught_up(self, replica: str) -> bool:
        """Whether a member has, but for a few entries, what this leader has, and was heard lately. It must have taken
        entries: in a log that is short, who has nothing and waits for a snapshot lacks few entries, too."""
        heard_s = self.peer_heard_s(replica)
        return (
            heard_s is not None
            and not self.progress[replica].probing
            and self._now_s <= heard_s + self.timing.election_s_max
            and self.peer_lag(replica) <= PROMOTE_LAG_ENTRIES_MAX
        )

    def _configuration_changed(self) -> None:
        """Goes by the newest configuration in the log, whether it is committed or not."""
        known = self.journal.configurations
        self.configuration_index, self.configuration = known[-1] if known else (0, NO_CONFIGURATION)
        self._voters = frozenset(self.configuration.voters)
        self._other_voters = tuple(voter for voter in self.configuration.voters if voter != self.replica)
        self._majority = len(self._voters) // 2 + 1
        self._others_needed = self._majority - (self.replica in self._voters)
        self._others = frozenset(self.configuration.members) - {self.replica}
        self.others = tuple(sorted(self._others))
        self.is_alone = self.configuration.members == (self.replica,)  # nobody else belongs to the group
        if self.role == LEADER:
            self._follow_members()

    def _follow_members(self) -> None:
        known, self.progress = self.progress, {}
        for peer in self.others:
            # Of a new one the change itself is the first that it gets.
            new = Progress(self._now_s, self.last_index, former_round=self.newest_round)
            self.progress[peer] = known.get(peer, new)

    def append(self, entry: LogEntry) -> None:
        super().append(entry)
        if entry.kind == EntryKind.CONFIGURATION:
            self._configuration_changed()

    def cut_from(self, index: int) -> None:
        super().cut_from(index)
        self.durable_index = min(self.durable_index, index - 1)
        if self.configuration_index >= index:
            self._configuration_changed()
