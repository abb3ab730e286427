"""Engines on a stage: a test passes their messages by hand, so that each scene is exactly the one that matters."""

from collections.abc import Iterable

from holdfast.raft.codec import configuration_entry
from holdfast.raft.engine import ShardRaft
from holdfast.raft.journal import MemoryJournal
from holdfast.raft.library import LEADER, Timing
from holdfast.raft.messages import Configuration, EntryKind, LogEntry, Message

TIMING = Timing()


class Stage:
    """Some replicas of one shard, and what is on its way between them. All that they know is entry 1, of term 0, which
    says who they are, and it is applied; those that are empty know nothing."""

    def __init__(self, engine: type[ShardRaft] = ShardRaft, replicas: str = "abc", *, empty: str = "") -> None:
        self._engine = engine
        self.now_s = 0.0
        self._replicas = replicas
        self.journals = {name: self._journal() for name in replicas}
        self.journals |= {name: MemoryJournal() for name in empty}
        self.on_the_way: list[tuple[str, str, Message]] = []
        self.engines = {name: self._make(name) for name in self.journals}

    def _journal(self, entries: Iterable[LogEntry] = (), term: int = 0) -> MemoryJournal:
        return MemoryJournal([configuration_entry(1, 0, Configuration.of(1, self._replicas)), *entries], term)

    def _make(self, name: str, applied_index: int | None = None) -> ShardRaft:
        journal = self.journals[name]
        if applied_index is None and journal.base_index == 0:
            applied_index = min(1, journal.last_index)
        return self._engine(
            name, journal, now_s=self.now_s, applied_index=applied_index, timing=TIMING, draw=lambda: 0.5
        )

    def __getitem__(self, name: str) -> ShardRaft:
        return self.engines[name]

    def write_log(self, name: str, terms: str, *, term: int | None = None) -> None:
        """Gives a replica a log whose entries have these terms, from index 2 on, and starts it."""
        numbered = [(index, int(number)) for index, number in enumerate(terms, 2)]
        entries = [
            LogEntry(index, number, EntryKind.REGULAR, f"{index}.{number}".encode()) for index, number in numbered
        ]
        self.journals[name] = self._journal(entries, int(terms[-1]) if term is None else term)
        self.engines[name] = self._make(name)

    def restart(self, name: str, applied_index: int | None = None) -> None:
        """After a crash: what was not synced is gone."""
        self.journals[name] = self.journals[name].after_crash()
        self.engines[name] = self._make(name, applied_index)

    def wipe(self, name: str) -> None:
        """Deletes a replica: only what it has promised is left."""
        self.journals[name] = self.journals[name].wiped()
        self.engines[name] = self._make(name)

    def collect(self, name: str) -> list[Message]:
        """What a replica says now."""
        said = self.engines[name].ready.take()
        self.on_the_way += [(name, to, message) for to, message in said]
        return [message for _, message in said]

    def sync(self, name: str) -> None:
        self.journals[name].sync()
        self.engines[name].synced()
        self.collect(name)

    def give(self, to: str, sender: str, message: Message) -> None:
        self.engines[to].receive(sender, message, self.now_s)

    def deliver(self, among: str = "", *, sync: bool = True) -> None:
        """Passes on everything between these replicas, and what that leads to, until nobody says anything."""
        for name in self.engines:
            self.collect(name)
        while any(self._passes(sender, to, among) for sender, to, _ in self.on_the_way):
            mine = [message for message in self.on_the_way if self._passes(message[0], message[1], among)]
            self.on_the_way = [
                message for message in self.on_the_way if not self._passes(message[0], message[1], among)
            ]
            for sender, to, message in mine:
                self.give(to, sender, message)
                self.collect(to)
                if sync:
                    self.sync(to)

    @staticmethod
    def _passes(sender: str, to: str, among: str) -> bool:
        return not among or (sender in among and to in among)

    def elect(self, name: str, among: str = "") -> ShardRaft:
        """Makes a replica the leader with the votes of these."""
        self.now_s += TIMING.election_s_max  # nobody hears a leader any more
        self.engines[name].tick(self.now_s)
        self.collect(name)
        self.sync(name)
        self.deliver(among)
        self.sync(name)
        self.deliver(among)
        assert self.engines[name].role == LEADER
        return self.engines[name]

    def serve(self, name: str, among: str = "") -> ShardRaft:
        """Makes a replica the leader, with an entry of its own term applied everywhere."""
        leader = self.elect(name, among)
        self.settle(name, among)
        assert leader.serves
        return leader

    def settle(self, leader: str, among: str = "") -> None:
        """Until these replicas have what their leader has, and know what is committed."""
        for _ in range(3):
            self.engines[leader].replicate()
            self.collect(leader)
            self.sync(leader)
            self.deliver(among)
            self.now_s += TIMING.heartbeat_s
            self.engines[leader].tick(self.now_s)
            self.deliver(among)
        for name, engine in self.engines.items():
            if not among or name in among:
                for entry in engine.committed(1_000):
                    engine.applied(entry.index)
