"""What a replica sends, and when: what it has to say as `Ready`, and of a leader the next entries of its log to each of
the others, as much as they take, or a heartbeat.

Votes and acks are promises about the disk. They wait for the sync that covers them, and are dropped if what they rest
on is gone before: a term that ended, a log that a snapshot replaced. Everything else leaves at once. Who is at the same
place of the log gets the same append: it is made, numbered and encoded once for all of them.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass, field

from holdfast.raft.group import GroupRaft
from holdfast.raft.library import LEADER, Setup
from holdfast.raft.messages import Append, LogEntry, Message

APPEND_BYTES_MAX = 1024 * 1024  # of entries in one message, unless a single one is larger
APPEND_ENTRIES_MAX = 4_096  # in one message

Addressed = tuple[str, Message]  # to whom; one message may go to several


@dataclass(slots=True)
class Ready:
    """Of one replica: its steps fill it, and after each of them its driver takes what may leave."""

    messages: list[Addressed] = field(default_factory=list)  # they leave at once, in this order
    after_sync: list[Addressed] = field(default_factory=list)  # promises

    def send(self, to: str, message: Message) -> None:
        self.messages.append((to, message))

    def send_after_sync(self, to: str, message: Message) -> None:
        self.after_sync.append((to, message))

    def synced(self) -> None:
        """All that was promised is durable."""
        if self.after_sync:
            self.messages += self.after_sync
            self.after_sync.clear()

    def drop_after_sync(self) -> None:
        """What they rest on is gone, and they have not left."""
        self.after_sync.clear()

    def drop_all(self) -> None:
        self.messages.clear()
        self.after_sync.clear()

    def take(self) -> list[Addressed]:
        """What may leave now: it is the driver's from here on."""
        taken, self.messages = self.messages, []
        return taken


class SendingRaft(GroupRaft):
    """A replica's way to the others, and the time that goes with what a leader sends."""

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        self.ready = Ready()
        self.append_bytes_max = setup.append_bytes_max
        self.shard_time_ms = setup.shard_time_ms
        # The time that the newest leader has told, which may be this one. It may be less than what the one before it
        # told: but all that has happened since was counted by it, and the next leader has to go on with that.
        self.leader_time_ms = 0
        self.leader_time_heard_s = setup.now_s
        self._leader_time_term = 0

    def replicate(self, bytes_max: float = math.inf) -> int:
        """Sends entries that the others do not have yet, and no more once it has sent so much. For the leader, after
        proposals were taken. Returns how many bytes it has sent."""
        sent_bytes = 0
        # One message to each, and again: who is far behind must not hold up the others.
        while sent_bytes < bytes_max and (lacking := self._lacking()):
            sent_bytes += self._send_appends(lacking)
        return sent_bytes

    @property
    def has_to_send(self) -> bool:
        """Whether `replicate` has something to do."""
        return bool(self._lacking())

    def _lacking(self) -> list[str]:
        """Those for whom there are entries, and who have answered enough of those before; only the leader has any."""
        lacking: list[str] = []
        if self.role == LEADER:
            base_index, last_index = self.journal.base_index, self.journal.last_index
            for peer, progress in self.progress.items():
                if base_index < progress.next_index <= last_index and progress.takes_entries:
                    lacking.append(peer)
        return lacking

    def _send_appends(self, peers: Iterable[str], *, heartbeat: bool = False) -> int:
        """To each the entries that it takes next; none if it takes none, or if this is a heartbeat. Returns the size of
        all of them."""
        sent_bytes = 0
        lacking = () if heartbeat else self._lacking()
        base_index = self.base_index
        made: dict[tuple[int, bool], tuple[Append, int]] = {}
        for peer in peers:
            progress = self.progress[peer]
            # One that is behind the start of the log needs a snapshot. It is asked about that start, so that it hears
            # the leader and the leader hears when it is there.
            place = (max(progress.next_index - 1, base_index), peer in lacking)
            if place not in made:
                made[place] = self._make_append(*place)
            append, size_bytes = made[place]
            progress.note_sent(append.round, self._now_s, append.previous_index + len(append.entries), size_bytes)
            self.ready.send(peer, append)
            sent_bytes += size_bytes
        return sent_bytes

    def _make_append(self, previous_index: int, has_entries: bool) -> tuple[Append, int]:
        """With what follows this entry, and the size of that."""
        entries, size_bytes = self._entries_from(previous_index + 1) if has_entries else ((), 0)
        previous_term = self.term_at(previous_index)
        assert previous_term is not None
        self.newest_round += 1
        now_ms = self.shard_time_ms()
        self._note_time(now_ms)
        append = Append(self.term, previous_index, previous_term, entries, self.commit_index, self.newest_round, now_ms)
        return append, size_bytes

    def _entries_from(self, first: int) -> tuple[tuple[LogEntry, ...], int]:
        """What fits a message, and its size."""
        entries: list[LogEntry] = []
        size_bytes = 0
        journal = self.journal
        for index in range(first, min(journal.last_index, first + APPEND_ENTRIES_MAX - 1) + 1):
            entry = journal.entry_at(index)
            entry_bytes = entry.size_bytes
            if entries and size_bytes + entry_bytes > self.append_bytes_max:
                break
            size_bytes += entry_bytes
            entries.append(entry)
        return tuple(entries), size_bytes

    def _note_time(self, now_ms: int) -> None:
        """What the leader of this term tells; 0 if it does not know."""
        if now_ms and (self.term, now_ms) > (self._leader_time_term, self.leader_time_ms):
            self.leader_time_ms, self.leader_time_heard_s = now_ms, self._now_s
            self._leader_time_term = self.term
