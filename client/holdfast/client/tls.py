"""How a client speaks TLS: whom it trusts, and what it shows."""

import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from holdfast.client.errors import InvalidArgument
from holdfast.common.certificates import CertificateError, PemFiles
from holdfast.common.reloading import POLL_SECONDS, Reloaded
from holdfast.transport.tls import ChannelTls, channel_tls

CA_VARIABLE = "HOLDFAST_TLS_CA"
CERT_VARIABLE = "HOLDFAST_TLS_CERT"
KEY_VARIABLE = "HOLDFAST_TLS_KEY"


@dataclass(frozen=True, slots=True)
class Tls:
    """TLS to the servers, for `tls=` of `Holdfast`, `Client`, `AsyncClient` and `Worker`.

    ca: a PEM file with who signs the certificates of the servers; without it those count that this machine trusts.
    cert, key: PEM files with what this client shows to servers that ask for a certificate.
    The name or address by which a server is called must be in its certificate. The files are read when the client
    is made; when they change, calls from then on go over new connections, and none fails for it.

    >>> Tls(ca="ca.crt", cert="billing.crt", key="billing.key")
    Tls(ca='ca.crt', cert='billing.crt', key='billing.key')
    """

    ca: str | Path | None = None
    cert: str | Path | None = None
    key: str | Path | None = None

    def __post_init__(self) -> None:
        for name in ("ca", "cert", "key"):
            value = getattr(self, name)
            if value is not None and (not isinstance(value, str | os.PathLike) or not str(value)):
                raise _refused(f"tls.{name}", f"Expected tls.{name} to be the path of a file, but got {value!r}.")
        for name, other in (("cert", "key"), ("key", "cert")):
            if getattr(self, name) is not None and getattr(self, other) is None:
                raise _refused(f"tls.{other}", f"Expected tls.{other} together with tls.{name}, but it is missing.")

    def files(self) -> PemFiles:
        return PemFiles(*(None if path is None else Path(path) for path in (self.ca, self.cert, self.key)))


def tls_of(environment: Mapping[str, str]) -> Tls | None:
    """What the environment says; None if it says nothing."""
    ca, cert, key = (environment.get(name) or None for name in (CA_VARIABLE, CERT_VARIABLE, KEY_VARIABLE))
    return None if ca is None and cert is None and key is None else Tls(ca, cert, key)


def checked_tls(given: object) -> Tls | None:
    """`tls=` as it was given."""
    if given is None or isinstance(given, Tls):
        return given
    raise _refused("tls", f'Expected tls to be a Tls, but got {type(given).__name__}: tls=Tls(ca="ca.crt").')


class CurrentTls:
    """Looks at the files again when it is asked, every now and then."""

    def __init__(self, tls: Tls) -> None:
        """Reads them; raises InvalidArgument."""
        files = tls.files()
        try:
            self._reloaded = Reloaded("this client", files.paths, lambda: channel_tls(files), errors=CertificateError)
        except CertificateError as error:
            raise _refused("tls", str(error)) from error
        self._polled_s = time.monotonic()

    @property
    def current(self) -> ChannelTls:
        now_s = time.monotonic()
        if now_s - self._polled_s >= POLL_SECONDS:
            self._polled_s = now_s
            self._reloaded.poll()
        return self._reloaded.current


def _refused(field: str, sentence: str) -> InvalidArgument:
    return InvalidArgument(sentence, reason="INVALID_FIELD", field=field)
