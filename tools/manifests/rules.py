"""What must hold in rendered manifests, and no schema can say. Each rule yields sentences that name the object, what is
wrong, and what was expected."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from holdfast.broker.config import BrokerConfig
from holdfast.broker.config import load_config as load_broker
from holdfast.broker.node import STOP_SECONDS_MAX as BROKER_STOP_SECONDS_MAX
from holdfast.cli.commands.worker import GRACE_S as WORKER_GRACE_S
from holdfast.cli.times import timeout_s
from holdfast.rebalancer.config import RebalancerConfig
from holdfast.rebalancer.config import load_config as load_rebalancer
from holdfast.router.config import RouterConfig
from holdfast.router.config import load_config as load_router
from holdfast.router.server import STOP_SECONDS_MAX as ROUTER_STOP_SECONDS_MAX
from holdfast.serving.settings import ENV_PREFIX, ConfigError
from tools.manifests.objects import (
    MADE_ELSEWHERE,
    Container,
    Manifest,
    Manifests,
    claim_at,
    command_of,
    hook_command,
    mounted_at,
    references,
)

Rule = Callable[[Manifests], Iterator[str]]

# What every server answers, and what may ask it: a restart helps a process, not what is around it.
_PROBED = {"startupProbe": "/livez", "livenessProbe": "/livez", "readinessProbe": "/readyz"}
_EVERYWHERE = ("kube-root-ca.crt",)  # a ConfigMap that Kubernetes puts into each namespace
_NOT_SETTINGS = ("HOLDFAST_ADDRESS",)
_SETTINGS = {
    "broker": frozenset(BrokerConfig.model_fields),
    "rebalance": frozenset(RebalancerConfig.model_fields),
    "router": frozenset(RouterConfig.model_fields),
}
_HUNG_S_MAX = 120
_SAMPLE_SECRET = "a-secret-of-at-least-thirty-two-characters"


def findings(manifests: Manifests) -> list[str]:
    return [finding for rule in RULES for finding in rule(manifests)]


def _holdfast(manifests: Manifests) -> Iterator[tuple[Container, list[str], dict[str, str]]]:
    """Containers that run `holdfast`, with its arguments and their environment; of a StatefulSet's first pod."""
    for workload in manifests.workloads:
        fields = {
            "metadata.name": f"{workload.name}-0",
            "metadata.namespace": workload.namespace,
            "spec.nodeName": "machine-1",
        }
        for container in workload.containers:
            environment = manifests.environment(container, fields, _SAMPLE_SECRET)
            words = command_of(container, environment)
            if words[0] == "holdfast":
                yield container, words[1:], environment


def probes_ask_what_is_answered(manifests: Manifests) -> Iterator[str]:
    for container, _, _ in _holdfast(manifests):
        for kind, probe in container.probes.items():
            asked = probe.get("httpGet") or {}
            if asked.get("path") != _PROBED[kind]:
                yield f"{container}: Expected {kind} to ask for {_PROBED[kind]}, but it asks for {asked.get('path')}."
            yield from _port_is_there(container, kind, asked.get("port"))


def servers_are_probed(manifests: Manifests) -> Iterator[str]:
    for container, words, _ in _holdfast(manifests):
        if words[0] in _SETTINGS:
            for kind in sorted(_PROBED.keys() - container.probes.keys()):
                yield f"{container}: Expected a {kind}, but there is none."


def brokers_are_apart(manifests: Manifests) -> Iterator[str]:
    """Replicas of a shard must not be lost together: by a machine, by a zone, or by whoever takes pods away."""
    for container, words, _ in _holdfast(manifests):
        if words[0] != "broker":
            continue
        workload = container.workload
        if "kubernetes.io/hostname" not in _kept_apart_by(workload):
            yield f"{workload}: Expected podAntiAffinity by kubernetes.io/hostname, but there is none."
        spread = [item["topologyKey"] for item in workload.pod.get("topologySpreadConstraints", ())]
        if "topology.kubernetes.io/zone" not in spread:
            yield f"{workload}: Expected to be spread by topology.kubernetes.io/zone, but it is not."
        budgets = [
            budget.spec.get("maxUnavailable")
            for budget in manifests.of("PodDisruptionBudget")
            if workload in manifests.selected(budget.spec["selector"])
        ]
        if budgets != [1]:
            yield f"{workload}: Expected one PodDisruptionBudget with maxUnavailable 1, but got {budgets}."


def others_are_spread(manifests: Manifests) -> Iterator[str]:
    """Of routers and rebalancers one is to be left when a machine or a zone is lost."""
    for container, words, _ in _holdfast(manifests):
        if words[0] not in ("router", "rebalance"):
            continue
        spread = [item["topologyKey"] for item in container.workload.pod.get("topologySpreadConstraints", ())]
        for key in ("kubernetes.io/hostname", "topology.kubernetes.io/zone"):
            if key not in spread:
                yield f"{container.workload}: Expected to be spread by {key}, but it is not."


def _kept_apart_by(workload: Manifest) -> list[str]:
    """Also where that is only preferred: a machine for trying things out may be the only one."""
    rules = (workload.pod.get("affinity") or {}).get("podAntiAffinity") or {}
    required = rules.get("requiredDuringSchedulingIgnoredDuringExecution", ())
    preferred = rules.get("preferredDuringSchedulingIgnoredDuringExecution", ())
    return [term["topologyKey"] for term in (*required, *(item["podAffinityTerm"] for item in preferred))]


def hung_brokers_end_soon(manifests: Manifests) -> Iterator[str]:
    """preStop runs also where a probe has failed, and a broker that hangs can hand over nothing."""
    for container, words, environment in _holdfast(manifests):
        if words[0] != "broker":
            continue
        hook = hook_command(container, environment)
        if hook and hook[:3] != ["holdfast", "node", "handover"]:
            yield f"{container}: Expected preStop to run `holdfast node handover`, but it runs {' '.join(hook)}."
        for kind in ("startupProbe", "livenessProbe"):
            own_s = container.probes.get(kind, {}).get("terminationGracePeriodSeconds")
            if own_s is None or own_s > _HUNG_S_MAX:
                yield (
                    f"{container}: Expected terminationGracePeriodSeconds of at most {_HUNG_S_MAX} in its {kind}, but "
                    f"it is {own_s}."
                )


def _port_is_there(container: Container, what: str, port: Any) -> Iterator[str]:
    if port not in container.ports and port not in container.ports.values():
        yield f"{container}: Expected {what} to use one of the ports {', '.join(container.ports)}, but got {port}."


def references_lead_somewhere(manifests: Manifests) -> Iterator[str]:
    for workload in manifests.workloads:
        for needed in references(workload):
            keys = _keys_of(manifests, workload, needed.kind, needed.name)
            if keys is None:
                yield (
                    f"{workload}: Expected {needed.kind} {needed.name} among the manifests, from a Certificate, or in "
                    f"an annotation {MADE_ELSEWHERE}{needed.name}, but it is nowhere."
                )
                continue
            shown = " ".join(sorted(keys))
            for key in needed.keys:
                if key not in keys:
                    yield f"{workload}: Expected {needed.kind} {needed.name} to have {key}, but it has {shown}."


def _keys_of(manifests: Manifests, workload: Manifest, kind: str, name: str) -> set[str] | None:
    """None if there is no such thing."""
    found = manifests.find(kind, name)
    if found is not None:
        return {*found.body.get("data", {}), *found.body.get("stringData", {})}
    if kind == "ConfigMap":
        return {"ca.crt"} if name in _EVERYWHERE else None
    if any(item.spec["secretName"] == name for item in manifests.of("Certificate")):
        return {"ca.crt", "tls.crt", "tls.key"}
    stated = (workload.body["metadata"].get("annotations") or {}).get(MADE_ELSEWHERE + name)
    return None if stated is None else set(stated.split())


def volumes_are_there(manifests: Manifests) -> Iterator[str]:
    for workload in manifests.workloads:
        claims = [claim["metadata"]["name"] for claim in workload.spec.get("volumeClaimTemplates", ())]
        names = {*claims, *(volume["name"] for volume in workload.pod.get("volumes", ()))}
        for container in workload.containers:
            for mount in container.body.get("volumeMounts", ()):
                if mount["name"] not in names:
                    yield f"{container}: Expected the volume {mount['name']} of a mount, but there is none."
        for volume in workload.pod.get("volumes", ()):
            claim = (volume.get("persistentVolumeClaim") or {}).get("claimName")
            if claim is not None and manifests.find("PersistentVolumeClaim", claim) is None:
                yield f"{workload}: Expected PersistentVolumeClaim {claim} among the manifests, but it is not there."
    for container, words, environment in _holdfast(manifests):
        if words[:1] == ["broker"]:
            data_dir = environment.get("HOLDFAST_DATA_DIR", "")
            claims = [claim["metadata"]["name"] for claim in container.workload.spec.get("volumeClaimTemplates", ())]
            if mounted_at(container, data_dir) not in claims:
                yield f"{container}: Expected HOLDFAST_DATA_DIR in a volume claim of the pod, but it is {data_dir!r}."


def files_are_mounted(manifests: Manifests) -> Iterator[str]:
    for container, words, environment in _holdfast(manifests):
        for field in _SETTINGS.get(words[0], ()):
            name = f"{ENV_PREFIX}{field.upper()}"
            path = environment.get(name, "")
            if path.startswith("/") and mounted_at(container, path) is None:
                yield f"{container}: Expected {path} of {name} in a mounted volume, but it is in none."


def settings_are_accepted(manifests: Manifests) -> Iterator[str]:
    """The product reads them, so that it refuses here what it would refuse in the cluster."""
    for container, words, environment in _holdfast(manifests):
        if words[0] not in _SETTINGS:
            continue
        for name in environment:
            field = name.removeprefix(ENV_PREFIX).lower()
            if name.startswith(ENV_PREFIX) and name not in _NOT_SETTINGS and field not in _SETTINGS[words[0]]:
                yield f"{container}: Expected the name of a setting of `holdfast {words[0]}`, but got {name}."
        try:
            _load(words[0], environment)
        except ConfigError as error:
            yield from (f"{container}: {problem}" for problem in error.problems)


def _load(server: str, environment: Mapping[str, str]) -> None:
    if server == "broker":
        load_broker(None, {}, environment)
    elif server == "router":
        load_router(None, {}, environment)
    else:
        load_rebalancer(None, {}, environment)


def service_links_are_off(manifests: Manifests) -> Iterator[str]:
    for container, _, _ in _holdfast(manifests):
        if container.workload.pod.get("enableServiceLinks") is not False:
            yield (
                f"{container}: Expected enableServiceLinks: false, because a Service named holdfast would become the "
                "setting HOLDFAST_PORT."
            )


def stops_have_time(manifests: Manifests) -> Iterator[str]:
    """SIGKILL must not come while a server or a worker does what it was asked to."""
    for container, words, environment in _holdfast(manifests):
        if words[0] not in ("broker", "router", "worker"):
            continue
        hook = hook_command(container, environment)
        if not hook and words[0] != "worker":
            yield f"{container}: Expected a preStop hook, but there is none."
            continue
        patience_s = int(hook[1]) if hook[:1] == ["sleep"] else _seconds(hook, "--wait") + _seconds(hook, "--timeout")
        stop_s = _seconds(words, "--grace", WORKER_GRACE_S) if words[0] == "worker" else stop_seconds(words[0])
        needed_s = patience_s + stop_s
        grace_s = container.workload.pod.get("terminationGracePeriodSeconds", 30)
        if grace_s < needed_s:
            yield (
                f"{container}: Expected terminationGracePeriodSeconds of at least {needed_s}, the {patience_s} s of "
                f"preStop and what a stop may take, but it is {grace_s}."
            )


def _seconds(words: Sequence[str], option: str, default: float = 0) -> int:
    return math.ceil(timeout_s(words[words.index(option) + 1]) if option in words else default)


def stop_seconds(server: str) -> int:
    """After which a server that cannot stop in order ends itself: see `ask_to_stop` of both."""
    if server == "broker":
        return int(3 * BrokerConfig().shutdown_grace_seconds + BROKER_STOP_SECONDS_MAX)
    return int(2 * RouterConfig().shutdown_grace_seconds + ROUTER_STOP_SECONDS_MAX)


def pods_have_few_rights(manifests: Manifests) -> Iterator[str]:
    for workload in manifests.workloads:
        pod = workload.pod.get("securityContext") or {}
        wanted: Mapping[str, Any] = {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}
        yield from _differences(workload, "securityContext", wanted, pod)
        if workload.pod.get("automountServiceAccountToken") is not False:
            yield f"{workload}: Expected automountServiceAccountToken: false, but pods get a token."
        for container in workload.containers:
            given = container.body.get("securityContext") or {}
            wanted = {
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["ALL"]},
            }
            yield from _differences(container, "securityContext", wanted, given)
            if not (container.body.get("resources") or {}).get("limits", {}).get("memory"):
                yield f"{container}: Expected a limit of memory, but there is none."


def _differences(where: object, what: str, wanted: Mapping[str, Any], given: Mapping[str, Any]) -> Iterator[str]:
    for name, value in wanted.items():
        if given.get(name) != value:
            yield f"{where}: Expected {what}.{name} to be {value}, but it is {given.get(name)}."


def images_are_pinned(manifests: Manifests) -> Iterator[str]:
    for workload in manifests.workloads:
        for container in workload.containers:
            _, _, tag = str(container.body["image"]).rpartition("/")[2].partition(":")
            if not tag or tag == "latest":
                yield f"{container}: Expected an image with a version, but got {container.body['image']}."


def selectors_find_pods(manifests: Manifests) -> Iterator[str]:
    for workload in manifests.of("StatefulSet", "Deployment"):
        if workload not in manifests.selected(workload.spec["selector"]):
            yield f"{workload}: Expected its selector to take its own pods, but it does not."
    for service in manifests.of("Service"):
        taken = manifests.selected(service.spec["selector"])
        ports = {name for item in taken for container in item.containers for name in container.ports}
        for port in service.spec["ports"]:
            if port["targetPort"] not in ports:
                yield f"{service}: Expected a port {port['targetPort']} of the pods that it selects, but there is none."
    for budget in manifests.of("PodDisruptionBudget"):
        if len(manifests.selected(budget.spec["selector"])) != 1:
            yield f"{budget}: Expected to protect the pods of one workload, but it does not."
    for policy in manifests.of("NetworkPolicy"):
        taken = manifests.selected(policy.spec["podSelector"])
        ports = {name for item in taken for container in item.containers for name in container.ports}
        for rule in policy.spec.get("ingress", ()):
            for port in rule.get("ports", ()):
                if port["port"] not in ports:
                    yield f"{policy}: Expected a port {port['port']} of the pods that it protects, but there is none."
        yield from _ways_out_lead_somewhere(manifests, policy)


def _ways_out_lead_somewhere(manifests: Manifests, policy: Manifest) -> Iterator[str]:
    """Those to pods; where other addresses lead nobody knows here."""
    for rule in policy.spec.get("egress", ()):
        selectors = [peer["podSelector"] for peer in rule.get("to", ()) if "podSelector" in peer]
        containers = [
            container for found in map(manifests.selected, selectors) for one in found for container in one.containers
        ]
        ports = {port for container in containers for pair in container.ports.items() for port in pair}
        for port in rule.get("ports", ()) if selectors else ():
            if port["port"] not in ports:
                yield f"{policy}: Expected a port {port['port']} of the pods that it leads to, but there is none."


def etcd_is_within_reach(manifests: Manifests) -> Iterator[str]:
    """By its port: what the names of the endpoints lead to nobody knows here."""
    for container, words, environment in _holdfast(manifests):
        if words[0] not in _SETTINGS:
            continue
        policies = [
            policy
            for policy in manifests.of("NetworkPolicy")
            if "Egress" in policy.spec["policyTypes"]
            and container.workload in manifests.selected(policy.spec["podSelector"])
        ]
        ports = {
            port["port"] for policy in policies for rule in policy.spec.get("egress", ()) for port in rule["ports"]
        }
        for endpoint in environment.get("HOLDFAST_ETCD_ENDPOINTS", "").split(","):
            port = endpoint.rpartition(":")[2]
            if policies and port.isdecimal() and int(port) not in ports:
                yield f"{container}: Expected a NetworkPolicy with a way out to port {port} of etcd, but there is none."


def nodes_are_found_by_name(manifests: Manifests) -> Iterator[str]:
    """A broker's address is that of its pod behind the headless Service, also while it is not ready."""
    for container, words, environment in _holdfast(manifests):
        if words[0] != "broker":
            continue
        workload = container.workload
        service = manifests.find("Service", workload.spec["serviceName"])
        if service is None or service.spec.get("clusterIP") != "None":
            yield f"{workload}: Expected a headless Service {workload.spec['serviceName']}, but there is none."
        elif not service.spec.get("publishNotReadyAddresses"):
            yield f"{service}: Expected publishNotReadyAddresses, because brokers meet before they serve."
        host = f"{workload.name}-0.{workload.spec['serviceName']}.{workload.namespace}.svc"
        for setting, port in (("HOLDFAST_ADVERTISE_ADDRESS", "grpc"), ("HOLDFAST_ADVERTISE_PEER_ADDRESS", "peers")):
            wanted = f"{host}:{container.ports.get(port)}"
            if environment.get(setting) != wanted:
                yield f"{container}: Expected {setting} to be {wanted}, but it is {environment.get(setting)}."
        yield from _replicas_fit(manifests, workload)


def _replicas_fit(manifests: Manifests, workload: Manifest) -> Iterator[str]:
    pods = [f"{workload.name}-{ordinal}" for ordinal in range(workload.spec["replicas"])]
    used = {reference.name for reference in references(workload)}
    for certificate in manifests.of("Certificate"):
        missing = [name for name in pods if name not in certificate.spec.get("dnsNames", pods)]
        if certificate.spec["secretName"] in used and missing:
            yield f"{certificate}: Expected a name for each broker in dnsNames, but {', '.join(missing)} are missing."


def commands_are_complete(manifests: Manifests) -> Iterator[str]:
    for container, words, _ in _holdfast(manifests):
        for word in words:
            if "$(" in word:
                yield f"{container}: Expected a variable for {word} of its command, but there is none."


def backups_are_kept(manifests: Manifests) -> Iterator[str]:
    """What is written into a pod's own file system, or with a key that is only there, is no backup."""
    for container, words, _ in _holdfast(manifests):
        if words[0] != "backup":
            continue
        command = " ".join(words[:2])
        target = next(iter(words[2:]), "")
        if not target.startswith("s3://") and claim_at(container, target) is None:
            yield f"{container}: Expected the target of `{command}` in S3 or on a claim, but it is {target!r}."
        key = words[words.index("--encrypt") + 1] if "--encrypt" in words else ""
        if key and mounted_at(container, key) is None:
            yield f"{container}: Expected {key} of --encrypt in a mounted volume, but it is in none."
        beside = [given[2:3] for other, given, _ in _holdfast(manifests) if other.workload is container.workload]
        if any(other != [target] for other in beside):
            yield f"{container}: Expected all containers of its pod to have the target {target}, but one has another."


def regular_jobs_are_bounded(manifests: Manifests) -> Iterator[str]:
    """Otherwise they pile up: jobs that hang, jobs that fail, and what is left of them."""
    for workload in manifests.of("CronJob"):
        yield from _differences(workload, "spec", {"concurrencyPolicy": "Forbid"}, workload.spec)
        job = "jobTemplate.spec."
        given = {**workload.spec, **{f"{job}{name}": value for name, value in workload.job.items()}}
        bounds = ("startingDeadlineSeconds", f"{job}activeDeadlineSeconds", f"{job}backoffLimit")
        for bound in (*bounds, "successfulJobsHistoryLimit", "failedJobsHistoryLimit"):
            if bound not in given:
                yield f"{workload}: Expected a bound {bound}, but there is none."


RULES: tuple[Rule, ...] = (
    probes_ask_what_is_answered,
    servers_are_probed,
    brokers_are_apart,
    others_are_spread,
    hung_brokers_end_soon,
    references_lead_somewhere,
    volumes_are_there,
    files_are_mounted,
    settings_are_accepted,
    service_links_are_off,
    stops_have_time,
    pods_have_few_rights,
    images_are_pinned,
    selectors_find_pods,
    etcd_is_within_reach,
    nodes_are_found_by_name,
    commands_are_complete,
    backups_are_kept,
    regular_jobs_are_bounded,
)
