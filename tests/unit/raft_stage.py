"""Engines on a stage: a test passes their messages by hand, so that each scene is exactly the one that matters."""

from holdfast.broker.raft.engine import ShardRaft
from holdfast.broker.raft.journal import MemoryJournal, Row
from holdfast.broker.raft.library import LEADER, Timing
from holdfast.broker.raft.messages import Message

TIMING = Timing()


class Stage:
    """Some replicas of one shard, and what is on its way between them."""

    def __init__(self, engine: type[ShardRaft] = ShardRaft, replicas: str = "abc") -> None:
        self._engine = engine
        self.now_s = 0.0
        self.journals = {name: MemoryJournal() for name in replicas}
        self.on_the_way: list[tuple[str, str, Message]] = []
        self.engines = {name: self._make(name) for name in replicas}

    def _make(self, name: str) -> ShardRaft:
        voters, journal = set(self.journals), self.journals[name]
        return self._engine(name, voters, journal, now_s=self.now_s, timing=TIMING, draw=lambda: 0.5)

    def __getitem__(self, name: str) -> ShardRaft:
        return self.engines[name]

    def write_log(self, name: str, terms: str, *, term: int | None = None) -> None:
        """Gives a replica a log whose entries have these terms, from index 2 on, and starts it."""
        rows: list[Row] = [(b"\x01", 1, 0)]
        rows += [(b"\x00" + f"{index}.{number}".encode(), index, int(number)) for index, number in enumerate(terms, 2)]
        self.journals[name] = MemoryJournal(rows, int(terms[-1]) if term is None else term)
        self.engines[name] = self._make(name)

    def restart(self, name: str) -> None:
        """After a crash: what was not synced is gone."""
        self.journals[name] = self.journals[name].after_crash()
        self.engines[name] = self._make(name)

    def collect(self, name: str) -> list[Message]:
        """What a replica says now."""
        engine = self.engines[name]
        said, engine.outbox = engine.outbox, []
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
            mine = [each for each in self.on_the_way if self._passes(each[0], each[1], among)]
            self.on_the_way = [each for each in self.on_the_way if not self._passes(each[0], each[1], among)]
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
