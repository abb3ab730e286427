"""The arithmetic of limits: token buckets, and shares of a queue's budget. Pure, like the machine."""
