"""The tables of calls name what the wire API has, and leave out nothing that is split by tasks."""

from holdfast.proto.v1 import tasks_pb2 as pb
from holdfast.router.methods import ALL
from holdfast.routing.calls import BY_SCHEDULE, BY_TASK, BY_WORKER, task_ids_of

REQUESTS = {method.name: method.request for method in ALL}
FIELDS = {name: set(request.DESCRIPTOR.fields_by_name) for name, request in REQUESTS.items()}


def test_calls_with_an_item_for_each_task() -> None:
    assert BY_TASK.keys() == {name for name, fields in FIELDS.items() if fields & {"items", "claims", "task_ids"}}
    for name, (field, task_id) in [(name, items) for name, lists in BY_TASK.items() for items in lists]:
        items = getattr(REQUESTS[name](), field)
        if task_id is str:
            items.append("")
        else:
            items.add()
        assert task_id(items[0]) == ""


def test_ids_of_a_call_come_from_all_its_lists() -> None:
    request = pb.AckRequest(items=[{"claim": {"task_id": "a"}}], ranges=[{"task_id": "b"}, {"task_id": "c"}])
    assert list(task_ids_of("Ack", request)) == ["a", "b", "c"]


def test_calls_on_schedules_and_workers_name_a_queue_or_a_worker() -> None:
    assert all(FIELDS[name] >= {"queue", "name"} for name in BY_SCHEDULE)
    assert all("worker" in FIELDS[name] for name in BY_WORKER)
