"""docs/kubernetes.md and the manifests cannot be run here. What they say is compared with what there is: commands with
the command line, objects and Secrets with the manifests, alerts with the rules; certificates are made as the page says.
"""

import json
import re
import shlex
from functools import cache
from pathlib import Path

import kubernetes_validate
import pytest
import typer
import typer.main
import yaml

from holdfast.broker.peers.tls import PeerTls
from holdfast.cli.commands.root import COMMAND_LINE_ERROR, make_app
from holdfast.cli.main import main
from holdfast.serving.tls import ServerTls
from tests.acceptance.running import REPO
from tools.manifests.objects import MADE_ELSEWHERE, Manifests, command_of, hook_command, load
from tools.manifests.rendering import OVERLAYS, RENDERED, has_kubectl, render_folder
from tools.manifests.rules import findings

PAGE = (REPO / "docs" / "kubernetes.md").read_text(encoding="utf-8")
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
PROGRAMS = {"docker", "holdfast", "kind", "kubectl", "python"}
KINDS = {"cronjob": "CronJob", "deploy": "Deployment", "job": "Job", "statefulset": "StatefulSet"}


def blocks(language: str) -> list[str]:
    return [text for found, text in BLOCK.findall(PAGE) if found == language]


LINES = [line for block in blocks("sh") for line in block.splitlines()]


@cache
def manifests(overlay: str) -> Manifests:
    return load((RENDERED / f"{overlay}.yaml").read_text(encoding="utf-8"))


@cache
def commands() -> typer.core.TyperGroup | typer.core.TyperCommand:
    return typer.main.get_command(make_app())  # type: ignore[return-value]


def check_command(words: list[str]) -> None:
    """Raises if `holdfast` does not have this command with these options."""
    command = commands()
    rest = words[1:]
    while isinstance(command, typer.core.TyperGroup):
        assert rest, f"{shlex.join(words)}: a command is missing"
        assert rest[0] in command.commands, f"{shlex.join(words)}: there is no {rest[0]}"
        command, rest = command.commands[rest[0]], rest[1:]  # type: ignore[assignment]
    try:
        command.make_context(words[0], rest)
    except COMMAND_LINE_ERROR as error:
        raise AssertionError(f"{shlex.join(words)}: {error}") from error


def commands_of_manifests() -> list[list[str]]:
    """What containers and hooks run, each once."""
    found: list[list[str]] = []
    for overlay in OVERLAYS:
        every = manifests(overlay)
        for workload in every.workloads:
            fields = {"metadata.name": f"{workload.name}-0", "metadata.namespace": "n", "spec.nodeName": "machine"}
            for container in workload.containers:
                environment = every.environment(container, fields, "secret")
                found += [command_of(container, environment), hook_command(container, environment)]
    ours = [words for words in found if words[:1] == ["holdfast"]]
    return [words for index, words in enumerate(ours) if words not in ours[:index]]


@pytest.mark.parametrize("words", commands_of_manifests(), ids=shlex.join)
def test_every_command_of_the_manifests_exists(words: list[str]) -> None:
    check_command(words)


def test_a_command_that_does_not_exist_is_noticed() -> None:
    check_command(["holdfast", "cluster", "init", "--shards", "3"])
    for wrong in (["nodes", "ls"], ["cluster", "init"], ["broker", "--port", "x"], ["router", "--zone", "a"]):
        with pytest.raises(AssertionError):
            check_command(["holdfast", *wrong])


@pytest.mark.parametrize("line", LINES)
def test_every_line_names_what_there_is(line: str) -> None:
    words = shlex.split(line)
    assert words[0] in PROGRAMS
    if words[0] == "holdfast":
        check_command(words)
    if words[0] != "kubectl":
        return
    if "--" in words:
        check_command(words[words.index("--") + 1 :])
    namespace = words[words.index("-n") + 1] if "-n" in words else "holdfast"
    given = manifests("dev" if namespace == "holdfast-dev" else "production")
    for kind, name in re.findall(r"\b(cronjob|deploy|job|statefulset)/(?!k8s|backup-now)([\w-]+)", line):
        assert given.find(KINDS[kind], name) is not None, name
    for claim in re.findall(r"\bdata-([\w-]+)-\d\b", line):
        brokers = given.find("StatefulSet", claim)
        assert brokers is not None
        assert brokers.spec["volumeClaimTemplates"][0]["metadata"]["name"] == "data"
    for path in re.findall(r"\bdeploy/k8s/\S+", line):
        assert (REPO / path).is_dir()


def test_the_secrets_of_the_page_are_those_that_pods_need() -> None:
    needed = {
        name.removeprefix(MADE_ELSEWHERE): set(keys.split())
        for overlay in ("production", "production-secrets")
        for workload in manifests(overlay).workloads
        for name, keys in (workload.body["metadata"].get("annotations") or {}).items()
        if name.startswith(MADE_ELSEWHERE)
    }
    made = {
        found[1]: set(re.findall(r"--from-(?:literal|file)=([\w.]+)", line))
        for line in LINES
        if (found := re.search(r"create secret generic ([\w-]+)", line))
    }
    assert made == needed
    rows = re.findall(r"^\| `(holdfast-[\w-]+)` \| ([^|]+) \|", PAGE, re.MULTILINE)
    shown = {name: set(re.findall(r"`([^`]+)`", keys)) for name, keys in rows}
    assert shown == needed


def test_every_alert_is_on_the_page() -> None:
    groups = [group for item in manifests("production").of("PrometheusRule") for group in item.spec["groups"]]
    alerts = {rule["alert"] for group in groups for rule in group["rules"]}
    assert {name for name in re.findall(r"`(Holdfast\w+)`", PAGE) if name.startswith("Holdfast")} == alerts


def test_the_pod_that_recovers_has_a_broker_s_data_and_rights() -> None:
    pod = yaml.safe_load(blocks("yaml")[-1])
    kubernetes_validate.validate(pod, "1.35", strict=True)
    brokers = manifests("production").find("StatefulSet", "holdfast-broker")
    assert brokers is not None
    [container], own = pod["spec"]["containers"], brokers.pod["securityContext"]
    assert pod["spec"]["securityContext"].items() <= own.items()
    assert container["securityContext"] == brokers.containers[-1].body["securityContext"]
    mounts = {mount["name"]: mount["mountPath"] for mount in brokers.containers[-1].body["volumeMounts"]}
    assert {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}.items() <= mounts.items()


def test_certificates_made_by_hand_fit_the_brokers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for line in LINES:
        if line.startswith("holdfast certs"):
            assert main(shlex.split(line)[1:]) == 0
    assert main(["certs", "ls", "--json"]) == 0
    listed = json.loads(capsys.readouterr().out.splitlines()[-1])["certificates"]
    hosts = {Path(item["certificate"]).name: item["hosts"] for item in listed}
    secrets = {
        found[1]: {key: Path(path) for key, path in re.findall(r"--from-file=([\w.]+)=(\S+)", line)}
        for line in LINES
        if (found := re.search(r"create secret generic (holdfast-(?:broker|router|client|peer)-tls)", line))
    }
    for files in secrets.values():
        ServerTls(files["tls.crt"], files["tls.key"], files["ca.crt"], asks_callers=True).contexts()
    peer = secrets["holdfast-peer-tls"]
    PeerTls(peer["tls.crt"], peer["tls.key"], peer["ca.crt"]).contexts()
    brokers = manifests("production-secrets").find("StatefulSet", "holdfast-broker")
    assert brokers is not None
    for index in range(brokers.spec["replicas"]):
        assert f"holdfast-broker-{index}" in hosts[peer["tls.crt"].name]
        assert f"holdfast-broker-{index}.holdfast-broker" in hosts[secrets["holdfast-broker-tls"]["tls.crt"].name]


@pytest.mark.skipif(not has_kubectl(), reason="kubectl is not on PATH")
def test_overlays_of_ones_own_are_rendered_and_have_no_faults(tmp_path: Path) -> None:
    (tmp_path / "deploy").symlink_to(REPO / "deploy")
    (tmp_path / "my-overlay").mkdir()
    (tmp_path / "restoring").mkdir()
    own, restoring, _ = blocks("yaml")
    (tmp_path / "my-overlay" / "kustomization.yaml").write_text(own)
    (tmp_path / "restoring" / "kustomization.yaml").write_text(restoring)
    mine = load(render_folder(tmp_path / "my-overlay"))
    assert findings(mine) == []
    assert findings(load(render_folder(tmp_path / "restoring"))) == []
    assert {container.body["image"] for workload in mine.workloads for container in workload.containers} == {
        "registry.internal/holdfast:0.1.0"
    }
