"""Batches of acks. Claims that follow each other, as those that were made together do, are acked as ranges, unless
there is a result or a follow-up. Outcomes come back for each claim, in order.
"""

from collections.abc import Iterator, Sequence
from itertools import repeat

from holdfast.client import _wire
from holdfast.client._claims import SECRET_BITS, RunClaims, put_claim
from holdfast.client._fitting import MISFITS
from holdfast.client._places import Places
from holdfast.client.errors import Rejected, UnexpectedAnswer
from holdfast.client.models import Ack, Acked, Claim
from holdfast.proto.v1 import tasks_pb2 as pb

_NEXT_TOKEN = 1 << SECRET_BITS
_ID_CHARACTERS = 36
_ID_BEGINNING = 24  # what follows is a number by which the ids of a run differ


class AckBatch:
    """The request of a batch, and what its answer says of each claim."""

    def __init__(self, items: Sequence[Claim | Ack], part: range | None = None) -> None:
        """`part`: which of the items, by their places, if these are not all."""
        if isinstance(items, RunClaims) and items.is_unseen:
            self._set(*_ranges_of_runs(items.runs), ())
            return
        first, items = (part.start, items[part.start : part.stop]) if part else (0, items)
        ranges = pb.AckRequest()
        try:
            groups = [group for group in _stretches(items) if len(group) > 1] if len(items) > 1 else []
            for group in groups:
                claim = _plain_claim(items[group[0]])
                assert claim is not None
                put_claim(ranges.ranges.add(count=len(group)), claim)
        except MISFITS:
            groups = []  # one by one, so that it is told which item does not fit
            ranges.Clear()
        together = {index for group in groups for index in group}
        alone = [index for index in range(len(items)) if index not in together] if len(together) < len(items) else []
        here = [first + index for index in alone]
        request = _wire.ack_request([items[index] for index in alone], here) if alone else pb.AckRequest()
        request.MergeFrom(ranges)
        self._set(request, [[first + index for index in group] for group in groups], here)

    def _set(self, request: pb.AckRequest, groups: Sequence[Sequence[int]], alone: Sequence[int]) -> None:
        self.request = request
        self._places: Places[Acked] = Places("items", "ranges", alone, groups)

    def outcomes(self, response: pb.AckResponse) -> list[Acked | Rejected]:
        alone = _wire.ack_outcomes(response, len(self._places.alone))
        ranges = self._places.groups
        if len(response.ranges) != len(ranges):
            raise UnexpectedAnswer(f"{len(response.ranges)} outcomes for {len(ranges)} ranges")
        groups = [
            self._places.group(index, outcome, repeat(_wire.ACKED)) for index, outcome in enumerate(response.ranges)
        ]
        return self._places.join(alone, groups)

    def named(self, refusal: Rejected) -> Rejected:
        """Of the whole call, with the places that the caller knows."""
        return self._places.named(refusal)


def _plain_claim(item: Claim | Ack) -> Claim | None:
    """None if there is a result or a follow-up."""
    if not isinstance(item, Ack):
        return item
    return None if item.result is not None or item.follow_ups else item.claim


def _ranges_of_runs(runs: Sequence[pb.ClaimRun]) -> tuple[pb.AckRequest, list[Sequence[int]]]:
    """Of claims as they came, which nobody has looked at."""
    request, groups, first = pb.AckRequest(), list[Sequence[int]](), 0
    for run in runs:
        size = len(run.payloads)
        request.ranges.add(task_id=run.task_id, token=run.token, secret=run.secret, count=size)
        groups.append([*run.at] or range(first, first + size))
        first += size
    return request, groups


def _stretches(items: Sequence[Claim | Ack]) -> Iterator[list[int]]:
    """The places of claims that follow each other by their ids and their tokens, in whatever order they were given."""
    claims = [
        (claim.task_id, claim.token, position) for position, item in enumerate(items) if (claim := _plain_claim(item))
    ]
    claims.sort()
    group: list[int] = []
    beginning, number, next_token = "", 0, 0
    for task_id, token, index in claims:
        # What is no id does not follow anything.
        is_id = len(task_id) == _ID_CHARACTERS
        last, number = number, int(task_id[_ID_BEGINNING:], 16) if is_id else 0
        follows = is_id and token == next_token and number == last + 1 and task_id.startswith(beginning)
        if group and not follows:
            yield group
            group = []
        group.append(index)
        next_token = token + _NEXT_TOKEN
        if not follows:
            beginning = task_id[:_ID_BEGINNING]
    yield group
