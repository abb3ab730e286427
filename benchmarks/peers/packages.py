"""The servers of other projects: which are here, which can be installed, and in which version."""

import asyncio
import importlib.metadata
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from peers.rows import POSTGRESQL, RABBITMQ, REDIS, Row

INSTALL_SECONDS_MAX = 600.0
_REFUSE_STARTS = Path("/usr/sbin/policy-rc.d")


def postgres_directory() -> Path | None:
    """Where the programs of the newest PostgreSQL are; Debian has them in no directory of PATH."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/postgres"), key=lambda path: int(path.parts[-3]))
    if found:
        return found[-1].parent
    on_path = shutil.which("postgres")
    return Path(on_path).resolve().parent if on_path else None


_IS_HERE: dict[str, Callable[[], bool]] = {
    POSTGRESQL: lambda: postgres_directory() is not None,
    RABBITMQ: lambda: Path("/usr/lib/rabbitmq/bin/rabbitmq-server").exists() and shutil.which("epmd") is not None,
    REDIS: lambda: shutil.which("redis-server") is not None,
}


def missing_packages(rows: Iterable[Row]) -> list[str]:
    """Debian packages that these rows need and that are not here, each once."""
    wanted = dict.fromkeys(row.package for row in rows if row.package)
    return [package for package in wanted if not _IS_HERE[package]()]


def missing_distributions(row: Row) -> list[str]:
    """Python packages that this row needs and this environment does not have."""
    return [name for name in row.distributions if _version_of_distribution(name) is None]


def can_install() -> bool:
    return os.geteuid() == 0 and shutil.which("apt-get") is not None


@contextmanager
def _nothing_is_started() -> Iterator[None]:
    """We start servers of our own: those that the packages start would stay behind."""
    if _REFUSE_STARTS.exists():  # this machine has a rule of its own
        yield
        return
    _REFUSE_STARTS.write_text("#!/bin/sh\nexit 101\n")
    _REFUSE_STARTS.chmod(0o755)
    try:
        yield
    finally:
        _REFUSE_STARTS.unlink()


async def install(packages: Sequence[str]) -> str:
    """Installs them without starting what they have; returns why not, or nothing."""
    with _nothing_is_started():
        await _apt_get(["update"])  # if it fails, the lists that are there may be good enough
        return await _apt_get(["install", "--yes", "--no-install-recommends", *packages])


async def _apt_get(arguments: Sequence[str]) -> str:
    process = await asyncio.create_subprocess_exec(
        "apt-get", "--quiet", *arguments,
        env={**os.environ, "DEBIAN_FRONTEND": "noninteractive"},
        stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
        start_new_session=True,  # Ctrl-C in the middle would leave packages half configured
    )  # fmt: skip
    try:
        async with asyncio.timeout(INSTALL_SECONDS_MAX):
            printed, _ = await process.communicate()
    except TimeoutError:
        process.terminate()
        return f"apt-get {arguments[0]} took more than {INSTALL_SECONDS_MAX:g} s"
    lines = printed.decode(errors="replace").strip().splitlines()
    return f"apt-get {arguments[0]} failed: {lines[-1] if lines else ''}" if process.returncode else ""


def why_left_out(row: Row, install_problem: str) -> str:
    """Nothing if the row can be measured."""
    if gone := missing_distributions(row):
        return f"needs {', '.join(gone)} from PyPI: `make bench-peers` installs it"
    if missing_packages([row]):
        return f"needs the Debian package {row.package}: {install_problem}"
    return ""


async def version_of(row: Row) -> str:
    """Of everything outside Python's standard library that a row is made of."""
    names = row.distributions or ("holdfast-queue",)
    versions = [f"{name} {_version_of_distribution(name)}" for name in names]
    if row.package:
        versions.insert(0, f"{row.package} {await _version_of_package(row.package)}")
    return ", ".join(versions)


def _version_of_distribution(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


async def _version_of_package(name: str) -> str:
    if shutil.which("dpkg-query") is None:
        return "of unknown version"
    process = await asyncio.create_subprocess_exec(
        "dpkg-query", "--show", "--showformat", "${Version}", name,
        stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL,
    )  # fmt: skip
    printed, _ = await process.communicate()
    return printed.decode().strip() or "of unknown version"
