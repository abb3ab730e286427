"""Runs many seeded histories of replicas under faults: `make sim SEEDS=1000 START=0`.

Prints how many of them counted (enough happened to prove something) and every seed that failed; exits with 1 then.
"""

import argparse
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tests.simulation.raft_histories import counts, history

REPLICAS = (3, 5)
REPORT_S = 10.0


def main() -> int:
    parser = argparse.ArgumentParser(description="Runs seeded histories of replicas under faults.")
    parser.add_argument("--seeds", type=int, default=1_000, help="how many, for each number of replicas")
    parser.add_argument("--start", type=int, default=0, help="the first one")
    arguments = parser.parse_args()
    counted, failed = 0, 0
    said_s = time.monotonic()
    seeds = range(arguments.start, arguments.start + arguments.seeds)
    for done, seed in enumerate(seeds, 1):
        for replicas in REPLICAS:
            try:
                counted += counts(history(seed, replicas))
            except AssertionError as violation:
                failed += 1
                print(f"seed {seed} with {replicas} replicas: {violation}", flush=True)
        if time.monotonic() - said_s > REPORT_S:
            said_s = time.monotonic()
            print(f"{done:,} of {len(seeds):,} seeds, {counted:,} histories counted, {failed} failed", flush=True)
    print(f"{len(seeds) * len(REPLICAS):,} histories, {counted:,} counted, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
