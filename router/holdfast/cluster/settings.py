"""What every server of a cluster is told: where it listens, how it logs, and where etcd is."""

from pathlib import Path
from typing import ClassVar, Final, Literal, Self

from pydantic import Field, model_validator

from holdfast.common.certificates import PemFiles
from holdfast.serving.settings import ADDRESSES_PATTERN, NAME_PATTERN, ContradictionError, ServerSettings, is_loopback
from holdfast.serving.tls import ServerTls

Contradiction = tuple[str, str, str]  # a field, what must hold, another field or nothing

SECRETS: Final = ("etcd_password",)  # never shown

# Of each pair both or none.
_PAIRS: Final = (
    ("etcd_user", "etcd_password"), ("etcd_certificate", "etcd_key"), ("tls_cert", "tls_key"),
    ("broker_cert", "broker_key"),
)  # fmt: skip
_OPEN: Final = (
    "because anybody on the network may call a server beyond this machine "
    '(insecure = "on", or --insecure, lets it start all the same):'
)
_ENCRYPT: Final = f'must be set, with tls_client_certs = "required", access = "required" or an access_file, {_OPEN}'
_KNOW: Final = f'must be "required", unless access is, or there is an access_file, {_OPEN}'


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
    tls_cert: Path | None = Field(None, description="PEM file with this server's certificate: TLS on its ports")
    tls_key: Path | None = Field(None, description="PEM file with the key of tls_cert")
    tls_ca: Path | None = Field(None, description="PEM file with who signs certificates of callers, and of brokers")
    broker_ca: Path | None = Field(None, description="PEM file: TLS in calls to brokers; tls_ca unless set")
    broker_cert: Path | None = Field(None, description="PEM file with what brokers are shown; tls_cert unless set")
    broker_key: Path | None = Field(None, description="PEM file with the key of broker_cert")
    ops_host: str | None = Field(
        None, min_length=1, max_length=255, description="address of the HTTP port; host unless set"
    )
    ops_tls: Literal["on", "off"] = Field("off", description="TLS on the HTTP port too, with tls_cert")
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
        for pair in _PAIRS:
            given = [name for name in pair if getattr(self, name) is not None]
            if len(given) == 1:
                missing = next(name for name in pair if name not in given)
                found.append((given[0], "must come together with", missing))
        if self.etcd_certificate is not None and self.etcd_authority is None:
            found.append(("etcd_certificate", "must come together with", "etcd_authority"))
        if self.ops_tls == "on" and self.tls_cert is None:
            found.append(("ops_tls", "must come together with", "tls_cert"))
        return found

    @property
    def server_tls(self) -> ServerTls | None:
        """Of its own ports."""
        if self.tls_cert is None or self.tls_key is None:
            return None
        return ServerTls(self.tls_cert, self.tls_key)

    @property
    def broker_tls(self) -> PemFiles | None:
        """Of calls to brokers."""
        authority = self.broker_ca or self.tls_ca
        if authority is None:
            return None
        if self.broker_cert is not None:
            return PemFiles(authority, self.broker_cert, self.broker_key)
        return PemFiles(authority, self.tls_cert, self.tls_key)

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


class CallerSettings(AccessSettings):
    """Of servers that clients call."""

    frames_host: str | None = Field(
        None, min_length=1, max_length=255, description="address on which frames are served; host unless set"
    )
    tls_client_certs: Literal["no", "required"] = Field(
        "no", description="whether callers must show a certificate that tls_ca has signed"
    )
    insecure: Literal["on", "off"] = Field(
        "off", description="on lets it listen beyond this machine although anybody may call it; never where others are"
    )

    def contradictions(self) -> list[Contradiction]:
        found = super().contradictions()
        if self.tls_client_certs == "required":
            found += [
                ("tls_client_certs", "must come together with", name)
                for name in ("tls_cert", "tls_ca")
                if getattr(self, name) is None
            ]
        if self.is_exposed and self.insecure == "off":
            missing, rule = ("tls_cert", _ENCRYPT) if self.tls_cert is None else ("tls_client_certs", _KNOW)
            found.append((missing, rule, "host"))
        return found

    @property
    def server_tls(self) -> ServerTls | None:
        if self.tls_cert is None or self.tls_key is None:
            return None
        return ServerTls(self.tls_cert, self.tls_key, self.tls_ca, asks_callers=self.tls_client_certs == "required")

    @property
    def knows_callers(self) -> bool:
        """Whether callers have to prove who they are."""
        return self.tls_client_certs == "required" or self.asks_who_calls

    @property
    def is_closed(self) -> bool:
        """Whether nobody who does not belong can call, or read what others say."""
        return self.tls_cert is not None and self.knows_callers

    @property
    def is_exposed(self) -> bool:
        """Whether others than this machine can reach it although it is open to everybody."""
        return not self.is_closed and not all(map(is_loopback, (self.host, self.frames_host or self.host)))


class MapSettings(ClusterSettings):
    """Of servers that are nothing without the map."""

    etcd_endpoints: str | None = Field(
        "127.0.0.1:2379", pattern=ADDRESSES_PATTERN, description="host:port of etcd, several with commas"
    )
