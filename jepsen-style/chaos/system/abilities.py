"""What this machine allows. The harness moves itself into namespaces of its own, so that whatever becomes of it, the
kernel removes its networks, mounts and processes together with it."""

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass, field

from chaos.system.owners import INSIDE

# A harness that ends takes all of its processes with it: it is the first one of its namespace of processes.
_UNSHARE = ("--fork", "--pid", "--kill-child", "--mount", "--mount-proc", "--net")
_TRY_S_MAX = 10.0

# What a fault can need: each with what stands for it.
NAMESPACES = "network namespaces"
DISKS = "loop-mounted filesystems"
TOOLS = {
    "ip": "iproute2", "tc": "iproute2", "nft": "nftables", "strace": "strace", "fsfreeze": "util-linux",
    "mkfs.ext4": "e2fsprogs", "nsenter": "util-linux", "cc": "a C compiler",
}  # fmt: skip


@dataclass(frozen=True)
class Abilities:
    """What there is, as a set of names; and why something is not."""

    has: frozenset[str] = frozenset()
    why_not: dict[str, str] = field(default_factory=dict)

    def missing(self, needs: frozenset[str]) -> list[str]:
        """A sentence part for each need that is not met."""
        return [f"{need} ({self.why_not.get(need, 'not here')})" for need in sorted(needs - self.has)]


def find_abilities() -> Abilities:
    """Looks at this process as it is now: inside its namespaces or not."""
    has, why_not = set(), {}
    for tool, package in TOOLS.items():
        if shutil.which(tool):
            has.add(tool)
        else:
            why_not[tool] = f"install {package}"
    inside = os.environ.get(INSIDE, "")
    if inside and {"ip", "nsenter"} <= has:
        has.add(NAMESPACES)
    else:
        why_not[NAMESPACES] = "needs root or user namespaces, and ip and nsenter"
    if inside == "root" and "mkfs.ext4" in has:
        has.add(DISKS)
    else:
        why_not[DISKS] = "needs root and mkfs.ext4"
    return Abilities(frozenset(has), why_not)


def enter_namespaces(module: str, arguments: list[str]) -> None:
    """Starts this program again in namespaces of its own and does not return; returns where that is not possible, or
    if it has happened already."""
    if os.environ.get(INSIDE) or shutil.which("unshare") is None or sys.platform != "linux":
        return
    is_root = os.geteuid() == 0
    options = [*_UNSHARE] if is_root else ["--map-root-user", *_UNSHARE]
    if not _is_possible(options):
        return
    os.environ[INSIDE] = "root" if is_root else "user"
    sys.stdout.flush()
    sys.stderr.flush()
    os.execvp("unshare", ["unshare", *options, "--", sys.executable, "-m", module, *arguments])


def _is_possible(options: list[str]) -> bool:
    command = ["unshare", *options, "--", "true"]
    try:
        return subprocess.run(command, capture_output=True, timeout=_TRY_S_MAX, check=False).returncode == 0
    except subprocess.TimeoutExpired:
        return False
