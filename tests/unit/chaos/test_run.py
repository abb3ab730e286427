"""The command line of the chaos harness: a recording is judged again, and what cannot be is refused."""

from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from bugs.sitecustomize import BUGS
from chaos.faults.catalogue import FAULTS, GROUPS, OPERATIONS, UnknownFaultError, names_of, possible
from chaos.history import Event
from chaos.model import play
from chaos.outcome import read_final, write_final
from chaos.plan import Kind, draw_steps, read_steps, write_steps
from chaos.run import choose_steps, main, parse
from chaos.system.abilities import DISKS, NAMESPACES, TOOLS, Abilities
from chaos.system.network import ring_cuts
from chaos.system.system import Spec
from chaos.verdicts import Final

ALL_ABILITIES = Abilities(frozenset({NAMESPACES, DISKS, *TOOLS}))
KINDS = {"kill": Kind(("leader", "router"), (0.0, 3.0)), "loss": Kind(("leader",), (1.0, 2.0), (5.0, 30.0))}


def record(directory: Path, events: list[Event], final: Final) -> Path:
    (directory / "history.jsonl").write_text("".join(event.to_line() for event in events), encoding="utf-8")
    write_final(directory / "final.json", final)
    return directory


def test_a_good_recording(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--judge", str(record(tmp_path, *play(1, 60)))]) == 0
    judged, inert, verdict = capsys.readouterr().out.splitlines()
    assert verdict == "Every promise held."
    assert judged.startswith("judged: after-ack ")
    assert "latency" in inert.removeprefix("had nothing to judge: ").split(", "), "that would have taken a fault"
    assert "every promise held" in (tmp_path / "report.html").read_text()


def test_a_bad_recording_shows_the_life_of_the_task(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    events, final = play(1, 60)
    task = next(event.task for event in events if event.task)
    states = {item: state for item, state in (final.states or {}).items() if item != task}
    assert main(["--judge", str(record(tmp_path, events, replace(final, states=states)))]) == 1
    printed = capsys.readouterr().out
    assert f"\nVIOLATION lost: {task} was accepted" in printed
    assert sum(f'"task":"{task}"' in line for line in printed.splitlines()) >= 2
    assert "broken promises" in (tmp_path / "report.html").read_text()


def test_the_final_state_survives_its_file(tmp_path: Path) -> None:
    _, final = play(1, 60)
    write_final(tmp_path / "final.json", final)
    assert read_final(tmp_path / "final.json") == final


@pytest.mark.parametrize(
    "arguments", [["--fault", "rust"], ["--operation", "kill"], ["--workload", "x"], ["--etcds", "2"]]
)
def test_what_cannot_be_is_refused(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    assert "error:" in capsys.readouterr().err


# --- plans ------------------------------------------------------------------------------------------------------------


def test_the_same_seed_draws_the_same_steps() -> None:
    steps = draw_steps(7, 60, KINDS, shards=8)
    assert steps == draw_steps(7, 60, KINDS, shards=8)
    assert steps != draw_steps(8, 60, KINDS, shards=8)
    assert len(steps) > 5
    assert {step.what for step in steps} == set(KINDS)
    assert all(step.at_s < 60 and step.target.startswith(("leader:", "router")) for step in steps)


def test_steps_follow_each_other() -> None:
    steps = draw_steps(3, 100, KINDS, shards=8, in_turn=True)
    assert [step.what for step in steps[:4]] == ["kill", "loss", "kill", "loss"]
    assert all(one.at_s + one.lasts_s < other.at_s for one, other in pairwise(steps))


def test_steps_survive_their_file(tmp_path: Path) -> None:
    lanes = {"faults": draw_steps(1, 30, KINDS, shards=8), "operations": []}
    write_steps(tmp_path / "steps.json", lanes)
    assert read_steps(tmp_path / "steps.json") == lanes


def test_without_a_fault_there_are_no_steps() -> None:
    assert draw_steps(1, 30, {}, shards=8) == []


# --- what is possible -------------------------------------------------------------------------------------------------


def test_a_machine_that_allows_everything() -> None:
    can, cannot = possible(GROUPS["mix"], Spec(brokers=5), ALL_ABILITIES)
    assert can == list(FAULTS)
    assert cannot == {}


def test_what_is_missing_is_named() -> None:
    can, cannot = possible(GROUPS["mix"], Spec(brokers=3), Abilities(why_not={DISKS: "needs root"}))
    assert {"kill", "pause", "host-dies", "etcd-quorum"} <= set(can)
    assert cannot["power-cut"] == "needs loop-mounted filesystems (needs root)"
    assert "network namespaces" in cannot["unplug"]
    assert not set(can) & set(cannot)


def test_a_fault_that_would_lose_data_needs_replicas() -> None:
    _, cannot = possible(["disk-lost", "drain"], Spec(brokers=5, replication=1), ALL_ABILITIES)
    assert set(cannot) == {"disk-lost", "drain"}


def test_a_replica_moves_only_where_there_is_a_broker_without_one() -> None:
    can, cannot = possible(["move", "drain", "transfer", "add"], Spec(brokers=3), ALL_ABILITIES)
    assert can == ["transfer", "add"]
    assert cannot["move"] == cannot["drain"] == "needs 4 brokers, one more than a shard has replicas"
    assert possible(["move", "drain"], Spec(brokers=4), ALL_ABILITIES)[1] == {}


def test_operations_take_turns() -> None:
    options = parse(["--operation", "move,spread,drain", "--fault", "kill", "--brokers", "4", "--seconds", "60"])
    lanes, cannot = choose_steps(options, ALL_ABILITIES)
    assert [step.what for step in lanes["operations"][:4]] == ["move", "spread", "drain", "move"]
    assert cannot == {}


def test_names_and_groups() -> None:
    assert names_of("kill,kills,none", FAULTS) == list(GROUPS["kills"])
    assert names_of("", OPERATIONS) == []
    with pytest.raises(UnknownFaultError, match="but got move"):
        names_of("move", FAULTS)


def test_a_ring_of_five_leaves_everyone_a_majority() -> None:
    names = ["n1", "n2", "n3", "n4", "n5"]
    cuts = ring_cuts(names)
    for name in names:
        assert {sender for sender, receiver in cuts if receiver == name} == {
            other for other, receiver in cuts if other != name and receiver == name
        }
        assert sum(receiver == name for _, receiver in cuts) == 2
    assert set(cuts) == {(receiver, sender) for sender, receiver in cuts}


def test_the_table_of_proofs_has_every_bug() -> None:
    table = (Path(__file__).parents[3] / "docs" / "reliability.md").read_text(encoding="utf-8")
    assert [f"{bug}: {kind}" for bug, (_, kind) in BUGS.items() if f"(`{bug}`) | `{kind}` |" not in table] == []
