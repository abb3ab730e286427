"""Certificates as `holdfast certs` makes them, and some that nobody should have."""

import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from holdfast.cli import certificates
from holdfast.cli.certificates import Kind as Kind
from holdfast.client import Tls


class CertsDirectory:
    """Like a directory of `holdfast certs`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        certificates.make_authorities(path)

    def issue(self, name: str, kind: Kind, hosts: Sequence[str] = (), *, days: int = 90, renew: bool = False) -> None:
        certificates.issue(self.path, name, kind, hosts, days=days, renew=renew)

    def client(self, name: str) -> Tls:
        """A client's; made when it is first asked for."""
        if not (self.path / f"{name}.crt").exists():
            self.issue(name, Kind.CLIENT)
        return Tls(self.path / "ca.crt", self.path / f"{name}.crt", self.path / f"{name}.key")

    @property
    def only_trust(self) -> Tls:
        """Of a client that shows nothing."""
        return Tls(self.path / "ca.crt")

    def settings(self, name: str, kind: Kind = Kind.NODE, hosts: Sequence[str] = ()) -> dict[str, Any]:
        """Of a server that asks callers for certificates."""
        if not (self.path / f"{name}.crt").exists():
            self.issue(name, kind, hosts)
        return {
            "tls_cert": self.path / f"{name}.crt", "tls_key": self.path / f"{name}.key", "tls_ca": self.path / "ca.crt",
            "tls_client_certs": "required",
        }  # fmt: skip

    def peer_settings(self, name: str) -> dict[str, Any]:
        """What a node shows to other nodes."""
        return {
            "peer_certificate": self.path / f"{name}-peers.crt", "peer_key": self.path / f"{name}-peers.key",
            "peer_authority": self.path / "peers-ca.crt",
        }  # fmt: skip

    def trust(self, *others: "CertsDirectory", own: bool = True) -> None:
        """From now on these authorities are trusted, in the place of what was."""
        for name in ("ca.crt", "peers-ca.crt"):
            first = self.path / f"first-{name}"
            if not first.exists():
                shutil.copy(self.path / name, first)
            trusted = [first] * own + [other.path / name for other in others]
            made = self.path / f"{name}.new"
            made.write_bytes(b"".join(path.read_bytes() for path in trusted))
            os.replace(made, self.path / name)

    def take_from(self, other: "CertsDirectory", name: str) -> None:
        """The certificates of this name that the other one has issued."""
        for file in (f"{name}.key", f"{name}.crt", f"{name}-peers.key", f"{name}-peers.crt"):
            if (other.path / file).exists():
                shutil.copy(other.path / file, self.path / f"{file}.new")
                os.replace(self.path / f"{file}.new", self.path / file)
