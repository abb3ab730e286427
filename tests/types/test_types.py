"""The public API under the type checkers that its users have, mypy and pyright.

right_*.py are uses in which both must find nothing; wrong_*.py are uses in which both must find an error in each line
with a `type: ignore`, and in no other. mypy complains of an ignore that ignores nothing; pyright is told not to heed
them, so that its errors can be compared with the lines.
"""

import json
import re
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

REPO = Path(__file__).resolve().parents[2]
HERE = Path(__file__).parent
RIGHT = sorted(HERE.glob("right_*.py"))
WRONG = sorted(HERE.glob("wrong_*.py"))


def test_mypy() -> None:
    command = [sys.executable, "-m", "mypy", "--no-error-summary", *map(str, RIGHT + WRONG)]
    done = subprocess.run(command, cwd=REPO, capture_output=True, text=True, check=False, timeout=100)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_pyright(tmp_path: Path) -> None:
    found = errors_of_pyright(tmp_path)
    marked = [f"{path.name}:{line}" for path in WRONG for line in marked_lines(path)]
    assert marked
    assert sorted({place for place, _ in found}) == sorted(marked), "\n".join(map(str, found))


def marked_lines(path: Path) -> list[int]:
    return [number for number, line in enumerate(path.read_text().splitlines(), start=1) if "# type: ignore" in line]


def errors_of_pyright(directory: Path) -> list[tuple[str, str]]:
    """basedpyright is pyright with all that it needs in its wheels: nothing is fetched when it runs."""
    settings = {
        "include": [str(path) for path in RIGHT + WRONG],
        "extraPaths": [str(REPO / root) for root in ("proto", "client")],
        "pythonVersion": "3.11",
        "typeCheckingMode": "strict",
        "enableTypeIgnoreComments": False,
    }
    config = directory / "pyrightconfig.json"
    config.write_text(json.dumps(settings))
    command = [sys.executable, "-m", "basedpyright", "--project", str(config), "--outputjson"]
    command += ["--pythonpath", sys.executable]
    done = subprocess.run(command, cwd=directory, capture_output=True, text=True, check=False, timeout=100)
    report: dict[str, Any] = json.loads(done.stdout)
    assert report["summary"]["filesAnalyzed"] == len(RIGHT + WRONG), done.stdout
    return [
        (
            f"{Path(found['file']).name}:{found['range']['start']['line'] + 1}",
            f"{found.get('rule')}: {found['message']}",
        )
        for found in report["generalDiagnostics"]
        if found["severity"] in ("error", "warning")
    ]


def test_an_installed_wheel_is_typed(tmp_path: Path) -> None:
    """Without its markers a package is untyped for the checkers of its users, whatever its code says."""
    build = "import sys; from hatchling.build import build_wheel; print(build_wheel(sys.argv[1]))"
    done = subprocess.run(
        [sys.executable, "-c", build, str(tmp_path)], cwd=REPO, capture_output=True, text=True, check=True, timeout=100
    )
    [wheel] = tmp_path.glob("*.whl")
    assert wheel.name == done.stdout.split()[-1]
    names = zipfile.ZipFile(wheel).namelist()
    packages = {match[1] for name in names if (match := re.fullmatch(r"(holdfast/\w+)/__init__\.py", name))}
    assert {"holdfast/client", "holdfast/cli", "holdfast/proto"} <= packages
    assert [package for package in sorted(packages) if f"{package}/py.typed" not in names] == []
