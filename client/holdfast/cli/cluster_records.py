"""What the commands about clusters print for programs. Keys are an interface, as in records.py."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict

from holdfast.cli import health, records
from holdfast.cli.cluster_calls import Overview
from holdfast.cli.options import word
from holdfast.cli.plans import tally
from holdfast.client import (
    ClusterInfo,
    ClusterNode,
    HandoverProgress,
    NodeReport,
    Plan,
    PlanStep,
    QueuePolicy,
    QueueSettings,
)


def cluster_json(info: ClusterInfo) -> dict[str, object]:
    return {
        "cluster_id": info.cluster_id,
        "name": info.name,
        "shards": info.shards_count,
        "replication": info.replication,
        "revision": info.revision,
        "etcd_answers": info.etcd_answers,
        "is_last_known": not info.etcd_answers,
        "age_ms": info.age_ms,
    }


def node_json(node: ClusterNode) -> dict[str, object]:
    return asdict(node)


def nodes_json(info: ClusterInfo) -> dict[str, object]:
    return {"cluster": cluster_json(info), "nodes": [node_json(node) for node in info.nodes]}


def shards_json(info: ClusterInfo, reports: Sequence[NodeReport]) -> list[dict[str, object]]:
    """Where each shard should be and where it is; identities of replicas are in the map's own fields."""
    return [
        {**asdict(view), "leader": view.leader or None, "problem": view.problem or None, "change": view.change or None}
        for view in health.views(info, reports)
    ]


def overview_json(overview: Overview, *, healthy: bool) -> dict[str, object]:
    info = overview.info
    depth = overview.depth
    return {
        "cluster": cluster_json(info),
        "healthy": healthy,
        "nodes": [{**node_json(node), "answers": _answers(node, overview)} for node in info.nodes],
        "shards": shards_json(info, overview.reports),
        "plan": None if info.plan is None else plan_json(info.plan),
        "rebalancing": asdict(info.rebalancing),
        "tasks": None if depth is None else {**asdict(depth), "unfinished": depth.unfinished},
    }


def _answers(node: ClusterNode, overview: Overview) -> bool | None:
    """Whether it does, at this moment; None if nodes cannot be reached from here, or it was not asked."""
    if all(report.node is None for report in overview.reports):
        return None
    return next((report.node is not None for report in overview.reports if report.name == node.name), None)


def replicas_json(info: ClusterInfo | None, reports: Sequence[NodeReport]) -> dict[str, object]:
    """As nodes say it; of a cluster with a map also where the shards should be."""
    values = records.nodes_json(reports)
    if info is None:
        return values
    return {**values, "cluster": cluster_json(info), "shards": shards_json(info, reports)}


def handover_json(node: str, progress: HandoverProgress | None) -> dict[str, object]:
    """Without an answer of the node nothing is known but that it must not be stopped."""
    held_back = {} if progress is None else progress.held_back
    return {
        "node": node,
        "may_stop": progress is not None and progress.may_stop,
        "leads": None if progress is None else progress.leads,
        "held_back": [{"shard": shard, "why": why} for shard, why in held_back.items()],
        "single": [] if progress is None else list(progress.single),
    }


def plan_json(plan: Plan) -> dict[str, object]:
    done = tally(plan)
    return {
        "plan": plan.id,
        "revision": plan.revision,
        "summary": plan.summary,
        "steps": [step_json(step) for step in plan.steps],
        "steps_total": done.steps,
        "steps_done": done.done,
        "steps_overtaken": done.overtaken,
    }


def step_json(step: PlanStep) -> dict[str, object]:
    return {**asdict(step), "state": str(step.state)}


def shown_settings_json(settings: QueueSettings, info: ClusterInfo | None) -> dict[str, object]:
    """As the map has them, if there is one."""
    return {**settings_json(settings), "cluster": None if info is None else cluster_json(info)}


def settings_json(settings: QueueSettings) -> dict[str, object]:
    route = settings.route
    newest = route.sets[-1].shards if route.sets else (route.home,)
    return {
        "queue": route.queue,
        "home": route.home,
        "generation": route.generation,
        "newest": list(newest),
        "shards": list(route.shards),
        "draining": list(route.draining),
        "policy": _policy_json(settings.policy),
        "version": settings.version,
    }


def _policy_json(policy: QueuePolicy) -> dict[str, object]:
    """Only what is set."""
    values = _given(asdict(policy))
    if policy.retry_shape is not None:
        values["retry_shape"] = word(policy.retry_shape)
    if policy.tenants:
        values["tenants"] = [_given(asdict(tenant)) for tenant in policy.tenants]
    return values


def _given(values: Mapping[str, object]) -> dict[str, object]:
    return {name: value for name, value in values.items() if value is not None and value != ()}
