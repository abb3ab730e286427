"""`holdfast dev`, `holdfast broker` and `holdfast router`: a server in this process."""

from pathlib import Path
from typing import Annotated

import typer

from holdfast.cli import servers
from holdfast.cli.commands.shared import epilog

DataDir = Annotated[
    Path | None, typer.Option("--data-dir", metavar="DIR", help="Where everything is kept; created if missing.")
]
Host = Annotated[str | None, typer.Option("--host", help="The address to listen on.")]
Port = Annotated[int | None, typer.Option("--port", help="The gRPC port; 0 takes a free one.")]
OpsPort = Annotated[
    int | None, typer.Option("--ops-port", help="The HTTP port of /metrics, /livez and /readyz; 0 takes a free one.")
]
Config = Annotated[Path | None, typer.Option("--config", metavar="FILE", help="A TOML file with settings.")]
Insecure = Annotated[
    bool,
    typer.Option("--insecure", help="Listen beyond this machine although anybody who reaches it may do everything."),
]
LogLevel = Annotated[str | None, typer.Option("--log-level", help="debug, info, warning or error.")]
LogFormat = Annotated[str | None, typer.Option("--log-format", help="auto, json or console.")]
ServerJson = Annotated[bool, typer.Option("--json", help="Log as JSON; print errors as JSON, on standard error.")]
Rebuild = Annotated[
    bool,
    typer.Option("--rebuild", help="Move the data directory aside and get everything anew from the other nodes."),
]
EtcdEndpoints = Annotated[
    str | None,
    typer.Option("--etcd-endpoints", metavar="HOST:PORT,…", help="Where etcd is: the map of the cluster."),
]
ClusterName = Annotated[
    str | None, typer.Option("--cluster-name", metavar="NAME", help="The cluster's name; the same on all its servers.")
]
NodeName = Annotated[
    str | None, typer.Option("--node-name", metavar="NAME", help="This node's name; no other has it, and it stays.")
]
Zone = Annotated[
    str | None,
    typer.Option("--zone", metavar="ZONE", help="What it shares its fate with: replicas of a shard go to several."),
]


def dev(
    data_dir: DataDir = None,
    host: Host = None,
    port: Port = None,
    ops_port: OpsPort = None,
    config: Config = None,
    insecure: Insecure = False,
    log_level: LogLevel = None,
    log_format: LogFormat = None,
    as_json: ServerJson = False,
) -> int:
    """Start everything in one process, for development.

    Needs nothing else: no database, no cluster.
    Tasks are kept in a directory under the current one and survive a restart.
    Flags win over the environment (HOLDFAST_PORT and so on), which wins over the file. Ctrl-C stops it.
    """
    overrides = _overrides(data_dir, host, port, ops_port, log_level, log_format, insecure=insecure, as_json=as_json)
    return servers.run_dev(config, overrides, as_json=as_json)


def broker(
    data_dir: DataDir = None,
    host: Host = None,
    port: Port = None,
    ops_port: OpsPort = None,
    config: Config = None,
    insecure: Insecure = False,
    node_name: NodeName = None,
    zone: Zone = None,
    etcd_endpoints: EtcdEndpoints = None,
    cluster_name: ClusterName = None,
    log_level: LogLevel = None,
    log_format: LogFormat = None,
    rebuild: Rebuild = False,
    as_json: ServerJson = False,
) -> int:
    """Start one node.

    With --etcd-endpoints it joins the cluster whose map is there; `holdfast cluster init` makes one, once.
    Without, it is alone, or in the cluster that its file lists.

    Flags win over the environment (HOLDFAST_PORT and so on), which wins over the file.
    SIGTERM stops it gracefully; nothing that was acknowledged is lost, however it ends.
    With --rebuild it starts empty and is rebuilt by its peers: for a node whose data are damaged or gone.
    The old data stay beside the new, in a directory whose name ends with .damaged and the time.
    """
    overrides = _overrides(data_dir, host, port, ops_port, log_level, log_format, insecure=insecure, as_json=as_json)
    overrides |= given_settings(
        node_name=node_name, zone=zone, etcd_endpoints=etcd_endpoints, cluster_name=cluster_name
    )
    return servers.run_broker(config, overrides, rebuild=rebuild, as_json=as_json)


def router(
    host: Host = None,
    port: Port = None,
    ops_port: OpsPort = None,
    config: Config = None,
    insecure: Insecure = False,
    etcd_endpoints: EtcdEndpoints = None,
    cluster_name: ClusterName = None,
    log_level: LogLevel = None,
    log_format: LogFormat = None,
    as_json: ServerJson = False,
) -> int:
    """Start a router: the address that clients of a cluster use.

    It has no data. Run as many as you like, wherever you like; clients may have the addresses of several.
    It finds the leader of each shard in the map in etcd, and passes calls on to it.
    With etcd away it goes on with what it knows.
    Flags win over the environment (HOLDFAST_PORT and so on), which wins over the file. SIGTERM stops it gracefully.
    """
    overrides = _overrides(None, host, port, ops_port, log_level, log_format, insecure=insecure, as_json=as_json)
    overrides |= given_settings(etcd_endpoints=etcd_endpoints, cluster_name=cluster_name)
    return servers.run_router(config, overrides, as_json=as_json)


def _overrides(
    data_dir: Path | None,
    host: str | None,
    port: int | None,
    ops_port: int | None,
    log_level: str | None,
    log_format: str | None,
    *,
    insecure: bool,
    as_json: bool,
) -> dict[str, object]:
    """The flags that were given, by the name of their setting."""
    return given_settings(
        data_dir=data_dir,
        host=host,
        port=port,
        ops_port=ops_port,
        log_level=log_level,
        log_format="json" if as_json and log_format is None else log_format,
        insecure="on" if insecure else None,
    )


def given_settings(**flags: object) -> dict[str, object]:
    """The flags that were given, by the name of their setting."""
    return {name: value for name, value in flags.items() if value is not None}


def add_to(app: typer.Typer) -> None:
    examples = ("holdfast dev", "holdfast dev --data-dir /tmp/try --port 7500 --ops-port 7503")
    app.command(epilog=epilog(*examples))(dev)
    of_broker = (
        "holdfast broker --config /etc/holdfast/broker.toml --log-format json",
        "holdfast broker --config n2.toml --rebuild",
        "holdfast broker --node-name n1 --zone a --etcd-endpoints etcd1:2379,etcd2:2379 --data-dir /var/lib/holdfast",
    )
    app.command(epilog=epilog(*of_broker))(broker)
    examples = (
        "holdfast router --config /etc/holdfast/router.toml --log-format json",
        "holdfast router --etcd-endpoints etcd1:2379,etcd2:2379",
    )
    app.command(epilog=epilog(*examples))(router)
