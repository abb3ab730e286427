"""The rebalancer's configuration: one frozen object, validated at start. How it is read is in `serving/settings`."""

from collections.abc import Mapping
from pathlib import Path

from pydantic import Field

from holdfast.cluster.settings import MapSettings
from holdfast.serving.settings import ConfigError, Port, load

__all__ = ["ConfigError", "RebalancerConfig", "load_config"]

_DAY_S = 86_400


class RebalancerConfig(MapSettings):
    """Everything a rebalancer can be told. Built by `load_config`; built directly it reads no file, no environment."""

    # Where it lives
    ops_port: Port = Field(7482, description="HTTP port of /metrics, /livez and /readyz; 0 takes a free one")

    # When it does something
    gone_after_seconds: float = Field(
        900.0, ge=1, le=30 * _DAY_S, description="a node that is away for so long is gone for good"
    )
    settle_seconds: float = Field(
        30.0, ge=0, le=_DAY_S, description="how long nodes must have been the same before anything begins"
    )
    poll_seconds: float = Field(1.0, ge=0.05, le=600, description="between two polls of the cluster")
    stuck_seconds: float = Field(600.0, ge=1, le=_DAY_S, description="a plan without progress is given up after this")


def load_config(
    path: Path | None, overrides: Mapping[str, object], env: Mapping[str, str] | None = None
) -> RebalancerConfig:
    """As `load`."""
    config, _ = load(RebalancerConfig, path, overrides, env)
    return config
