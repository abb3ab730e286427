"""TLS of a server's own ports: what it shows, and whether callers have to show something.

gRPC takes the content of the files, frames and HTTP a context; all of them are made at once, so that a server never
shows an old certificate on one port and a new one on another.
"""

import ssl
from dataclasses import dataclass
from pathlib import Path

from holdfast.common.certificates import CertificateError, Pem, PemFiles
from holdfast.serving.reloading import Reloaded

_FILES = "a certificate of this server, its key, and who signs those of callers"


@dataclass(frozen=True, slots=True)
class ServerContexts:
    """For connections that begin now."""

    pem: Pem  # for gRPC
    frames: ssl.SSLContext
    http: ssl.SSLContext  # asks nobody for a certificate: probes and scrapes have none
    expires_s: float


@dataclass(frozen=True, slots=True)
class ServerTls:
    certificate: Path  # PEM; intermediate certificates may follow it
    key: Path
    authority: Path | None = None  # who signs certificates of callers
    asks_callers: bool = False  # for a certificate, without which they are not let in

    def contexts(self) -> ServerContexts:
        """Reads the files: not for the event loop. Raises CertificateError."""
        files = PemFiles(self.authority, self.certificate, self.key)
        frames = files.context(ssl.PROTOCOL_TLS_SERVER, what=_FILES)
        if self.asks_callers:
            frames.verify_mode = ssl.CERT_REQUIRED
        http = PemFiles(None, self.certificate, self.key).context(ssl.PROTOCOL_TLS_SERVER, what=_FILES)
        pem = files.read(what=_FILES)
        return ServerContexts(pem, frames, http, pem.expires_s)

    def reloaded(self) -> Reloaded[ServerContexts]:
        """The same, made anew when the files change. Connections that are there go on with what they began with."""
        paths = [self.certificate, self.key, self.authority]
        return Reloaded("callers", paths, self.contexts, errors=CertificateError)


class Listening:
    """What the ports of a server go by."""

    def __init__(self, tls: ServerTls) -> None:
        """Reads the files: not for the event loop."""
        self.certificates = tls.reloaded()
        self.asks_callers = tls.asks_callers

    def frames(self) -> ssl.SSLContext:
        return self.certificates.current.frames

    def http(self) -> ssl.SSLContext:
        return self.certificates.current.http

    def pem(self) -> Pem:
        return self.certificates.current.pem
