"""Who uses a system, and how.

base.py       what a workload is, and callers that write down what they see
calls.py      producers and workers of our own, some badly behaved: every call, every option
options.py    what their tasks ask for: unique keys, limits, times to live, timeouts; and schedules
lifecycle.py  real workers: idle gaps longer than leases, long tasks, timeouts, failures, tasks that kill their worker
storms.py     the same request ids from many producers at once, over all routers
steady.py     workers that hold tasks of every shard at any time
limited.py    caps and rates of queues that are spread over shards
chains.py     follow-ups and results over shards
idlers.py     hundreds of workers without work
probes.py     one small task after the other for each shard: how long each takes
app.py        the app of the real workers; recorder.py writes down what its worker does
"""
