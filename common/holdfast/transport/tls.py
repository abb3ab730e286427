"""TLS of connections to servers, for routers and clients."""

import ssl
from dataclasses import dataclass
from typing import Protocol

from holdfast.common.certificates import Pem, PemFiles

_FILES = "who signs the servers' certificates, and a certificate of its own with its key,"


@dataclass(frozen=True, slots=True)
class ChannelTls:
    """For connections that begin now."""

    pem: Pem  # for gRPC
    context: ssl.SSLContext  # for frames

    @property
    def expires_s(self) -> float:
        return self.pem.expires_s


class TlsSource(Protocol):
    """Where the newest is."""

    @property
    def current(self) -> ChannelTls: ...


def channel_tls(files: PemFiles) -> ChannelTls:
    """Reads the files: not for the event loop of a server. Raises CertificateError."""
    context = files.context(ssl.PROTOCOL_TLS_CLIENT, what=_FILES)
    return ChannelTls(files.read(what=_FILES), context)
