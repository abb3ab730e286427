"""A server that does not start says why: to people in plain words, to programs in lines of JSON and nothing else."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.integration import preloaded

NODES = """
node_name = "n1"
nodes = [
  { name = "n1", address = "localhost:7401", peer_address = "localhost:7402" },
  { name = "n2", address = "localhost:7411", peer_address = "localhost:7412" },
]
"""


def end_of(directory: Path, *arguments: str, loads: bool = False) -> tuple[int, str]:
    """The exit code and all that was said, on standard error; also by what is loaded, if it `loads` anything."""
    if loads:
        command = [sys.executable, "-m", "holdfast.cli", *arguments]
        done = subprocess.run(command, cwd=directory, capture_output=True, text=True, timeout=60, check=False)
    else:
        done = preloaded.run(*arguments, directory=directory)
    assert done.stdout == ""
    return done.returncode, done.stderr


def json_lines(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


@pytest.mark.parametrize("command", ["dev", "broker"])
def test_a_refused_configuration(command: str, tmp_path: Path) -> None:
    (tmp_path / "bad.toml").write_text('prot = 1\nlog_level = "loud"\n')
    code, said = end_of(tmp_path, command, "--config", "bad.toml")
    assert code == 2
    assert said.splitlines()[0] == "The configuration was refused:"
    code, said = end_of(tmp_path, command, "--config", "bad.toml", "--json", loads=True)
    assert code == 2
    [line] = json_lines(said)
    assert line["exit_code"] == 2
    assert line["error"]["reason"] == "CONFIGURATION_REFUSED"
    assert "prot: there is no such setting" in line["error"]["message"]
    assert "log_level: got 'loud'" in line["error"]["message"]


def test_a_server_that_cannot_start(tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("a file")
    code, said = end_of(tmp_path, "broker", "--data-dir", "taken", "--json")
    assert code == 1
    last = json_lines(said)[-1]
    assert (last["error"]["reason"], last["exit_code"]) == ("CANNOT_START", 1)
    assert last["error"]["message"].startswith("holdfast cannot start: ")


def test_data_that_were_set_aside(tmp_path: Path) -> None:
    (tmp_path / "n1-data").mkdir()
    (tmp_path / "n1-data" / "something").write_text("old")
    nowhere = ("--host", "192.0.2.1")  # an address that no machine has: it cannot listen there
    (tmp_path / "secret").write_text("x" * 32)
    (tmp_path / "n1.toml").write_text('cluster_secret_file = "secret"\n' + NODES)
    code, said = end_of(
        tmp_path,
        "broker",
        "--config",
        "n1.toml",
        "--data-dir",
        "n1-data",
        "--rebuild",
        "--json",
        "--insecure",
        *nowhere,
    )
    assert code == 1
    lines = json_lines(said)
    [aside] = [line for line in lines if line.get("event") == "data_set_aside"]
    assert Path(tmp_path, aside["path"], "something").read_text() == "old"
    assert lines[-1]["error"]["reason"] == "CANNOT_START"


def test_nothing_is_set_aside_where_there_is_nobody_to_get_it_from(tmp_path: Path) -> None:
    (tmp_path / "holdfast-data").mkdir()
    code, said = end_of(tmp_path, "broker", "--rebuild", "--json")
    assert code == 2
    assert json_lines(said)[-1]["error"]["reason"] == "NOT_SET_ASIDE"
    assert [path.name for path in tmp_path.iterdir()] == ["holdfast-data"]


def test_a_node_that_strangers_can_reach_needs_a_secret(tmp_path: Path) -> None:
    (tmp_path / "n1.toml").write_text(NODES)
    code, said = end_of(tmp_path, "broker", "--config", "n1.toml", "--host", "0.0.0.0", "--insecure", "--json")
    assert code == 2
    [line] = json_lines(said)
    assert "cluster_secret_file" in line["error"]["message"]
    assert "peer_certificate, peer_key and peer_authority" in line["error"]["message"]
    assert not (tmp_path / "holdfast-data").exists()


def test_a_secret_that_is_none(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("short")
    (tmp_path / "n1.toml").write_text('cluster_secret_file = "secret"\n' + NODES)
    code, said = end_of(tmp_path, "broker", "--config", "n1.toml", "--json")
    assert code == 1
    message = json_lines(said)[-1]["error"]["message"]
    assert "secret: Expected a cluster secret of 32 to 1024 bytes, but it has 5" in message
