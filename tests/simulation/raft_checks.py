"""What must hold among replicas at every moment, whatever fails. The checks see everything: all logs and all disks."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from holdfast.raft.codec import decode_configuration
from holdfast.raft.journal import Known
from holdfast.raft.library import LEADER
from holdfast.raft.messages import AppendReply, Configuration, EntryKind, LogEntry, Message, VoteReply
from tests.simulation.raft_disks import State

if TYPE_CHECKING:
    from tests.simulation.raft_process import Process
    from tests.simulation.raft_world import World


class Violation(AssertionError):  # noqa: N818 - it is what was looked for
    """Something that must never happen has happened."""


@dataclass(frozen=True, slots=True)
class Applied:
    """An entry that some replica has applied."""

    entry: LogEntry
    known_in_term: int  # the term of the replica that applied it first, when it did
    digest: int  # of the state behind it


class Checks:
    def __init__(self, world: "World") -> None:
        self._world = world
        self.leaders: dict[int, str] = {}  # by term
        self.entries: dict[tuple[int, int], tuple[LogEntry, int]] = {}  # by index and term: and term of the one before
        self.log: dict[int, Applied] = {}  # what was applied anywhere, by index
        self.acknowledged: dict[bytes, int] = {}
        self.reads = self.installed = self.changed = 0

    def adds(self, entry: LogEntry, previous_term: int, configuration: Known | None) -> None:
        """Log matching: an index and a term name one entry, and one log before it."""
        if entry.kind == EntryKind.CONFIGURATION and configuration is not None:
            _check_step(configuration[1], decode_configuration(entry.command))
        known = self.entries.setdefault((entry.index, entry.term), (entry, previous_term))
        if known != (entry, previous_term):
            raise Violation(f"{entry} is {entry.command!r} after {previous_term}, and elsewhere {known}")

    def poll(self, process: "Process") -> None:
        """At a replica, whenever it has done something."""
        engine = process.engine
        assert engine is not None
        known = process.disk.journal.configurations
        if known and engine.configuration != known[-1][1]:
            raise Violation(f"{process.name} goes by {engine.configuration}, but its log has {known[-1]}")
        if engine.role == LEADER:
            if self.leaders.get(engine.term) != process.name:
                self._becomes_leader(process)
            if engine.commit_index > process.commit_seen:
                self._commits(process)
            if engine.term == max(self.leaders):
                self._counts_on(process)
        process.commit_seen = engine.commit_index

    def _becomes_leader(self, process: "Process") -> None:
        engine = process.engine
        assert engine is not None
        if engine.term in self.leaders:
            raise Violation(f"two leaders of term {engine.term}: {self.leaders[engine.term]} and {process.name}")
        self.leaders[engine.term] = process.name
        for index, applied in self.log.items():
            if applied.known_in_term < engine.term and index > engine.base_index:
                term = engine.term_at(index)
                if term != applied.entry.term:
                    raise Violation(
                        f"{process.name} leads term {engine.term} with an entry of term {term} at {index}, but one of "
                        f"term {applied.entry.term} was committed before"
                    )

    def _commits(self, process: "Process") -> None:
        """What a leader counts as committed is on the disks of a majority."""
        engine = process.engine
        assert engine is not None
        index = engine.commit_index
        term = engine.term_at(index)
        voters = process.disk.journal.configurations[-1][1].voters
        holders = [name for name in voters if self._world.durable[name].holds(index, term)]
        if 2 * len(holders) <= len(voters):
            raise Violation(f"{process.name} commits {index} of term {term}, which is only on {holders} of {voters}")

    def _counts_on(self, process: "Process") -> None:
        """What a leader believes that others have is on their disks, unless another led since."""
        engine = process.engine
        assert engine is not None
        for name in engine.others:
            match_index = engine.progress[name].match_index
            if name in self._world.durable and match_index > self._world.durable[name].last_index:
                has = self._world.durable[name].last_index
                raise Violation(f"{process.name} counts on {name} up to {match_index}, but it has {has}")

    def newest_configuration(self) -> Configuration | None:
        """Of those that were applied anywhere."""
        for index in sorted(self.log, reverse=True):
            if self.log[index].entry.kind == EntryKind.CONFIGURATION:
                return decode_configuration(self.log[index].entry.command)
        return None

    def changes(self, process: "Process", configuration_index: int) -> None:
        """One change at a time, by a leader that knows what is committed."""
        self.changed += 1
        engine = process.engine
        assert engine is not None
        if configuration_index > engine.commit_index:
            raise Violation(f"{process.name} begins a change while the one at {configuration_index} is not committed")
        if engine.term_at(engine.commit_index) != engine.term:
            raise Violation(f"{process.name} begins a change before an entry of its own term is committed")

    def installs(self, process: "Process", state: State, term: int) -> None:
        """A snapshot takes the place of what does not go together with it, and of nothing else."""
        self.installed += 1
        durable = process.disk.durable
        if durable.last_index > state.index and durable.holds(state.index, term):
            raise Violation(f"{process.name} gives up {durable.last_index} for a snapshot of {state.index}")
        if state.index in self.log and self.log[state.index].digest != state.digest:
            raise Violation(f"{process.name} installs a state at {state.index} that nobody had")
        if state.index < process.state.index:
            raise Violation(f"{process.name} goes back from {process.state.index} to a snapshot of {state.index}")

    def promises(self, process: "Process", to: str, message: Message) -> None:
        """A vote or an acknowledgement leaves when what it says is on the disk."""
        durable = process.disk.durable
        is_true = True
        if isinstance(message, VoteReply) and message.granted:
            is_true = (durable.term, durable.voted_for) == (message.term, to)
        elif isinstance(message, AppendReply) and message.success:
            is_true = durable.term == message.term and durable.last_index >= message.index
        if not is_true:
            raise Violation(f"{process.name} says {message} to {to}, but that is not on its disk")

    def applies(self, process: "Process", entry: LogEntry, digest: int) -> None:
        """State-machine safety."""
        engine = process.engine
        assert engine is not None
        known = self.log.setdefault(entry.index, Applied(entry, engine.term, digest))
        if known.entry != entry:
            raise Violation(
                f"{process.name} applies {entry.command!r} of term {entry.term} at {entry.index}, elsewhere {known}"
            )
        if known.digest != digest:
            raise Violation(f"{process.name} has another state at {entry.index} than the others")

    def acknowledges(self, index: int, command: bytes) -> None:
        self.acknowledged.setdefault(command, index)

    def last_acknowledged(self) -> int:
        return max(self.acknowledged.values(), default=0)

    def reads_at(self, name: str, commit_index: int, acknowledged_index: int) -> None:
        self.reads += 1
        if commit_index < acknowledged_index:
            raise Violation(f"{name} reads at {commit_index}, but {acknowledged_index} was acknowledged before")

    def end(self, members: list["Process"]) -> None:
        """Once all faults are over: every member has everything that was acknowledged, and they are the same."""
        for command, index in self.acknowledged.items():
            if self.log[index].entry.command != command:
                raise Violation(f"{command!r} was acknowledged at {index}, but {self.log[index]} is there")
        for process in members:
            state = process.state
            if state.index < self.last_acknowledged():
                raise Violation(f"{process.name} ends at {state.index}, before what was acknowledged")
            if state.index in self.log and self.log[state.index].digest != state.digest:
                raise Violation(f"{process.name} ends with a state of its own")


def _check_step(before: Configuration, after: Configuration) -> None:
    """Majorities of two configurations that follow each other have a voter in common."""
    if after.version != before.version + 1 or len(set(before.voters) ^ set(after.voters)) > 1:
        raise Violation(f"{before} is followed by {after}")
