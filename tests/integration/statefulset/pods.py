"""One pod, as the kubelet runs it: a thread that starts its container, asks its probes, restarts it, and stops it."""

import http.client
import os
import re
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.integration.statefulset.network import Network
from tests.integration.statefulset.volumes import MountError, Volumes
from tools.manifests.objects import Container, Manifest, Manifests, command_of

_MOUNTED = re.compile(r"(?<![\w/.:])/[\w./-]+")  # a path, but not that of a URL
_POLL_S = 0.05
_RESTART_S = (0.0, 1.0, 2.0, 5.0, 10.0)  # before each restart; the real ones are longer
_MOUNT_AGAIN_S = 0.5
_LAST_CHANCE_S = 2.0  # for a preStop that the grace period has cut off


@dataclass
class World:
    """What all pods share."""

    manifests: Manifests
    network: Network
    volumes: Volumes
    directory: Path
    path: str  # of programs


class Pod:
    def __init__(self, world: World, workload: Manifest, name: str, overrides: Mapping[str, str]) -> None:
        """`overrides`: variables that differ from the manifest, as those of another revision."""
        self.name = name
        self._world = world
        self.workload = workload
        self._overrides = overrides
        self.container: Container = workload.containers[-1]
        self.address = world.network.renew(name)
        self.is_ready = False
        self.is_started = False
        self.exit_code: int | None = None  # of the last process
        self.events: list[str] = []
        self.restarts = 0
        self._kubelet = threading.Thread(target=self._run, name=name, daemon=True)
        self._deleted = threading.Event()
        self._grace_s = 0.0
        self._process: subprocess.Popen[bytes] | None = None
        self._probes: dict[str, _Probe] = {}
        self._environment: dict[str, str] = {}
        self._directory = Path("/")
        self._command: list[str] = []

    # --- from outside ---------------------------------------------------------------------------------------------

    def start(self) -> None:
        self._kubelet.start()

    def wait_gone(self) -> None:
        self._kubelet.join()

    @property
    def is_gone(self) -> bool:
        return not self._kubelet.is_alive()

    def delete(self, grace_s: float | None = None) -> None:
        """Begins to stop it, as `kubectl delete pod` does."""
        wanted = self.workload.pod.get("terminationGracePeriodSeconds", 30)
        self._grace_s = wanted if grace_s is None else grace_s
        self._deleted.set()

    def lose(self) -> None:
        """Its machine is gone: nothing is told, nothing is waited for."""
        self.delete(0)
        self.wait_gone()

    def hang(self) -> None:
        """Its process goes on with nothing, and ends by no signal but one."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    @property
    def is_terminating(self) -> bool:
        return self._deleted.is_set()

    @property
    def log(self) -> str:
        path = self._log_path
        return path.read_text(errors="replace") if path.exists() else ""

    @property
    def _log_path(self) -> Path:
        return self._world.directory / f"{self.name}.log"

    # --- the kubelet ----------------------------------------------------------------------------------------------

    def _run(self) -> None:
        if not self._mount():
            return
        while not self._deleted.is_set():
            self._start()
            self._watch()
            self.is_ready = self.is_started = False
            if self._deleted.is_set():
                break
            if self.workload.kind == "Job" and self.exit_code == 0:
                return
            self.restarts += 1
            self.events.append(f"BackOff: {self.name} ended with {self.exit_code}")
            self._deleted.wait(_RESTART_S[min(self.restarts, len(_RESTART_S)) - 1])
        self._kill()

    def _mount(self) -> bool:
        """Until all that it mounts is there, or it is deleted."""
        while not self._deleted.is_set():
            try:
                self._prepare()
            except MountError as error:
                if f"FailedMount: {error}" not in self.events:
                    self.events.append(f"FailedMount: {error}")
                self._deleted.wait(_MOUNT_AGAIN_S)
            else:
                return True
        return False

    def _prepare(self) -> None:
        world, container = self._world, self.container
        mounts = world.volumes.mount(self.name, self.workload, container)
        fields = {"metadata.name": self.name, "metadata.namespace": self.workload.namespace, "spec.nodeName": "machine"}
        given = {**world.manifests.environment(container, fields), **self._overrides}

        def here(text: str) -> str:
            text = world.network.here(text, self.name)
            return _MOUNTED.sub(lambda found: _replaced(found[0], mounts), text)

        passed_on = {name: os.environ[name] for name in ("LANG", "PYTHONPATH") if name in os.environ}
        base = {"PATH": world.path, "HOME": str(world.directory), **passed_on}
        self._environment = base | {name: here(value) for name, value in given.items()}
        self._command = world.network.inside([here(word) for word in command_of(container, given)])
        workdir = container.body.get("workingDir")
        self._directory = world.directory if workdir is None else Path(here(workdir))

    def _start(self) -> None:
        self._probes = {
            kind: _Probe(probe, self.address, self.container.ports) for kind, probe in self.container.probes.items()
        }
        with self._log_path.open("ab") as log:
            self._process = subprocess.Popen(
                self._command, env=self._environment, cwd=self._directory, stdout=log, stderr=log
            )

    def _watch(self) -> None:
        """Until the process has ended, of itself or because it was stopped."""
        process = self._process
        assert process is not None
        while process.poll() is None and not self._deleted.is_set():
            self._ask()
            self._deleted.wait(_POLL_S)
        if self._deleted.is_set():
            self._stop(process)
        self.exit_code = process.wait()

    def _ask(self) -> None:
        startup = self._probes.get("startupProbe")
        if startup is not None and not self.is_started:
            self.is_started = startup.ask() is True
            if startup.has_failed:
                self._restart("startup", startup)
            return
        self.is_started = True
        liveness, readiness = self._probes.get("livenessProbe"), self._probes.get("readinessProbe")
        if liveness is not None:
            liveness.ask()
            if liveness.has_failed:
                self._restart("liveness", liveness)
                return
        if readiness is None or readiness.ask() is True:
            self.is_ready = True
        elif readiness.has_failed:
            self.is_ready = False

    def _restart(self, kind: str, probe: "_Probe") -> None:
        """In order, preStop included, within the probe's own grace period if it has one."""
        self.events.append(f"Unhealthy: {kind} probe of {self.name} failed: {probe.why}")
        assert self._process is not None
        self._grace_s = probe.grace_s or self.workload.pod.get("terminationGracePeriodSeconds", 30)
        self._stop(self._process)

    # --- the end --------------------------------------------------------------------------------------------------

    def _stop(self, process: "subprocess.Popen[bytes]") -> None:
        """preStop, SIGTERM, and SIGKILL when the grace period, which began with the deletion, is over."""
        if not self._grace_s:
            process.kill()
            return
        ends_s = time.monotonic() + self._grace_s
        self._pre_stop(ends_s)
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(max(ends_s - time.monotonic(), _LAST_CHANCE_S))
        except subprocess.TimeoutExpired:
            self.events.append(f"Killed: {self.name} did not stop in {self._grace_s:g} s")
            process.kill()

    def _pre_stop(self, ends_s: float) -> None:
        hook = (self.container.pre_stop.get("exec") or {}).get("command")
        left_s = ends_s - time.monotonic()
        if not hook or left_s <= 0:
            return
        try:
            done = subprocess.run(
                self._world.network.inside(hook), env=self._environment, cwd=self._directory, timeout=left_s,
                capture_output=True, check=False,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            self.events.append(f"FailedPreStopHook: {self.name}: no time is left")
            return
        if done.returncode:
            said = (done.stdout + done.stderr).decode(errors="replace").strip()
            self.events.append(f"FailedPreStopHook: {self.name}: exit code {done.returncode}: {said}")

    def _kill(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.kill()
            self._process.wait()


def _replaced(path: str, mounts: Mapping[str, Path]) -> str:
    for mounted, directory in mounts.items():
        if path == mounted or path.startswith(mounted + "/"):
            return f"{directory}{path.removeprefix(mounted)}"
    return path


class _Probe:
    """Asks when it is time to, and counts."""

    def __init__(self, probe: Mapping[str, Any], address: str, ports: Mapping[str, int]) -> None:
        self._probe = probe
        self._address = address
        self._ports = ports
        self._next_s = time.monotonic() + probe.get("initialDelaySeconds", 0)
        self._failures = 0
        self.why = ""

    @property
    def has_failed(self) -> bool:
        return self._failures >= int(self._probe.get("failureThreshold", 3))

    @property
    def grace_s(self) -> float:
        return float(self._probe.get("terminationGracePeriodSeconds", 0))

    def ask(self) -> bool | None:
        """None: it is not time yet."""
        now_s = time.monotonic()
        if now_s < self._next_s:
            return None
        self._next_s = now_s + self._probe.get("periodSeconds", 10)
        try:
            self._attempt(self._probe.get("timeoutSeconds", 1))
        except (OSError, http.client.HTTPException) as error:
            self.why = str(error)
            self._failures += 1
            return False
        self._failures = 0
        return True

    def _attempt(self, seconds: float) -> None:
        asked: Mapping[str, Any] = self._probe.get("httpGet") or self._probe["tcpSocket"]
        port = self._ports.get(asked["port"], asked["port"])
        if "httpGet" not in self._probe:
            socket.create_connection((self._address, port), timeout=seconds).close()
            return
        connection = http.client.HTTPConnection(self._address, port, timeout=seconds)
        try:
            connection.request("GET", asked["path"])
            status = connection.getresponse().status
        finally:
            connection.close()
        if not 200 <= status < 400:
            raise OSError(f"HTTP probe failed with statuscode: {status}")
