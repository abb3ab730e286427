"""Names that lead to addresses of this machine, and Services that pass connections on."""

import contextlib
import itertools
import os
import random
import re
import shutil
import socket
import subprocess
import tempfile
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

_CHUNK_BYTES = 64 * 1024
_UNSHARE = shutil.which("unshare") or ""
_MOUNT = shutil.which("mount") or ""

Target = tuple[str, int]


class Network:
    """Gives every Service an address, and every pod another one each time that it is made. Names lead to them, in files
    that take the place of the machine's own for each pod."""

    def __init__(self, namespace: str, services: Sequence[str], directory: Path) -> None:
        self._namespace = namespace
        self._services = services
        self._hosts = directory / "hosts"
        self._resolver = directory / "resolv.conf"
        # Whom files do not know nobody knows: a name server of the machine is not asked.
        self._resolver.write_text("nameserver 127.0.0.1\noptions timeout:1 attempts:1\n")
        draw = random.Random(os.urandom(8))
        self._prefix = f"127.{draw.randrange(64, 250)}.{draw.randrange(1, 250)}"  # another run may have others
        self._given = itertools.count(1)
        self._addresses = {name: self._next() for name in services}
        self._write()

    def _next(self) -> str:
        return f"{self._prefix}.{next(self._given)}"

    def address_of(self, name: str) -> str:
        return self._addresses[name]

    def renew(self, pod: str) -> str:
        """Of a pod that is made, or made anew."""
        address = self._addresses[pod] = self._next()
        self._write()
        return address

    def _write(self) -> None:
        lines = ["127.0.0.1 localhost"]
        for name, address in self._addresses.items():
            hosts = [name] if name in self._services else [f"{name}.{service}" for service in self._services]
            lines.append(" ".join([address, *hosts, *(f"{host}.{self._namespace}.svc" for host in hosts)]))
        data = "\n".join([*lines, ""]).encode()
        file = os.open(self._hosts, os.O_WRONLY | os.O_CREAT, 0o644)
        try:  # in its place, because it is mounted; and never empty, because others read it
            os.pwrite(file, data, 0)
            os.ftruncate(file, len(data))
        finally:
            os.close(file)

    def here(self, text: str, pod: str) -> str:
        """A value of a manifest as it is meant in this pod: it has no loopback of its own."""
        return re.sub(r"(?<![\w.-])(?:0\.0\.0\.0|localhost)(?![\w.-])", self.address_of(pod), text)

    def inside(self, command: Sequence[str]) -> list[str]:
        """The same command where the names of this network lead somewhere. It is the same process: `exec`."""
        mapped = [] if os.geteuid() == 0 else ["--map-root-user"]
        mounts = f'{_MOUNT} --bind "$0" /etc/hosts && {_MOUNT} --bind "$1" /etc/resolv.conf && shift && exec "$@"'
        return [_UNSHARE, "--mount", *mapped, "sh", "-c", mounts, str(self._hosts), str(self._resolver), *command]


def names_are_possible() -> bool:
    """Whether this machine lets a process have an /etc/hosts of its own."""
    if not _UNSHARE or not _MOUNT:
        return False
    with tempfile.TemporaryDirectory() as directory:
        command = Network("default", [], Path(directory)).inside(["true"])
        return subprocess.run(command, capture_output=True, check=False).returncode == 0


class ServiceForwarder:
    """One port of a Service: each connection goes to one of the pods that are ready at that moment, and stays there."""

    def __init__(self, address: str, port: int, ready: Callable[[], list[Target]]) -> None:
        self._ready = ready
        self._listener = socket.create_server((address, port))
        self._open: set[socket.socket] = {self._listener}
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    def close(self) -> None:
        for sock in list(self._open):
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
            sock.close()
        for thread in self._threads:
            thread.join()

    def _accept(self) -> None:
        while True:
            try:
                came, _ = self._listener.accept()
            except OSError:
                return
            targets = self._ready()
            try:
                target = socket.create_connection(random.choice(targets), timeout=5) if targets else None
            except OSError:
                target = None
            if target is None:
                came.close()  # as a Service without endpoints refuses
                continue
            target.settimeout(None)
            self._open |= {came, target}
            for pair in ((came, target), (target, came)):
                thread = threading.Thread(target=self._pass_on, args=pair, daemon=True)
                self._threads.append(thread)
                thread.start()

    def _pass_on(self, source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(_CHUNK_BYTES):
                target.sendall(data)
        for sock in (source, target):
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
            sock.close()
            self._open.discard(sock)
