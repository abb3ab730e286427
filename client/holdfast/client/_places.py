"""Where the items of a request are in the batch that a caller gave, when some of them travel together: the caller hears
of each by its own place.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Generic, TypeVar

from holdfast.client._fitting import rejection_of
from holdfast.client.errors import Rejected, UnexpectedAnswer
from holdfast.proto.v1 import tasks_pb2 as pb

T = TypeVar("T")

# What a refusal names: a list, a place in it, and of runs what all have or one has.
_NAMED = re.compile(
    r"^(?P<list>\w+)(?:\[(?P<index>\d+)\])?(?P<inner>\.task\b|\.(?P<own>payload|request_id)s(?:\[(?P<place>\d+)\])?)?"
)


@dataclass(frozen=True, slots=True)
class Places(Generic[T]):
    """`name`: of the batch, and of the list of those that go alone; `together`: of the other list."""

    name: str
    together: str
    alone: Sequence[int]
    groups: Sequence[Sequence[int]]  # of those that go together

    def join(self, alone: list[T | Rejected], groups: Sequence[list[T | Rejected]]) -> list[T | Rejected]:
        """The outcomes in the order of the batch, from those of both lists."""
        alone = [self.named(outcome) if isinstance(outcome, Rejected) else outcome for outcome in alone]
        if not groups:
            return alone
        if not alone and len(groups) == 1 and isinstance(self.groups[0], range):  # all in their order
            return groups[0]
        outcomes = dict(zip(self.alone, alone, strict=True))
        for places, found in zip(self.groups, groups, strict=True):
            outcomes.update(zip(places, found, strict=True))
        return [outcomes[index] for index in sorted(outcomes)]

    def group(
        self,
        index: int,
        outcome: pb.RunOutcome | pb.RangeOutcome,
        done: Iterable[T],
        known: Iterable[tuple[int, T]] = (),
    ) -> list[T | Rejected]:
        """The outcomes of one group. `done`: of those that nothing else is said of, in their order. `known`: of some of
        the others, by their places in the group; all others were refused."""
        places = self.groups[index]
        if outcome.HasField("rejection"):
            return [self._refused(outcome.rejection, place) for place in places]
        others: dict[int, T | Rejected] = dict(known)
        for item in outcome.refused:
            if not 0 <= item.at < len(places):
                raise UnexpectedAnswer(f"a refusal of none of {len(places)} items")
            others[item.at] = self._refused(item.rejection, places[item.at])
        results: list[T | Rejected] = list(islice(done, len(places) - len(others)))
        for at in sorted(others):
            results.insert(at, others[at])
        if len(results) != len(places) or not all(0 <= at < len(places) for at in others):
            raise UnexpectedAnswer(f"{len(results)} outcomes for {len(places)} items that go together")
        return results

    def _refused(self, message: pb.Rejection, place: int) -> Rejected:
        return self.named(rejection_of(message), place)

    def named(self, refusal: Rejected, place: int | None = None) -> Rejected:
        """The same refusal with the caller's name for what it names. `place`: whose outcome it is, if it is one's."""
        found = _NAMED.match(refusal.field)
        if found is None:
            return refusal
        try:
            here, there = found[0], self._name(found, place)
        except IndexError:  # it names what was not in the request
            return refusal
        if there == here:
            return refusal
        return type(refusal)(
            refusal.message.replace(here, there),
            reason=refusal.reason,
            field=there + refusal.field[len(here) :],
            retry_after_ms=refusal.retry_after_ms,
            metadata=refusal.metadata,
        )

    def _name(self, found: re.Match[str], place: int | None) -> str:
        here, index, inner = found["list"], found["index"], found["inner"] or ""
        if here == self.name and index is not None:
            return f"{self.name}[{self.alone[int(index)]}]{inner}"
        if here != self.together:
            return found[0]
        if index is None:
            return self.name
        if place is None:
            place = self.groups[int(index)][int(found["place"] or 0)]
        return f"{self.name}[{place}]" + (f".{found['own']}" if found["own"] else "")
