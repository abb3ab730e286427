"""Without the server's dependencies the client and its commands work, and server commands say what is missing."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

REPO = Path(__file__).resolve().parents[3]

# What `pip install holdfast-queue` leaves out. (pydantic is not among them: typer brings it.)
SERVER_ONLY = [
    "grpc_health",
    "grpc_reflection",
    "prometheus_client",
    "pydantic_settings",
    "pysyncobj",
    "rocksdict",
    "starlette",
    "structlog",
    "uvicorn",
]

# Refuses the server's packages the way an environment without them does.
LIGHT = f"""
import sys

class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {SERVER_ONLY!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
        return None

sys.meta_path.insert(0, Missing())
"""


def run_light(code: str, *arguments: str, cwd: Path) -> "subprocess.CompletedProcess[str]":
    roots = [str(REPO / root) for root in ("proto", "common", "client", "router", "broker")]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(roots), "COLUMNS": "200"}
    return subprocess.run(
        [sys.executable, "-c", LIGHT + code, *arguments],
        cwd=cwd,
        env=env,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def holdfast(*arguments: str, cwd: Path) -> "subprocess.CompletedProcess[str]":
    return run_light("from holdfast.cli.main import main; sys.exit(main())", *arguments, cwd=cwd)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [(["version"], "holdfast "), (["enqueue", "--help"], "Hand over one task"), (["broker", "--help"], "--data-dir")],
    ids=["version", "enqueue --help", "broker --help"],
)
def test_commands_that_need_no_server_work(arguments: list[str], words: str, tmp_path: Path) -> None:
    done = holdfast(*arguments, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert words in done.stdout


@pytest.mark.parametrize("command", ["dev", "broker"])
def test_server_commands_name_what_is_missing(command: str, tmp_path: Path) -> None:
    done = holdfast(command, cwd=tmp_path)
    assert done.returncode == 3
    assert done.stdout == ""
    [line] = done.stderr.splitlines()
    assert line.startswith(f"error: `holdfast {command}` needs the package '")
    assert any(f"'{package}'" in line for package in SERVER_ONLY)
    assert "pip install 'holdfast-queue[server]'" in line
    assert list(tmp_path.iterdir()) == [], "nothing was left behind"


def test_the_client_imports_nothing_of_the_server(tmp_path: Path) -> None:
    code = (
        "import holdfast.client\n"
        "server = ('holdfast.broker', 'holdfast.machine', 'holdfast.cluster', 'typer', 'rich', 'pydantic')\n"
        "print([name for name in sys.modules if name.startswith(server)])"
    )
    done = run_light(code, cwd=tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (0, "[]\n", "")
