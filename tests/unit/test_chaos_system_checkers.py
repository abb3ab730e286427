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
from chaos.verdicts import Checker, Final, Rate
from chaos.worker_checkers import follow_ups, innocent, lease, start
from chaos.workloads import limited
from tests.unit.chaos_parts import S, sent, task_on

MINE = Final()


def claim(at: float = 10, *, left: float = 3, asked: float = 3, waited: float = 0.1, worker: str = "w1/1") -> Claim:
    """Answered at this second, with so much left of its lease."""
    return Claim(
        task="t1", token=10, value="v1", queue="q", asked_ns=int((at - waited) * S), sent_ns=int((at - waited) * S),
        ended_ns=int(at * S), worker=worker, ends_ns=int((at + left) * S), asked_ms=int(asked * 1000),
    )  # fmt: skip


def fault(what: str, at: float, to: float, node: str = "n1") -> list[Event]:
    return [
        Event(t_ns=int(at * S), proc=-1, type=INFO, f=FAULT, value=what, node=node, req_id="1"),
        Event(t_ns=int(to * S), proc=-1, type=INFO, f=HEAL, value=what, node=node, req_id="1"),
    ]


def ran(at: float, worker: str = "w1/1", value: str = "v1") -> HandlerRun:
    return HandlerRun(
        task="t1", value=value, worker=worker, started_ns=int(at * S), ended_ns=int((at + 1) * S), how="done"
    )


def extended(at: float, left: float) -> Call:
    return Call(
        f=EXTEND, outcome=OK, invoked_ns=int((at - 0.1) * S), ended_ns=int(at * S), task="t1", token=10,
        ends_ns=int((at + left) * S), worker="w1/1",
    )  # fmt: skip


def kinds(checker: Checker, story: Story, final: Final = MINE) -> list[str]:
    return [violation.kind for violation in checker(story, final)]


# --- workers ----------------------------------------------------------------------------------------------------------


def test_a_worker_that_waited_gets_a_whole_lease() -> None:
    assert kinds(lease, Story(claims=[claim(waited=25)])) == []
    assert kinds(lease, Story(claims=[claim(waited=8, left=-5)])) == ["lease"]
    assert kinds(lease, Story(claims=[claim(waited=2, left=2.6)])) == []
    assert kinds(lease, Story(claims=[claim(waited=2, left=2.4)])) == ["lease"]


def test_a_lease_that_a_fault_has_delayed_is_excused() -> None:
    story = Story(claims=[claim(left=-5)], faults=fault("pause", 4, 9.5))
    assert kinds(lease, story) == []
    assert kinds(lease, Story(claims=[claim(30, left=-5)], faults=fault("pause", 4, 9.5))) == ["lease"]


def lag(at: float, ms: int) -> Event:
    return Event(t_ns=int(at * S), proc=-1, type=INFO, f=LAG, state=str(ms))


def test_a_machine_that_gives_nobody_a_processor_is_no_lost_lease() -> None:
    late = claim(waited=2, left=2.0)
    assert kinds(lease, Story(claims=[late], lags=[lag(9.5, 100)])) == [], "each process on the way waited"
    assert kinds(lease, Story(claims=[late], lags=[lag(9.5, 50)])) == ["lease"]
    assert kinds(lease, Story(claims=[late], lags=[lag(5, 1000), lag(12, 1000)])) == ["lease"], "at other times"


def test_a_lease_is_not_longer_than_the_timeout() -> None:
    timed = Call(f=ENQUEUE, outcome=OK, invoked_ns=0, ended_ns=1, value="v1", task="t1", timeout_ms=1000)
    assert kinds(lease, Story(claims=[claim(left=0.9)], calls=[timed])) == []
    assert kinds(lease, Story(claims=[claim(left=0.9, asked=10)])) == ["lease"]


def test_a_handler_starts_within_its_lease() -> None:
    assert kinds(start, Story(claims=[claim(10, left=3)], runs=[ran(12.9)])) == []
    assert kinds(start, Story(claims=[claim(10, left=3)], runs=[ran(13.2)])) == []
    assert kinds(start, Story(claims=[claim(10, left=3)], runs=[ran(13.3)])) == ["start"]
    assert kinds(start, Story(claims=[claim(10, left=3)], runs=[ran(14.5)], calls=[extended(12, 3)])) == []
    assert (
        kinds(start, Story(claims=[claim(10, left=3)], runs=[ran(14.5)], faults=fault("pause", 11, 14.4, "w1"))) == []
    )
    assert kinds(start, Story(claims=[claim(10, worker="w2/1")], runs=[ran(11)])) == ["start"]


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


def seen(f: str, at: float, node: str, *, shard: int | None = None, state: str = "") -> Event:
    return Event(
        t_ns=int(at * S), proc=-1, type=INFO, f=f, node=node, state=state, req_id="" if shard is None else str(shard)
    )


LEADERS = [seen(LEADER, 0, "n1", shard=0), seen(LEADER, 0, "n2", shard=1)]


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
    story = served(probes(1, 5, 10, 0.01), probes(1, 21, 10, 2.0))
    story.leaders.append(seen(LEADER, 25, "n3", shard=1))
    assert kinds(latency, story) == []


def test_two_faults_at_once_tell_nothing() -> None:
    story = served(probes(1, 5, 10, 0.01), probes(1, 21, 10, 2.0))
    story.faults += [Event(t_ns=25 * S, proc=-1, type=INFO, f=FAULT, value="kill", node="n2", req_id="2")]
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
    assert kinds(elections, Story(leaders=changed, faults=fault("kill", 20, 25))) == []


def test_who_stalls_does_not_say_that_it_is_ready() -> None:
    stalled = [*probes(0, 10, 10, 1.0, INFO), *probes(0, 20, 1, 0.1)]
    said = seen(READY, 0, "n1", state="200")
    story = Story(calls=stalled, leaders=list(LEADERS), ready=[said])
    assert kinds(ready, story) == ["ready"]
    story.ready.append(seen(READY, 14, "n1", state="503"))
    assert kinds(ready, story) == []


def test_who_does_not_lead_or_is_struck_may_say_that_it_is_ready() -> None:
    stalled = [*probes(0, 10, 10, 1.0, INFO), *probes(0, 20, 1, 0.1)]
    said = [seen(READY, 0, "n1", state="200")]
    assert kinds(ready, Story(calls=stalled, ready=said)) == []
    assert kinds(ready, Story(calls=stalled, leaders=list(LEADERS), ready=said, faults=fault("pause", 9, 19))) == []


def test_a_short_stall_is_none() -> None:
    stalled = [*probes(0, 10, 3, 1.0, INFO), *probes(0, 13, 1, 0.1)]
    story = Story(calls=stalled, leaders=list(LEADERS), ready=[seen(READY, 0, "n1", state="200")])
    assert kinds(ready, story) == []


def test_claims_of_a_queue_keep_its_rate() -> None:
    final = Final(rates={"q": Rate(per_second=2, burst=2)})

    def claims(count: int, every_s: float) -> list[Claim]:
        return [
            Claim(
                task=f"t{at}",
                token=at,
                value=f"v{at}",
                queue="q",
                asked_ns=0,
                sent_ns=0,
                ended_ns=int(at * every_s * S),
            )
            for at in range(count)
        ]

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
            sent_ns=0, ended_ns=int(at * S),
        )
        for number, at in enumerate(at_s)
    ]  # fmt: skip
    assert kinds(rates, Story(claims=claims), Final(rates={"q": limited.RATE})) == expected


def test_the_time_of_a_shard_is_known_by_its_probes_alone() -> None:
    assert kinds(latency, served(probes(1, 5, 10, 0.01), [sent(at=21)] * 10)) == []
