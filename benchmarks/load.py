"""One load process of the benchmarks: `run.py` starts it and tells it on stdin what to do (harness/protocol.py)."""

import asyncio

from harness import app_loads, steady_loads
from harness.loads import ROLES, main

if __name__ == "__main__":
    asyncio.run(main({**ROLES, **app_loads.ROLES, **steady_loads.ROLES}))
