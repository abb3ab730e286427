"""What the app of a library is told through the environment, because its own workers import it by name, and what its
task does."""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from peers.payloads import id_of
from peers.tally import DONE, Counter, Tally

TARGET = "HOLDFAST_PEERS_TARGET"
QUEUE = "HOLDFAST_PEERS_QUEUE"
TALLY = "HOLDFAST_PEERS_TALLY"

PROCESSES = 2  # of workers; as many as there are consumers in the other rows
SLOTS = 100  # of an asynchronous worker; and how many tasks one that has none prefetches


def environment(target: Mapping[str, Any], queue: str, tally: Path) -> dict[str, str]:
    return {TARGET: json.dumps(target), QUEUE: queue, TALLY: str(tally)}


def target() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(os.environ[TARGET])
    return found


def queue() -> str:
    return os.environ[QUEUE]


class Handled:
    """Counts the tasks that this process has run. Some workers fork after the import: a child has a slot of its own."""

    def __init__(self) -> None:
        self._counter: Counter | None = None

    def __call__(self, payload: str) -> None:
        counter = self._counter
        if counter is None or counter.pid != os.getpid():
            counter = self._counter = Tally(Path(os.environ[TALLY])).counter(DONE)
        counter.add([id_of(payload)])


handled = Handled()
