"""One load process of the comparison: `compare.py` starts it and tells it on stdin what to do (harness/protocol.py)."""

import os
import sys

from holdfast.common import loop
from peers.clients import main

if __name__ == "__main__":
    loop.run(main())  # uvloop, for the clients of all rows
    # Clients of some libraries wait for threads and connections at their end; what they did has been told.
    sys.stdout.flush()
    os._exit(0)
