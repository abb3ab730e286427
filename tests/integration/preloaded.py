"""Servers, workers and commands that begin as forks of a process that has loaded their code already.

A server takes the best part of a second of a core to load, before it does anything, a command half of one, and tests
start hundreds. What runs afterwards is the same: a process of its own with that command line, environment and files.

    python -P preloaded.py SOCKET

loads, and then forks for each request. A request is one message of JSON with three files: standard output, standard
error, and where the process id is told at once and the exit code in the end.

The long tests, and programs that are no tests, start everything from nothing instead.
"""

import atexit
import gc
import importlib
import json
import os
import runpy
import select
import selectors
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO

_LONG = "LONG"  # as tests.long, which processes that fork do not load
_COMMAND = "holdfast.cli"

# They take turns. Sets of strings have another order in each, so replicas that depend on it differ, as they should.
_PARENTS = 2
_REQUEST_BYTES_MAX = 128 * 1024
_NUMBER = struct.Struct("i")
_END_S = 10.0


class Forked:
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
                raise subprocess.TimeoutExpired(f"process {self.pid}", timeout or 0.0)
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
        assert reported, "the process that forks has ended; it said why on standard error"
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

    def fork(
        self, module: str, arguments: Sequence[str], env: Mapping[str, str], directory: Path, out: IO[bytes],
        err: IO[bytes],
    ) -> Forked:  # fmt: skip
        asked = {"module": module, "arguments": list(arguments), "env": dict(env), "directory": str(directory)}
        request = json.dumps(asked).encode()
        assert len(request) <= _REQUEST_BYTES_MAX
        reported, reports = os.pipe()
        try:
            socket.send_fds(self._socket, [request], [out.fileno(), err.fileno(), reports])
        finally:
            os.close(reports)
        return Forked(reported)

    def _close(self) -> None:
        self._socket.close()
        self._process.wait(_END_S)


_parents: list[_Parent] = []
_lock = threading.Lock()


def start(
    arguments: Sequence[str], env: Mapping[str, str], directory: Path, out: IO[bytes], err: IO[bytes],
    module: str = _COMMAND,
) -> subprocess.Popen[bytes] | Forked:  # fmt: skip
    """`python -m module`, which is `holdfast`, with these arguments, in this environment and no other."""
    if not is_on():
        return subprocess.Popen(
            [sys.executable, "-m", module, *arguments], env=env, cwd=directory, stdin=subprocess.DEVNULL, stdout=out,
            stderr=err,
        )  # fmt: skip
    with _lock:
        if not _parents:
            _parents.extend(_Parent() for _ in range(_PARENTS))
        _parents.append(_parents.pop(0))
        return _parents[-1].fork(module, arguments, env, directory, out, err)


def run(*arguments: str, directory: Path | None = None, timeout_s: float = 60.0) -> subprocess.CompletedProcess[str]:
    """`holdfast` with these arguments, to its end."""
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        process = start(arguments, os.environ, directory or Path.cwd(), out, err)
        try:
            exit_code = process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise
        said = []
        for file in (out, err):
            file.seek(0)
            said.append(file.read().decode())
    return subprocess.CompletedProcess(arguments, exit_code, *said)


def is_on() -> bool:
    return not os.environ.get(_LONG) and "PYTEST_VERSION" in os.environ


# --- the process that forks -------------------------------------------------------------------------------------------


def _serve(requests: socket.socket) -> tuple[str, list[str]] | None:
    """In what was forked: what it is to do. None in the parent, once nobody can ask any more."""
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
            message, (*files,), _, _ = socket.recv_fds(requests, _REQUEST_BYTES_MAX, 3)
            if not message:
                return None
            *standard, reports = files
            pid = os.fork()
            if pid == 0:
                signal.set_wakeup_fd(-1)
                for item in (requests, ended, wakes):
                    item.close()
                for file in (*running.values(), reports):
                    os.close(file)
                return _become(json.loads(message), standard)
            for file in standard:
                os.close(file)
            running[pid] = reports
            os.write(reports, _NUMBER.pack(pid))


def _tell_ends(running: dict[int, int]) -> None:
    while running:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid == 0:
            return
        reports = running.pop(pid)
        try:
            os.write(reports, _NUMBER.pack(os.waitstatus_to_exitcode(status)))
        except BrokenPipeError:
            pass  # nobody wants to know
        os.close(reports)


def _become(request: Mapping[str, object], files: Sequence[int]) -> tuple[str, list[str]]:
    env, arguments = request["env"], request["arguments"]
    assert isinstance(env, dict)
    assert isinstance(arguments, list)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for standard, file in enumerate(files, start=1):
        os.dup2(file, standard)
        os.close(file)
    os.chdir(str(request["directory"]))
    os.environ.clear()
    os.environ.update(env)
    return str(request["module"]), arguments


def _main() -> int:
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # as the command does, before gRPC is imported
    for module in ("holdfast.cli.runner", "holdfast.broker.main", "holdfast.router.main"):
        importlib.import_module(module)
    importlib.import_module("holdfast.cli.commands.root").make_app()  # which loads all commands
    assert len(os.listdir("/proc/self/task")) == 1, "a fork would lose threads"
    gc.freeze()  # so that no collection in a server touches, and thereby copies, all of this
    asked = _serve(socket.socket(fileno=int(sys.argv[1])))
    if asked is None:
        return 0
    module, arguments = asked
    if module == _COMMAND:
        sys.argv = ["holdfast", *arguments]
        return int(importlib.import_module("holdfast.cli.main").main(arguments))
    sys.argv = [module, *arguments]
    sys.path.insert(0, os.getcwd())  # as `python -m`
    runpy.run_module(module, run_name="__main__", alter_sys=True)
    return 0


if __name__ == "__main__":
    sys.exit(_main())
