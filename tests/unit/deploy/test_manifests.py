"""deploy/k8s: the rendered manifests are those of the sources, valid for Kubernetes, and hold what no schema knows."""

import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from copy import deepcopy
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import kubernetes_validate
import pytest
import yaml

from tools.manifests.objects import Manifest, Manifests, load
from tools.manifests.rendering import DEPLOY, OVERLAYS, RENDERED, has_kubectl, render, render_folder
from tools.manifests.rules import RULES, findings

KUBERNETES_VERSIONS = ("1.33", "1.35", "1.37")
# Kinds of other projects, whose schemas kubernetes-validate does not have.
OTHERS = {
    "Certificate": "cert-manager.io/v1", "Issuer": "cert-manager.io/v1", "PodMonitor": "monitoring.coreos.com/v1",
    "PrometheusRule": "monitoring.coreos.com/v1", "ScaledObject": "keda.sh/v1alpha1",
    "ServiceMonitor": "monitoring.coreos.com/v1",
}  # fmt: skip

Bodies = list[dict[str, Any]]


def rendered(overlay: str) -> str:
    return (RENDERED / f"{overlay}.yaml").read_text(encoding="utf-8")


@cache
def loaded(overlay: str) -> Manifests:
    return load(rendered(overlay))


def bodies(overlay: str) -> Bodies:
    """To be changed as one likes."""
    return [deepcopy(dict(manifest.body)) for manifest in loaded(overlay).all]


def find(given: Bodies, kind: str, name: str) -> dict[str, Any]:
    return next(body for body in given if (body["kind"], body["metadata"]["name"]) == (kind, name))


def container(given: Bodies, kind: str, name: str) -> dict[str, Any]:
    found: dict[str, Any] = find(given, kind, name)["spec"]["template"]["spec"]["containers"][0]
    return found


def test_every_overlay_is_rendered() -> None:
    assert sorted(path.name for path in (DEPLOY / "k8s" / "overlays").iterdir()) == sorted(OVERLAYS)
    assert sorted(path.stem for path in RENDERED.iterdir()) == sorted(OVERLAYS)


@pytest.mark.skipif(not has_kubectl(), reason="kubectl is not on PATH; what is committed is checked all the same")
@pytest.mark.parametrize("overlay", OVERLAYS)
def test_what_is_committed_is_what_kustomize_makes(overlay: str) -> None:
    assert rendered(overlay) == render(overlay), "out of date: run `make render`"


@pytest.fixture(scope="module")
def _schemas_are_read_once() -> Iterator[None]:
    """They are megabytes of JSON, which would be read again for each object."""
    read = kubernetes_validate.utils.schema_contents
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kubernetes_validate.utils, "schema_contents", cache(read))
        yield


@pytest.mark.usefixtures("_schemas_are_read_once")
@pytest.mark.parametrize("version", KUBERNETES_VERSIONS)
@pytest.mark.parametrize("overlay", OVERLAYS)
def test_kubernetes_takes_it(overlay: str, version: str) -> None:
    for body in bodies(overlay):
        if OTHERS.get(body["kind"]) != body["apiVersion"]:
            kubernetes_validate.validate(body, version, strict=True)


def test_the_schema_is_strict() -> None:
    body = find(bodies("dev"), "StatefulSet", "holdfast-broker")
    body["spec"]["template"]["spec"]["terminationGracePeriodSecond"] = 5
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(body, KUBERNETES_VERSIONS[-1], strict=True)


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_nothing_is_found_in_what_is_committed(overlay: str) -> None:
    assert findings(load(rendered(overlay))) == []


# --- mistakes, each of which one rule must name -----------------------------------------------------------------------


GONE = "GONE"  # what is left out
MORE = {"name": "more", "persistentVolumeClaim": {"claimName": "holdfast-more"}}
BROKER, ROUTER, REBALANCER = (
    "StatefulSet holdfast-broker",
    "Deployment holdfast-router",
    "Deployment holdfast-rebalancer",
)
BUDGET, BACKUP, SETTINGS = "PodDisruptionBudget holdfast-broker", "CronJob holdfast-backup", "ConfigMap holdfast-backup"
ABBREVIATED = {
    "POD": "spec template spec", "BOX": "spec template spec containers 0", "JOB": "spec jobTemplate spec template spec",
}  # fmt: skip


class Mistake(NamedTuple):
    manifest: str
    path: str  # word by word; + is one more of a list, and name=x the one of that name
    value: Any  # what is there instead
    finding: str

    def make(self, given: Bodies) -> None:
        body = find(given, *self.manifest.split())
        if not self.path:
            given.remove(body)
            return
        first, _, rest = self.path.partition(" ")
        *steps, last = f"{ABBREVIATED.get(first, first)} {rest}".split()
        inner: Any = body
        for step in steps:
            inner = inner[place_of(inner, step)]
        if last == "+":
            inner.append(self.value)
        elif self.value == GONE:
            del inner[place_of(inner, last)]
        else:
            inner[place_of(inner, last)] = self.value


def place_of(inner: Any, step: str) -> Any:
    if not isinstance(inner, list):
        return step
    _, _, name = step.partition("=")
    return next(index for index, item in enumerate(inner) if item["name"] == name) if name else int(step)


MISTAKES = {
    "broken_probe": Mistake(BROKER, "BOX livenessProbe httpGet path", "/healthz",
        "container broker: Expected livenessProbe to ask for /livez, but it asks for /healthz."),
    "liveness_by_readiness": Mistake(ROUTER, "BOX livenessProbe httpGet path", "/readyz",
        "container router: Expected livenessProbe to ask for /livez, but it asks for /readyz."),
    "broken_probe_port": Mistake(BROKER, "BOX readinessProbe httpGet port", 9999,
        "Expected readinessProbe to use one of the ports grpc, peers, ops, frames, but got 9999."),
    "no_probe": Mistake(REBALANCER, "BOX startupProbe", GONE,
        "container rebalancer: Expected a startupProbe, but there is none."),
    "patient_probe": Mistake(BROKER, "BOX livenessProbe terminationGracePeriodSeconds", GONE,
        "Expected terminationGracePeriodSeconds of at most 120 in its livenessProbe, but it is None."),
    "other_hook": Mistake(BROKER, "BOX lifecycle preStop exec command", ["sleep", "30"],
        "Expected preStop to run `holdfast node handover`, but it runs sleep 30."),
    "on_one_machine": Mistake(BROKER, "POD affinity", GONE,
        "holdfast-broker: Expected podAntiAffinity by kubernetes.io/hostname, but there is none."),
    "in_one_zone": Mistake(BROKER, "POD topologySpreadConstraints", [],
        "Expected to be spread by topology.kubernetes.io/zone, but it is not."),
    "rebalancers_anywhere": Mistake(REBALANCER, "POD topologySpreadConstraints", GONE,
        "holdfast-rebalancer: Expected to be spread by kubernetes.io/hostname, but it is not."),
    "etcd_at_another_port": Mistake("NetworkPolicy holdfast-to-etcd", "spec egress 0 ports 0 port", 12379,
        "broker: Expected a NetworkPolicy with a way out to port 2379 of etcd, but there is none."),
    "two_at_a_time": Mistake(BUDGET, "spec maxUnavailable", 2,
        "Expected one PodDisruptionBudget with maxUnavailable 1, but got [2]."),
    "missing_secret": Mistake(BROKER, "metadata annotations secret-made-elsewhere/holdfast-etcd", GONE,
        "StatefulSet holdfast-broker: Expected Secret holdfast-etcd among the manifests"),
    "missing_key": Mistake(BROKER, "metadata annotations secret-made-elsewhere/holdfast-etcd", "username",
        "Expected Secret holdfast-etcd to have password, but it has username."),
    "missing_certificate": Mistake("Certificate holdfast-peer-tls", "", GONE,
        "StatefulSet holdfast-broker: Expected Secret holdfast-peer-tls among the manifests"),
    "missing_settings": Mistake(ROUTER, "BOX envFrom 0 configMapRef name", "holdfast-cluster-gone",
        "Deployment holdfast-router: Expected ConfigMap holdfast-cluster-"),
    "data_outside_the_claim": Mistake(BROKER, "BOX volumeMounts name=data mountPath", "/elsewhere",
        "Expected HOLDFAST_DATA_DIR in a volume claim of the pod, but it is '/var/lib/holdfast/"),
    "unmounted_key": Mistake(BROKER, "BOX volumeMounts name=peer-tls", GONE,
        "Expected /etc/holdfast/peer-tls/tls.key of HOLDFAST_PEER_KEY in a mounted volume"),
    "unknown_volume": Mistake(ROUTER, "BOX volumeMounts 0 name", "nowhere",
        "Expected the volume nowhere of a mount, but there is none."),
    "misspelt_setting": Mistake(ROUTER, "BOX env +", {"name": "HOLDFAST_WAITS", "value": "5"},
        "Expected the name of a setting of `holdfast router`, but got HOLDFAST_WAITS."),
    "refused_setting": Mistake(BROKER, "BOX env +", {"name": "HOLDFAST_HEARTBEAT_MS", "value": "400"},
        "must be at least three times heartbeat_ms = 400"),
    "service_links": Mistake(BROKER, "POD enableServiceLinks", GONE, "Expected enableServiceLinks: false"),
    "short_grace": Mistake(BROKER, "POD terminationGracePeriodSeconds", 600,
        "Expected terminationGracePeriodSeconds of at least 960"),
    "no_hook": Mistake(ROUTER, "BOX lifecycle", GONE, "container router: Expected a preStop hook, but there is none."),
    "root": Mistake(REBALANCER, "POD securityContext runAsNonRoot", GONE,
        "Deployment holdfast-rebalancer: Expected securityContext.runAsNonRoot to be True, but it is None."),
    "writable_root": Mistake("Job holdfast-cluster-init", "BOX securityContext readOnlyRootFilesystem", False,
        "Expected securityContext.readOnlyRootFilesystem to be True, but it is False."),
    "any_version": Mistake(ROUTER, "BOX image", "registry.example.com:5000/holdfast",
        "Expected an image with a version, but got registry.example.com:5000/holdfast."),
    "service_of_nobody": Mistake("Service holdfast-router", "spec selector app.kubernetes.io/component", "routers",
        "Service holdfast-router: Expected a port grpc of the pods that it selects, but there is none."),
    "budget_of_nobody": Mistake(BUDGET, "spec selector matchLabels app.kubernetes.io/component", "brokers",
        "PodDisruptionBudget holdfast-broker: Expected to protect the pods of one workload"),
    "policy_of_no_port": Mistake("NetworkPolicy holdfast-brokers-to-brokers", "spec ingress 0 ports 0 port", "peer",
        "Expected a port peer of the pods that it protects, but there is none."),
    "other_address": Mistake(BROKER, "spec serviceName", "holdfast-router",
        "StatefulSet holdfast-broker: Expected a headless Service holdfast-router, but there is none."),
    "hidden_until_ready": Mistake("Service holdfast-broker", "spec publishNotReadyAddresses", GONE,
        "Service holdfast-broker: Expected publishNotReadyAddresses"),
    "more_brokers_than_names": Mistake(BROKER, "spec replicas", 10,
        "Expected a name for each broker in dnsNames, but holdfast-broker-9 are missing."),
    "backups_in_the_pod": Mistake(SETTINGS, "data BACKUP_TARGET", "/tmp/backups",
        "container create: Expected the target of `backup create` in S3 or on a claim, but it is '/"),
    "backups_nowhere": Mistake(SETTINGS, "data BACKUP_TARGET", GONE,
        "container prune: Expected a variable for $(BACKUP_TARGET) of its command, but there is none."),
    "others_pruned": Mistake(BACKUP, "JOB containers 0 args 2", "s3://example-backups/others",
        "container create: Expected all containers of its pod to have the target s3://example-backups/hold"),
    "unmounted_backup_key": Mistake(BACKUP, "JOB initContainers 0 volumeMounts name=backup-key", GONE,
        "create: Expected /etc/holdfast/backup-key/key of --encrypt in a mounted volume, but it is"),
    "missing_backup_key": Mistake(BACKUP, "metadata annotations secret-made-elsewhere/holdfast-backup-key", GONE,
        "CronJob holdfast-backup: Expected Secret holdfast-backup-key among the manifests"),
    "missing_claim": Mistake(BACKUP, "JOB volumes +", MORE,
        "CronJob holdfast-backup: Expected PersistentVolumeClaim holdfast-more among the manifests"),
    "backups_at_the_same_time": Mistake(BACKUP, "spec concurrencyPolicy", GONE,
        "CronJob holdfast-backup: Expected spec.concurrencyPolicy to be Forbid, but it is None."),
    "endless_backup": Mistake(BACKUP, "spec jobTemplate spec activeDeadlineSeconds", GONE,
        "Expected a bound jobTemplate.spec.activeDeadlineSeconds, but there is none."),
    "backup_as_root": Mistake(BACKUP, "JOB securityContext runAsNonRoot", GONE,
        "CronJob holdfast-backup: Expected securityContext.runAsNonRoot to be True, but it is None."),
    "way_to_no_port": Mistake("NetworkPolicy holdfast-backup", "spec egress 0 ports 0 port", 7401,
        "holdfast-backup: Expected a port 7401 of the pods that it leads to, but there is none."),
}  # fmt: skip


@pytest.mark.parametrize("mistake", MISTAKES.values(), ids=MISTAKES)
def test_a_mistake_is_named(mistake: Mistake) -> None:
    given = bodies("production")
    mistake.make(given)
    found = findings(Manifests(given))
    assert any(mistake.finding in finding for finding in found), found


@pytest.mark.parametrize("has_hook", [True, False])
def test_a_worker_has_time_for_its_tasks(has_hook: bool) -> None:
    given = bodies("example")
    find(given, "Deployment", "shop-worker")["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] = 29
    if not has_hook:
        del container(given, "Deployment", "shop-worker")["lifecycle"]
    needed = "80, the 50 s of preStop" if has_hook else "30, the 0 s of preStop"
    [finding] = findings(Manifests(given))
    assert f"Expected terminationGracePeriodSeconds of at least {needed}" in finding


def test_every_rule_has_found_something() -> None:
    """So that none of them is one that cannot fail."""
    silent = set(RULES)
    for mistake in MISTAKES.values():
        given = bodies("production")
        mistake.make(given)
        silent -= {rule for rule in RULES if list(rule(Manifests(given)))}
    assert silent == set()


def test_an_overlay_of_ones_own_can_be_checked(tmp_path: Path) -> None:
    given = bodies("dev")
    MISTAKES["broken_probe"].make(given)
    file = tmp_path / "mine.yaml"
    file.write_text(yaml.safe_dump_all(given))
    command = [sys.executable, "-m", "tools.manifests", "lint", str(file)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=DEPLOY.parent)
    assert done.returncode == 1
    assert done.stderr.splitlines() == [f"{file}: StatefulSet holdfast-broker, {MISTAKES['broken_probe'].finding}"]
    good = subprocess.run([*command[:-1], str(RENDERED / "dev.yaml")], check=False, cwd=DEPLOY.parent)
    assert good.returncode == 0


# --- what the manifests promise in words -------------------------------------------------------------------------


@pytest.mark.parametrize("overlay", ["dev", "production", "production-secrets"])
def test_brokers_start_at_once_and_are_replaced_one_by_one(overlay: str) -> None:
    given = bodies(overlay)
    brokers = find(given, "StatefulSet", "holdfast-broker")["spec"]
    assert (brokers["podManagementPolicy"], brokers["updateStrategy"]["type"]) == ("Parallel", "RollingUpdate")
    assert brokers["persistentVolumeClaimRetentionPolicy"] == {"whenDeleted": "Retain", "whenScaled": "Retain"}
    assert find(given, "PodDisruptionBudget", "holdfast-broker")["spec"]["maxUnavailable"] == 1
    hook = container(given, "StatefulSet", "holdfast-broker")["lifecycle"]["preStop"]["exec"]["command"]
    assert hook[2].startswith('exec holdfast node handover "$HOLDFAST_NODE_NAME" --wait ')


def test_a_shell_understands_the_hook() -> None:
    """Kubernetes puts no variables into hooks, so a shell has to; and what it runs must be in its place."""
    shell = shutil.which("sh")
    assert shell is not None
    hook = container(bodies("production"), "StatefulSet", "holdfast-broker")["lifecycle"]["preStop"]["exec"]["command"]
    shown = hook[2].replace("exec holdfast", "exec echo")
    done = subprocess.run([shell, "-c", shown], env={"HOLDFAST_NODE_NAME": "n 1", "PATH": "/bin:/usr/bin"},
                          capture_output=True, text=True, check=True)  # fmt: skip
    assert done.stdout == "node handover n 1 --wait 900\n"


# --- who may call whom ----------------------------------------------------------------------------------------------

Way = tuple[str, str, int]  # from the pods of a workload, to those of another one, at a port

ANYBODY = "anybody"
CLIENTS = "clients"
PROMETHEUS = "namespace monitoring"
SERVERS_TO_BROKERS = {
    (who, "broker", port) for who in ("broker", "router", "rebalancer", "cluster-init") for port in (7401, 7404)
}  # fmt: skip
INSIDE = {*SERVERS_TO_BROKERS, ("broker", "broker", 7402), *((CLIENTS, "router", port) for port in (7400, 7405))}
SCRAPED = {(PROMETHEUS, "broker", 7403), (PROMETHEUS, "router", 7480), (PROMETHEUS, "rebalancer", 7482)}
TO_ETCD = {(who, ANYBODY, 2379) for who in ("broker", "router", "rebalancer")}
TO_KUBERNETES = {("broker", ANYBODY, port) for port in (443, 6443)}
BACKED_UP = {("backup", "router", 7400), ("backup", "router", 7405)}
WAYS: dict[str, set[Way]] = {
    "dev": {
        *INSIDE,
        *((who, "etcd", 2379) for who in ("broker", "router", "rebalancer", "etcd")),
        ("etcd", "etcd", 2380),
    },
    "production": {*INSIDE, *SCRAPED, *TO_ETCD, *TO_KUBERNETES, *BACKED_UP, ("backup", ANYBODY, 443)},
    "production-secrets": {*INSIDE, *SCRAPED, *TO_ETCD, *TO_KUBERNETES, *BACKED_UP},
}


def component(workload: Manifest) -> str:
    return str(workload.labels["app.kubernetes.io/component"])


def ways_in(manifests: Manifests) -> set[Way]:
    """What is let in, with the numbers of ports."""
    found = set()
    for policy in manifests.of("NetworkPolicy"):
        for target in manifests.selected(policy.spec["podSelector"]):
            numbers = {name: number for item in target.containers for name, number in item.ports.items()}
            for rule in policy.spec.get("ingress", ()):
                who = [one for peer in rule["from"] for one in callers(manifests, peer)]
                ports = [numbers[port["port"]] for port in rule["ports"] if port["port"] in numbers]
                found |= {(one, component(target), port) for one in who for port in ports}
    return found


def callers(manifests: Manifests, peer: Mapping[str, Any]) -> list[str]:
    match peer:
        case {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}, **others}:
            assert not others
            return [PROMETHEUS]
        case {"namespaceSelector": {}, "podSelector": selector}:
            assert selector == {"matchLabels": {"holdfast-client": "true"}}
            return [CLIENTS, *map(component, manifests.selected(selector))]
        case {"podSelector": selector, **others}:
            assert not others
            return [component(item) for item in manifests.selected(selector)]
    raise AssertionError(peer)


def ways_out(manifests: Manifests) -> set[Way]:
    """What may be called."""
    found = set()
    for policy in manifests.of("NetworkPolicy"):
        for rule in policy.spec.get("egress", ()):
            selectors = [peer["podSelector"] for peer in rule.get("to", ())]
            to = [component(item) for selector in selectors for item in manifests.selected(selector)]
            found |= {
                (component(caller), target, port["port"])
                for caller in manifests.selected(policy.spec["podSelector"])
                for target in (to if "to" in rule else [ANYBODY])
                for port in rule["ports"]
            }
    return found


@pytest.mark.parametrize("overlay", WAYS)
def test_these_ways_are_open_at_both_ends_and_no_others(overlay: str) -> None:
    manifests = loaded(overlay)
    names = {(component(workload), ANYBODY, 53) for workload in manifests.workloads}
    others = (CLIENTS, PROMETHEUS)  # are not ours: what they may call is for others to say
    assert ways_in(manifests) == {way for way in WAYS[overlay] if way[1] != ANYBODY}
    assert ways_out(manifests) == {way for way in WAYS[overlay] if way[0] not in others} | names
    [refusing] = [item for item in manifests.of("NetworkPolicy") if item.name == "holdfast-deny-others"]
    assert manifests.selected(refusing.spec["podSelector"]) == manifests.workloads
    assert refusing.spec["policyTypes"] == ["Ingress", "Egress"]
    assert not refusing.spec.keys() & {"ingress", "egress"}


@pytest.mark.parametrize(("overlay", "elsewhere"), [("production", {53, 443}), ("production-secrets", {53})])
def test_a_backup_reaches_routers_names_and_its_storage_only(overlay: str, elsewhere: set[int]) -> None:
    manifests = load(rendered(overlay))
    backup = manifests.find("CronJob", "holdfast-backup")
    assert backup is not None
    policies = [
        item for item in manifests.of("NetworkPolicy") if backup in manifests.selected(item.spec["podSelector"])
    ]
    kinds = {kind for policy in policies for kind in policy.spec["policyTypes"]}
    assert kinds == {"Ingress", "Egress"}, "what is not allowed is refused, in both directions"
    assert [
        rule for policy in policies if policy.name != "holdfast-monitoring" for rule in policy.spec.get("ingress", ())
    ] == []
    inside: dict[str, set[int]] = {}
    outside: set[int] = set()
    for rule in (rule for policy in policies for rule in policy.spec.get("egress", ())):
        ports = {port["port"] for port in rule["ports"]}
        for peer in rule.get("to", ()):
            for one in manifests.selected(peer["podSelector"]):
                inside.setdefault(one.name, set()).update(ports)
        outside |= ports if "to" not in rule else set()
    assert inside == {"holdfast-router": {7400, 7405}}
    assert outside == elsewhere
    [letting_in] = [item for item in manifests.of("NetworkPolicy") if item.name == "holdfast-clients-to-routers"]
    assert letting_in.spec["ingress"][0]["from"][0]["podSelector"]["matchLabels"].items() <= backup.labels.items()


def test_a_shard_is_recovered_in_an_order_that_works() -> None:
    """The blocks of docs/kubernetes.md need a control plane; this is what went wrong in one of them."""
    page = (DEPLOY.parent / "docs" / "kubernetes.md").read_text(encoding="utf-8")
    section = page.partition("## A majority is lost\n")[2].partition("\n## ")[0]
    steps = [line.removeprefix("kubectl -n holdfast ") for line in section.splitlines() if line.startswith("kubectl")]

    def nth(beginning: str) -> int:
        [found] = [number for number, step in enumerate(steps) if step.startswith(beginning)]
        return found

    order = [
        nth("scale deployment holdfast-rebalancer --replicas=0"), nth("scale statefulset holdfast-broker --replicas=0"),
        nth("delete pod --selector"), nth("apply -f recovering.yaml"),
        nth("exec recovering -- holdfast shard recover 3 --data-dir /var/lib/holdfast/data --i-accept-data-loss"),
        nth("delete pod recovering"), nth("delete pvc data-holdfast-broker-0 data-holdfast-broker-2"),
        nth("scale statefulset holdfast-broker --replicas=3"), nth("scale deployment holdfast-rebalancer --replicas=2"),
    ]  # fmt: skip
    assert order == sorted(order)
    assert not [line for line in page.splitlines() if "--all " in line and "--selector" in line], "kubectl refuses both"


@pytest.mark.skipif(not has_kubectl(), reason="kubectl is not on PATH")
@pytest.mark.parametrize(("storage", "elsewhere"), [("s3", {443}), ("volume", set())])
def test_a_restore_reaches_brokers_names_and_its_storage_only(
    storage: str, elsewhere: set[int], tmp_path: Path
) -> None:
    base = "production" if storage == "s3" else "production-secrets"
    k8s = tmp_path / "k8s"
    shutil.copytree(DEPLOY / "k8s", k8s)
    (k8s / "restoring").mkdir()
    settings = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "holdfast-backup"},
        "data": {"BACKUP_ID": "b"},
    }
    given = {
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        "resources": [f"../overlays/{base}"],
        "components": [f"../components/restore-{storage}"],
        "patches": [{"patch": yaml.safe_dump(settings)}],
    }
    (k8s / "restoring" / "kustomization.yaml").write_text(yaml.safe_dump(given))
    manifests = load(render_folder(k8s / "restoring"))
    assert findings(manifests) == []
    ways = {way[1:] for way in ways_out(manifests) if way[0] == "cluster-init"}
    assert ways == {("broker", 7401), ("broker", 7404), (ANYBODY, 53), *((ANYBODY, port) for port in elsewhere)}
