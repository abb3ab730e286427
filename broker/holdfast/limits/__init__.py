"""The arithmetic of limits: token buckets, shares of a queue's budget, turns of tenants. Pure, like the machine."""
