"""`holdfast rebalance --watch`: load the configuration, run the rebalancer, say what happened."""

from collections.abc import Mapping
from pathlib import Path

from holdfast.cluster.etcd.api import EtcdRefusedError
from holdfast.common.loop import run
from holdfast.rebalancer.config import ConfigError, RebalancerConfig, load_config
from holdfast.rebalancer.server import Rebalancer
from holdfast.serving.logs import get_logger, setup_logs
from holdfast.serving.ops import OpsServerError
from holdfast.serving.router_word import RouterSecretError
from holdfast.serving.starting import EXIT_FAILED, EXIT_OK, refuse, refuse_configuration

_log = get_logger(__name__)


def run_rebalance(
    config_path: Path | None, overrides: Mapping[str, object], *, dry_run: bool = False, as_json: bool = False
) -> int:  # fmt: skip
    """Until it is told to stop. `as_json`: everything it says is lines of JSON."""
    try:
        config = load_config(config_path, overrides)
    except ConfigError as error:
        return refuse_configuration(error, as_json=as_json)
    setup_logs(config.log_level, config.log_format)
    return run(_serve(config, dry_run=dry_run, as_json=as_json))


async def _serve(config: RebalancerConfig, *, dry_run: bool, as_json: bool) -> int:
    try:
        rebalancer = Rebalancer(config, dry_run=dry_run)
        await rebalancer.start()
    except (OpsServerError, EtcdRefusedError, RouterSecretError) as error:
        return refuse("CANNOT_START", f"holdfast rebalance --watch cannot start: {error}", EXIT_FAILED, as_json=as_json)
    _log.info("configured", **config.describe())
    _log.info(
        "watching", host=config.host, ops_port=rebalancer.ops_port, cluster_name=config.cluster_name,
        etcd_endpoints=config.etcd_endpoints, dry_run=dry_run,
    )  # fmt: skip
    failure = await rebalancer.run()
    if failure is None:
        return EXIT_OK
    _log.error("stopped_by_bug", error=type(failure).__name__, exc_info=failure)
    return EXIT_FAILED
