"""Another program with the name `holdfast` in the same environment is refused in a sentence, wherever its files are."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

REPO = Path(__file__).resolve().parents[3]
OURS = [str(REPO / root) for root in ("proto", "common", "client", "router", "broker")]
# What the client library needs beside itself: by root, the package.
SHARED = (
    ("common", "access"),
    ("common", "audit"),
    ("common", "common"),
    ("common", "frames"),
    ("common", "routing"),
    ("common", "transport"),
    ("proto", "proto"),
)
COMMAND = "import sys; from holdfast_queue.command import main; sys.exit(main())"


def run(code: str, *arguments: str, path: list[str]) -> "subprocess.CompletedProcess[str]":
    """Without what is installed around: only `path` and the outside libraries."""
    libraries = [folder for folder in sys.path if folder.endswith("site-packages")]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([*path, *libraries])}
    command = [sys.executable, "-S", "-c", code, *arguments]
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=60, check=False)


@pytest.fixture
def other(tmp_path: Path) -> Path:
    """An environment's folder with the other program, which says so when it is run."""
    package, info = tmp_path / "holdfast", tmp_path / "holdfast-0.5.1.dist-info"
    package.mkdir()
    info.mkdir()
    (package / "__init__.py").write_text("print('I ran')\n")
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: holdfast\nVersion: 0.5.1\n")
    return tmp_path


def test_the_command_says_what_to_do_where_all_of_ours_is_hidden(other: Path) -> None:
    done = run(COMMAND, "version", path=[*OURS, str(other)])
    assert (done.returncode, done.stdout) == (3, ""), "its code must not be run"
    [line] = done.stderr.splitlines()
    assert line.startswith("error: Expected holdfast-queue to have the name `holdfast` for itself, ")
    assert "(holdfast 0.5.1)" in line
    assert str(other / "holdfast" / "__init__.py") in line
    assert line.endswith("run  pip uninstall holdfast")

    done = run(COMMAND, "version", "--json", path=[*OURS, str(other)])
    assert (done.returncode, done.stdout) == (3, "")
    problem = json.loads(done.stderr)
    assert (problem["exit_code"], problem["error"]["reason"]) == (3, "NAME_TAKEN")
    assert problem["error"]["message"] == line.removeprefix("error: ")


def test_the_library_says_it_where_both_share_a_folder(other: Path) -> None:
    """As pip installs wheels: `holdfast.client` can be imported there, and would run with the other's `holdfast`."""
    for root, name in (("client", "client"), *SHARED):
        (other / "holdfast" / name).symlink_to(REPO / root / "holdfast" / name)
    done = run("import holdfast.client", path=[str(other), str(REPO / "client")])
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith("holdfast_queue.NameTakenError: Expected ")


def test_a_file_that_a_build_tool_adds_is_no_other_program(tmp_path: Path) -> None:
    package = tmp_path / "holdfast"
    package.mkdir()
    (package / "__init__.py").write_text("")
    for name in ("backup", "client", "cli"):
        (package / name).symlink_to(REPO / "client" / "holdfast" / name)
    for root, name in SHARED:
        (package / name).symlink_to(REPO / root / "holdfast" / name)
    done = run(COMMAND, "version", path=[str(tmp_path), str(REPO / "client")])
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("holdfast ")
