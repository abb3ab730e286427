"""The judges of what a task can ask for: unique keys, a priority, a time to live, timeouts, results; of cancelling and
schedules.

As those in `checkers.py`, whose head says what each means, they are pure and complain only about what cannot be.
"""

import heapq
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field

from chaos.history import ACK, CANCEL, EXTEND, FAIL, FAIL_TASK, OK, READ, RELEASE, Call, Claim, Story
from chaos.verdicts import (
    CANCELLED,
    CLAIMED,
    DEAD,
    MS,
    SLOWEST,
    SUCCEEDED,
    TTL_PASSED,
    Checker,
    Final,
    Finding,
    Judged,
    Violation,
    claims_by_task,
    holds,
    tick_value,
)

UNTIL_DONE = "UNTIL_DONE"
TASK_TIMEOUT = "TaskTimeout"  # the error of an attempt that took too long
# After a fail-over the shard's time may be this far behind until it is drawn to the clocks again.
_BEHIND_NS = 1500 * MS
# A claim that nobody heard of may be released by the server itself, which leaves no trace. That is soon, and after the
# longest pause of a broker at the latest.
_RELEASED_BY_NS = 5000 * MS


# A claim that nobody heard of may hold a task, and be given back without a trace, for so long after it was asked for.
_UNHEARD_NS = 30_000 * MS
# Calls that are under way when something is struck, or comes back, are sent again within so long.
_SENT_AGAIN_NS = 2000 * MS


# --- schedules ------------------------------------------------------------------------------------------------


def ticks(story: Story, final: Final) -> Iterator[Finding]:
    """Every task is handed out before the queue is drained, so the ticks that made one are those that workers saw."""
    yield Judged("tick", sum(len(due.values(schedule)) for schedule, due in final.ticks.items()))
    first_claims: dict[str, Claim] = {}
    for claim in story.claims:
        first_claims.setdefault(claim.value, claim)
    for schedule, due in final.ticks.items():
        expected = due.values(schedule)
        made = {value: claim for value, claim in first_claims.items() if value.startswith(tick_value(schedule, ""))}
        for value in expected.keys() - made.keys() if final.drained else ():
            yield Violation("tick", f"{value} made no task")
        for value, claim in made.items():
            if value not in expected:
                yield Violation("tick", f"{value} made a task, but is no tick", (claim.task,))
            elif claim.made_ms < expected[value]:
                yield Violation("tick", f"the task of {value} was made at {claim.made_ms}", (claim.task,))
        if due.fired_total != len(expected):
            sentence = f"{schedule} made {due.fired_total} tasks of {len(expected)} ticks, as the servers count"
            yield Violation("tick", sentence)


# --- unique keys ----------------------------------------------------------------------------------------------


@dataclass
class _Life:
    """What is certain of a task with a unique key."""

    task: str
    send: Call  # that made it, as far as is known
    born_ns: int  # it was not there before
    known_ns: int  # it was there by then
    claims: list[Claim] = field(default_factory=list)
    named_ns: list[int] = field(default_factory=list)  # when calls were sent that were answered with it
    may_end_ns: float = float("inf")
    ended_ns: float = float("inf")  # it was done by then

    @property
    def there_until_ns(self) -> float:
        """An end that may have been was none if the task was there later."""
        return max([self.may_end_ns, *self.named_ns, *(claim.asked_ns for claim in self.claims)])

    @property
    def waits_until_ns(self) -> float:
        """The end of its first wait, as far as is known."""
        return min([self.may_end_ns, *(claim.asked_ns for claim in self.claims)])


def unique(story: Story, _: Final) -> Iterator[Finding]:
    yield Judged("unique", sum(bool(send.unique) for send in story.sends()))
    firsts = _first_sends(story)
    lives = _lives(story, firsts)
    held_until_ns = holds(story)
    yield from _changed_answers(story)
    for send in firsts.values():
        life = lives.get(send.task)
        if send.duplicate and life is not None:
            is_held = any(_is_held(claim, send, held_until_ns(claim)) for claim in life.claims)
            reason = _why_not_the_holder(send, life, is_held)
            if reason:
                yield Violation("unique", f"{send.value} was answered with {life.task}, {reason}", (life.task,))
    by_key: dict[tuple[str, str], list[_Life]] = defaultdict(list)
    for life in lives.values():
        by_key[life.send.queue, life.send.unique].append(life)
    for (_queue, key), mine in by_key.items():
        for first, second in _pairs(mine):
            if _exclude_each_other(first, second, story):
                sentence = f"{second.task} was added although {first.task} had the key {key}"
                yield Violation("unique", sentence, (first.task, second.task))


def _first_sends(story: Story) -> dict[str, Call]:
    """By value. What is sent again under its request id gets its first answer, whoever has the key by then."""
    firsts: dict[str, Call] = {}
    for send in story.sends():
        if send.unique and send.outcome != FAIL:
            firsts.setdefault(send.value, send)
    return firsts


def _changed_answers(story: Story) -> Iterator[Violation]:
    answers: dict[str, set[str]] = defaultdict(set)
    for send in story.sends():
        if send.unique and send.outcome == OK:
            answers[send.value].add(send.task)
    for value, tasks in answers.items():
        if len(tasks) > 1:
            yield Violation("unique", f"{value} was answered with {len(tasks)} tasks", tuple(sorted(tasks)))


def _lives(story: Story, firsts: dict[str, Call]) -> dict[str, _Life]:
    lives: dict[str, _Life] = {}
    claims = claims_by_task(story)
    for task, send in story.made_by().items():
        if send.unique:
            seen_ns = [claim.ended_ns for claim in claims[task]] + [send.ended_ns] * (send.outcome == OK)
            lives[task] = _Life(task, send, firsts[send.value].invoked_ns, min(seen_ns), claims[task])
    for call in story.calls:
        life = lives.get(call.task)
        if life is None or call.outcome == FAIL:
            continue
        if call.duplicate:
            life.known_ns = min(life.known_ns, call.ended_ns)
        if call.duplicate and call is firsts[call.value]:
            life.named_ns.append(call.invoked_ns)
        if call.f in (ACK, CANCEL):
            life.may_end_ns = min(life.may_end_ns, call.invoked_ns)
            if call.outcome == OK and call.state != CLAIMED:
                life.ended_ns = min(life.ended_ns, call.ended_ns)
    return lives


def _is_held(claim: Claim, send: Call, until_ns: float) -> bool:
    """Whether somebody surely held the task for as long as the call took."""
    return claim.ended_ns < send.invoked_ns and send.ended_ns < until_ns


def _why_not_the_holder(send: Call, life: _Life, is_held: bool) -> str:
    """Why that task cannot have had the key of this call; empty if it may have."""
    if (life.send.queue, life.send.unique) != (send.queue, send.unique):
        return f"which has the key {life.send.unique}"
    if life.ended_ns < send.invoked_ns:
        return "which had ended"
    return "which did not wait" if is_held and send.scope != UNTIL_DONE else ""


def _pairs(lives: list[_Life]) -> Iterator[tuple[_Life, _Life]]:
    """Each two of which the first was there when the second was known to be."""
    there: list[_Life] = []
    for second in sorted(lives, key=lambda life: life.known_ns):
        there = [first for first in there if second.known_ns < first.there_until_ns]
        yield from ((first, second) for first in there)
        there.append(second)


def _exclude_each_other(first: _Life, second: _Life, story: Story) -> bool:
    if first.send.scope == UNTIL_DONE:
        return second.known_ns < second.there_until_ns  # and the first was there when the second was known
    # One that waits again may find its key taken. So what counts is that the other was added in its first wait.
    added = second.send
    was_added = added.outcome == OK and not added.duplicate and first.known_ns < added.invoked_ns
    in_first_wait = added.ended_ns < first.waits_until_ns
    was_lost_before = min((claim.token, claim.nth) for claim in first.claims)[1] > 1 if first.claims else False
    if not (was_added and in_first_wait) or was_lost_before:
        return False
    return not any(
        asked_ns < added.ended_ns and first.born_ns < gave_up_ns + _RELEASED_BY_NS
        for asked_ns, gave_up_ns in story.lost_claims_ns
    )


# --- priorities -----------------------------------------------------------------------------------------------


def priorities(story: Story, final: Final) -> Iterator[Finding]:
    """Of queues that one caller at a time claims from. Both tasks are handed out for the first time: one that was lost
    before is a suspect, which has its turn whatever its priority is."""
    facts = 0
    of_value = {send.value: send for send in story.made() if send.queue in final.ranked}
    strikes = [at_ns for window in story.windows() if window.nodes for at_ns in (window.from_ns, window.to_ns)]
    by_queue: dict[str, dict[str, Claim]] = defaultdict(dict)  # by queue and task: its first claim
    for claim in story.claims:
        mine = by_queue[claim.queue]
        if claim.value in of_value and (claim.task not in mine or claim.token < mine[claim.task].token):
            mine[claim.task] = claim
    for queue, mine in by_queue.items():
        lost_ns = story.lost_claims_of[queue]
        firsts = sorted((claim for claim in mine.values() if claim.nth == 1), key=lambda claim: claim.asked_ns)
        to_come = sorted(firsts, key=lambda claim: of_value[claim.value].ended_ns, reverse=True)  # the first ones last
        waiting: list[tuple[int, str, Claim]] = []  # a heap, the highest priority first
        for claim in firsts:
            while to_come and of_value[to_come[-1].value].ended_ns < claim.asked_ns:
                known = to_come.pop()
                heapq.heappush(waiting, (-of_value[known.value].priority, known.task, known))
            while waiting and waiting[0][2].asked_ns <= claim.ended_ns:
                heapq.heappop(waiting)
            if not waiting or any(claim.ended_ns - _UNHEARD_NS < at_ns < claim.ended_ns for at_ns in lost_ns):
                continue
            # A call that the client or a router sent again: what the first attempt had claimed goes back beside it.
            if any(claim.asked_ns - _SENT_AGAIN_NS < at_ns < claim.ended_ns for at_ns in strikes):
                continue
            facts += 1
            highest, least = -waiting[0][0], of_value[claim.value].priority
            if least < highest:
                sentence = f"{claim.task} of priority {least} was handed out before {waiting[0][1]} of {highest}"
                yield Violation("priority", sentence, (claim.task, waiting[0][1]))
    yield Judged("priority", facts)


# --- time to live and timeouts ----------------------------------------------------------------------------------


def ttl(story: Story, final: Final) -> Iterator[Finding]:
    """A task that was given back has not been started; `nth` does not count those claims either. Nor does it count one
    whose worker fell silent: so only a claim before which there was surely none can be too late."""
    yield Judged("ttl", sum(bool(send.ttl_ms) for send in story.sends()))
    given_back = {(call.task, call.token) for call in story.with_token(RELEASE) if call.outcome != FAIL}
    accepted_ns: dict[str, int] = {}  # by value: it was by then
    for send in story.made():
        accepted_ns[send.value] = min(send.ended_ns, accepted_ns.get(send.value, send.ended_ns))
    made_by, claims = story.made_by(), claims_by_task(story)
    for claim in story.claims:
        made = made_by.get(claim.task)
        if made is None or not made.ttl_ms or claim.nth != 1 or claim.value not in accepted_ns:
            continue
        if _may_have_been_started(claim, claims[claim.task], given_back, accepted_ns[claim.value], story):
            continue
        may_start_for_ns = (made.ttl_ms + made.delay_ms) * MS / SLOWEST + _BEHIND_NS
        if claim.asked_ns > accepted_ns[claim.value] + may_start_for_ns:
            yield Violation("ttl", f"{claim.task} was started after its time to live", (claim.task,))
    started = {claim.task for claim in story.claims if (claim.task, claim.token) not in given_back}
    for task, reason in final.reasons.items():
        made = made_by.get(task)
        if reason == TTL_PASSED and made is not None and not made.ttl_ms:
            yield Violation("ttl", f"{task} died of its time to live, but has none", (task,))
        elif reason == TTL_PASSED and task in started:
            yield Violation("ttl", f"{task} died of its time to live, but had been started", (task,))


def _may_have_been_started(
    claim: Claim, claims: list[Claim], given_back: set[tuple[str, int]], accepted_ns: int, story: Story
) -> bool:
    """Whether somebody may have held the task before, in a claim that is known or in one that nobody heard of."""
    if any(one.token < claim.token and (one.task, one.token) not in given_back for one in claims):
        return True
    return any(accepted_ns < gave_up_ns and asked_ns < claim.asked_ns for asked_ns, gave_up_ns in story.lost_claims_ns)


def timeout(story: Story, final: Final) -> Iterator[Finding]:
    """No lease reaches beyond the time for an attempt. That such an attempt has failed is seen by `attempts`."""
    yield Judged("timeout", sum(bool(send.timeout_ms) for send in story.sends()))
    made_by = story.made_by()
    reported = {call.task for call in story.with_token(FAIL_TASK) if call.outcome != FAIL}
    for task, error in final.errors.items():
        made = made_by.get(task)
        if made is not None and made.timeout_ms and task not in reported and error != TASK_TIMEOUT:
            yield Violation("timeout", f"{task} took too long and died of {error or 'no error'}", (task,))
    claims = {(claim.task, claim.token): claim for claim in reversed(story.claims)}
    leases = [(claim, claim.sent_ns, claim.lease_ms) for claim in claims.values()]
    leases += [
        (claims[call.task, call.token], call.invoked_ns, call.lease_ms)
        for call in story.with_token(EXTEND)
        if call.outcome == OK and (call.task, call.token) in claims
    ]
    for claim, from_ns, lease_ms in leases:
        send = made_by.get(claim.task)
        # A lease is told from when it was asked for, and a claim may have had to wait before its time began.
        waited_ms = max(0, claim.ended_ns - from_ns) / MS / SLOWEST
        passed_ms = max(0, from_ns - claim.ended_ns - _BEHIND_NS) / MS * SLOWEST
        if send is not None and send.timeout_ms and lease_ms > send.timeout_ms + waited_ms - passed_ms:
            sentence = f"{claim.task} was lent for {lease_ms} ms more under token {claim.token}, beyond its timeout"
            yield Violation("timeout", sentence, (claim.task,))


# --- how it ended -----------------------------------------------------------------------------------------------


def results(story: Story, final: Final) -> Iterator[Finding]:
    yield Judged("result", len(final.results))
    acks: dict[str, list[Call]] = defaultdict(list)
    for call in story.with_token(ACK):
        if call.outcome != FAIL:
            acks[call.task].append(call)
    read = [(call.task, call.result) for call in story.calls if call.f == READ and call.state == SUCCEEDED]
    for task, result in [*read, *final.results.items()]:
        possible = {ack.result for ack in _first_acks(acks[task])}
        if possible and result not in possible:
            wanted = " or ".join(sorted(possible))
            yield Violation("result", f"{task} has the result {result or 'none'}, but was acked with {wanted}", (task,))


def _first_acks(acks: list[Call]) -> list[Call]:
    """Those that may be the one that counted: an ack that is sent again gets its first answer and changes nothing."""
    accepted = [ack for ack in acks if ack.outcome == OK]
    if not accepted:
        return acks
    first = min(accepted, key=lambda ack: ack.ended_ns)
    return [ack for ack in acks if ack.token == first.token and ack.invoked_ns <= first.ended_ns]


def cancel(story: Story, final: Final) -> Iterator[Finding]:
    """Of one that runs, only its holder can still make something: then it has succeeded."""
    yield Judged("cancel", sum(call.f == CANCEL and call.outcome == OK for call in story.calls))
    claims = claims_by_task(story)
    for call in story.calls:
        if call.f != CANCEL or call.outcome != OK:
            continue
        for claim in claims[call.task]:
            if claim.asked_ns > call.ended_ns:
                sentence = f"{call.task} was handed out under token {claim.token} though cancelled"
                yield Violation("cancel", sentence, (call.task,))
        state = (final.states or {}).get(call.task)
        if state == DEAD or (state == SUCCEEDED and call.state == CANCELLED):
            yield Violation("cancel", f"{call.task} is {state} though its cancellation had returned", (call.task,))


def reads(story: Story, _: Final) -> Iterator[Finding]:
    """Nobody is told an old state by a leader that was replaced, or that a task is gone. Only what is known is read."""
    yield Judged("read", sum(call.f == READ for call in story.calls))
    ended: dict[str, tuple[int, str]] = {}  # by task: by when it had ended, and how
    for call in story.calls:
        state = SUCCEEDED if call.f == ACK else call.state if call.f == CANCEL else ""
        if call.outcome == OK and state in (SUCCEEDED, CANCELLED):
            ended[call.task] = min((call.ended_ns, state), ended.get(call.task, (call.ended_ns, state)))
    for call in story.calls:
        if call.f in (READ, CANCEL) and "TASK_NOT_FOUND" in call.err:
            yield Violation("read", f"{call.task} was not found by a {call.f}", (call.task,))
        if call.f == READ and call.outcome == OK and call.task in ended:
            by_ns, state = ended[call.task]
            if by_ns < call.invoked_ns and call.state != state:
                yield Violation("read", f"{call.task} was read as {call.state} after it had {state}", (call.task,))


OPTION_CHECKERS: tuple[Checker, ...] = (ticks, unique, priorities, ttl, timeout, results, cancel, reads)
