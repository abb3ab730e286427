"""Manifests as Python objects. The only file that knows YAML."""

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import yaml

WORKLOADS = ("StatefulSet", "Deployment", "DaemonSet", "Job", "CronJob")
MADE_ELSEWHERE = "secret-made-elsewhere/"  # with a Secret's name after it: an annotation whose value are its keys

_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # the one in C is ten times faster, and not everywhere
_REFERENCE = re.compile(r"\$\(([A-Za-z_][A-Za-z0-9_]*)\)")


@dataclass(frozen=True, slots=True)
class Manifest:
    """One object as it is sent to a cluster."""

    body: Mapping[str, Any]

    @property
    def kind(self) -> str:
        return str(self.body["kind"])

    @property
    def name(self) -> str:
        return str(self.body["metadata"]["name"])

    @property
    def namespace(self) -> str:
        return str(self.body["metadata"].get("namespace", ""))

    @property
    def spec(self) -> Mapping[str, Any]:
        return self.body.get("spec") or {}

    @property
    def job(self) -> Mapping[str, Any]:
        """The spec of a CronJob's jobs."""
        return self.spec["jobTemplate"]["spec"]  # type: ignore[no-any-return]

    @property
    def template(self) -> Mapping[str, Any]:
        """Of a workload's pods."""
        return (self.job if self.kind == "CronJob" else self.spec)["template"]  # type: ignore[no-any-return]

    @property
    def pod(self) -> Mapping[str, Any]:
        """The spec of a workload's pods."""
        return self.template["spec"]  # type: ignore[no-any-return]

    @property
    def labels(self) -> Mapping[str, str]:
        """Of a workload's pods."""
        return self.template["metadata"].get("labels", {})  # type: ignore[no-any-return]

    @property
    def containers(self) -> list["Container"]:
        every = [*self.pod.get("initContainers", ()), *self.pod["containers"]]
        return [Container(self, body) for body in every]

    def __str__(self) -> str:
        return f"{self.kind} {self.name}"


@dataclass(frozen=True, slots=True)
class Container:
    workload: Manifest
    body: Mapping[str, Any]

    @property
    def name(self) -> str:
        return str(self.body["name"])

    @property
    def ports(self) -> dict[str, int]:
        return {port["name"]: port["containerPort"] for port in self.body.get("ports", ())}

    @property
    def probes(self) -> dict[str, Mapping[str, Any]]:
        kinds = ("startupProbe", "livenessProbe", "readinessProbe")
        return {kind: self.body[kind] for kind in kinds if kind in self.body}

    @property
    def pre_stop(self) -> Mapping[str, Any]:
        return (self.body.get("lifecycle") or {}).get("preStop") or {}

    def __str__(self) -> str:
        return f"{self.workload}, container {self.name}"


@dataclass(frozen=True, slots=True)
class Reference:
    """A Secret or a ConfigMap that a pod needs, and the keys that it needs of it."""

    kind: str
    name: str
    keys: tuple[str, ...] = ()


class Manifests:
    """All objects of one overlay."""

    def __init__(self, bodies: Sequence[Mapping[str, Any]]) -> None:
        self.all = [Manifest(body) for body in bodies]

    def of(self, *kinds: str) -> list[Manifest]:
        return [manifest for manifest in self.all if manifest.kind in kinds]

    def find(self, kind: str, name: str) -> Manifest | None:
        return next((item for item in self.of(kind) if item.name == name), None)

    @property
    def workloads(self) -> list[Manifest]:
        return self.of(*WORKLOADS)

    def selected(self, selector: Mapping[str, Any]) -> list[Manifest]:
        """Workloads whose pods a selector, of a Service or with matchLabels and matchExpressions, takes."""
        return [workload for workload in self.workloads if _matches(selector, workload.labels)]

    def environment(self, container: Container, fields: Mapping[str, str], secret: str = "") -> dict[str, str]:
        """What a container sees. `fields`: what the downward API says of its pod; `secret` stands for every Secret."""
        found: dict[str, str] = {}
        for source in container.body.get("envFrom", ()):
            config = self.find("ConfigMap", source["configMapRef"]["name"])
            found |= {} if config is None else config.body["data"]
        for variable in container.body.get("env", ()):
            origin = variable.get("valueFrom")
            if origin is None:
                value = expand(variable.get("value", ""), found)
            else:
                value = fields[origin["fieldRef"]["fieldPath"]] if "fieldRef" in origin else secret
            found[variable["name"]] = value
        return found


def load(text: str) -> Manifests:
    return Manifests([body for body in yaml.load_all(text, _LOADER) if body])


def expand(text: str, environment: Mapping[str, str]) -> str:
    """`$(NAME)` as Kubernetes puts it in: by variables that stand before it; an unknown one stays as it is."""
    return _REFERENCE.sub(lambda found: environment.get(found[1], found[0]), text)


def references(workload: Manifest) -> Iterator[Reference]:
    """Secrets and ConfigMaps without which its pods do not start."""
    for container in workload.containers:
        for source in container.body.get("envFrom", ()):
            for field, kind in (("configMapRef", "ConfigMap"), ("secretRef", "Secret")):
                if field in source and not source[field].get("optional"):
                    yield Reference(kind, source[field]["name"])
        for variable in container.body.get("env", ()):
            origin = variable.get("valueFrom") or {}
            for field, kind in (("configMapKeyRef", "ConfigMap"), ("secretKeyRef", "Secret")):
                if field in origin and not origin[field].get("optional"):
                    yield Reference(kind, origin[field]["name"], (origin[field]["key"],))
    for volume in workload.pod.get("volumes", ()):
        yield from _of_volume(volume)


def _of_volume(volume: Mapping[str, Any]) -> Iterator[Reference]:
    sources = [volume, *(volume.get("projected") or {}).get("sources", ())]
    for source in sources:
        for field, kind, named in (("configMap", "ConfigMap", "name"), ("secret", "Secret", "secretName")):
            body = source.get(field)
            if body is not None and not body.get("optional"):
                keys = tuple(item["key"] for item in body.get("items", ()))
                yield Reference(kind, body.get(named) or body["name"], keys)


def mounted_at(container: Container, path: str) -> str | None:
    """The name of the volume that has this path."""
    found = [
        (mount["mountPath"], mount["name"])
        for mount in container.body.get("volumeMounts", ())
        if path == mount["mountPath"] or path.startswith(mount["mountPath"] + "/")
    ]
    return max(found)[1] if found else None


def claim_at(container: Container, path: str) -> str | None:
    """The name of the claim that a path is on; None if what is written there goes with the pod."""
    name = mounted_at(container, path)
    for volume in container.workload.pod.get("volumes", ()):
        if volume["name"] == name and "persistentVolumeClaim" in volume:
            return str(volume["persistentVolumeClaim"]["claimName"])
    return None


def command_of(container: Container, environment: Mapping[str, str]) -> list[str]:
    """What runs in it; the image's own command is `holdfast`."""
    words = [*container.body.get("command", ["holdfast"]), *container.body.get("args", ())]
    return [expand(word, environment) for word in words]


def hook_command(container: Container, environment: Mapping[str, str]) -> list[str]:
    """What preStop runs; `sh -c 'exec …'` is looked into."""
    words = list((container.pre_stop.get("exec") or {}).get("command", ()))
    if words[:2] != ["sh", "-c"]:
        return words
    inside = shlex.split(words[2])
    named = re.compile(r"\$(\w+)")
    return [named.sub(lambda found: environment.get(found[1], ""), word) for word in inside if word != "exec"]


def _matches(selector: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    if "matchLabels" not in selector and "matchExpressions" not in selector:
        return bool(selector) and selector.items() <= labels.items()
    return selector.get("matchLabels", {}).items() <= labels.items() and all(
        labels.get(rule["key"]) in rule["values"] for rule in selector.get("matchExpressions", ())
    )
