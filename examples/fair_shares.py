"""Tenants that share a queue: a burst of one leaves the others their share.

In this directory, with a server running (`make run`):

    python fair_shares.py

One customer enqueues 600 tasks at once, then two others enqueue 60 each. One of these pays for a larger share and has
a weight of 2. The first 100 claims are not all of the first customer, although its tasks are older. A quarter goes to
each of weight 1 and half to the one of weight 2. Every tenth claim takes the oldest task of all, so that nothing
starves; what a customer gives that way, its next turns are shorter by. A cap on what runs at the same time for one
tenant would be one setting more: `tenant_concurrency_max`.
"""

import os
import sys
from collections import Counter

from holdfast.client import Client, NewTask, QueuePolicy, TenantPolicy

ADDRESS = os.environ.get("HOLDFAST_ADDRESS", "localhost:7400")
QUEUE = "fair-shares"
CLAIMS = 100


def main() -> int:
    with Client(ADDRESS) as client:
        client.purge_queue(QUEUE)  # of what a run before has left
        client.set_queue(QUEUE, policy=QueuePolicy(tenants=[TenantPolicy("gold", weight=2)]))
        for tenant, count in (("burst", 600), ("plain", 60), ("gold", 60)):
            client.enqueue_many([NewTask(QUEUE, "resize", tenant=tenant) for _ in range(count)])
        claims = client.reserve([QUEUE], max_tasks=CLAIMS, worker="fair-shares")
        shares = Counter(claim.tenant for claim in claims)
        for tenant in ("burst", "plain", "gold"):
            print(f"{tenant:<6} {shares[tenant]:>3} of {len(claims)}")
        client.ack_many(claims)
        print(f"{client.purge_queue(QUEUE)} tasks are left and cancelled")
    return 0 if len(claims) == CLAIMS else 1


if __name__ == "__main__":
    sys.exit(main())
