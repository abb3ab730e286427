"""Claims as their worker is told of them: each by itself, or those of a run together."""

from collections.abc import Iterator, Sequence
from itertools import repeat

from holdfast.broker.api.conversion import fill_claim
from holdfast.machine.ids import later_task_id, later_token
from holdfast.machine.outcomes import Claimed
from holdfast.machine.reader import Reader
from holdfast.machine.run_rows import envelope_of
from holdfast.proto.v1 import tasks_pb2 as pb

# A claim, what its tasks share, their payloads and their own request ids; None: it is one task, and this its envelope.
ClaimDetails = tuple[Claimed, bytes, tuple[list[bytes], list[bytes]] | None]


def read_claims(reader: Reader, claims: Sequence[Claimed]) -> list[ClaimDetails]:
    """Without those of tasks that finished meanwhile."""
    envelopes = iter(reader.envelopes([claim.task_id for claim in claims if claim.tasks == 1]))
    details: list[ClaimDetails] = []
    for claim in claims:
        if claim.tasks == 1:
            envelope = next(envelopes)
            if envelope is not None:
                details.append((claim, envelope, None))
        elif (found := reader.run_slice(claim.task_id, claim.tasks)) is not None:
            header, *own = found
            details.append((claim, header, (own[0], own[1])))
        else:  # none of them is in the run any more
            details += read_claims(reader, single_claims(claim))
    return details


def single_claims(claim: Claimed) -> list[Claimed]:
    """One for each task of a slice."""
    return [
        claim._replace(
            task_id=later_task_id(claim.task_id, index),
            token=later_token(claim.token, index),
            tasks=1,
            at=claim.at[index : index + 1],
        )
        for index in range(claim.tasks)
    ]


def fill_claims(
    response: pb.ReserveResponse, details: Sequence[ClaimDetails], now_ms: int, *, takes_runs: bool
) -> None:
    if takes_runs:
        for claim, envelope, own in details:
            _fill_run(response.runs.add(), claim, envelope, own, now_ms)
        return
    singles = [single for detail in details for single in _singles(*detail)]
    if any(claim.at for claim, _ in singles):  # all of them know where they belong, or none
        singles.sort(key=lambda single: single[0].at[0])
    for claim, envelope in singles:
        fill_claim(response.claims.add(), claim, envelope, now_ms)


def _fill_run(
    message: pb.ClaimRun, claim: Claimed, envelope: bytes, own: tuple[list[bytes], list[bytes]] | None, now_ms: int
) -> None:
    fill_claim(message, claim, envelope, now_ms)
    if claim.at:
        message.at.extend(claim.at)
    if own is None:
        message.payloads.append(message.task.payload)
        message.task.ClearField("payload")
        return
    payloads, request_ids = own
    message.payloads.extend(payloads)
    if request_ids:
        message.request_ids.extend([request_id.decode() for request_id in request_ids])


def _singles(
    claim: Claimed, envelope: bytes, own: tuple[list[bytes], list[bytes]] | None
) -> Iterator[tuple[Claimed, bytes]]:
    """For a caller that does not know of runs: each with its envelope."""
    if own is None:
        yield claim, envelope
        return
    payloads, request_ids = own
    for one, payload, request_id in zip(single_claims(claim), payloads, request_ids or repeat(b""), strict=False):
        yield one, envelope_of(envelope, payload, request_id)
