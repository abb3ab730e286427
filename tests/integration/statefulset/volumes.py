"""Volumes as directories: claims stay, the others live as long as their pod."""

import base64
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tools.manifests.objects import Container, Manifest, Manifests


class MountError(Exception):
    """A pod waits because something that it mounts is not there; the words are those of the kubelet."""


class Volumes:
    def __init__(self, root: Path, manifests: Manifests, secrets: Mapping[str, Mapping[str, bytes]]) -> None:
        self._root = root
        self._manifests = manifests
        self._secrets = dict(secrets)  # those that are made elsewhere
        self._mounted: dict[str, set[Path]] = {}  # where a Secret is, by its name

    def claim(self, name: str) -> Path:
        path = self._root / "claims" / name
        path.mkdir(parents=True, exist_ok=True)
        return path

    def delete_claim(self, name: str) -> None:
        shutil.rmtree(self._root / "claims" / name)

    def mount(self, pod: str, workload: Manifest, container: Container) -> dict[str, Path]:
        """Directories by mount path. Anew for each pod, but for claims."""
        home = self._root / "pods" / pod
        shutil.rmtree(home, ignore_errors=True)
        claims = {claim["metadata"]["name"] for claim in workload.spec.get("volumeClaimTemplates", ())}
        volumes = {volume["name"]: volume for volume in workload.pod.get("volumes", ())}
        found: dict[str, Path] = {}
        for mount in container.body.get("volumeMounts", ()):
            name = mount["name"]
            if name in claims:
                found[mount["mountPath"]] = self.claim(f"{name}-{pod}")
            else:
                found[mount["mountPath"]] = home / name
                self._fill(home / name, volumes[name])
        return found

    def _fill(self, path: Path, volume: Mapping[str, Any]) -> None:
        path.mkdir(parents=True)
        files: Mapping[str, bytes] = {}
        if "secret" in volume:
            name = volume["secret"]["secretName"]
            files = self._secret(name)
            self._mounted.setdefault(name, set()).add(path)
        elif "configMap" in volume:
            name = volume["configMap"]["name"]
            found = self._manifests.find("ConfigMap", name)
            if found is None and not volume["configMap"].get("optional"):
                raise MountError(
                    f'MountVolume.SetUp failed for volume "{volume["name"]}": configmap "{name}" not found'
                )
            files = {} if found is None else {key: text.encode() for key, text in found.body["data"].items()}
        for key, data in files.items():
            (path / key).write_bytes(data)

    def change_secret(self, name: str, files: Mapping[str, bytes]) -> None:
        """One that is made elsewhere, and is renewed: pods see it while they run."""
        self._secrets[name] = files
        for path in self._mounted.get(name, ()):
            for key, data in files.items():
                new = path / f"..{key}"
                new.write_bytes(data)
                new.replace(path / key)

    def _secret(self, name: str) -> Mapping[str, bytes]:
        found = self._manifests.find("Secret", name)
        if found is not None:
            return {key: base64.b64decode(text) for key, text in found.body["data"].items()}
        if name not in self._secrets:
            raise MountError(f'MountVolume.SetUp failed: secret "{name}" not found')
        return self._secrets[name]
