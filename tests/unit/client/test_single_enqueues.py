"""Which single enqueues share a request, and what is kept of one that is sent again."""

from collections.abc import Sequence

from holdfast.client import Accepted, NewTask, OutcomeUnknown, Rejected, RequestIdConflict, Unavailable
from holdfast.client._single_enqueues import Sent, SingleEnqueue, SingleEnqueues
from holdfast.machine.ids import format_task_id, make_task_id

NOT_LEADER = Unavailable("Not here.", reason="NOT_LEADER")
UNKNOWN = OutcomeUnknown("Nobody knows.", reason="OUTCOME_UNKNOWN")


class Server:
    """Accepts tasks, each queue on its shard; takes its refusals first."""

    def __init__(self, shards: dict[str, int]) -> None:
        self.shards = shards
        self.refusals: list[Rejected] = []
        self.ids: list[str] = []

    async def enqueue(self, tasks: Sequence[NewTask], timeout_s: float, kept: Sequence[str]) -> Sent:
        ids = [task.request_id or kept[index] or f"~0.{len(self.ids)}.{index}" for index, task in enumerate(tasks)]
        self.ids += ids
        if self.refusals:
            return [self.refusals.pop(0) for _ in tasks], ids
        sequence = len(self.ids)
        return [Accepted(format_task_id(make_task_id(0, self.shards[task.queue], sequence))) for task in tasks], ids


def single(queue: str = "mail") -> SingleEnqueue:
    return SingleEnqueue(NewTask(queue, "t"))


def sent(queue: str = "mail") -> SingleEnqueue:
    return SingleEnqueue(NewTask(queue, "t"), "~0.key.0")


async def test_queues_of_one_shard_share_requests_once_their_first_tasks_were_seen() -> None:
    server = Server({"mail": 3, "reports": 3, "bills": 4})
    requests = SingleEnqueues(server.enqueue)
    for queue in server.shards:
        await requests.send([single(queue)], 1.0)
    groups = [requests.group_of(single(queue)) for queue in server.shards]
    assert groups[0] == groups[1] != groups[2]


async def test_a_queue_on_several_shards_shares_with_none_of_one_shard() -> None:
    server = Server({"mail": 3, "reports": 3})
    requests = SingleEnqueues(server.enqueue)
    for queue in server.shards:
        await requests.send([single(queue)], 1.0)
    server.shards["mail"] = 5
    await requests.send([single("mail")], 1.0)
    group = requests.group_of(single("mail"))
    assert group != requests.group_of(single("reports"))
    server.shards["reports"] = 5
    assert group not in range(64)


async def test_there_are_few_groups_however_many_queues_and_shards() -> None:
    server = Server({f"q{n}": n for n in range(3_000)})
    requests = SingleEnqueues(server.enqueue)
    groups = {requests.group_of(single(queue)) for queue in server.shards}
    for queue in server.shards:
        await requests.send([single(queue)], 1.0)
    groups |= {requests.group_of(single(queue)) for queue in server.shards}
    groups |= {requests.group_of_repeated(sent(queue), NOT_LEADER) for queue in server.shards}
    assert len(groups) <= 64 + 3 * 16


async def test_what_is_sent_again_keeps_its_automatic_key() -> None:
    server = Server({"mail": 3})
    server.refusals = [UNKNOWN]
    requests = SingleEnqueues(server.enqueue)
    item = single()
    assert await requests.send([item], 1.0) == [UNKNOWN]
    assert requests.group_of_repeated(item, UNKNOWN) is not None
    [accepted] = await requests.send([item], 1.0)
    assert isinstance(accepted, Accepted)
    assert server.ids == ["~0.0.0"] * 2


def test_refusals_that_time_does_not_heal_are_not_repeated() -> None:
    async def enqueue(tasks: Sequence[NewTask], timeout_s: float, kept: Sequence[str]) -> Sent:
        raise AssertionError

    requests = SingleEnqueues(enqueue)
    refusal = RequestIdConflict("another task", reason="REQUEST_ID_CONFLICT")
    assert requests.group_of_repeated(sent(), refusal) is None
    assert requests.group_of_repeated(sent(), NOT_LEADER) is not None
    assert requests.group_of_repeated(single(), NOT_LEADER) is None, "it was sent without an id"
