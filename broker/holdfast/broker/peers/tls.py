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

from holdfast.common.certificates import CertificateError, PemFiles, names_of
from holdfast.serving.reloading import Reloaded

_FILES = "a certificate, its key and an authority"


@dataclass(frozen=True, slots=True)
class PeerTls:
    certificate: Path  # of this node, PEM; intermediate certificates may follow it
    key: Path
    authority: Path  # whose certificates are trusted, PEM

    def contexts(self) -> "PeerContexts":
        """Reads the files: not for the event loop. Raises CertificateError."""
        files = PemFiles(self.authority, self.certificate, self.key)
        accepting, dialling = (
            files.context(side, what=_FILES) for side in (ssl.PROTOCOL_TLS_SERVER, ssl.PROTOCOL_TLS_CLIENT)
        )
        for context in (accepting, dialling):
            context.minimum_version = ssl.TLSVersion.TLSv1_3  # both ends are ours
            context.check_hostname = False  # names of nodes are checked, not of hosts
            context.verify_mode = ssl.CERT_REQUIRED
        return PeerContexts(accepting, dialling, files.read(what=_FILES).expires_s)

    def reloaded(self) -> Reloaded["PeerContexts"]:
        """The same, made anew when the files change. Connections that are there go on with what they began with."""
        return Reloaded("peers", [self.certificate, self.key, self.authority], self.contexts, errors=CertificateError)


@dataclass(frozen=True, slots=True)
class PeerContexts:
    """For connections that come in, and for those that go out."""

    accepting: ssl.SSLContext
    dialling: ssl.SSLContext
    expires_s: float


def certified_names(certificate: Mapping[str, Any]) -> Set[str]:
    """The names, in small letters, that a checked certificate (of `getpeercert`) was issued for."""
    return {name.lower() for name in names_of(certificate)}
