"""Processes that outlive whoever started them, and are told apart from others that later get the same number.

Only the standard library: the command line loads this also where the server's libraries are missing.
"""

import errno
import os
import random
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

_POLL_EVERY_S = 0.05
_TAIL_BYTES = 16_384
# Below the ports that systems hand out for outgoing connections, so that none of those takes one in between.
_PORTS = range(20_000, 32_000)
_PORT_POLLS = 10
_PORT_POLL_EVERY_S = 0.05
_PORT_ATTEMPTS = 200

_children: dict[int, "subprocess.Popen[bytes]"] = {}  # of this process: whoever has died is taken off the kernel's list


@dataclass(frozen=True, slots=True)
class Identity:
    """One process, not whichever has the number."""

    pid: int
    started: str  # when, as the system tells it, with the boot it belongs to


def identify(pid: int) -> Identity | None:
    """Who has this number now; None if nobody does, or only what is left of a process that has ended."""
    child = _children.get(pid)
    if child is not None and child.poll() is not None:
        del _children[pid]
    if pid <= 0:
        return None
    started = _started_linux(pid) if Path("/proc/self/stat").exists() else _started_ps(pid)
    return None if started is None else Identity(pid, started)


def _started_linux(pid: int) -> str | None:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return None
    return parse_stat(stat, boot)


def parse_stat(stat: str, boot: str) -> str | None:
    """The start time in a line of /proc/<pid>/stat; None for a zombie. A name may have spaces and brackets in it."""
    fields = stat.rpartition(")")[2].split()
    if len(fields) < 20 or fields[0] in ("Z", "X"):
        return None
    return f"{boot}:{fields[19]}"


def _started_ps(pid: int) -> str | None:
    asked = subprocess.run(
        ["ps", "-o", "stat=,lstart=", "-p", str(pid)], capture_output=True, text=True, check=False, timeout=10
    )
    state, _, started = asked.stdout.strip().partition(" ")
    return started.strip() if asked.returncode == 0 and started and not state.startswith("Z") else None


def is_running(identity: Identity) -> bool:
    return identify(identity.pid) == identity


def start(arguments: Sequence[str], log_path: Path, directory: Path, environment: Mapping[str, str]) -> Identity:
    """Starts it in a session of its own: it stays when the terminal goes, and Ctrl-C there is not for it."""
    with log_path.open("ab") as log:
        process = subprocess.Popen(
            list(arguments),
            cwd=directory,
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    _children[process.pid] = process
    # One that has ended already had a start time as well; nothing with this number can be taken for it.
    return identify(process.pid) or Identity(process.pid, "ended at once")


def send(identity: Identity, number: signal.Signals) -> bool:
    """Sends a signal to this process and no other. False if it has gone."""
    with _handle(identity.pid) as handle:
        if not is_running(identity):  # asked while the handle is open: it stays with the process that was asked about
            return False
        try:
            if handle is None:
                os.kill(identity.pid, number)
            else:
                signal.pidfd_send_signal(handle, number)
        except ProcessLookupError:
            return False
    return True


@contextmanager
def _handle(pid: int) -> Iterator[int | None]:
    """Keeps the meaning of the number; None where the system has no such thing."""
    handle: int | None = None
    with suppress(OSError, AttributeError):
        handle = os.pidfd_open(pid)
    try:
        yield handle
    finally:
        if handle is not None:
            os.close(handle)


def stop(identities: Sequence[Identity], grace_s: float) -> list[Identity]:
    """SIGTERM to all, SIGKILL to those that are still there after the grace period. Returns who had to be killed."""
    asked = [identity for identity in identities if send(identity, signal.SIGTERM)]
    wait_for(lambda: not any(map(is_running, asked)), grace_s)
    killed = [identity for identity in asked if send(identity, signal.SIGKILL)]
    wait_for(lambda: not any(map(is_running, killed)), grace_s)
    return killed


def wait_for(done: Callable[[], bool], timeout_s: float) -> bool:
    ends_s = time.monotonic() + timeout_s
    while not done():
        if time.monotonic() >= ends_s:
            return False
        time.sleep(_POLL_EVERY_S)
    return True


def tail(path: Path, lines: int, after: int = 0) -> list[str]:
    """The last lines of a log, of what is beyond so many bytes; none if there is no such file."""
    try:
        with path.open("rb") as file:
            file.seek(max(after, file.seek(0, os.SEEK_END) - _TAIL_BYTES))
            data = file.read()
    except OSError:
        return []
    return data.decode(errors="replace").splitlines()[-lines:]


def port_is_free(host: str, port: int) -> bool:
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as listener:
        # As servers do it: what is left of former connections does not keep a port.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((host, port))
            listener.listen(1)
        except OSError as error:
            if error.errno in (errno.EADDRINUSE, errno.EACCES):
                return False
            raise
    return True


def port_becomes_free(host: str, port: int) -> bool:
    """Whether it is free at once or in a moment: whoever looks for free ports holds each of them that long."""
    for _ in range(_PORT_POLLS):
        if port_is_free(host, port):
            return True
        time.sleep(_PORT_POLL_EVERY_S)
    return False


def free_port(host: str, taken: set[int]) -> int:
    """A port that nobody has, and that is not among those promised already; it is added to them."""
    for _ in range(_PORT_ATTEMPTS):
        port = random.choice(_PORTS)
        if port not in taken and port_is_free(host, port):
            taken.add(port)
            return port
    raise OSError(errno.EADDRINUSE, f"no free port from {_PORTS.start} to {_PORTS.stop} on {host}")
