"""Who leads a shard, as far as a router or a client knows.

What is known comes from these sources:
  * a map may have a hint of who leads, and in which epoch
  * a server that does not lead refuses with NOT_LEADER, and names the leader and its epoch if it knows them
  * others are asked when a server is silent (`silence`)
  * a server that carries out a call leads, until something says otherwise

Somebody who names a leader is believed unless its epoch is older than the newest in which a leader was named, or the
leader it names has just failed: it may not have noticed yet.
"""

from abc import ABC, abstractmethod
from collections.abc import Collection, Sequence

SUSPECT_S = 1.0  # as long as it may take the others to notice that a leader has gone


class KnownLeader(ABC):
    """What is known of the leader of one shard. Who else may lead it, and who is asked next, is up to each side."""

    def __init__(self, suspect_s: float = SUSPECT_S) -> None:
        self._suspect_s = suspect_s
        self.named: str | None = None  # its address, unless that would be a guess
        self._epoch = 0  # the newest in which a leader was named
        self._suspects: dict[str, tuple[float, int]] = {}  # who has failed: suspected until when, and in which epoch

    @abstractmethod
    def candidates(self) -> Sequence[str]:
        """Everybody who may know of this shard."""

    @abstractmethod
    def pick(self, now_s: float, avoid: Collection[str] = ()) -> str | None:
        """Where a call goes next: to the leader if it is known; None if all are to be avoided."""

    def name(self, address: str, epoch: int, now_s: float) -> bool:
        """Somebody says who leads. Whether that is believed: then calls go there from now on."""
        suspected_until_s, suspected_epoch = self._suspects.get(address, (0.0, -1))
        if epoch < self._epoch or (now_s < suspected_until_s and epoch <= suspected_epoch):
            return False
        self._suspects.pop(address, None)
        self._epoch = epoch
        self._believe(address)
        return True

    def answered(self, address: str) -> None:
        """A call was carried out there."""
        self._suspects.pop(address, None)
        if self.named is None:
            self._believe(address)

    def left(self, address: str, now_s: float, *, suspect: bool) -> None:
        """It does not lead, or does not answer. A suspect's name counts only in a newer epoch."""
        if suspect:
            self._suspects[address] = (now_s + self._suspect_s, self._epoch)
            self._suspects = {
                address: suspected for address, suspected in self._suspects.items() if suspected[0] > now_s
            }
        if self.named == address:
            self.named = None

    def forget_epoch(self) -> None:
        """Nobody who was asked leads. Then an older epoch is better than none: the shard may have been made anew."""
        self._epoch = 0

    def _believe(self, address: str) -> None:
        self.named = address
