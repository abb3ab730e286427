"""`holdfast router`: load the configuration, run the router, say what happened."""

from collections.abc import Mapping
from pathlib import Path

from holdfast.cluster.etcd.api import EtcdRefusedError
from holdfast.common.loop import run
from holdfast.router.config import ConfigError, RouterConfig, load_config
from holdfast.router.server import Router
from holdfast.serving.access_rules import AccessFileError
from holdfast.serving.logs import get_logger, setup_logs
from holdfast.serving.ops import OpsServerError
from holdfast.serving.ports import PortError
from holdfast.serving.router_word import RouterSecretError
from holdfast.serving.starting import EXIT_FAILED, EXIT_OK, refuse, refuse_configuration

# What a person can act on: shown as one message, without a traceback.
_REFUSALS = (PortError, OpsServerError, EtcdRefusedError, AccessFileError, RouterSecretError)

_log = get_logger(__name__)


def run_router(config_path: Path | None, overrides: Mapping[str, object], *, as_json: bool = False) -> int:
    """Until it is told to stop. `as_json`: everything it says is lines of JSON."""
    try:
        config = load_config(config_path, overrides)
    except ConfigError as error:
        return refuse_configuration(error, as_json=as_json)
    setup_logs(config.log_level, config.log_format)
    return run(_serve(config, as_json=as_json))


async def _serve(config: RouterConfig, *, as_json: bool) -> int:
    router = Router(config)
    try:
        await router.start()
    except _REFUSALS as error:
        return refuse("CANNOT_START", f"holdfast router cannot start: {error}", EXIT_FAILED, as_json=as_json)
    _log.info("configured", **config.describe())
    _log.info(
        "serving", host=config.host, port=router.port, frames_port=router.frames_port, ops_port=router.ops_port,
        cluster_name=config.cluster_name, etcd_endpoints=config.etcd_endpoints,
    )  # fmt: skip
    failure = await router.run()
    if failure is None:
        return EXIT_OK
    _log.error("stopped_by_bug", error=type(failure).__name__, exc_info=failure)
    return EXIT_FAILED
