"""The judges of how the system serves: who is not struck must not notice, and who stalls must not say that it is ready.
Pure, as those in `checkers.py`."""

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from statistics import median

from chaos.excuses import Excuses, felt_until_ns
from chaos.history import ACK, ENQUEUE, OK, PROCESSES_ON_THE_WAY, Call, Claim, HandlerRun, Story, Window
from chaos.verdicts import MS, Checker, Final, Finding, Judged, Rate, Violation
from chaos.workloads.kinds import probed_shard
from holdfast.routing.task_ids import shard_of_task

S = 1_000 * MS
# A shard that was not struck: half of its calls may take so much longer while another one is. A good build takes 5 to
# 15 ms with and without faults on two cores; whoever was killed takes one of them for a second to load its code again.
# Where calls usually take longer than that, others are at work on the machine, and the loading takes as much longer.
_LONGER = 1.5
_LONGER_NS = 100 * MS
_USUAL_NS = 15 * MS
_STALL_NS = 2 * S  # and none may take so long: about as long as the longest election, which is none of its business
_CALLS_MIN = 6
_SETTLE_NS = 1 * S  # after a fault, until things are as before
_READY_STALL_NS = 5 * S
_READY_SEEN_NS = 2 * S  # readiness is asked for twice a second, and may take a while to answer
# After a fault or an operation: so long may replicas that come back, or move, still bring another leader.
_LEADERS_SETTLE_NS = 5 * S
_LEADERS_LAG_NS = 150 * MS  # a third of the time after which a silent leader is replaced
_AWAY = frozenset(
    {"kill", "pause", "stop", "host-dies", "unplug", "rolling-restart"}
)  # it is gone, or reached by nobody
REPORT = "report"
_PILED_UP_NS = 10 * S
_RATE_SLACK_NS = 1_500 * MS  # between a claim and when its worker hears of it
_RATE_SPARE = 1.1
_RATE_WINDOWS_NS = (1 * S, 3 * S, 10 * S, 30 * S)


def latency(story: Story, _: Final) -> Iterator[Finding]:
    """Enqueues of probes and reports of workers, on shards that keep their leader while another node is struck, or
    operators are at work. What is judged of a call that takes too long is its first two seconds: what came later does
    not matter."""
    excuses = Excuses(story)
    judged: set[int] = set()
    for f, calls in _measured_calls(story).items():
        quiet_ns = [call.ended_ns - call.invoked_ns for _, call in calls if not _overlaps(call, excuses.windows)]
        if len(quiet_ns) < _CALLS_MIN:
            continue
        spared = [call for shard, call in calls if not _is_held_up(call, shard, story, excuses)]
        for window in excuses.windows:
            during = [call for call in spared if window.from_ns <= call.invoked_ns <= window.to_ns]
            judged.update(map(id, during))
            yield from _slow(f, window, median(quiet_ns), during, story)
    yield Judged("latency", len(judged))


def _measured_calls(story: Story) -> dict[str, list[tuple[int, Call]]]:
    """By kind, with their shards: those whose time tells something."""
    found: dict[str, list[tuple[int, Call]]] = {ENQUEUE: [], REPORT: []}
    for call in [*story.calls, *reports(story)]:
        shard = _measured(call)
        if shard is not None:
            found[call.f].append((shard, call))
    return found


def _measured(call: Call) -> int | None:
    """Its shard, if it is one of those whose time tells something."""
    if call.f == ENQUEUE:
        return probed_shard(call.queue)
    return shard_of_task(call.task) if call.f == REPORT else None


def reports(story: Story) -> list[Call]:
    """From the end of a handler until its worker knows that this is known: what waits before it is sent counts, too.
    Not while another handler stalls that worker."""
    guilty = {send.value for send in story.sends() if send.guilty}
    stalls: dict[str, list[HandlerRun]] = defaultdict(list)
    ended_ns: dict[tuple[str, str], int] = {}
    for run in story.runs:
        ended_ns[run.task, run.worker] = run.ended_ns
        if run.value in guilty:
            stalls[run.worker].append(run)
    found = []
    for ack in story.with_token(ACK):
        begins_ns = ended_ns.get((ack.task, ack.worker), 0)
        if ack.outcome != OK or not begins_ns or begins_ns > ack.invoked_ns:
            continue
        if not any(run.started_ns - S < ack.ended_ns and begins_ns < run.ended_ns + S for run in stalls[ack.worker]):
            found.append(replace(ack, f=REPORT, invoked_ns=begins_ns))
    return found


def _overlaps(call: Call, windows: list[Window]) -> bool:
    return any(one.from_ns <= call.ended_ns and call.invoked_ns <= one.to_ns + _SETTLE_NS for one in windows)


def _is_held_up(call: Call, shard: int, story: Story, excuses: Excuses) -> bool:
    """Whether something on its way was struck before it was too late anyway."""
    until_ns = min(call.ended_ns, call.invoked_ns + _limit_ns(call, story))
    return excuses.shard(shard, call.invoked_ns, until_ns) or excuses.way(call.worker, call.invoked_ns, until_ns)


def _limit_ns(call: Call, story: Story) -> int:
    """How long it may take, with what a busy machine may have taken from it."""
    return _STALL_NS + story.held_up_ns(call.invoked_ns, min(call.ended_ns, call.invoked_ns + _STALL_NS))


def _slow(f: str, window: Window, usual_ns: float, calls: list[Call], story: Story) -> Iterator[Violation]:
    where = f"of shards that {window.what} of {' '.join(window.nodes) or 'nobody'} did not strike"
    took_ns = [call.ended_ns - call.invoked_ns for call in calls]
    own_ns = [took - PROCESSES_ON_THE_WAY * story.lag_ns(call.invoked_ns, call.ended_ns)
              for call, took in zip(calls, took_ns, strict=True)]  # fmt: skip
    stalled_ns = [took for call, took in zip(calls, took_ns, strict=True) if took > _limit_ns(call, story)]
    if stalled_ns:
        yield Violation("latency", f"{f} {where} took up to {max(stalled_ns) / S:.1f} s")
    elif len(calls) >= _CALLS_MIN and median(own_ns) > usual_ns * _LONGER + _LONGER_NS * max(1, usual_ns / _USUAL_NS):
        sentence = f"{f} {where} took {median(took_ns) / MS:.0f} ms, usually {usual_ns / MS:.0f} ms"
        yield Violation("latency", sentence)


def ready(story: Story, _: Final) -> Iterator[Finding]:
    """A leader whose shard acknowledges nothing for longer than 5 s must say so, whether it gives up later or not."""
    excuses = Excuses(story)
    said: dict[str, list[tuple[int, str]]] = defaultdict(list)
    for event in story.ready:
        said[event.node].append((event.t_ns, event.state))
    judged = 0
    for shard, from_ns, to_ns in _stalls(story):
        must_say_ns = from_ns + _READY_STALL_NS + _READY_SEEN_NS
        leader = excuses.leaders.stays(shard, from_ns, must_say_ns)
        if to_ns < must_say_ns or not leader or _cannot_be_reached(leader, from_ns, must_say_ns, excuses):
            continue
        judged += 1
        if _states(said[leader], must_say_ns, must_say_ns) == {"200"}:
            sentence = (
                f"{leader} said that it was ready while shard {shard} took no write for {(to_ns - from_ns) / S:.1f} s"
            )
            yield Violation("ready", sentence)
    yield Judged("ready", judged)


def _cannot_be_reached(leader: str, from_ns: int, to_ns: int, excuses: Excuses) -> bool:
    """Whether probes fail, or the leader does not know, for another reason than its writes."""
    return any(
        one.from_ns - S <= to_ns
        and from_ns <= felt_until_ns(one)
        and ((leader in one.nodes and one.what in _AWAY) or any(name.startswith("r") for name in one.nodes))
        for one in excuses.windows
    )


def refused(story: Story, _: Final) -> Iterator[Finding]:
    """The load is small: nobody is told that it is too much, unless a fault has made calls pile up."""
    windows = story.windows()
    calm = [
        call
        for call in story.calls
        if not any(one.from_ns - S <= call.ended_ns and call.invoked_ns <= one.to_ns + _PILED_UP_NS for one in windows)
    ]
    yield Judged("refused", len(calm))
    for call in calm:
        if "OVERLOADED" in call.err:
            yield Violation("refused", f"{call.f} was refused as too much although there was little to do", ())
            return


def elections(story: Story, _: Final) -> Iterator[Finding]:
    """While no fault or operation is under way, nor was in the last 5 s, nobody is replaced, however busy shards are;
    unless the machine itself gave nobody a processor for so long that signs of life may be late."""
    loud = [(one.from_ns - S, one.to_ns + _LEADERS_SETTLE_NS) for one in story.windows()]
    yield Judged("election", _quiet_ns(story, loud) // S)
    known: dict[str, str] = {}
    for event in story.leaders:
        before = known.get(event.req_id, "")
        known[event.req_id] = event.node
        if not before or before == event.node or any(begins <= event.t_ns <= ends for begins, ends in loud):
            continue
        if story.lag_ns(event.t_ns - 2 * S, event.t_ns) < _LEADERS_LAG_NS:
            yield Violation("election", f"shard {event.req_id} lost its leader {before} without any fault")
            return


def _quiet_ns(story: Story, loud: list[tuple[int, int]]) -> int:
    """How long nothing was done to anybody while the load ran."""
    at_ns, last_ns = story.begins_ns(), max((call.ended_ns for call in story.calls), default=0)
    quiet_ns = 0
    for begins_ns, ends_ns in sorted(loud):
        quiet_ns += max(0, min(begins_ns, last_ns) - at_ns)
        at_ns = max(at_ns, ends_ns)
    return quiet_ns + max(0, last_ns - at_ns)


def _stalls(story: Story) -> Iterator[tuple[int, int, int]]:
    """Shard, from, to: probes were sent and none of them was acknowledged before; the last one at that moment."""
    probes: dict[int, list[Call]] = defaultdict(list)
    for call in story.calls:
        shard = probed_shard(call.queue) if call.f == ENQUEUE else None
        if shard is not None:
            probes[shard].append(call)
    for shard, calls in probes.items():
        acked_ns = sorted(call.ended_ns for call in calls if call.outcome == OK)
        until_ns = 0
        for call in sorted(calls, key=lambda one: one.invoked_ns):
            if call.invoked_ns < until_ns:
                continue  # part of the same
            place = bisect_right(acked_ns, call.invoked_ns)
            until_ns = acked_ns[place] if place < len(acked_ns) else max(one.ended_ns for one in calls)
            if until_ns - call.invoked_ns > _READY_STALL_NS:
                yield shard, call.invoked_ns, until_ns


def _states(changes: list[tuple[int, str]], from_ns: int, to_ns: int) -> set[str]:
    """All that were seen in a time."""
    before = [state for t_ns, state in changes if t_ns <= from_ns]
    return {*before[-1:], *(state for t_ns, state in changes if from_ns < t_ns <= to_ns)}


def rates(story: Story, final: Final) -> Iterator[Finding]:
    """Claims as workers heard of them. A rate is kept by each shard's time, so there is some room."""
    yield Judged("rate", sum(claim.queue in final.rates for claim in story.claims))
    for queue, rate in final.rates.items():
        first_of: dict[tuple[str, int], Claim] = {}
        for claim in story.claims:
            if claim.queue == queue:
                first_of.setdefault((claim.task, claim.token), claim)
        heard_ns = sorted(claim.ended_ns for claim in first_of.values())
        shards = {shard_of_task(task) for task, _ in first_of}
        yield from _too_many(queue, rate, heard_ns, len(shards))


def _too_many(queue: str, rate: Rate, heard_ns: list[int], shards: int) -> Iterator[Violation]:
    """The bursts of all shards of a queue together are less than its burst and one task for each of them."""
    for window_ns in _RATE_WINDOWS_NS:
        most = rate.burst + rate.per_second * _RATE_SPARE * (window_ns + _RATE_SLACK_NS) / S + shards
        first = 0
        for last, t_ns in enumerate(heard_ns):
            while heard_ns[first] < t_ns - window_ns:
                first += 1
            if last - first + 1 > most:
                sentence = f"{last - first + 1} claims of {queue} in {window_ns / S:g} s, where {most:.0f} may be"
                yield Violation("rate", sentence)
                return


SERVICE_CHECKERS: tuple[Checker, ...] = (latency, ready, rates, refused, elections)
