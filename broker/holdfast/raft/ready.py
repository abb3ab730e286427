"""What a replica has to say, and when it may leave.

Votes and acks are promises about the disk. They wait for the sync that covers them, and are dropped if what they rest
on is gone before: a term that ended, a log that a snapshot replaced. Everything else leaves at once.
"""

from dataclasses import dataclass, field

from holdfast.raft.messages import Message

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
