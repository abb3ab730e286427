"""Each alert of deploy/k8s fires when it should and is silent when it should, as Prometheus itself evaluates it.

promtool comes with Prometheus (`apt-get install prometheus`); without it only the names of the rules are compared.
"""

import json
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

RULES = Path(__file__).parents[3] / "deploy/k8s/components/monitoring/rules.yaml"

Series = Sequence[str]  # each: name, labels, then its values, one a minute, as promtool writes them
LABELS = {
    "AT": 'namespace="tasks"',
    "A": 'namespace="tasks", pod="a"',
    "B": 'namespace="tasks", pod="b"',
    "QUEUE": 'namespace="tasks", queue="mail"',
}

# By alert: what makes it fire at the end of two hours, and what is like it and does not.
CASES: dict[str, tuple[Sequence[Series], Sequence[Series]]] = {
    "HoldfastShardWithoutLeader": (
        [["holdfast_router_map_shards{AT} 8x120", "holdfast_shards_led{A} 7x120"],
         ["holdfast_router_map_shards{AT} 8x120"]],
        [["holdfast_router_map_shards{AT} 8x120", "holdfast_shards_led{A} 5x120", "holdfast_shards_led{B} 3x120"]],
    ),
    "HoldfastBrokerGone": (
        [["holdfast_router_map_nodes{AT} 3x70 2x50"], ["holdfast_rebalancer_nodes_gone{AT} 1x120"]],
        [["holdfast_router_map_nodes{AT} 3x120"],
         ["holdfast_router_map_nodes{AT} 3x10 2x110", "holdfast_rebalancer_nodes_gone{AT} 0x120"]],
    ),
    "HoldfastBrokerCutOff": (
        [["holdfast_replicas{A} 8x120", "holdfast_replicas{B} 8x120", "holdfast_peers_connected{A} 0x120"]],
        [["holdfast_replicas{A} 8x120", "holdfast_replicas{B} 8x120", "holdfast_peers_connected{A} 1x120"]],
    ),
    "HoldfastReplicaLags": (
        [["holdfast_replication_lag_entries{A} 10001x120"]],
        [["holdfast_replication_lag_entries{A} 10000x120"]],
    ),
    "HoldfastClockIsOff": (
        [["holdfast_clock_offset_seconds{A} -0.6x120"]],
        [["holdfast_clock_offset_seconds{A} 0.4x120"]],
    ),
    "HoldfastRoundsAreLong": (
        [['holdfast_round_seconds_bucket{A, le="0.1"} 0+10x120', 'holdfast_round_seconds_bucket{A, le="1"} 0+100x120',
          'holdfast_round_seconds_bucket{A, le="+Inf"} 0+100x120']],
        [['holdfast_round_seconds_bucket{A, le="0.1"} 0+100x120', 'holdfast_round_seconds_bucket{A, le="1"} 0+100x120',
          'holdfast_round_seconds_bucket{A, le="+Inf"} 0+100x120']],
    ),
    "HoldfastMapIsOld": (
        [["holdfast_map_is_current{A} 0x120"], ["holdfast_router_map_is_current{A} 0x120"]],
        [["holdfast_map_is_current{A} 1x120"]],
    ),
    "HoldfastCertificatesUnusable": (
        [["holdfast_certificates_unusable{A} 1x120"], ["holdfast_router_certificates_unusable{A} 1x120"],
         ["holdfast_rebalancer_certificates_unusable{A} 1x120"]],
        [["holdfast_certificates_unusable{A} 0x120"]],
    ),
    "HoldfastCertificatesEnd": (
        [["holdfast_certificates_expire_timestamp_seconds{A} 100000x120"],
         ["holdfast_router_certificates_expire_timestamp_seconds{A} 100000x120"],
         ["holdfast_rebalancer_certificates_expire_timestamp_seconds{A} 100000x120"]],
        [["holdfast_certificates_expire_timestamp_seconds{A} 0x120"],
         ["holdfast_certificates_expire_timestamp_seconds{A} 2000000x120"]],
    ),
    "HoldfastNobodyRebalances": (
        [["holdfast_rebalancer_active{A} 0x120", "holdfast_rebalancer_active{B} 0x120"]],
        [["holdfast_rebalancer_active{A} 0x120", "holdfast_rebalancer_active{B} 1x120"]],
    ),
    "HoldfastWritesRefused": ([["holdfast_writes_refused{A} 1x120"]], [["holdfast_writes_refused{A} 0x120"]]),
    "HoldfastDiskFillsUp": (
        [["holdfast_free_bytes{A} 20000000000-80000000x120"]],
        [["holdfast_free_bytes{A} 20000000000-10000000x120"]],
    ),
    "HoldfastTasksWaitLong": (
        [["holdfast_queue_oldest_ready_seconds{QUEUE} 0+60x120"]],
        [["holdfast_queue_oldest_ready_seconds{QUEUE} 299x120"]],
    ),
    "HoldfastDeadLetters": (
        [["holdfast_tasks_dead_total{A} 0x110 3x10"]],
        [["holdfast_tasks_dead_total{A} 0x50 3x70"]],
    ),
    "HoldfastQueueHasManyDeadLetters": (
        [["holdfast_queue_dead_alert{QUEUE} 1x120"]],
        [["holdfast_queue_dead_alert{QUEUE} 0x120"]],
    ),
    "HoldfastLeasesExpire": (
        [["holdfast_tasks_expired_total{A} 0+3x120", "holdfast_tasks_claimed_total{A} 0+100x120"]],
        [["holdfast_tasks_expired_total{A} 0+1x120", "holdfast_tasks_claimed_total{A} 0+200x120"]],
    ),
    "HoldfastRouterRefuses": (
        [['holdfast_router_refusals_total{A, reason="OVERLOADED"} 0+120x120']],
        [['holdfast_router_refusals_total{A, reason="OVERLOADED"} 0+30x120'],
         ['holdfast_router_refusals_total{A, reason="NOT_FOUND"} 0+120x120']],
    ),
    "HoldfastNoBackup": (  # promtool's clock begins at 0
        [['kube_cronjob_created{AT, cronjob="holdfast-backup"} -100000x120']],
        [['kube_cronjob_status_last_successful_time{AT, cronjob="holdfast-backup"} 0x120',
          'kube_cronjob_created{AT, cronjob="holdfast-backup"} -100000x120']],
    ),
}  # fmt: skip


def groups() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = yaml.safe_load(RULES.read_text())["spec"]["groups"]
    return found


def test_every_alert_has_cases() -> None:
    assert sorted(CASES) == sorted(rule["alert"] for group in groups() for rule in group["rules"])


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not on PATH (it comes with Prometheus)")
def test_alerts_fire_when_they_should_and_only_then(tmp_path: Path) -> None:
    (tmp_path / "rules.yaml").write_text(yaml.safe_dump({"groups": groups()}))
    tests = [
        _case(alert, series, fires=fires)
        for alert, both in CASES.items()
        for fires, several in zip((True, False), both, strict=True)
        for series in several
    ]
    (tmp_path / "cases.json").write_text(json.dumps({"rule_files": ["rules.yaml"], "tests": tests}))
    done = subprocess.run(
        ["promtool", "test", "rules", "cases.json"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def _case(alert: str, series: Series, *, fires: bool) -> dict[str, Any]:
    firing = f'count(ALERTS{{alertname="{alert}", alertstate="firing"}}) > bool 0'
    return {
        "name": f"{alert} {'fires' if fires else 'is silent'} with {'; '.join(series)}",
        "interval": "1m",
        "input_series": [_input(one) for one in series],
        "promql_expr_test": [
            {"expr": firing, "eval_time": "120m", "exp_samples": [{"labels": "{}", "value": 1}] if fires else []}
        ],
    }


def _input(series: str) -> dict[str, str]:
    name, _, rest = series.partition("{")
    labels, _, values = rest.partition("} ")
    common, _, own = labels.partition(", ")
    return {"series": f"{name}{{{LABELS[common]}{own and ', ' + own}}}", "values": values}
