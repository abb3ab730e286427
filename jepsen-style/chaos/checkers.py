"""The judges: pure functions over a history and what is there in the end. None asks a server, none trusts one.

Each returns the broken promises it found; none is tolerated. A call with an unknown outcome (info) may have happened at
any time after its invoke or never, and a checker complains only if neither can be.

    lost        an accepted or handed-out task is gone, or did not end although the queue was drained, or ended unacked
    unexpected  a task that nobody sent, with another payload or queue, or more tasks than callers know of
    duplicate   one request id, or one send without an id, made more than one task
    token       two claims share a token, or a later claim has a smaller one
    stale       a token that had ended was accepted
    after-ack   a task was handed out after its ack had returned, or under a larger token than the acked one
    overlap     a task was handed out while the lease of an earlier claim still ran
    cap         more tasks of a queue, a limit key or a tenant were held at one moment than its cap allows
    early       a delayed or failed task was handed out before its time
    priority    a task was handed out while another one of a higher priority was ready, where priorities are strict
    attempt     failures are miscounted: a claim with a wrong attempt, dead too early, or not dead though spent
    tick        a tick of a schedule made no task, one too early, or was none of its ticks (two tasks are a `duplicate`)
    unique      a task was added although another had its unique key, or the answer named one that had not
    ttl         a task was started after its time to live, or died of it although it was started or had none
    timeout     a lease was longer than the time that an attempt may take, or the task died of another error
    result      a result is not that of the accepted ack, or is gone
    cancel      a task was handed out after its cancellation had returned, or ended in another way
    read        a task was read in another state than the one it had ended in, or was not found
    lease       a worker was told of a lease that was over, or nearly, when it arrived, and nothing had delayed it
    start       a handler was started after the lease of its task, as its worker counts
    innocent    a task is dead of claims that others have cost it
    follow-up   a follow-up of an accepted ack made no task
    rate        more claims of a queue began in a time than its rate and its burst allow
    latency     a shard that was not struck became slow while another one was
    refused     a call was refused as too much although there was little to do
    election    a leader was replaced although nothing was done to anybody
    ready       a server said that it was ready while its writes stalled
    hash        the replicas' states differ, or they did not come to the same index
    index       rows of a replica do not fit together: an index and its record, or a count
    leader      a term with two leaders
    drain       the queue did not become empty
    liveness    no write was acknowledged although all faults had ended
    damage      a broker served although its files were damaged
    broker      a broker did not start, did not stop, or was not rebuilt
    idle        the run did not do what it is for: a queue that was to be spread had tasks on one shard only, or an
                operation was asked for and never done
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator

from chaos.cap_checkers import cap
from chaos.history import ACK, CANCEL, FAIL, FAIL_TASK, INFO, OK, SETTLING, Call, Claim, Story
from chaos.option_checkers import OPTION_CHECKERS
from chaos.service_checkers import SERVICE_CHECKERS
from chaos.verdicts import (
    CANCELLED,
    CLAIMED,
    CLAIMS_SPENT,
    DEAD,
    MS,
    SHARE,
    SUCCEEDED,
    TTL_PASSED,
    Checker,
    Final,
    Finding,
    Judged,
    Verdict,
    Violation,
    claims_by_task,
    holds,
)
from chaos.worker_checkers import WORKER_CHECKERS
from holdfast.routing.task_ids import shard_of_task

SPREAD_MIN = 2  # shards with tasks of a queue that is spread


def judge(story: Story, final: Final) -> Verdict:
    """Every broken promise, none if all of it can be; and how much each judge had to judge."""
    verdict = Verdict()
    for checker in CHECKERS:
        for finding in checker(story, final):
            verdict.add(finding)
    return verdict


def check(story: Story, final: Final) -> list[Violation]:
    return judge(story, final).violations


# --- what became of the tasks ---------------------------------------------------------------------------------


def lost(story: Story, final: Final) -> Iterator[Finding]:
    yield Judged("lost", len(story.known_tasks()) if final.states is not None else 0)
    if final.states is None:
        return
    may_be_acked = {call.task for call in story.with_token(ACK) if call.outcome != FAIL}
    acked = {call.task for call in story.with_token(ACK) if call.outcome == OK}
    may_be_cancelled = {call.task for call in story.calls if call.f == CANCEL and call.outcome != FAIL}
    for task in sorted(story.known_tasks()):
        state = final.states.get(task)
        if state is None:
            yield Violation("lost", f"{task} was accepted, but no server knows it", (task,))
        elif state == DEAD and task not in acked:
            continue  # `attempts` and `ttl` say whether it may be
        elif state == CANCELLED and task in may_be_cancelled - acked:
            continue
        elif state != SUCCEEDED and (final.drained or task in acked):
            ended = "its ack had returned" if task in acked else "the queue was drained"
            yield Violation("lost", f"{task} is {state} although {ended}", (task,))
        elif state == SUCCEEDED and task not in may_be_acked:
            yield Violation("lost", f"{task} is {state}, but nobody acked it", (task,))


def unexpected(story: Story, final: Final) -> Iterator[Finding]:
    yield Judged("unexpected", len(story.claims))
    sends: dict[str, list[Call]] = defaultdict(list)
    value_of: dict[str, str] = {}  # by task id, as the producer was told
    for send in story.sends():
        sends[send.value].append(send)
    for send in story.made():
        value_of[send.task] = send.value
    ticks = {value for schedule, ticks in final.ticks.items() for value in ticks.values(schedule)}
    for claim in story.claims:
        if claim.value in ticks:
            continue
        mine = sends.get(claim.value, [])
        said = value_of.get(claim.task, claim.value)
        if not mine:
            yield Violation("unexpected", f"{claim.task} was handed out, but nobody sent it", (claim.task,))
        elif all(send.outcome == FAIL for send in mine):
            yield Violation("unexpected", f"{claim.task} was handed out, but it had been refused", (claim.task,))
        elif said != claim.value:
            yield Violation("unexpected", f"{claim.task} came with payload {claim.value}, not {said}", (claim.task,))
        elif all(send.queue != claim.queue for send in mine):
            yield Violation("unexpected", f"{claim.task} was handed out from queue {claim.queue}", (claim.task,))
    yield from _miscounted(story, final)


def _miscounted(story: Story, final: Final) -> Iterator[Violation]:
    """A task that nobody was told of is handed out in the end, unless it dies of its time to live before."""
    known = len(story.known_tasks())
    seen = {send.value for send in story.made()} | {claim.value for claim in story.claims}
    may_be = {send.value for send in story.sends() if send.outcome == INFO and send.ttl_ms} - seen
    total = final.enqueued_total
    if final.drained and total is not None and not known <= total <= known + len(may_be):
        yield Violation("unexpected", f"the servers count {total} tasks, callers know of {known}")


def duplicate(story: Story, _: Final) -> Iterator[Finding]:
    """Values stand for request ids: what is sent again under its request id keeps its value."""
    yield Judged("duplicate", len(story.made()) + len(story.claims))
    made: dict[tuple[str, str], set[str]] = defaultdict(set)
    names: dict[tuple[str, str], str] = {}
    for send in story.sends():
        key = (send.queue, send.value)
        names[key] = f"request id {send.req_id}" if send.req_id else f"the one send of {send.value}"
    for send in story.made():
        made[send.queue, send.value].add(send.task)
    for claim in story.claims:
        made[claim.queue, claim.value].add(claim.task)
    for key, tasks in made.items():
        if len(tasks) > 1:
            sentence = f"{names.get(key, key[1])} made {len(tasks)} tasks"
            yield Violation("duplicate", sentence, tuple(sorted(tasks)))


# --- claims and their tokens ----------------------------------------------------------------------------------


def token(story: Story, _: Final) -> Iterator[Finding]:
    """Of each shard: its counter gives out every token once, in the order of the log."""
    yield Judged("token", len(story.claims))
    by_shard: dict[int | None, list[Claim]] = defaultdict(list)
    for claim in story.claims:
        by_shard[shard_of_task(claim.task)].append(claim)
    for claims in by_shard.values():
        yield from _tokens_of_shard(claims)


def _tokens_of_shard(all_claims: list[Claim]) -> Iterator[Violation]:
    by_token: dict[int, list[Claim]] = defaultdict(list)
    for claim in all_claims:
        by_token[claim.token].append(claim)
    first_of: list[Claim] = []
    for number, claims in by_token.items():
        # The same call sent again under its request id gets the same claims again: that is one claim.
        if len({(claim.task, claim.req_id or id(claim)) for claim in claims}) > 1:
            tasks = tuple(sorted({claim.task for claim in claims}))
            yield Violation("token", f"{len(claims)} claims share the token {number}", tasks)
        first_of.append(min(claims, key=lambda claim: claim.asked_ns))
    first_of.sort(key=lambda claim: claim.token, reverse=True)
    earliest: Claim | None = None  # of all claims with a larger token, the one that was answered first
    for claim in first_of:
        if earliest is not None and earliest.ended_ns < claim.asked_ns:
            sentence = f"{claim.token} was given out after {earliest.token} had been"
            yield Violation("token", sentence, tuple(sorted({claim.task, earliest.task})))
        if earliest is None or claim.ended_ns < earliest.ended_ns:
            earliest = claim


def stale(story: Story, _: Final) -> Iterator[Finding]:
    yield Judged("stale", len(story.with_token()))
    claims = claims_by_task(story)
    calls: dict[str, list[Call]] = defaultdict(list)
    for call in story.with_token():
        calls[call.task].append(call)
    for task, mine in calls.items():
        acked = {call.token for call in mine if call.f == ACK and call.outcome == OK}
        if len(acked) > 1:
            yield Violation("stale", f"{task} was acked under {len(acked)} tokens", (task,))
        for call in mine:
            if call.outcome != OK:
                continue
            reason = _why_stale(call, mine, claims[task])
            if reason:
                yield Violation("stale", f"{call.f} of {task} under token {call.token} was accepted {reason}", (task,))


def _why_stale(call: Call, calls: Iterable[Call], claims: Iterable[Claim]) -> str:
    """Why the token of an accepted call had ended before it was sent; empty if it may have been current."""
    same_token = [one for one in calls if one.token == call.token and one.invoked_ns < call.invoked_ns]
    for other in same_token:
        # Sent again it gets its first answer; anything else under a token that has ended is refused.
        if other.f in SETTLING and other.f != call.f and other.outcome == OK and other.ended_ns < call.invoked_ns:
            return f"after its {other.f} had been"
    for claim in claims:
        if claim.token <= call.token or claim.ended_ns >= call.invoked_ns:
            continue
        may_be_repeated = call.f in SETTLING and call.f != ACK and any(
            one.f == call.f and one.outcome in (OK, INFO) and one.invoked_ns < claim.ended_ns for one in same_token
        )  # fmt: skip
        if not may_be_repeated:
            return f"after the task had been handed out under token {claim.token}"
    return ""


def after_ack(story: Story, _: Final) -> Iterator[Finding]:
    """An ack ends a task's life: nothing follows it, neither in time nor in the order of tokens."""
    yield Judged("after-ack", sum(call.outcome == OK for call in story.with_token(ACK)))
    claims = claims_by_task(story)
    for ack in story.with_token(ACK):
        if ack.outcome != OK:
            continue
        for claim in claims[ack.task]:
            if claim.token > ack.token or claim.sent_ns > ack.ended_ns:
                sentence = f"{ack.task} was handed out under token {claim.token} though acked under {ack.token}"
                yield Violation("after-ack", sentence, (ack.task,))


def overlap(story: Story, _: Final) -> Iterator[Finding]:
    """A holder may count on its lease, from when it asked, unless it gave the task back itself."""
    yield Judged("overlap", len(story.claims))
    surely_held_until_ns = holds(story)
    for task, claims in claims_by_task(story).items():
        for claim in claims:
            ends_ns = surely_held_until_ns(claim)
            for other in claims:
                if other.token > claim.token and other.ended_ns < ends_ns:
                    sentence = f"{task} was handed out under token {other.token} while {claim.token} held it"
                    yield Violation("overlap", sentence, (task,))


def early(story: Story, _: Final) -> Iterator[Finding]:
    """A delay counts from when it was accepted, which is not before it was sent for the first time."""
    yield Judged("early", sum(bool(call.delay_ms) for call in story.calls))
    due_ns: dict[str, float] = {}  # by value
    for send in story.sends():
        may_be_due_ns = send.invoked_ns + send.delay_ms * MS * SHARE
        due_ns[send.value] = min(may_be_due_ns, due_ns.get(send.value, may_be_due_ns))
    retry_ns: dict[str, dict[int, float]] = defaultdict(dict)  # by task and token
    failed = story.with_token(FAIL_TASK)
    known = {(call.task, call.token) for call in failed if call.outcome == OK}
    for call in failed:
        if (call.task, call.token) in known:
            may_be_due_ns = call.invoked_ns + call.delay_ms * MS * SHARE
            mine = retry_ns[call.task]
            mine[call.token] = min(may_be_due_ns, mine.get(call.token, may_be_due_ns))
    for claim in story.claims:
        if claim.ended_ns < due_ns.get(claim.value, 0):
            yield Violation("early", f"{claim.task} was handed out before its delay was over", (claim.task,))
        for number, at_ns in retry_ns[claim.task].items():
            if number < claim.token and claim.ended_ns < at_ns:
                yield Violation("early", f"{claim.task} was handed out before its retry was due", (claim.task,))


def attempts(story: Story, final: Final) -> Iterator[Finding]:
    """An accepted fail counts once, nothing else does, but for attempts that took too long. What was not answered may
    count."""
    yield Judged("attempt", sum(bool(claim.attempt) for claim in story.claims))
    timed = {send.value for send in story.sends() if send.timeout_ms}
    counted, possible = _failures(story, timed)
    for claim in story.claims:
        least = sum(number < claim.token for number in counted[claim.task])
        most = sum(number < claim.token for number in possible[claim.task])
        if claim.value in timed:  # any that was not given back may have taken too long, also if nobody heard of it
            most = max(most, claim.nth - 1)
        if claim.attempt and not least <= claim.attempt - 1 <= most:
            sentence = f"{claim.task} was handed out as attempt {claim.attempt} after {least} to {most} failures"
            yield Violation("attempt", sentence, (claim.task,))
    made_by = story.made_by()
    for task, state in (final.states or {}).items():
        send = made_by.get(task)
        budget = send.budget if send is not None else 0
        most = len(possible[task]) + (len(story.lost_claims_ns) if send is not None and send.timeout_ms else 0)
        if state == DEAD and final.reasons.get(task) in (TTL_PASSED, CLAIMS_SPENT):
            continue  # `ttl` and `innocent` say whether it may be
        if state == DEAD and not (send is not None and send.guilty) and (not budget or most < budget):
            yield Violation("attempt", f"{task} is dead after at most {most} failures", (task,))
        elif state not in (DEAD, CANCELLED, CLAIMED) and budget and len(counted[task]) >= budget:
            yield Violation("attempt", f"{task} is {state} after {len(counted[task])} failures", (task,))


def _failures(story: Story, timed: set[str]) -> tuple[dict[str, set[int]], dict[str, set[int]]]:
    """By task: the tokens under which an attempt has failed, and under which one may have."""
    counted: dict[str, set[int]] = defaultdict(set)
    possible: dict[str, set[int]] = defaultdict(set)
    ended: set[tuple[str, int]] = set()
    may_be_ended: set[tuple[str, int]] = set()
    for call in story.with_token(*SETTLING):
        if call.outcome != FAIL:
            may_be_ended.add((call.task, call.token))
        if call.outcome == OK:
            ended.add((call.task, call.token))
        if call.f == FAIL_TASK and call.outcome != FAIL:
            possible[call.task].add(call.token)
        if call.f == FAIL_TASK and call.outcome == OK:
            counted[call.task].add(call.token)
    for claim in story.claims:
        if claim.value not in timed:
            continue
        if (claim.task, claim.token) not in ended:
            possible[claim.task].add(claim.token)
        if (claim.task, claim.token) not in may_be_ended:  # then only its time can have ended it, or it runs
            counted[claim.task].add(claim.token)
    return counted, possible


# --- the servers ----------------------------------------------------------------------------------------------


def hashes(_: Story, final: Final) -> Iterator[Finding]:
    yield Judged("hash", sum(map(len, final.hashes.values())))
    for shard, by_node in final.hashes.items():
        if len({index for index, _ in by_node.values()}) > 1:
            indexes = ", ".join(f"{node} {index}" for node, (index, _) in sorted(by_node.items()))
            yield Violation("hash", f"the replicas of shard {shard} did not come to the same index: {indexes}")
        if len(by_node) < final.replicas:
            reported = ", ".join(sorted(by_node)) or "nobody"
            yield Violation(
                "hash", f"{final.replicas} replicas of shard {shard} were to tell their hash, but {reported} did"
            )
        by_index: dict[int, dict[str, str]] = defaultdict(dict)
        for node, (index, digest) in by_node.items():
            by_index[index][node] = digest
        for index, digests in by_index.items():
            if len(set(digests.values())) > 1:
                reported = ", ".join(f"{node} {digest}" for node, digest in sorted(digests.items()))
                yield Violation("hash", f"the replicas of shard {shard} differ at index {index}: {reported}")
    if final.replicas and not final.hashes:
        yield Violation("hash", "no replica told its hash")


def indexes(_: Story, final: Final) -> Iterator[Finding]:
    yield Judged("index", final.states_compared)
    for sentence in final.unsound:
        yield Violation("index", sentence)


def leaders(_: Story, final: Final) -> Iterator[Finding]:
    yield Judged("leader", len(final.leaders))
    nodes: dict[tuple[int, int], set[str]] = defaultdict(set)
    for shard, term, node in final.leaders:
        nodes[shard, term].add(node)
    for (shard, term), names in sorted(nodes.items()):
        if len(names) > 1:
            yield Violation("leader", f"shard {shard} has the leaders {', '.join(sorted(names))} in term {term}")


def progress(_: Story, final: Final) -> Iterator[Finding]:
    yield from (Judged("liveness", 1), Judged("drain", int(final.live)))
    if not final.live:
        yield Violation("liveness", "no write was acknowledged in time after all faults had ended")
    if not final.drained:
        yield Violation("drain", "the queue did not become empty in time")


def condition(_: Story, final: Final) -> Iterator[Finding]:
    yield from (Judged("damage", 1), Judged("broker", 1))
    for sentence in final.unnoticed:
        yield Violation("damage", sentence)
    for sentence in final.broken:
        yield Violation("broker", sentence)


def idle(story: Story, final: Final) -> Iterator[Finding]:
    """What did not happen was not tried, and promises are easily held then."""
    yield Judged("idle", len(final.spread) + len(final.operations))
    shards: dict[str, set[int | None]] = defaultdict(set)
    reported = [(send.queue, send.task) for send in story.made()] + [
        (claim.queue, claim.task) for claim in story.claims
    ]
    for queue, task in reported:
        shards[queue].add(shard_of_task(task))
    for queue in final.spread:
        if len(shards[queue]) < SPREAD_MIN:
            where = ", ".join(f"shard {shard}" for shard in shards[queue]) or "no shard"
            yield Violation("idle", f"{queue} was to be spread, but had tasks on {where} only")
    for operation, times in final.operations.items():
        if not times:
            yield Violation("idle", f"the operation {operation} was asked for, but was never done")


CHECKERS: tuple[Checker, ...] = (
    lost, unexpected, duplicate, token, stale, after_ack, overlap, cap, early, attempts,
    *OPTION_CHECKERS, *WORKER_CHECKERS, *SERVICE_CHECKERS, hashes, indexes, leaders, progress, condition,
    idle,
)  # fmt: skip
