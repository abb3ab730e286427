"""`holdfast dev` and `holdfast broker`: load the configuration, run the node, say what happened."""

import asyncio
import sys
from collections.abc import Mapping
from pathlib import Path

from holdfast.broker.config import BrokerConfig, ConfigError, load_config
from holdfast.broker.data_dir import DataDirError
from holdfast.broker.log.errors import LogError
from holdfast.broker.logs import get_logger, setup_logs
from holdfast.broker.node import Node
from holdfast.broker.ops import OpsServerError
from holdfast.broker.recovery import RecoveryError
from holdfast.broker.refusals import RefusedError
from holdfast.broker.rpc import PortError
from holdfast.broker.state import StateError

EXIT_OK = 0
EXIT_FAILED = 1
EXIT_REFUSED = 2

# What a person can act on: shown as one message, without a traceback.
_REFUSALS = (DataDirError, LogError, StateError, RecoveryError, PortError, OpsServerError, RefusedError)

_log = get_logger(__name__)


def run_dev(config_path: Path | None, overrides: Mapping[str, object]) -> int:
    """Everything in one process on one data directory."""
    return _run(config_path, overrides, defaults={}, banner=True)


def run_broker(config_path: Path | None, overrides: Mapping[str, object]) -> int:
    """One node."""
    return _run(config_path, overrides, defaults={"port": 7401}, banner=False)


def _run(
    config_path: Path | None, overrides: Mapping[str, object], *, defaults: Mapping[str, object], banner: bool
) -> int:
    try:
        config = load_config(config_path, overrides, defaults=defaults)
    except ConfigError as error:
        _say(str(error))
        return EXIT_REFUSED
    setup_logs(config.log_level, config.log_format)
    return asyncio.run(_serve(config, banner=banner))


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
