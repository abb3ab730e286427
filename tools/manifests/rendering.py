"""Renders overlays. The only file that runs kubectl, and only its client side: it calls no cluster."""

import shutil
import subprocess
from pathlib import Path

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"
RENDERED = DEPLOY / "k8s" / "rendered"
OVERLAYS = ("dev", "example", "production", "production-secrets")


class KubectlError(Exception):
    """kubectl is not there, or refused."""


def has_kubectl() -> bool:
    return shutil.which("kubectl") is not None


def render(overlay: str) -> str:
    """The manifests of one overlay of deploy/k8s, as they would be sent to a cluster."""
    return render_folder(DEPLOY / "k8s" / "overlays" / overlay)


def render_folder(folder: Path) -> str:
    if not has_kubectl():
        raise KubectlError("Expected kubectl 1.27 or later on PATH, to render deploy/k8s, but there is none.")
    command = ["kubectl", "kustomize", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise KubectlError(f"`{' '.join(command)}` failed: {done.stderr.strip()}")
    return done.stdout
