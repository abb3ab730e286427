"""Tasks that come one by one and are alike become a run, whoever sent them, and small calls of one moment one entry.

Each task keeps its own request id, and each call its own answer: its tasks are found again by their ids, whatever they
were accepted together with.
"""

import asyncio
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import partial

from holdfast.broker.leader.proposals import Proposal
from holdfast.broker.policy.task_specs import Member
from holdfast.broker.replica.shard import Shard
from holdfast.machine.entries import Enqueue
from holdfast.machine.ids import later_task_id
from holdfast.machine.new_runs import NewRun, pack_digests, pack_ids, pack_sizes
from holdfast.machine.new_tasks import NewTask
from holdfast.machine.outcomes import Accepted, AcceptedRun, Outcome
from holdfast.machine.run_entries import EnqueueRuns

SMALL_CALL_TASKS = 16  # a larger call is an entry of its own
GATHERED_TASKS = 128
GATHERED_BYTES = 256 * 1024

_Line = tuple[bytes, int, bytes, bytes]  # queue, priority, tenant, limit key
_Call = tuple[int, "asyncio.Future[list[Outcome]]"]  # how many tasks it brought, and who waits for their outcomes


class Gathering:
    """The tasks of small calls, on their way into one entry of a shard."""

    def __init__(self, shard: Shard) -> None:
        self._shard = shard
        self._members: list[Member] = []
        self._bytes = 0
        self._calls: list[_Call] = []

    async def submit(self, members: Sequence[Member]) -> list[Outcome]:
        """The outcomes of the tasks of one call, in their order."""
        if len(members) > SMALL_CALL_TASKS:
            batch = Batch(members)
            return batch.outcomes(await self._shard.submit(batch.entry(self._shard.now_ms())))
        self._shard.check_open(_NOTHING, len(self._calls))
        loop = asyncio.get_running_loop()
        future: asyncio.Future[list[Outcome]] = loop.create_future()
        if not self._calls:
            loop.call_soon(self._propose)  # with all that comes in this iteration of the loop
        self._calls.append((len(members), future))
        self._members += members
        self._bytes += sum([len(member.task.envelope) for member in members])
        if len(self._members) >= GATHERED_TASKS or self._bytes >= GATHERED_BYTES:
            self._propose()
        return await future

    def _propose(self) -> None:
        members, calls = self._members, self._calls
        self._members, self._calls, self._bytes = [], [], 0
        if not calls:  # there were so many that they did not wait
            return
        try:
            batch = Batch(members)
            proposal = Proposal(batch.entry(self._shard.now_ms()), calls=len(calls))
            proposal.future.add_done_callback(partial(_answer, batch, calls))
            self._shard.propose(proposal)
        except Exception as error:  # noqa: BLE001 - a bug, and no reason for all these callers to wait for ever
            _refuse(calls, error)


_NOTHING = Enqueue(0, [])  # what may be taken depends on its kind only


def _answer(batch: "Batch", calls: list[_Call], applied: "asyncio.Future[list[Outcome]]") -> None:
    try:
        outcomes = batch.outcomes(applied.result())
    except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001 - each call has it
        _refuse(calls, error)
        return
    first = 0
    for count, future in calls:
        if not future.done():  # otherwise its caller has gone
            future.set_result(outcomes[first : first + count])
        first += count


def _refuse(calls: list[_Call], error: BaseException) -> None:
    for _, future in calls:
        if not future.done():
            future.set_exception(error)
            future.exception()  # nobody is told that nobody looked


class Batch:
    """Tasks, in runs as far as they are alike. Within a line (a queue, a priority, a tenant and a limit key) none is
    overtaken by one behind it."""

    def __init__(self, members: Sequence[Member]) -> None:
        self._members = members
        self._headers: dict[int, bytes] = {}  # of those that may be alike, by place
        self._groups = self._find_groups() if len(members) > 1 else [[0]] * len(members)

    def _find_groups(self) -> list[list[int]]:
        """The places of tasks that are alike, in the order of the first of each."""
        tasks = [member.task for member in self._members]
        ids = [(new.queue, new.request_id) for new in tasks if new.request_id]
        lines = [(new.queue, new.priority, new.tenant, new.limit_key) for new in tasks]
        counts = Counter(lines)
        if len(counts) == len(tasks) or len(set(ids)) < len(ids):  # the first of those with one id counts
            return [[place] for place in range(len(tasks))]
        groups: list[list[int]] = []
        last: dict[_Line, tuple[tuple[bytes, int, bool], list[int]]] = {}  # of each line
        for place, (line, new) in enumerate(zip(lines, tasks, strict=True)):
            if counts[line] == 1:
                groups.append([place])
                continue
            self._headers[place] = header = self._members[place].header()
            shared = header, new.dedup_window_ms, bool(new.request_id)
            known = last.get(line)
            if known is not None and known[0] == shared and not (new.unique_key or new.run_at_ms or new.start_by_ms):
                known[1].append(place)
                continue
            groups.append([place])
            last[line] = shared, groups[-1]
        return groups

    def entry(self, now_ms: int) -> Enqueue | EnqueueRuns:
        if all(len(group) == 1 for group in self._groups):
            return Enqueue(now_ms, [member.task for member in self._members])
        return EnqueueRuns(now_ms, [self._item(group) for group in self._groups])

    def _item(self, group: list[int]) -> NewRun | NewTask:
        if len(group) == 1:
            return self._members[group[0]].task
        return _run_of([self._members[place] for place in group], self._headers[group[0]])

    def outcomes(self, applied: Sequence[Outcome]) -> list[Outcome]:
        """Of each task, in the order of the batch."""
        by_place: dict[int, Outcome] = {}
        for group, outcome in zip(self._groups, applied, strict=True):
            by_place.update(zip(group, _each(outcome, len(group)), strict=True))
        return [by_place[place] for place in range(len(self._members))]


def _run_of(members: Sequence[Member], header: bytes) -> NewRun:
    first = members[0].task
    payloads = [member.payload for member in members]
    digests = [member.task.digest for member in members]
    return NewRun(
        first.queue, first.priority, b"", first.dedup_window_ms, first.max_attempts, first.max_claims,
        first.result_ttl_ms, first.type, first.flags, first.timeout_ms, header,
        pack_sizes([len(payload) for payload in payloads]), b"".join(payloads), 0, first.tenant, first.limit_key,
        pack_ids([member.task.request_id for member in members]) if first.request_id else b"",
        pack_digests(digests) if any(digests) else b"",
    )  # fmt: skip


def _each(outcome: Outcome, count: int) -> Iterator[Outcome]:
    """Of each task of a run, or of one by itself."""
    if not isinstance(outcome, AcceptedRun):
        yield outcome
        return
    others, fresh = dict(outcome.others), 0
    for place in range(count):
        other = others.get(place)
        if other is not None:
            yield other
        else:
            yield Accepted(later_task_id(outcome.task_id, fresh), False)
            fresh += 1
