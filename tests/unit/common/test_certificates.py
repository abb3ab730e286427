"""Certificates in files: what they are good for, and until when."""

import random
import ssl
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from holdfast.common.certificates import CertificateError, PemFiles, expiry_s
from tests.tls_files import CertsDirectory, Kind

FILES = "something"


@pytest.fixture(scope="module")
def certs(tmp_path_factory: pytest.TempPathFactory) -> CertsDirectory:
    certs = CertsDirectory(tmp_path_factory.mktemp("certs") / "certs")
    certs.issue("n1", Kind.NODE, days=30)
    return certs


def files(certs: CertsDirectory, name: str = "n1") -> PemFiles:
    return PemFiles(certs.path / "ca.crt", certs.path / f"{name}.crt", certs.path / f"{name}.key")


def test_when_a_certificate_ends(certs: CertsDirectory) -> None:
    pem = (certs.path / "n1.crt").read_bytes()
    wanted = datetime.now(UTC) + timedelta(days=30)
    assert abs(expiry_s(pem) - wanted.timestamp()) < 300
    assert expiry_s((certs.path / "ca.crt").read_bytes() + pem) == expiry_s(pem), "the first of several"
    assert expiry_s(b"") == float("inf")
    assert files(certs).read(what=FILES).expires_s == expiry_s(pem)


def test_after_2049_years_have_four_digits(tmp_path: Path) -> None:
    """Then dates are written in another way."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key, name = ec.generate_private_key(ec.SECP256R1()), x509.Name([])
    ends = datetime(2060, 2, 3, 4, 5, 6, tzinfo=UTC)
    builder = x509.CertificateBuilder().subject_name(name).issuer_name(name).public_key(key.public_key())
    builder = builder.serial_number(1).not_valid_before(datetime(2020, 1, 1, tzinfo=UTC)).not_valid_after(ends)
    pem = builder.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)
    assert expiry_s(pem) == ends.timestamp()


def test_whatever_is_between_the_lines_is_a_certificate_or_an_error(certs: CertsDirectory) -> None:
    pem = (certs.path / "n1.crt").read_bytes()
    chance = random.Random(1)
    for _ in range(2_000):
        data = bytearray(pem)
        for _ in range(chance.randrange(1, 5)):
            data[chance.randrange(len(data))] = chance.randrange(256)
        try:
            assert expiry_s(bytes(data)) > 0
        except ValueError:
            pass


def test_files_that_do_not_fit_each_other_are_named(certs: CertsDirectory, tmp_path: Path) -> None:
    certs.issue("n2", Kind.NODE)
    empty, locked = tmp_path / "empty.pem", tmp_path / "large.pem"
    empty.write_text("")
    locked.write_bytes(b"x" * (1024 * 1024 + 1))
    good = files(certs)
    for wrong in (
        PemFiles(good.authority, good.certificate, certs.path / "n2.key"),
        PemFiles(tmp_path / "gone.pem"),
        PemFiles(empty),
        PemFiles(good.authority, empty, good.key),
    ):
        with pytest.raises(CertificateError, match="Expected something in .* cannot be used") as raised:
            wrong.context(ssl.PROTOCOL_TLS_CLIENT, what=FILES)
        assert all(str(path) in str(raised.value) for path in wrong.paths)
    with pytest.raises(CertificateError, match="more than 1048576 bytes"):
        PemFiles(locked).read(what=FILES)


def test_without_an_authority_those_of_the_system_count() -> None:
    context = PemFiles().context(ssl.PROTOCOL_TLS_CLIENT, what=FILES)
    assert context.verify_mode is ssl.CERT_REQUIRED
    assert context.check_hostname
    assert context.minimum_version is ssl.TLSVersion.TLSv1_2
