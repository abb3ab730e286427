"""Rules, dashboard and scaling of deploy/k8s ask for metrics that servers really have, and for labels of these."""

import json
import os
import re
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import promql_parser
import pytest
from prometheus_client.parser import text_string_to_metric_families

from holdfast.client import Client, HoldfastError, NewTask, QueuePolicy
from tests.integration.cluster import HOST, free_ports
from tests.integration.map_cluster import NAME, MapCluster, until
from tools.manifests.objects import load
from tools.manifests.rendering import DEPLOY, RENDERED

DASHBOARD = DEPLOY / "k8s" / "components" / "monitoring" / "holdfast.json"
EXAMPLE = DEPLOY / "k8s" / "components" / "example-app"
OF_THE_TARGET = {"namespace", "pod"}  # Prometheus adds them to every series that it scrapes from a pod
# What no server of ours has: of kube-state-metrics, which knows when a job last succeeded. With their labels.
OF_OTHERS = {"kube_cronjob_created": {"cronjob"}, "kube_cronjob_status_last_successful_time": {"cronjob"}}


@dataclass
class Asked:
    """What a query wants: names of metrics, and of each the labels that it selects by."""

    labels: dict[str, set[str]] = field(default_factory=dict)
    grouped: set[str] = field(default_factory=set)  # labels that are kept by aggregations


def asked_by(query: str) -> Asked:
    asked = Asked()
    _walk(promql_parser.parse(query), asked)
    return asked


def _walk(node: Any, asked: Asked) -> None:
    if isinstance(node, list):
        for item in node:
            _walk(item, asked)
    elif isinstance(node, promql_parser.VectorSelector):
        assert node.name is not None, "a selector by labels alone"
        asked.labels.setdefault(node.name, set()).update(matcher.name for matcher in node.matchers.matchers)
    else:
        modifier = getattr(node, "modifier", None)
        asked.grouped.update(getattr(modifier, "labels", None) or ())
        for part in ("lhs", "rhs", "expr", "args", "vector_selector"):
            if (inside := getattr(node, part, None)) is not None:
                _walk(inside, asked)


def rules() -> dict[str, str]:
    manifests = load((RENDERED / "production.yaml").read_text())
    groups = [group for item in manifests.of("PrometheusRule") for group in item.spec["groups"]]
    return {rule["alert"]: rule["expr"] for group in groups for rule in group["rules"]}


def panels() -> dict[str, list[str]]:
    every = [panel for panel in json.loads(DASHBOARD.read_text())["panels"] if panel["type"] != "row"]
    found = {panel["title"]: [target["expr"] for target in panel["targets"]] for panel in every}
    assert len(found) == len(every), "each panel has a title of its own"
    return found


def triggers() -> dict[str, str]:
    manifests = load((RENDERED / "example.yaml").read_text())
    return {item.name: item.spec["triggers"][0]["metadata"]["query"] for item in manifests.of("ScaledObject")}


def queries() -> dict[str, str]:
    """Every query, by where it stands, with the variables of Grafana replaced as Grafana does."""
    found = {f"rule {name}": expr for name, expr in rules().items()}
    found |= {f"scaling {name}": expr for name, expr in triggers().items()}
    found |= {f"panel {title} {index}": expr for title, exprs in panels().items() for index, expr in enumerate(exprs)}
    return {where: expr.replace("$__rate_interval", "1m") for where, expr in found.items()}


QUERIES = queries()


@contextmanager
def beside(cluster: MapCluster, *words: str, folder: Path) -> Iterator[str]:
    """Another process of the command line, with an HTTP port; its address."""
    [port] = free_ports(1)
    command = [str(Path(sys.executable).parent / "holdfast"), *words, "--ops-port", str(port)]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("HOLDFAST_")}
    environment |= {"HOLDFAST_ADDRESS": cluster.address, "HOLDFAST_CLUSTER_NAME": NAME, "PYTHONDONTWRITEBYTECODE": "1"}
    environment |= {"HOLDFAST_ETCD_ENDPOINTS": cluster.etcd_endpoints}
    log = cluster.directory / f"{words[0]}.log"
    with log.open("wb") as output:
        process = subprocess.Popen(command, cwd=folder, env=environment, stdout=output, stderr=output)
    try:
        yield f"{HOST}:{port}"
    finally:
        process.kill()
        process.wait()


def scraped(address: str) -> str:
    """Empty while nobody answers."""
    try:
        with urllib.request.urlopen(f"http://{address}/metrics", timeout=10) as answer:
            return str(answer.read().decode())
    except OSError:
        return ""


@pytest.fixture(scope="module")
def exposed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, set[str]]]:
    """Names of series with their labels, of brokers, a router, a rebalancer and a worker of the example, at work."""
    with MapCluster(tmp_path_factory.mktemp("watched"), size=3, shards=2) as cluster:
        cluster.start()
        with Client(cluster.address) as client:
            client.set_queue("orders", policy=QueuePolicy(dead_alert_at=1))
            client.enqueue(NewTask("orders", "ship", b"[1]"))
            [claim] = client.reserve(["orders"], wait_ms=5_000)
            client.ack(claim)
            with pytest.raises(HoldfastError):
                client.extend(claim, 5_000)
            with pytest.raises(HoldfastError):
                client.get_task("no id of a task")
            client.enqueue(NewTask("orders", "ship", b"[2]"))
        with (
            beside(cluster, "worker", "shop:app", folder=EXAMPLE) as worker,
            beside(cluster, "rebalance", "--watch", folder=cluster.directory) as rebalancer,
        ):
            servers = [f"{HOST}:{node.ops_port}" for node in (*cluster.nodes.values(), *cluster.routers)]
            done = 'holdfast_worker_tasks_total{type="ship",outcome="succeeded"} 1'
            until(lambda: done in scraped(worker), "the worker to have done something")
            until(lambda: "holdfast_rebalancer_active" in scraped(rebalancer), "the rebalancer to be there")
            until(lambda: any("holdfast_queue_dead_alert{" in scraped(server) for server in servers), "the setting")
            yield OF_OTHERS | series([scraped(server) for server in (*servers, worker, rebalancer)])


def series(texts: list[str]) -> dict[str, set[str]]:
    """Labels by names of metrics."""
    found: dict[str, set[str]] = {}
    for text in texts:
        for family in text_string_to_metric_families(text):
            found.setdefault(family.name, set())
            for sample in family.samples:
                found.setdefault(sample.name, set()).update(sample.labels)
    return found


@pytest.mark.parametrize("where", QUERIES)
def test_every_query_names_a_metric_that_exists(exposed: dict[str, set[str]], where: str) -> None:
    asked = asked_by(QUERIES[where])
    assert asked.labels, "it asks for nothing"
    for metric, labels in asked.labels.items():
        assert metric in exposed, f"no server has {metric}"
        assert labels <= exposed[metric] | OF_THE_TARGET, f"{metric} has {sorted(exposed[metric])}"
    kept = set().union(*(exposed[metric] for metric in asked.labels)) | OF_THE_TARGET
    assert asked.grouped <= kept, f"grouped by what is not there: {sorted(asked.grouped - kept)}"


def test_the_variables_of_the_dashboard_name_metrics_that_exist(exposed: dict[str, set[str]]) -> None:
    variables = json.loads(DASHBOARD.read_text())["templating"]["list"]
    asked = {variable["name"]: variable["query"]["query"] for variable in variables if variable["type"] == "query"}
    for name, query in asked.items():
        selector, _, label = query.removeprefix("label_values(").removesuffix(")").rpartition(", ")
        [metric] = asked_by(selector).labels
        assert label in exposed[metric] | OF_THE_TARGET, name
    used = DASHBOARD.read_text()
    assert all(f"${name}" in used for name in asked)


def test_a_query_of_nothing_is_noticed(exposed: dict[str, set[str]]) -> None:
    for query in ("rate(holdfast_tasks_acked[5m])", "sum(holdfast_router_refusals{reason='x'})", "holdfast_nothing"):
        [metric] = asked_by(query).labels
        assert not exposed.get(metric)
    assert asked_by('a{b="c"} / on (d) sum by (e) (rate(f{g=~"h"}[5m]))').labels == {"a": {"b"}, "f": {"g"}}


def test_there_is_a_rule_for_each_thing_that_operators_must_hear_of() -> None:
    """In the words of the metrics: no leader, lag, disk, age, dead letters, leases, clock, rounds."""
    watched = {name for expr in rules().values() for name in asked_by(expr).labels}
    assert watched >= {
        "holdfast_shards_led", "holdfast_replication_lag_entries", "holdfast_writes_refused", "holdfast_free_bytes",
        "holdfast_queue_oldest_ready_seconds", "holdfast_tasks_dead_total", "holdfast_tasks_expired_total",
        "holdfast_clock_offset_seconds", "holdfast_round_seconds_bucket",
    }  # fmt: skip


def test_the_rule_of_backups_names_the_cron_job_that_there_is() -> None:
    """Neither side of `or` would be missed."""
    named = set(re.findall(r'(kube_\w+)\{cronjob="([^"]+)"\}', rules()["HoldfastNoBackup"]))
    jobs = [item.name for item in load((RENDERED / "production.yaml").read_text()).of("CronJob")]
    assert named == {(metric, job) for metric in OF_OTHERS for job in jobs}


def test_panels_do_not_lie_on_each_other() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in json.loads(DASHBOARD.read_text())["panels"]:
        folder = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(folder["x"], folder["x"] + folder["w"])
            for y in range(folder["y"], folder["y"] + folder["h"])
        }
        assert folder["x"] + folder["w"] <= 24
        assert not cells & taken, panel["title"]
        taken |= cells


def test_the_dashboard_reaches_grafana() -> None:
    maps = load((RENDERED / "production.yaml").read_text()).of("ConfigMap")
    [board] = [item for item in maps if "holdfast.json" in item.body["data"]]
    assert json.loads(board.body["data"]["holdfast.json"]) == json.loads(DASHBOARD.read_text())
    assert board.body["metadata"]["labels"]["grafana_dashboard"] == "1"
