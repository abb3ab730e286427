"""The judges of what real workers of the library were told and did. Pure, as those in `checkers.py`."""

from collections import defaultdict
from collections.abc import Callable, Iterator

from chaos.history import ACK, EXTEND, OK, Story, Window
from chaos.verdicts import CLAIMS_SPENT, DEAD, MS, Checker, Final, Violation, claims_by_task

S = 1_000 * MS
# What an answer may take without any fault: some milliseconds, and more while workers that were killed load their code
# again on the same two cores.
_ON_ITS_WAY_NS = 500 * MS
# Between the worker's last look at the lease and the first line of a handler: a thread has to be given the processor.
_START_SLACK_NS = 250 * MS


def lease(story: Story, _: Final) -> Iterator[Violation]:
    """A worker that waited gets a whole lease all the same. Only what delays the answer may take from it."""
    timeouts_ms = {send.value: send.timeout_ms for send in story.sends() if send.timeout_ms}
    excused = _excuses(story)
    for claim in story.claims:
        if not claim.ends_ns or not claim.asked_ms:
            continue
        wanted_ms = min(claim.asked_ms, timeouts_ms.get(claim.value, claim.asked_ms))
        left_ms = (claim.ends_ns - claim.ended_ns) / MS
        lost_ns = (wanted_ms - left_ms) * MS
        allowed_ns = _ON_ITS_WAY_NS + story.held_up_ns(claim.ended_ns - int(lost_ns), claim.ended_ns)
        if lost_ns < allowed_ns:
            continue
        if claim.asked_ns < claim.sent_ns and claim.ended_ns - claim.sent_ns < allowed_ns:
            continue  # sent again: it was answered at once with what the first call had claimed
        if not excused(claim.worker, claim.ended_ns - int(lost_ns) - S, claim.ended_ns):
            sentence = f"{claim.task} arrived with {left_ms:.0f} ms left of a lease of {wanted_ms} ms"
            yield Violation("lease", sentence, (claim.task,))


def start(story: Story, _: Final) -> Iterator[Violation]:
    claims = claims_by_task(story)
    extended: dict[tuple[str, int], list[tuple[int, int]]] = defaultdict(list)
    for call in story.with_token(EXTEND):
        if call.outcome == OK and call.ends_ns:
            extended[call.task, call.token].append((call.ended_ns, call.ends_ns))
    excused = _excuses(story)
    for run in story.runs:
        mine = [claim for claim in claims[run.task] if claim.worker == run.worker and claim.ended_ns <= run.started_ns]
        if not mine:
            yield Violation("start", f"{run.task} was started by {run.worker}, which had not claimed it", (run.task,))
            continue
        claim = max(mine, key=lambda one: one.ended_ns)
        told = [ends for at, ends in extended[run.task, claim.token] if at <= run.started_ns]
        ends_ns = max([claim.ends_ns, *told])
        late_ns = run.started_ns - ends_ns
        slack_ns = _START_SLACK_NS + story.held_up_ns(claim.ended_ns, run.started_ns)
        if late_ns > slack_ns and not excused(run.worker, claim.ended_ns, run.started_ns):
            sentence = f"{run.task} was started {late_ns / MS:.0f} ms after its lease had ended"
            yield Violation("start", sentence, (run.task,))


def innocent(story: Story, final: Final) -> Iterator[Violation]:
    """Tasks that neither kill nor stall their worker survive those that do: they allow more claims than runs take."""
    made_by = story.made_by()
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


def follow_ups(story: Story, final: Final) -> Iterator[Violation]:
    """What an accepted ack brought is handed out in the end. Two tasks of one follow-up are a `duplicate`."""
    if not final.drained:
        return
    seen = {claim.value for claim in story.claims}
    for ack in story.with_token(ACK):
        if ack.outcome == OK:
            for value in ack.follow_ups:
                if value not in seen:
                    yield Violation("follow-up", f"{value} of {ack.task} was never handed out", (ack.task,))


Excused = Callable[[str, int, int], bool]


def _excuses(story: Story) -> Excused:
    """Whether something held a worker or its answers up in a time: any fault, or a handler that stalls its worker."""
    windows = story.windows()
    guilty = {send.value for send in story.sends() if send.guilty}
    stalls: dict[str, list[Window]] = defaultdict(list)
    for run in story.runs:
        if run.value in guilty:
            ended_ns = run.ended_ns or run.started_ns + 10 * S
            stalls[run.worker].append(Window(what="stall", nodes=(), from_ns=run.started_ns, to_ns=ended_ns))

    def excused(worker: str, from_ns: int, to_ns: int) -> bool:
        return any(one.from_ns - S <= to_ns and from_ns <= one.to_ns + S for one in [*windows, *stalls[worker]])

    return excused


WORKER_CHECKERS: tuple[Checker, ...] = (lease, start, innocent, follow_ups)
