"""Certificates in files of PEM: read, checked, and how long they are good."""

import base64
import re
import ssl
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

FILE_BYTES_MAX = 1024 * 1024
_BLOCK = re.compile(rb"-----BEGIN CERTIFICATE-----(.+?)-----END CERTIFICATE-----", re.DOTALL)
_SEQUENCE, _VERSION, _UTC_TIME, _GENERAL_TIME = 0x30, 0xA0, 0x17, 0x18


class CertificateError(Exception):
    """Files cannot be used: which, and why."""


@dataclass(frozen=True, slots=True)
class Pem:
    """What was in the files at one moment."""

    authority: bytes | None
    certificate: bytes | None
    key: bytes | None
    expires_s: float  # of the certificate, or else of the authority, whichever of its file ends first; since 1970


@dataclass(frozen=True, slots=True)
class PemFiles:
    """Whom to trust, and what to show. Without an authority those are trusted that the system trusts."""

    authority: Path | None = None
    certificate: Path | None = None  # intermediate certificates may follow it
    key: Path | None = None

    @property
    def paths(self) -> list[Path]:
        return [path for path in (self.authority, self.certificate, self.key) if path is not None]

    def context(self, side: int, *, what: str) -> ssl.SSLContext:
        """Of TLS 1.2 or newer. Reads the files: not for the event loop of a server. `what`: whose they are."""
        context = ssl.SSLContext(side)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        try:
            if self.certificate is not None:
                context.load_cert_chain(self.certificate, self.key, password=_no_password)
            if self.authority is not None:
                context.load_verify_locations(self.authority)
            elif side == ssl.PROTOCOL_TLS_CLIENT:
                context.load_default_certs()
        except (OSError, ValueError) as error:
            named = " and ".join(map(str, self.paths))
            raise CertificateError(f"Expected {what} in {named}, but they cannot be used: {error}.") from error
        return context

    def read(self, *, what: str) -> Pem:
        """For libraries that take the content. What is wrong with it the context has found before."""
        try:
            authority, certificate, key = map(_read, (self.authority, self.certificate, self.key))
            expires_s = expiry_s(certificate or authority or b"")
        except (OSError, ValueError) as error:
            named = " and ".join(map(str, self.paths))
            raise CertificateError(f"Expected {what} in {named}, but they cannot be used: {error}.") from error
        return Pem(authority, certificate, key, expires_s)


def _read(path: Path | None) -> bytes | None:
    if path is None:
        return None
    with path.open("rb") as file:
        data = file.read(FILE_BYTES_MAX + 1)
    if len(data) > FILE_BYTES_MAX:
        raise ValueError(f"{path} has more than {FILE_BYTES_MAX} bytes")
    return data


def _no_password() -> str:
    """Instead of asking on the terminal, where nobody may be."""
    raise ValueError("the key is protected by a password")


def expiry_s(pem: bytes) -> float:
    """When the first of the certificates in it ends, in seconds since 1970; infinity if there is none.

    Of all that a certificate says Python tells this only to who has seen it in a connection."""
    try:
        ends = [_not_after_s(base64.b64decode(block)) for block in _BLOCK.findall(pem)]
    except IndexError:
        raise ValueError("a certificate is cut off") from None
    return min(ends, default=float("inf"))


def _not_after_s(der: bytes) -> float:
    """The way through RFC 5280, 4.1: certificate, what is signed in it, and there, behind an optional version, a serial
    number, an algorithm and an issuer, from when until when."""
    start, _ = _open(der, 0, _SEQUENCE)
    start, _ = _open(der, start, _SEQUENCE)
    if der[start] == _VERSION:
        start = _open(der, start)[1]
    for _field in ("serial number", "algorithm", "issuer"):
        start = _open(der, start)[1]
    start, _ = _open(der, start, _SEQUENCE)
    start = _open(der, start)[1]  # not before
    tag = der[start]
    begin, end = _open(der, start)
    text = der[begin:end].decode("ascii")
    if tag == _UTC_TIME:
        text = ("20" if text[:2] < "50" else "19") + text
    elif tag != _GENERAL_TIME:
        raise ValueError("a certificate does not say how long it is good")
    return datetime.strptime(text, "%Y%m%d%H%M%SZ").replace(tzinfo=UTC).timestamp()


def _open(der: bytes, at: int, tag: int | None = None) -> tuple[int, int]:
    """Where the content of what begins here begins and ends."""
    if tag is not None and der[at] != tag:
        raise ValueError("a certificate is not as it should be")
    size, at = der[at + 1], at + 2
    if size & 0x80:
        width = size & 0x7F
        size, at = int.from_bytes(der[at : at + width], "big"), at + width
    if at + size > len(der):
        raise IndexError
    return at, at + size


def names_of(certificate: Any) -> list[str]:
    """What a checked certificate (of `getpeercert`) was issued for: DNS names and the common name, as they stand."""
    names = [value for kind, value in certificate.get("subjectAltName", ()) if kind == "DNS"]
    return names + [
        value for part in certificate.get("subject", ()) for kind, value in part if kind == "commonName"
    ]  # fmt: skip
