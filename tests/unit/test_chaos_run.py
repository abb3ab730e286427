"""The command line of the chaos harness: a recording is judged again, and the exit code tells what was found."""

from dataclasses import replace
from pathlib import Path

import pytest

from chaos.history import Event
from chaos.model import play
from chaos.phases import read_final, write_final
from chaos.run import main
from chaos.verdicts import Final


def record(directory: Path, events: list[Event], final: Final) -> Path:
    (directory / "history.jsonl").write_text("".join(event.to_line() for event in events), encoding="utf-8")
    write_final(directory / "final.json", final)
    return directory


def test_a_good_recording(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--judge", str(record(tmp_path, *play(1, 60)))]) == 0
    assert capsys.readouterr().out == "Every promise held.\n"


def test_a_bad_recording_shows_the_life_of_the_task(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    events, final = play(1, 60)
    task = next(event.task for event in events if event.task)
    states = {each: state for each, state in (final.states or {}).items() if each != task}
    assert main(["--judge", str(record(tmp_path, events, replace(final, states=states)))]) == 1
    told = capsys.readouterr().out
    assert told.startswith(f"VIOLATION lost: {task} was accepted")
    assert sum(f'"task":"{task}"' in line for line in told.splitlines()) >= 2


def test_the_final_state_survives_its_file(tmp_path: Path) -> None:
    _, final = play(1, 60)
    write_final(tmp_path / "final.json", final)
    assert read_final(tmp_path / "final.json") == final


@pytest.mark.parametrize("arguments", [["--fault", "disk-loss", "--nodes", "1"], ["--fault", "rust"], ["--nodes", "2"]])
def test_what_cannot_be_is_refused(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    assert "error:" in capsys.readouterr().err
