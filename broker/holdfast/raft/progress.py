"""What a leader knows of another replica, beside the library's indexes of it."""

from collections import deque
from dataclasses import dataclass, field

SENDINGS_KEPT = 1_000  # without an answer
FLYING_APPENDS_MAX = 64  # with entries and without an answer
FLYING_BYTES_MAX = 16 * 1024 * 1024


@dataclass(slots=True)
class Peer:
    echoed_sent_s: float  # when the newest sending that it has answered was sent
    # Answers to sendings up to this one are no answers of this member: who was removed and added again may have lost
    # what it acknowledged before. Those to an installed snapshot have number 0.
    former_round: int = -1
    echoed_round: int = 0  # the number of that sending; 0 if it has answered none
    refused_round: int = 0  # refusals of sendings up to this one have been dealt with
    probing: bool = True  # until it is known where its log agrees: one sending with entries at a time
    _sent: deque[tuple[int, float]] = field(default_factory=deque)  # sendings without an answer: number, time
    # Those with entries: the last of them, size. An echo says nothing of entries, so it does not end them.
    _flying: deque[tuple[int, int]] = field(default_factory=deque)
    _flying_bytes: int = 0

    def note_sent(self, number: int, now_s: float, last_index: int, size_bytes: int) -> None:
        # A sending that is not kept counts, once it is answered, as if it had been sent with the last that was.
        if len(self._sent) < SENDINGS_KEPT:
            self._sent.append((number, now_s))
        if size_bytes:
            self._flying.append((last_index, size_bytes))
            self._flying_bytes += size_bytes

    def note_heard(self, number: int) -> None:
        """An answer to this sending has arrived, whatever it says."""
        while self._sent and self._sent[0][0] <= number:
            self.echoed_sent_s = self._sent.popleft()[1]

    def note_echo(self, number: int) -> None:
        """It has answered this sending. Those before it were answered as well, or got lost."""
        if number > self.echoed_round:
            self.echoed_round = number
            self.note_heard(number)

    def note_durable(self, index: int) -> None:
        """It has everything up to this entry."""
        while self._flying and self._flying[0][0] <= index:
            self._flying_bytes -= self._flying.popleft()[1]

    def note_refusal(self, newest_round: int) -> None:
        """What was sent up to now was based on an error: nothing of it is waited for."""
        self.refused_round = newest_round
        self.probing = True
        self._flying.clear()
        self._flying_bytes = 0

    @property
    def takes_entries(self) -> bool:
        """Whether more entries may be sent before it answers. A replica that is down must not cost memory."""
        if self.probing:
            return not self._flying
        return len(self._flying) < FLYING_APPENDS_MAX and self._flying_bytes < FLYING_BYTES_MAX
