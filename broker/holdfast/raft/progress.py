"""What a leader knows of another replica: where its log is, what is on its way to it, and when it was last heard."""

from collections import deque
from dataclasses import dataclass, field

SENDINGS_KEPT = 1_000  # without an answer
INFLIGHT_APPENDS_MAX = 64  # with entries and without an answer
INFLIGHT_BYTES_MAX = 16 * 1024 * 1024


@dataclass(slots=True)
class Progress:
    """Of one follower or learner, in one term of one leader."""

    echoed_sent_s: float  # when the newest sending that it has answered was sent
    next_index: int  # the entry that it is sent next
    match_index: int = 0  # up to here its log is known to be durable, and the same as the leader's
    # Answers to sendings up to this one are no answers of this member: who was removed and added again may have lost
    # what it acknowledged before. Those to an installed snapshot have number 0.
    former_round: int = -1
    echoed_round: int = 0  # the number of that sending; 0 if it has answered none
    refused_round: int = 0  # refusals of sendings up to this one have been dealt with
    probing: bool = True  # until it is known where its log agrees: one sending with entries at a time
    _sent: deque[tuple[int, float]] = field(default_factory=deque)  # sendings without an answer: number, time
    # Those with entries: the last of them, size. An echo says nothing of entries, so it does not end them.
    inflight: deque[tuple[int, int]] = field(default_factory=deque)
    inflight_bytes: int = 0

    def note_sent(self, number: int, now_s: float, last_index: int, size_bytes: int) -> None:
        """It was sent entries of this size up to `last_index`, or, with size 0, none."""
        # A sending that is not kept counts, once it is answered, as if it had been sent with the last that was.
        if len(self._sent) < SENDINGS_KEPT:
            self._sent.append((number, now_s))
        if size_bytes:
            self.next_index = last_index + 1  # in the hope that they arrive; a refusal sets it back
            self.inflight.append((last_index, size_bytes))
            self.inflight_bytes += size_bytes

    def note_heard(self, number: int) -> None:
        """An answer to this sending has arrived, whatever it says."""
        while self._sent and self._sent[0][0] <= number:
            self.echoed_sent_s = self._sent.popleft()[1]

    def note_echo(self, number: int) -> None:
        """It has answered this sending. Those before it were answered as well, or got lost."""
        if number > self.echoed_round:
            self.echoed_round = number
            self.note_heard(number)

    def note_durable(self, index: int, last_index: int) -> bool:
        """It has everything up to this entry, of a log that ends with `last_index`. Whether that was not known yet."""
        self.probing = False
        while self.inflight and self.inflight[0][0] <= index:
            self.inflight_bytes -= self.inflight.popleft()[1]
        index = min(index, last_index)
        if index <= self.match_index:
            return False
        self.match_index = index
        self.next_index = max(self.next_index, index + 1)
        return True

    def note_refusal(self, number: int, index: int, newest_round: int, last_index: int) -> bool:
        """It has refused a sending, and may agree up to this entry. Whether that is to be answered: all that was sent
        up to now was based on the same error, so nothing of it is waited for and one answer to all of those refusals
        will do, or a network that doubles messages would double them without end."""
        if number <= self.refused_round:
            return False
        self.refused_round = newest_round
        self.probing = True
        self.inflight.clear()
        self.inflight_bytes = 0
        if number == self.echoed_round:
            # Its newest word: who lost what it had acknowledged gets it again, and counts for less meanwhile.
            self.match_index = min(self.match_index, index)
        self.next_index = max(self.match_index, min(index, last_index)) + 1
        return True

    @property
    def takes_entries(self) -> bool:
        """Whether more entries may be sent before it answers. A replica that is down must not cost memory."""
        if self.probing:
            return not self.inflight
        return len(self.inflight) < INFLIGHT_APPENDS_MAX and self.inflight_bytes < INFLIGHT_BYTES_MAX
