"""StatefulSets, Deployments and Jobs: how many pods there are, and in which order they come and go."""

import contextlib
import os
import shutil
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Self

from holdfast.cluster.etcd.process import find_etcd
from tests.integration.statefulset.network import Network, ServiceForwarder, Target
from tests.integration.statefulset.pods import Pod, World
from tests.integration.statefulset.volumes import Volumes
from tools.manifests.objects import Manifest, Manifests

READY_S_MAX = 120.0


class SimulatedCluster:
    """All objects of one overlay. Leaves nothing running."""

    def __init__(
        self, manifests: Manifests, directory: Path, secrets: Mapping[str, Mapping[str, bytes]] | None = None,
        overrides: Mapping[str, Mapping[str, str]] | None = None,
    ) -> None:  # fmt: skip
        """`secrets`: those that are made elsewhere. `overrides`: variables by workload, as a patch would set them."""
        [namespace] = {workload.namespace for workload in manifests.workloads}
        self.manifests = manifests
        self.volumes = Volumes(directory, manifests, secrets or {})
        self.network = Network(namespace, [item.name for item in manifests.of("Service")], directory)
        self.world = World(manifests, self.network, self.volumes, directory, _programs(directory))
        self.pods: dict[str, Pod] = {}
        self.events: list[str] = []  # of pods that are gone
        self._overrides: dict[str, dict[str, str]] = {name: dict(given) for name, given in (overrides or {}).items()}
        self._replicas = {workload.name: self._desired(workload) for workload in manifests.workloads}
        self._forwarders: list[ServiceForwarder] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for pod in self.pods.values():
            pod.delete(0)
        for pod in self.pods.values():
            pod.lose()
        for forwarder in self._forwarders:
            forwarder.close()

    def _desired(self, workload: Manifest) -> int:
        """What the object says, or its autoscaler at least."""
        scalers = self.manifests.of("HorizontalPodAutoscaler")
        least = [
            scaler.spec["minReplicas"] for scaler in scalers if scaler.spec["scaleTargetRef"]["name"] == workload.name
        ]
        return int(next(iter(least), workload.spec.get("replicas", 1)))

    def apply(self, *names: str) -> Self:
        """Creates everything, or the workloads that are named: all pods at once."""
        for service in self.manifests.of("Service") if not self._forwarders else ():
            if service.spec.get("clusterIP") != "None":
                self._serve(service)
        for workload in self.manifests.workloads:
            if not names or workload.name in names:
                for ordinal in range(self._replicas[workload.name]):
                    self._create(workload, ordinal)
        return self

    def _create(self, workload: Manifest, ordinal: int) -> Pod:
        name = f"{workload.name}-{ordinal}"
        pod = Pod(self.world, workload, name, dict(self._overrides.get(workload.name, {})))
        self.pods[name] = pod
        pod.start()
        return pod

    def _serve(self, service: Manifest) -> None:
        address = self.network.address_of(service.name)
        for port in service.spec["ports"]:

            def ready(target: str = port["targetPort"]) -> list[Target]:
                taken = self.manifests.selected(service.spec["selector"])
                return [
                    (pod.address, pod.container.ports[target])
                    for pod in list(self.pods.values())
                    if pod.workload in taken and pod.is_ready and not pod.is_terminating
                ]

            self._forwarders.append(ServiceForwarder(address, port["port"], ready))

    # --- looking --------------------------------------------------------------------------------------------------

    def pods_of(self, workload: str) -> list[Pod]:
        return [pod for pod in self.pods.values() if pod.workload.name == workload]

    def wait(self, condition: Callable[[], object], what: str, seconds: float = READY_S_MAX) -> None:
        deadline_s = time.monotonic() + seconds
        while not condition():
            if time.monotonic() > deadline_s:
                raise AssertionError(f"{what} within {seconds:g} s; pods: {self.describe()}")
            time.sleep(0.05)

    def wait_ready(self, *workloads: str, seconds: float = READY_S_MAX) -> None:
        def all_ready() -> bool:
            return all(sum(pod.is_ready for pod in self.pods_of(name)) == self._replicas[name] for name in workloads)

        self.wait(all_ready, f"{', '.join(workloads)} to be ready", seconds)

    def wait_done(self, job: str, seconds: float = READY_S_MAX) -> None:
        [pod] = self.pods_of(job)
        self.wait(lambda: pod.is_gone, f"{job} to be done", seconds)
        assert pod.exit_code == 0, pod.log

    def all_events(self) -> list[str]:
        return [*self.events, *(event for pod in self.pods.values() for event in pod.events)]

    def describe(self) -> str:
        return "\n".join(
            f"{pod.name}: ready {pod.is_ready}, restarts {pod.restarts}, {pod.events[-3:]}\n{pod.log[-1500:]}"
            for pod in self.pods.values()
            if not pod.is_ready
        )

    # --- what operators do ----------------------------------------------------------------------------------------

    def rolling_update(self, name: str, change: Mapping[str, str], *, partition: int = 0) -> None:
        """Another revision of the template: from the highest ordinal down to the partition, each when the one before
        it is ready."""
        self._overrides.setdefault(name, {}).update(change)
        for pod in sorted(self.pods_of(name), key=_ordinal, reverse=True):
            if _ordinal(pod) < partition:
                break
            self.replace(pod)
            self.wait_ready(name)

    def replace(self, pod: Pod) -> Pod:
        """Stopped in order, and made anew under its name."""
        pod.delete()
        pod.wait_gone()
        return self._again(pod)

    def _again(self, pod: Pod) -> Pod:
        self.events += pod.events
        return self._create(pod.workload, _ordinal(pod))

    def rollout(self, name: str, change: Mapping[str, str]) -> None:
        """A Deployment with maxSurge 1 and maxUnavailable 0: one more comes, then one goes."""
        self._overrides.setdefault(name, {}).update(change)
        before = sorted(self.pods_of(name), key=_ordinal)
        following = max(map(_ordinal, before)) + 1
        for index, pod in enumerate(before):
            came = self._create(pod.workload, following + index)
            self.wait(lambda came=came: came.is_ready, f"{came.name} to be ready")  # type: ignore[misc]
            pod.delete()
            pod.wait_gone()
            self.events += pod.events
            del self.pods[pod.name]

    def scale(self, name: str, replicas: int) -> None:
        """Up or down, all at once: that is what Parallel means. Returns when pods that should go are gone."""
        self._replicas[name] = replicas
        workload = next(workload for workload in self.manifests.workloads if workload.name == name)
        there = {_ordinal(pod): pod for pod in self.pods_of(name)}
        for ordinal in range(replicas):
            if ordinal not in there:
                self._create(workload, ordinal)
        leaving = [pod for ordinal, pod in there.items() if ordinal >= replicas]
        for pod in leaving:
            pod.delete()
        for pod in leaving:
            pod.wait_gone()
            self.events += pod.events
            del self.pods[pod.name]

    def evict(self, name: str) -> bool:
        """Through the PodDisruptionBudget; False if it does not allow that now. The pod comes back by itself."""
        pod = self.pods[name]
        for budget in self.manifests.of("PodDisruptionBudget"):
            if pod.workload in self.manifests.selected(budget.spec["selector"]):
                healthy = sum(item.is_ready and not item.is_terminating for item in self.pods_of(pod.workload.name))
                if healthy - 1 < self._replicas[pod.workload.name] - budget.spec["maxUnavailable"]:
                    return False
        pod.delete()
        return True

    def restore(self, name: str) -> Pod:
        """What the controller does once a pod is gone."""
        pod = self.pods[name]
        pod.wait_gone()
        return self._again(pod)

    def lose_machine(self, name: str, *, with_volume: bool = False) -> Pod:
        """The machine of a pod is off; somebody tells Kubernetes so, and the pod comes back elsewhere."""
        self.pods[name].lose()
        if with_volume:
            self.volumes.delete_claim(f"data-{name}")
        return self._again(self.pods[name])


def _ordinal(pod: Pod) -> int:
    return int(pod.name.rpartition("-")[2])


def _programs(directory: Path) -> str:
    """Where programs are found: those of this environment, and etcd."""
    programs = directory / "programs"
    programs.mkdir(parents=True)
    (programs / "etcd").symlink_to(find_etcd())
    for name in ("sh", "sleep"):
        found = shutil.which(name)
        assert found is not None
        with contextlib.suppress(FileExistsError):
            (programs / name).symlink_to(found)
    return os.pathsep.join([str(programs), str(Path(sys.executable).parent)])
