"""The rebalancer's configuration: one frozen object, validated at start. How it is read is in `serving/settings`."""

from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from pydantic import Field, model_validator

from holdfast.cluster.settings import SECRETS, ClusterSettings
from holdfast.serving.settings import ADDRESSES_PATTERN, ConfigError, ContradictionError, Port, load

__all__ = ["ConfigError", "RebalancerConfig", "load_config"]

_DAY_S = 86_400


class RebalancerConfig(ClusterSettings):
    """Everything a rebalancer can be told. Built by `load_config`; built directly it reads no file, no environment."""

    # Where it lives
    host: str = Field("127.0.0.1", min_length=1, max_length=255, description="address to listen on")
    ops_port: Port = Field(7482, description="HTTP port of /metrics, /livez and /readyz; 0 takes a free one")
    log_level: Literal["debug", "info", "warning", "error"] = Field("info", description="least severe line logged")
    log_format: Literal["auto", "json", "console"] = Field("auto", description="auto is console on a terminal")

    # The cluster
    etcd_endpoints: str | None = Field(
        "127.0.0.1:2379", pattern=ADDRESSES_PATTERN, description="host:port of etcd, several with commas"
    )

    # When it does something
    gone_after_seconds: float = Field(
        900.0, ge=1, le=30 * _DAY_S, description="a node that is away for so long is gone for good"
    )
    settle_seconds: float = Field(
        30.0, ge=0, le=_DAY_S, description="how long nodes must have been the same before anything begins"
    )
    look_seconds: float = Field(1.0, ge=0.05, le=600, description="between two looks at the cluster")
    stuck_seconds: float = Field(600.0, ge=1, le=_DAY_S, description="a plan without progress is given up after this")

    @model_validator(mode="after")
    def _refuse_contradictions(self) -> "RebalancerConfig":
        found = self.etcd_contradictions()
        if found:
            raise ContradictionError(found, self.describe())
        return self

    def describe(self) -> dict[str, str | int | float]:
        """Every setting as a printable value, but for secrets."""
        given = self.model_dump(mode="json")
        given |= {name: "(set)" for name in SECRETS if given[name] is not None}
        return {name: "" if value is None else value for name, value in given.items()}


def load_config(
    path: Path | None, overrides: Mapping[str, object], env: Mapping[str, str] | None = None
) -> RebalancerConfig:
    """Lay flags over environment over file over defaults and validate the result.

    overrides: flags by field name; None means that the flag was not given.
    env: the process environment unless told otherwise.
    """
    config, _ = load(RebalancerConfig, path, overrides, env)
    return config
