"""The stateless gateway: finds the leader of each shard and forwards calls to it. Nobody imports it: `main` is loaded
by name.

main.py, config.py, server.py  the process: its settings, and how its parts are put together
wire.py            the services that callers see; callers.py: who calls
methods.py         the calls that there are, and what may be done with each       (pure)
gateway.py         what is done with each call
own.py             calls that a router answers itself
batches.py         calls with many items                                          (pure)
whole_calls.py     calls that one shard gets as they came; split_calls.py: calls over several
forwarding.py      bytes to the leader of a shard, and back
passing_on.py      for whom a router calls brokers
leaders.py         who leads each shard; failures.py: how calls fail              (pure)
routes.py          the partition map as a router asks it
reserving.py, shared_waits.py, ready_waiters.py, known_requests.py  claims, and callers that wait for tasks
releases.py        claims that reached nobody
admission.py       how much may be under way                                      (pure)
metrics.py         what is counted
"""
