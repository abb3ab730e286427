"""The parts of the comparison that need no broker: its command line, its rows, and how it counts."""

import os
from pathlib import Path

import pytest

from peers import packages
from peers.arguments import parse
from peers.payloads import HEAD_CHARACTERS, Payloads, id_of, sent_s_of
from peers.results import BATCHED, LIVES, SINGLE, WORKLOADS
from peers.rows import NAMES, REDIS, ROWS, Row
from peers.spent import Process, parse_stat, spent_by, tree_of
from peers.tally import DONE, SENT, SLOTS, Tally

BENCHMARKS = Path(packages.__file__).resolve().parents[1]


def test_everything_is_measured_three_times_unless_told_otherwise() -> None:
    usual = parse([])
    assert (usual.only, usual.workloads, usual.repeat) == (NAMES, WORKLOADS, 3)
    assert parse(["--quick"]).repeat == 1
    assert parse(["--quick", "--repeat", "2"]).repeat == 2


def test_rows_and_workloads_are_chosen_in_the_order_of_the_tables() -> None:
    chosen = parse(["--only", "postgres,holdfast-1", "--workloads", "w3,w1"])
    assert chosen.only == ("holdfast-1", "postgres")
    assert chosen.workloads == (SINGLE, BATCHED, LIVES)


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        (["--only", "holdfast-1,fly"], "no such row: fly"),
        (["--workloads", "W9"], "no such workload: W9"),
        (["--repeat", "0"], "must be at least 1"),
        (["--minutes", "0"], "must be more than 0"),
        (["--dir", "no-such-directory"], "is not a directory"),
    ],
)
def test_what_cannot_be_is_refused(argv: list[str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse(argv)
    assert says in capsys.readouterr().err


def test_rows_have_names_sentences_and_files() -> None:
    assert len(set(NAMES)) == len(ROWS)
    for row in ROWS:
        assert row.compared_with in NAMES
        assert len(row.confirm.split()) > 5
        for what in (row.peer, row.client):
            module, _, name = what.partition(":")
            path = BENCHMARKS / f"{module.replace('.', '/')}.py"
            assert f"class {name}(" in path.read_text(encoding="utf-8")


def test_what_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    named = Row(
        name="r", confirm="", ack="", peer="", client="", compared_with="r", package=REDIS,
        distributions=("no-such-distribution",),
    )  # fmt: skip
    assert packages.why_left_out(named, "").startswith("needs no-such-distribution from PyPI")
    monkeypatch.setattr(packages, "missing_distributions", lambda _: [])
    monkeypatch.setattr(packages, "missing_packages", lambda _: [REDIS])
    assert packages.why_left_out(named, "ask root") == "needs the Debian package redis-server: ask root"


def test_the_cpu_of_a_process_has_that_of_its_children_that_ended() -> None:
    ticks = os.sysconf("SC_CLK_TCK")
    fields = " ".join(["S", "7", *["0"] * 9, *(str(item * ticks) for item in (1, 2, 3, 4)), "0"])
    assert parse_stat(f"42 (a name) with) {fields}") == Process(7, 10.0)


def test_a_tree_has_all_descendants_and_nobody_else() -> None:
    processes = {pid: Process(parent, 0.0) for pid, parent in {2: 1, 3: 2, 4: 3, 5: 1, 6: 5}.items()}
    assert tree_of([2], processes) == {2, 3, 4}
    assert tree_of([2, 3, 9], processes) == {2, 3, 4}
    assert tree_of([], processes) == set()


def test_what_this_process_spends_is_seen() -> None:
    before = spent_by([os.getpid()])
    ends = os.times().user + 0.05
    while os.times().user < ends:
        pass
    assert (spent_by([os.getpid()]) - before).cpu_s > 0.02


def test_a_tally_adds_up_over_all_who_count(tmp_path: Path) -> None:
    with Tally.create(tmp_path / "tally") as tally, Tally(tmp_path / "tally") as other:
        tally.counter(SENT).add([1, 2, 3])
        other.counter(SENT).add([10])
        other.counter(DONE).add([2])
        other.counter(DONE)
        assert tally.read(SENT) == (4, 16, 2)
        assert tally.read(DONE) == (1, 2, 1)
        assert tally.unfinished == 3


def test_a_tally_has_room_for_so_many(tmp_path: Path) -> None:
    with Tally.create(tmp_path / "tally") as tally:
        for _ in range(SLOTS):
            tally.counter(SENT).add([1])
        with pytest.raises(RuntimeError, match="at most 64"):
            tally.counter(SENT)
        assert tally.read(SENT).tasks == SLOTS
        assert tally.read(DONE).tasks == 0


def test_payloads_have_their_size_a_time_and_an_id_of_their_own() -> None:
    first_ids, first = Payloads(1, 1024).take(100)
    other_ids, other = Payloads(2, 1024).take(100)
    assert {len(payload) for payload in first + other} == {1024}
    assert [id_of(payload) for payload in first] == first_ids
    assert id_of(other[0].decode()) == other_ids[0]
    assert not set(first_ids) & set(other_ids)
    assert sent_s_of(first[0]) > 0
    assert len(Payloads(1, 0).take(1)[1][0]) == HEAD_CHARACTERS
