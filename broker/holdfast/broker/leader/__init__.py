"""What a shard has only while this node leads it. What it decides is written to the log. Others make a `Leadership`
(`leader.py`) and give it what `roles.py` names; they also use the clock, and say by the types here what callers want.

leader.py             puts all of it together, hands it what was applied, and ends it
roles.py              what it needs of those around it
proposals.py          writes on their way into the log: bounded, in order

reserver.py           claims, from the call to the log and back; picking.py: what a caller is given
waiters.py            calls that wait for a task; ready_waiters.py: the same for routers, without claiming
suspects.py           who is given tasks that may have silenced their worker
result_waiters.py     calls that wait for tasks to finish
decisions.py          verdicts on tasks, before an entry is written                                (pure)

sweeps.py             indexes in the order of time, each with a sweep that wakes when its first row is due
timers.py             leases, due tasks, purges; expiring.py: what becomes of a claim that ran out
schedule_manager.py   ticks become tasks
watermarks.py         raises low-water marks that no claim raises
outbox_relay.py       brings tasks to the shards that they belong to

clock.py              shard time; clock_evidence.py: what the clocks of other nodes say of this one
stats.py              rates, latencies, workers; claim_ages.py: how long claims are held
alerts.py             queues with too many dead letters
webhooks.py           tells other systems of them; webhook_rules.py: where they may be
"""
