"""Claims as their worker is told of them: each by itself, or those of a run together."""

from collections.abc import Sequence

from holdfast.broker.api.conversion import fill_claim
from holdfast.machine.ids import later_task_id, later_token
from holdfast.machine.outcomes import Claimed
from holdfast.machine.reader import Reader
from holdfast.machine.run_rows import envelope_of
from holdfast.proto.v1 import tasks_pb2 as pb

# A claim, what its tasks share, and their payloads; None: it is one task, and this is its envelope.
ClaimDetails = tuple[Claimed, bytes, list[bytes] | None]


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
            details.append((claim, *found))
        else:  # none of them is in the run any more
            details += read_claims(reader, single_claims(claim))
    return details


def single_claims(claim: Claimed) -> list[Claimed]:
    """One for each task of a slice."""
    return [
        claim._replace(task_id=later_task_id(claim.task_id, index), token=later_token(claim.token, index), tasks=1)
        for index in range(claim.tasks)
    ]


def fill_claims(
    response: pb.ReserveResponse, details: Sequence[ClaimDetails], now_ms: int, *, takes_runs: bool
) -> None:
    for claim, envelope, payloads in details:
        if takes_runs:
            _fill_run(response.runs.add(), claim, envelope, payloads, now_ms)
        elif payloads is None:
            fill_claim(response.claims.add(), claim, envelope, now_ms)
        else:
            _fill_each(response, claim, envelope, payloads, now_ms)


def _fill_run(message: pb.ClaimRun, claim: Claimed, envelope: bytes, payloads: list[bytes] | None, now_ms: int) -> None:
    fill_claim(message, claim, envelope, now_ms)
    if payloads is None:
        message.payloads.append(message.task.payload)
        message.task.ClearField("payload")
    else:
        message.payloads.extend(payloads)


def _fill_each(response: pb.ReserveResponse, claim: Claimed, header: bytes, payloads: list[bytes], now_ms: int) -> None:
    """To a caller that does not know of runs."""
    for one, payload in zip(single_claims(claim), payloads, strict=True):
        fill_claim(response.claims.add(), one, envelope_of(header, payload), now_ms)
