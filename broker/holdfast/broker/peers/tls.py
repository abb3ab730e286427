"""TLS between nodes, on both sides: each proves with a certificate of the common authority that it is the node it says.

The address that was dialled proves nothing and is not checked: what must be in the certificate is the node's *name*,
as a DNS name or as the common name. The names are compared with the hello (words.py), so that both sides can say what
is wrong in words rather than with a broken handshake.
"""

import ssl
from collections.abc import Mapping, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Any


class PeerTlsError(Exception):
    """The certificate, its key or the authority cannot be used."""


@dataclass(frozen=True, slots=True)
class PeerTls:
    certificate: Path  # of this node, PEM; intermediate certificates may follow it
    key: Path
    authority: Path  # whose certificates are trusted, PEM

    def contexts(self) -> tuple[ssl.SSLContext, ssl.SSLContext]:
        """For connections that come in, and for those that go out. Reads the files: not for the event loop."""
        return self._context(ssl.PROTOCOL_TLS_SERVER), self._context(ssl.PROTOCOL_TLS_CLIENT)

    def _context(self, side: int) -> ssl.SSLContext:
        context = ssl.SSLContext(side)
        context.minimum_version = ssl.TLSVersion.TLSv1_3  # both ends are ours
        context.check_hostname = False  # names of nodes are checked, not of hosts
        context.verify_mode = ssl.CERT_REQUIRED
        try:
            context.load_cert_chain(self.certificate, self.key, password=_no_password)
            context.load_verify_locations(self.authority)
        except (OSError, ValueError) as error:
            raise PeerTlsError(
                f"Expected a certificate, its key and an authority in {self.certificate}, {self.key} and "
                f"{self.authority}, but they cannot be used: {error}."
            ) from error
        return context


def _no_password() -> str:
    """Instead of asking on the terminal, where nobody may be."""
    raise ValueError("the key is protected by a password")


def certified_names(certificate: Mapping[str, Any]) -> Set[str]:
    """The names, in small letters, that a checked certificate (of `getpeercert`) was issued for."""
    names = {value for kind, value in certificate.get("subjectAltName", ()) if kind == "DNS"}
    names |= {value for part in certificate.get("subject", ()) for kind, value in part if kind == "commonName"}
    return {name.lower() for name in names}
