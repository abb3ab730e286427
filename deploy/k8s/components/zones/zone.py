"""Writes the zone of the machine that this pod runs on into a file of settings for `holdfast broker --config`.

The zone is a label of the machine, which only the Kubernetes API knows. A machine without it is in no zone: then the
file is empty. Whatever else goes wrong ends the init container with a sentence, and Kubernetes tries again.

Runs with Python alone. MACHINE, KUBERNETES_SERVICE_HOST and KUBERNETES_SERVICE_PORT come from the environment.
"""

import json
import os
import ssl
import sys
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path

LABEL = "topology.kubernetes.io/zone"
ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
ANSWER_SECONDS_MAX = 10


def read_zone(account: Path = ACCOUNT) -> str:
    """The zone of this machine; empty if it has none."""
    machine = urllib.parse.quote(os.environ["MACHINE"], safe="")
    host, port = os.environ["KUBERNETES_SERVICE_HOST"], os.environ["KUBERNETES_SERVICE_PORT"]
    authority = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    request = urllib.request.Request(
        f"https://{authority}/api/v1/nodes/{machine}",
        headers={"Authorization": f"Bearer {(account / 'token').read_text().strip()}", "Accept": "application/json"},
    )
    trusted = ssl.create_default_context(cafile=str(account / "ca.crt"))
    with urllib.request.urlopen(request, timeout=ANSWER_SECONDS_MAX, context=trusted) as answer:
        labels = json.load(answer)["metadata"].get("labels", {})
    return str(labels.get(LABEL, ""))


def settings_text(zone: str) -> str:
    """The zone as TOML. Labels have letters, digits, dots, dashes and underscores only: nothing has to be escaped."""
    return f'zone = "{zone}"\n' if zone else ""


def main() -> int:
    try:
        zone = read_zone()
    except (OSError, KeyError, ValueError) as error:
        reason = f"{error.code} {error.reason}" if isinstance(error, urllib.error.HTTPError) else repr(error)
        sys.stderr.write(f"Expected the label {LABEL} of this machine from the Kubernetes API, but: {reason}\n")
        return 1
    Path(sys.argv[1]).write_text(settings_text(zone), encoding="utf-8")
    sys.stderr.write(f"zone: {zone or 'none'}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
