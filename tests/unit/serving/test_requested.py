"""Every field of a request that names a queue or a tenant is known to the tables that servers ask, and so is every list
that tells of them."""

import re
from collections.abc import Iterator
from typing import Any

import pytest

from holdfast.access.identities import of_token
from holdfast.access.permits import Permits
from holdfast.access.policies import AccessPolicy
from holdfast.access.rights import Right
from holdfast.proto.v1 import queues_pb2
from holdfast.proto.v1 import tasks_pb2 as pb
from holdfast.proto.v1.method_rules import RULES
from holdfast.router.methods import ALL
from holdfast.serving.requested import BATCHES, LISTS, OF_EVERYTHING, REQUESTS, denied_items, first_denied, narrow

NAMES = re.compile(r"(^|_)(queues?|tenants?)$")
KNOWN = {name: asked.fields for name, asked in REQUESTS.items()} | {
    name: batch.fields for name, batch in BATCHES.items()
}


def naming_fields(message: Any, path: tuple[str, ...] = ()) -> Iterator[str]:
    for field in message.fields:
        if NAMES.search(field.name):
            yield ".".join((*path, field.name))
        if field.message_type is not None and len(path) < 6:
            yield from naming_fields(field.message_type, (*path, field.name))


@pytest.mark.parametrize("method", ALL, ids=lambda method: method.name)
def test_what_a_request_names_is_known(method: Any) -> None:
    request = method.request.DESCRIPTOR
    found = {path for path in naming_fields(request) if path != "queue_tasks_max"}
    if RULES[method.path][1] == "cluster" or request.name in OF_EVERYTHING:
        return  # whoever may make it may name anything
    assert found == KNOWN.get(request.name, frozenset()), (
        f"{request.name} names queues or tenants: say in common/holdfast/serving/requested.py how they are asked about"
    )


def test_the_tables_have_nothing_else() -> None:
    assert KNOWN.keys() <= {method.request.DESCRIPTOR.name for method in ALL}
    assert LISTS.keys() <= {method.response.DESCRIPTOR.name for method in ALL}


@pytest.mark.parametrize("method", [method for method in ALL if method.name.startswith("List")], ids=lambda m: m.name)
def test_what_a_list_tells_of_is_known(method: Any) -> None:
    if RULES[method.path][1] != "cluster":
        name = method.response.DESCRIPTOR.name
        assert name in LISTS or name == "ListWorkersResponse", f"{name} would be answered whole"


POLICY = AccessPolicy.read({
    "roles": {
        "q": {"rights": ["enqueue", "observe"], "queues": ["q"]},
        "acme": {"rights": ["enqueue", "observe"], "queues": ["shared"], "tenants": ["acme"]},
    },
    "grants": {"token:t": ["q", "acme"]},
})  # fmt: skip
PERMITS = Permits(of_token("t"), POLICY)


def test_items_are_found_by_list_and_place() -> None:
    def task(queue: str, tenant: str = "") -> pb.TaskSpec:
        return pb.TaskSpec(queue=queue, tenant=tenant)

    request = pb.EnqueueRequest(
        tasks=[task("q"), task("shared", "acme"), task("shared", "globex"), task("shared")],
        runs=[pb.TaskRun(task=task("q")), pb.TaskRun(task=task("other"))],
    )
    denied = denied_items(BATCHES["EnqueueRequest"], PERMITS.of(Right.ENQUEUE), request)
    assert {field: sorted(places) for field, places in denied.items()} == {"tasks": [2, 3], "runs": [1]}
    follow_ups = pb.AckRequest(items=[pb.AckItem(), pb.AckItem(follow_ups=[task("q"), task("other")])])
    denied = denied_items(BATCHES["AckRequest"], PERMITS.of(Right.ENQUEUE), follow_ups)
    assert denied == {"items": {1: ("follow_ups[1].queue", "other", "")}}


def test_lists_are_narrowed() -> None:
    tasks = [
        pb.TaskInfo(queue="q"),
        pb.TaskInfo(queue="shared", tenant="globex"),
        pb.TaskInfo(queue="shared", tenant="acme"),
    ]
    response = queues_pb2.ListTasksResponse(tasks=tasks, next_page_token="x")
    narrow(PERMITS.of(Right.OBSERVE), response)
    assert [(task.queue, task.tenant) for task in response.tasks] == [("q", ""), ("shared", "acme")]
    assert response.next_page_token == "x"
    workers = queues_pb2.ListWorkersResponse(
        workers=[{"worker": "a", "queues": ["q", "other"], "claims": 9}, {"worker": "b", "queues": ["shared"]}]
    )
    narrow(PERMITS.of(Right.OBSERVE), workers)
    [worker] = workers.workers
    assert (worker.worker, list(worker.queues), worker.claims) == ("a", ["q"], 0)


def test_a_filter_may_name_only_what_may_be_seen() -> None:
    permit = PERMITS.of(Right.OBSERVE)
    request = queues_pb2.ListTasksRequest(queue="shared", filter=queues_pb2.TaskFilter(tenant="globex"))
    assert first_denied(permit, request) == ("queue", "shared", "globex")
    request.filter.tenant = "acme"
    assert first_denied(permit, request) is None
