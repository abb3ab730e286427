"""`holdfast dev` and `holdfast broker`: load the configuration, run the node, say what happened."""

import asyncio
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path

from holdfast.broker.config import BrokerConfig, ConfigError, load_config
from holdfast.broker.data_dir import DataDirError, set_aside
from holdfast.broker.log.errors import LogError
from holdfast.broker.logs import get_logger, setup_logs
from holdfast.broker.node import Node
from holdfast.broker.ops import OpsServerError
from holdfast.broker.peers.tls import PeerTlsError
from holdfast.broker.raft.node_journal import JournalError
from holdfast.broker.recovery import RecoveryError
from holdfast.broker.refusals import RefusedError
from holdfast.broker.rpc import PortError
from holdfast.broker.snapshots.directories import StateMissingError
from holdfast.broker.state import StateError

EXIT_OK = 0
EXIT_FAILED = 1
EXIT_REFUSED = 2

# What a person can act on: shown as one message, without a traceback.
_REFUSALS = (
    DataDirError, LogError, JournalError, StateError, StateMissingError, RecoveryError, PortError, PeerTlsError,
    OpsServerError, RefusedError,
)  # fmt: skip

_log = get_logger(__name__)


def run_dev(config_path: Path | None, overrides: Mapping[str, object]) -> int:
    """Everything in one process on one data directory."""
    return _run(config_path, overrides, defaults={}, banner=True)


def run_broker(config_path: Path | None, overrides: Mapping[str, object], *, rebuild: bool = False) -> int:
    """One node. `rebuild` sets its data aside first: it comes back as a new member, with what the others have."""
    return _run(config_path, overrides, defaults={"port": 7401}, banner=False, rebuild=rebuild)


def _run(
    config_path: Path | None,
    overrides: Mapping[str, object],
    *,
    defaults: Mapping[str, object],
    banner: bool,
    rebuild: bool = False,
) -> int:
    try:
        config = load_config(config_path, overrides, defaults=defaults)
    except ConfigError as error:
        _say(str(error))
        return EXIT_REFUSED
    setup_logs(config.log_level, config.log_format)
    if rebuild and not _set_aside(config):
        return EXIT_REFUSED
    return asyncio.run(_serve(config, banner=banner))


def _set_aside(config: BrokerConfig) -> bool:
    """Makes room for a replica that is rebuilt from its peers; False if that cannot be."""
    if len(config.nodes) < 2:
        _say("--rebuild gets everything from the other nodes, but the configuration lists none: nothing was changed.")
        return False
    try:
        aside = set_aside(config.data_dir, datetime.now(UTC).strftime("%Y%m%dT%H%M%S"))
    except DataDirError as error:
        _say(str(error))
        return False
    if aside is not None:
        _say(f"The old data is in {aside}; remove it once this node has caught up (holdfast shard ls).")
        _log.warning("data_set_aside", path=str(aside))
    return True


async def _serve(config: BrokerConfig, *, banner: bool) -> int:
    node = Node(config)
    try:
        await node.start()
    except _REFUSALS as error:
        _say(f"holdfast cannot start: {error}")
        return EXIT_FAILED
    _log.info("configured", **config.describe())
    _log.info("serving", host=config.host, port=node.port, ops_port=node.ops_port, data_dir=str(config.data_dir))
    if banner:
        _say(_banner(config, node))
    failure = await node.run()
    if failure is None:
        return EXIT_OK
    if isinstance(failure, _REFUSALS):
        _log.error("stopped_by_failure", error=str(failure))
        _say(f"holdfast stopped: {failure}")
    else:
        _log.error("stopped_by_bug", error=type(failure).__name__, exc_info=failure)
    return EXIT_FAILED


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
