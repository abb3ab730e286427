"""What is published: the source distribution, the wheel built from it, and that wheel in a clean environment."""

import json
import os
import re
import subprocess
import sys
import tarfile
import zipfile
from contextlib import AbstractContextManager
from pathlib import Path, PurePosixPath

import pytest

from tests.acceptance.running import REPO, Running, environment, running
from tests.long import long_only
from tools import lock

BUILD = "import sys; from hatchling import build; print(getattr(build, sys.argv[1])(sys.argv[2]))"
NOT_PUBLISHED = {".ci", ".gitignore"}  # the second comes along by itself
GENERATED = {"PKG-INFO", ".gitignore"}

HELLO = """
from holdfast.client import Holdfast

app = Holdfast()


@app.task
def greet(name: str) -> str:
    return f"Hello {name}!"
"""


def built(what: str, source: Path, target: Path) -> Path:
    command = [sys.executable, "-c", BUILD, f"build_{what}", str(target)]
    done = subprocess.run(command, cwd=source, capture_output=True, text=True, timeout=100, check=True)
    return target / done.stdout.split()[-1]


@pytest.fixture(scope="module")
def sdist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return built("sdist", REPO, tmp_path_factory.mktemp("sdist"))


@pytest.fixture(scope="module")
def unpacked(sdist: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("unpacked")
    with tarfile.open(sdist) as archive:
        archive.extractall(folder, filter="data")
    return folder / sdist.name.removesuffix(".tar.gz")


@pytest.fixture(scope="module")
def wheel(unpacked: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return built("wheel", unpacked, tmp_path_factory.mktemp("wheel"))


def files_of(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}


def test_the_source_distribution_has_what_the_repository_has(unpacked: Path) -> None:
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=REPO, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    if listed.returncode != 0:
        pytest.skip("this is no clone")
    kept = {name for name in listed.stdout.splitlines() if (REPO / name).exists()}
    kept = {name for name in kept if PurePosixPath(name).parts[0] not in NOT_PUBLISHED}
    published = files_of(unpacked) - GENERATED
    assert sorted(kept - published) == [], "name them in tool.hatch.build.targets.sdist"
    assert sorted(published - kept) == []


def test_the_wheel_has_the_packages_and_nothing_else(wheel: Path, unpacked: Path) -> None:
    """Built from the source distribution, so that is complete, too."""
    roots = [unpacked / root for root in ("proto", "common", "client", "router", "broker")]
    names = set(zipfile.ZipFile(wheel).namelist())
    info = {name for name in names if name.startswith("holdfast_queue-")}
    assert names - info == set().union(*map(files_of, roots))
    assert {name.partition("/")[2] for name in info} == {
        "METADATA", "WHEEL", "RECORD", "entry_points.txt", "licenses/LICENSE",
    }  # fmt: skip


def test_what_the_wheel_says_of_itself(wheel: Path) -> None:
    archive = zipfile.ZipFile(wheel)
    [metadata] = [archive.read(name).decode() for name in archive.namelist() if name.endswith("/METADATA")]
    head = metadata.partition("\n\n")[0].splitlines()
    assert {"Name: holdfast-queue", "License-Expression: Apache-2.0", "License-File: LICENSE"} <= set(head)
    assert [line for line in head if line.startswith("Provides-Extra")] == [
        "Provides-Extra: backup", "Provides-Extra: local", "Provides-Extra: server",
    ]  # fmt: skip


class Clean:
    """A virtual environment into which only the wheel is installed, with what it asks for in the locked versions."""

    def __init__(self, directory: Path, wheel: Path) -> None:
        self.directory = directory
        self._wheel = wheel
        self._bin = directory / "env" / "bin"
        self._limits = directory / "versions.txt"
        locked = (REPO / "requirements" / "run.txt").read_text(encoding="utf-8")
        self._limits.write_text("\n".join(re.findall(r"^[a-z0-9-]+==\S+", locked, re.MULTILINE)))
        self._run(sys.executable, "-m", "venv", str(directory / "env"))

    def install(self, extra: str = "") -> None:
        pip = [str(self._bin / "python"), "-m", "pip", "--quiet", "--disable-pip-version-check", "install"]
        self._run(*pip, "--constraint", str(self._limits), f"{self._wheel}{extra}")

    def holdfast(self, *arguments: str) -> "subprocess.CompletedProcess[str]":
        return self._done(str(self._bin / "holdfast"), *arguments)

    def python(self, code: str) -> str:
        return self._run(str(self._bin / "python"), "-c", code)

    def running(self, command: str, *arguments: str) -> AbstractContextManager[Running]:
        whole = [str(self._bin / "holdfast"), command, *arguments]
        return running(whole, self.directory, self.directory / f"{command}.log", self._env)

    @property
    def _env(self) -> dict[str, str]:
        """Nothing of the environment that runs the tests is found by accident."""
        path = os.pathsep.join([str(self._bin), os.defpath])
        return {name: text for name, text in environment().items() if name != "PYTHONPATH"} | {"PATH": path}

    def _done(self, *command: str) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            command, cwd=self.directory, env=self._env, capture_output=True, text=True, timeout=300, check=False
        )

    def _run(self, *command: str) -> str:
        done = self._done(*command)
        assert done.returncode == 0, done.stderr
        return done.stdout


@pytest.fixture(scope="module")
def clean(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Clean:
    return Clean(tmp_path_factory.mktemp("clean"), wheel)


@long_only
@pytest.mark.timeout(600)
def test_the_light_client_and_then_the_server_in_a_clean_environment(clean: Clean) -> None:
    clean.install()
    clean.python("import holdfast.client")
    assert "Holdfast is a task queue" in clean.holdfast("--help").stdout
    assert clean.holdfast("version").stdout.startswith("holdfast 0.")
    refused = clean.holdfast("dev")
    assert refused.returncode == 3
    [line] = refused.stderr.splitlines()
    assert line.endswith("run  pip install 'holdfast-queue[server]'")
    assert clean.holdfast("cluster", "up").returncode == 3

    clean.install("[server]")
    (clean.directory / "hello.py").write_text(HELLO)
    with clean.running("dev", "--port", "0", "--ops-port", "0", "--log-format", "json") as server:
        server.wait_for("A worker runs it")
        address = re.findall(r"gRPC +(\S+)", server.output)[0]
        with clean.running("worker", "hello:app", "--address", address) as worker:
            task = ("default", "greet", '{"name": "Ada"}')
            ended = clean.holdfast("enqueue", *task, "--wait", "--json", "--address", address)
            assert ended.returncode == 0, ended.stderr
            assert json.loads(ended.stdout)["result_json"] == "Hello Ada!"
            assert (worker.stop(), server.stop()) == (0, 0)


@long_only
@pytest.mark.timeout(600)
@pytest.mark.parametrize(("python", "machine"), [("3.11", "aarch64"), ("3.14", "aarch64"), ("3.14", "x86_64")])
def test_what_running_needs_is_there_for_other_machines(python: str, machine: str, tmp_path: Path) -> None:
    """Wheels with a locked hash. What is built on the spot is left out: it is the same for all of them."""
    texts = [(REPO / lock.FOLDER / name).read_text(encoding="utf-8") for name in ("build.txt", "run.txt")]
    lines = [line for text in texts for line in text.replace("\\\n", "").splitlines()]
    needed = tmp_path / "needed.txt"
    needed.write_text("\n".join(line for line in lines if not line.startswith(f"{lock.BUILT}==")))
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", "install", "--dry-run", "--no-deps"]
    pip += ["--require-hashes", "--only-binary", ":all:", "--target", str(tmp_path), "--python-version", python]
    pip += [f"--platform={system}_{machine}" for system in ("manylinux2014", "manylinux_2_17", "manylinux_2_28")]
    done = subprocess.run(
        [*pip, "--requirement", str(needed)], capture_output=True, text=True, timeout=500, check=False
    )
    assert done.returncode == 0, done.stderr
