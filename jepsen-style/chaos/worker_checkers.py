"""The judges of what real workers of the library were told and did. Pure, as those in `checkers.py`."""

from collections import defaultdict
from collections.abc import Iterator

from chaos.excuses import Excuses
from chaos.history import ACK, EXTEND, OK, Claim, HandlerRun, Story, Window
from chaos.verdicts import CLAIMS_SPENT, DEAD, MS, Checker, Final, Finding, Judged, Violation, claims_by_task
from holdfast.routing.task_ids import shard_of_task

S = 1_000 * MS
# What an answer may take without any fault: some milliseconds, and more while workers that were killed load their code
# again on the same two cores.
_ON_ITS_WAY_NS = 500 * MS
# Between the worker's last look at the lease and the first line of a handler: a thread has to be given the processor.
_START_SLACK_NS = 250 * MS
_PAUSE = "pause-worker"


def lease(story: Story, _: Final) -> Iterator[Finding]:
    """A worker that waited gets a whole lease all the same. Only what delays the answer may take from it: a fault on
    its own way, from the leader of the task's shard to the worker, between the claim and its arrival."""
    timeouts_ms = {send.value: send.timeout_ms for send in story.sends() if send.timeout_ms}
    excuses = Excuses(story)
    judged = 0
    for claim in story.claims:
        if not claim.ends_ns or not claim.asked_ms:
            continue
        wanted_ms = min(claim.asked_ms, timeouts_ms.get(claim.value, claim.asked_ms))
        left_ms = (claim.ends_ns - claim.ended_ns) / MS
        lost_ns = int((wanted_ms - left_ms) * MS)
        allowed_ns = _ON_ITS_WAY_NS + story.held_up_ns(claim.ended_ns - max(lost_ns, _ON_ITS_WAY_NS), claim.ended_ns)
        if claim.asked_ns < claim.sent_ns and claim.ended_ns - claim.sent_ns < allowed_ns:
            continue  # sent again: it was answered at once with what the first call had claimed
        claimed_ns = claim.ended_ns - max(lost_ns, allowed_ns)
        if _is_delayed(claim, claimed_ns, excuses):
            continue
        judged += 1
        if lost_ns > allowed_ns:
            sentence = f"{claim.task} arrived with {left_ms:.0f} ms left of a lease of {wanted_ms} ms"
            yield Violation("lease", sentence, (claim.task,))
    yield Judged("lease", judged)


def _is_delayed(claim: Claim, claimed_ns: int, excuses: Excuses) -> bool:
    shard = shard_of_task(claim.task)
    return excuses.way(claim.worker, claimed_ns, claim.ended_ns) or excuses.shard(shard, claimed_ns, claim.ended_ns)


def start(story: Story, _: Final) -> Iterator[Finding]:
    """Whatever happened to others, and also to a worker that was stopped: it looks at the lease before it starts."""
    claims = claims_by_task(story)
    extended: dict[tuple[str, int], list[tuple[int, int]]] = defaultdict(list)
    for call in story.with_token(EXTEND):
        if call.outcome == OK and call.ends_ns:
            extended[call.task, call.token].append((call.ended_ns, call.ends_ns))
    excuses = Excuses(story)
    pauses = [one for one in excuses.windows if one.what == _PAUSE]
    judged = 0
    for run in story.runs:
        mine = [claim for claim in claims[run.task] if claim.worker == run.worker and claim.ended_ns <= run.started_ns]
        if not mine:
            yield Violation("start", f"{run.task} was started by {run.worker}, which had not claimed it", (run.task,))
            continue
        claim = max(mine, key=lambda one: one.ended_ns)
        ends_known = [ends for index, ends in extended[run.task, claim.token] if index <= run.started_ns]
        late_ns = run.started_ns - max([claim.ends_ns, *ends_known])
        looked_ns = run.started_ns - max(late_ns, 0) - _START_SLACK_NS  # or before, if it looked at all
        if excuses.stalled(run.worker, looked_ns, run.started_ns) or _was_stopped_between(claim, run, pauses):
            continue
        judged += 1
        if late_ns > _START_SLACK_NS + story.held_up_ns(looked_ns, run.started_ns):
            sentence = f"{run.task} was started {late_ns / MS:.0f} ms after its lease had ended"
            yield Violation("start", sentence, (run.task,))
    yield Judged("start", judged)


def _was_stopped_between(claim: Claim, run: HandlerRun, pauses: list[Window]) -> bool:
    """Whether the worker may have been stopped between its look at the lease and the first line of the handler: the
    task had just arrived, and the handler began as soon as the worker went on."""
    return any(
        run.worker.partition("/")[0] in one.nodes
        and claim.ended_ns - _START_SLACK_NS <= one.from_ns <= claim.ended_ns + _START_SLACK_NS
        and one.to_ns - _START_SLACK_NS <= run.started_ns <= one.to_ns + S
        for one in pauses
    )


def innocent(story: Story, final: Final) -> Iterator[Finding]:
    """Tasks that neither kill nor stall their worker survive those that do: they allow more claims than runs take."""
    made_by = story.made_by()
    yield Judged("innocent", sum(not send.guilty for send in made_by.values()) if final.states else 0)
    runs: dict[str, int] = defaultdict(int)
    for run in story.runs:
        runs[run.task] += 1
    for task, state in (final.states or {}).items():
        send = made_by.get(task)
        if state != DEAD or (send is not None and send.guilty):
            continue
        if final.reasons.get(task) == CLAIMS_SPENT:
            sentence = f"{task} is dead of its claims; its handler ran {runs[task]} times"
            yield Violation("innocent", sentence, (task,))


def follow_ups(story: Story, final: Final) -> Iterator[Finding]:
    """What an accepted ack brought is handed out in the end. Two tasks of one follow-up are a `duplicate`."""
    acks = [ack for ack in story.with_token(ACK) if ack.outcome == OK] if final.drained else []
    yield Judged("follow-up", sum(len(ack.follow_ups) for ack in acks))
    seen = {claim.value for claim in story.claims}
    for ack in acks:
        for value in ack.follow_ups:
            if value not in seen:
                yield Violation("follow-up", f"{value} of {ack.task} was never handed out", (ack.task,))


WORKER_CHECKERS: tuple[Checker, ...] = (lease, start, innocent, follow_ups)
