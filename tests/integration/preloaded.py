"""Servers that begin as forks of a process that has loaded their code already.

A server takes the best part of a second of a core to load, before it does anything, and tests start hundreds. What runs
afterwards is the same: a process of its own with the same command line, environment and files.

    python -P preloaded.py SOCKET

loads, and then forks a server for each request. A request is one message of JSON with two files: where the server
writes to, and where its process id is told at once and its exit code in the end.
"""

import atexit
import gc
import importlib
import json
import os
import select
import selectors
import signal
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO

# They take turns. Sets of strings have another order in each, so replicas that depend on it differ, as they should.
_PARENTS = 2
_REQUEST_BYTES_MAX = 128 * 1024
_NUMBER = struct.Struct("i")
_END_S = 10.0


class ForkedServer:
    """As much of a `subprocess.Popen` as tests need."""

    def __init__(self, reported: int) -> None:
        self._reported = reported
        self._lock = threading.Lock()
        self._exit_code: int | None = None
        self.pid = self._next_number()

    def __del__(self) -> None:
        os.close(self._reported)

    def poll(self) -> int | None:
        """Its exit code as `Popen` tells it; None while it runs."""
        try:
            return self.wait(0.0)
        except subprocess.TimeoutExpired:
            return None

    def wait(self, timeout: float | None = None) -> int:
        if self._exit_code is None:
            polls = select.poll()
            polls.register(self._reported, select.POLLIN)
            if not polls.poll(None if timeout is None else timeout * 1000):
                raise subprocess.TimeoutExpired(f"server {self.pid}", timeout or 0.0)
        with self._lock:
            if self._exit_code is None:
                self._exit_code = self._next_number()
            return self._exit_code

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def _next_number(self) -> int:
        reported = os.read(self._reported, _NUMBER.size)
        assert reported, "the process that forks servers has ended; it said why on standard error"
        number: int = _NUMBER.unpack(reported)[0]
        return number


class _Parent:
    """The process that has loaded everything; it ends with this one."""

    def __init__(self) -> None:
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            command = [sys.executable, "-P", __file__, str(theirs.fileno())]
            self._process = subprocess.Popen(command, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL)
        atexit.register(self._close)

    def fork(self, arguments: Sequence[str], env: Mapping[str, str], directory: Path, log: IO[bytes]) -> ForkedServer:
        request = json.dumps({"arguments": list(arguments), "env": dict(env), "directory": str(directory)}).encode()
        assert len(request) <= _REQUEST_BYTES_MAX
        reported, tells = os.pipe()
        try:
            socket.send_fds(self._socket, [request], [log.fileno(), tells])
        finally:
            os.close(tells)
        return ForkedServer(reported)

    def _close(self) -> None:
        self._socket.close()
        self._process.wait(_END_S)


_parents: list[_Parent] = []
_lock = threading.Lock()


def start(arguments: Sequence[str], env: Mapping[str, str], directory: Path, log: IO[bytes]) -> ForkedServer:
    """`holdfast` with these arguments, in this environment and no other."""
    with _lock:
        if not _parents:
            _parents.extend(_Parent() for _ in range(_PARENTS))
        _parents.append(_parents.pop(0))
        return _parents[-1].fork(arguments, env, directory, log)


# --- the process that forks -------------------------------------------------------------------------------------------


def _serve(requests: socket.socket) -> list[str] | None:
    """In a server: its arguments. None in the parent, once nobody can ask any more."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a Ctrl-C is for the tests
    signal.signal(signal.SIGCHLD, lambda *_: None)
    ended, wakes = socket.socketpair()
    wakes.setblocking(False)
    signal.set_wakeup_fd(wakes.fileno())
    running: dict[int, int] = {}  # process id -> where its exit code is told
    with selectors.DefaultSelector() as selector:
        selector.register(requests, selectors.EVENT_READ)
        selector.register(ended, selectors.EVENT_READ)
        while True:
            ready = [key.fileobj for key, _ in selector.select()]
            if ended in ready:
                ended.recv(4096)
                _tell_ends(running)
            if requests not in ready:
                continue
            message, (*files,), _, _ = socket.recv_fds(requests, _REQUEST_BYTES_MAX, 2)
            if not message:
                return None
            log, tells = files
            pid = os.fork()
            if pid == 0:
                signal.set_wakeup_fd(-1)
                for each in (requests, ended, wakes):
                    each.close()
                for file in (*running.values(), tells):
                    os.close(file)
                return _become_server(json.loads(message), log)
            os.close(log)
            running[pid] = tells
            os.write(tells, _NUMBER.pack(pid))


def _tell_ends(running: dict[int, int]) -> None:
    while running:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid == 0:
            return
        tells = running.pop(pid)
        try:
            os.write(tells, _NUMBER.pack(os.waitstatus_to_exitcode(status)))
        except BrokenPipeError:
            pass  # nobody wants to know
        os.close(tells)


def _become_server(request: Mapping[str, object], log: int) -> list[str]:
    env, arguments = request["env"], request["arguments"]
    assert isinstance(env, dict)
    assert isinstance(arguments, list)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for standard in (1, 2):
        os.dup2(log, standard)
    os.close(log)
    os.chdir(str(request["directory"]))
    os.environ.clear()
    os.environ.update(env)
    sys.argv = ["holdfast", *arguments]
    return arguments


def _main() -> int:
    for module in ("holdfast.cli.runner", "holdfast.broker.main", "holdfast.router.main"):
        importlib.import_module(module)
    assert len(os.listdir("/proc/self/task")) == 1, "a fork would lose threads"
    gc.freeze()  # so that no collection in a server touches, and thereby copies, all of this
    arguments = _serve(socket.socket(fileno=int(sys.argv[1])))
    return 0 if arguments is None else int(importlib.import_module("holdfast.cli.main").main(arguments))


if __name__ == "__main__":
    sys.exit(_main())
