"""Which server a call goes to: who leads, as far as this client knows, and the retry state of one call.

No channel and no clock in here. Who is believed about who leads is in `routing.leaders`, where a call goes next in
`routing.retries`.
"""

import random
import re
from collections.abc import Collection, Sequence

from holdfast.client._pauses import asked_pause_s
from holdfast.client._unknown_outcomes import PASSING
from holdfast.client.errors import (
    NO_LEADER,
    STALE_MAP,
    ConnectionFailed,
    DeadlineExceeded,
    HoldfastError,
    InvalidAddress,
    OutcomeUnknown,
    Rejected,
    ServerError,
    Unavailable,
    UnexpectedAnswer,
)
from holdfast.routing.leaders import SUSPECT_S, KnownLeader
from holdfast.routing.retries import RetryState, named_leader

ADDRESSES_MAX = 32
HINTED_MAX = 8  # leaders that are not in the user's list and are remembered all the same
# Instead of SUSPECT_S where others take calls for it: it may run and be out of this client's reach.
DIRECT_SUSPECT_S = 5.0


_PORT = r":(?P<port>\d{1,5})"
_HOST_PORT = re.compile(rf"(?:[A-Za-z0-9_.-]+|\[[0-9A-Fa-f:.%]+\]){_PORT}")
_ADDRESS = re.compile(rf"(?:dns:///)?{_HOST_PORT.pattern}|unix:.+")

_ELSEWHERE = frozenset({"NOT_LEADER", "SHUTTING_DOWN", "STALE_MAP", "OUTCOME_UNKNOWN"})
_DID_NOTHING = frozenset({"NOT_LEADER", "SHUTTING_DOWN", "STALE_MAP", "OVERLOADED", "CONFLICT"})
# Of a call that goes straight to the leader of its shard: the map that sent it there was older than a move.
_MOVED = "SHARD_NOT_FOUND"


def split_addresses(text: str) -> tuple[str, ...]:
    """The addresses of a list with commas, each once; `InvalidAddress` names the one that is none.

    >>> split_addresses("h1:7401, h2:7401,h1:7401")
    ('h1:7401', 'h2:7401')
    """
    # gRPC would take an address without a port for one with port 443, and fail much later.
    parts = [part.strip() for part in text.split(",")]
    for part in parts:
        if not _is_address(_ADDRESS, part):
            raise InvalidAddress(text, part)
    if len(parts) > ADDRESSES_MAX:
        raise InvalidAddress(text, parts[ADDRESSES_MAX])
    return tuple(dict.fromkeys(parts))


def check_address(text: str) -> str:
    """The same list as one text."""
    return ",".join(split_addresses(text))


def _is_address(pattern: re.Pattern[str], text: str) -> bool:
    match = pattern.fullmatch(text)
    return match is not None and 0 < int(match["port"] or 1) < 65_536


class ListedLeader(KnownLeader):
    """What this client knows of the leader of one shard: it is one of a list, or somebody else whom these named."""

    def __init__(self, listed: Sequence[str], *, is_direct: bool = False) -> None:
        """`is_direct`: the leader is known from a map, and those in the list are only asked when it fails."""
        super().__init__(DIRECT_SUSPECT_S if is_direct else SUSPECT_S)
        self._listed = tuple(listed)
        self.is_direct = is_direct
        self._hinted: dict[str, None] = {}  # the newest last
        self.target = self._listed[0]  # where calls go: the leader if it is known

    def candidates(self) -> tuple[str, ...]:
        return (*self._listed, *self._hinted)

    @property
    def several(self) -> bool:
        return bool(self._hinted) or len(self._listed) > 1

    def pick(self, now_s: float = 0.0, avoid: Collection[str] = ()) -> str | None:
        """Where a call goes next: the leader if it is known, or else the next in line; None if all are to be avoided.

        >>> leader = ListedLeader(["a:1", "b:1", "c:1"])
        >>> leader.pick(), leader.pick(avoid={"a:1", "b:1"}), leader.pick(avoid={"a:1", "b:1", "c:1"})
        ('a:1', 'c:1', None)
        """
        known = self.candidates()
        position = known.index(self.target)
        return next((address for address in (*known[position:], *known[:position]) if address not in avoid), None)

    def name(self, address: str, epoch: int, now_s: float) -> bool:
        """Not believed is also a socket file of another machine, or nothing at all."""
        if not _is_address(_HOST_PORT, address) or not super().name(address, epoch, now_s):
            return False
        if address not in self._listed:
            self._hinted.pop(address, None)
            self._hinted[address] = None
            if len(self._hinted) > HINTED_MAX:
                del self._hinted[next(iter(self._hinted))]
        return True

    def _believe(self, address: str) -> None:
        super()._believe(address)
        self.target = address

    def relist(self, listed: Sequence[str]) -> None:
        """Another list. Whoever leads stays known."""
        if tuple(listed) == self._listed:
            return
        self._listed = tuple(listed)
        self._hinted = {address: None for address in self._hinted if address not in self._listed}
        if self.target not in self.candidates():
            self._hinted[self.target] = None

    def answered(self, address: str) -> None:
        if address in self.candidates():
            super().answered(address)

    def left(self, address: str, now_s: float, *, suspect: bool) -> None:
        super().left(address, now_s, suspect=suspect)
        if self.target == address:
            avoid = {address}
            self.target = self.pick(now_s, avoid | self._suspects.keys()) or self.pick(now_s, avoid) or address


class ClientRetryState(RetryState[ListedLeader]):
    """Of one call: at which server it is, and where it goes when that fails."""

    def __init__(self, leader: ListedLeader, *, retry: bool, repeatable: bool, changes: bool = False) -> None:
        """`retry`: goes on until the caller stops it; otherwise it asks each server once and waits for nothing.
        `repeatable`: the call does no harm when carried out twice. `changes`: it is about tasks, and not only reads."""
        super().__init__(leader, leader.pick() or "", random.random, starts_over=retry)
        self._retry = retry
        self._repeatable = repeatable
        self._changes = changes
        self._trail: dict[str, str] = {}  # what happened last at each server
        self._no_leader: dict[str, Rejected] = {}  # servers whose last answer was that they do not lead
        self._unknown: HoldfastError | None = None  # the last failure after which the call may have taken effect

    def after(self, error: HoldfastError, now_s: float) -> float | None:
        """How long to pause before the next attempt, at `address`; None if there is to be none."""
        self.note(error)
        if isinstance(error, Rejected) and _is_not_leader(error) and self.follows(named_leader(error.metadata), now_s):
            return self.pause_s()
        goes_on = self._may_repeat(error)
        moves = self._leader.several and (_is_of_the_server(error) or self._has_another_leader(error))
        if moves:
            # A call that was too slow does not make its server one that has gone: others may send us back at once.
            self.leave(now_s, suspect=isinstance(error, ConnectionFailed))
        if not goes_on or (moves and not self.moves_on(now_s)):
            return None
        if not self._retry:
            return 0.0 if moves else None
        return self.back_off_s() if moves else self._again(error)

    def note(self, error: HoldfastError) -> None:
        """An attempt failed."""
        self._trail[self.address] = _words(error)
        self._no_leader.pop(self.address, None)
        if isinstance(error, Rejected) and _is_not_leader(error):
            self._no_leader[self.address] = error
        if may_have_taken_effect(error):
            self._unknown = error

    @property
    def may_have_taken_effect(self) -> bool:
        """Whether an attempt that failed may have been carried out."""
        return self._unknown is not None

    def last_word(self, error: HoldfastError) -> HoldfastError:
        """What the caller hears. A refusal must not hide that an earlier attempt may have taken effect."""
        reported = error
        if self._unknown is not None and (_did_nothing(error) or (self._changes and not may_have_taken_effect(error))):
            reported = self._unknown
        if len(self._trail) < 2:
            return reported
        addresses, cause = (
            ", ".join(self._trail),
            "; ".join(f"{address}: {what}" for address, what in self._trail.items()),
        )
        if 0 < len(self._no_leader) < len(self._trail):
            nobody = f"{len(self._no_leader)} of {len(self._trail)} nodes answer, {NO_LEADER}"
            nothing_done = isinstance(reported, ConnectionFailed) and self._unknown is None
            if nothing_done or _is_not_leader(reported):
                refused = next(iter(self._no_leader.values()))
                reported = Unavailable(
                    f"{nobody}.", reason=refused.reason, retry_after_ms=refused.retry_after_ms,
                    metadata=refused.metadata,
                )  # fmt: skip
            cause = cause if isinstance(reported, Rejected) else f"{nobody}; {cause}"
        if isinstance(reported, ConnectionFailed):
            return ConnectionFailed(addresses, cause, sent=self._unknown is not None)
        if isinstance(reported, DeadlineExceeded):
            return DeadlineExceeded(addresses, reported.timeout_s, cause)
        if isinstance(reported, Rejected) and reported.reason in _ELSEWHERE:
            return type(reported)(
                f"{reported.message} Asked were {cause}.",
                reason=reported.reason,
                field=reported.field,
                retry_after_ms=reported.retry_after_ms,
                metadata=reported.metadata,
            )
        return reported

    def _may_repeat(self, error: HoldfastError) -> bool:
        if isinstance(error, ConnectionFailed) and not error.sent and self._leader.several:
            return True
        if isinstance(error, ConnectionFailed | DeadlineExceeded | OutcomeUnknown):
            return self._repeatable
        if not isinstance(error, Rejected) or takes_other_ids(error):
            return False
        return error.reason in _DID_NOTHING or self._has_another_leader(error)

    def _has_another_leader(self, error: HoldfastError) -> bool:
        return self._leader.is_direct and isinstance(error, Rejected) and error.reason == _MOVED

    def _again(self, error: HoldfastError) -> float:
        self._pauses += 1
        self._has_moved = False
        self.address = self._leader.pick() or self.address
        return asked_pause_s(self._pauses - 1, error)


def _is_of_the_server(error: HoldfastError) -> bool:
    """Whether another server may do better."""
    if isinstance(error, Rejected):
        return error.reason in _ELSEWHERE
    return isinstance(error, ConnectionFailed | DeadlineExceeded)


def _is_not_leader(error: HoldfastError) -> bool:
    return isinstance(error, Rejected) and error.reason == "NOT_LEADER"


def takes_other_ids(error: Rejected) -> bool:
    """Nothing was done, because the call's request ids name a set of shards that no map will ever know again, or one
    that new tasks should no longer go to: it takes other ids, and so another call."""
    return error.reason == STALE_MAP and error.metadata.get("why") in ("forgotten", "older")


def may_have_taken_effect(error: HoldfastError) -> bool:
    """Whether a call that ended with this may have been carried out."""
    if isinstance(error, ConnectionFailed):
        return error.sent
    return isinstance(error, DeadlineExceeded | OutcomeUnknown | ServerError | UnexpectedAnswer)


def _did_nothing(error: HoldfastError) -> bool:
    if isinstance(error, ConnectionFailed):
        return not error.sent
    return isinstance(error, Rejected) and (error.reason in _DID_NOTHING or error.reason in PASSING)


def _words(error: HoldfastError) -> str:
    if isinstance(error, ConnectionFailed):
        return error.cause or "no connection"
    if isinstance(error, DeadlineExceeded):
        return f"no answer within {error.timeout_s:g} s"
    if isinstance(error, Rejected):
        return "not the leader" if error.reason == "NOT_LEADER" else error.reason
    return str(error)
