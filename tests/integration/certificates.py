"""Certificates for tests, made with the openssl command."""

import shutil
import subprocess
from pathlib import Path

import pytest

from holdfast.broker.peers import PeerTls


class Authority:
    def __init__(self, directory: Path, name: str) -> None:
        if shutil.which("openssl") is None:
            pytest.skip("needs the openssl command")
        self.directory = directory
        self.certificate = directory / f"{name}.pem"
        self.key = directory / f"{name}.key"
        self._new_key(self.key)
        self._run(
            "req", "-x509", "-new", "-key", self.key, "-subj", f"/CN={name}", "-days", "2", "-out", self.certificate
        )

    def issue(self, file: str, *, subject: str, names: str = "", days: int = 2) -> PeerTls:
        """A certificate for this subject, good for both sides; `names` are alternative ones, as in `DNS:n1,DNS:n2`."""
        key, request, certificate, extra = (self.directory / f"{file}.{kind}" for kind in ("key", "csr", "pem", "ext"))
        self._new_key(key)
        extra.write_text(f"subjectAltName={names}\n" if names else "basicConstraints=CA:FALSE\n")
        self._run("req", "-new", "-key", key, "-subj", f"/CN={subject}", "-out", request)
        self._run(
            "x509", "-req", "-in", request, "-CA", self.certificate, "-CAkey", self.key, "-CAcreateserial",
            "-days", str(days), "-extfile", extra, "-out", certificate,
        )  # fmt: skip
        return PeerTls(certificate, key, self.certificate)

    def issue_files(self, file: str, names: str) -> tuple[Path, Path]:
        """A certificate and its key."""
        issued = self.issue(file, subject=file, names=names)
        return issued.certificate, issued.key

    def _new_key(self, path: Path) -> None:
        self._run("ecparam", "-name", "prime256v1", "-genkey", "-noout", "-out", path)

    def _run(self, *arguments: str | Path) -> None:
        subprocess.run(["openssl", *map(str, arguments)], check=True, capture_output=True, cwd=self.directory)
