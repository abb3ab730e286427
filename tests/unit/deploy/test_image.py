"""The image and the systemd units, as far as they can be judged without an engine and without systemd."""

import json
import subprocess
import sys
from collections.abc import Iterator
from configparser import RawConfigParser
from pathlib import Path
from typing import NamedTuple

import pytest

from holdfast.broker.config import load_config
from holdfast.serving.starting import EXIT_REFUSED
from tools.manifests.objects import load
from tools.manifests.rendering import DEPLOY, RENDERED
from tools.manifests.rules import stop_seconds

DOCKERFILE = DEPLOY / "image" / "Dockerfile"
REPO = DEPLOY.parent


class Step(NamedTuple):
    word: str  # RUN, COPY, …
    rest: str


def steps(text: str) -> Iterator[Step]:
    """Instructions, one line each."""
    lines = (line for line in text.splitlines() if not line.lstrip().startswith("#"))
    for line in "\n".join(lines).replace("\\\n", " ").splitlines():
        word, _, rest = line.strip().partition(" ")
        if word:
            yield Step(word, " ".join(rest.split()))


STEPS = list(steps(DOCKERFILE.read_text()))
LAST_STAGE = STEPS[max(index for index, step in enumerate(STEPS) if step.word == "FROM") :]


def only(word: str) -> str:
    [rest] = [step.rest for step in LAST_STAGE if step.word == word]
    return rest


def test_hadolint_finds_nothing() -> None:
    program = Path(sys.executable).with_name("hadolint")
    done = subprocess.run([program, "--failure-threshold", "style", DOCKERFILE], capture_output=True, check=False)
    assert (done.returncode, done.stdout) == (0, b"")


def test_both_stages_stand_on_the_same_pinned_base() -> None:
    bases = {step.rest.split()[0] for step in STEPS if step.word == "FROM"}
    assert len(bases) == 1
    [base] = bases
    version = base.partition(":")[2]
    assert version.startswith("3.11.")
    assert version.count(".") == 2, "a whole version, so that a build next year gets the same one"
    assert "slim" in version


def test_it_runs_as_the_user_that_kubernetes_asks_for() -> None:
    user = only("USER")
    for file in RENDERED.iterdir():
        for workload in load(file.read_text()).workloads:
            pod = workload.pod["securityContext"]
            assert f"{pod['runAsUser']}:{pod['runAsGroup']}" == user, workload
    words = [step.word for step in LAST_STAGE]
    assert "RUN" not in words[words.index("USER") :], "whatever needs root comes before"


def test_only_what_is_needed_is_copied() -> None:
    copied = [step.rest.split()[:-1] for step in STEPS if step.word == "COPY" and "--from" not in step.rest]
    sources = {name for names in copied for name in names}
    assert "." not in sources
    assert all((REPO / name).exists() for name in sources)
    ignore = (DEPLOY / "image" / "Dockerfile.dockerignore").read_text().splitlines()
    assert {line[1:] for line in ignore if line.startswith("!")} == sources
    [entry] = [step.rest for step in LAST_STAGE if step.word == "COPY"]
    assert entry.startswith("--from=build ")


def test_it_starts_without_a_shell_and_is_asked_how_it_is() -> None:
    """A shell in between would not pass SIGTERM on."""
    assert json.loads(only("ENTRYPOINT")) == ["holdfast"]
    assert json.loads(only("HEALTHCHECK").partition("CMD ")[2])[0] == "python"


def test_every_port_of_the_manifests_is_exposed() -> None:
    ports = {
        port
        for workload in load((RENDERED / "production.yaml").read_text()).of("StatefulSet", "Deployment")
        for container in workload.containers
        if container.name in ("broker", "router")
        for port in container.ports.values()
    }
    assert {int(port) for port in only("EXPOSE").split()} == ports


# --- systemd ----------------------------------------------------------------------------------------------------


def unit(name: str) -> RawConfigParser:
    parser = RawConfigParser(strict=True)
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read(DEPLOY / "systemd" / f"holdfast-{name}.service")
    return parser


@pytest.mark.parametrize("name", ["broker", "router"])
def test_a_unit_gives_a_server_time_and_few_rights(name: str) -> None:
    service = unit(name)["Service"]
    assert service["ExecStart"] == f"/opt/holdfast/bin/holdfast {name} --config /etc/holdfast/{name}.toml"
    assert int(service["RestartPreventExitStatus"]) == EXIT_REFUSED
    patience_s = int(service["ExecStop"].split()[-1]) if "ExecStop" in service else 0
    assert int(service["TimeoutStopSec"]) >= patience_s + stop_seconds(name)
    assert (service["NoNewPrivileges"], service["ProtectSystem"], service["CapabilityBoundingSet"]) == (
        "yes", "strict", "",
    )  # fmt: skip


@pytest.mark.parametrize("name", ["broker", "router"])
def test_the_notes_of_a_unit_make_all_that_it_needs(name: str, tmp_path: Path) -> None:
    """In that order: a file cannot be written into a directory that is not there."""
    text = (DEPLOY / "systemd" / f"holdfast-{name}.service").read_text()
    notes = [line[1:].strip() for line in text.splitlines() if line.startswith("#   ")]
    steps = [line for line in notes if "/etc/holdfast" in line]
    (tmp_path / f"{name}.toml").touch()
    script = "\n".join(steps).replace("/etc/holdfast", f"{tmp_path}/etc/holdfast")
    subprocess.run(["/bin/sh", "-ec", script], cwd=tmp_path, check=True)
    service = unit(name)["Service"]
    needed = [service["ExecStart"].split()[-1], service["EnvironmentFile"]]
    assert all((tmp_path / file.lstrip("/")).exists() for file in needed if not file.startswith("-"))
    assert all("holdfast-queue[server]" in line for line in notes if "pip install" in line)


def test_the_broker_of_a_unit_writes_where_it_may() -> None:
    service = unit("broker")["Service"]
    environment = dict(pair.split("=", 1) for pair in service["Environment"].split())
    environment["HOLDFAST_NODE_NAME"] = "n1"  # of EnvironmentFile
    config = load_config(None, {}, environment)
    assert config.data_dir.is_relative_to(Path("/var/lib") / service["StateDirectory"])
    assert service["WorkingDirectory"] == f"/var/lib/{service['StateDirectory']}"
