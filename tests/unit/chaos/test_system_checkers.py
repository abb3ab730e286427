"""The judges of whole systems: what workers were told, and how shards that are not struck are served. Histories made
by hand show each rule from both sides."""

from collections.abc import Sequence

import pytest

from chaos.history import (
    ACK,
    ENQUEUE,
    EXTEND,
    FAULT,
    HEAL,
    INFO,
    LAG,
    LEADER,
    OK,
    READY,
    Call,
    Claim,
    Event,
    HandlerRun,
    Story,
)
from chaos.service_checkers import elections, latency, rates, ready, refused
from chaos.verdicts import Checker, Final, Judged, Rate, Violation
from chaos.worker_checkers import follow_ups, innocent, lease, start
from chaos.workloads import limited
from tests.unit.chaos.chaos_parts import S, sent, task_on

MINE = Final()


def claim(at: float = 10, *, left: float = 3, asked: float = 3, waited: float = 0.1, worker: str = "w1/1") -> Claim:
    """Answered at this second, with so much left of its lease."""
    return Claim(
        task=TASK, token=10, value="v1", queue="q", asked_ns=int((at - waited) * S), sent_ns=int((at - waited) * S),
        ended_ns=int(at * S), worker=worker, ends_ns=int((at + left) * S), asked_ms=int(asked * 1000),
    )  # fmt: skip


def fault(what: str, at: float, to: float, node: str = "n1") -> list[Event]:
    return [
        Event(t_ns=int(at * S), proc=-1, type=INFO, f=FAULT, value=what, node=node, req_id="1"),
        Event(t_ns=int(to * S), proc=-1, type=INFO, f=HEAL, value=what, node=node, req_id="1"),
    ]


def ran(at: float, worker: str = "w1/1", value: str = "v1") -> HandlerRun:
    return HandlerRun(
        task=TASK, value=value, worker=worker, started_ns=int(at * S), ended_ns=int((at + 1) * S), how="done"
    )


def extended(at: float, left: float) -> Call:
    return Call(
        f=EXTEND, outcome=OK, invoked_ns=int((at - 0.1) * S), ended_ns=int(at * S), task=TASK, token=10,
        ends_ns=int((at + left) * S), worker="w1/1",
    )  # fmt: skip


def kinds(checker: Checker, story: Story, final: Final = MINE) -> list[str]:
    return [one.kind for one in checker(story, final) if isinstance(one, Violation)]


def judged(checker: Checker, story: Story) -> int:
    """How many facts there were."""
    return sum(one.facts for one in checker(story, MINE) if isinstance(one, Judged))


TASK = "01a1ebc6-74f6-8000-8400-000000000001"  # of shard 1, which n2 leads


def seen(f: str, at: float, node: str, *, shard: int | None = None, state: str = "") -> Event:
    return Event(
        t_ns=int(at * S), proc=-1, type=INFO, f=f, node=node, state=state, req_id="" if shard is None else str(shard)
    )


LEADERS = [seen(LEADER, 0, "n1", shard=0), seen(LEADER, 0, "n2", shard=1)]


# --- workers ----------------------------------------------------------------------------------------------------------


def story_of(
    one: Claim, *, faults: Sequence[Event] = (), lags: Sequence[Event] = (), calls: Sequence[Call] = ()
) -> Story:
    return Story(claims=[one], faults=list(faults), lags=list(lags), calls=list(calls), leaders=list(LEADERS))


def test_a_worker_that_waited_gets_a_whole_lease() -> None:
    assert kinds(lease, story_of(claim(waited=25))) == []
    assert kinds(lease, story_of(claim(waited=8, left=-5))) == ["lease"]
    assert kinds(lease, story_of(claim(waited=2, left=2.6))) == []
    assert kinds(lease, story_of(claim(waited=2, left=2.3))) == ["lease"]


@pytest.mark.parametrize(("worker", "node", "expected"), [
    ("w1/1", "w1", []),
    ("w1/1", "r2", []),
    ("w1/1", "n2", []),  # which leads the shard of the task
    ("w1/1", "n1,n3", []),  # so many that there may be no majority
    ("w1/1", "n1", ["lease"]),
    ("w1/1", "w2", ["lease"]),
    ("w1/1", "e1", ["lease"]),
    ("w1/1", "", ["lease"]),  # an operation
    ("w2/1", "r2", ["lease"]),  # goes straight to the brokers
    ("w2/1", "n2", []),
])  # fmt: skip
def test_a_lease_is_excused_only_by_a_fault_on_its_own_way(worker: str, node: str, expected: list[str]) -> None:
    story = story_of(claim(left=-5, worker=worker), faults=fault("pause", 4, 9.5, node))
    assert kinds(lease, story) == expected
    assert judged(lease, story) == len(expected)
    later = story_of(claim(30, left=-5, worker=worker), faults=fault("pause", 4, 9.5, node))
    assert kinds(lease, later) == ["lease"], "at another time nothing is excused"


def test_a_lease_of_a_shard_that_changes_its_leader_is_excused() -> None:
    story = story_of(claim(left=2))
    story.leaders.append(seen(LEADER, 9.5, "n3", shard=1))
    assert (kinds(lease, story), judged(lease, story)) == ([], 0)
    story.leaders[-1] = seen(LEADER, 9.5, "n3", shard=0)
    assert kinds(lease, story) == ["lease"]


def test_a_link_is_felt_for_a_while_after_it_was_mended() -> None:
    late = claim(left=2)
    assert kinds(lease, story_of(late, faults=fault("unplug", 2, 6, "w1"))) == []
    assert kinds(lease, story_of(late, faults=fault("unplug", 1, 3, "w1"))) == ["lease"]
    assert kinds(lease, story_of(late, faults=fault("pause-worker", 2, 6, "w1"))) == ["lease"]


def lag(at: float, ms: int) -> Event:
    return Event(t_ns=int(at * S), proc=-1, type=INFO, f=LAG, state=str(ms))


def test_a_machine_that_gives_nobody_a_processor_is_no_lost_lease() -> None:
    late = claim(waited=2, left=2.0)
    assert kinds(lease, story_of(late, lags=[lag(9.5, 100)])) == [], "each process on the way waited"
    assert kinds(lease, story_of(late, lags=[lag(9.5, 50)])) == ["lease"]
    assert kinds(lease, story_of(late, lags=[lag(5, 1000), lag(14, 1000)])) == ["lease"], "at other times"
    assert kinds(lease, story_of(late, lags=[lag(11.5, 100)])) == [], "a busy machine is so for a while"
    assert kinds(lease, story_of(late, lags=[lag(10.05, 100)])) == [], "a line tells of the time before it"


def test_a_lease_is_not_longer_than_the_timeout() -> None:
    timed = Call(f=ENQUEUE, outcome=OK, invoked_ns=0, ended_ns=1, value="v1", task=TASK, timeout_ms=1000)
    assert kinds(lease, story_of(claim(left=0.9), calls=[timed])) == []
    assert kinds(lease, story_of(claim(20, left=0.9, asked=10))) == ["lease"]


def test_a_handler_starts_within_its_lease() -> None:
    assert kinds(start, Story(claims=[claim(10, left=3)], runs=[ran(12.9)])) == []
    assert kinds(start, Story(claims=[claim(10, left=3)], runs=[ran(13.3)])) == []
    assert kinds(start, Story(claims=[claim(10, left=3)], runs=[ran(13.4)])) == ["start"]
    assert kinds(start, Story(claims=[claim(10, left=3)], runs=[ran(14.5)], calls=[extended(12, 3)])) == []
    assert kinds(start, Story(claims=[claim(10, left=3)], runs=[ran(14.5)], lags=[lag(14, 500)])) == []
    assert kinds(start, Story(claims=[claim(10, worker="w2/1")], runs=[ran(11)])) == ["start"]


@pytest.mark.parametrize(("what", "node", "at", "arrived", "expected"), [
    ("pause-worker", "w1", 11, 10, ["start"]),  # it waited for its turn: the worker looks again when it goes on
    ("pause-worker", "w1", 11, 14.4, ["start"]),  # it arrived while the worker was stopped
    ("pause-worker", "w1", 10.1, 10, []),  # between the look and the first line
    ("pause-worker", "w2", 10.1, 10, ["start"]),
    ("unplug", "w1", 10.1, 10, ["start"]),
    ("kill", "n1", 10.1, 10, ["start"]),
])  # fmt: skip
def test_almost_nothing_excuses_a_handler_that_starts_late(
    what: str, node: str, at: float, arrived: float, expected: list[str]
) -> None:
    late = claim(arrived, left=13 - arrived)
    story = Story(claims=[late], runs=[ran(14.5)], faults=fault(what, at, 14.4, node))
    assert kinds(start, story) == expected
    assert judged(start, story) == len(expected)


def test_a_handler_that_stalls_its_worker_delays_others_there() -> None:
    guilty = Call(f=ENQUEUE, outcome=OK, invoked_ns=0, ended_ns=1, value="v2", task="t2", guilty=True)
    stall = HandlerRun(task="t2", value="v2", worker="w1/1", started_ns=11 * S, ended_ns=int(14.4 * S))
    own = Claim(
        task="t2", token=9, value="v2", queue="q", asked_ns=0, sent_ns=0, ended_ns=10 * S, worker="w1/1", ends_ns=20 * S
    )
    for worker, expected in (("w1/1", []), ("w3/1", ["start"])):
        late = Story(claims=[claim(worker=worker), own], runs=[ran(14.5, worker), stall], calls=[guilty])
        assert kinds(start, late) == expected


@pytest.mark.parametrize(("guilty", "reason", "expected"), [
    (False, "CLAIMS_SPENT", ["innocent"]), (True, "CLAIMS_SPENT", []), (False, "ATTEMPTS_SPENT", []),
])  # fmt: skip
def test_nobody_innocent_is_dead_of_its_claims(guilty: bool, reason: str, expected: list[str]) -> None:
    send = Call(f=ENQUEUE, outcome=OK, invoked_ns=0, ended_ns=1, value="v1", task="t1", guilty=guilty)
    final = Final(states={"t1": "DEAD"}, reasons={"t1": reason})
    assert kinds(innocent, Story(calls=[send]), final) == expected


def test_a_follow_up_is_handed_out() -> None:
    ack = Call(f=ACK, outcome=OK, invoked_ns=0, ended_ns=1, task="t0", token=1, follow_ups=["v1"])
    assert kinds(follow_ups, Story(calls=[ack], claims=[claim()])) == []
    assert kinds(follow_ups, Story(calls=[ack])) == ["follow-up"]
    assert kinds(follow_ups, Story(calls=[ack]), Final(drained=False)) == []


# --- how shards are served --------------------------------------------------------------------------------------------


def probes(shard: int, at: float, count: int, took: float, outcome: str = OK) -> list[Call]:
    return [
        Call(
            f=ENQUEUE, outcome=outcome, invoked_ns=int((at + number) * S), ended_ns=int((at + number + took) * S),
            queue=f"probe-{shard}-0", value=f"{shard}-{at}-{number}",
        )
        for number in range(count)
    ]  # fmt: skip


def served(*calls: Sequence[Call], at: float = 20, to: float = 40, what: str = "host-dies") -> Story:
    return Story(
        calls=[call for several in calls for call in several], faults=fault(what, at, to), leaders=list(LEADERS)
    )


def test_a_shard_that_is_not_struck_keeps_its_time() -> None:
    before = probes(1, 5, 10, 0.01)
    assert kinds(latency, served(before, probes(1, 21, 10, 0.02))) == []
    assert kinds(latency, served(before, probes(1, 21, 10, 0.2))) == ["latency"]
    assert kinds(latency, served(before, probes(1, 21, 1, 1.0))) == []
    assert kinds(latency, served(before, probes(1, 21, 1, 3.0))) == ["latency"]


@pytest.mark.parametrize(("took", "expected"), [(0.25, []), (0.5, ["latency"])])
def test_on_a_busy_machine_everything_takes_longer(took: float, expected: list[str]) -> None:
    assert kinds(latency, served(probes(1, 5, 10, 0.04), probes(1, 21, 10, took))) == expected


def reported(at: float, waited: float, number: int) -> tuple[HandlerRun, Call]:
    """A task of shard 1 whose handler ended at this second; its ack was sent and answered so much later."""
    task = f"01a1ebc6-74f6-8000-8400-{number:012x}"
    run = HandlerRun(task=task, value="v", worker="w1/1", started_ns=0, ended_ns=int(at * S), how="done")
    ack = Call(
        f=ACK, outcome=OK, invoked_ns=int((at + waited - 0.01) * S), ended_ns=int((at + waited) * S), task=task,
        token=1, worker="w1/1",
    )  # fmt: skip
    return run, ack


@pytest.mark.parametrize(("waited", "expected"), [(0.02, []), (3.0, ["latency"])])
def test_a_report_that_waits_for_another_shard_is_slow(waited: float, expected: list[str]) -> None:
    """Its own call may be quick: what counts is when the handler had ended."""
    pairs = [*(reported(5 + number, 0.02, number) for number in range(10)), reported(22, waited, 10)]
    story = served([ack for _, ack in pairs])
    story.runs = [run for run, _ in pairs]
    assert kinds(latency, story) == expected


def test_a_shard_that_is_struck_may_be_slow() -> None:
    assert kinds(latency, served(probes(1, 5, 10, 0.01), probes(0, 21, 10, 2.0))) == []


def test_a_shard_that_changes_its_leader_meanwhile_may_be_slow() -> None:
    story = served(probes(1, 5, 10, 0.01), probes(1, 21, 2, 3.0))
    assert kinds(latency, story) == ["latency"]
    story.leaders.append(seen(LEADER, 22.5, "n3", shard=1))
    assert kinds(latency, story) == []


@pytest.mark.parametrize(("node", "expected"), [
    ("n2", []),  # its own leader
    ("n3", []),  # two of three: there may be no majority
    ("r1", []),
    ("w1", ["latency"] * 2),
    ("e1", ["latency"] * 2),
    ("", ["latency"] * 2),  # an operation
])  # fmt: skip
def test_what_goes_on_beside_a_fault_excuses_only_whom_it_may_concern(node: str, expected: list[str]) -> None:
    story = served(probes(1, 5, 10, 0.01), probes(1, 21, 10, 2.5))
    story.faults += [
        Event(t_ns=15 * S, proc=-1, type=INFO, f=FAULT, value="kill", node=node, req_id="2"),
        Event(t_ns=39 * S, proc=-1, type=INFO, f=HEAL, value="kill", node=node, req_id="2"),
    ]
    assert kinds(latency, story) == expected
    assert judged(latency, story) == (10 if expected else 0)


def test_what_strikes_after_a_call_was_too_late_is_no_excuse() -> None:
    story = served(probes(1, 5, 10, 0.01), probes(1, 21, 1, 14))
    story.faults += [Event(t_ns=28 * S, proc=-1, type=INFO, f=FAULT, value="kill", node="n2", req_id="2")]
    assert kinds(latency, story) == ["latency"]
    story.faults[-1] = Event(t_ns=22 * S, proc=-1, type=INFO, f=FAULT, value="kill", node="n2", req_id="2")
    assert kinds(latency, story) == []


def test_a_busy_machine_makes_no_shard_slow() -> None:
    story = served(probes(1, 5, 10, 0.01), probes(1, 21, 10, 0.4))
    assert kinds(latency, story) == ["latency"]
    story.lags = [lag(21.2 + number, 60) for number in range(10)]
    assert kinds(latency, story) == []


def test_nobody_is_told_that_a_small_load_is_too_much() -> None:
    call = Call(f=ENQUEUE, outcome="fail", invoked_ns=30 * S, ended_ns=31 * S, err="Overloaded OVERLOADED")
    assert kinds(refused, Story(calls=[call])) == ["refused"]
    assert kinds(refused, Story(calls=[call], faults=fault("kill", 20, 25))) == []
    assert kinds(refused, Story(calls=[call], faults=fault("kill", 5, 10))) == ["refused"]


def test_a_leader_stays_unless_something_is_done() -> None:
    changed = [*LEADERS, seen(LEADER, 30, "n3", shard=1)]
    assert kinds(elections, Story(leaders=LEADERS)) == []
    assert kinds(elections, Story(leaders=changed)) == ["election"]
    assert kinds(elections, Story(leaders=[*LEADERS, seen(LEADER, 30, "", shard=1)])) == ["election"]
    assert kinds(elections, Story(leaders=changed, lags=[lag(29, 200)])) == [], "nobody got a processor"


@pytest.mark.parametrize(("at", "to", "node", "expected"), [
    (20, 25, "n1", []), (20, 25, "", []), (31, 35, "n1", []), (10, 24, "n1", ["election"]), (32, 35, "n1", ["election"])
])  # fmt: skip
def test_a_run_with_faults_has_quiet_times(at: float, to: float, node: str, expected: list[str]) -> None:
    changed = [*LEADERS, seen(LEADER, 30, "n3", shard=1)]
    story = Story(leaders=changed, faults=fault("kill", at, to, node), calls=probes(0, 5, 45, 0.5))
    assert kinds(elections, story) == expected
    assert judged(elections, story) == 44 - (to + 5 - (at - 1))


def test_who_stalls_does_not_say_that_it_is_ready() -> None:
    stalled = [*probes(0, 10, 10, 1.0, INFO), *probes(0, 20, 1, 0.1)]
    said = seen(READY, 0, "n1", state="200")
    story = Story(calls=stalled, leaders=list(LEADERS), ready=[said])
    assert kinds(ready, story) == ["ready"]
    story.ready.append(seen(READY, 14, "n1", state="503"))
    assert kinds(ready, story) == []


def test_who_gives_up_in_the_end_has_to_say_so_before() -> None:
    stalled = [*probes(0, 10, 10, 1.0, INFO), *probes(0, 20, 1, 0.1)]
    said = [seen(READY, 0, "n1", state="200")]
    for until, expected in ((18, ["ready"]), (16, [])):
        leaders = [*LEADERS, seen(LEADER, until, "n3", shard=0)]
        assert kinds(ready, Story(calls=stalled, leaders=leaders, ready=said)) == expected


@pytest.mark.parametrize(("what", "at", "to", "node", "expected"), [
    ("pause", 9, 19, "n1", []),
    ("pause-router", 9, 19, "r1", []),
    ("pause", 19, 25, "n1", ["ready"]),  # afterwards
    ("disk-stall", 9, 19, "n1", ["ready"]),
    ("pause", 9, 19, "n2", ["ready"]),
])  # fmt: skip
def test_who_cannot_be_reached_may_say_that_it_is_ready(
    what: str, at: float, to: float, node: str, expected: list[str]
) -> None:
    stalled = [*probes(0, 10, 10, 1.0, INFO), *probes(0, 20, 1, 0.1)]
    said = [seen(READY, 0, "n1", state="200")]
    assert kinds(ready, Story(calls=stalled, ready=said)) == [], "nobody leads"
    story = Story(calls=stalled, leaders=list(LEADERS), ready=said, faults=fault(what, at, to, node))
    assert kinds(ready, story) == expected
    assert judged(ready, story) == len(expected)


@pytest.mark.parametrize(("seconds", "expected"), [(3, []), (6, []), (8, ["ready"])])
def test_a_stall_of_more_than_five_seconds_has_to_be_said(seconds: int, expected: list[str]) -> None:
    stalled = [*probes(0, 10, seconds, 1.0, INFO), *probes(0, 10 + seconds, 1, 0.1)]
    story = Story(calls=stalled, leaders=list(LEADERS), ready=[seen(READY, 0, "n1", state="200")])
    assert kinds(ready, story) == expected


def test_a_probe_that_is_answered_late_was_a_stall() -> None:
    one = probes(0, 10, 1, 9.0)
    story = Story(calls=one, leaders=list(LEADERS), ready=[seen(READY, 0, "n1", state="200")])
    assert kinds(ready, story) == ["ready"]


def test_claims_of_a_queue_keep_its_rate() -> None:
    final = Final(rates={"q": Rate(per_second=2, burst=2)})

    def claims(count: int, every_s: float) -> list[Claim]:
        return [
            Claim(
                task=f"t{index}", token=index, value=f"v{index}", queue="q", asked_ns=0, sent_ns=0,
                ended_ns=int(index * every_s * S),
            )
            for index in range(count)
        ]  # fmt: skip

    assert kinds(rates, Story(claims=claims(40, 0.5)), final) == []
    assert kinds(rates, Story(claims=claims(40, 0.2)), final) == ["rate"]
    assert kinds(rates, Story(claims=claims(40, 0.2)), MINE) == []


@pytest.mark.parametrize(("per_second", "expected"), [(3, []), (6, ["rate"])])
def test_one_burst_of_the_load_tells_twice_the_rate(per_second: float, expected: list[str]) -> None:
    """On two shards, each of which may have a task more; with the least that a burst has."""
    at_once, count = 2 * limited.RATE.burst if expected else limited.RATE.burst, limited.BURSTS[limited.RATED][0]
    at_s = [max(0, number - at_once) / per_second for number in range(count)]
    claims = [
        Claim(
            task=task_on(1 + number % 2, number), token=number // 2, value=f"v{number}", queue="q", asked_ns=0,
            sent_ns=0, ended_ns=int(index * S),
        )
        for number, index in enumerate(at_s)
    ]  # fmt: skip
    assert kinds(rates, Story(claims=claims), Final(rates={"q": limited.RATE})) == expected


def test_the_time_of_a_shard_is_known_by_its_probes_alone() -> None:
    assert kinds(latency, served(probes(1, 5, 10, 0.01), [sent(at=21)] * 10)) == []
