"""What a run found, as numbers, and the files in which it is kept. Pure, but for the two that read and write."""

import json
from collections import Counter
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median

from chaos.history import CANCEL, ENQUEUE, Story, next_writes_s
from chaos.verdicts import CANCELLED, Final, Rate, Ticks, Verdict, Violation


@dataclass
class Report:
    """What a run found."""

    story: Story
    final: Final
    verdict: Verdict
    began_ns: int
    failovers_s: list[tuple[str, float]]  # for each fault, until a write sent after it was acknowledged
    counts: dict[str, int]
    skipped: list[str] = field(default_factory=list)
    detected_s: float | None = None  # how long it took to find what was looked for
    done: dict[str, int] = field(default_factory=dict)  # operations, and strikes at both ends of moves
    cannot: list[str] = field(default_factory=list)  # what was asked for and is not possible here, and why

    @property
    def violations(self) -> list[Violation]:
        return self.verdict.violations

    def summary(self) -> dict[str, object]:
        times = [waited_s for _, waited_s in self.failovers_s]
        return {
            "ok": not self.violations,
            "violations": [str(violation) for violation in self.violations],
            "judged": dict(sorted(self.verdict.judged.items())),
            "counts": self.counts,
            "next_write_s": {
                "trials": len(times),
                "median": round(median(times), 3) if times else None,
                "max": round(max(times), 3) if times else None,
                "each": [{"fault": what, "s": round(waited_s, 3)} for what, waited_s in self.failovers_s],
            },
            "skipped": self.skipped,
            "done": self.done,
            "cannot": self.cannot,
            "detected_s": None if self.detected_s is None else round(self.detected_s, 1),
        }


def make_report(
    story: Story, final: Final, verdict: Verdict, began_ns: int, skipped: list[str],
    detected_s: float | None = None,
) -> Report:  # fmt: skip
    waits_s = [
        (f"{fault.value} {fault.node}".strip(), waited_s)
        for fault, waited_s in next_writes_s(story)
        if waited_s is not None
    ]
    return Report(story, final, verdict, began_ns, waits_s, counts_of(story, final), skipped, detected_s)


def counts_of(story: Story, final: Final) -> dict[str, int]:
    """How much happened: a run in which little did proves little."""
    found = Counter(f"{call.f}_{call.outcome}" for call in story.calls)
    found.update(f"dead_{reason.lower()}" for reason in final.reasons.values())
    found["cancelled"] = sum(call.f == CANCEL and call.state == CANCELLED for call in story.calls)
    found["unique_taken"] = sum(call.f == ENQUEUE and bool(call.unique) and call.duplicate for call in story.calls)
    found["ticks"] = sum(ticks.fired_total for ticks in final.ticks.values())
    found["claims"] = len(story.claims)
    found["claims_sent_again"] = sum(claim.asked_ns < claim.sent_ns for claim in story.claims)
    found["tasks"] = len(story.known_tasks())
    found["faults"] = sum(event.f == "fault" for event in story.faults)
    found["handlers"] = len(story.runs)
    found["leader_changes"] = max(0, len({(shard, term) for shard, term, _ in final.leaders}))
    return dict(sorted(found.items()))


def write_final(path: Path, final: Final) -> None:
    path.write_text(json.dumps(asdict(final)), encoding="utf-8")


def read_final(path: Path) -> Final:
    """As it was written."""
    reported = json.loads(path.read_text(encoding="utf-8"))
    reported["hashes"] = {
        shard: {node: (index, digest) for node, (index, digest) in nodes.items()}
        for shard, nodes in reported["hashes"].items()
    }
    reported["ticks"] = {schedule: Ticks(**ticks) for schedule, ticks in reported.get("ticks", {}).items()}
    reported["rates"] = {queue: Rate(**rate) for queue, rate in reported.get("rates", {}).items()}
    reported["leaders"] = tuple(tuple(leader) for leader in reported["leaders"])
    names = ("unnoticed", "broken", "unsound", "ranked", "spread")
    return Final(**reported | {name: tuple(reported.get(name, ())) for name in names})
