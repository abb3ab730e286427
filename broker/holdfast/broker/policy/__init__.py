"""What queues do in their own way, and what a task is to be under it. Below the calls themselves only this package
reads messages: those that stand in the log, as clients and operators wrote them.

policies.py        the settings of a shard's queues, as its leader sees them
task_specs.py      what a task is to be: checked, with defaults filled in     (pure)
run_specs.py       the same of runs, and of each payload by itself          (pure)
retry_rules.py     when a task is tried again, and after which errors not     (pure)
retry_delays.py    how long it waits for its next attempt                     (pure)
schedule_specs.py  what a stored schedule says: its times, its tasks          (pure)
fields.py          checks of single fields                                    (pure)
task_errors.py     errors as they are kept
settings_guard.py  whether a leader may hand out a queue by the settings that it knows
"""
