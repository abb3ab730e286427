"""Batches of acks. Claims that follow each other, as those that were made together do, are acked as ranges, unless
there is a result or a follow-up. Outcomes come back for each claim, in order.
"""

from collections.abc import Iterator, Sequence
from itertools import repeat

from holdfast.client import _wire
from holdfast.client._claims import SECRET_BITS, put_claim
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

    def __init__(self, items: Sequence[Claim | Ack], first: int = 0) -> None:
        """`first`: the caller's place of the first item, if these are not all."""
        ranges = pb.AckRequest()
        try:
            groups = [group for group in _stretches(items) if len(group) > 1]
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
        self.request = _wire.ack_request([items[index] for index in alone], here)
        self.request.MergeFrom(ranges)
        self._places: Places[Acked] = Places(
            "items", "ranges", here, [[first + index for index in group] for group in groups]
        )

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


def _stretches(items: Sequence[Claim | Ack]) -> Iterator[list[int]]:
    """The places of claims that follow each other by their ids and their tokens, in whatever order they were given."""
    claims = [
        (claim.task_id, claim.token, position) for position, item in enumerate(items) if (claim := _plain_claim(item))
    ]
    claims.sort()
    group: list[int] = []
    last_id, next_token = "", 0
    for task_id, token, index in claims:
        if group and not (token == next_token and _follows(task_id, last_id)):
            yield group
            group = []
        group.append(index)
        last_id, next_token = task_id, token + _NEXT_TOKEN
    yield group


def _follows(task_id: str, last_id: str) -> bool:
    if not len(task_id) == len(last_id) == _ID_CHARACTERS or task_id[:_ID_BEGINNING] != last_id[:_ID_BEGINNING]:
        return False
    return int(task_id[_ID_BEGINNING:], 16) == int(last_id[_ID_BEGINNING:], 16) + 1
