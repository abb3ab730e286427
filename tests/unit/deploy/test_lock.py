"""The files in requirements/: complete, free of where packages were fetched from, and out of date only if they are."""

import re
import shutil
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tools import lock

REPO = Path(__file__).resolve().parents[3]
_PIN = re.compile(r"([a-z0-9-]+)==(\S+)")


def entries(name: str) -> list[str]:
    """Each package with its hashes, in one line."""
    text = (REPO / lock.FOLDER / name).read_text(encoding="utf-8").replace("\\\n", "")
    return [line for line in text.splitlines() if not line.lstrip().startswith("#")]


def pins(name: str) -> dict[str, str]:
    return {match[1]: match[2] for line in entries(name) if (match := _PIN.match(line))}


@pytest.mark.parametrize("name", lock.FILES)
def test_every_package_has_hashes_and_nothing_says_where_from(name: str) -> None:
    assert entries(name)
    bare = [line for line in entries(name) if not _PIN.match(line) or "--hash=sha256:" not in line]
    assert bare == []
    assert "://" not in (REPO / lock.FOLDER / name).read_text(encoding="utf-8")


@pytest.mark.parametrize("name", lock.FILES)
def test_what_pyproject_names_is_there_in_a_version_that_it_allows(name: str) -> None:
    lists = lock.lists_of(lock.read_project(REPO))
    asked = [Requirement(line) for file in lock.FILES[name] for line in lists[file]]
    chosen = pins(name)
    wrong = [str(one) for one in asked if not one.specifier.contains(chosen.get(canonicalize_name(one.name), "0"))]
    assert wrong == []


@pytest.mark.parametrize("part", ["run.txt", "image.txt", "build.txt"])
def test_what_running_needs_is_what_the_tests_are_run_with(part: str) -> None:
    assert set(entries(part)) <= set(entries("dev.txt"))


def test_peers_are_compared_with_what_is_run() -> None:
    assert pins("run.txt").items() <= pins("peers.txt").items()


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    shutil.copy(REPO / "pyproject.toml", tmp_path)
    shutil.copytree(REPO / lock.FOLDER, tmp_path / lock.FOLDER)
    return tmp_path


def change(repo: Path, old: str, new: str) -> None:
    path = repo / "pyproject.toml"
    text = path.read_text(encoding="utf-8")
    assert old in text
    path.write_text(text.replace(old, new), encoding="utf-8")


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('  "typer>=', '  "click",\n  "typer>='),
        ('"structlog>=', '"structlog>=1'),
        ('  "types-protobuf",\n', ""),
        ('requires = ["hatchling', 'requires = ["setuptools", "hatchling'),
        ('requires-python = ">=3.11"', 'requires-python = ">=3.12"'),
    ],
    ids=["added", "another version", "removed", "build system", "python"],
)
def test_other_dependencies_are_noticed(copy: Path, old: str, new: str) -> None:
    assert lock.problems(copy) == []
    change(copy, old, new)
    expected = "written for other dependencies than those of pyproject.toml"
    assert lock.problems(copy) == [f"requirements/{name}: {expected}" for name in lock.FILES]


def test_other_changes_need_no_new_choice(copy: Path) -> None:
    change(copy, "line-length = 120", "line-length = 100")
    assert lock.problems(copy) == []


def test_a_missing_file_is_noticed(copy: Path) -> None:
    (copy / "requirements" / "run.txt").unlink()
    assert lock.problems(copy) == ["requirements/run.txt: missing"]
