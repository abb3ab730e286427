"""Choose the version of every package that Holdfast is run and developed with, or verify that the choice still fits.

    python tools/lock.py             # after a change of pyproject.toml: what still fits keeps its version
    python tools/lock.py --upgrade   # the newest of everything
    python tools/lock.py --verify    # fail if pyproject.toml has changed since; needs no network

The files in requirements/ name each package with the hashes of all its files and the markers under which it is
needed, so they are the same for all versions of Python and all platforms. What running needs has the versions that the
tests are run with.
"""

import argparse
import hashlib
import json
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

REPO = Path(__file__).resolve().parent.parent
FOLDER = "requirements"

# Which lists of pyproject.toml are in each file.
FILES = {
    "lock.txt": ("lock",),
    "dev.txt": ("build-system", "build", "dependencies", "server", "local", "backup", "dev"),
    "run.txt": ("dependencies", "server", "local"),
    "image.txt": ("dependencies", "server", "backup"),
    "build.txt": ("build-system", "build"),
    "peers.txt": ("dependencies", "server", "local", "peers"),
}
BUILT = "pysyncobj"  # comes as source only

_EXPLANATION = """\
# Written by `make lock`: each package with the hashes of its files, and who needs it if not pyproject.toml."""
_DIGEST = "# What pyproject.toml asks for has the digest "


def read_project(repo: Path) -> dict[str, Any]:
    return tomllib.loads((repo / "pyproject.toml").read_text(encoding="utf-8"))


def lists_of(project: dict[str, Any]) -> dict[str, list[str]]:
    """All requirements in pyproject.toml, by the name of their list."""
    table = project["project"]
    own = {"build-system": project["build-system"]["requires"], "dependencies": table["dependencies"]}
    return {**own, **table["optional-dependencies"], **project["dependency-groups"]}


def digest_of(project: dict[str, Any]) -> str:
    """Of all that the choice depends on, so that it needs no repetition after any other change."""
    asked = [project["project"]["requires-python"], lists_of(project)]
    return hashlib.sha256(json.dumps(asked, sort_keys=True).encode()).hexdigest()


def pins_of(path: Path) -> list[str]:
    """What a file has chosen, without the hashes."""
    lines = path.read_text(encoding="utf-8").splitlines()
    return [line.removesuffix("\\").strip() for line in lines if line[:1].isalnum()]


def choose(project: dict[str, Any], path: Path, *options: str, pins: Sequence[str] = ()) -> None:
    """Writes a file. What is in it already keeps its version."""
    lists = lists_of(project)
    asked = [line for file in FILES[path.name] for line in lists[file]] + [*pins]
    lowest = project["project"]["requires-python"].removeprefix(">=")
    command = [sys.executable, "-m", "uv", "pip", "compile", "-", "--output-file", str(path), "--quiet", *options]
    command += ["--universal", "--python-version", lowest, "--only-binary", ":all:", "--no-binary", BUILT]
    command += ["--generate-hashes", "--no-header", "--no-config", "--no-emit-index-url", "--no-emit-find-links"]
    subprocess.run(command, input="\n".join(asked), text=True, check=True)
    chosen = path.read_text(encoding="utf-8")
    path.write_text(f"{_EXPLANATION}\n{_DIGEST}{digest_of(project)}\n{chosen}", encoding="utf-8")


def choose_all(repo: Path, *options: str) -> None:
    """All files or, if there is no choice that fits, none."""
    project = read_project(repo)
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        shutil.copytree(repo / FOLDER, folder, dirs_exist_ok=True)
        choose(project, folder / "lock.txt", *options)
        choose(project, folder / "dev.txt", *options)
        for part in ("run.txt", "image.txt", "build.txt"):
            shutil.copy(folder / "dev.txt", folder / part)  # so that it takes the versions from there
            choose(project, folder / part)
        # Holdfast is compared in the versions that it is tested with.
        choose(project, folder / "peers.txt", *options, pins=pins_of(folder / "run.txt"))
        shutil.copytree(folder, repo / FOLDER, dirs_exist_ok=True)


def problems(repo: Path) -> list[str]:
    """One line per file that is missing or was written for another pyproject.toml."""
    wanted = _DIGEST + digest_of(read_project(repo))
    lines = []
    for name in FILES:
        path = repo / FOLDER / name
        if not path.exists():
            lines.append(f"{FOLDER}/{name}: missing")
        elif wanted not in path.read_text(encoding="utf-8").splitlines():
            lines.append(f"{FOLDER}/{name}: written for other dependencies than those of pyproject.toml")
    return lines


def verify() -> int:
    found = problems(REPO)
    for line in found:
        print(line, file=sys.stderr)
    if found:
        print("The locked versions do not fit: run `make lock` and commit the result.", file=sys.stderr)
    return 1 if found else 0


def main() -> int:
    parser = argparse.ArgumentParser(description="Choose or verify the versions in requirements/.")
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--upgrade", action="store_true", help="take the newest version of everything")
    what.add_argument("--verify", action="store_true", help="fail if pyproject.toml has changed since")
    given = parser.parse_args()
    if given.verify:
        return verify()
    try:
        choose_all(REPO, *(["--upgrade"] if given.upgrade else []))
    except subprocess.CalledProcessError as error:
        return error.returncode  # uv has said why
    return 0


if __name__ == "__main__":
    sys.exit(main())
