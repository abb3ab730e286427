"""What queues do in their own way, and what a task is to be under it.

policies.py        the settings of a shard's queues, as its leader sees them
task_specs.py      what a task is to be: checked, with defaults filled in     (pure)
run_specs.py       the same of runs, and of each payload by itself          (pure)
retry_delays.py    how long a failed task waits for its next attempt          (pure)
fields.py          checks of single fields                                    (pure)
envelopes.py       what a broker reads in the message that comes with a task
settings_guard.py  whether a leader may hand out a queue by the settings that it knows
"""
