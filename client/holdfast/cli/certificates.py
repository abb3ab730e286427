"""Authorities and certificates in a directory, for clusters that have nobody else who makes them. The only file here
that knows cryptography.

    ca.crt, ca.key               who signs what servers and clients show each other
    peers-ca.crt, peers-ca.key   who signs what nodes show each other, and nothing else: no other certificate makes
                                 its holder a node
    NAME.crt, NAME.key           of a node, a router or a client
    NAME-peers.crt, …-peers.key  of a node, towards the other nodes

Keys are of the curve P-256, and readable by their owner only.
"""

import ipaddress
import os
import re
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

DAYS_MAX = 3650
AUTHORITY_DAYS = 3650
DAYS = 90
HOSTS_MAX = 64
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")

_CLIENTS = "ca"
_PEERS = "peers-ca"
_OF_PEER = "-peers"
_EARLIER = timedelta(minutes=5)  # clocks differ
_HOST = re.compile(r"(\*\.)?[A-Za-z0-9]([A-Za-z0-9-]{0,62})(\.[A-Za-z0-9]([A-Za-z0-9-]{0,62}))*")
_FILE_BYTES_MAX = 64 * 1024


class CertificatesError(Exception):
    """Nothing was made. `hint`: what to do about it."""

    def __init__(self, reason: str, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.reason = reason
        self.hint = hint


class Kind(StrEnum):
    NODE = "node"
    ROUTER = "router"
    CLIENT = "client"


@dataclass(frozen=True, slots=True)
class Made:
    """A certificate, and where it is."""

    name: str
    kind: str  # also: authority
    certificate: Path
    key: Path
    hosts: tuple[str, ...]
    expires: datetime


def make_authorities(directory: Path, days: int = AUTHORITY_DAYS) -> list[Made]:
    """The two that sign all others. Refuses a directory that has them."""
    _make_directory(directory)
    names = (_CLIENTS, _PEERS)
    _refuse_existing([path for name in names for path in _files(directory, name)])
    return [_make_authority(directory, name, days) for name in names]


def issue(
    directory: Path, name: str, kind: Kind, hosts: Sequence[str] = (), *, days: int = DAYS, renew: bool = False
) -> list[Made]:
    """What one node, router or client needs; of a node also what it shows to the other nodes.

    `renew`: new keys and certificates take the place of those that are there, each file at once; without hosts they
    are for the same ones."""
    _check_name(name)
    if kind is Kind.CLIENT and hosts:
        raise CertificatesError(
            "INVALID_HOST", "Expected hosts of nodes and routers only: nobody connects to a client."
        )
    wanted = [(_CLIENTS, name)] + ([(_PEERS, name + _OF_PEER)] if kind is Kind.NODE else [])
    if renew:
        hosts = hosts or _hosts_of(_files(directory, name)[0])
    else:
        _refuse_existing([path for _, file in wanted for path in _files(directory, file)])
    alternatives = _alternatives(name, kind, hosts)
    return [
        _issue_one(directory, authority, name, file, kind, alternatives, days) for authority, file in wanted
    ]  # fmt: skip


def listed(directory: Path) -> list[Made]:
    """All certificates of the directory, by their files' names."""
    found = []
    for path in sorted(directory.glob("*.crt")):
        certificate = _read_certificate(path)
        subject = certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
        unit = certificate.subject.get_attributes_for_oid(NameOID.ORGANIZATIONAL_UNIT_NAME)
        found.append(
            Made(
                str(subject[0].value) if subject else path.stem, str(unit[0].value) if unit else "", path,
                path.with_suffix(".key"), _names_in(certificate), certificate.not_valid_after_utc,
            )
        )  # fmt: skip
    if not found:
        raise _no_authority(directory)
    return found


# --- one certificate --------------------------------------------------------------------------------------------


def _make_authority(directory: Path, name: str, days: int) -> Made:
    key = ec.generate_private_key(ec.SECP256R1())
    subject = _subject(f"Holdfast {name}", "authority")
    usage = _key_usage(signs_certificates=True)
    builder = _begun(subject, subject, key.public_key(), days)
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    certificate = builder.add_extension(usage, critical=True).sign(key, hashes.SHA256())
    return _write(directory, name, "authority", certificate, key, certificate, renews=False)


def _issue_one(
    directory: Path, authority: str, name: str, file: str, kind: Kind, alternatives: Sequence[x509.GeneralName],
    days: int,
) -> Made:  # fmt: skip
    signer, signing_key = _read_authority(directory, authority)
    if datetime.now(UTC) + timedelta(days=days) > signer.not_valid_after_utc:
        raise CertificatesError(
            "AUTHORITY_EXPIRES",
            f"Expected a certificate that ends before its authority does, {signer.not_valid_after_utc:%Y-%m-%d}.",
            "Give fewer --days, or make new authorities in another directory.",
        )
    key = ec.generate_private_key(ec.SECP256R1())
    uses = [ExtendedKeyUsageOID.CLIENT_AUTH]
    if kind is not Kind.CLIENT:
        uses.append(ExtendedKeyUsageOID.SERVER_AUTH)
    builder = _begun(_subject(name, kind), signer.subject, key.public_key(), days)
    builder = builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
    builder = builder.add_extension(_key_usage(signs_certificates=False), critical=True)
    builder = builder.add_extension(x509.ExtendedKeyUsage(uses), critical=False)
    builder = builder.add_extension(x509.SubjectAlternativeName(alternatives), critical=False)
    builder = builder.add_extension(
        x509.AuthorityKeyIdentifier.from_issuer_public_key(signing_key.public_key()), critical=False
    )
    return _write(directory, file, kind, builder.sign(signing_key, hashes.SHA256()), key, signer, renews=True)


def _begun(
    subject: x509.Name, issuer: x509.Name, public_key: ec.EllipticCurvePublicKey, days: int
) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    builder = x509.CertificateBuilder().subject_name(subject).issuer_name(issuer).public_key(public_key)
    builder = builder.serial_number(x509.random_serial_number())
    builder = builder.not_valid_before(now - _EARLIER).not_valid_after(now + timedelta(days=days))
    return builder.add_extension(x509.SubjectKeyIdentifier.from_public_key(public_key), critical=False)


def _subject(name: str, kind: str) -> x509.Name:
    return x509.Name([
        x509.NameAttribute(NameOID.ORGANIZATIONAL_UNIT_NAME, kind), x509.NameAttribute(NameOID.COMMON_NAME, name),
    ])  # fmt: skip


def _key_usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates, key_cert_sign=signs_certificates, crl_sign=signs_certificates,
        content_commitment=False, key_encipherment=False, data_encipherment=False, key_agreement=False,
        encipher_only=False, decipher_only=False,
    )  # fmt: skip


def _alternatives(name: str, kind: Kind, hosts: Sequence[str]) -> list[x509.GeneralName]:
    """The node's own name, which other nodes look for, and where it is found. What runs on the same machine may always
    call it by localhost: probes, and commands in its container."""
    if len(hosts) > HOSTS_MAX:
        raise CertificatesError("TOO_MANY_HOSTS", f"Expected at most {HOSTS_MAX} hosts, but got {len(hosts)}.")
    local = () if kind is Kind.CLIENT else ("localhost", "127.0.0.1", "::1")
    return [_alternative(host) for host in dict.fromkeys((name, *hosts, *local))]


def _alternative(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host.strip("[]")))
    except ValueError:
        pass
    # A name of a client may have what no host has.
    if len(host) > 253 or not (_HOST.fullmatch(host) or NAME.fullmatch(host)):
        raise CertificatesError(
            "INVALID_HOST", f"Expected a DNS name or an IP address, without a port, but got {host[:80]!r}."
        )
    return x509.DNSName(host)


def _names_in(certificate: x509.Certificate) -> tuple[str, ...]:
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return ()
    return tuple(str(name.value) for name in names)


def _hosts_of(path: Path) -> tuple[str, ...]:
    if not path.exists():
        raise CertificatesError("NOT_FOUND", f"There is no certificate {path} to renew.", "Leave --renew out.")
    return _names_in(_read_certificate(path))


# --- files ------------------------------------------------------------------------------------------------------


def _files(directory: Path, name: str) -> tuple[Path, Path]:
    return directory / f"{name}.crt", directory / f"{name}.key"


def _check_name(name: str) -> None:
    if not NAME.fullmatch(name):
        raise CertificatesError(
            "INVALID_NAME",
            f"Expected a name of 1 to 64 letters, digits, dots, dashes or underscores, but got {name[:80]!r}.",
        )
    if name in (_CLIENTS, _PEERS) or name.endswith(_OF_PEER):
        raise CertificatesError("INVALID_NAME", f"Expected another name: the files of {name} have another meaning.")


def _make_directory(directory: Path) -> None:
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise CertificatesError("NOT_WRITTEN", f"Cannot make {directory}: {error.strerror}.") from error


def _refuse_existing(paths: Sequence[Path]) -> None:
    for path in paths:
        if path.exists():
            raise CertificatesError(
                "EXISTS", f"{path} is there already: nothing was made.",
                "Choose another --dir or name; --renew replaces the certificate of a node, router or client.",
            )  # fmt: skip


def _write(
    directory: Path, file: str, kind: str, certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey,
    signer: x509.Certificate, *, renews: bool,
) -> Made:  # fmt: skip
    certificate_path, key_path = _files(directory, file)
    _check_issued(certificate, signer)
    key_pem = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    pem = certificate.public_bytes(serialization.Encoding.PEM)
    try:
        # Between the two a server sees a key that does not fit: it keeps the former pair until both are there.
        _write_file(key_path, key_pem, 0o600)
        _write_file(certificate_path, pem, 0o644)
    except OSError as error:
        raise CertificatesError("NOT_WRITTEN", f"Cannot write {error.filename}: {error.strerror}.") from error
    name = str(certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)[0].value)
    return Made(name, kind, certificate_path, key_path, _names_in(certificate), certificate.not_valid_after_utc)


def _check_issued(certificate: x509.Certificate, signer: x509.Certificate) -> None:
    certificate.verify_directly_issued_by(signer)


def _write_file(path: Path, data: bytes, mode: int) -> None:
    """The file is there whole or not at all, and at no moment readable by others if it should not be."""
    temporary = path.with_name(f"{path.name}.{secrets.token_hex(4)}.tmp")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def _read_authority(directory: Path, name: str) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
    certificate_path, key_path = _files(directory, name)
    if not (certificate_path.exists() and key_path.exists()):
        raise _no_authority(directory)
    certificate = _read_certificate(certificate_path)
    try:
        key = serialization.load_pem_private_key(_read(key_path), password=None)
    except (ValueError, TypeError) as error:
        raise CertificatesError("UNREADABLE", f"Expected a key without a password in {key_path}.") from error
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise CertificatesError("UNREADABLE", f"Expected a key of an elliptic curve in {key_path}.")
    return certificate, key


def _read_certificate(path: Path) -> x509.Certificate:
    try:
        return x509.load_pem_x509_certificate(_read(path))
    except ValueError as error:
        raise CertificatesError("UNREADABLE", f"Expected a certificate in {path}, but it cannot be read.") from error


def _read(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(_FILE_BYTES_MAX)
    except OSError as error:
        raise CertificatesError("UNREADABLE", f"Cannot read {path}: {error.strerror}.") from error


def _no_authority(directory: Path) -> CertificatesError:
    return CertificatesError(
        "NO_AUTHORITY", f"There is no authority in {directory}.", f"Make one: holdfast certs init --dir {directory}"
    )
