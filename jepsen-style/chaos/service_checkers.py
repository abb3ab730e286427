"""The judges of how the system serves: who is not struck must not notice, and who stalls must not say that it is ready.
Pure, as those in `checkers.py`."""

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from statistics import median

from chaos.history import ACK, ENQUEUE, OK, Call, Claim, Event, HandlerRun, Story, Window
from chaos.verdicts import MS, Checker, Final, Rate, Violation
from chaos.workloads.kinds import probed_shard
from holdfast.routing.task_ids import shard_of_task

S = 1_000 * MS
# A shard that was not struck: half of its calls may take so much longer while another one is. A good build takes 5 to
# 15 ms with and without faults on two cores; whoever was killed takes one of them for a second to load its code again.
_LONGER = 1.5
_LONGER_NS = 100 * MS
_STALL_NS = 2 * S  # and none may take so long: about as long as the longest election, which is none of its business
_ENDS_NS = 20 * S  # what ends even later has met other faults, too
_CALLS_MIN = 6
_SETTLE_NS = 1 * S  # after a fault, until things are as before
# Whom a fault strikes and how: of these it is known which shards have nothing to do with it.
_STRIKES_BROKERS = frozenset({"kill", "pause", "host-dies", "cut-two-way", "unplug", "stop", "disk-stall", "disk-slow"})
_READY_STALL_NS = 5 * S
REPORT = "report"
_PILED_UP_NS = 10 * S
_RATE_SLACK_NS = 1_500 * MS  # between a claim and when its worker hears of it
_RATE_SPARE = 1.1
_RATE_WINDOWS_NS = (1 * S, 3 * S, 10 * S, 30 * S)


class Leaders:
    """Who led which shard when, as far as it was seen."""

    def __init__(self, seen: list[Event]) -> None:
        self._changes: dict[int, list[tuple[int, str]]] = defaultdict(list)
        for event in seen:
            self._changes[int(event.req_id)].append((event.t_ns, event.node))

    def at(self, shard: int, t_ns: int) -> str:
        changes = self._changes[shard]
        place = bisect_right(changes, t_ns, key=lambda change: change[0])
        return changes[place - 1][1] if place else ""

    def stays(self, shard: int, from_ns: int, to_ns: int) -> str:
        """Who led for all of this time; empty if it changed, or nobody did."""
        leader = self.at(shard, from_ns)
        changed = any(from_ns < t_ns <= to_ns for t_ns, _ in self._changes[shard])
        return "" if changed else leader


def latency(story: Story, _: Final) -> Iterator[Violation]:
    """Enqueues of probes and reports of workers, on shards that keep their leader while another node is struck."""
    windows = story.windows()
    leaders = Leaders(story.leaders)
    calls = [(shard, call) for call in [*story.calls, *reports(story)] if (shard := _measured(call)) is not None]
    quiet = [call for _, call in calls if not _overlaps(call, windows)]
    for f in (ENQUEUE, REPORT):
        before_ns = [call.ended_ns - call.invoked_ns for call in quiet if call.f == f]
        if len(before_ns) < _CALLS_MIN:
            continue
        usual_ns = median(before_ns)
        for window in windows:
            if window.what not in _STRIKES_BROKERS or not _is_alone(window, windows):
                continue
            during = [call for shard, call in calls if call.f == f and _is_spared(call, shard, window, leaders)]
            held_up_ns = story.held_up_ns(window.from_ns, window.to_ns + _SETTLE_NS)
            yield from _slow(f, window, usual_ns, [call.ended_ns - call.invoked_ns for call in during], held_up_ns)


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


def _is_alone(window: Window, windows: list[Window]) -> bool:
    return not any(
        other is not window and other.from_ns <= window.to_ns and window.from_ns <= other.to_ns for other in windows
    )


def _is_spared(call: Call, shard: int, window: Window, leaders: Leaders) -> bool:
    """Whether a call falls into the time of a fault that has nothing to do with its shard."""
    if not (window.from_ns <= call.invoked_ns and call.ended_ns <= window.to_ns + _ENDS_NS):
        return False
    if call.invoked_ns > window.to_ns or call.worker.partition("/")[0] in window.nodes:
        return False
    leader = leaders.stays(shard, window.from_ns - S, window.to_ns)
    return bool(leader) and leader not in window.nodes


def _slow(f: str, window: Window, usual_ns: float, took_ns: list[int], held_up_ns: int) -> Iterator[Violation]:
    """`held_up_ns`: what a busy machine may have taken from one of them."""
    where = f"of shards that {window.what} of {' '.join(window.nodes)} did not strike"
    if took_ns and max(took_ns) > _STALL_NS + held_up_ns:
        yield Violation("latency", f"{f} {where} took up to {max(took_ns) / S:.1f} s")
    elif len(took_ns) >= _CALLS_MIN and median(took_ns) > usual_ns * _LONGER + _LONGER_NS:
        sentence = f"{f} {where} took {median(took_ns) / MS:.0f} ms, usually {usual_ns / MS:.0f} ms"
        yield Violation("latency", sentence)


def ready(story: Story, _: Final) -> Iterator[Violation]:
    """A leader whose shard acknowledges nothing for longer than 5 s must say so."""
    leaders = Leaders(story.leaders)
    said: dict[str, list[tuple[int, str]]] = defaultdict(list)
    for event in story.ready:
        said[event.node].append((event.t_ns, event.state))
    struck = [one for one in story.windows() if one.what in ("kill", "pause", "stop", "host-dies", "unplug")]
    for shard, from_ns, to_ns in _stalls(story):
        leader = leaders.stays(shard, from_ns, to_ns)
        if not leader or any(leader in one.nodes and one.to_ns + S > from_ns for one in struck):
            continue
        # Two more seconds: readiness is asked for once a second.
        states = _states(said[leader], from_ns + _READY_STALL_NS + 2 * S, to_ns)
        if states == {"200"}:
            sentence = (
                f"{leader} said that it was ready while shard {shard} took no write for {(to_ns - from_ns) / S:.1f} s"
            )
            yield Violation("ready", sentence)


def refused(story: Story, _: Final) -> Iterator[Violation]:
    """The load is small: nobody is told that it is too much, unless a fault has made calls pile up."""
    windows = story.windows()
    for call in story.calls:
        if "OVERLOADED" in call.err and not any(
            one.from_ns - S <= call.ended_ns and call.invoked_ns <= one.to_ns + _PILED_UP_NS for one in windows
        ):
            yield Violation("refused", f"{call.f} was refused as too much although there was little to do", ())
            return


def elections(story: Story, _: Final) -> Iterator[Violation]:
    """Without any fault or operation nobody is replaced, however busy the shards are."""
    if story.windows():
        return
    known: dict[str, str] = {}
    for event in story.leaders:
        before = known.setdefault(event.req_id, event.node)
        if before and before != event.node:
            sentence = f"shard {event.req_id} lost its leader {before} without any fault"
            yield Violation("election", sentence)
            return


def _stalls(story: Story) -> Iterator[tuple[int, int, int]]:
    """Shard, from, to: probes were sent and none was acknowledged."""
    probes: dict[int, list[Call]] = defaultdict(list)
    for call in story.calls:
        shard = probed_shard(call.queue) if call.f == ENQUEUE else None
        if shard is not None:
            probes[shard].append(call)
    for shard, calls in probes.items():
        first_failed_ns = 0
        for call in sorted(calls, key=lambda one: one.invoked_ns):
            took_long = call.ended_ns - call.invoked_ns > _READY_STALL_NS
            if call.outcome != "ok" or took_long:
                first_failed_ns = first_failed_ns or call.invoked_ns
            if call.outcome == "ok":
                if first_failed_ns and call.ended_ns - first_failed_ns > _READY_STALL_NS + 3 * S:
                    yield shard, first_failed_ns, call.ended_ns
                first_failed_ns = 0


def _states(changes: list[tuple[int, str]], from_ns: int, to_ns: int) -> set[str]:
    """All that were seen in a time."""
    before = [state for t_ns, state in changes if t_ns <= from_ns]
    return {*before[-1:], *(state for t_ns, state in changes if from_ns < t_ns <= to_ns)}


def rates(story: Story, final: Final) -> Iterator[Violation]:
    """Claims as workers heard of them. A rate is kept by each shard's time, so there is some room."""
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
