"""The router's configuration: one frozen object, validated at start. How it is read is in `serving/settings`."""

from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from pydantic import Field

from holdfast.cluster.settings import CallerSettings, Contradiction, MapSettings
from holdfast.serving.settings import ConfigError, Port, load

__all__ = ["ConfigError", "RouterConfig", "load_config"]

_KIB = 1024
_MIB = 1024 * _KIB
_GIB = 1024 * _MIB
_HOUR_MS = 3_600_000


class RouterConfig(MapSettings, CallerSettings):
    """Everything a router can be told. Built by `load_config`; built directly it reads no file and no environment."""

    # Where the router lives
    port: Port = Field(7400, description="gRPC port; 0 takes a free one")
    frames: Literal["on", "off"] = Field("on", description="frames beside gRPC, for callers that know them")
    frames_port: Port = Field(0, description="port of frames, which callers are told over gRPC; 0 takes a free one")
    audit_dir: Path | None = Field(None, description="what operators did is written there; none: nowhere")
    reflection: Literal["on", "off"] = Field("on", description="reflection of gRPC, which shows tools the API")
    ops_port: Port = Field(7480, description="HTTP port of /metrics, /livez and /readyz; 0 takes a free one")
    shutdown_grace_seconds: float = Field(10.0, ge=0, le=600, description="how long a stop waits for calls under way")

    # What may pass, and how much of it at once
    message_bytes_max: int = Field(16 * _MIB, ge=64 * _KIB, le=_GIB, description="largest request or answer")
    batch_bytes_max: int = Field(
        4 * _MIB, ge=_KIB, le=256 * _MIB, description="most bytes in one call; as on the brokers"
    )
    wait_ms_max: int = Field(60_000, ge=0, le=_HOUR_MS, description="longest a call may wait; as on the brokers")
    idle_wait_ms_max: int = Field(
        600_000, ge=0, le=_HOUR_MS, description="longest that idle workers are told to wait when very many do"
    )
    call_seconds_default: float = Field(
        20.0, ge=0.1, le=3600, description="how long a call without a deadline may take, beyond its wait"
    )
    calls_max: int = Field(10_000, ge=1, le=1_000_000, description="most calls under way that do not wait")
    calls_per_shard_max: int = Field(2000, ge=1, le=1_000_000, description="most calls to one shard that do not wait")
    connections_max: int = Field(
        16_384,
        ge=32,
        le=1_000_000,
        description="most connections of callers, over gRPC and in frames each; fewer if few files may be open",
    )
    bytes_in_flight_max: int = Field(
        128 * _MIB, ge=64 * _KIB, le=64 * _GIB, description="most bytes of requests under way"
    )
    waits_max: int = Field(
        20_000, ge=1, le=1_000_000, description="most calls that wait: idle workers, and for results"
    )
    wait_bytes_max: int = Field(
        64 * _MIB, ge=64 * _KIB, le=64 * _GIB, description="most bytes of requests of calls that wait"
    )
    broker_waits_max: int = Field(
        10_000, ge=1, le=1_000_000, description="most waits at brokers: one for each shard of each queue waited for"
    )

    def contradictions(self) -> list[Contradiction]:
        found = self.shared_ports("port", "ops_port", "frames_port")
        for low, high in (("calls_per_shard_max", "calls_max"), ("message_bytes_max", "bytes_in_flight_max")):
            if getattr(self, low) > getattr(self, high):
                found.append((low, "must not exceed", high))
        return found + super().contradictions()


def load_config(
    path: Path | None, overrides: Mapping[str, object], env: Mapping[str, str] | None = None
) -> RouterConfig:
    """As `load`."""
    config, _ = load(RouterConfig, path, overrides, env)
    return config
