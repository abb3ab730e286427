"""`holdfast rebalance`: once, for ever, or not for now."""

from pathlib import Path
from typing import Annotated

import typer

from holdfast.cli import cluster_calls, output, records, servers
from holdfast.cli.commands import shard_plans
from holdfast.cli.commands.servers import (
    ClusterName,
    Config,
    EtcdEndpoints,
    Host,
    LogFormat,
    LogLevel,
    OpsPort,
    given_settings,
)
from holdfast.cli.commands.shared import Address, Json, Timeout, Yes, epilog, time_limit_s
from holdfast.cli.problems import ExitCode, usage
from holdfast.client.aio import DEFAULT_ADDRESS, DEFAULT_TIMEOUT_S


def rebalance(
    watch: Annotated[bool, typer.Option("--watch", help="Go on for ever: a process for a server.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would be done.")] = False,
    pause: Annotated[bool, typer.Option("--pause", help="Let nothing be moved by itself until --resume.")] = False,
    resume: Annotated[bool, typer.Option("--resume", help="Take --pause back.")] = False,
    why: Annotated[str, typer.Option("--why", metavar="TEXT", help="Of --pause: why, for others.")] = "",
    yes: Yes = False,
    gone_after_s: Annotated[
        float | None,
        typer.Option(
            "--gone-after", parser=time_limit_s, metavar="TIME", help="Of --watch: when a node is gone for good.",
            show_default="15m",
        ),
    ] = None,
    config: Config = None,
    host: Host = None,
    ops_port: OpsPort = None,
    etcd_endpoints: EtcdEndpoints = None,
    cluster_name: ClusterName = None,
    log_level: LogLevel = None,
    log_format: LogFormat = None,
    address: Address = DEFAULT_ADDRESS,
    timeout_s: Timeout = DEFAULT_TIMEOUT_S,
    as_json: Json = False,
) -> int:  # fmt: skip
    """Move replicas and leaders to where they should be: now, or whenever it is needed.

    Without --watch: shows the plan, asks, and carries it out, as `holdfast shard apply` does.
    With --watch: a process that carries out such plans by itself when nodes come, drain, or are gone for good.
    It needs --etcd-endpoints. Run two or three of them: one is active, the others stand by.
    What a node had that is away for --gone-after is made anew on others, one node at a time;
    never if too few nodes are alive. If the node comes back after all, it gets its share again.
    --pause and --resume are for all of them, and `holdfast cluster status` shows it.
    """
    if watch + pause + resume > 1:
        raise usage("Expected at most one of --watch, --pause and --resume, but several are given.")
    settings = given_settings(
        host=host, ops_port=ops_port, etcd_endpoints=etcd_endpoints, cluster_name=cluster_name, log_level=log_level,
        log_format=log_format, gone_after_seconds=gone_after_s,
    )  # fmt: skip
    if watch:
        return _watch(config, settings, dry_run=dry_run, as_json=as_json)
    if settings or config is not None:
        raise usage("Expected --watch with settings of a server, but it is not given.", "`--help` says more.")
    if pause or resume:
        return _set(address, timeout_s, pause=pause, why=why, as_json=as_json)
    if dry_run:
        shard_plans.shard_plan(address=address, timeout_s=timeout_s, as_json=as_json)
        return ExitCode.OK
    return shard_plans.shard_apply(yes=yes, address=address, timeout_s=timeout_s, as_json=as_json)


def _watch(config: Path | None, settings: dict[str, object], *, dry_run: bool, as_json: bool) -> int:
    if as_json:
        settings.setdefault("log_format", "json")
    return servers.run_rebalance(config, settings, dry_run=dry_run, as_json=as_json)


def _set(address: str, timeout_s: float, *, pause: bool, why: str, as_json: bool) -> int:
    rebalancing = cluster_calls.set_rebalancing(address, timeout_s, pause=pause, why=why)
    if as_json:
        records.print_json({"is_paused": rebalancing.is_paused, "why": rebalancing.why, "active": rebalancing.active})
    elif pause:
        output.print_line("Nothing is moved by itself any more; what has begun comes to its end. --resume goes on.")
    else:
        output.print_line("Replicas are moved by themselves again, as it is needed.")
    if not as_json and not rebalancing.active:
        output.print_note("No process does that at the moment: `holdfast rebalance --watch` is one.")
    return ExitCode.OK


def add_to(app: typer.Typer) -> None:
    examples = (
        "holdfast rebalance --dry-run",
        "holdfast rebalance --yes",
        "holdfast rebalance --watch --etcd-endpoints etcd1:2379,etcd2:2379 --gone-after 30m",
        'holdfast rebalance --pause --why "moving racks"',
    )
    app.command(epilog=epilog(*examples))(rebalance)
