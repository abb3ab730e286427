"""Enqueues an order every so often, until it is stopped. Each has its own request id: however often a call is repeated,
one order is shipped once."""

import itertools
import os
import signal
import threading
import uuid

from shop import ship

PAUSE_SECONDS = float(os.environ.get("PAUSE_SECONDS", "1"))


def main() -> None:
    stopped = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stopped.set())
    run = uuid.uuid4()
    for number in itertools.count(1):
        ship.options(request_id=f"{run}-{number}").enqueue(number)
        if stopped.wait(PAUSE_SECONDS):
            return


if __name__ == "__main__":
    main()
