"""What every server of a cluster is told: where it listens, how it logs, and where etcd is."""

from pathlib import Path
from typing import ClassVar, Final, Literal, Self

from pydantic import Field, model_validator

from holdfast.serving.settings import ADDRESSES_PATTERN, NAME_PATTERN, ContradictionError, ServerSettings

Contradiction = tuple[str, str, str]  # a field, what must hold, another field or nothing

SECRETS: Final = ("etcd_password",)  # never shown

_FILES: Final = ("etcd_certificate", "etcd_key")


class ClusterSettings(ServerSettings):
    """Which cluster a server belongs to, and where its map is."""

    secrets: ClassVar[tuple[str, ...]] = SECRETS

    host: str = Field("127.0.0.1", min_length=1, max_length=255, description="address to listen on")
    log_level: Literal["debug", "info", "warning", "error"] = Field("info", description="least severe line logged")
    log_format: Literal["auto", "json", "console"] = Field("auto", description="auto is console on a terminal")
    metrics: Literal["on", "off"] = Field("on", description="/metrics on the HTTP port; off: only health is there")
    cluster_name: str = Field("holdfast", pattern=NAME_PATTERN, description="nodes of another cluster are refused")
    etcd_endpoints: str | None = Field(
        None, pattern=ADDRESSES_PATTERN, description="host:port of etcd, several with commas: the map of the cluster"
    )
    etcd_user: str | None = Field(None, max_length=256, description="user of etcd; needs etcd_password")
    etcd_password: str | None = Field(
        None, max_length=4096, description="password of etcd_user; better in the environment"
    )
    etcd_authority: Path | None = Field(None, description="PEM file with who signs etcd's certificate: TLS to etcd")
    etcd_certificate: Path | None = Field(None, description="PEM file with this server's certificate for etcd")
    etcd_key: Path | None = Field(None, description="PEM file with the key of etcd_certificate")
    router_secret_file: Path | None = Field(
        None, description="file with a secret that routers, rebalancers and brokers share: they say with it who calls"
    )

    @model_validator(mode="after")
    def _refuse_contradictions(self) -> Self:
        found = self.contradictions()
        if found:
            raise ContradictionError(found, self.describe())
        return self

    def contradictions(self) -> list[Contradiction]:
        """Fields that are fine alone but not together. A server adds its own."""
        found: list[Contradiction] = []
        for pair in (("etcd_user", "etcd_password"), _FILES):
            given = [name for name in pair if getattr(self, name) is not None]
            if len(given) == 1:
                missing = next(name for name in pair if name not in given)
                found.append((given[0], "must come together with", missing))
        if self.etcd_certificate is not None and self.etcd_authority is None:
            found.append(("etcd_certificate", "must come together with", "etcd_authority"))
        return found

    def describe(self) -> dict[str, str | int | float]:
        """Every setting as a printable value, but for secrets."""
        given = self.model_dump(mode="json")
        given |= {name: "(set)" for name in self.secrets if given[name] is not None}
        return {name: "" if value is None else value for name, value in given.items()}

    @property
    def etcd_addresses(self) -> list[str]:
        return [endpoint.strip() for endpoint in (self.etcd_endpoints or "").split(",") if endpoint.strip()]


class AccessSettings(ClusterSettings):
    """Of servers that let callers in."""

    access_file: Path | None = Field(
        None, description="TOML or JSON file of who may do what; counts unless the map of the cluster says it"
    )
    access: Literal["auto", "required"] = Field(
        "auto", description="required: without rules, in the map or a file, nobody is let in"
    )

    @property
    def asks_who_calls(self) -> bool:
        """Whether it is certain that callers are asked who they are, whatever the map says."""
        return self.access_file is not None or self.access == "required"


class MapSettings(ClusterSettings):
    """Of servers that are nothing without the map."""

    etcd_endpoints: str | None = Field(
        "127.0.0.1:2379", pattern=ADDRESSES_PATTERN, description="host:port of etcd, several with commas"
    )
