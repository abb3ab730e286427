"""A replica's journal on the node's log, which it shares with all other shards.

Changes are staged; one sync of the log makes those of all shards durable together. The newest entries are kept in
memory, because they are about to be sent and applied; older ones are read from the log when somebody lags behind.

The hard state is one small record per shard: everything that must not be forgotten and is not an entry. It is staged in
the round of the entries that change it, so a crash keeps both or neither.

**Tombstone.** A replica that was removed from its group is deleted, but not what it has promised. `forget` leaves a
record of its term, its vote and how far its log reached, and no entries: nothing of it keeps the log from being cut. If
the same group wants this node again, `create` begins an empty journal with that record. It holds until the next
`forget`:
  * with the term and the vote it cannot vote twice in one term
  * with the end of its former log it votes for nobody who lacks what it had acknowledged, and does not stand before it
    has all of that again. Members that have not heard of its removal still count its vote.
The directory of its state is deleted only once the record is durable: whatever the log names has to be there.
"""

import json
from bisect import bisect_right
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import islice

from holdfast.raft.codec import decode_configuration, decode_payload
from holdfast.raft.journal import NOTHING, Last
from holdfast.raft.messages import Configuration, EntryKind, LogEntry
from holdfast.wal.node_log import NodeLog

RECENT_BYTES_MAX = 16 * 1024 * 1024  # of entries kept in memory, beside those that are not durable yet
READ_ENTRIES = 256  # how many old entries are read at once
READ_BYTES = 1024 * 1024


class JournalError(RuntimeError):
    """The log holds a hard state that this release cannot read."""


@dataclass(frozen=True, slots=True)
class HardState:
    """What a replica must not forget."""

    group: int  # which founding of the shard this replica belongs to
    state_name: str  # the directory of the state that goes with the log
    term: int = 0
    voted_for: str | None = None
    base_index: int = 0  # the last entry that the log no longer has
    base_term: int = 0
    configurations: tuple[tuple[int, Configuration], ...] = ()
    former_last: Last = NOTHING  # of the log that it had before it was deleted, if it ever was
    is_tombstone: bool = False  # there is no replica any more, only this record

    def encode(self) -> bytes:
        configurations = [[index, known.version, known.voters, known.learners] for index, known in self.configurations]
        fields = {
            "group": self.group, "state": self.state_name, "term": self.term, "vote": self.voted_for,
            "base": [self.base_index, self.base_term], "configurations": configurations,
        }  # fmt: skip
        if self.former_last != NOTHING:
            fields["former"] = self.former_last
        if self.is_tombstone:
            fields["gone"] = True
        return json.dumps(fields, separators=(",", ":")).encode()

    @classmethod
    def decode(cls, data: bytes) -> "HardState":
        try:
            fields = json.loads(data)
            base_index, base_term = fields["base"]
            configurations = tuple(
                (index, Configuration(version, tuple(voters), tuple(learners)))
                for index, version, voters, learners in fields["configurations"]
            )
            former_term, former_index = fields.get("former", NOTHING)
            return cls(
                fields["group"], fields["state"], fields["term"], fields["vote"], base_index, base_term, configurations,
                (former_term, former_index), fields.get("gone", False),
            )  # fmt: skip
        except (ValueError, KeyError, TypeError) as error:
            raise JournalError(f"Expected a replica's hard state, but its record cannot be read: {error!r}.") from error


@dataclass(frozen=True, slots=True)
class Tombstone:
    """What is left of a replica that was deleted: it must not contradict this if its group takes it back."""

    group: int
    term: int
    voted_for: str | None
    last: Last  # how far its log reached


def tombstone_of(log: NodeLog, shard: int) -> Tombstone | None:
    """None if there is a replica of this shard, or never was one. Goes by what is durable."""
    record = log.hard_states.get(shard)
    hard = None if record is None else HardState.decode(record)
    return (
        Tombstone(hard.group, hard.term, hard.voted_for, hard.former_last)
        if hard is not None and hard.is_tombstone
        else None
    )


class NodeJournal:
    """See `Journal`. Made by `create` or `load`; after a round that was dropped, load it again."""

    def __init__(self, log: NodeLog, shard: int, hard: HardState) -> None:
        self._log = log
        self._shard = shard
        self._hard = hard
        self.group = hard.group
        self.base_index = hard.base_index
        self._term_starts = [index for index, _ in log.terms(shard)]
        self._terms = [term for _, term in log.terms(shard)]
        self.last_index = max(hard.base_index, log.last_index(shard))
        # Up to here the log itself has what this journal has. Further on it may have what was cut.
        self._durable_index = self.last_index
        self._recent: deque[LogEntry] = deque()  # the newest entries, without a gap up to the last
        self._recent_bytes = 0
        self._old: dict[int, LogEntry] = {}  # what was read last of the older ones
        self.is_durable = True  # nothing is staged
        self.next_state_name = ""  # of the state that comes with the next `reset`
        self._drop_terms()

    @classmethod
    def create(cls, log: NodeLog, shard: int, *, group: int, state_name: str) -> "NodeJournal":
        """The journal of an empty replica. If it belonged to the same group before, it still owes what it promised."""
        tombstone = tombstone_of(log, shard)
        if tombstone is None and shard in log.hard_states:
            raise JournalError(f"Expected no replica of shard {shard}, but the log has one.")
        hard = HardState(group, state_name)
        if tombstone is not None and tombstone.group == group:
            hard = replace(hard, term=tombstone.term, voted_for=tombstone.voted_for, former_last=tombstone.last)
        journal = cls(log, shard, hard)
        journal._keep(hard)
        return journal

    @classmethod
    def load(cls, log: NodeLog, shard: int) -> "NodeJournal | None":
        """The journal as the log has it; None if the log knows nothing of the shard, or only that it is gone."""
        record = log.hard_states.get(shard)
        hard = None if record is None else HardState.decode(record)
        return None if hard is None or hard.is_tombstone else cls(log, shard, hard)

    def begin_again(
        self, group: int, state_name: str, index: int, index_term: int, term: int, configuration: Configuration
    ) -> None:
        """The replica is of another founding from now on, which begins with a state that has everything up to an entry:
        in one round, so that a crash keeps all of the old or has all of the new."""
        self._log.stage_truncate(self._shard, 0)
        self._empty(index)
        self._keep(HardState(group, state_name, term, None, index, index_term, ((index, configuration),)))

    def forget(self) -> None:
        """The replica is to be deleted: keeps what it has promised, and nothing else. Nothing may be done with the
        journal after this, but for `synced`."""
        tombstone = HardState(
            self.group, "", self._hard.term, self._hard.voted_for, former_last=self._end_to_keep(), is_tombstone=True
        )
        self._log.stage_truncate(self._shard, 0)
        self._empty(0)
        self._keep(tombstone)

    def _end_to_keep(self) -> Last:
        term = self.term_at(self.last_index)
        assert term is not None
        return max(self._hard.former_last, (term, self.last_index))

    # --- what must not be forgotten ---------------------------------------------------------------------------

    def _keep(self, hard: HardState) -> None:
        self._hard = hard
        self.group = hard.group
        self.base_index = hard.base_index
        self.is_durable = False
        self._log.stage_hard_state(self._shard, hard.encode())

    def synced(self) -> None:
        """All that was staged is durable."""
        self.is_durable = True
        self._durable_index = self.last_index

    @property
    def state_name(self) -> str:
        return self._hard.state_name

    @property
    def base_term(self) -> int:
        return self._hard.base_term

    @property
    def configurations(self) -> Sequence[tuple[int, Configuration]]:
        return self._hard.configurations

    @property
    def former_last(self) -> Last:
        return self._hard.former_last

    @property
    def term(self) -> int:
        return self._hard.term

    @property
    def voted_for(self) -> str | None:
        return self._hard.voted_for

    def set_term(self, term: int, voted_for: str | None) -> None:
        if (term, voted_for) != (self._hard.term, self._hard.voted_for):
            self._keep(replace(self._hard, term=term, voted_for=voted_for))

    # --- entries ----------------------------------------------------------------------------------------------

    def entry_at(self, index: int) -> LogEntry:
        assert self.base_index < index <= self.last_index, "the log does not have it"
        first_recent = self.last_index - len(self._recent) + 1
        if index >= first_recent:
            return self._recent[index - first_recent]
        return self._old.get(index) or self._read(index)

    def _read(self, index: int) -> LogEntry:
        """From the log, with those that follow: whoever asks for one will ask for them too."""
        self._old = {}
        size_bytes = 0
        first_recent = self.last_index - len(self._recent) + 1
        for entry in islice(self._log.entries(self._shard, index - 1), READ_ENTRIES):
            if entry.index >= first_recent:
                break  # the log may still have what was cut and replaced: that is not durable before the next sync
            if entry.term != self.term_at(entry.index):
                raise JournalError(
                    f"Expected entry {entry.index} of shard {self._shard} to be of term {self.term_at(entry.index)}, "
                    f"but the log has one of term {entry.term}."
                )
            self._old[entry.index] = decode_payload(entry.index, entry.term, entry.payload)
            size_bytes += len(entry.payload)
            if size_bytes > READ_BYTES:
                break
        if index not in self._old:
            raise LookupError(f"Expected entry {index} of shard {self._shard} in the log, but it is not there.")
        return self._old[index]

    def term_at(self, index: int) -> int | None:
        if index == self.base_index:
            return self._hard.base_term
        if not self.base_index < index <= self.last_index:
            return None
        return self._terms[bisect_right(self._term_starts, index) - 1]

    def append(self, entry: LogEntry) -> None:
        self._log.stage_entry(self._shard, entry.index, entry.term, entry.command, head=bytes((entry.kind,)))
        self.is_durable = False
        self.last_index = entry.index
        self._recent.append(entry)
        self._recent_bytes += entry.size_bytes
        if not self._terms or self._terms[-1] != entry.term:
            self._term_starts.append(entry.index)
            self._terms.append(entry.term)
        if entry.kind == EntryKind.CONFIGURATION:
            added = (entry.index, decode_configuration(entry.command))
            self._keep(replace(self._hard, configurations=(*self._hard.configurations, added)))
        self._drop_old()

    def _drop_old(self) -> None:
        """Keeps memory bounded; what is not durable cannot be read from the log, so it stays."""
        while self._recent_bytes > RECENT_BYTES_MAX and self._recent[0].index <= self._durable_index:
            self._recent_bytes -= self._recent.popleft().size_bytes

    def cut_from(self, index: int) -> None:
        assert index > self.base_index, "what is at the base is committed"
        self._log.stage_truncate(self._shard, index)
        self.is_durable = False
        self.last_index = index - 1
        self._durable_index = min(self._durable_index, self.last_index)
        while self._recent and self._recent[-1].index >= index:
            self._recent_bytes -= self._recent.pop().size_bytes
        self._old = {}
        while self._term_starts and self._term_starts[-1] >= index:
            self._term_starts.pop()
            self._terms.pop()
        kept = tuple(known for known in self._hard.configurations if known[0] < index)
        if kept != self._hard.configurations:
            self._keep(replace(self._hard, configurations=kept))

    # --- snapshots --------------------------------------------------------------------------------------------

    def compact(self, index: int) -> None:
        """Entries up to this one may be cut from the log, once this is durable."""
        term = self.term_at(index)
        assert term is not None, "only what is in the log can be compacted"
        configurations = list(self._hard.configurations)
        while len(configurations) > 1 and configurations[1][0] <= index:
            del configurations[0]
        self._keep(replace(self._hard, base_index=index, base_term=term, configurations=tuple(configurations)))
        self._drop_terms()
        first_recent = self.last_index - len(self._recent) + 1
        for _ in range(max(0, min(len(self._recent), index - first_recent + 1))):
            self._recent_bytes -= self._recent.popleft().size_bytes
        self._old = {}

    def _drop_terms(self) -> None:
        """Forgets the terms up to the base; the one that the base is in the middle of begins after it now."""
        first = self.base_index + 1
        position = bisect_right(self._term_starts, first) - 1
        if position >= 0:
            del self._term_starts[:position], self._terms[:position]
            self._term_starts[0] = first
        if first > self.last_index:
            self._term_starts, self._terms = [], []

    def reset(self, index: int, term: int, configuration: Configuration) -> None:
        """A snapshot replaces everything: log, configuration, and the state that goes with them."""
        self._log.stage_truncate(self._shard, 0)
        self._empty(index)
        self._keep(
            replace(
                self._hard,
                base_index=index,
                base_term=term,
                configurations=((index, configuration),),
                state_name=self.next_state_name or self._hard.state_name,
            )
        )

    def _empty(self, last_index: int) -> None:
        self.last_index = last_index
        self._durable_index = 0
        self._recent.clear()
        self._recent_bytes = 0
        self._old = {}
        self._term_starts, self._terms = [], []
