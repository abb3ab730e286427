"""What every server of a cluster is told about etcd."""

from pathlib import Path
from typing import Final

from pydantic import Field

from holdfast.serving.settings import ADDRESSES_PATTERN, NAME_PATTERN, Settings

SECRETS: Final = ("etcd_password",)  # never shown

_FILES: Final = ("etcd_certificate", "etcd_key")


class ClusterSettings(Settings):
    """Which cluster a server belongs to, and where its map is."""

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

    def etcd_contradictions(self) -> list[tuple[str, str, str]]:
        found: list[tuple[str, str, str]] = []
        for pair in (("etcd_user", "etcd_password"), _FILES):
            given = [name for name in pair if getattr(self, name) is not None]
            if len(given) == 1:
                missing = next(name for name in pair if name not in given)
                found.append((given[0], "must come together with", missing))
        if self.etcd_certificate is not None and self.etcd_authority is None:
            found.append(("etcd_certificate", "must come together with", "etcd_authority"))
        return found

    @property
    def etcd_addresses(self) -> list[str]:
        return [each.strip() for each in (self.etcd_endpoints or "").split(",") if each.strip()]
