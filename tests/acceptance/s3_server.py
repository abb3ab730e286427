"""A server of the S3 protocol, for backups."""

import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.integration.cluster import free_ports
from tests.integration.server import wait_until


@contextmanager
def s3_server(directory: Path, bucket: str) -> Iterator[str]:
    """Its address. It has this bucket."""
    [port] = free_ports(1)
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    with (directory / "s3.log").open("wb") as log:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    endpoint = f"http://127.0.0.1:{port}"
    try:
        wait_until(lambda: _bucket_is_made(f"{endpoint}/{bucket}"), "the S3 server to have a bucket")
        yield endpoint
    finally:
        process.kill()
        process.wait()


def _bucket_is_made(url: str) -> bool:
    who = {"Authorization": "AWS4-HMAC-SHA256 Credential=key/20260101/us-east-1/s3/aws4_request, Signature=x"}
    request = urllib.request.Request(url, method="PUT", headers=who)
    try:
        with urllib.request.urlopen(request, timeout=5) as answer:
            return bool(answer.status == 200)
    except urllib.error.URLError:
        return False
