"""Names as addresses of this machine, and Services that pass connections on."""

import contextlib
import os
import random
import re
import socket
import threading
from collections.abc import Callable

_CHUNK_BYTES = 64 * 1024
_IDLE_S = 0.2

Target = tuple[str, int]


class Network:
    """Gives every pod and Service an address, for as long as the network lives: that is what its name leads to."""

    def __init__(self, namespace: str) -> None:
        self._namespace = namespace
        draw = random.Random(os.urandom(8))
        self._prefix = f"127.{draw.randrange(64, 250)}.{draw.randrange(1, 250)}"  # another run may have others
        self._addresses: dict[str, str] = {}

    def address_of(self, name: str) -> str:
        if name not in self._addresses:
            self._addresses[name] = f"{self._prefix}.{len(self._addresses) + 1}"
        return self._addresses[name]

    def resolve(self, text: str, own: str, services: list[str]) -> str:
        """A value of a manifest with addresses in place of names. `own`: the pod that it is for."""
        domain = rf"(?:\.{re.escape(self._namespace)}\.svc)?"
        for service in services:
            of_pod = rf"(?<![\w.-])([\w-]+-\d+)\.{re.escape(service)}{domain}(?=[:/]|$)"
            text = re.sub(of_pod, lambda found: self.address_of(found[1]), text)
            text = re.sub(rf"(?<![\w.-]){re.escape(service)}{domain}(?=:\d)", self.address_of(service), text)
        return re.sub(r"(?<![\w.-])(?:0\.0\.0\.0|localhost)(?![\w.-])", self.address_of(own), text)


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
