"""One load process of the comparison: `compare.py` starts it and tells it on stdin what to do (harness/protocol.py)."""

import asyncio
import os
import sys

from peers.clients import main

if __name__ == "__main__":
    asyncio.run(main())
    # Clients of some libraries wait for threads and connections at their end; what they did has been told.
    sys.stdout.flush()
    os._exit(0)
