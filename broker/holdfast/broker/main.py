"""`holdfast dev` and `holdfast broker`: load the configuration, run the node, say what happened."""

import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

from holdfast.broker.config import BrokerConfig, ConfigError, load_config
from holdfast.broker.node import Node
from holdfast.broker.offline.sole_replicas import sole_replicas
from holdfast.broker.peers.handshake import ClusterSecretError
from holdfast.broker.peers.tls import PeerTlsError
from holdfast.broker.replica.decoded_entries import EntryError
from holdfast.cluster.map.records import NewerFormatError
from holdfast.cluster.map.store_nodes import RegistrationError
from holdfast.common.loop import run
from holdfast.raft.node_journal import JournalError
from holdfast.serving.access_rules import AccessFileError
from holdfast.serving.logs import get_logger, setup_logs
from holdfast.serving.ops import OpsServerError
from holdfast.serving.ports import PortError
from holdfast.serving.refusals import RefusedError
from holdfast.serving.router_word import RouterSecretError
from holdfast.serving.starting import EXIT_FAILED, EXIT_OK, EXIT_REFUSED, refuse, refuse_configuration
from holdfast.storage.data_dir import DataDirDamagedError, DataDirError, set_aside
from holdfast.storage.rocksdb import StateDamagedError, StateError
from holdfast.storage.snapshots.directories import StateMissingError
from holdfast.storage.startup_checks import RecoveryError
from holdfast.wal.errors import LogDamagedError, LogError

# What a person can act on: shown as one message, without a traceback.
_REFUSALS = (
    DataDirError, LogError, JournalError, StateError, StateMissingError, RecoveryError, PortError, PeerTlsError,
    ClusterSecretError, AccessFileError, RouterSecretError, EntryError, OpsServerError, RefusedError,
    RegistrationError, NewerFormatError,
)  # fmt: skip

# What the node has on its disk is not what it must have there.
_DAMAGES = (DataDirDamagedError, LogDamagedError, StateDamagedError, StateMissingError, RecoveryError)
_OF_A_GROUP = (
    "Start this node with --rebuild: that keeps what is there aside, and the other nodes send it everything anew. "
    "Never give it an older copy of its data: it forgets what it acknowledged since, and tasks could be lost."
)
_OF_WHOM_NOBODY_KNOWS = (
    "It could not be found out whether other nodes have all of its shards. If they do, start it with --rebuild: that "
    "keeps what is there aside, and they send it everything anew. A shard of which this was the only replica "
    "(replication 1) comes back only from a backup (`holdfast backup restore`). Never give the node an older copy of "
    "its data."
)
_ALONE = "Restore a backup into another data directory (`holdfast backup restore`), or choose a new one."

_log = get_logger(__name__)


def run_dev(config_path: Path | None, overrides: Mapping[str, object], *, as_json: bool = False) -> int:
    """Everything in one process on one data directory. `as_json`: everything it says is lines of JSON."""
    return _run(config_path, overrides, defaults={}, banner=not as_json, as_json=as_json)


def run_broker(
    config_path: Path | None, overrides: Mapping[str, object], *, rebuild: bool = False, as_json: bool = False
) -> int:
    """One node. `rebuild` sets its data aside first: it comes back as a new member, with what the others have."""
    defaults = {"port": 7401}
    return _run(config_path, overrides, defaults=defaults, banner=False, rebuild=rebuild, as_json=as_json)


def _run(
    config_path: Path | None,
    overrides: Mapping[str, object],
    *,
    defaults: Mapping[str, object],
    banner: bool,
    rebuild: bool = False,
    as_json: bool,
) -> int:
    try:
        config = load_config(config_path, overrides, defaults=defaults)
    except ConfigError as error:
        return refuse_configuration(error, as_json=as_json)
    setup_logs(config.log_level, config.log_format)
    if rebuild:
        try:
            _set_aside(config, as_json=as_json)
        except DataDirError as error:
            return refuse("NOT_SET_ASIDE", str(error), EXIT_REFUSED, as_json=as_json)
    return run(_serve(config, banner=banner, as_json=as_json))


def _set_aside(config: BrokerConfig, *, as_json: bool) -> None:
    """Makes room for a replica that is rebuilt from its peers."""
    if _is_alone(config):
        raise DataDirError(
            "--rebuild gets everything from the other nodes, but the configuration names neither nodes nor etcd: "
            "nothing was changed."
        )
    sole = _sole_replicas(config)
    if sole:
        raise DataDirError(
            f"--rebuild gets everything from the other nodes, but {_lost_with(sole)} Nothing was changed."
        )
    aside = set_aside(config.data_dir, datetime.now(UTC).strftime("%Y%m%dT%H%M%S"))
    if aside is None:
        return
    advice = "remove it once this node has caught up"
    if sole is None:
        advice = (
            "remove it only once this node has caught up with every shard: whether others have all was not found out"
        )
    if not as_json:
        _say(f"The old data is in {aside}; {advice} (holdfast shard ls).")
    _log.warning("data_set_aside", path=str(aside), advice=advice)


async def _serve(config: BrokerConfig, *, banner: bool, as_json: bool) -> int:
    node = Node(config)
    try:
        await node.start()
    except _REFUSALS as error:
        message = f"holdfast cannot start: {error}{_way_out(error, config)}"
        return refuse("CANNOT_START", message, EXIT_FAILED, as_json=as_json)
    _log.info("configured", **config.describe())
    _log.info(
        "serving", host=config.host, port=node.port, frames_port=node.frames_port, ops_port=node.ops_port,
        data_dir=str(config.data_dir),
    )  # fmt: skip
    if banner:
        _say(_banner(config, node))
    failure = await node.run()
    if failure is None:
        return EXIT_OK
    if isinstance(failure, _REFUSALS):
        _log.error("stopped_by_failure", error=str(failure))
        message = f"holdfast stopped: {failure}{_way_out(failure, config)}"
        return refuse("STOPPED", message, EXIT_FAILED, as_json=as_json)
    _log.error("stopped_by_bug", error=type(failure).__name__, exc_info=failure)
    return EXIT_FAILED


def _is_alone(config: BrokerConfig) -> bool:
    return len(config.nodes) < 2 and config.etcd_endpoints is None


def _way_out(error: BaseException, config: BrokerConfig) -> str:
    """What to do about damaged or lost data. A node of a group has promised others what it has."""
    if not isinstance(error, _DAMAGES):
        return ""
    return ("" if str(error).endswith(".") else ".") + " " + _what_to_do(config)


def _what_to_do(config: BrokerConfig) -> str:
    if _is_alone(config):
        return _ALONE
    sole = _sole_replicas(config)
    if sole is None:
        return _OF_WHOM_NOBODY_KNOWS
    return f"Do not start it with --rebuild: {_lost_with(sole)}" if sole else _OF_A_GROUP


def _sole_replicas(config: BrokerConfig) -> list[int] | None:
    """See `sole_replicas`. A list of nodes in the configuration says that all of them have every shard; one that began
    alone beside another is given up in this way."""
    return [] if config.etcd_endpoints is None else sole_replicas(config.data_dir, config.cluster_name)


def _lost_with(shards: Sequence[int]) -> str:
    named = ", ".join(map(str, shards[:10])) + (", …" if len(shards) > 10 else "")
    return (
        f"nobody else has what this node has of shard{'s' * (len(shards) > 1)} {named}, which would be lost. Keep this "
        "data directory, and restore the cluster from a backup (`holdfast backup restore`)."
    )


def _say(text: str) -> None:
    """To the person at the terminal, beside the log."""
    sys.stderr.write(text + "\n")
    sys.stderr.flush()


def _banner(config: BrokerConfig, node: Node) -> str:
    address = f"{config.host}:{node.port}"
    flag = "" if address == "127.0.0.1:7400" else f" --address {address}"
    return f"""
  Holdfast is running.

    gRPC       {address}
    metrics    http://{config.host}:{node.ops_port}/metrics
    health     http://{config.host}:{node.ops_port}/readyz
    data       {config.data_dir.resolve()}

  Enqueue a first task from another terminal:

    holdfast enqueue default greet '{{"name": "world"}}'{flag}
    holdfast queue stats default{flag}

  A worker runs it: README.md has one of five lines.

  Stop with Ctrl-C: nothing that was accepted is lost.
"""
