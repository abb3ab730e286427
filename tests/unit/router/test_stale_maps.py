"""Automatic keys for a set of shards which this router's map does not know: nothing is guessed."""

import grpc
import pytest

from holdfast.proto.v1 import tasks_pb2 as pb
from holdfast.router.batches import place
from holdfast.routing.sets import automatic_key, shard_for_task
from holdfast.serving.refusals import STALE_MAP, RefusedError
from tests.unit.router.router_stage import Stage, Table, accept_all
from tests.unit.router.test_passing import refusal_of


def task(queue: str, request_id: str) -> pb.TaskSpec:
    return pb.TaskSpec(queue=queue, type="t", payload=b"p", request_id=request_id)


def request_of(*tasks: pb.TaskSpec) -> pb.EnqueueRequest:
    return pb.EnqueueRequest(tasks=tasks)


@pytest.mark.parametrize(
    ("queue", "generation", "why", "newest"),
    [("plain", 1, "newer", 0), ("spread", 5, "newer", 4), ("spread", 3, "forgotten", 4)],
)
def test_the_whole_call_is_refused(queue: str, generation: int, why: str, newest: int) -> None:
    """Also if only one of its tasks has such an id, and whether or not the map knows of any sets."""
    table = Table(8)
    table.pin("spread", 3, 5, 6, generation=4)
    unknown = task(queue, automatic_key(generation, "key", 0))
    for request in (request_of(unknown), request_of(task("other", "mine"), task(queue, ""), unknown)):
        with pytest.raises(RefusedError) as refused:
            place(request, table, 1)
        assert refused.value.reason == STALE_MAP
        assert refused.value.retry_after_ms > 0
        assert refused.value.metadata == {"queue": queue, "generation": str(newest), "why": why}


async def test_a_retry_through_a_router_that_is_behind_makes_no_second_task() -> None:
    """It is refused until the router has heard of the set; then it goes to where its first attempt went."""
    async with Stage(3) as stage:
        stage.on_all(Enqueue=accept_all())
        stage.table.at_home("q", 0)
        current = Table(3)
        current.pin("q", 0, 1, 2)
        key = next(
            key for key in "abcdefgh" if shard_for_task(current.route("q"), automatic_key(1, key, 0), "", "", 0) == 2
        )
        retry = request_of(task("q", automatic_key(1, key, 0)))
        code, reason, _ = await refusal_of(stage.call("Enqueue", retry, attempt=2))
        assert (code, reason) == (grpc.StatusCode.UNAVAILABLE, "STALE_MAP")
        assert not any(broker.calls for broker in stage.brokers)
        stage.table.routes |= current.routes
        assert (await stage.call("Enqueue", retry, attempt=3)).outcomes[0].accepted.task_id == "2:p"
