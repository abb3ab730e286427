"""The chaos harness on three brokers, in its short form: each fault strikes once, and every promise holds.

`python -m chaos.run` (jepsen-style/README.md) does the same again and again for as long as one likes.
"""

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

from chaos.checkers import check
from chaos.faults import FAULTS
from chaos.history import CANCEL, Claim, Story
from chaos.options import TIMED
from chaos.phases import Plan, Report, Run
from chaos.verdicts import Final
from tests.integration.cluster import Cluster
from tests.long import long_only


async def strike_in_turn(directory: Path, *faults: str, power: bool = False, **settings: Any) -> Report:
    with Cluster(directory, size=3, power=power, **settings) as cluster:
        await asyncio.to_thread(cluster.start)
        plan = Plan(
            [FAULTS[name] for name in faults], seed=1, seconds=90, strikes_max=len(faults), in_turn=True, between_s=0.8
        )
        report = await Run(cluster, plan, directory).play()
    assert [str(violation) for violation in report.violations] == []
    assert len(report.failovers_s) == len(faults)
    assert set(report.final.hashes) == {"n1", "n2", "n3"}
    return report


def spoiled(report: Report) -> dict[str, tuple[Story, Final]]:
    """What was recorded, with one promise broken in each: if the judges let that pass, they would see nothing here."""
    story, final = report.story, report.final
    value = next(value for value in final.ticks["every"].values("every"))
    taken = next(call for call in story.sends() if call.unique and call.duplicate and call.scope == "UNTIL_DONE")
    cancelled = next(call for call in story.calls if call.f == CANCEL and call.state == "CANCELLED")
    late_ns = max(claim.ended_ns for claim in story.claims) + 1
    late = replace(story.claims[0], token=2**62, asked_ns=late_ns, sent_ns=late_ns, ended_ns=late_ns, nth=1)
    added = replace(late, task="added", value=taken.value)
    brief = next(call for call in story.made() if call.ttl_ms)
    timed = next(claim for claim in story.claims if claim.queue == TIMED)
    (one, result), (other, other_result) = list(final.results.items())[:2]
    swapped = {**final.results, one: other_result, other: result}

    def with_claims(*more: Claim) -> Story:
        return replace(story, claims=[*story.claims, *more])

    return {
        "tick": (replace(story, claims=[claim for claim in story.claims if claim.value != value]), final),
        "cap": (story, replace(final, tenant_caps={queue: most - 1 for queue, most in final.tenant_caps.items()})),
        "unique": (
            replace(
                with_claims(added),
                calls=[replace(call, task="added", duplicate=False) if call is taken else call for call in story.calls],
            ),
            final,
        ),
        "ttl": (with_claims(replace(late, task=brief.task, value=brief.value)), final),
        "timeout": (with_claims(replace(timed, token=2**62, lease_ms=60_000)), final),
        "result": (story, replace(final, results=swapped)),
        "cancel": (with_claims(replace(late, task=cancelled.task)), final),
    }


async def test_leaders_that_are_killed_or_stopped(tmp_path: Path) -> None:
    report = await strike_in_turn(tmp_path, "kill-leader", "pause-leader", "restart-all")
    assert len({term for _, term, _ in report.final.leaders}) >= 3, "no leader was replaced"
    # All promises are easily held if nothing happens.
    assert report.counts["tasks"] > 100
    assert report.counts["enqueue_info"] > 0, "no fault hit an enqueue"
    assert report.counts["ack_fail"] + report.counts["extend_fail"] > 0, "no stale token was tried"
    happened = ("ticks", "unique_taken", "cancelled", "read_ok", "dead_attempts_spent", "dead_ttl_passed")
    assert [what for what in happened if not report.counts.get(what)] == []
    for kind, (story, final) in spoiled(report).items():
        assert kind in {violation.kind for violation in check(story, final)}


async def test_a_follower_that_is_killed_is_not_noticed(tmp_path: Path) -> None:
    """The other two are a majority, so nobody has to wait for an election. Nor is there one because the machine stalls
    for a moment: that is not what is looked at here."""
    report = await strike_in_turn(tmp_path, "kill-follower", election_ms=3000)
    assert len({term for _, term, _ in report.final.leaders}) == 1, "there was another election"


async def test_power_cuts(tmp_path: Path) -> None:
    await strike_in_turn(tmp_path, "power-cut-one", "power-cut-all", power=True)


async def test_a_lost_disk(tmp_path: Path) -> None:
    """The replica is rebuilt from the others, which the harness waits for."""
    await strike_in_turn(tmp_path, "disk-loss")


@long_only
async def test_damaged_files(tmp_path: Path) -> None:
    await strike_in_turn(tmp_path, "bit-flip-log", "bit-flip-state")
